"""What tests of the commands do to files, and how they read them without any code of ours."""

from __future__ import annotations

import hashlib
import shutil
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

EMPTY_SNAPSHOT: Final = bytes.fromhex("000148674bc700000000")
"""A valid one without entries: version 1, CRC-32C of four zero bytes, no entry."""

PRODUCERS_STAY: Final = {"RESNAP_PRODUCER_ID_EXPIRATION_MS": str(100 * 365 * 86_400_000)}
"""No producer of a fixture expires, however long ago a broker wrote it: what a test writes is of today."""
BALLAST: Final = "ballast"


def tree(root: Path) -> dict[str, tuple[int, int, str]]:
    """Return what lies below ``root``: path to size, modification time in ns, and digest."""
    return {str(path.relative_to(root)): _look(path) for path in sorted(root.rglob("*"))}


def _look(path: Path) -> tuple[int, int, str]:
    status = path.stat()
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return status.st_size, status.st_mtime_ns, digest


def bases(partition: Path, suffix: str = "log") -> list[int]:
    """Return the offsets in the names of the files with ``suffix``, ascending."""
    return sorted(int(path.stem) for path in partition.glob(f"*.{suffix}"))


def lost_boundaries(partition: Path) -> list[int]:
    """Return the bases of all segments but the first that have no snapshot file."""
    return sorted(set(bases(partition)[1:]) - set(bases(partition, "snapshot")))


def file_at(partition: Path, offset: int, suffix: str) -> Path:
    """Return the path of one file of a log."""
    return partition / f"{offset:020d}.{suffix}"


def batch_positions(segment: Path) -> list[int]:
    """Return the byte at which each batch starts."""
    data, positions, position = segment.read_bytes(), [], 0
    while position + 12 <= len(data):
        positions.append(position)
        position += 12 + struct.unpack_from(">i", data, position + 8)[0]
    return positions


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    """Change one byte and keep the modification time out of it."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def fill(disk: Path, *, leaving: int = 0) -> None:
    """Write until the file system of ``disk`` has no more than ``leaving`` bytes of room, in steps of a page."""
    room = shutil.disk_usage(disk).free - leaving
    (disk / BALLAST).write_bytes(bytes(max(0, room)))
