"""What a KRaft quorum writes for itself, as control records: who leads, who votes, where a checkpoint begins and ends.

Source: ``LeaderChangeMessage``, ``SnapshotHeaderRecord``, ``SnapshotFooterRecord``, ``KRaftVersionRecord`` and
``VotersRecord`` in Kafka's clients module; ``ControlRecordUtils``; KIP-595, KIP-630, KIP-853.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from resnap.storage.errors import FormatError
from resnap.storage.log.control_record import (
    KEY,
    KRAFT_VERSION,
    KRAFT_VOTERS,
    LEADER_CHANGE,
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
)
from resnap.storage.messages.schema import Int16, Int32, Int64, Since, String, UInt16, Uuid, read_message
from resnap.storage.messages.wire import ZERO_UUID, Cursor
from resnap.tiering.controller.metadata.records import UnknownRecord


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
    """The last record of a checkpoint, without which it is none."""

    version: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVersionRecord:
    """The version of the quorum's own protocol; 1 knows directories of voters."""

    version: Int16
    k_raft_version: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterEndpoint:
    """Where a voter listens."""

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
    """A voter, with all that the quorum knows of it."""

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
CONTROL_TYPES: Final[dict[int, tuple[type[ControlMessage], int]]] = {
    LEADER_CHANGE: (LeaderChangeMessage, 1),
    SNAPSHOT_HEADER: (SnapshotHeaderRecord, 0),
    SNAPSHOT_FOOTER: (SnapshotFooterRecord, 0),
    KRAFT_VERSION: (KRaftVersionRecord, 0),
    KRAFT_VOTERS: (VotersRecord, 0),
}
"""Class and newest version by the type that the record's key says."""


def read_control_message(key: memoryview, value: memoryview, *, at: int = 0) -> ControlMessage | UnknownRecord:
    """Return what a control record of the quorum says.

    Each such message begins with its own version. Of a younger one nothing is read but that.

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
    cursor = Cursor(value, at=at)
    message = read_message(known[0], cursor, number)
    if cursor.remaining:
        raise cursor.wrong(f"end of {known[0].__name__}", "no more bytes", cursor.remaining)
    return message
