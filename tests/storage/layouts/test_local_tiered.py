from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.layouts.local_tiered import LocalTiered, object_key, parse_key
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.segment_key import SegmentKey
from resnap.storage.log.checkpoints import LeaderEpoch, write_leader_epochs
from resnap.storage.log.indexes import OffsetIndexEntry, write_offset_index
from resnap.storage.log.names import MAX_OFFSET, MAX_PARTITION, TopicPartition
from resnap.storage.log.record_batch import RecordBatchHeader, seal
from resnap.storage.messages.wire import uuid_text
from resnap.storage.stores.memory import MemoryObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.log.log_dir import LogDir
    from tests.fixture_sets import FixtureSet

IDS = st.binary(min_size=16, max_size=16).map(uuid_text)
KEYS = st.builds(
    SegmentKey,
    topic=st.text("abAZ09._-", min_size=1, max_size=20),
    partition=st.integers(0, MAX_PARTITION),
    topic_id=IDS,
    base_offset=st.integers(0, MAX_OFFSET),
    segment_id=IDS,
    suffix=st.sampled_from(ObjectKind),
)


def key_of(parts: SegmentKey) -> str:
    at = TopicPartition(parts.topic, parts.partition)
    return object_key(at, parts.topic_id, parts.base_offset, parts.segment_id, ObjectKind(parts.suffix))


@given(KEYS)
def test_a_key_is_taken_apart_into_what_it_was_made_of(parts: SegmentKey) -> None:
    assert parse_key(key_of(parts)) == parts
    assert parse_key(f"some/prefix/{key_of(parts)}") == parts


def test_every_file_that_a_broker_left_has_a_key_of_this_layout(fixture_set: Callable[[str], FixtureSet]) -> None:
    remote = fixture_set("kafka-3.9.1-tiered").root / "remote"
    files = [path.relative_to(remote).as_posix() for path in remote.rglob("*") if path.is_file()]
    keys = [parse_key(name) for name in files]
    assert [key and key_of(key) for key in keys] == files
    assert {key.suffix for key in keys if key} == set(ObjectKind)


@pytest.mark.parametrize(
    "name",
    [
        "kafka-tiered-storage/payments-0/00000000000000000000.log",
        "payments-0-AAAAAAAAQACAAAAAAAAAAQ/00000000000000000000-AAAAAAAAQACAAAAAAAAAAQ.swap",
        "payments-0-AAAAAAAAQACAAAAAAAAAAQ/99999999999999999999-AAAAAAAAQACAAAAAAAAAAQ.log",
        "payments-01-AAAAAAAAQACAAAAAAAAAAQ/00000000000000000000-AAAAAAAAQACAAAAAAAAAAQ.log",
        "payments-9999999999-AAAAAAAAQACAAAAAAAAAAQ/00000000000000000000-AAAAAAAAQACAAAAAAAAAAQ.log",
    ],
)
def test_other_names_are_not_keys(name: str) -> None:
    assert parse_key(name) is None


TOPIC_ID: Final = "f3L0rq1dQfuMgT5AJqVZ0g"
OTHER_ID: Final = "Zx8pYt2nRr6vKw1mQe4uLg"


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore(f"brokers-{uuid4()}")


def a_batch(base: int, end: int) -> bytes:
    return seal(RecordBatchHeader(base, 0, 0, 2, 0, 0, end - base - 1, 0, 0, -1, -1, -1, end - base), b"r" * 20)


def tier(store: MemoryObjectStore, *offsets: int, topic_id: str = TOPIC_ID, epoch: int = 0) -> dict[ObjectKind, str]:
    """Write a segment as a broker does, with batches from each of ``offsets`` to the next; return its keys."""
    batches = [a_batch(*pair) for pair in pairwise(offsets)]
    position = sum(map(len, batches[:-1]))
    bodies = {
        ObjectKind.LOG: b"".join(batches),
        ObjectKind.INDEX: write_offset_index([OffsetIndexEntry(offsets[-1] - 1 - offsets[0], position)]),
        ObjectKind.TIME_INDEX: b"",
        ObjectKind.SNAPSHOT: b"snapshot",
        ObjectKind.LEADER_EPOCH_CHECKPOINT: write_leader_epochs([LeaderEpoch(epoch, 0)]),
    }
    segment_id = uuid_text(uuid4().bytes)
    at = TopicPartition("payments", 3)
    keys = {kind: object_key(at, topic_id, offsets[0], segment_id, kind) for kind in bodies}
    for kind, body in bodies.items():
        store.put(keys[kind], body)
    return keys


