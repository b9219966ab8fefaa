from __future__ import annotations

import os
import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import ObjectChangedError, ObjectNotFoundError, StoreAccessError, StoreUnavailableError
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.storage.stores.ranged_reader import ranged_reader
from resnap.storage.stores.s3 import S3ObjectStore
from tests.cases import each
from tests.examples import examples
from tests.storage.stores.range_server import Served, serving
from tests.tiering.stores import PassingStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.stores.protocol import ObjectStore
    from resnap.storage.stores.s3_settings import S3Settings

RANGE = 1000
BODY = random.Random(7).randbytes(20_500)


class WatchedStore(PassingStore):
    """Records which ranges it was asked for."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.ranges: list[tuple[int, int]] = []

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        self.ranges.append((start, end))
        return super().get_range(key, start, end, etag=etag)


@pytest.fixture
def store() -> WatchedStore:
    inner = MemoryObjectStore(f"ranged-{os.urandom(8).hex()}")
    inner.put("key", BODY)
    return WatchedStore(inner)


def read_through(store: ObjectStore, block: int, step: int | None = None, end: int | None = None) -> list[bytes]:
    with ranged_reader(store, "key", ranges_in_flight=4, range_bytes=RANGE, end=end) as reader:
        limit = reader.size_bytes if end is None else end
        return [reader.read(at, min(block, limit - at)) for at in range(0, limit, step or block)]


@pytest.mark.parametrize("block", [1, 61, 999, 1000, 1001, 2500, 9000, 20_500, 50_000])
def test_what_is_read_in_sequence_is_the_object_and_nothing_is_fetched_twice(store: WatchedStore, block: int) -> None:
    assert b"".join(read_through(store, block)) == BODY
    fetched = sorted(store.ranges)
    assert fetched[0][0] == 0
    assert fetched[-1][1] == len(BODY)
    assert all(left[1] == right[0] for left, right in pairwise(fetched))
    assert 21 <= len(fetched) <= 22


def test_short_hops_stream_since_a_request_costs_more_than_what_lies_between(store: WatchedStore) -> None:
    read_through(store, 61, step=920)  # into every range
    assert len(store.ranges) == 21


def test_hops_over_whole_ranges_fetch_only_what_is_asked_for(store: WatchedStore) -> None:
    blocks = read_through(store, 61, step=2500)
    assert blocks == [BODY[at : at + 61] for at in range(0, 20_500, 2500)]
    assert store.ranges[0] == (0, RANGE)
    assert store.ranges[1:] == [(at, at + 61) for at in range(2500, 20_500, 2500)]


def test_a_hop_out_of_what_was_read_ahead_ends_the_reading_ahead(store: WatchedStore) -> None:
    with ranged_reader(store, "key", ranges_in_flight=4, range_bytes=RANGE) as reader:
        assert reader.read(0, 100) + reader.read(100, 100) == BODY[:200]
        assert reader.read(15_000, 100) == BODY[15_000:15_100]
        assert reader.read(15_100, 100) == BODY[15_100:15_200]
    assert (15_000, 15_100) in store.ranges
    assert all(end <= 4000 or start >= 15_000 for start, end in store.ranges)


def test_nothing_is_read_ahead_from_the_given_end_on(store: WatchedStore) -> None:
    assert b"".join(read_through(store, 300, end=6_300)) == BODY[:6_300]
    assert max(end for _, end in store.ranges) == 6_300
    with ranged_reader(store, "key", ranges_in_flight=4, range_bytes=RANGE, end=100) as reader:
        assert reader.read(0, 500) == BODY[:500]  # what is asked for is given all the same


@given(reads=st.lists(st.tuples(st.integers(0, 21_000), st.integers(0, 6_000)), max_size=12), most=st.integers(1, 5))
@examples(60)
def test_any_reads_in_any_order_give_the_bytes_that_are_there(reads: list[tuple[int, int]], most: int) -> None:
    store = MemoryObjectStore("any-reads")
    store.put("key", BODY)
    with ranged_reader(store, "key", ranges_in_flight=most, range_bytes=RANGE) as reader:
        for position, length in reads:
            assert reader.read(position, length) == BODY[position : position + length]
            assert sum(one.end - one.start for one in reader._window) <= most * RANGE


def test_an_empty_object_has_nothing_to_read() -> None:
    store = MemoryObjectStore("ranged-empty")
    store.put("key", b"")
    with ranged_reader(store, "key") as reader:
        assert (reader.size_bytes, reader.read(0, 10)) == (0, b"")


def test_an_object_replaced_in_the_middle_is_an_error_and_not_a_mixture(store: WatchedStore) -> None:
    with ranged_reader(store, "key", ranges_in_flight=1, range_bytes=RANGE) as reader:
        assert reader.read(0, 500) == BODY[:500]
        store.put("key", BODY[::-1])
        with pytest.raises(ObjectChangedError, match=r"memory://ranged-.*/key: the object was replaced"):
            reader.read(5_000, 500)


def test_an_object_that_vanishes_in_the_middle_is_not_found(store: WatchedStore) -> None:
    with ranged_reader(store, "key", range_bytes=RANGE) as reader:
        reader.read(0, 500)
        store.delete("key")
        with pytest.raises(ObjectNotFoundError, match="/key"):
            reader.read(9_000, 500)


@pytest.fixture
def served(no_aws_of_this_machine: None) -> Iterator[Served]:  # noqa: ARG001
    with serving(BODY) as one:
        yield one


def of(served: Served) -> S3ObjectStore:
    return S3ObjectStore("bucket", "", served.settings())


@pytest.mark.s3
def test_a_slow_server_is_asked_for_so_many_ranges_at_once_and_no_more(served: Served) -> None:
    def hold(one: Served, number: int) -> None:  # all but the first, which is read alone, until so many are there
        with one.change:
            one.change.notify_all()
            assert not number or one.change.wait_for(lambda: one.most_in_flight >= 4, 60)

    served.before_answer = hold
    assert b"".join(read_through(of(served), 500)) == BODY
    assert served.most_in_flight == 4
    assert (served.heads, len(served.ranges), served.bytes_asked) == (0, 21, len(BODY))


@pytest.mark.s3
@each("reads", [[(0, len(BODY))], [(0, 61), (61, 5000), (20_000, 500)], [(20_000, 500), (0, 61)]])
def test_a_small_object_comes_whole_with_its_facts_by_one_request(reads: list[tuple[int, int]], served: Served) -> None:
    served.ranges.clear()
    with ranged_reader(of(served), "key") as reader:
        assert reader.size_bytes == len(BODY)
        assert [reader.read(at, length) for at, length in reads] == [BODY[at : at + length] for at, length in reads]
    assert (served.heads, served.ranges) == (0, [(0, len(BODY))])


@pytest.mark.s3
@each("body", [b"", b"x"])
def test_an_object_of_a_byte_or_of_none_is_opened_on_a_real_server(
    body: bytes, s3_bucket: str, s3_settings: S3Settings
) -> None:
    store = S3ObjectStore(s3_bucket, "prefix", s3_settings)
    store.put("key", body)
    with ranged_reader(store, "key") as reader:
        assert (reader.size_bytes, reader.modified_ms, reader.read(0, 10)) == (
            len(body), store.head("key").modified_ms, body,
        )  # fmt: skip


@pytest.mark.s3
def test_what_is_not_there_is_not_found_when_it_is_opened(s3_bucket: str, s3_settings: S3Settings) -> None:
    with (
        pytest.raises(ObjectNotFoundError, match="key"),
        ranged_reader(S3ObjectStore(s3_bucket, "prefix", s3_settings), "key"),
    ):
        pass


@pytest.mark.s3
def test_a_throttled_range_is_asked_for_again(served: Served) -> None:
    def throttle(one: Served, number: int) -> None:
        one.status = 503 if number == 2 else None

    served.before_answer = throttle
    with ranged_reader(of(served), "key", ranges_in_flight=1, range_bytes=RANGE) as reader:
        assert b"".join(reader.read(at, 500) for at in range(0, len(BODY), 500)) == BODY
    assert len(served.ranges) == 22


@pytest.mark.s3
def test_a_body_that_breaks_off_is_asked_for_again_and_not_for_ever(served: Served) -> None:
    served.cut_short = 2
    with ranged_reader(of(served), "key", ranges_in_flight=1, range_bytes=RANGE) as reader:
        assert reader.read(0, 500) == BODY[:500]
        served.cut_short = 99
        with pytest.raises(StoreUnavailableError, match="s3://bucket/key") as raised:
            reader.read(5_000, 500)
    assert raised.value.transient


@pytest.mark.s3
@pytest.mark.parametrize("knows_conditions", [True, False])
def test_a_replaced_object_is_noticed_whether_the_store_knows_conditions_or_not(
    served: Served, *, knows_conditions: bool
) -> None:
    served.knows_conditions = knows_conditions
    with ranged_reader(of(served), "key", ranges_in_flight=1, range_bytes=RANGE) as reader:
        assert reader.read(0, 500) == BODY[:500]
        served.etag, served.body = '"second"', BODY[::-1]
        with pytest.raises(ObjectChangedError, match="s3://bucket/key: the object was replaced"):
            reader.read(5_000, 500)


@pytest.mark.s3
@pytest.mark.parametrize(("status", "error"), [(404, ObjectNotFoundError), (403, StoreAccessError)])
def test_what_cannot_be_read_any_more_says_why_and_is_not_tried_again(
    served: Served, status: int, error: type[Exception]
) -> None:
    with ranged_reader(of(served), "key", ranges_in_flight=1, range_bytes=RANGE) as reader:
        reader.read(0, 500)
        served.status = status
        with pytest.raises(error):
            reader.read(5_000, 500)
    assert len(served.ranges) == 2


@pytest.mark.s3
def test_a_real_s3_server_gives_what_was_put(s3_bucket: str, s3_settings: S3Settings) -> None:
    store = S3ObjectStore(s3_bucket, "prefix", s3_settings)
    store.put("key", BODY)
    assert b"".join(read_through(store, 700)) == BODY
    with ranged_reader(store, "key", ranges_in_flight=1, range_bytes=RANGE) as reader:
        reader.read(0, 10)
        store.put("key", BODY[::-1])
        with pytest.raises(ObjectChangedError):
            reader.read(9_000, 10)
