"""The window: what a run reads of a log that grows, while its window stays one day.

The log is sparse. Its last boundaries have snapshots with entries, as a broker leaves them that is new enough: without
any, nothing vouches for what the window leaves unread, and the whole log is read, by design.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING

from resnap.replay.producer_state import Expiry
from resnap.replay.window import AsOf, ReplayRules
from tests.benchmarks.datasets import LogOptions
from tests.benchmarks.measuring import Contender, contest, warm
from tests.benchmarks.resnap_jobs import plans_of, run_locally
from tests.benchmarks.tables import Table, amount, seconds
from tests.logs.traffic import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.benchmarks.datasets import Log
    from tests.benchmarks.measuring import Outcome
    from tests.benchmarks.options import Options

NAME = "window"
DAYS = 64
SHARES = (16, 4, 1)


def run(options: Options) -> Iterator[Table]:
    """Replay one day of a log, and of its last quarter and sixteenth."""
    table = Table(
        "A window of one day",
        ["log", "segments", "days", "cache", "cores", "planning", "with replay", "asked for", "from disk",
         "segments read"],
        remarks=["All missing boundaries are made; batches of 1 MiB, 10,000 skewed producers, a sparse log."],
    )  # fmt: skip
    size_bytes = options.size(1 << 40, 2 << 30)
    log = options.log(
        LogOptions(size_bytes=size_bytes, batch_bytes=1 << 20, segment_bytes=min(1 << 30, size_bytes // 256),
                   partitions=1, sparse=True, days=DAYS)
    )  # fmt: skip
    for share in SHARES:
        tail = _tail(log, share)
        _measure(table, log, tail, share, options)
        shutil.rmtree(tail)
    options.done_with(log)
    yield table


def _tail(log: Log, share: int) -> Path:
    """Make a log dir of the newest segments, as hard links, and the snapshots of the last boundaries."""
    whole = log.partition(0)
    bases = sorted(path.stem for path in whole.glob("*.log"))
    taken = set(bases[-max(len(bases) // share, 4) :])
    into = log.root / f"tail-{share}" / whole.name
    shutil.rmtree(into.parent, ignore_errors=True)
    into.mkdir(parents=True)
    for path in whole.iterdir():
        if path.stem in taken:
            os.link(path, into / path.name)
    shutil.copy2(whole / "leader-epoch-checkpoint", into)
    for snapshot in log.kept(0)[1:]:
        shutil.copy2(snapshot, into)
    for path in log.log_dir.iterdir():
        if path.is_file():
            shutil.copy2(path, into.parent)
    return into.parent


def _measure(table: Table, log: Log, tail: Path, share: int, options: Options) -> None:
    rules = ReplayRules(as_of=AsOf(now_ms=log.end_ms), expiry=Expiry(DAY_MS, 600_000))
    segments = sorted(tail.glob("*/*.log"))
    warm(segments)
    contenders = [
        Contender(name="planning", run=partial(_plan, tail, rules), rehearsed=True),
        Contender(name="warm", run=partial(_plan_and_run, tail, rules), rehearsed=True),
        Contender(name="cold", run=partial(_plan_and_run, tail, rules), cold=sorted(tail.glob("*/*"))),
    ]
    results = contest(contenders, rounds=options.rounds, on_disk=options.place)
    size_bytes = sum(path.stat().st_size for path in segments)
    for cache in ("warm", "cold"):
        result = results[cache]
        table.add(
            amount(size_bytes), f"{len(segments):,}", f"{DAYS / share:g}", cache, "1",
            seconds(results["planning"].seconds), seconds(result.seconds), amount(result.outcome.asked_bytes or 0),
            "-" if result.disk_bytes is None else amount(result.disk_bytes), result.outcome.says,
        )  # fmt: skip


def _plan(tail: Path, rules: ReplayRules) -> None:
    plans_of(tail, rules)


def _plan_and_run(tail: Path, rules: ReplayRules) -> Outcome:
    plans = plans_of(tail, rules)
    outcome = run_locally(plans)
    outcome.says = f"{sum(run.end - run.start for plan in plans for run in plan.runs):,}"
    return outcome
