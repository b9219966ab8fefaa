from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.storage.layouts.segments import Provenance
from resnap.storage.log.checkpoints import LeaderEpoch, read_leader_epochs, write_leader_epochs
from resnap.storage.log.indexes import (
    AbortedTxn,
    read_offset_index,
    read_time_index,
    read_transaction_index,
    write_transaction_index,
)
from resnap.storage.log.log_dir import load_log_dir, load_partition_dir
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.partition_dir import LEADER_EPOCHS, Checkpoints
from resnap.tiering.shipping.segment_bundle import (
    EpochHistory,
    LeaderEpochsUnknownError,
    LeaderEpochsWrongError,
)
from resnap.tiering.shipping.segment_indexes import (
    INDEX_INTERVAL_BYTES,
    IndexUnusableError,
    load_indexes,
    rebuild_indexes,
)
from tests.builders import a_partition
from tests.fixture_sets import NAMES
from tests.logs.log_writer import PartitionWriter
from tests.strategies import START_MS, DataEvent, LegacyEvent, MarkerEvent, PlainEvent
from tests.tiering.shipping import a_new_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.layouts.segments import NewSegment
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from tests.fixture_sets import FixtureSet

    Sets = Callable[[str], FixtureSet]
    Copy = Callable[[Path], Path]

SNAPSHOT = b"not looked into"
PROVENANCE = Provenance(
    cluster_id=None,
    broker_id=None,
    log_directory="",
    topic_partition=TopicPartition("payments", 0),
    topic_id=None,
    compaction_assumption=None,
    resnap_version="0.0.0",
)
INTERVAL_BYTES = 1024
"""``index.interval.bytes`` of most fixture sets."""
ALWAYS_RUNNING = (
    *("kafka-3.9.1-kraft", "kafka-3.9.1-steady", "kafka-3.9.1-tiered"),
    *("kafka-4.1.1-kraft", "kafka-4.4.0-kraft", "kafka-4.4.0-tiered"),
)
"""Sets whose broker, a new one, was never restarted."""


def bodies(bundle: NewSegment) -> dict[str, bytes]:
    found = {}
    for part in bundle.files:
        with part.open_body() as body:
            found[str(part.kind)] = body.read()
    return found


def bundled(partition: PartitionDir, base_offset: int = 0) -> NewSegment:
    (segment,) = (found for found in partition.segments if found.base_offset == base_offset)
    return a_new_segment(EpochHistory(partition), segment, SNAPSHOT, PROVENANCE)[1]


def user_partitions(fixture: FixtureSet) -> Iterator[PartitionDir]:
    for partition in load_log_dir(fixture.data).partitions:
        if partition.segments and not partition.topic_partition.topic.startswith(("__", "compacted", "legacy")):
            yield partition


def closed(partition: PartitionDir) -> list[Segment]:
    return [segment for segment in partition.segments if not segment.is_active]


def upgraded(fixture_set: Sets, name: str = "payments-0") -> Path:
    return fixture_set("kafka-2.7.2-then-3.9.1").data / name


def reloaded(directory: Path) -> tuple[PartitionDir, Segment]:
    """Return the partition and its second segment, which has aborted transactions."""
    partition = load_partition_dir(directory)
    return partition, partition.segments[1]


def flip(path: Path, position: int, mask: int = 1) -> None:
    body = bytearray(path.read_bytes())
    body[position] ^= mask
    path.write_bytes(body)


@pytest.mark.parametrize("name", NAMES)
def test_the_files_of_a_real_broker_are_shipped_unchanged(name: str, fixture_set: Sets) -> None:
    for partition in user_partitions(fixture_set(name)):
        epochs = EpochHistory(partition)
        for segment in closed(partition):
            found = bodies(a_new_segment(epochs, segment, SNAPSHOT, PROVENANCE)[1])
            assert found.pop("snapshot") == SNAPSHOT
            known = read_leader_epochs(Path(partition.leader_epochs or "").read_bytes())
            begun = tuple(entry for entry in known if entry.start_offset < (segment.next_base_offset or 0))
            assert read_leader_epochs(found.pop("leader-epoch-checkpoint")) == begun
            files = {kind: Path(segment.sibling(kind)) for kind in ("log", "index", "timeindex", "txnindex")}
            there = {kind: path.read_bytes() for kind, path in files.items() if path.exists()}
            assert found == {kind: body for kind, body in there.items() if body or kind != "txnindex"}


