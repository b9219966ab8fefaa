"""Logs that real brokers wrote, unpacked from ``tests/fixtures``; the README there describes each set."""

from __future__ import annotations

import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ARCHIVES: Final = Path(__file__).parent / "fixtures"
ARCHIVED: Final = tuple(sorted(path.name.removesuffix(".tar.xz") for path in ARCHIVES.glob("*.tar.xz")))
AIVEN: Final = tuple(name for name in ARCHIVED if "-aiven-" in name)
"""Sets with what a plugin made of their segments: their log dirs show nothing that those of the others do not."""
LOST: Final = "kafka-3.9.1-lost-state"
"""A replica whose snapshots are wrong, and the remote part of its log."""
NAMES: Final = tuple(name for name in ARCHIVED if name not in (*AIVEN, LOST))


@dataclass(frozen=True, slots=True, kw_only=True)
class FixtureSet:
    """One unpacked set."""

    name: str
    root: Path
    """Holds ``data`` and ``expected``; some sets have ``metadata-dump.txt``, ``remote`` or ``keys`` besides."""

    @property
    def data(self) -> Path:
        """One entry of ``log.dirs``, as the broker left it."""
        return self.root / "data"

    @property
    def remote(self) -> Path:
        """What was tiered of ``data``: the root of a store."""
        return self.root / "remote"

    @property
    def expected(self) -> Path:
        """``<topic>-<partition>/<N>.snapshot``: every producer snapshot of the same broker, from before it was lost."""
        return self.root / "expected"


def unpack(name: str, into: Path) -> FixtureSet:
    """Unpack the set ``name`` into the new directory ``into/name``; files get the modification times they had."""
    if name not in ARCHIVED:
        raise LookupError(f"no fixture set {name!r}, there are {', '.join(ARCHIVED)}")
    root = into / name
    with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has no filters
        archive.extractall(root)  # noqa: S202 - our own
    return FixtureSet(name=name, root=root)


def copied_tree(source: Path, target: Path, **options: Any) -> Path:
    """Copy a folder as ``shutil.copytree`` does, with half of its work for each of the many small files of a log."""
    return Path(shutil.copytree(source, target, copy_function=_copy, **options))


def _copy(source: str, target: str) -> None:
    """Copy a file with its mode and its modification time."""
    there = os.open(source, os.O_RDONLY)
    status = os.fstat(there)
    here = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    copied = 0
    while copied < status.st_size:
        copied += os.sendfile(here, there, None, status.st_size - copied)
    os.fchmod(here, status.st_mode)
    os.utime(here, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.close(here)
    os.close(there)
