"""Against a consumer: all committed records of a topic, by the Java client from a broker, and by Spark from its log.

Both read to the last stable offsets, count the records and the bytes of their values, and must agree. The client reads
several times in one process, and Spark runs its query several times in one session: the best of each is that of
compiled code on files in the page cache. The broker shares the client's core. Spark has one, too, where this is run by
``taskset -c 1 python -m tests.benchmarks consumer``. Processor time is that of client and broker, or of Spark's JVM and
its Python worker, of which the memory is measured with batches of several sizes.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.log.names import TopicPartition
from resnap.storage.log.properties import MetaProperties
from tests.benchmarks.broker import CLUSTER_ID, Broker
from tests.benchmarks.datasets import TOPIC, LogOptions
from tests.benchmarks.descendants import forget_peaks, processor_s, python_peak_bytes
from tests.benchmarks.measuring import warm
from tests.benchmarks.resnap_jobs import spark
from tests.benchmarks.tables import Table, amount, rate, seconds, times
from tests.logs.log_writer import PartitionWriter, write_log_dir_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.benchmarks.broker import Kafka
    from tests.benchmarks.datasets import Log
    from tests.benchmarks.options import Options

NAME = "consumer"
CLIENT = Path(__file__).with_name("Consumed.java")
SIZES = {200: 64 << 20, 16 << 10: 512 << 20, 1 << 20: 1 << 30}
CODECS = ("lz4", "zstd", "snappy", "gzip")
CODEC_BATCH_BYTES, CODEC_SIZE_BYTES = 16 << 10, 128 << 20
LARGEST_BYTES = (1 << 20, 16 << 20, 64 << 20)
"""Of the batch that is among small ones when the worker's memory is measured."""
RECORD_BYTES, SMALL_BATCHES = 1024, 512
PLACE = "partition INT, offset BIGINT, committed BOOLEAN"
QUERIES = {
    "every column": (None, ("sum(length(value))", "count(key)")),
    "keys and values": (f"{PLACE}, key BINARY, value BINARY", ("sum(length(value))", "count(key)")),
    "offsets": (PLACE, ("0L",)),
}
"""The schema that a query names, and what is made of its columns."""
COMPILERS = {
    "Spark, for short runs": {},
    "Spark, optimised": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"},
}
"""A session of ours compiles quickly; the client's JVM optimises, as other sessions do, after more rounds."""


class Read(NamedTuple):
    """One reading of all committed records below the last stable offsets."""

    took_s: float
    processor_s: float
    records: int
    value_bytes: int
    ends: tuple[int, ...]
    """Last stable offsets, by partition."""