def test_a_bundle_has_the_last_offset_and_largest_timestamp_of_its_segment(fixture_set: Sets) -> None:
    for segment in closed(partition := load_partition_dir(upgraded(fixture_set))):
        bundle = bundled(partition, segment.base_offset)
        assert bundle.next_base_offset == segment.next_base_offset == bundle.last_offset + 1
        assert bundle.max_timestamp_ms == read_time_index(Path(segment.sibling("timeindex")).read_bytes())[-1].timestamp


def test_a_segment_without_any_timestamp_is_as_old_as_its_file(tmp_path: Path) -> None:
    partition = load_partition_dir(a_partition(tmp_path, [[PlainEvent(timestamp=-1)], [PlainEvent()]]))
    assert bundled(partition).max_timestamp_ms == partition.segments[0].mtime_ns // 1_000_000


def test_the_padded_indexes_of_a_killed_broker_are_never_shipped(fixture_set: Sets, writable_copy: Copy) -> None:
    directory = writable_copy(fixture_set("kafka-2.7.2-killed").data / "payments-0")
    active = load_partition_dir(directory).segments[-1]
    assert active.index_bytes is not None
    assert active.index_bytes > 10_000_000
    padded = Path(active.sibling("index")).read_bytes()
    log_end = load_indexes(active).seen.end_offset
    (directory / f"{log_end:020d}.log").touch()  # now the segment with the padding is a closed one
    found = bodies(bundled(load_partition_dir(directory), active.base_offset))
    assert found["index"] == padded.rstrip(b"\0")[: len(found["index"])]
    assert not padded[len(found["index"]) :].strip(b"\0")
    assert 0 < len(found["index"]) < active.size_bytes
    # It was closed without the final entry that a roll makes, so the time index is rebuilt, with it.
    assert read_time_index(found["timeindex"])[-1].timestamp == load_indexes(active).max_timestamp_ms


def test_padding_of_a_closed_segment_is_trimmed_to_what_the_broker_wrote(
    fixture_set: Sets, writable_copy: Copy
) -> None:
    partition, segment = reloaded(writable_copy(upgraded(fixture_set)))
    before = bodies(bundled(partition, segment.base_offset))
    for kind, entry in (("index", 8), ("timeindex", 12)):
        with Path(segment.sibling(kind)).open("ab") as file:
            file.write(bytes(entry * 100_000))
    partition, segment = reloaded(partition.path)
    assert bodies(bundled(partition, segment.base_offset)) == before


@pytest.mark.parametrize("name", ALWAYS_RUNNING)
def test_rebuilt_indexes_equal_those_that_a_new_broker_wrote(name: str, fixture_set: Sets) -> None:
    for partition in user_partitions(fixture_set(name)):
        for segment in closed(partition):
            offsets, times = rebuild_indexes(segment, INTERVAL_BYTES)
            assert offsets == read_offset_index(Path(segment.sibling("index")).read_bytes())
            assert times == read_time_index(Path(segment.sibling("timeindex")).read_bytes())


@pytest.mark.parametrize("name", sorted({*NAMES} - {*ALWAYS_RUNNING, "kafka-2.7.2-nine-days"}))
def test_rebuilt_indexes_of_an_old_broker_differ_only_in_which_record_has_a_timestamp(
    name: str, fixture_set: Sets
) -> None:
    """2.7 enters the record that has the timestamp; recovery, and later brokers, the last one of its batch.

    A clean stop adds the newest timestamp, which stays where the next broker goes on with the segment.
    """
    for partition in user_partitions(fixture_set(name)):
        stopped_within = 0
        for segment in closed(partition):
            offsets, times = rebuild_indexes(segment, INTERVAL_BYTES)
            assert offsets == read_offset_index(Path(segment.sibling("index")).read_bytes())
            theirs = {
                entry.timestamp: entry for entry in read_time_index(Path(segment.sibling("timeindex")).read_bytes())
            }
            assert all(theirs[ours.timestamp].relative_offset <= ours.relative_offset for ours in times)
            stopped_within += len(theirs) - len(times)
        assert stopped_within <= (name == "kafka-2.7.2-then-3.9.1")


def test_a_broker_that_was_restarted_spaces_its_index_differently(fixture_set: Sets) -> None:
    """A restarted broker counts its interval from zero, so there the rebuilt index is good, but not the same."""
    same = total = 0
    for partition in user_partitions(fixture_set("kafka-2.7.2-nine-days")):
        for segment in closed(partition):
            offsets, _ = rebuild_indexes(segment, INTERVAL_BYTES)
            broker = read_offset_index(Path(segment.sibling("index")).read_bytes())
            total += 1
            same += offsets == broker
            assert all(b.position - a.position > INTERVAL_BYTES for a, b in pairwise(offsets))
            assert abs(len(offsets) - len(broker)) <= 1
    assert total > same > total // 2


