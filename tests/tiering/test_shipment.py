from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from resnap.storage.errors import FormatError, LockedError, StoreFullError, VerificationError
from resnap.storage.layouts.manifest import TOMBSTONE
from resnap.storage.log.indexes import AbortedTxn, write_transaction_index
from resnap.storage.readers import FileReader
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.storage.stores.probe import PROBE_PREFIX
from resnap.tiering.judging.refusal import Reason
from resnap.tiering.shipping.lease import LeaseLostError
from tests.cases import each
from tests.storage.stores.test_probe import (
    IgnoresConditions,
    SaysNoAndWrites,
    SendsNone,
    TakesAnything,
    Wired,
)
from tests.tiering.shipping import (
    UPGRADED,
    an_order,
    check_objects,
    manifest_keys,
    manifests,
    tier,
)
from tests.tiering.stores import ActingStore, FullStore, flip_byte, lose, truncate
from tests.tiering.test_delivery import Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.stores.protocol import BodyOpener, ObjectInfo, ObjectStore
    from resnap.tiering.shipping.shipment import PartitionShipment, Shipper
    from tests.fixture_sets import FixtureSet
    from tests.tiering.shipping import Order

    Sets = Callable[[str], FixtureSet]
    Copy = Callable[[Path], Path]

T = TypeVar("T")
FOLDERS = 2
"""Of a partition: under the id of its topic, and from before it was known."""
OF_RETENTION = 1
"""The note of what was deleted of a partition."""


@pytest.fixture
def order(fixture_set: Sets, tmp_path: Path) -> Order:
    return an_order(fixture_set(UPGRADED).data, tmp_path / "staged")


@pytest.fixture
def own_order(fixture_set: Sets, writable_copy: Copy, tmp_path: Path) -> Order:
    """An order whose log dir the test may change."""
    return an_order(writable_copy(fixture_set(UPGRADED).data), tmp_path / "staged")


def shipped_by(order: Order, store: ObjectStore, shipper: Shipper | None = None) -> PartitionShipment:
    assert order.result is not None
    return (shipper or order.shipper(store)).ship_partition(order.provenance, order.candidates, order.result)


def bases(shipment: PartitionShipment) -> list[int]:
    return [shipped.base_offset for shipped in shipment.shipped]


class Counting(Watched):
    """Counts the requests of each kind that are not the probe's own."""

    def counts(self) -> Counter[str]:
        return Counter(kind for kind, key in self.calls if not key.startswith(PROBE_PREFIX))

    def get(self, key: str) -> bytes:
        self.calls.append(("get", key))
        return super().get(key)

    def list(self, prefix: str = "", **pages: Any) -> Iterator[ObjectInfo]:
        self.calls.append(("list", prefix))
        return super().list(prefix, **pages)


