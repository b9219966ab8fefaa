"""Regenerated beside a writer that appends, rolls and deletes as a broker does; then it stops, and all is installed."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.storage.log.checkpoints import write_offset_checkpoint
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import ProducerEntry, load_snapshot, snapshot_bytes
from resnap.tiering.engine import Engine
from resnap.tiering.regenerate import REPLANS
from tests.logs.log_writer import PartitionWriter
from tests.scheduler.files import bases, file_at
from tests.scheduler.installed import delete_oldest, look, manifest_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import PartitionResult
    from tests.scheduler.conftest import Resnap

PARTITION: Final = TopicPartition("payments", 0)
PRODUCERS: Final = range(5)
JSON: Final = ("--engine", "local", "--output", "json")


class Writer(threading.Thread):
    """Five idempotent producers and the broker that takes what they send, in one; it keeps its segments few."""

    def __init__(self, log_dir: Path, *, old_segments: int) -> None:
        """Write ``old_segments`` as a broker before 2.8, of which only the last two keep a snapshot; then go on."""
        super().__init__(daemon=True)
        self.log_dir, self.partition = log_dir, log_dir / str(PARTITION)
        self.truth: dict[int, list[ProducerEntry]] = {}
        self.to_delete = 0
        self._stopping = threading.Event()
        self._entries: dict[int, ProducerEntry] = {}
        self._writer = PartitionWriter(self.partition, segment_bytes=8_000, index_interval_bytes=512)
        self._writes_snapshots = False
        (log_dir / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=z5W3VT5QSCibauYNT3y0NQ\n")
        while len(self.truth) < old_segments:
            self._append()
        for offset in sorted(self.truth)[-2:]:
            self._keep(offset)
        self._writes_snapshots = True

    def run(self) -> None:
        while not self._stopping.is_set():
            self._append()
            if self.to_delete:
                delete_oldest(self.partition, 1)
                self.to_delete -= 1
            time.sleep(0.0002)

    def stop(self) -> None:
        """Shut down cleanly."""
        self._stopping.set()
        self.join()
        self._writer.close()
        self.truth[self._writer.next_offset] = list(self._entries.values())
        self._keep(self._writer.next_offset)
        high_watermarks = write_offset_checkpoint({PARTITION: self._writer.next_offset})
        (self.log_dir / "replication-offset-checkpoint").write_bytes(high_watermarks)
        (self.log_dir / ".kafka_cleanshutdown").touch()

    def stop_appending(self) -> None:
        """Stop where the log is now, as one whose process has been killed."""
        self._writer.close()

    def _append(self) -> None:
        producer_id = self._writer.next_offset % len(PRODUCERS)
        last = self._entries.get(producer_id)
        sequence = 0 if last is None else last.last_sequence + 1
        base, now_ms = self._writer.base_offset, time.time_ns() // 1_000_000
        before = list(self._entries.values())
        offset = self._writer.append_data(
            timestamps=now_ms, records=3, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )
        if self._writer.base_offset != base:
            self.truth[self._writer.base_offset] = before
            if self._writes_snapshots:
                self._keep(self._writer.base_offset)
        self._entries[producer_id] = ProducerEntry(producer_id, 0, sequence + 2, offset + 2, 2, now_ms, -1, -1)

    def _keep(self, offset: int) -> None:
        file_at(self.partition, offset, "snapshot").write_bytes(snapshot_bytes(self.truth[offset]))


@pytest.mark.parametrize("deletes_first", [False, True])
def test_what_was_made_beside_a_live_writer_is_installed_once_it_has_stopped(
    command: Resnap, tmp_path: Path, deletes_first: bool
) -> None:
    log_dir, staged = tmp_path / "data", tmp_path / "staged"
    log_dir.mkdir()
    writer = Writer(log_dir, old_segments=16)
    writer.start()
    writer.to_delete = 3 if deletes_first else 0
    ran = command("regenerate", log_dir, "--into", staged, *JSON)
    assert ran.code == 0, ran.err
    made = bases(staged / str(PARTITION), "snapshot")
    assert made
    rolled = len(writer.truth)
    writer.to_delete = 3
    deadline = time.monotonic() + 300
    while len(writer.truth) < rolled + 4 or writer.to_delete:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.stop()
    before = look(log_dir)
    lost = sorted(set(bases(writer.partition)[1:]) - set(bases(writer.partition, "snapshot")))
    ran = command("install", staged, log_dir, "--output", "json")
    assert ran.code == 0, ran.err
    outcomes = {snapshot["offset"]: snapshot["outcome"] for snapshot in ran.document["partitions"][0]["snapshots"]}
    # A segment may be planned between its roll and its snapshot, which a broker writes in this order too.
    kept = set(bases(writer.partition, "snapshot")) - set(lost)
    assert outcomes == {
        offset: "installed" if offset in lost else "already-there" if offset in kept else "below-log-start"
        for offset in outcomes
    }
    assert set(lost) <= set(outcomes)
    assert "below-log-start" in outcomes.values()
    for offset in bases(writer.partition)[1:]:
        there = load_snapshot(file_at(writer.partition, offset, "snapshot"))
        assert sorted(there.values()) == sorted(writer.truth[offset])
    assert command("install", "--undo", manifest_of(ran)).code == 0
    assert look(log_dir) == before


@pytest.mark.parametrize("deletions", [1, REPLANS, REPLANS + 1])
def test_where_retention_was_faster_the_partition_is_planned_again(
    command: Resnap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    log_dir, staged = tmp_path / "data", tmp_path / "staged"
    log_dir.mkdir()
    writer = Writer(log_dir, old_segments=20)
    writer.stop_appending()
    replay, left = Engine.replay, [deletions]

    def overtaken(
        engine: Engine, plans: Sequence[PartitionPlan], *rest: Any, **named: Any
    ) -> Iterator[PartitionResult]:
        if plans and left[0]:
            left[0] -= 1
            delete_oldest(writer.partition, 2)
        return replay(engine, plans, *rest, **named)

    monkeypatch.setattr(Engine, "replay", overtaken)
    ran = command("regenerate", log_dir, "--into", staged, *JSON)
    lost = sorted(set(bases(writer.partition)[1:]) - set(bases(writer.partition, "snapshot")))
    if deletions <= REPLANS:
        assert ran.code == 0, ran.err
        assert bases(staged / str(PARTITION), "snapshot") == lost
        for offset in lost:
            made = load_snapshot(file_at(staged / str(PARTITION), offset, "snapshot"))
            assert sorted(made.values()) == sorted(writer.truth[offset])
    else:
        assert (ran.code, ran.error["type"]) == (1, "FileGoneError"), "retention that is always faster is reported"
        assert "run again" in ran.error["hint"]


def test_a_segment_that_is_gone_from_the_middle_is_not_retention(
    command: Resnap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = tmp_path / "data"
    log_dir.mkdir()
    writer = Writer(log_dir, old_segments=16)
    writer.stop_appending()
    replay, calls = Engine.replay, []

    def torn(engine: Engine, plans: Sequence[PartitionPlan], *rest: Any, **named: Any) -> Iterator[PartitionResult]:
        calls.append(plans)
        file_at(writer.partition, bases(writer.partition)[3], "log").unlink(missing_ok=not plans)
        return replay(engine, plans, *rest, **named)

    monkeypatch.setattr(Engine, "replay", torn)
    ran = command("regenerate", log_dir, "--into", tmp_path / "staged", *JSON)
    assert ran.code in {1, 3}
    assert ran.error["type"] == "FileGoneError"
    assert sum(bool(plans) for plans in calls) == 1
