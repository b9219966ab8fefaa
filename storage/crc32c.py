"""CRC-32C (Castagnoli), the checksum of record batches, producer snapshots and our uploads, computed in hardware."""

from __future__ import annotations

from typing import TypeAlias

from awscrt import checksums

Buffer: TypeAlias = bytes | bytearray | memoryview


def crc32c(data: Buffer, previous: int = 0) -> int:
    """Return the checksum of ``data``, continued from ``previous`` when the bytes come in pieces."""
    return int(checksums.crc32c(data, previous))
