"""What brokers have left is what their metadata call dead, is old, and is not ours; whatever else is there stays."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID, uuid4, uuid5

import pytest

from resnap.storage.errors import StoreUnavailableError
from resnap.storage.layouts.local_tiered import object_key
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.brokers_garbage import Death, collect_brokers_garbage, find_brokers_garbage
from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadata, fold_events
from resnap.tiering.remote_log.records import (
    PartitionDeleteState,
    RemotePartitionDeleteMetadataRecord,
    SegmentState,
)
from resnap.tiering.shipping.lease import lease_name, lease_on
from tests.tiering.remote_log.written_records import PARTITION, copied, events, segment_id, started, updated
from tests.tiering.stores import PassingStore, ReplacingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from resnap.storage.errors import LockedError
    from resnap.tiering.brokers_garbage import BrokersGarbage
    from resnap.tiering.remote_log.records import RemoteLogRecord, TopicIdPartition

DAY_MS = 86_400_000
LAYOUTS = ("local-tiered", "aiven")
DELETING, DELETED = SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED
LIVING = [*copied("living", 0, 9), *copied("latest", 10, 19)]


def deletion(state: PartitionDeleteState) -> RemoteLogRecord:
    return RemotePartitionDeleteMetadataRecord(
        topic_id_partition=PARTITION, broker_id=1, event_timestamp_ms=4, remote_partition_delete_state=state
    )


class Brokers:
    """A store in one layout, and what the metadata topic says at the moment."""

    def __init__(self, layout: str) -> None:
        self.layout, self.now_ms = layout, 1_000 * DAY_MS
        self.store = MemoryObjectStore(f"brokers-{uuid4()}", clock_ms=lambda: self.now_ms)
        self.records: list[RemoteLogRecord] = []

    def put(self, segment: str) -> set[str]:
        """Write the objects of a segment, and return their keys."""
        if self.layout == "aiven":
            stem = f"tiered/payments-{PARTITION.id}/0/{0:020d}-{segment}"
            keys = {f"{stem}.{suffix}" for suffix in ("log", "indexes", "rsm-manifest")}
        else:
            keys = {object_key(PARTITION.topic_partition, PARTITION.id, 0, segment, kind) for kind in ObjectKind}
        for key in keys:
            self.store.put(key, b"x")
        return keys

    def read(self, wanted: Iterable[TopicIdPartition] | None) -> RemoteLogMetadata:
        assert wanted is None or list(wanted) == [PARTITION]
        return fold_events(events(self.records))

    def find(self) -> BrokersGarbage:
        return find_brokers_garbage(self.store, self.read, older_than_ms=DAY_MS)

    def collect(self, garbage: BrokersGarbage) -> list[LockedError]:
        """Collect ``garbage``, compare what is gone with what was said, and return the problems."""
        before = self.keys()
        collected = list(collect_brokers_garbage(self.store, garbage, self.read, now_ms=self.now_ms))
        assert before - self.keys() == {one.key for one in collected if one.problem is None}
        return [one.problem for one in collected if one.problem is not None]

    def keys(self) -> set[str]:
        return {info.key for info in self.store.list() if not info.key.startswith(".resnap/")}


@pytest.fixture(params=LAYOUTS)
def brokers(request: pytest.FixtureRequest) -> Brokers:
    return Brokers(request.param)


@pytest.mark.parametrize(
    ("records", "death"),
    [
        ([started("x", 0, 9), *LIVING], Death.COPY_NEVER_ENDED),
        ([*copied("x", 0, 9), *LIVING, updated("x", DELETING)], Death.DELETION_NEVER_ENDED),
        ([started("x", 0, 9), updated("x", DELETING), *LIVING], Death.DELETION_NEVER_ENDED),
        ([*copied("x", 0, 9), *LIVING, updated("x", DELETING), updated("x", DELETED)], Death.DELETED),
        ([*copied("x", 0, 9), deletion(PartitionDeleteState.DELETE_PARTITION_FINISHED), *LIVING], Death.DELETED),
        ([*copied("x", 0, 9), *LIVING], None),
        ([*LIVING, started("x", 20, 29)], None),
        ([*copied("x", 0, 9), *LIVING, deletion(PartitionDeleteState.DELETE_PARTITION_STARTED)], None),
        (LIVING, None),
        ([], None),
    ],
    ids=[
        "copy never ended", "deletion never ended", "failed copy is being deleted", "deleted", "topic deleted",
        "readable", "being copied", "topic being deleted", "not named", "partition not named",
    ],
)  # fmt: skip
def test_only_what_the_metadata_call_dead_is_garbage(
    brokers: Brokers, records: list[RemoteLogRecord], death: Death | None
) -> None:
    brokers.records = records
    left = brokers.put(segment_id("x").id)
    rest = brokers.put(segment_id("living").id) | brokers.put(segment_id("latest").id)
    assert (brokers.find().segments, brokers.find().younger) == ((), 0 if death is None else len(left))
    brokers.now_ms += 2 * DAY_MS
    found = brokers.find()
    assert [(segment.segment_id, segment.death) for segment in found.segments] == (
        [] if death is None else [(segment_id("x").id, death)]
    )
    assert brokers.collect(found) == []
    assert brokers.keys() == (rest | left if death is None else rest)
    assert brokers.find().segments == ()


@pytest.mark.parametrize("is_record", [True, False])
def test_a_segment_with_a_young_record_or_a_single_young_object_is_left_whole(
    brokers: Brokers, *, is_record: bool
) -> None:
    brokers.records = [started("x", 0, 9), *LIVING]
    left = brokers.put(segment_id("x").id)
    brokers.now_ms += 2 * DAY_MS
    if is_record:
        brokers.records[0] = replace(brokers.records[0], event_timestamp_ms=brokers.now_ms)
    else:
        brokers.store.put(min(left), b"later")
    assert (brokers.find().segments, brokers.find().younger) == ((), len(left))


def test_what_was_shipped_and_announced_is_left(brokers: Brokers) -> None:
    ours = urlsafe_b64encode(uuid5(UUID(int=0), "ours").bytes).decode().rstrip("=")
    record = started("x", 0, 9)
    brokers.records = [replace(record, remote_log_segment_id=replace(segment_id("x"), id=ours)), *LIVING]
    brokers.put(ours)
    brokers.now_ms += 2 * DAY_MS
    assert (brokers.find().segments, brokers.find().younger) == ((), 0)


def lives_again(brokers: Brokers) -> None:
    brokers.records = [*brokers.records, updated("x", SegmentState.COPY_SEGMENT_FINISHED)]


def is_written_again(brokers: Brokers) -> None:
    brokers.now_ms += DAY_MS
    brokers.put(segment_id("x").id)


@pytest.mark.parametrize("happens", [lives_again, is_written_again])
def test_what_changes_after_the_listing_is_left(brokers: Brokers, happens: Callable[[Brokers], None]) -> None:
    brokers.records = [started("x", 0, 9), *LIVING]
    left = brokers.put(segment_id("x").id)
    brokers.now_ms += 2 * DAY_MS
    found = brokers.find()
    happens(brokers)
    assert (len(found.segments), brokers.collect(found), brokers.keys()) == (1, [], left)


@pytest.mark.parametrize("is_conditional", [True, False])
def test_what_is_replaced_in_the_moment_of_its_deletion_stays_where_the_store_keeps_conditions(
    brokers: Brokers, *, is_conditional: bool
) -> None:
    brokers.records = [started("x", 0, 9), *LIVING]
    left = brokers.put(segment_id("x").id)
    brokers.now_ms += 2 * DAY_MS
    store = ReplacingStore(brokers.store, {max(left)})
    collected = collect_brokers_garbage(
        store, brokers.find(), brokers.read, now_ms=brokers.now_ms, is_conditional=is_conditional
    )
    stays = {max(left)} if is_conditional else set()
    assert ({one.key for one in collected}, brokers.keys()) == (left - stays, stays)


@dataclass
class EndingStore(PassingStore):
    """A store that a run loses after so many deletions of a broker's objects."""

    left: int

    def delete(self, key: str, *, etag: str | None = None) -> None:
        if self.left == 0 and not key.startswith(".resnap/"):
            raise StoreUnavailableError("the run was killed here")
        self.left -= not key.startswith(".resnap/")
        self.inner.delete(key, etag=etag)


