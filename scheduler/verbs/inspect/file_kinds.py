"""Recognizes the kind of a file in a log dir or a store: by its name, else by its content."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from resnap.storage.log.names import OFFSET_DIGITS
from resnap.storage.log.producer_snapshot import ENTRY, HEADER, VERSION
from resnap.storage.log.record_batch import MAGIC_POSITION, MAGIC_V2

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.readers import RangeReader


class Kind(StrEnum):
    """What a file is; the value is what ``--kind`` takes."""

    SEGMENT = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    OFFSET_CHECKPOINT = "offset-checkpoint"
    LEADER_EPOCHS = "leader-epoch-checkpoint"
    PARTITION_METADATA = "partition.metadata"
    META_PROPERTIES = "meta.properties"
    QUORUM_STATE = "quorum-state"
    MANIFEST = "manifest"
    RSM_MANIFEST = "rsm-manifest"
    RSM_INDEXES = "indexes"
    TRANSACTION_STATE = "transaction-state"
    """A segment of ``__transaction_state`` by its records; a segment like others unless that is asked for."""


_PEEK_BYTES: Final = 256
_NAME = re.compile(rf"\d{{{OFFSET_DIGITS}}}(?:-[^.]*)?\.(?P<suffix>[a-z-]+)(?:\.(?:deleted|swap|cleaned|tmp))?")
"""Of a segment's files in a log dir, and of its objects in a store, which carry the segment's id, too."""


def leading_offset(name: str) -> int | None:
    """Return the offset in 20 digits that ``name`` begins with."""
    digits = name[:OFFSET_DIGITS]
    return int(digits) if len(digits) == OFFSET_DIGITS and digits.isdecimal() else None


def kind_by_name(name: str) -> Kind | None:
    """Return what a file of this name is, in a log dir or in a store; None if the name does not say."""
    if name in {Kind.PARTITION_METADATA, Kind.META_PROPERTIES, Kind.LEADER_EPOCHS, Kind.QUORUM_STATE}:
        return Kind(name)
    if name.endswith("-offset-checkpoint"):
        return Kind.OFFSET_CHECKPOINT
    match = _NAME.fullmatch(name)
    suffix = match["suffix"] if match else ""
    return Kind(suffix) if suffix in set(Kind) else None


def kind_by_content(reader: RangeReader) -> Kind | None:
    """Return what a file looks like; None for the indexes, too, whose bytes have no mark."""
    start = reader.read(0, _PEEK_BYTES)
    return next((kind for kind, fits in _MARKS.items() if fits(start, reader.size_bytes)), None)


def _matches(pattern: bytes) -> Callable[[bytes, int], bool]:
    compiled = re.compile(pattern, re.MULTILINE)
    return lambda start, _: compiled.match(start) is not None


def _is_snapshot(start: bytes, size_bytes: int) -> bool:
    if len(start) < HEADER.size:
        return False
    version, _, count = HEADER.unpack_from(start)
    return bool(version == VERSION and size_bytes == HEADER.size + count * ENTRY.size)


def _is_segment(start: bytes, _: int) -> bool:
    # Offsets of real logs are far from using their first two bytes.
    return len(start) > MAGIC_POSITION and start[MAGIC_POSITION] <= MAGIC_V2 and start[:2] == bytes(2)


_MARKS: Final[dict[Kind, Callable[[bytes, int], bool]]] = {
    Kind.MANIFEST: _matches(rb"Obj\x01"),
    Kind.RSM_MANIFEST: _matches(rb'\s*\{\s*"version"\s*:\s*"?1"?\s*,\s*"chunkIndex"'),
    Kind.SNAPSHOT: _is_snapshot,
    Kind.PARTITION_METADATA: _matches(rb"version: ?\d+\s+topic_id:"),
    Kind.META_PROPERTIES: _matches(rb"(?:.*\n)*?(?:broker\.id|node\.id|cluster\.id)="),
    Kind.QUORUM_STATE: _matches(rb'\s*\{(?:.*\n)*?.*"leaderEpoch"\s*:'),
    Kind.LEADER_EPOCHS: _matches(rb"0\r?\n\d+\r?\n\d+ \d+\r?$"),
    Kind.OFFSET_CHECKPOINT: _matches(rb"0\r?\n\d+\r?\n(?:\S+ \d+ \d+\r?$|\Z)"),
    Kind.SEGMENT: _is_segment,
}
"""In the order of asking."""
