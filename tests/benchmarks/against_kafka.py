"""Against Kafka itself: the same files, the same job, the same run.

Two things of a broker's are comparable. *Replay*: it was stopped cleanly, its snapshots are lost, and it hops from
header to header as Resnap does. *Recovery*: it crashed, and reads everything, compares checksums and rebuilds indexes
besides. Brokers log how long they took, without their own start; a command's time is from start to end.

A broker's replay makes no snapshots of the segments on its way. So Resnap appears twice: with the one at the end only,
which is the same work, and with one at every boundary and its digests, which is what an operator needs.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from resnap.storage.log.producer_snapshot import load_snapshot
from tests.benchmarks.broker import Broker
from tests.benchmarks.datasets import TOPIC, LogOptions
from tests.benchmarks.measuring import Contender, Outcome, Result, contest, report, warm
from tests.benchmarks.resnap_jobs import all_of, plans_of, regenerate, run_command, run_locally, run_on_spark, spark
from tests.benchmarks.tables import Table, amount, rate, seconds, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.benchmarks.datasets import Log
    from tests.benchmarks.options import Options

NAME = "kafka"
BATCHES_APART = (200, 16 << 10, 1 << 20)
SMALLER = 8
"""The small log, which shows fixed costs, is the large one divided by this."""
LOCAL, LOCAL_CRC = "Resnap, local", "Resnap, local, with CRC"
LOCAL_LAST = "Resnap, local, the last snapshot only"
WARM, WARM_CRC = "Resnap, Spark warm", "Resnap, Spark warm, with CRC"
SHOT_LOCAL, SHOT = "`resnap regenerate --engine local`", "`resnap regenerate`"
SHOT_CRC = "`resnap regenerate --verify-crc`"
REPLAY, RECOVERY = "replay", "recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One batch size, and what is hoped for: how many times faster than a broker."""

    batch_bytes: int
    size_bytes: int
    sparse: bool = False
    skew: float = 1.0
    goals: tuple[tuple[str, str, int, float], ...] = ()
    """(who, what a broker does, on how many threads, how many times faster)."""


def _per_core(goal: float) -> tuple[tuple[str, str, int, float], ...]:
    return (LOCAL_LAST, REPLAY, 1, goal), (LOCAL, REPLAY, 1, goal)


CHECKED = (LOCAL_CRC, RECOVERY, 1, 3)
COMMAND_AHEAD = (SHOT, RECOVERY, 2, 1)
CASES = (
    Case(batch_bytes=200, size_bytes=2 << 30, goals=(*_per_core(50), (WARM, REPLAY, 2, 10), CHECKED, COMMAND_AHEAD)),
    Case(
        batch_bytes=16 << 10, size_bytes=12 << 30, goals=(*_per_core(5), (WARM, REPLAY, 2, 1), CHECKED, COMMAND_AHEAD)
    ),
    Case(batch_bytes=1 << 20, size_bytes=4 << 30, goals=(*_per_core(10), CHECKED)),
    Case(batch_bytes=1 << 20, size_bytes=64 << 30, sparse=True, goals=(*_per_core(10), (WARM, REPLAY, 2, 1))),
    Case(batch_bytes=200, size_bytes=1 << 30, skew=0.0),
)


def run(options: Options) -> Iterator[Table]:
    """Measure every case, and give the goals in the end."""
    goals = Table("Goals", ["log", "batches", "who", "against", "threads", "goal", "found", ""])
    crossovers = Table("From which size on Resnap is ahead", ["batches", "who", "against", "crossover"])
    with ExitStack() as stack:
        session = stack.enter_context(spark(2)) if options.spark else None
        cases = [case for case in CASES if options.wants(case.batch_bytes)]
        for case in cases[:1] if options.quick else cases:
            log = options.log(_log_options(case, _size(case, options)))
            results, table = _run_case(case, log, options, session)
            yield table
            _judge(goals, case, results, log)
            _cross(crossovers, case, results, log, _on_less(case, options, session))
            options.done_with(log)
    if options.kafkas:
        yield goals
        yield crossovers


