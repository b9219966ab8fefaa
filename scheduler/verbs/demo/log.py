"""Makes the log dir of the demonstration: three days of a broker's log with its snapshots, and their loss.

The snapshots are made a batch at a time by ``replay.producer_state``, the readable specification, from the bytes that
were written. The replay that has to bring them back shares no code with that, so that the two can be compared.

Source: ``ProducerStateManager.takeSnapshot`` and, for the loss, ``Log.deleteSnapshotsAfterRecoveryPointCheckpoint``
as it was before 2.8 (KAFKA-9393).
"""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Final

from resnap.replay.producer_state import DataBatch, Event, Marker, ProducerStates
from resnap.replay.window import DEFAULT_EXPIRY
from resnap.scheduler.verbs.demo.producers import Traffic, write_traffic
from resnap.storage.errors import LogDirError
from resnap.storage.log.checkpoints import write_offset_checkpoint
from resnap.storage.log.control_record import COMMIT, read_control_record
from resnap.storage.log.log_writer import LogWriter
from resnap.storage.log.names import FileKind, TopicPartition, parse_file_name, segment_name
from resnap.storage.log.producer_snapshot import snapshot_bytes
from resnap.storage.log.properties import MetaProperties, write_meta_properties
from resnap.storage.log.record import write_data_batch
from resnap.storage.log.record_batch import NO_TIMESTAMP, RecordBatchHeader, read_header
from resnap.storage.log.survey import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.storage.log.producer_snapshot import ProducerEntry

DAY_MS: Final = 86_400_000
LASTING_MS: Final = 3 * DAY_MS
SEGMENT_BYTES: Final = 384 << 10
SURVIVING_BASES: Final = 2
"""Before 2.8 the snapshots at the last two segment bases stay, and the one that a clean stop leaves at the log end."""

_RETIRED_MS: Final = 8 * DAY_MS
"""How long ago a producer of orders wrote for the last time: longer than producers take to expire."""
_RETIRED_PRODUCER_ID: Final = 900
_HANGING_PRODUCER_ID: Final = 990
_HANGS_AFTER: Final = 0.85
"""Share of the log that is written before the transaction that never ends."""
_ID_BYTES: Final = 16

_PAYMENTS: Final = Traffic(rounds=1800, transactional_share=0.75, first_producer_id=1000)
_ORDERS: Final = Traffic(rounds=1500, transactional_share=0.0, first_producer_id=3000)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    topic: str
    partition: int
    traffic: Traffic
    hangs: bool = False
    """Whether a transaction never ends."""
    retires: bool = False
    """Whether a producer has long been silent."""


