from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.layouts.flat.keys import (
    EXTENSIONS,
    FlatKey,
    object_key,
    parse_key,
    segment_ids,
    topic_prefix,
)
from resnap.storage.layouts.flat.listing import list_shipped
from resnap.storage.stores.protocol import MAX_KEY_BYTES, ObjectInfo, check_key, key_part
from tests.cases import each
from tests.storage.layouts.manifests import topics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.stores.protocol import ObjectStore

ID = UUID("6f8e0d8e-1234-5000-8000-0123456789ab")
TOPIC_ID = "Wq8hHFTBRYOKdXyTr_4wRQ"
names = (
    st.text(min_size=1, max_size=300) | topics | st.sampled_from(["none", ".", "..", "=", "=6Eone", "=2E", "n=6Fne"])
)
version_5_ids = st.uuids(version=5)


def a_key(**changes: Any) -> str:
    fields: dict[str, Any] = {
        "cluster_id": "c1", "topic": "orders", "topic_id": TOPIC_ID, "partition": 3, "base_offset": 100,
        "segment_id": ID, "extension": "log",
    }  # fmt: skip
    return object_key(**(fields | changes))


def an_id(**changes: Any) -> UUID:
    fields: dict[str, Any] = {
        "cluster_id": "c1", "topic": "orders", "topic_id": TOPIC_ID, "partition": 3, "base_offset": 100,
        "next_base_offset": 200, "digests": {"log": "ab" * 32, "snapshot": "cd" * 32},
    }  # fmt: skip
    return next(segment_ids(**(fields | changes)))


def test_a_key_states_what_its_object_is() -> None:
    assert a_key() == f"c1/orders/{TOPIC_ID}/3/00000000000000000100-{ID}.log"
    assert a_key(cluster_id=None, topic_id=None, extension="leader-epoch-checkpoint") == (
        f"none/orders/none/3/00000000000000000100-{ID}.leader-epoch-checkpoint"
    )


def test_a_cluster_called_none_is_not_an_unknown_one() -> None:
    assert a_key(cluster_id="none").startswith("=6Eone/")


def test_a_long_topic_is_its_front_and_a_hash() -> None:
    longest_whole, first_shortened = "t" * 200, "t" * 201
    assert a_key(topic=longest_whole).split("/")[1] == longest_whole
    assert a_key(topic=first_shortened).split("/")[1].startswith("t" * 100 + "=sha256-")
    assert key_part("t" * 200 + "a") != key_part("t" * 200 + "b")


@given(
    st.fixed_dictionaries(
        {
            "cluster_id": names | st.none(),
            "topic": names,
            "topic_id": names | st.none(),
            "partition": st.integers(0, 2**31 - 1),
            "base_offset": st.integers(0, 2**63 - 1),
            "segment_id": version_5_ids,
            "extension": st.sampled_from(sorted(EXTENSIONS)),
        }
    )
)
def test_every_key_is_portable_and_comes_apart_as_it_was_put_together(fields: dict[str, Any]) -> None:
    key = object_key(**fields)
    check_key(key)
    assert len(key) < MAX_KEY_BYTES
    parsed = parse_key(key)
    assert parsed == FlatKey(
        cluster=key_part(fields["cluster_id"]),
        topic=key_part(fields["topic"]),
        topic_id=key_part(fields["topic_id"]),
        partition=fields["partition"],
        base_offset=fields["base_offset"],
        segment_id=str(fields["segment_id"]),
        suffix=fields["extension"],
    )
    assert parsed.key == key
    assert key.startswith(topic_prefix(fields["cluster_id"], fields["topic"]))


@given(names | st.none(), names | st.none())
def test_different_names_give_different_parts(one: str | None, other: str | None) -> None:
    assert (key_part(one) == key_part(other)) is (one == other)


@given(topics.filter(lambda name: len(name) <= 200 and name != "none"))
def test_a_topic_name_of_kafka_is_kept_unchanged(topic: str) -> None:
    assert key_part(topic) == topic


def test_an_empty_name_is_not_a_part() -> None:
    with pytest.raises(ValueError, match="empty"):
        key_part("")