def run(options: Options) -> Iterator[Table]:
    """Compare the two for each batch size and codec, and measure the memory of the worker."""
    if not options.spark:
        return
    cases = [(batch_bytes, usual, "none") for batch_bytes, usual in SIZES.items()]
    cases += [(CODEC_BATCH_BYTES, CODEC_SIZE_BYTES, codec) for codec in CODECS]
    for batch_bytes, usual, codec in cases:
        if options.wants(batch_bytes):
            size_bytes = options.size(usual, 24 * batch_bytes)
            log = options.log(
                LogOptions(size_bytes=size_bytes, batch_bytes=batch_bytes, segment_bytes=size_bytes // 2, codec=codec)
            )
            warm(log.segments)
            yield _table(log, options)
            options.done_with(log)
    yield _memory(options)


def _table(log: Log, options: Options) -> Table:
    table = Table(
        f"Committed records: {log.options}, batches of {amount(log.options.batch_bytes)}, warm cache",
        ["who", "reads", "time", "processor time", "covers", "x the client"],
    )
    best = [_best(_by_client(kafka, log, options.rounds + 1)) for kafka in options.kafkas]
    ends = best[0].ends if best else (1 << 62,) * log.options.partitions
    for kafka, read in zip(options.kafkas, best, strict=True):
        cells = seconds(read.took_s), seconds(read.processor_s), rate(log.size_bytes, read.took_s)
        table.add(f"Java client {kafka.version}", "all", *cells, "")
    fastest = min((read.took_s for read in best), default=None)
    for who, conf in COMPILERS.items():
        with spark(1, conf) as session:
            for what, query in QUERIES.items():
                read = _best(_by_spark(session, log.log_dir, query, ends, options.rounds + 1 + 4 * len(conf)))
                if query[0] != PLACE and any(read[2:] != theirs[2:] for theirs in best):
                    raise RuntimeError(f"the client and Spark read other records: {best}, {read}")
                ratio = times(fastest / read.took_s) if fastest else ""
                cells = seconds(read.took_s), seconds(read.processor_s), rate(log.size_bytes, read.took_s)
                table.add(who, what, *cells, ratio)
    return table


def _memory(options: Options) -> Table:
    """Measure one worker with larger and larger batches among small ones."""
    table = Table(
        f"Memory of Spark's Python worker: {2 * SMALL_BATCHES} batches of {amount(CODEC_BATCH_BYTES)}, and a large one",
        ["large batch", "peak of the worker", "above that of small batches"],
    )
    with spark(1) as session:
        without = _peak_bytes(session, options, 0)
        table.add("none", amount(without), "")
        for largest in LARGEST_BYTES[:1] if options.quick else LARGEST_BYTES:
            peak_bytes = _peak_bytes(session, options, largest)
            table.add(amount(largest), amount(peak_bytes), f"{(peak_bytes - without) / largest:.2g} times the batch")
    return table


def _peak_bytes(session: SparkSession, options: Options, largest: int) -> int:
    directory = Path(mkdtemp(dir=options.place))
    try:
        with PartitionWriter(directory / f"{TOPIC}-0") as writer:
            for size_bytes in (*[CODEC_BATCH_BYTES] * SMALL_BATCHES, largest, *[CODEC_BATCH_BYTES] * SMALL_BATCHES):
                if size_bytes:
                    records = size_bytes // RECORD_BYTES
                    writer.append_data(timestamps=1_700_000_000_000, records=records, payload_bytes=RECORD_BYTES)
            end = writer.next_offset
        meta = MetaProperties(version=0, cluster_id=CLUSTER_ID, node_id=1, directory_id=None)
        write_log_dir_files(directory, meta=meta, high_watermarks={TopicPartition(TOPIC, 0): end})
        forget_peaks()
        _best(_by_spark(session, directory, QUERIES["keys and values"], (end,), 1))
        return python_peak_bytes()
    finally:
        shutil.rmtree(directory)


def _best(reads: Iterator[Read]) -> Read:
    return min(reads, key=lambda read: read.took_s)


def _by_client(kafka: Kafka, log: Log, rounds: int) -> Iterator[Read]:
    broker = Broker(kafka, log, TOPIC)
    for number in range(log.options.partitions):
        # Without a snapshot a broker knows of no open transaction, and serves it.
        shutil.copy2(log.kept(number)[-1], broker.partition(number))
    with broker.running(threads=1) as port:
        command = kafka.java(str(CLIENT), str(port), TOPIC, str(log.options.partitions), str(rounds))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as client:
            lines = iter(client.stdout or ())
            ends = tuple(map(int, next(lines, "").split()))
            before_s = processor_s()
            for line in lines:
                took_s, records, value_bytes = line.split()
                after_s = processor_s()
                yield Read(float(took_s), after_s - before_s, int(records), int(value_bytes), ends)
                before_s = after_s
        if client.returncode:
            raise RuntimeError(f"{CLIENT.name} ended with {client.returncode}")


def _by_spark(
    session: SparkSession, log_dir: Path, query: tuple[str | None, tuple[str, ...]], ends: tuple[int, ...], rounds: int
) -> Iterator[Read]:
    from resnap.replay.spark.source import register_kafka_log  # noqa: PLC0415 - pyspark takes a second to import

    register_kafka_log(session)
    below = " OR ".join(f"partition = {number} AND offset < {end}" for number, end in enumerate(ends))
    schema, columns = query
    for _ in range(rounds):
        records = session.read.format("kafka_log").option("records", "true")
        records = (records if schema is None else records.schema(schema)).load(str(log_dir))
        records = records.where(f"committed AND ({below})")
        began_s, before_s = time.monotonic(), processor_s()
        (row,) = records.selectExpr("count(*)", *columns).collect()
        yield Read(time.monotonic() - began_s, processor_s() - before_s, row[0], int(row[1] or 0), ends)