def read(store: MemoryObjectStore, *, chosen: dict[str, str] | None = None) -> LogDir:
    return LocalTiered().log_dir(store, store.list(), None, topic_ids=chosen)


def offsets_of(log_dir: LogDir) -> list[tuple[int, int | None]]:
    assert log_dir.problems == ()
    return [(one.base_offset, one.next_base_offset) for found in log_dir.partitions for one in found.segments]


def test_segments_without_manifests_are_one_log_whose_ends_are_those_of_their_last_batches(
    store: MemoryObjectStore,
) -> None:
    for segment in ((0, 4, 10), (10, 25), (25, 30, 31, 40)):
        tier(store, *segment)
    log_dir = read(store)
    assert offsets_of(log_dir) == [(0, 10), (10, 25), (25, 40)]
    (partition,) = log_dir.partitions
    assert (partition.topic_id, partition.log_start_offset, partition.high_watermark) == (TOPIC_ID, 0, 40)
    assert [snapshot.offset for snapshot in partition.snapshots] == [10, 25, 40]
    assert (log_dir.is_shipped, log_dir.cluster_id, log_dir.broker_id) == (True, None, None)


def test_a_copy_that_is_under_way_is_not_there(store: MemoryObjectStore) -> None:
    tier(store, 0, 10)
    for kind, key in tier(store, 10, 25).items():
        body = store.get(key)
        store.delete(key)
        assert offsets_of(read(store)) == [(0, 10)], kind
        store.put(key, body)
    assert offsets_of(read(store)) == [(0, 10), (10, 25)]


def test_a_log_that_was_cut_off_is_a_problem_unless_it_was_copied_again(store: MemoryObjectStore) -> None:
    tier(store, 0, 10)
    log = tier(store, 10, 20, 25)[ObjectKind.LOG]
    for length in (1, 80, 120):
        store.put(log, store.get(log)[:-length] if length < 100 else b"")
        (problem,) = read(store).problems
        assert log in str(problem.error), length
    tier(store, 10, 20, 25)
    assert offsets_of(read(store)) == [(0, 10), (10, 25)]


def test_of_several_segments_the_chain_is_read_that_goes_on_and_a_gap_or_another_history_is_a_problem(
    store: MemoryObjectStore,
) -> None:
    for segment in ((0, 10), (0, 10), (10, 18), (10, 25)):  # a retry, and another leader's boundaries
        tier(store, *segment)
    assert offsets_of(read(store)) == [(0, 10), (10, 25)]
    lost = tier(store, 30, 40)
    assert "leave a gap at offset 25" in str(read(store).problems[0].error)
    for key in lost.values():
        store.delete(key)
    tier(store, 20, 40, epoch=1)
    assert "different leader epochs" in str(read(store).problems[0].error)


def test_of_several_topics_of_a_name_one_is_chosen(store: MemoryObjectStore) -> None:
    tier(store, 0, 10)
    tier(store, 0, 33, topic_id=OTHER_ID)
    assert "several topics of this name" in str(read(store).problems[0].error)
    assert offsets_of(read(store, chosen={"payments": OTHER_ID})) == [(0, 33)]


def test_a_segment_is_seen_from_the_root_from_the_brokers_folder_and_from_that_of_its_partition() -> None:
    folder, name = f"payments-3-{TOPIC_ID}", f"{0:020d}-{OTHER_ID}.log"
    assert all(LocalTiered().is_key(key) for key in (f"kafka-tiered-storage/{folder}/{name}", f"{folder}/{name}"))
    assert not any(LocalTiered().is_key(key) for key in (name, f"elsewhere/{folder}/{name}"))