@pytest.mark.parametrize("after", range(6))
def test_wherever_a_run_ends_nothing_looks_complete_and_the_next_run_deletes_the_rest(
    brokers: Brokers, after: int
) -> None:
    brokers.records = [started("x", 0, 9), *LIVING]
    left = brokers.put(segment_id("x").id)
    rest = brokers.put(segment_id("living").id)
    brokers.now_ms += 2 * DAY_MS
    ending = EndingStore(brokers.store, after)
    with suppress(StoreUnavailableError):
        list(collect_brokers_garbage(ending, brokers.find(), brokers.read, now_ms=brokers.now_ms))
    assert len(left & brokers.keys()) == max(len(left) - after, 0)
    shown_by = ".rsm-manifest" if brokers.layout == "aiven" else ".log"
    assert any(key.endswith(shown_by) for key in left & brokers.keys()) == (after == 0)
    brokers.now_ms += DAY_MS
    assert brokers.collect(brokers.find()) == []
    assert brokers.keys() == rest


def test_nothing_is_deleted_while_another_run_works_on_the_partition(brokers: Brokers) -> None:
    brokers.records = [started("x", 0, 9), *LIVING]
    left = brokers.put(segment_id("x").id)
    brokers.now_ms += 2 * DAY_MS
    found = brokers.find()
    with lease_on(
        brokers.store, lease_name(None, PARTITION.topic_partition), verb="repair", now_ms=brokers.now_ms
    ) as lease:
        lease.hold()
        (problem,) = brokers.collect(found)
    assert ("repair" in str(problem), brokers.keys()) == (True, left)


def test_an_empty_store_is_not_written_to(brokers: Brokers) -> None:
    assert (brokers.find().listed, list(brokers.store.list())) == (0, [])
