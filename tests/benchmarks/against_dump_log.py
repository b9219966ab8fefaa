"""Against ``kafka-dump-log``: what an operator has for looking inside a log. It lists batches, and keeps no state."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from tests.benchmarks.datasets import LogOptions
from tests.benchmarks.measuring import Contender, Outcome, contest, warm
from tests.benchmarks.resnap_jobs import ROOT, run_command
from tests.benchmarks.tables import Table, amount, rate, seconds, times

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.benchmarks.broker import Kafka
    from tests.benchmarks.datasets import Log
    from tests.benchmarks.measuring import Result
    from tests.benchmarks.options import Options

NAME = "dump-log"
THEIRS = "`kafka-dump-log`"
ONE_SEGMENT = ", one segment"
SIZES = {200: 256 << 20, 16 << 10: 1 << 30, 1 << 20: 2 << 30}


def run(options: Options) -> Iterator[Table]:
    """Compare commands, from start to end, on the same files."""
    for batch_bytes, usual in SIZES.items():
        if not options.wants(batch_bytes):
            continue
        log = options.log(_log_options(batch_bytes, options.size(usual, max(2 << 20, 24 * batch_bytes))))
        warm(log.segments)
        yield _table(log, options)
        options.done_with(log)


def _log_options(batch_bytes: int, size_bytes: int) -> LogOptions:
    return LogOptions(
        size_bytes=size_bytes, batch_bytes=batch_bytes, segment_bytes=max(size_bytes // 8, 8 * batch_bytes)
    )


def _table(log: Log, options: Options) -> Table:
    results = contest(list(_contenders(log, options.kafkas)), rounds=options.rounds, on_disk=options.place)
    title = f"Batches of {amount(log.options.batch_bytes)}: {log.options}; {log.batches:,} batches, warm cache"
    table = Table(title, ["command", "cores", "time", "covers", "from disk", "x kafka-dump-log"])
    for name, result in results.items():
        theirs = _best_of_theirs(results, one_segment=ONE_SEGMENT in name)
        ratio = times(theirs / result.seconds) if theirs and THEIRS not in name else ""
        disk = "-" if result.disk_bytes is None else amount(result.disk_bytes)
        covers = rate(result.contender.covered_bytes, result.seconds)
        table.add(name, str(result.contender.cores), seconds(result.seconds), covers, disk, ratio)
    return table


def _best_of_theirs(results: dict[str, Result], *, one_segment: bool) -> float | None:
    found = [
        result.seconds for name, result in results.items() if THEIRS in name and (ONE_SEGMENT in name) is one_segment
    ]
    return min(found, default=None)


def _contenders(log: Log, kafkas: Sequence[Kafka]) -> Iterator[Contender]:
    largest = max(log.segments, key=lambda path: path.stat().st_size)
    for kafka in kafkas:
        name, covered_bytes = f"{THEIRS} {kafka.version}", largest.stat().st_size
        yield Contender(name=name, cores=2, run=partial(_dump, kafka, log.segments), covered_bytes=log.size_bytes)
        yield Contender(name=name + ONE_SEGMENT, cores=2, run=partial(_dump, kafka, [largest]),
                        covered_bytes=covered_bytes)  # fmt: skip
    for verify_crc in (False, True):
        name = f"`resnap regenerate --engine local{' --verify-crc' * verify_crc}`"
        job = partial(run_command, log, engine="local", verify_crc=verify_crc)
        yield Contender(name=name, run=job, covered_bytes=log.size_bytes, rehearsed=True)
    yield Contender(name="`resnap inspect`" + ONE_SEGMENT, run=partial(_inspect, largest, log.batches),
                    covered_bytes=largest.stat().st_size)  # fmt: skip


def _dump(kafka: Kafka, segments: Sequence[Path]) -> Outcome:
    files = ",".join(map(str, segments))
    subprocess.run(kafka.java("kafka.tools.DumpLogSegments", "--files", files), check=True, stdout=subprocess.DEVNULL)
    return Outcome()


def _inspect(segment: Path, batches: int) -> Outcome:
    command = [
        sys.executable,
        "-m",
        "resnap",
        "inspect",
        str(segment),
        "--limit",
        str(batches),
        "--output",
        "ndjson",
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return Outcome()
