"""A service that replays on one core while 200 clients watch: how long they wait, and what they take from the replay.

150 follow the events of the run, 50 read something every two seconds: what a page, a script and a monitor read. The
replay is of many partitions with the same segments, by hard links, so that it takes a while, and scans with one thread;
whatever else the service does, and the clients, may use every core there is. Every round replays alone and with
clients, in turns.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from tests.benchmarks.datasets import LogOptions
from tests.benchmarks.measuring import report
from tests.benchmarks.tables import Table, amount, seconds
from tests.load.accounts import faults
from tests.load.clients import READS
from tests.load.under_load import clients, seen, under_load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.benchmarks.options import Options
    from tests.load.clients import Seen
    from tests.load.under_load import UnderLoad

NAME = "service"
PARTITIONS, STREAMS, POLLERS = 300, 150, 50
QUICK = 4, 6, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One replay, and what was seen of it."""

    seen: Seen
    cpu_s: float
    resident: Sequence[int]
    """Bytes of the service, every second."""

    @property
    def took_s(self) -> float:
        """By the service's own clock."""
        (run,) = self.seen.runs
        if run["state"] != "succeeded":
            raise AssertionError(run)
        return (datetime.fromisoformat(run["finished"]) - datetime.fromisoformat(run["started"])).total_seconds()


def run(options: Options) -> Iterator[Table]:
    """Replay alone and with clients."""
    partitions, streams, pollers = QUICK if options.quick else (PARTITIONS, STREAMS, POLLERS)
    alone, watched = list[Replay](), list[Replay]()
    with _service(options, partitions) as service:
        for number in range(options.rounds):
            for kind in (alone, watched) if number % 2 == 0 else (watched, alone):
                how_many = (streams, pollers) if kind is watched else (0, 0)
                kind.append(_replay(service, *how_many))
                report(f"  {'with' if kind is watched else 'without'} clients: {kind[-1].took_s:.3f} s")
    yield _replays(alone, watched, streams, pollers)
    yield _reads(watched)


@contextmanager
def _service(options: Options, partitions: int) -> Iterator[UnderLoad]:
    size = options.size(1 << 30, 4 << 20)
    log = options.log(
        LogOptions(size_bytes=size, batch_bytes=options.batch_bytes or 200, segment_bytes=size // 16, producers=1000)
    )
    directory = Path(mkdtemp(dir=log.root))
    try:
        with under_load(directory, log, partitions) as service:
            yield service
    finally:
        shutil.rmtree(directory)
        options.done_with(log)


def _replay(service: UnderLoad, streams: int, pollers: int) -> Replay:
    before = service.usage()
    resident = [before.rss_bytes]
    running = clients(service.orders(streams=streams, pollers=pollers))
    found = seen(running, lambda: resident.append(service.usage().rss_bytes))
    if wrong := found.errors + faults(found):
        raise AssertionError(f"{len(wrong)} errors, such as {wrong[0]}")
    shutil.rmtree(service.process.directory / "out")
    return Replay(seen=found, cpu_s=service.usage().cpu_s - before.cpu_s, resident=resident)


def _replays(alone: Sequence[Replay], watched: Sequence[Replay], streams: int, pollers: int) -> Table:
    table = Table(
        f"A replay with one thread, alone and beside {streams} event streams and {pollers} who read every 2 s",
        ["what", "time", "processor, service", "processor, clients", "events sent", "reads",
         "memory at first, halfway, at the end"],
    )  # fmt: skip
    for what, replays in (("alone", alone), ("with clients", watched)):
        for one in replays:
            table.add(
                what,
                seconds(one.took_s),
                seconds(one.cpu_s),
                seconds(one.seen.cpu_s) if one in watched else "",
                f"{sum(len(stream.ids) for stream in one.seen.streams):,}",
                f"{sum(map(len, one.seen.reads.values())):,}",
                ", ".join(amount(one.resident[at]) for at in (0, len(one.resident) // 2, -1)),
            )
    slower = median(one.took_s for one in watched) / median(one.took_s for one in alone) - 1
    table.remarks.append(f"With clients the replay takes {slower:.1%} longer, by the medians; goal: less than 10%.")
    table.remarks.append("No event was lost or doubled, no read failed: else there were no table.")
    return table


def _reads(watched: Sequence[Replay]) -> Table:
    table = Table("How long reads take meanwhile, all rounds", ["what is read", "times", "median", "99 of 100", "most"])
    reads = {route: sorted(s for one in watched for s in one.seen.reads.get(route, ())) for route in READS}
    together = sorted(s for took in reads.values() for s in took)
    for what, took in [*((f"`{route}`", took) for route, took in reads.items()), ("all", together)]:
        if took:
            table.add(what, f"{len(took):,}", *map(seconds, (median(took), took[len(took) * 99 // 100], took[-1])))
    late = sorted(s for one in watched for s in one.seen.late)
    how_late = seconds(late[len(late) * 99 // 100])
    table.remarks.append(
        f"The clients themselves woke up {how_late} late in 1 of 100 cases, {seconds(late[-1])} at most."
    )
    table.remarks.append("Goal: 99 of 100 within 100 ms.")
    return table
