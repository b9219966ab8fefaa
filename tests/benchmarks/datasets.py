"""The logs that are measured on: made once for each set of options, kept while they are needed."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resnap.storage.log.names import TopicPartition, segment_name
from resnap.storage.log.properties import MetaProperties
from tests.benchmarks.measuring import report
from tests.benchmarks.tables import amount
from tests.logs.bulk_log import BulkPartitionWriter
from tests.logs.log_writer import write_log_dir_files
from tests.logs.traffic import DAY_MS, Traffic

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "bench"
STALE_AFTER_MS = 20 * DAY_MS
"""A broker's expiration is at most 24 days; brokers drop what is older when they load a snapshot."""
DONE = "done.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which log."""

    size_bytes: int
    """Of all partitions together, about."""
    batch_bytes: int = 16 << 10
    """On average; sizes differ by a quarter."""
    segment_bytes: int = 256 << 20
    partitions: int = 2
    producers: int = 10_000
    skew: float = 1.0
    sparse: bool = False
    codec: str = "none"
    days: float = 1.0
    seed: int = 1

    @property
    def name(self) -> str:
        """Name of its directory."""
        who = f"{self.producers}-{'uniform' if not self.skew else 'skewed'}"
        parts = (self.size_bytes, self.batch_bytes, self.segment_bytes, self.partitions, who, f"{self.days:g}d")
        kinds = [*(["sparse"] if self.sparse else []), *([] if self.codec == "none" else [self.codec])]
        return "-".join(map(str, (*parts, *kinds)))

    def traffic(self, end_ms: int) -> Traffic:
        """Return what one partition sees until ``end_ms``."""
        batches = max(1, self.size_bytes // self.partitions // self.batch_bytes)
        return Traffic(
            producers=self.producers,
            skew=self.skew,
            records=min(max(self.batch_bytes // 1024, 1), 1000),
            start_ms=end_ms - round(self.days * DAY_MS),
            ms_per_batch=self.days * DAY_MS / batches,
            batches_per_leader=batches // 4,
        )

    def __str__(self) -> str:
        kind = "sparse, " if self.sparse else "" if self.codec == "none" else f"{self.codec}, "
        spread = "uniform" if not self.skew else "skewed"
        return f"{amount(self.size_bytes)}, {kind}{self.producers:,} {spread} producers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log dir that is there."""

    options: LogOptions
    root: Path
    size_bytes: int
    """Of the segments, holes and all."""
    batches: int
    end_ms: int
    """When the newest batch was written."""

    @property
    def log_dir(self) -> Path:
        """A broker's ``log.dirs``, without producer snapshots."""
        return self.root / "data"

    @property
    def segments(self) -> list[Path]:
        """Return every ``.log``."""
        return sorted(self.log_dir.glob("*/*.log"))

    def partition(self, number: int) -> Path:
        """Return the directory of one partition."""
        return self.log_dir / f"{TOPIC}-{number}"

    def kept(self, number: int) -> list[Path]:
        """Return the snapshots of one partition that the generator kept: of the first boundary, and the last ones."""
        return sorted((self.root / "kept" / f"{TOPIC}-{number}").iterdir())


@dataclass(frozen=True, slots=True)
class LogStore:
    """Where logs are made."""

    root: Path

    def log(self, options: LogOptions) -> Log:
        """Return the log with these options; it is made if it is not there."""
        root = self.root / options.name
        if not _is_fresh(root):
            shutil.rmtree(root, ignore_errors=True)
            report(f"making {options}, batches of {amount(options.batch_bytes)}")
            _make(root, options)
        return Log(options=options, root=root, **json.loads((root / DONE).read_text(encoding="utf-8")))

    def drop(self, log: Log) -> None:
        """Delete ``log``."""
        shutil.rmtree(log.root)


def _is_fresh(root: Path) -> bool:
    try:
        end_ms = json.loads((root / DONE).read_text(encoding="utf-8"))["end_ms"]
    except FileNotFoundError:
        return False
    return bool(_now_ms() - end_ms < STALE_AFTER_MS)


def _now_ms() -> int:
    return time.time_ns() // 10**6


def _make(root: Path, options: LogOptions) -> None:
    # A log may turn out somewhat longer than was asked for, and must not reach into the future.
    end_ms = _now_ms() - 2 * DAY_MS
    sizes = batches = newest_ms = 0
    ends = {}
    for number in range(options.partitions):
        directory = root / "data" / f"{TOPIC}-{number}"
        kept = root / "kept" / directory.name
        kept.mkdir(parents=True)
        writer = BulkPartitionWriter(
            directory, options.traffic(end_ms), batch_bytes=options.batch_bytes, seed=options.seed + number,
            sparse=options.sparse, codec=options.codec,
        )  # fmt: skip
        sizes += _write_segments(writer, options, kept)
        batches += writer.batches
        newest_ms = max(newest_ms, writer.last_timestamp)
        ends[TopicPartition(TOPIC, number)] = writer.next_offset
    meta = MetaProperties(version=0, cluster_id="AAAAAAAAQACAAAAAAAAAAQ", node_id=1, directory_id=None)
    write_log_dir_files(root / "data", meta=meta, high_watermarks=ends)
    facts = {"size_bytes": sizes, "batches": batches, "end_ms": newest_ms}
    (root / DONE).write_text(json.dumps(facts), encoding="utf-8")


def _write_segments(writer: BulkPartitionWriter, options: LogOptions, kept: Path) -> int:
    """Write as many segments as the size asks for, between a first and a last one of a few batches.

    A broker replays what lies above its oldest snapshot, Resnap what lies below the active segment: with both ends
    small, they have the same to do.
    """
    size = options.size_bytes // options.partitions
    few_bytes, segment_bytes = 4 * options.batch_bytes, min(options.segment_bytes, size)
    sizes = [few_bytes, *[segment_bytes] * max(1, round(size / segment_bytes)), few_bytes]
    written = 0
    for number, size_bytes in enumerate(sizes):
        written += writer.write_segment(size_bytes)
        if number == 0 or number >= len(sizes) - 3:
            (kept / segment_name(writer.next_offset, "snapshot")).write_bytes(writer.snapshot())
    writer.close()
    return written