class AtOnce(Executor):
    """Does all work before it is waited for."""

    def submit(self, work: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        future = Future[T]()
        future.set_result(work(*arguments, **named))
        return future


@each("parallel", [1, 3, 100])
def test_where_a_store_has_proven_its_promises_segments_need_a_write_for_each_object_and_those_at_once_one_look(
    parallel: int, order: Order
) -> None:
    store = Counting(Wired())
    shipper = order.shipper(store, parallel=parallel, threads=AtOnce())
    segments = len(shipped_by(order, store, shipper).shipped)
    objects = sum(len(manifest.objects) for manifest in manifests(store.inner))
    assert segments > 4
    assert store.counts() == {
        "put": objects + segments, "list": 2 * FOLDERS + -(-segments // parallel), "read": segments,
        "get": OF_RETENTION,
    }  # fmt: skip


@each("act", [truncate, lose])
@each("number", [0, 1])
@each("kind", ["log", "snapshot"])
def test_an_object_that_goes_while_others_are_copied_is_missed_before_its_manifest(
    kind: str, number: int, act: Callable[[ObjectStore, str], None], order: Order
) -> None:
    def named(number: int) -> str:
        return f"/{order.candidates.segments[number].base_offset:020d}-"

    class Loses(Wired):
        def put_stream(self, key: str, open_body: BodyOpener, **facts: Any) -> None:
            super().put_stream(key, open_body, **facts)
            if named(2) in key and key.endswith(".log"):
                act(self, next(info.key for info in self.list() if named(number) in info.key and kind in info.key))

    store = Loses()
    shipment = shipped_by(order, store, order.shipper(store, parallel=3, threads=AtOnce()))
    (failure,) = shipment.failures
    assert isinstance(failure, VerificationError)
    assert f".{kind}: gone or changed after it was verified" in str(failure)
    assert named(number) in str(failure)
    assert bases(shipment) == [segment.base_offset for segment in order.candidates.segments[:number]]
    assert len(manifest_keys(store)) == number


@each("kind", [IgnoresConditions, SaysNoAndWrites])
def test_where_a_store_does_not_keep_conditions_each_segment_is_looked_for_before_its_manifest(
    kind: type[Wired], order: Order
) -> None:
    store = Counting(kind())
    segments = len(shipped_by(order, store).shipped)
    counts = store.counts()
    assert (counts["head"], counts["read"] + counts["get"]) == (0, segments + OF_RETENTION)
    assert counts["list"] == (2 + 3 * segments) * FOLDERS + segments


@each("kind", [TakesAnything, SendsNone])
def test_where_a_store_does_not_check_what_it_takes_each_object_is_read_back(kind: type[Wired], order: Order) -> None:
    store = Counting(kind())
    segments = len(shipped_by(order, store).shipped)
    objects = sum(len(manifest.objects) for manifest in manifests(store.inner))
    assert store.counts() == {
        "put": objects + segments, "read": objects + segments, "list": 2 * FOLDERS + segments,
        "get": OF_RETENTION,
    }  # fmt: skip


@pytest.mark.parametrize("room", [*range(8), 20, 23])
def test_a_store_that_fills_up_keeps_the_segments_before_and_shows_nothing_of_the_current_one(
    room: int, order: Order, memory_store: ObjectStore
) -> None:
    shipment = shipped_by(order, FullStore(memory_store, room))
    (failure,) = shipment.failures
    assert isinstance(failure, StoreFullError)
    assert len(shipment.shipped) == room // 7, "six objects and a manifest for each"
    assert [shipped.manifest_key for shipped in shipment.shipped] == manifest_keys(memory_store)
    for manifest in manifests(memory_store):
        check_objects(memory_store, manifest)


def test_after_a_full_store_the_next_run_ships_the_rest_once(
    fixture_set: Sets, memory_store: ObjectStore, tmp_path: Path
) -> None:
    data = fixture_set(UPGRADED).data
    first = an_order(data, tmp_path / "first")
    before = bases(shipped_by(first, FullStore(memory_store, 17)))
    (second,) = tier(data, memory_store, tmp_path / "second", only={"payments-0"})
    assert before
    assert not second.failures
    assert sorted([*before, *bases(second)]) == bases(shipped_by(first, MemoryObjectStore(f"whole-{tmp_path}")))
    assert len(manifest_keys(memory_store)) == len(before) + len(second.shipped)
    named = sum(len(manifest.objects) + 1 for manifest in manifests(memory_store))
    assert len(list(memory_store.list())) == named, "the rerun wrote over what was left behind"


def test_a_store_that_lies_ends_the_shipment_with_what_was_shipped_until_then(
    order: Order, memory_store: ObjectStore
) -> None:
    def on_the_third(inner: ObjectStore, key: str) -> None:
        if key.endswith(".index") and len(manifest_keys(memory_store)) == 2:
            flip_byte(inner, key)

    shipment = shipped_by(order, ActingStore(memory_store, on_the_third))
    assert isinstance(shipment.failures[0], VerificationError)
    assert len(shipment.shipped) == len(manifest_keys(memory_store)) == 2


def delete_log(segment: Segment) -> None:
    Path(segment.path).rename(f"{segment.path}.deleted")


def truncate_log(segment: Segment) -> None:
    Path(segment.path).write_bytes(Path(segment.path).read_bytes()[:-1])


def grow_log(segment: Segment) -> None:
    with Path(segment.path).open("ab") as file:
        file.write(Path(segment.path).read_bytes())


def replace_log(segment: Segment) -> None:
    shutil.copy2(segment.path, f"{segment.path}.other")
    Path(f"{segment.path}.other").replace(segment.path)


def touch_log(segment: Segment) -> None:
    now = Path(segment.path).stat()
    os.utime(segment.path, ns=(now.st_atime_ns, now.st_mtime_ns + 1))


def damage_transactions(segment: Segment) -> None:
    Path(segment.sibling("txnindex")).write_bytes(write_transaction_index([AbortedTxn(1, 0, 5_000, 0)]))


def unreadable_transactions(segment: Segment) -> None:
    Path(segment.sibling("txnindex")).unlink()
    Path(segment.sibling("txnindex")).mkdir()  # opens, and gives an error when read, also to root


def damage_batches(segment: Segment) -> None:
    status = Path(segment.path).stat()
    with Path(segment.path).open("r+b") as file:
        file.seek(16)
        file.write(b"\x63")
    os.utime(segment.path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "reason"), [(damage_batches, Reason.DAMAGED), (damage_transactions, Reason.INDEX_UNUSABLE)]
)
def test_a_segment_whose_bytes_are_unfit_is_refused_and_the_others_are_shipped(
    change: Callable[[Segment], None], reason: Reason, own_order: Order, memory_store: ObjectStore
) -> None:
    segments = own_order.candidates.segments
    change(segments[3])
    shipment = shipped_by(own_order, memory_store)
    assert shipment.failures == []
    below = shipment.eligibility.last_stable_offset or 0
    assert bases(shipment) == [
        segment.base_offset
        for segment in segments
        if segment != segments[3] and (segment.next_base_offset or 0) <= below
    ]
    (refusal,) = (found for found in shipment.eligibility.refusals if found.base_offset == segments[3].base_offset)
    assert refusal.reason is reason
    assert refusal.hint
    assert shipment.eligibility.blocking == refusal


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (delete_log, Reason.SEGMENT_CHANGED),
        (truncate_log, Reason.SEGMENT_CHANGED),
        (grow_log, Reason.SEGMENT_CHANGED),
        (replace_log, Reason.SEGMENT_CHANGED),
        (touch_log, Reason.SEGMENT_CHANGED),
        (unreadable_transactions, Reason.UNREADABLE),
    ],
)
def test_a_segment_that_may_be_of_the_log_leaves_no_gap(
    change: Callable[[Segment], None], reason: Reason, own_order: Order, memory_store: ObjectStore
) -> None:
    """A segment that is gone while some below it are there was not deleted by retention."""
    segments = own_order.candidates.segments
    change(segments[3])
    shipment = shipped_by(own_order, memory_store)
    assert (bases(shipment), shipment.failures) == ([segment.base_offset for segment in segments[:3]], [])
    blocking = shipment.eligibility.blocking
    assert blocking is not None
    assert (blocking.base_offset, blocking.reason) == (segments[3].base_offset, reason)
    assert blocking.hint