def missing(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(len(path.read_bytes())))


def falling(path: Path) -> None:
    body = path.read_bytes()
    path.write_bytes(body + body[: 12 if path.suffix == ".timeindex" else 8])


def past_the_end(path: Path) -> None:
    flip(path, -4, 0x40)


def past_the_last_offset(path: Path) -> None:
    """Change the offset of the last entry, which still rises."""
    flip(path, -8 if path.suffix == ".index" else -4, 0x40)


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -12 if path.suffix == ".timeindex" else -8])


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("damage", [missing, cut, emptied, zeroed, falling, past_the_end, past_the_last_offset])
def test_a_missing_or_damaged_index_is_rebuilt_and_the_other_kept(
    kind: str, damage: Callable[[Path], None], fixture_set: Sets, writable_copy: Copy
) -> None:
    partition, segment = reloaded(writable_copy(upgraded(fixture_set)))
    before = bodies(bundled(partition, segment.base_offset))
    damage(Path(segment.sibling(kind)))
    partition, segment = reloaded(partition.path)
    after = bodies(bundled(partition, segment.base_offset))
    assert {other for other in before if before[other] != after[other]} == {kind}
    if kind == "index":
        entries = read_offset_index(after["index"])
        assert entries == rebuild_indexes(segment)[0]
        assert set(entries) <= set(rebuild_indexes(segment, 0)[0])
    else:
        assert read_time_index(after["timeindex"])[-1].timestamp == read_time_index(before["timeindex"])[-1].timestamp


@pytest.mark.parametrize(("position", "what"), [(-1, "a byte in the middle of a batch"), (-5, "a lower offset")])
def test_an_index_that_rises_but_does_not_fit_the_batches_is_rebuilt(
    position: int, what: str, fixture_set: Sets, writable_copy: Copy
) -> None:
    """Without this a broker would read from the middle of a batch."""
    partition, segment = reloaded(writable_copy(upgraded(fixture_set)))
    path = Path(segment.sibling("index"))
    body = bytearray(path.read_bytes())
    body[position] -= 1
    path.write_bytes(body)
    assert read_offset_index(body), f"{what} is not seen by the codec"
    assert read_offset_index(bodies(bundled(partition, segment.base_offset))["index"]) == rebuild_indexes(segment)[0]


def test_a_time_index_that_lacks_the_largest_timestamp_is_rebuilt(fixture_set: Sets, writable_copy: Copy) -> None:
    partition, segment = reloaded(writable_copy(upgraded(fixture_set)))
    before = read_time_index(Path(segment.sibling("timeindex")).read_bytes())
    shorter(Path(segment.sibling("timeindex")))
    after = read_time_index(bodies(bundled(partition, segment.base_offset))["timeindex"])
    assert after[-1].timestamp == before[-1].timestamp


def test_an_index_of_a_follower_names_the_end_of_all_it_appended_at_once(
    fixture_set: Sets, writable_copy: Copy
) -> None:
    partition, segment = reloaded(writable_copy(upgraded(fixture_set)))
    path = Path(segment.sibling("index"))
    entries = read_offset_index(path.read_bytes())
    coarser = b"".join(
        a.relative_offset.to_bytes(4, "big") + b.position.to_bytes(4, "big")
        for b, a in zip(entries[::2], entries[1::2], strict=False)
    )
    path.write_bytes(coarser)
    assert bodies(bundled(partition, segment.base_offset))["index"] == coarser


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(cut, id="cut short"),
        pytest.param(missing, id="lost"),
        pytest.param(emptied, id="emptied"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-34]), id="cut by an entry"),
        pytest.param(lambda path: flip(path, 0), id="another version"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes() * 2), id="twice the same"),
        pytest.param(
            lambda path: path.write_bytes(write_transaction_index([AbortedTxn(7, 0, 100, 100)])),
            id="of a segment below",
        ),
        pytest.param(
            lambda path: path.write_bytes(write_transaction_index([AbortedTxn(7, 150, 5_000, 150)])),
            id="of a segment above",
        ),
    ],
)
def test_a_damaged_transaction_index_keeps_its_segment_back(
    damage: Callable[[Path], None], fixture_set: Sets, writable_copy: Copy
) -> None:
    partition, segment = reloaded(writable_copy(upgraded(fixture_set)))
    path = Path(segment.sibling("txnindex"))
    assert read_transaction_index(path.read_bytes())
    damage(path)
    with pytest.raises(IndexUnusableError) as raised:
        bundled(partition, segment.base_offset)
    assert str(path) in str(raised.value)
    assert raised.value.hint is not None
    assert "replica" in raised.value.hint
    assert "delete" not in raised.value.hint