_RECIPES: Final = (
    _Recipe(topic="orders", partition=0, traffic=_ORDERS, retires=True),
    _Recipe(topic="payments", partition=0, traffic=_PAYMENTS),
    _Recipe(topic="payments", partition=1, traffic=replace(_PAYMENTS, first_producer_id=2000), hangs=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPartition:
    """One partition as it was written."""

    topic_partition: TopicPartition
    directory: Path
    size_bytes: int
    """Size of its segments."""
    batches: int
    markers: int
    """Commits and aborts, one batch each; not among ``batches``."""
    bases: tuple[int, ...]
    """Base offsets of its segments, ascending; the last one is active."""
    log_end_offset: int
    last_stable_offset: int
    """Below the log end where a transaction hangs."""

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Offsets at which a closed segment ends, each of which needs a producer snapshot to be tiered."""
        return self.bases[1:]

    @property
    def lost(self) -> tuple[int, ...]:
        """Boundaries whose snapshots a broker before 2.8 deletes."""
        return self.boundaries[:-SURVIVING_BASES]


def write_demo_log(log_dir: Path, *, seed: int, now_ms: int) -> tuple[DemoPartition, ...]:
    """Write a log dir that ends at ``now_ms``, with a snapshot at every segment's end, as a broker from 2.8 on does.

    Equal seeds and times write equal bytes.

    Raises:
        LogDirError: it cannot be written.

    """
    random = Random(seed)  # noqa: S311 - has to be repeatable, not secret
    cluster_id = _random_id(random)
    topic_ids = {topic: _random_id(random) for topic in sorted({recipe.topic for recipe in _RECIPES})}
    with _writable(log_dir):
        made = tuple(
            _write_partition(log_dir, recipe, topic_id=topic_ids[recipe.topic], random=random, now_ms=now_ms)
            for recipe in _RECIPES
        )
        for partition in made:
            _write_snapshots(partition)
        _write_log_dir_files(log_dir, made, cluster_id)
    return made


def lose_snapshots(partitions: Sequence[DemoPartition], lost: Path) -> None:
    """Take from the log dir what a broker before 2.8 deletes, and keep it as ``lost/<topic>-<partition>/<N>.snapshot``.

    Raises:
        LogDirError: the files cannot be moved.

    """
    with _writable(lost):
        for partition in partitions:
            aside = lost / str(partition.topic_partition)
            aside.mkdir(parents=True)
            for offset in partition.lost:
                name = segment_name(offset, FileKind.SNAPSHOT)
                (partition.directory / name).rename(aside / name)


def _write_partition(log_dir: Path, recipe: _Recipe, *, topic_id: str, random: Random, now_ms: int) -> DemoPartition:
    topic_partition = TopicPartition(recipe.topic, recipe.partition)
    directory = log_dir / str(topic_partition)
    with LogWriter(directory, segment_bytes=SEGMENT_BYTES, topic_id=topic_id) as writer:
        if recipe.retires:
            writer.append_batch(_single(writer, now_ms - _RETIRED_MS, _RETIRED_PRODUCER_ID))
        for number, traffic in enumerate(_acts(recipe, now_ms)):
            if number:
                writer.append_batch(_single(writer, traffic.start_ms, _HANGING_PRODUCER_ID, transactional=True))
            write_traffic(writer, traffic, random)
    return _partition(topic_partition, writer)


def _single(writer: LogWriter, timestamp: int, producer_id: int, *, transactional: bool = False) -> bytes:
    """Return the first batch of a producer, of one record."""
    return write_data_batch(
        offset=writer.next_offset, values=[b"once"], timestamps=timestamp, producer_id=producer_id, producer_epoch=0,
        base_sequence=0, transactional=transactional,
    )  # fmt: skip


def _acts(recipe: _Recipe, now_ms: int) -> tuple[Traffic, ...]:
    """Return what happens, one after the other: all at once, or what comes before and after the one that hangs."""
    whole = replace(recipe.traffic, start_ms=now_ms - LASTING_MS, duration_ms=LASTING_MS)
    if not recipe.hangs:
        return (whole,)
    before_ms, rounds = int(LASTING_MS * _HANGS_AFTER), int(whole.rounds * _HANGS_AFTER)
    return (
        replace(whole, rounds=rounds, duration_ms=before_ms),
        replace(
            whole, rounds=whole.rounds - rounds, start_ms=whole.start_ms + before_ms,
            duration_ms=LASTING_MS - before_ms, first_producer_id=whole.first_producer_id + 500,
        ),
    )  # fmt: skip


def _write_log_dir_files(log_dir: Path, made: Sequence[DemoPartition], cluster_id: str) -> None:
    """Write what a broker that was shut down cleanly has at the top of a log dir."""
    meta = MetaProperties(version=0, node_id=1, cluster_id=cluster_id, directory_id=None)
    (log_dir / META_PROPERTIES).write_bytes(write_meta_properties(meta))
    ends = {partition.topic_partition: partition.log_end_offset for partition in made}
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS):
        (log_dir / name).write_bytes(write_offset_checkpoint(ends))
    for name in (LOG_START_OFFSETS, CLEANER_OFFSETS):
        (log_dir / name).write_bytes(write_offset_checkpoint({}))
    (log_dir / CLEAN_SHUTDOWN).touch()


def _partition(topic_partition: TopicPartition, writer: LogWriter) -> DemoPartition:
    segments = _segments(writer.directory)
    headers = [header for path in segments.values() for header, _ in _batches(path.read_bytes())]
    markers = sum(header.is_control for header in headers)
    return DemoPartition(
        topic_partition=topic_partition,
        directory=writer.directory,
        size_bytes=sum(path.stat().st_size for path in segments.values()),
        batches=len(headers) - markers,
        markers=markers,
        bases=tuple(segments),
        log_end_offset=writer.next_offset,
        last_stable_offset=writer.last_stable_offset,
    )


def _write_snapshots(partition: DemoPartition) -> None:
    """Write what the broker knows of its producers whenever it rolls, and when it stops."""
    states = ProducerStates(DEFAULT_EXPIRY)
    newest_ms = NO_TIMESTAMP
    segments = _segments(partition.directory).values()
    for path, (_, end) in zip(segments, pairwise((*partition.bases, partition.log_end_offset)), strict=True):
        batches = list(_batches(path.read_bytes()))
        newest_ms = max([newest_ms, *(header.max_timestamp for header, _ in batches)])
        states.append(_event(header, batch) for header, batch in batches if header.has_producer)
        snapshot = snapshot_bytes(surviving(states.entries, newest_ms).values())
        (partition.directory / segment_name(end, FileKind.SNAPSHOT)).write_bytes(snapshot)


def surviving(entries: Mapping[int, ProducerEntry], at_ms: int) -> dict[int, ProducerEntry]:
    """Return those of ``entries`` that a broker has not dropped at ``at_ms``."""
    return {producer_id: entry for producer_id, entry in entries.items() if not DEFAULT_EXPIRY.is_expired(entry, at_ms)}


def _segments(directory: Path) -> dict[int, Path]:
    """Return the segments in ``directory`` by base offset, ascending."""
    parsed = ((parse_file_name(path.name), path) for path in sorted(directory.iterdir()))
    return {name.offset: path for name, path in parsed if name is not None and name.kind is FileKind.LOG}


def _batches(segment: bytes) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
    position = 0
    while position < len(segment):
        header = read_header(segment, position)
        yield header, memoryview(segment)[position : position + header.size_bytes]
        position += header.size_bytes


def _event(header: RecordBatchHeader, batch: memoryview) -> Event:
    record = read_control_record(batch, header) if header.is_control else None
    if record is not None:
        return Marker(
            producer_id=header.producer_id, producer_epoch=header.producer_epoch, offset=header.base_offset,
            coordinator_epoch=record.coordinator_epoch, timestamp=record.timestamp, commit=record.type == COMMIT,
        )  # fmt: skip
    return DataBatch(
        producer_id=header.producer_id, producer_epoch=header.producer_epoch, base_sequence=header.base_sequence,
        last_sequence=header.last_sequence, base_offset=header.base_offset, last_offset=header.last_offset,
        timestamp=header.max_timestamp, transactional=header.is_transactional,
    )  # fmt: skip


def _random_id(random: Random) -> str:
    """Return 16 bytes as Kafka writes ids: base64 without padding."""
    return base64.urlsafe_b64encode(random.randbytes(_ID_BYTES)).decode().rstrip("=")


@contextmanager
def _writable(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogDirError(f"{directory}: cannot be written: {error.strerror}",
                          hint="`resnap demo --dir DIR` works in a place of your choice") from error  # fmt: skip
