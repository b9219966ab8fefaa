"""Resnap as a contender: in this process, on a Spark session that is warm, and as a command from start to end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from resnap.replay.producer_state import Expiry
from resnap.replay.rebuild import rebuild_locally
from resnap.replay.results import BoundaryOutcome
from resnap.replay.scan.splits import Reading
from resnap.replay.staging import DISCARD, open_sink
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.words import instant
from resnap.tiering.judging.planning import load_facts, plan_replay
from resnap.tiering.selection import Scope, select
from tests.benchmarks.measuring import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import PartitionResult, SnapshotSink
    from tests.benchmarks.datasets import Log

ROOT = Path(__file__).parents[2]
NEVER_MS = 10 * 365 * 86_400_000
"""An expiration within which no producer expires, so that every one is rebuilt."""


def all_of(log: Log, *, verify_crc: bool = False) -> ReplayRules:
    """Return the rules by which every producer of ``log`` is rebuilt from all its batches."""
    expiry = Expiry(NEVER_MS, 600_000)
    return ReplayRules(as_of=AsOf(now_ms=log.end_ms), expiry=expiry, full=True, verify_crc=verify_crc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a replay gave, over all partitions."""

    boundaries: int
    entries: int
    batches: int
    bytes_read: int
    segments_read: int


def plans_of(
    log_dir: Path,
    rules: ReplayRules,
    *,
    wanted: Callable[[Sequence[int]], Sequence[int]] = tuple,
) -> list[PartitionPlan]:
    """Plan the boundaries that ``wanted`` picks from those of each partition, all by default."""
    plans = []
    for selected in select(Scope(sources=(str(log_dir),))).partitions:
        offsets = [boundary.offset for boundary in selected.inventory.boundaries]
        facts = load_facts(selected.inventory.partition)
        plans.append(plan_replay(selected.inventory, facts, wanted(offsets), rules))
    return plans


def replayed(results: Iterable[PartitionResult]) -> Done:
    """Let a replay run to its end.

    Raises:
        AssertionError: a boundary was not rebuilt, so that its time would mean nothing.

    """
    found = list(results)
    made = [boundary for result in found for boundary in result.boundaries]
    for result in found:
        if result.error is not None:
            raise AssertionError(f"{result.topic_partition}: {result.error}")
    if any(boundary.outcome is not BoundaryOutcome.REBUILT for boundary in made):
        raise AssertionError("a boundary was not rebuilt")
    return Done(
        boundaries=len(made),
        entries=sum(boundary.entries for boundary in made),
        batches=sum(result.batches for result in found),
        bytes_read=sum(result.bytes_read for result in found),
        segments_read=sum(result.segments_read for result in found),
    )


def run_locally(
    plans: Sequence[PartitionPlan], *, sink: SnapshotSink | None = None, reading: Reading | None = None
) -> Outcome:
    """Replay in this process."""
    done = replayed(rebuild_locally(plans, sink or open_sink(DISCARD), reading=reading or Reading()))
    return Outcome(asked_bytes=done.bytes_read, says=f"{done.batches:,} batches, {done.entries:,} entries")


def run_on_spark(
    session: SparkSession, plans: Sequence[PartitionPlan], *, sink_url: str = DISCARD, reading: Reading | None = None
) -> Outcome:
    """Replay on a session that has been started before."""
    from resnap.replay.spark.job import SparkRebuild  # noqa: PLC0415 - half a second, for those who use it

    job = SparkRebuild(context=session.sparkContext, sink_url=sink_url, reading=reading or Reading())
    done = replayed(job.run(plans))
    return Outcome(asked_bytes=done.bytes_read, says=f"{done.batches:,} batches, {done.entries:,} entries")


@contextmanager
def spark(cores: int, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start Spark on so many cores of this machine, with these properties besides its own."""
    from resnap.replay.spark.session import spark_session  # noqa: PLC0415 - see above
    from resnap.replay.spark.settings import SparkSettings  # noqa: PLC0415 - see above

    with spark_session(SparkSettings(master=f"local[{cores}]", conf=conf or {}), os.environ) as session:
        yield session


def run_command(log: Log, *, engine: str, verify_crc: bool) -> Outcome:
    """Run ``resnap regenerate`` in a process of its own; snapshots are written to the disk of the log, and deleted."""
    into = mkdtemp(dir=log.root)
    try:
        regenerate(log, Path(into), engine=engine, verify_crc=verify_crc)
    finally:
        shutil.rmtree(into)
    return Outcome()


def regenerate(log: Log, into: Path, *, engine: str, verify_crc: bool = False) -> None:
    """Rebuild all that is missing in ``log``, with every producer kept."""
    flags = ["--full", "--as-of", instant(log.end_ms), "--producer-id-expiration-ms", str(NEVER_MS), "--engine", engine]
    subprocess.run(
        [sys.executable, "-m", "resnap", "regenerate", str(log.log_dir), "--into", str(into), "--quiet", *flags,
         *(["--verify-crc"] if verify_crc else [])],
        cwd=ROOT, env=command_environment(), check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def command_environment() -> dict[str, str]:
    """Return the environment of a command: byte code may be kept, as wherever Resnap is installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