def listed_as_without_a_batch(tmp_path: Path, before_the_marker: PlainEvent | DataEvent) -> PartitionDir:
    """Return a partition whose index says what brokers before 2.8 say of a marker that ended nothing here."""
    marker = MarkerEvent(producer_id=10, commit=False)
    partition = load_partition_dir(a_partition(tmp_path, [[before_the_marker, marker], [PlainEvent()]]))
    path = Path(partition.segments[0].sibling("txnindex"))
    path.write_bytes(write_transaction_index([AbortedTxn(10, 1, 1, 2)]))
    return partition


def test_a_transaction_that_was_aborted_before_any_batch_is_shipped_as_it_is_listed(tmp_path: Path) -> None:
    partition = listed_as_without_a_batch(tmp_path, PlainEvent())
    listed = Path(partition.segments[0].sibling("txnindex")).read_bytes()
    assert bodies(bundled(partition))["txnindex"] == listed


def test_a_transaction_of_which_a_batch_is_there_is_not_listed_as_one_without(tmp_path: Path) -> None:
    partition = listed_as_without_a_batch(tmp_path, DataEvent(producer_id=10, transactional=True))
    with pytest.raises(IndexUnusableError, match="says first offset 1 of the transaction of producer 10"):
        bundled(partition)


@pytest.mark.parametrize("name", NAMES)
def test_leader_epochs_from_headers_equal_the_checkpoint(name: str, fixture_set: Sets, writable_copy: Copy) -> None:
    for shared in [*user_partitions(fixture_set(name)), *legacy_partitions(fixture_set(name))]:
        partition = load_partition_dir(writable_copy(shared.path))
        said = EpochHistory(partition)
        (partition.path / LEADER_EPOCHS).unlink()
        seen = EpochHistory(load_partition_dir(partition.path))
        for segment in closed(partition):
            assert epochs_or_none(seen, segment) == epochs_or_none(said, segment)


def legacy_partitions(fixture: FixtureSet) -> list[PartitionDir]:
    return [p for p in load_log_dir(fixture.data).partitions if p.topic_partition.topic == "legacy"]


def epochs_or_none(epochs: EpochHistory, segment: Segment) -> tuple[LeaderEpoch, ...] | None:
    try:
        return epochs.up_to(segment)
    except LeaderEpochsUnknownError:
        return None


def a_partition_of_epochs(tmp_path: Path, *epochs: int) -> PartitionDir:
    """Write a segment of two batches for each epoch, and an active one."""
    with PartitionWriter(tmp_path / "payments-0", leader_epoch=epochs[0]) as writer:
        for epoch in epochs:
            writer.leader_epoch = epoch
            for _ in range(2):
                writer.append_data(timestamps=START_MS, records=5)
            writer.roll()
        writer.append_data(timestamps=START_MS)
    return load_partition_dir(tmp_path / "payments-0")


@pytest.mark.parametrize("checkpoint", ["as written", "missing", "damaged", "empty"])
def test_leader_epochs_are_shipped_with_all_history_and_named_clamped_to_the_segment(
    checkpoint: str, tmp_path: Path
) -> None:
    partition = a_partition_of_epochs(tmp_path, 3, 3, 8, 9)
    path = partition.path / LEADER_EPOCHS
    match checkpoint:
        case "missing":
            path.unlink()
        case "damaged":
            path.write_bytes(b"0\n7\n3 0\n")
        case "empty":
            path.write_bytes(b"")
    bundle = bundled(load_partition_dir(partition.path), 20)
    assert bundle.leader_epochs == (LeaderEpoch(8, 20),)
    assert bodies(bundle)["leader-epoch-checkpoint"] == write_leader_epochs([LeaderEpoch(3, 0), LeaderEpoch(8, 20)])
    assert bundled(load_partition_dir(partition.path), 10).leader_epochs == (LeaderEpoch(3, 10),)


def test_headers_are_read_once_however_many_segments_ask_for_epochs(tmp_path: Path) -> None:
    partition = a_partition_of_epochs(tmp_path, *range(6))
    (partition.path / LEADER_EPOCHS).unlink()
    epochs = EpochHistory(load_partition_dir(partition.path))
    for segment in closed(partition):
        assert len(epochs.up_to(segment)) == 1 + segment.base_offset // 10
        Path(segment.path).write_bytes(b"now it could not be read again")
    assert [entry.epoch for entry in epochs.up_to(closed(partition)[-1])] == [0, 1, 2, 3, 4, 5]


