"""Memory is bounded by settings, not by the log: what workers hold while very many producers are combined.

Long runs over gigabytes: ``pytest -m heavy tests/replay/test_spark_memory.py -s`` shows the figures.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.replay.results import BoundaryOutcome
from resnap.replay.scan.splits import Reading
from resnap.replay.spark.context import spark_context
from resnap.replay.spark.job import SparkRebuild
from resnap.replay.spark.settings import SparkSettings
from resnap.replay.staging import DISCARD
from tests.logs.bulk_log import BulkPartitionWriter
from tests.logs.traffic import Traffic
from tests.replay.replaying import planned

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.heavy, pytest.mark.spark]

MOST_MIB = 1024


def a_log(directory: Path, *, producers: int, segments: int, segment_bytes: int) -> int:
    """Write a log in which producers take turns evenly; return the time of its last batch."""
    traffic = Traffic(producers=producers, skew=0.0, transactional_share=0.1, plain_share=0.02, ms_per_batch=1.0)
    writer = BulkPartitionWriter(directory, traffic, batch_bytes=110, seed=3)
    for _ in range(segments):
        writer.write_segment(segment_bytes)
    writer.close()
    return writer.last_timestamp


@dataclass(slots=True)
class Peaks:
    """Most MiB that any process of a kind has had resident, by its name."""

    mib: dict[str, int] = field(default_factory=dict)

    def look(self, root: int) -> None:
        for pid in descendants(root):
            try:
                name = "jvm" if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] else "worker"
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            if "VmHWM:" in status:
                peak = int(status.split("VmHWM:")[1].split()[0]) >> 10
                self.mib[name] = max(self.mib.get(name, 0), peak)


def descendants(root: int) -> list[int]:
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                found += [int(child) for child in (task / "children").read_text().split()]
            except OSError:
                continue
    return found


@contextmanager
def watched(root: int) -> Iterator[Peaks]:
    peaks, ended = Peaks(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            peaks.look(root)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        ended.set()
        watcher.join()


@pytest.mark.parametrize(
    ("producers", "segments", "segment_bytes", "boundaries"),
    [(2_000_000, 28, 110 << 20, 20), (50_000, 1_031, 1 << 20, 1_000)],
    ids=["2,000,000 producers at 20 boundaries", "50,000 producers at 1,000 boundaries"],
)
def test_workers_stay_below_a_gibibyte(
    producers: int, segments: int, segment_bytes: int, boundaries: int, tmp_path: Path
) -> None:
    directory = tmp_path / "t-0"
    now_ms = a_log(directory, producers=producers, segments=segments, segment_bytes=segment_bytes)
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    plan = planned(directory, now_ms=now_ms, wanted=bases[-boundaries:], full=True)
    with spark_context(SparkSettings(master="local[2]"), dict(os.environ)) as context:
        began = time.monotonic()
        with watched(context._gateway.proc.pid) as peaks:
            (result,) = SparkRebuild(context=context, sink_url=DISCARD, reading=Reading()).run([plan])
        took = time.monotonic() - began
    entries = [made.entries for made in result.boundaries]
    print(f"\n{result.batches} batches, {sum(entries)} entries in {took:.1f} s; peaks in MiB: {peaks.mib}")  # noqa: T201 - shown with -s
    assert {made.outcome for made in result.boundaries} == {BoundaryOutcome.REBUILT}
    assert len(entries) == boundaries
    assert min(entries) > 0.97 * producers
    assert peaks.mib["worker"] < MOST_MIB
