"""Reads a file of metadata records batch by batch, a log segment or a checkpoint; encodes and decodes the records.

Every checksum is verified. Batches follow one another without a gap, since nothing compacts this log. The last batch of
the active segment may be torn (truncated, or zeros), left by a writer that was killed or is still writing. Kafka
truncates it when it next opens the log, because it was never acknowledged; here reading ends before it. Anywhere else,
or with any other fault, it is damage.

A record is a frame version, type, version, and the message. The control records of a KRaft quorum are decoded, too:
leader changes, voters, and the beginning and end of a checkpoint.

Source: ``RecordsIterator`` and ``KafkaMetadataLog`` in Kafka's raft and core modules; ``AbstractApiMessageSerde`` and
``MetadataRecordSerde``; ``LeaderChangeMessage``, ``SnapshotHeaderRecord``, ``SnapshotFooterRecord``,
``KRaftVersionRecord`` and ``VotersRecord`` in Kafka's clients module; ``ControlRecordUtils``; KIP-595, KIP-630,
KIP-853.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, TypeAlias

from resnap.storage.disk import reading
from resnap.storage.errors import FormatError, in_file
from resnap.storage.log.record import (
    KEY,
    KRAFT_VERSION,
    KRAFT_VOTERS,
    LEADER_CHANGE,
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    Record,
    read_records,
)
from resnap.storage.log.record_batch import (
    HEADER,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    MIN_BATCH_LENGTH,
    RecordBatchHeader,
    check_crc,
    read_header,
)
from resnap.storage.messages.schema import (
    Frame,
    Int16,
    Int32,
    Int64,
    Since,
    String,
    UInt16,
    Uuid,
    oldest_version,
    read_frame,
    read_whole,
    write_frame,
    write_message,
)
from resnap.storage.messages.wire import ZERO_UUID, Cursor
from resnap.storage.whole_file import open_file
from resnap.tiering.controller.metadata.records import TYPES_BY_KEY, TYPES_BY_MESSAGE, MetadataRecord, UnknownRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from resnap.storage.crc32c import Buffer

MAX_BATCH_BYTES: Final = 16 << 20
"""A quorum's batches have at most 8 MiB; far beyond that a length is damage, and is not read into memory."""
ANOTHER_COPY: Final = "copy the file from this node again, or from another node of the quorum"
_MAGIC: Final = bytes([MAGIC_V2])
_NOTHING: Final = memoryview(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBatch:
    """A batch of records that were appended together."""

    file: Path
    position: int
    """Position of its first byte in the file."""
    header: RecordBatchHeader
    records: tuple[LoggedRecord, ...]

    @property
    def timestamp(self) -> int:
        """When it was appended, by the leader's clock, in milliseconds; the same for all its records."""
        return self.header.base_timestamp

    @property
    def leader_epoch(self) -> int:
        """Epoch of the leader that appended it."""
        return self.header.partition_leader_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TornTail:
    """The bytes after the last whole batch of the active segment."""

    file: Path
    position: int
    size_bytes: int


def read_batches(
    path: Path, base_offset: int, *, active: bool = False, only: Collection[type] | None = None
) -> Iterator[MetadataBatch | TornTail]:
    """Yield the batches of the file at ``path``, and the torn tail of an active segment, if it has one.

    Args:
        path: a ``.log`` or ``.checkpoint`` file.
        base_offset: of the first batch that the file must hold.
        active: whether a torn batch may end the file.
        only: types of the wanted data records; others are skipped without parsing. Default: all.

    Raises:
        FormatError: damage; the message names file and position.
        LogDirError: the file cannot be read.

    """
    with reading(path), open_file(path) as file, in_file(path):
        position, expected = 0, base_offset
        while data := _next_batch(file, position, expected, active=active):
            if isinstance(data, TornTail):
                yield data
                return
            batch = _read_batch(path, position, data, expected, only)
            yield batch
            position += len(data)
            expected = batch.header.last_offset + 1


def _next_batch(file: BinaryIO, position: int, expected: int, *, active: bool) -> bytes | TornTail:
    """Return the bytes of the batch at ``position`` with the offset ``expected``; none at the end of the file."""
    start = file.read(HEADER.size)
    if not start:
        return b""
    size = _announced_size(start)
    if size is not None and not HEADER.size <= size <= MAX_BATCH_BYTES:
        raise FormatError("metadata batch length", position=position + 8, found=size - LOG_OVERHEAD, hint=ANOTHER_COPY,
                          expected=f"{MIN_BATCH_LENGTH} to {MAX_BATCH_BYTES - LOG_OVERHEAD}")  # fmt: skip
    data = start if size is None else start + _what_is_there(file, size - len(start))
    if len(data) == size:
        return data
    tail = data + _what_is_there(file, MAX_BATCH_BYTES)
    if not active or not _is_front(tail, expected) or _holds_batch(tail):
        raise FormatError("metadata batch", position=position, expected="all of its bytes",
                          found=f"{len(data)} of {size}" if size else "part of a header, or zeros",
                          hint=ANOTHER_COPY)  # fmt: skip
    return TornTail(file=Path(file.name), position=position, size_bytes=len(tail))


def _what_is_there(file: BinaryIO, size: int) -> bytes:
    """Return the next ``size`` bytes, or fewer at the end, without allocating more memory than the file has."""
    return file.read(min(size, max(os.fstat(file.fileno()).st_size - file.tell(), 0)))


def _announced_size(start: bytes) -> int | None:
    """Return the size in the batch header ``start``; None if it is not a header, or is zeros."""
    if len(start) < HEADER.size or not any(start):
        return None
    return LOG_OVERHEAD + int.from_bytes(start[LOG_OVERHEAD - 4 : LOG_OVERHEAD], "big", signed=True)


def _is_front(tail: bytes, expected: int) -> bool:
    """Whether ``tail`` may be the written part of the batch at offset ``expected``: its beginning, or zeros."""
    start = tail[: HEADER.size]
    offset = expected.to_bytes(LOG_OVERHEAD - 4, "big")
    has_offset = start.startswith(offset[: len(start)])
    return not any(start) or (has_offset and start[MAGIC_POSITION : MAGIC_POSITION + 1] in {_MAGIC, b""})


def _holds_batch(tail: bytes) -> bool:
    """Whether ``tail`` contains a whole batch: then its beginning is not a torn end, but a damaged length."""
    magic = tail.find(_MAGIC, MAGIC_POSITION + 1)
    while magic >= 0:
        start = magic - MAGIC_POSITION
        size = _announced_size(tail[start : start + HEADER.size])
        if size is not None and HEADER.size <= size <= len(tail) - start and _is_sound(tail[start : start + size]):
            return True
        magic = tail.find(_MAGIC, magic + 1)
    return False


def _is_sound(batch: bytes) -> bool:
    try:
        check_crc(batch)
    except FormatError:
        return False
    return True


def _read_batch(path: Path, position: int, data: bytes, expected: int, only: Collection[type] | None) -> MetadataBatch:
    header = read_header(data, at=position)
    check_crc(data, at=position)
    if header.base_offset != expected:
        raise FormatError("base offset of a metadata batch", position=position, expected=expected,
                          found=header.base_offset, hint=ANOTHER_COPY)  # fmt: skip
    if header.records_count != header.last_offset_delta + 1:
        raise FormatError("number of records of a metadata batch", position=position,
                          expected=header.last_offset_delta + 1, found=header.records_count)  # fmt: skip
    read = _read_control_record if header.is_control else partial(_read_data_record, only=only)
    records = (
        read(record, header.base_offset + index, position)
        for index, record in enumerate(read_records(data, header, what="metadata record", at=position))
    )
    wanted = tuple([record for record in records if record is not None])
    return MetadataBatch(file=path, position=position, header=header, records=wanted)


def _read_data_record(record: Record, offset: int, at: int, *, only: Collection[type] | None) -> LoggedRecord | None:
    if record.key is not None or record.timestamp_delta:
        found = f"a time {record.timestamp_delta} ms later" if record.key is None else "a key"
        raise FormatError("metadata record", position=at + record.key_position, found=found,
                          expected="no key, and the time of its batch")  # fmt: skip
    return decode_record(record.value or _NOTHING, offset=offset, at=at + record.value_position, only=only)


def _read_control_record(record: Record, offset: int, at: int) -> LoggedRecord:
    message = read_control_message(record.key or _NOTHING, record.value or _NOTHING, at=at + record.value_position)
    return LoggedRecord(offset=offset, version=message.version, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRecord:
    """A record and its position."""

    offset: int
    version: int
    """Version of the message."""
    message: Message
    unknown_tags: tuple[int, ...] = ()
    """Tagged fields that are unknown here, and skipped."""


def decode_record(
    value: Buffer, *, offset: int = 0, at: int = 0, only: Collection[type] | None = None
) -> LoggedRecord | None:
    """Return the record in ``value``; an ``UnknownRecord`` for a type or version newer than this release.

    If ``only`` some types are wanted, a record of another type is not parsed, and None is returned.

    Raises:
        FormatError: another frame, or a message that does not fit its schema to the last byte; ``at`` is the file
            position of the value.

    """
    cursor = Cursor(value, at=at)
    api_key, version = read_frame(cursor, "metadata record")
    known = TYPES_BY_KEY.get(api_key)
    if only is not None and known is not None and known.message not in only:
        return None
    if known is None or version > known.newest_version:
        unknown = UnknownRecord(api_key=api_key, version=version, size_bytes=len(value))
        return LoggedRecord(offset=offset, version=version, message=unknown)
    message = read_whole(known.message, cursor, version)
    return LoggedRecord(offset=offset, version=version, message=message, unknown_tags=tuple(cursor.unknown_tags))


def encode_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """Return the value of the log record for ``record``, in ``version``, or else the oldest version that can hold it.

    Raises:
        ValueError: there is no such version, or it cannot hold the record.

    """
    known = TYPES_BY_MESSAGE[type(record)]
    chosen = oldest_version(record) if version is None else version
    if not 0 <= chosen <= known.newest_version:
        raise ValueError(f"{known.name} has versions 0 to {known.newest_version}, not {chosen}")
    return write_frame(Frame(known.api_key, chosen)) + write_message(record, chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A member of the quorum, by its node id."""

    voter_id: Int32
    voter_directory_id: Annotated[Uuid, Since(1)] = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChangeMessage:
    """The first record of each leader epoch."""

    version: Int16
    leader_id: Int32
    voters: tuple[Voter, ...]
    granting_voters: tuple[Voter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeaderRecord:
    """The first record of a checkpoint."""

    version: Int16
    last_contained_log_timestamp: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFooterRecord:
    """The last record of a checkpoint, without which the checkpoint is incomplete."""

    version: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVersionRecord:
    """The version of the quorum's own protocol; 1 supports voter directory ids."""

    version: Int16
    k_raft_version: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterEndpoint:
    """The address of a voter."""

    name: String
    host: String
    port: UInt16


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVersionFeature:
    """The versions of the quorum's protocol that a voter can run."""

    min_supported_version: Int16
    max_supported_version: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterDetails:
    """A voter, with everything that the quorum knows of it."""

    voter_id: Int32
    voter_directory_id: Uuid
    endpoints: tuple[VoterEndpoint, ...]
    k_raft_version_feature: KRaftVersionFeature


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersRecord:
    """The whole quorum."""

    version: Int16
    voters: tuple[VoterDetails, ...]


ControlMessage: TypeAlias = (
    LeaderChangeMessage | SnapshotHeaderRecord | SnapshotFooterRecord | KRaftVersionRecord | VotersRecord
)


Message: TypeAlias = MetadataRecord | ControlMessage | UnknownRecord


CONTROL_TYPES: Final[dict[int, tuple[type[ControlMessage], int]]] = {
    LEADER_CHANGE: (LeaderChangeMessage, 1),
    SNAPSHOT_HEADER: (SnapshotHeaderRecord, 0),
    SNAPSHOT_FOOTER: (SnapshotFooterRecord, 0),
    KRAFT_VERSION: (KRaftVersionRecord, 0),
    KRAFT_VOTERS: (VotersRecord, 0),
}
"""Class and newest version by the type in the record's key."""


def read_control_message(key: memoryview, value: memoryview, *, at: int = 0) -> ControlMessage | UnknownRecord:
    """Return the message of a control record of the quorum.

    Each such message begins with its version; of a newer version nothing else is read.

    Raises:
        FormatError: key or value do not fit; ``at`` is the file position of the value.

    """
    if len(key) < KEY.size:
        raise FormatError("control record key cut short", position=at, expected=f"{KEY.size} bytes", found=len(key))
    _, kind = KEY.unpack_from(key)
    version = Cursor(value, at=at).take(2, "control record version")
    number = int.from_bytes(version, "big", signed=True)
    known = CONTROL_TYPES.get(kind)
    if known is None or not 0 <= number <= known[1]:
        return UnknownRecord(api_key=kind, version=number, size_bytes=len(value))
    return read_whole(known[0], Cursor(value, at=at), number)