def test_epochs_of_segments_that_retention_takes_meanwhile_are_not_needed(tmp_path: Path) -> None:
    partition = a_partition_of_epochs(tmp_path, 3, 3, 8)
    (partition.path / LEADER_EPOCHS).unlink()
    partition = load_partition_dir(partition.path)
    Path(partition.segments[0].path).unlink()
    bundle = bundled(partition, 20)
    assert bodies(bundle)["leader-epoch-checkpoint"] == write_leader_epochs([LeaderEpoch(3, 10), LeaderEpoch(8, 20)])


@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint", "headers"])
def test_legacy_segments_below_the_first_epoch_are_refused(lost: bool, fixture_set: Sets, writable_copy: Copy) -> None:
    directory = writable_copy(upgraded(fixture_set, "legacy-0"))
    (first,) = read_leader_epochs((directory / LEADER_EPOCHS).read_bytes())
    if lost:
        (directory / LEADER_EPOCHS).unlink()
    partition = load_partition_dir(directory)
    legacy = [segment for segment in closed(partition) if segment.base_offset < first.start_offset]
    newer = [segment for segment in closed(partition) if segment.base_offset >= first.start_offset]
    assert legacy
    assert newer
    for segment in newer:
        assert bundled(partition, segment.base_offset).leader_epochs == (LeaderEpoch(0, segment.base_offset),)
    for segment in legacy:
        with pytest.raises(LeaderEpochsUnknownError, match=segment.path) as raised:
            bundled(partition, segment.base_offset)
        assert raised.value.hint is not None


def test_a_checkpoint_that_begins_at_a_log_start_inside_the_segment_gives_its_epochs(tmp_path: Path) -> None:
    """DeleteRecords moves the log start into a segment, and the broker cuts its checkpoint there."""
    partition = a_partition_of_epochs(tmp_path, 3, 4)
    (partition.path / LEADER_EPOCHS).write_bytes(write_leader_epochs([LeaderEpoch(3, 7), LeaderEpoch(4, 10)]))
    checkpoints = Checkpoints(log_start_offsets={TopicPartition("payments", 0): 7})
    assert bundled(load_partition_dir(partition.path, checkpoints=checkpoints)).leader_epochs == (LeaderEpoch(3, 7),)
    with pytest.raises(LeaderEpochsUnknownError, match="known from offset 7 on"):
        bundled(load_partition_dir(partition.path))


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([LeaderEpoch(3, 0)], id="older than the batches"),
        pytest.param([LeaderEpoch(3, 0), LeaderEpoch(8, 15)], id="begins too late"),
        pytest.param([LeaderEpoch(3, 0), LeaderEpoch(9, 10)], id="another epoch"),
    ],
)
def test_a_checkpoint_that_the_batches_contradict_keeps_the_segment_back(
    said: list[LeaderEpoch], tmp_path: Path
) -> None:
    partition = a_partition_of_epochs(tmp_path, 3, 8)
    (partition.path / LEADER_EPOCHS).write_bytes(write_leader_epochs(said))
    with pytest.raises(LeaderEpochsWrongError, match="at offset 10 a batch is of leader epoch 8"):
        bundled(partition, 10)
    assert bundled(partition, 0).leader_epochs == (LeaderEpoch(3, 0),)


def test_indexes_of_messages_without_a_batch_header_cannot_be_rebuilt(tmp_path: Path) -> None:
    """Such segments come this far only where a checkpoint claims an epoch for them."""
    events = [LegacyEvent(), DataEvent(producer_id=7, transactional=True), MarkerEvent(producer_id=7)]
    directory = a_partition(tmp_path, [events, [PlainEvent()]])
    (directory / LEADER_EPOCHS).write_bytes(write_leader_epochs([LeaderEpoch(0, 0)]))
    partition = load_partition_dir(directory)
    assert bundled(partition).last_offset == 2
    Path(partition.segments[0].sibling("timeindex")).unlink()
    with pytest.raises(IndexUnusableError, match=r"older than 0\.11"):
        bundled(partition)


def test_an_offset_index_that_the_topic_wants_empty_is_shipped_empty(fixture_set: Sets, writable_copy: Copy) -> None:
    """As by 3.9.1 with ``index.interval.bytes`` above the segment's size: only the roll made an entry, for times."""
    partition, segment = reloaded(writable_copy(upgraded(fixture_set)))
    assert segment.size_bytes > INDEX_INTERVAL_BYTES
    times = Path(segment.sibling("timeindex"))
    times.write_bytes(times.read_bytes()[-12:])
    emptied(Path(segment.sibling("index")))
    partition, segment = reloaded(partition.path)
    after = bodies(bundled(partition, segment.base_offset))
    assert (after["index"], after["timeindex"]) == (b"", times.read_bytes())
