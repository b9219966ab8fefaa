"""All boundaries at once: one pass that makes N snapshots, beside the same pass that makes the last one only.

Batches are tiny, so that a segment has thousands of them even where there are a thousand segments: a real one of 1 GiB
has tens of thousands.
"""

from __future__ import annotations

from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from resnap.replay.staging import DISCARD, open_sink
from resnap.storage.log.producer_snapshot import ENTRY, HEADER, SnapshotDigest
from tests.benchmarks.datasets import LogOptions
from tests.benchmarks.measuring import Contender, contest, warm
from tests.benchmarks.resnap_jobs import all_of, plans_of, run_locally, run_on_spark, spark
from tests.benchmarks.tables import Table, amount, seconds, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from resnap.storage.log.names import TopicPartition
    from tests.benchmarks.datasets import Log
    from tests.benchmarks.options import Options

NAME = "boundaries"
BATCH_BYTES = 200
COUNTS = (10, 100, 1000)
LAST, ALL, BYTES, FILES = "the last one", "all, counted", "all, as bytes with digests", "all, as files"
SPARK_LAST, SPARK_ALL = "Spark warm, the last one", "Spark warm, all, as bytes with digests"


class CountingSink:
    """Takes entries and makes no bytes of them: what is left is reading and combining."""

    def write(self, topic_partition: TopicPartition, offset: int, entries: npt.NDArray[np.void]) -> SnapshotDigest:  # noqa: ARG002
        return SnapshotDigest(size_bytes=HEADER.size + ENTRY.size * len(entries), crc32c=0, sha256="")


def run(options: Options) -> Iterator[Table]:
    """Measure each N, without Spark and with it."""
    table = Table(
        "N boundaries in one pass, beside the last one only; 10,000 skewed producers, batches of 200 B, warm cache",
        ["log", "N", "what", "cores", "time", "asked for", "from disk", "x the last one"],
        remarks=["Goal: reading and combining for all (counted) at most 1.1x of what the last one takes."],
    )
    for count in (2, 5) if options.quick else COUNTS:
        size_bytes = options.size(2 << 30, 2 << 20)
        segment_bytes = max(size_bytes // count, 4 * BATCH_BYTES)
        log = options.log(
            LogOptions(size_bytes=size_bytes, batch_bytes=BATCH_BYTES, segment_bytes=segment_bytes, partitions=1)
        )
        warm(log.segments)
        if options.spark:
            with spark(2) as session:
                _measure(table, log, options, session)
        else:
            _measure(table, log, options, None)
        options.done_with(log)
    yield table


def _measure(table: Table, log: Log, options: Options, session: SparkSession | None) -> None:
    last, every = (
        plans_of(log.log_dir, all_of(log), wanted=wanted) for wanted in (lambda offsets: offsets[-1:], tuple)
    )
    with TemporaryDirectory(dir=log.root) as into:
        jobs = {
            LAST: (1, partial(run_locally, last, sink=CountingSink())),
            ALL: (1, partial(run_locally, every, sink=CountingSink())),
            BYTES: (1, partial(run_locally, every, sink=open_sink(DISCARD))),
            FILES: (1, partial(run_locally, every, sink=open_sink(f"file://{into}"))),
        }
        if session is not None:
            jobs |= {
                SPARK_LAST: (2, partial(run_on_spark, session, last)),
                SPARK_ALL: (2, partial(run_on_spark, session, every)),
            }
        contenders = [Contender(name=name, cores=cores, run=job, rehearsed=True) for name, (cores, job) in jobs.items()]
        results = contest(contenders, rounds=options.rounds, on_disk=options.place)
    boundaries = sum(len(plan.boundaries) for plan in every)
    for name, result in results.items():
        alone = results[SPARK_LAST if name.startswith("Spark") else LAST].seconds
        asked, disk = result.outcome.asked_bytes, result.disk_bytes
        table.add(
            amount(log.size_bytes), f"{boundaries:,}", name, str(result.contender.cores), seconds(result.seconds),
            amount(asked or 0), "-" if disk is None else amount(disk), times(result.seconds / alone),
        )  # fmt: skip
