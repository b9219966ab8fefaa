"""Logs of real brokers: too small to measure anything on, but what is measured must be right on them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from resnap.replay.rebuild import rebuild_locally
from resnap.storage.log.producer_snapshot import read_snapshot, snapshot_array_parts
from tests.benchmarks.measuring import Contender, Outcome, contest
from tests.benchmarks.tables import Table, amount, seconds
from tests.fixture_sets import unpack
from tests.replay.memory_sink import MemorySink
from tests.replay.truth import TRUTHS, Truth, unexplained, written_by_the_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.plan import PartitionPlan
    from tests.benchmarks.options import Options
    from tests.fixture_sets import FixtureSet

NAME = "sanity"


def run(options: Options) -> Iterator[Table]:
    """Replay what brokers wrote, and compare with the snapshots they wrote themselves."""
    table = Table(
        "Logs of real brokers, each boundary as of its roll",
        ["fixture", "size", "cache", "cores", "time", "asked for", "snapshots as the broker wrote them"],
        remarks=["As the broker wrote them: but for what its own expiry, and nothing else, explains."],
    )
    with TemporaryDirectory(prefix="resnap-benchmarks-") as into:
        for truth in TRUTHS:
            fixture = unpack(truth.name, Path(into))
            plans = truth.plans(fixture)
            contenders = [Contender(name=truth.name, run=partial(_compare, truth, fixture, plans), rehearsed=True)]
            (result,) = contest(contenders, rounds=options.rounds, on_disk=fixture.data).values()
            size_bytes = sum(plan.bytes_in_segments for plan in plans)
            table.add(truth.name, amount(size_bytes), "warm", "1", seconds(result.seconds),
                      amount(result.outcome.asked_bytes or 0), result.outcome.says)  # fmt: skip
    yield table


def _compare(truth: Truth, fixture: FixtureSet, plans: list[PartitionPlan]) -> Outcome:
    sink, same, count = MemorySink(), 0, 0
    results = list(rebuild_locally(plans, sink))
    for result in results:
        for boundary in result.boundaries:
            own = sink.snapshots[result.topic_partition, boundary.offset]
            made = read_snapshot(b"".join(snapshot_array_parts(own)))
            theirs = written_by_the_broker(fixture, boundary, str(result.topic_partition))
            same += not unexplained(made, theirs, truth.expiry, boundary.as_of_ms)
            count += 1
    return Outcome(asked_bytes=sum(result.bytes_read for result in results), says=f"{same} of {count}")
