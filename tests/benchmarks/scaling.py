"""Scaling: with cores, splits, producers and segments, one at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from resnap.replay.rebuild import plan_splits
from resnap.replay.scan.splits import Reading
from tests.benchmarks.datasets import LogOptions
from tests.benchmarks.measuring import Contender, contest, warm
from tests.benchmarks.resnap_jobs import all_of, plans_of, run_locally, run_on_spark, spark
from tests.benchmarks.tables import Table, amount, rate, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.replay.plan import PartitionPlan
    from tests.benchmarks.datasets import Log
    from tests.benchmarks.options import Options

NAME = "scaling"
SPLITS = (4, 16, 64, 128)
PRODUCERS = (1_000, 10_000, 100_000, 1_000_000, 2_000_000)
SEGMENTS = (10, 100, 1_000, 10_000, 100_000)
COLUMNS = ["log", "batches", "engine", "cores", "time", "covers", "asked for", "from disk", "result"]


def run(options: Options) -> Iterator[Table]:
    """Vary one thing after the other."""
    yield from _cores(options)
    yield from _splits(options)
    yield from _producers(options)
    yield from _segments(options)


def _cores(options: Options) -> Iterator[Table]:
    table = Table("Cores", COLUMNS, remarks=["Spark on one core runs one task at a time; its JVM may use the other."])
    sizes = {200: 1 << 30, 16 << 10: 4 << 30}
    logs = [
        options.log(_in_four(batch_bytes, options.size(usual, max(4 << 20, 32 * batch_bytes))))
        for batch_bytes, usual in sizes.items()
    ]
    plans = [plans_of(log.log_dir, all_of(log)) for log in logs]
    for log, planned in zip(logs, plans, strict=True):
        warm(log.segments)
        jobs = {("local", count): partial(run_locally, planned, reading=Reading(threads=count)) for count in (1, 2)}
        _measure(table, log, options, jobs)
    for count in (1, 2) if options.spark else ():
        with spark(count) as session:
            for log, planned in zip(logs, plans, strict=True):
                warm(log.segments)
                _measure(table, log, options, {("Spark warm", count): partial(run_on_spark, session, planned)})
    for log in logs:
        options.done_with(log)
    yield table


def _splits(options: Options) -> Iterator[Table]:
    if not options.spark:
        return
    table = Table("Splits, Spark warm", COLUMNS)
    log = options.log(_in_four(16 << 10, options.size(4 << 30, 8 << 20)))
    warm(log.segments)
    plans = plans_of(log.log_dir, all_of(log))
    with spark(2) as session:
        jobs = {
            (f"{_count(plans, log.size_bytes // count)} splits", 2): partial(
                run_on_spark, session, plans, reading=_parts_of(log.size_bytes // count)
            )
            for count in ((4, 16) if options.quick else SPLITS)
        }
        _measure(table, log, options, jobs)
    options.done_with(log)
    yield table


def _parts_of(size_bytes: int) -> Reading:
    return Reading(split_bytes=size_bytes, least_part_bytes=size_bytes)


def _count(plans: Sequence[PartitionPlan], size_bytes: int) -> int:
    """Return how many splits there are if segments are cut into parts of this size."""
    return sum(1 for plan in plans for run in plan.runs for _ in plan_splits(plan, run, size_bytes))


def _producers(options: Options) -> Iterator[Table]:
    table = Table("Producers", COLUMNS)
    for producers in (100, 1_000) if options.quick else PRODUCERS:
        chosen = replace(_in_four(200, options.size(1 << 30, 4 << 20)), producers=producers, skew=0.0)
        log = options.log(chosen)
        warm(log.segments)
        plans = plans_of(log.log_dir, all_of(log))
        _measure(table, log, options, {("local", 1): partial(run_locally, plans)})
        options.done_with(log)
    yield table


def _segments(options: Options) -> Iterator[Table]:
    """Segments of four batches of 1 MiB each, of which only the headers are there."""
    table = Table("Segments (sparse), planning included", COLUMNS)
    for count in (10, 100) if options.quick else SEGMENTS:
        batch_bytes = 1 << 20
        chosen = LogOptions(
            size_bytes=count * 4 * batch_bytes, batch_bytes=batch_bytes, segment_bytes=4 * batch_bytes, partitions=1,
            sparse=True,
        )  # fmt: skip
        log = options.log(chosen)
        warm(log.segments)
        _measure(table, log, options, {("local", 1): partial(_plan_and_run, log)})
        options.done_with(log)
    yield table


def _plan_and_run(log: Log) -> object:
    return run_locally(plans_of(log.log_dir, all_of(log), wanted=lambda offsets: offsets[-1:]))


def _in_four(batch_bytes: int, size_bytes: int) -> LogOptions:
    """Return a log whose two partitions have two large segments each."""
    return LogOptions(size_bytes=size_bytes, batch_bytes=batch_bytes, segment_bytes=size_bytes // 4)


def _measure(table: Table, log: Log, options: Options, jobs: dict[tuple[str, int], partial[object]]) -> None:
    contenders = [
        Contender(name=f"{engine}, {cores}", run=job, cores=cores, covered_bytes=log.size_bytes, rehearsed=True)
        for (engine, cores), job in jobs.items()
    ]
    results = contest(contenders, rounds=options.rounds, on_disk=options.place)
    segments = len(log.segments)
    for result in results.values():
        own, asked, disk = result.contender, result.outcome.asked_bytes, result.disk_bytes
        table.add(
            f"{log.options}, {segments:,} segments", f"{log.batches:,} of {amount(log.options.batch_bytes)}",
            own.name.rpartition(",")[0], str(own.cores), seconds(result.seconds),
            rate(own.covered_bytes, result.seconds), amount(asked or 0), "-" if disk is None else amount(disk),
            result.outcome.says,
        )  # fmt: skip
