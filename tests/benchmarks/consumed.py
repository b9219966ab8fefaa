"""Against a consumer: all committed records of a topic, by the Java client from a broker, and by Spark from its log.

Both read to the last stable offsets, count the records and the bytes of their values, and must agree. The client reads
several times in one process, and Spark runs its query several times in one session: the best of each is that of
compiled code on files in the page cache. The broker shares the client's core. Spark has one, too, where this is run by
``taskset -c 1 python -m tests.benchmarks consumer``.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.benchmarks.broker import Broker
from tests.benchmarks.datasets import TOPIC, LogOptions
from tests.benchmarks.measuring import warm
from tests.benchmarks.resnap_jobs import spark
from tests.benchmarks.tables import Table, amount, rate, seconds, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.benchmarks.broker import Kafka
    from tests.benchmarks.datasets import Log
    from tests.benchmarks.options import Options

NAME = "consumer"
CLIENT = Path(__file__).with_name("Consumed.java")
SIZES = {200: 64 << 20, 16 << 10: 512 << 20, 1 << 20: 1 << 30}
QUERIES = {
    "keys and values": ("sum(length(value))", "count(key)"),
    "values": ("sum(length(value))",),
    "no value": ("0L",),
}
"""Columns that are read, and what is made of them."""


class Read(NamedTuple):
    """One reading of all committed records below the last stable offsets."""

    took_s: float
    records: int
    value_bytes: int
    ends: tuple[int, ...]
    """Last stable offsets, by partition."""


def run(options: Options) -> Iterator[Table]:
    """Compare the two for each batch size."""
    for batch_bytes, usual in SIZES.items():
        if options.wants(batch_bytes) and options.spark:
            size_bytes = options.size(usual, 24 * batch_bytes)
            log = options.log(LogOptions(size_bytes=size_bytes, batch_bytes=batch_bytes, segment_bytes=size_bytes // 2))
            warm(log.segments)
            yield _table(log, options)
            options.done_with(log)


def _table(log: Log, options: Options) -> Table:
    table = Table(
        f"Committed records: {log.options}, batches of {amount(log.options.batch_bytes)}, warm cache",
        ["who", "reads", "time", "covers", "x the client"],
    )
    best = [_best(_by_client(kafka, log, options.rounds + 1)) for kafka in options.kafkas]
    ends = best[0].ends if best else (1 << 62,) * log.options.partitions
    for kafka, read in zip(options.kafkas, best, strict=True):
        table.add(f"Java client {kafka.version}", "all", seconds(read.took_s), rate(log.size_bytes, read.took_s), "")
    fastest = min((read.took_s for read in best), default=None)
    with spark(1) as session:
        for what, columns in QUERIES.items():
            read = _best(_by_spark(session, log, columns, ends, options.rounds + 1))
            if what != "no value" and any(read[1:] != theirs[1:] for theirs in best):
                raise RuntimeError(f"the client and Spark read other records: {best}, {read}")
            ratio = times(fastest / read.took_s) if fastest else ""
            table.add("Spark, `kafka_log`", what, seconds(read.took_s), rate(log.size_bytes, read.took_s), ratio)
    return table


def _best(reads: Iterator[Read]) -> Read:
    return min(reads, key=lambda read: read.took_s)


def _by_client(kafka: Kafka, log: Log, rounds: int) -> Iterator[Read]:
    broker = Broker(kafka, log, TOPIC)
    for number in range(log.options.partitions):
        # Without a snapshot a broker knows of no open transaction, and serves it.
        shutil.copy2(log.kept(number)[-1], broker.partition(number))
    with broker.running(threads=1) as port:
        command = kafka.java(str(CLIENT), str(port), TOPIC, str(log.options.partitions), str(rounds))
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ends, *lines = said.splitlines()
    for line in lines:
        took_s, records, value_bytes = line.split()
        yield Read(float(took_s), int(records), int(value_bytes), tuple(map(int, ends.split())))


def _by_spark(
    session: SparkSession, log: Log, columns: tuple[str, ...], ends: tuple[int, ...], rounds: int
) -> Iterator[Read]:
    from resnap.replay.spark.source import register_kafka_log  # noqa: PLC0415 - pyspark takes a second to import

    register_kafka_log(session)
    below = " OR ".join(f"partition = {number} AND offset < {end}" for number, end in enumerate(ends))
    for _ in range(rounds):
        records = session.read.format("kafka_log").option("records", "true").load(str(log.log_dir))
        records = records.where(f"committed AND ({below})")
        began_s = time.monotonic()
        (row,) = records.selectExpr("count(*)", *columns).collect()
        yield Read(time.monotonic() - began_s, row[0], int(row[1] or 0), ends)
