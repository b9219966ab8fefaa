"""``spark.read.format("kafka_log")``: the batch headers of a log as a table, to be asked in SQL.

    register_kafka_log(spark)
    spark.read.format("kafka_log").load("/var/lib/kafka/data").createOrReplaceTempView("batches")

Paths are log dirs, directories of partitions, ``.log`` files, or URLs of what Resnap takes as a source (``s3://``,
``file://``): copies of log dirs, and what was shipped; ``load`` takes one or a list of them. Of S3 the environment of
every process has to say (``AWS_...``). The option ``topic`` is a glob that narrows them, and ``encryption-private-key``
names the keys of encrypted segments, ``ID=FILE``, several with commas between them; ``remote`` is the URL of what was
tiered of log dirs, to be read as one log with them. A row is one batch, as ``header_rows`` describes it; with the
option ``records`` = ``true`` it is one record, as ``record_rows`` does. Rows come in any order. Spark tells a source in
Python nothing of the columns that a query needs, so those of ``schema`` are made, all by default. Damage fails the
query with the file and the position: a count that leaves something out would look like an answer. With the option
``onDamage`` = ``skip`` it becomes a row.

Segments that cannot hold rows matching the query's filters are not read (``Pruning``). Filters are combined by AND.
Topic, partition and segment are the same in all rows of a segment; offsets are between its base offset and the next
one's; timestamps are not above the largest one, if the segment's time index has it and the batch that it names agrees.
A filter of any other column or form excludes nothing. Spark evaluates every filter again.

Executors read the files themselves, so paths must mean the same to all of them. Spark plans in a Python process of its
own; what it and the executors need travels in options and partitions.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from resnap.replay.largest_timestamp import proven_largest_timestamp
from resnap.replay.scan.header_scan import SegmentRange
from resnap.replay.spark.context import ship_packages
from resnap.replay.spark.header_rows import (
    DAMAGE,
    HEADERS,
    RECORD_SCHEMA,
    ROW_SCHEMA,
    LogSegment,
    damage_rows,
    read_header_rows,
)
from resnap.replay.spark.worker import freeze_worker, keep_memory
from resnap.storage.disk import reading_given
from resnap.storage.encryption import KeyRing, RsaKey
from resnap.storage.errors import ConfigurationError, FormatError, ResnapError, UsageError
from resnap.storage.key_file import KeyFile
from resnap.storage.log.names import FileKind, parse_file_name, parse_partition_dir_name
from resnap.storage.log.partition_dir import Checkpoints, read_partition_dir
from resnap.storage.packed import pack_all
from resnap.storage.sources.files import PLAIN, Sources
from resnap.storage.sources.log_dirs import Joining, open_source, open_tiered, with_remote
from resnap.storage.stores.urls import is_store_url, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, Segment

_PASSES: Final[dict[type[Filter], Callable[[Any, Any, Any], bool]]] = {
    EqualTo: lambda wanted, least, most: least <= wanted <= most,
    In: lambda wanted, least, most: any(value is not None and least <= value <= most for value in wanted),
    GreaterThan: lambda wanted, _, most: most > wanted,
    GreaterThanOrEqual: lambda wanted, _, most: most >= wanted,
    LessThan: lambda wanted, least, _: least < wanted,
    LessThanOrEqual: lambda wanted, least, _: least <= wanted,
}
"""Whether some value from the least to the most, both inclusive, passes a filter."""
_TIMES: Final = ("maxTimestamp", "timestamp")
"""The times of batches, and of records."""
FORMAT: Final = "kafka_log"
KEYS: Final = "encryption-private-key"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
PARTITION_BYTES: Final = 64 << 20
"""A task takes neighbouring segments until it has this many bytes."""
_SQL_TYPES: Final = {
    pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", pa.bool_(): "boolean", pa.binary(): "binary",
    HEADERS: "array<struct<key:string,value:binary>>",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pruning:
    """The filters of a query that can exclude whole segments."""

    filters: tuple[Filter, ...] = ()
    sources: Sources = PLAIN
    """How the segments are reached."""

    def reads_topic(self, topic_partition: TopicPartition) -> bool:
        """Whether a row of the partition may match."""
        topic, partition = topic_partition
        return self._may_pass("topic", topic, topic) and self._may_pass("partition", partition, partition)

    def reads_segment(self, segment: Segment) -> bool:
        """Whether a row of the segment may match, if one of its partition may.

        Raises:
            StoreError: the store it is in failed.

        """
        base, last = segment.base_offset, inf if segment.next_base_offset is None else segment.next_base_offset - 1
        return (
            self._may_pass("segment", base, base)
            and self._may_pass("baseOffset", base, last)
            and self._may_pass("lastOffset", base, last)
            and self._may_pass("offset", base, last)
            and (all(self._may_pass(name, -inf, -inf) for name in _TIMES) or self._is_young_enough(segment))
        )

    def _is_young_enough(self, segment: Segment) -> bool:
        largest = proven_largest_timestamp(segment, self.sources)
        return largest is None or all(self._may_pass(name, -inf, largest) for name in _TIMES)

    def _may_pass(self, column: str, least: float | str, most: float | str) -> bool:
        on_column = (filter_ for filter_ in self.filters if type(filter_) in _PASSES and filter_.attribute == (column,))
        return all(_PASSES[type(condition)](condition.value, least, most) for condition in on_column)


EVERYTHING: Final = Pruning()


def register_kafka_log(session: SparkSession) -> None:
    """Make ``format("kafka_log")`` known to ``session``, which may be anybody's.

    On a cluster Resnap's packages are shipped to the executors; a local master's workers must be able to import them,
    as they can where Resnap is installed.
    """
    ship_packages(session.sparkContext)
    session.conf.set(PUSHDOWN, "true")
    session.dataSource.register(KafkaLogSource)


class KafkaLogSource(DataSource):  # type: ignore[misc] # pyspark is untyped here
    """The format; Spark makes one per ``load``."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` is called with."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns as Spark declares them.

        Raises:
            UsageError: an option has a value that it cannot have.

        """
        with _add_hint():
            schema = schema_of(self.options)
        return ", ".join(f"`{field.name}` {_SQL_TYPES[field.type]}" for field in schema)

    def reader(self, schema: StructType) -> KafkaLogReader:
        """Return what reads the given paths.

        Raises:
            UsageError: no path was given, keys in another form, or a column in ``schema`` that there is not.
            ConfigurationError: a key file cannot be read.

        """
        with _add_hint():
            return KafkaLogReader(self.options, schema)


class KafkaLogReader(DataSourceReader):  # type: ignore[misc] # pyspark is untyped here
    """Lists segments where Spark plans, and reads them where it works."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._paths = paths_of(options)
        self._topic = options.get("topic")
        self._remote = options.get("remote")
        self._pruning = Pruning(sources=sources_of(options))
        self._columns = requested_columns(schema, schema_of(options))
        self._gives_records = gives_records(options)
        self._skips_damage = skips_damage(options)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep ``filters`` to skip whole segments, and return them all: Spark filters each row again."""
        self._pruning = replace(self._pruning, filters=tuple(filters))
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the segments, packed into tasks.

        Raises:
            UsageError: a path does not exist, or is nothing of Kafka's.
            LogDirError, StoreError: a directory, or a store, may not be read.
            FormatError: a partition's metadata is damaged.

        """
        with _add_hint():
            segments = find_segments(self._paths, self._topic, self._pruning, self._remote)
        if self._gives_records:
            segments = [segment for segment in segments if not segment.is_below_start]
        if not self._gives_records or "committed" not in self._columns:
            segments = [replace(segment, log=()) for segment in segments]
        # Without any partition Spark would make up one that holds None.
        return [InputPartition(task) for task in pack(segments, PARTITION_BYTES)] or [InputPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's segments.

        Raises:
            FormatError: damage, with file and position.
            LogDirError, StoreError: a file is gone, or may not be read.

        """
        freeze_worker()
        keep_memory()
        with _add_hint():
            for segment in partition.value:
                yield from self._rows(segment)

    def _rows(self, segment: LogSegment) -> Iterator[pa.RecordBatch]:
        sources, columns = self._pruning.sources, self._columns
        if self._gives_records:
            from resnap.replay.spark.record_rows import read_record_rows  # noqa: PLC0415 - loads numba

            yield from read_record_rows(segment, sources, columns, skips_damage=self._skips_damage)
            return
        try:
            for rows in read_header_rows(segment, sources):
                unharmed = pa.nulls(len(rows), DAMAGE.type)
                yield (rows.append_column(DAMAGE, unharmed) if self._skips_damage else rows).select(columns)
        except FormatError as error:
            if not self._skips_damage:
                raise
            yield damage_rows(segment, [error], pa.schema([*ROW_SCHEMA, DAMAGE])).select(columns)


def paths_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return what ``load`` was called with: Spark passes one path or URL as ``path``, several as JSON in ``paths``.

    Raises:
        UsageError: there are none.

    """
    paths = [*json.loads(options.get("paths", "[]")), *filter(None, [options.get("path")])]
    if not paths:
        raise UsageError(f"{FORMAT}: no path", hint=f'give one, as in spark.read.format("{FORMAT}").load(PATH)')
    return tuple(map(str, paths))


def gives_records(options: Mapping[str, str]) -> bool:
    """Return whether a row is a record, and not a batch.

    Raises:
        UsageError: the option ``records`` is neither true nor false.

    """
    return _one_of(options, "records", ("false", "true")) == "true"


def skips_damage(options: Mapping[str, str]) -> bool:
    """Return whether damage is skipped, and named in a row of its own.

    Raises:
        UsageError: the option ``onDamage`` is neither fail nor skip.

    """
    return _one_of(options, "onDamage", ("fail", "skip")) == "skip"


def _one_of(options: Mapping[str, str], name: str, values: tuple[str, str]) -> str:
    given = options.get(name, values[0]).lower()
    if given not in values:
        raise UsageError(f"{FORMAT}: the option {name} is {given!r}", hint=f"give {values[0]} or {values[1]}")
    return given


def schema_of(options: Mapping[str, str]) -> pa.Schema:
    """Return all columns that there are; raises as ``gives_records`` and ``skips_damage`` do."""
    schema = RECORD_SCHEMA if gives_records(options) else ROW_SCHEMA
    return schema.append(DAMAGE) if skips_damage(options) else schema


def requested_columns(schema: StructType, every: pa.Schema) -> tuple[str, ...]:
    """Return the columns that ``schema`` names; with its types, they must be some of ``every``.

    Raises:
        UsageError: one is not.

    """
    known = {field.name: _SQL_TYPES[field.type] for field in every}
    for field in schema:
        if known.get(field.name) != field.dataType.simpleString():
            raise UsageError(
                f"{FORMAT}: there is no column {field.name} of the type {field.dataType.simpleString()}",
                hint=f"give some of {', '.join(f'{name} {type_}' for name, type_ in known.items())}",
            )
    return tuple(field.name for field in schema)


def sources_of(options: Mapping[str, str]) -> Sources:
    """Return how the segments are reached; each process reads the key files itself.

    Raises:
        UsageError: the keys are given in another form.
        ConfigurationError: a key file cannot be read.

    """
    keys = []
    for key in filter(None, options.get(KEYS, "").split(",")):
        name, _, file = key.partition("=")
        if not name or not file:
            raise UsageError(f"{FORMAT}: the option {KEYS}: expected ID=FILE, found {key!r}")
        try:
            keys.append(RsaKey(name, KeyFile.read(Path(file))))
        except OSError as error:
            raise ConfigurationError(f"{FORMAT}: {KEYS} {key}: cannot be read: {error.strerror}") from error
    return Sources(keys=KeyRing(tuple(keys)))


def find_segments(
    paths: Iterable[str | Path], topic: str | None = None, pruning: Pruning = EVERYTHING, remote: str | None = None
) -> list[LogSegment]:
    """Return the segments at ``paths``, which may be URLs, each once, of topics that the glob ``topic`` matches.

    Those of which ``pruning`` lets no row pass are left out. What was tiered to the URL ``remote`` is joined with them.

    Raises:
        UsageError: a path does not exist, is nothing of Kafka's, or is a file and cannot be joined.
        LogDirError, StoreError: a directory, or a store, may not be read.
        FormatError: a partition's metadata is damaged.
        VerificationError: what was tiered is of another log, or does not reach up to it.

    """
    found = (segment for path in paths for segment in _segments_at(str(path), topic or "*", pruning, remote))
    return list({segment.range.locator: segment for segment in found}.values())


def pack(segments: Iterable[LogSegment], task_bytes: int) -> Iterator[tuple[LogSegment, ...]]:
    """Yield the segments in groups of neighbours; a group is full once it has ``task_bytes``."""
    group: list[LogSegment] = []
    filled = 0
    for segment in segments:
        group.append(segment)
        filled += segment.size_bytes
        if filled >= task_bytes:
            yield tuple(group)
            group, filled = [], 0
    if group:
        yield tuple(group)


def _segments_at(source: str, topic: str, pruning: Pruning, remote: str | None) -> Iterator[LogSegment]:
    """Yield the segments at one path or URL, as ``find_segments`` does."""
    path = local_path(source) if is_store_url(source) else Path(source).absolute()
    if path is not None and path.suffix == f".{FileKind.LOG}":
        if remote is not None:
            raise UsageError(f"{source} is one file, and cannot be joined with {remote}", hint="give its log dir")
        yield from _lone_segment(path, topic, pruning)
        return
    place = source if is_store_url(source) else str(path)
    log_dir = open_source(
        place, pruning.sources, topics=lambda found: fnmatchcase(found.topic, topic) and pruning.reads_topic(found)
    )
    if remote is not None:
        log_dir = _join_remote(log_dir, remote, pruning.sources)
    for problem in log_dir.problems:
        # A damaged checkpoint says nothing about batches; a partition that could not be listed would be missing.
        if problem.topic_partition is not None:
            raise problem.error
    for partition in log_dir.partitions:
        yield from _segments_of(partition, pruning)


def _join_remote(log_dir: LogDir, remote: str, sources: Sources) -> LogDir:
    """Return ``log_dir`` joined with what was tiered of it to the URL ``remote``."""
    partitions = log_dir.partitions
    stored = open_tiered(
        remote,
        sources,
        topics={partition.topic_partition for partition in partitions}.__contains__,
        topic_ids={one.topic_partition.topic: one.topic_id for one in partitions if one.topic_id is not None},
        counts=lambda _: True,
    )
    joined = with_remote(log_dir, Joining(url=remote, stored=stored, sources=sources, known=lambda *_: ()))
    return replace(joined, problems=(*joined.problems, *stored.problems))


def _segments_of(partition: PartitionDir, pruning: Pruning) -> Iterator[LogSegment]:
    """Yield the segments of a partition of which ``pruning`` may let a row pass."""
    topic, number = partition.topic_partition
    if not pruning.reads_topic(partition.topic_partition):
        return
    log = pack_all(map(SegmentRange.whole, partition.segments), "base_offset")
    for segment in filter(pruning.reads_segment, partition.segments):
        yield LogSegment(
            topic=topic,
            partition=number,
            size_bytes=segment.size_bytes,
            range=SegmentRange.whole(segment),
            log=log,
            log_start_offset=partition.log_start_offset,
        )


def _lone_segment(path: Path, topic: str, pruning: Pruning) -> Iterator[LogSegment]:
    """Yield the segment whose file is at ``path``; beside its neighbours it is known where it has to end."""
    file, directory = parse_file_name(path.name), parse_partition_dir_name(path.parent.name)
    if file is None:
        raise UsageError(f"the name of {path} has no base offset", hint="name it by 20 digits, as the broker had done")
    with reading_given(path):
        size_bytes = path.stat().st_size
    if directory is None:
        alone = SegmentRange(locator=str(path), base_offset=file.offset, next_base_offset=None)
        segments = [LogSegment(topic=None, partition=None, size_bytes=size_bytes, range=alone)]
    else:
        with reading_given(path.parent):
            partition = read_partition_dir(path.parent, directory.topic_partition, Checkpoints())
            segments = list(_segments_of(partition, pruning))
    for segment in segments:
        if segment.range.locator == str(path) and fnmatchcase(segment.topic or "", topic):
            yield segment


@contextmanager
def _add_hint() -> Iterator[None]:
    """Add the hint of an error of ours to what Spark shows of it: a traceback, whose last lines are notes."""
    try:
        yield
    except ResnapError as error:
        if error.hint is not None:
            error.add_note(f"hint: {error.hint}")
        raise
