"""What stands before a message that is the value of a log record: frame version, type and version of the message.

Source: ``AbstractApiMessageSerde`` and ``MetadataRecordSerde``; ``RemoteLogMetadataSerde`` does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.messages.varint import write_unsigned_varint

if TYPE_CHECKING:
    from resnap.storage.messages.wire import Cursor

FRAME_VERSION: Final = 1
"""0 was the preview of KRaft in 2.8, from which nobody can upgrade."""
MAX_INT16: Final = 0x7FFF


class Frame(NamedTuple):
    """Which message follows."""

    api_key: int
    version: int


def read_frame(cursor: Cursor, what: str) -> Frame:
    """Return the frame that comes next; ``what`` names the record in a message.

    Raises:
        FormatError: another frame version, or a type or version that is no number of 16 bits.

    """
    start = cursor.position
    found = cursor.unsigned()
    if found != FRAME_VERSION:
        cursor.position = start
        raise cursor.wrong(f"{what} frame version", FRAME_VERSION, found)
    return Frame(_int16(cursor, f"{what} type"), _int16(cursor, f"{what} version"))


def write_frame(frame: Frame) -> bytes:
    """Return the bytes of ``frame``."""
    return b"".join(map(write_unsigned_varint, (FRAME_VERSION, *frame)))


def _int16(cursor: Cursor, what: str) -> int:
    value = cursor.unsigned()
    if value > MAX_INT16:
        raise cursor.wrong(what, f"at most {MAX_INT16}", value)
    return value
