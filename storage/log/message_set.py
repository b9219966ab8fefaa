"""Message sets of magic 0 and 1, as brokers before 0.11 wrote them.

They have neither producers nor leader epochs, so a replay skips them. A compressed message is a wrapper around a set of
others and carries the offset of the **last** of them; the first is unknown without decompressing it, which nothing here
does. After a rolling upgrade one segment may hold every magic.

Source: ``LegacyRecord`` and ``AbstractLegacyRecordBatch`` in Kafka's clients module; KIP-31 and KIP-32 for magic 1.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.log.record_batch import COMPRESSION_MASK, LOG_OVERHEAD, MAGIC_POSITION, NO_TIMESTAMP

if TYPE_CHECKING:
    from resnap.storage.crc32c import Buffer

MAGIC_V0: Final = 0
MAGIC_V1: Final = 1

HEADER: Final = struct.Struct(">qiIbb")
"""Big endian, 18 bytes: offset, size, CRC, magic, attributes."""
TIMESTAMP: Final = struct.Struct(">q")
"""Magic 1 only, right after the header."""
LENGTH: Final = struct.Struct(">i")
"""Length of the key, and of the value; -1 is null."""
SIZE_POSITION: Final = 8
CRC_POSITION: Final = 12
MIN_SIZES: Final = {MAGIC_V0: 14, MAGIC_V1: 22}
"""What ``size`` counts in a message with null key and null value, by magic."""


class LegacyMessage(NamedTuple):
    """One message, or wrapper, without its key and value."""

    offset: int
    """Offset of the message, or of the last message in a wrapper."""
    size: int
    """Bytes after this field; the whole message is ``size_bytes``."""
    crc: int
    magic: int
    attributes: int
    timestamp: int
    """Milliseconds; the largest in a wrapper; ``NO_TIMESTAMP`` in magic 0."""

    @property
    def size_bytes(self) -> int:
        """Bytes from the offset to the end of the value."""
        return LOG_OVERHEAD + self.size

    @property
    def is_compressed(self) -> bool:
        """Whether the message wraps others."""
        return bool(self.attributes & COMPRESSION_MASK)


def read_legacy_message(buffer: Buffer, position: int = 0, *, at: int = 0) -> LegacyMessage:
    """Return the message at ``position`` of ``buffer``; key and value are not read, and may be beyond the buffer.

    Args:
        buffer: bytes of a segment; 26 from ``position`` on always suffice, 18 for magic 0.
        position: byte offset of the message within ``buffer``.
        at: file position of ``buffer[0]``, for messages.

    Raises:
        FormatError: too few bytes, another magic, or an impossible size or offset.

    """
    here = at + position
    _check_room(buffer, position, HEADER.size, here)
    offset, size, crc, magic, attributes = HEADER.unpack_from(buffer, position)
    if magic not in MIN_SIZES:
        raise FormatError("message magic", position=here + MAGIC_POSITION, expected="0 or 1", found=magic)
    if size < MIN_SIZES[magic]:
        raise FormatError("message size", position=here + SIZE_POSITION, expected=f"at least {MIN_SIZES[magic]}",
                          found=size)  # fmt: skip
    if offset < 0:
        raise FormatError("message offset", position=here, expected="0 or more", found=offset)
    return LegacyMessage(offset, size, crc, magic, attributes, _read_timestamp(buffer, position, magic, here))


def check_legacy_crc(message: Buffer, *, at: int = 0) -> None:
    """Compare the CRC-32 of a whole message with the one it carries.

    Raises:
        FormatError: they differ; ``at`` is the file position of the message.

    """
    view = memoryview(message)
    carried = int.from_bytes(view[CRC_POSITION:MAGIC_POSITION], "big")
    computed = zlib.crc32(view[MAGIC_POSITION:])
    if carried != computed:
        raise FormatError("message checksum (CRC-32)", position=at, expected=f"{carried:08x}", found=f"{computed:08x}")


def read_key_and_value(
    data: Buffer, message: LegacyMessage, *, at: int = 0
) -> tuple[memoryview | None, memoryview | None]:
    """Return the key and the value of ``message``, which is all of ``data``.

    Raises:
        FormatError: they do not fill it; ``at`` is its file position.

    """
    view, position = memoryview(data), HEADER.size + (TIMESTAMP.size if message.magic == MAGIC_V1 else 0)
    fields: list[memoryview | None] = []
    for what in ("key", "value"):
        length = LENGTH.unpack_from(view, position)[0] if position + LENGTH.size <= len(view) else len(view)
        room = len(view) - position - LENGTH.size
        if not -1 <= length <= room:
            raise FormatError(f"message {what} length", position=at + position, expected=f"-1 to {room}", found=length)
        position += LENGTH.size
        fields.append(None if length < 0 else view[position : position + length])
        position += max(length, 0)
    if position != len(view):
        raise FormatError("message", position=at, expected=f"{position} bytes", found=len(view))
    return fields[0], fields[1]


def _read_timestamp(buffer: Buffer, position: int, magic: int, here: int) -> int:
    if magic == MAGIC_V0:
        return NO_TIMESTAMP
    _check_room(buffer, position, HEADER.size + TIMESTAMP.size, here)
    return int(TIMESTAMP.unpack_from(buffer, position + HEADER.size)[0])


def _check_room(buffer: Buffer, position: int, size: int, here: int) -> None:
    if len(buffer) - position < size:
        raise FormatError("message header cut short", position=here, expected=f"{size} bytes",
                          found=len(buffer) - position)  # fmt: skip