def test_all_keys_of_a_topic_lie_below_its_prefix_and_no_others() -> None:
    prefix = topic_prefix("c1", "orders")
    assert a_key(topic_id=None).startswith(prefix)
    assert a_key(topic_id=TOPIC_ID, extension="manifest").startswith(prefix)
    for other in (a_key(topic="orders-2"), a_key(topic="order"), a_key(cluster_id="c2"), a_key(cluster_id=None)):
        assert not other.startswith(prefix)


@each(
    "key",
    [
        "",
        "c1/orders/none/3/00000000000000000100.log",
        f"c1/orders/none/3/100-{ID}.log",
        f"c1/orders/none/3/00000000000000000100-{str(ID).upper()}.log",
        f"c1/orders/none/3/00000000000000000100-{str(ID).replace('-5', '-4')}.log",
        f"c1/orders/none/3/00000000000000000100-{ID}.tmp",
        f"c1/orders/none/3/00000000000000000100-{ID}.log.tmp",
        f"c1/orders/none/3/99999999999999999999-{ID}.log",
        f"c1/orders/none/03/00000000000000000100-{ID}.log",
        f"c1/orders/none/-3/00000000000000000100-{ID}.log",
        f"c1/orders/none/9999999999/00000000000000000100-{ID}.log",
        f"orders/none/3/00000000000000000100-{ID}.log",
        f"x/c1/orders/none/3/00000000000000000100-{ID}.log",
        f"c1/../none/3/00000000000000000100-{ID}.log",
        f"c1/ord ers/none/3/00000000000000000100-{ID}.log",
        f"c1/ord=6/none/3/00000000000000000100-{ID}.log",
        f"c1/{'t' * 201}/none/3/00000000000000000100-{ID}.log",
        f"c1/orders/none/3/00000000000000000100-{ID}.log\n",
        f"c1/orders/none/\u0663/00000000000000000100-{ID}.log",
    ],
)
def test_a_key_of_another_form_is_not_ours(key: str) -> None:
    assert parse_key(key) is None


def test_a_segment_id_is_a_uuid_of_version_5_that_never_changes() -> None:
    assert an_id().version == 5
    assert str(an_id()) == "07d80f6d-1a3c-5baa-b92d-76b541cf0065"


@each(
    "changes",
    [{"cluster_id": None}, {"cluster_id": "c2"}, {"topic": "others"}, {"topic_id": None}, {"partition": 4},
     {"base_offset": 101}, {"next_base_offset": 201}, {"digests": {"log": "ab" * 32}},
     {"digests": {"log": "cd" * 32, "snapshot": "ab" * 32}}, {"digests": {"log": "ab" * 32, "index": "cd" * 32}}],
)  # fmt: skip
def test_whatever_differs_gives_another_segment_id(changes: dict[str, Any]) -> None:
    assert an_id(**changes) != an_id()


def test_the_order_of_digests_does_not_matter() -> None:
    assert an_id(digests={"snapshot": "cd" * 32, "log": "ab" * 32}) == an_id()


class ManySegments:
    """A store that makes its listing up: ``count`` segments, each with an object of every extension."""

    def __init__(self, count: int) -> None:
        self.count = count

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for number in range(self.count):
            for extension in EXTENSIONS:
                key = a_key(partition=number, segment_id=UUID(int=number, version=5), extension=extension)
                if key.startswith(prefix):
                    yield ObjectInfo(key=key, size_bytes=1000, modified_ms=1, etag=f'"{number:032x}"')


def test_a_listing_holds_less_than_a_kilobyte_of_a_segment() -> None:
    """So that the segments of a listing of a million stay below a gibibyte, while it is made, too."""
    count = 2_000
    tracemalloc.start()
    try:
        listing = list_shipped(cast("ObjectStore", ManySegments(count)), lambda _: True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(listing.manifests) == len(listing.sizes) == count
    assert peak_bytes / count < 1024


def test_a_listing_of_a_partition_has_no_other() -> None:
    within = f"c1/orders/{TOPIC_ID}/7/"
    listing = list_shipped(cast("ObjectStore", ManySegments(20)), lambda _: True, within)
    assert {listing.folder(key) for key in listing.manifests} == {within}
    assert listing.sizes.keys() == listing.manifests.keys()
