"""One metadata record as the value of a log record: frame version, type, version, and the message.

Source: ``AbstractApiMessageSerde`` and ``MetadataRecordSerde``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from resnap.storage.messages.schema import Frame, oldest_version, read_frame, read_message, write_frame, write_message
from resnap.storage.messages.wire import Cursor
from resnap.tiering.controller.metadata.records import TYPES_BY_KEY, TYPES_BY_MESSAGE, MetadataRecord, UnknownRecord

if TYPE_CHECKING:
    from collections.abc import Collection

    from resnap.storage.crc32c import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecord:
    """A record and the version it was written in."""

    record: MetadataRecord | UnknownRecord
    version: int
    unknown_tags: tuple[int, ...] = ()
    """Tagged fields that are unknown here, and skipped."""


@overload
def decode_record(value: Buffer, *, at: int = 0) -> DecodedRecord: ...
@overload
def decode_record(value: Buffer, *, at: int = 0, only: Collection[type] | None) -> DecodedRecord | None: ...
def decode_record(value: Buffer, *, at: int = 0, only: Collection[type] | None = None) -> DecodedRecord | None:
    """Return the record in ``value``; an ``UnknownRecord`` for a type or version younger than what is known here.

    Where ``only`` some types are wanted, None stands for one of another, which is left unread.

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
        return DecodedRecord(record=unknown, version=version)
    record = read_message(known.message, cursor, version)
    if cursor.remaining:
        raise cursor.wrong(f"end of {known.message.__name__}", "no more bytes", cursor.remaining)
    return DecodedRecord(record=record, version=version, unknown_tags=tuple(cursor.unknown_tags))


def encode_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """Return the value of the log record that holds ``record``, in the oldest version that can unless ``version`` is.

    Raises:
        ValueError: there is no such version, or it cannot hold the record.

    """
    known = TYPES_BY_MESSAGE[type(record)]
    chosen = oldest_version(record) if version is None else version
    if not 0 <= chosen <= known.newest_version:
        raise ValueError(f"{known.name} has versions 0 to {known.newest_version}, not {chosen}")
    return write_frame(Frame(known.api_key, chosen)) + write_message(record, chosen)
