"""``--verify-crc``: checks the checksum of every batch, which means reading all bytes of a segment.

A replay needs only headers, so this is off by default. The checksum of a batch does not cover its offset, length,
leader epoch and magic; every scan checks those by continuity.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError
from resnap.storage.log.message_set import check_legacy_crc
from resnap.storage.log.record_batch import ATTRIBUTES_POSITION, CRC_POSITION, LOG_OVERHEAD, MAGIC_POSITION, MAGIC_V2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.storage.readers import RangeReader

_CHUNK_BYTES: Final = 1 << 20
_LENGTH: Final = struct.Struct(">i")


def check_crcs(reader: RangeReader, block: memoryview, at: int, starts: Sequence[int]) -> int:
    """Check every batch that starts in ``block`` at file position ``at``; bytes beyond the block are read.

    Returns:
        The number of bytes read beyond the block.

    Raises:
        FormatError: a checksum differs.

    """
    beyond = 0
    for start in starts:
        size = LOG_OVERHEAD + _LENGTH.unpack_from(block, start + 8)[0]
        if block[start + MAGIC_POSITION] != MAGIC_V2:
            whole = block[start : start + size] if start + size <= len(block) else reader.read(at + start, size)
            check_legacy_crc(whole, at=at + start)
            continue
        covered = block[start + ATTRIBUTES_POSITION : start + size]
        missing = size - ATTRIBUTES_POSITION - len(covered)
        computed = _continue(reader, crc32c(covered), at + start + size - missing, missing)
        beyond += missing
        carried = int.from_bytes(block[start + CRC_POSITION : start + ATTRIBUTES_POSITION], "big")
        if carried != computed:
            raise FormatError("record batch checksum (CRC-32C)", position=at + start, expected=f"{carried:08x}",
                              found=f"{computed:08x}")  # fmt: skip
    return beyond


def _continue(reader: RangeReader, checksum: int, position: int, length: int) -> int:
    while length > 0:
        chunk = reader.read(position, min(_CHUNK_BYTES, length))
        if not chunk:
            break  # truncated in between: the checksum will show it
        checksum = crc32c(chunk, checksum)
        position += len(chunk)
        length -= len(chunk)
    return checksum