def _log_options(case: Case, size_bytes: int) -> LogOptions:
    segment_bytes = min(1 << 30, max(size_bytes // 8, 8 * case.batch_bytes))
    return LogOptions(
        size_bytes=size_bytes, batch_bytes=case.batch_bytes, segment_bytes=segment_bytes, sparse=case.sparse,
        skew=case.skew,
    )  # fmt: skip


def _size(case: Case, options: Options) -> int:
    return options.size(case.size_bytes, max(4 << 20, 24 * case.batch_bytes))


def _run_case(case: Case, log: Log, options: Options, session: SparkSession | None) -> tuple[dict[str, Result], Table]:
    warm(log.segments)
    brokers = [Broker(kafka, log, TOPIC) for kafka in options.kafkas]
    contenders = [*(one for broker in brokers for one in _of_broker(broker, log)), *_of_resnap(log, session)]
    results = contest(contenders, rounds=options.rounds, on_disk=options.place)
    return results, _table(case, log, results, [_agreement(broker, log) for broker in brokers if not case.sparse])


def _of_broker(broker: Broker, log: Log) -> Iterator[Contender]:
    jobs = {REPLAY: broker.replay_producer_state} | ({} if log.options.sparse else {RECOVERY: broker.recover})
    for what, job in jobs.items():
        for threads in (1, 2):
            yield Contender(
                name=_broker_name(broker.kafka.version, what, threads), cores=2, covered_bytes=log.size_bytes,
                run=partial(_timed, job, threads),
            )  # fmt: skip


def _timed(job: Callable[[int], float], threads: int) -> Outcome:
    return Outcome(seconds=job(threads))


def _broker_name(version: str, what: str, threads: int) -> str:
    return f"Kafka {version}, {what}, {threads} thread{'s' if threads > 1 else ''}"


def _of_resnap(log: Log, session: SparkSession | None) -> Iterator[Contender]:
    plain = plans_of(log.log_dir, all_of(log))
    checked = plans_of(log.log_dir, all_of(log, verify_crc=True))
    last = plans_of(log.log_dir, all_of(log), wanted=lambda offsets: offsets[-1:])
    found = [
        (LOCAL_LAST, 1, partial(run_locally, last), False),
        (LOCAL, 1, partial(run_locally, plain), False),
        (LOCAL_CRC, 1, partial(run_locally, checked), True),
        (SHOT_LOCAL, 1, partial(run_command, log, engine="local", verify_crc=False), False),
    ]
    if session is not None:
        found += [
            (WARM, 2, partial(run_on_spark, session, plain), False),
            (WARM_CRC, 2, partial(run_on_spark, session, checked), True),
            (SHOT, 2, partial(run_command, log, engine="spark", verify_crc=False), False),
            (SHOT_CRC, 2, partial(run_command, log, engine="spark", verify_crc=True), True),
        ]
    for name, cores, job, reads_all in found:
        if not (reads_all and log.options.sparse):
            rehearsed = name in (LOCAL_LAST, LOCAL, LOCAL_CRC, WARM, WARM_CRC)
            yield Contender(name=name, cores=cores, run=job, covered_bytes=log.size_bytes, rehearsed=rehearsed)


def _agreement(broker: Broker, log: Log) -> str:
    """Return how many snapshots of the broker's recovery hold what Resnap rebuilds."""
    broker.recover(threads=2)
    into = log.root / "rebuilt"
    regenerate(log, into, engine="local")
    rebuilt = sorted(into.glob("*/*.snapshot"))
    theirs = [broker.data / path.relative_to(into) for path in rebuilt]
    same = sum(
        path.exists() and load_snapshot(path) == load_snapshot(own) for own, path in zip(rebuilt, theirs, strict=True)
    )
    return f"{same} of {len(rebuilt)} snapshots that Kafka {broker.kafka.version} wrote are equal to the rebuilt ones."


def _table(case: Case, log: Log, results: dict[str, Result], remarks: list[str]) -> Table:
    title = f"Batches of {amount(case.batch_bytes)}: {log.options}; {log.batches:,} batches in 2 partitions, warm cache"
    columns = ["who", "cores", "time", "covers", "asked for", "from disk", "x Kafka's replay", "x Kafka's recovery"]
    table = Table(title, columns, remarks=remarks)
    for name, result in results.items():
        own = result.contender
        table.add(
            name, _threads(own), seconds(result.seconds), rate(own.covered_bytes, result.seconds),
            _bytes(result.outcome.asked_bytes), _bytes(result.disk_bytes),
            _ratio(results, REPLAY, result), _ratio(results, RECOVERY, result),
        )  # fmt: skip
    return table


def _threads(contender: Contender) -> str:
    return str(1 if "1 thread" in contender.name else contender.cores)


def _bytes(value: int | None) -> str:
    return "-" if value is None else amount(value)


def best_of_kafka(results: dict[str, Result], what: str, threads: int) -> float | None:
    """Return the time of the fastest release."""
    ending = _broker_name("", what, threads).removeprefix("Kafka ")
    return min((result.seconds for name, result in results.items() if name.endswith(ending)), default=None)


def _ratio(results: dict[str, Result], what: str, result: Result) -> str:
    theirs = best_of_kafka(results, what, result.contender.cores)
    if theirs is None or result.contender.name.startswith("Kafka"):
        return ""
    return times(theirs / result.seconds)


def _judge(goals: Table, case: Case, results: dict[str, Result], log: Log) -> None:
    for who, what, threads, goal in case.goals:
        theirs = best_of_kafka(results, what, threads)
        if theirs is None or who not in results:
            continue
        found = theirs / results[who].seconds
        verdict = "reached" if found >= goal else f"missed: {times(found / goal)} of it"
        goals.add(
            str(log.options), amount(case.batch_bytes), who, what, str(threads), times(goal), times(found), verdict
        )


def _on_less(case: Case, options: Options, session: SparkSession | None) -> dict[str, tuple[int, float]]:
    """Return bytes and seconds of Resnap on a smaller log of the same kind."""
    if not options.kafkas or session is None:
        return {}
    log = options.log(_log_options(case, max(_size(case, options) // SMALLER, 24 * case.batch_bytes)))
    warm(log.segments)
    contenders = [one for one in _of_resnap(log, session) if one.name in (WARM, SHOT, SHOT_LOCAL)]
    report(f"the same on {log.options}")
    results = contest(contenders, rounds=options.rounds, on_disk=options.place)
    size_bytes = log.size_bytes
    options.done_with(log)
    return {name: (size_bytes, result.seconds) for name, result in results.items()}


def _cross(table: Table, case: Case, results: dict[str, Result], log: Log, less: dict[str, tuple[int, float]]) -> None:
    """Add where the lines cross: through two sizes for Resnap, through zero for a broker."""
    for name, (small_bytes, small_s) in less.items():
        per_byte = max(0.0, (results[name].seconds - small_s) / (log.size_bytes - small_bytes))
        fixed_s = max(0.0, small_s - per_byte * small_bytes)
        for what in (REPLAY, RECOVERY):
            theirs = best_of_kafka(results, what, results[name].contender.cores)
            if theirs is None:
                continue
            gain = theirs / log.size_bytes - per_byte
            crossing = f"{amount(fixed_s / gain)}" if gain > 0 else "never"
            kind = ", sparse" if case.sparse else ", uniform producers" if not case.skew else ""
            table.add(amount(case.batch_bytes) + kind, name, what, crossing)