def fails_to_open(monkeypatch: pytest.MonkeyPatch, path: str, number: int) -> None:
    """Let every open of the file at ``path`` fail with the error ``number``."""
    opened = os.open

    def fail(name: str, *rest: int, **how: int) -> int:
        if name == path:
            raise OSError(number, os.strerror(number), name)
        return opened(name, *rest, **how)

    monkeypatch.setattr(os, "open", fail)


def fails_to_read(monkeypatch: pytest.MonkeyPatch, path: str, number: int) -> None:
    """Let every read of the file at ``path`` fail with the error ``number``."""
    read = FileReader.read

    def fail(self: FileReader, position: int, length: int) -> bytes:
        if self.locator == path:
            raise OSError(number, os.strerror(number))
        return read(self, position, length)

    monkeypatch.setattr(FileReader, "read", fail)


@pytest.mark.parametrize("fails", [fails_to_open, fails_to_read])
def test_a_segment_that_cannot_be_read_leaves_no_gap_whatever_the_system_says_and_the_next_run_goes_on(
    fails: Callable[[pytest.MonkeyPatch, str, int], None],
    order: Order,
    memory_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segments = order.candidates.segments
    for number in sorted(errno.errorcode):
        store = MemoryObjectStore(f"{fails.__name__}-{number}")
        with monkeypatch.context() as patched:
            fails(patched, segments[2].path, number)
            shipment = shipped_by(order, store)
        assert bases(shipment) == [segment.base_offset for segment in segments[:2]], errno.errorcode[number]
        blocking = shipment.eligibility.blocking
        assert blocking is not None
        assert (blocking.base_offset, blocking.reason) == (segments[2].base_offset, Reason.UNREADABLE)
        assert segments[2].path in blocking.detail
        assert shipment.eligibility.segments == segments[:2]
    assert bases(shipment) + bases(shipped_by(order, store)) == bases(shipped_by(order, memory_store))


def test_a_segment_that_retention_takes_while_it_is_shipped_is_refused_and_the_next_one_shipped(
    own_order: Order, memory_store: ObjectStore
) -> None:
    segments = own_order.candidates.segments

    def retention(_: ObjectStore, key: str) -> None:
        if f"{segments[0].base_offset:020d}" in key and key.endswith(".log"):
            delete_log(segments[0])

    shipment = shipped_by(own_order, ActingStore(memory_store, retention))
    assert shipment.failures == []
    assert shipment.eligibility.refusals[0].reason is Reason.SEGMENT_CHANGED
    assert bases(shipment) == [manifest.base_offset for manifest in manifests(memory_store)]
    assert bases(shipment)[0] == segments[1].base_offset


def test_a_manifest_damaged_in_the_store_fails_the_shipment_and_not_its_segment(
    order: Order, memory_store: ObjectStore
) -> None:
    """The run listed the topic before another run put the manifest there, and the store then spoilt it."""
    key = shipped_by(order, memory_store).shipped[0].manifest_key
    flip_byte(memory_store, key)
    shipment = shipped_by(order, memory_store)
    (failure,) = shipment.failures
    assert isinstance(failure, FormatError)
    assert failure.file == key
    assert shipment.shipped == []
    assert Reason.DAMAGED not in {refusal.reason for refusal in shipment.eligibility.refusals}


def test_what_another_run_ships_before_the_lease_is_taken_is_not_shipped_beside(
    order: Order, memory_store: ObjectStore
) -> None:
    """What goes where was decided on by a store that holds something else now."""
    assert order.result is not None
    shipper = order.shipper(memory_store, now_ms=lambda: 0)
    others: list[PartitionShipment] = []

    def lease_of_another_until_now() -> None:
        if not others:
            others.append(shipped_by(order, memory_store))

    shipment = shipper.ship_partition(order.provenance, order.candidates, order.result, lease_of_another_until_now)
    assert [type(failure) for failure in shipment.failures] == [LockedError]
    assert shipment.shipped == []
    assert len(manifest_keys(memory_store)) == len(others[0].shipped)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_segment_that_became_visible_just_before_the_lease_was_lost_counts_if_it_is_still_there(
    is_deleted: bool, order: Order, memory_store: ObjectStore
) -> None:
    assert order.result is not None
    done: list[int] = []
    shipper = order.shipper(memory_store, now_ms=lambda: 0, progress=lambda count, _: done.append(count))

    def lost_once_one_is_visible() -> None:
        for key in manifest_keys(memory_store):
            if is_deleted:
                memory_store.put(key, TOMBSTONE)
            raise LeaseLostError("taken over")

    shipment = shipper.ship_partition(order.provenance, order.candidates, order.result, lost_once_one_is_visible)
    assert [type(failure) for failure in shipment.failures] == [LeaseLostError]
    visible = [] if is_deleted else [segment.base_offset for segment in order.candidates.segments[:1]]
    assert (bases(shipment), sum(done)) == (visible, len(visible))
