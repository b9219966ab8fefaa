"""Encodes and decodes metadata records: frame version, type, version, and the message.

Also decodes the control records of a KRaft quorum: leader changes, voters, and the beginning and end of a checkpoint.

Source: ``AbstractApiMessageSerde`` and ``MetadataRecordSerde``; ``LeaderChangeMessage``, ``SnapshotHeaderRecord``,
``SnapshotFooterRecord``, ``KRaftVersionRecord`` and ``VotersRecord`` in Kafka's clients module; ``ControlRecordUtils``;
KIP-595, KIP-630, KIP-853.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from resnap.storage.errors import FormatError
from resnap.storage.log.control_record import (
    KEY,
    KRAFT_VERSION,
    KRAFT_VOTERS,
    LEADER_CHANGE,
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
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
from resnap.tiering.controller.metadata.records import TYPES_BY_KEY, TYPES_BY_MESSAGE, MetadataRecord, UnknownRecord

if TYPE_CHECKING:
    from collections.abc import Collection

    from resnap.storage.crc32c import Buffer


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
