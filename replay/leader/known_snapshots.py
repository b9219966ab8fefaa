"""The producer snapshots of one partition that a state manager writes, loads and deletes: as files, or in memory.

A manager knows its snapshots by offset, and lists the directory only on request: a file that it knows may have been
deleted.

Source: ``ProducerStateManager`` (``snapshots``) and ``SnapshotFile``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from resnap.storage.errors import FormatError
from resnap.storage.log.names import FileKind, FileState, parse_file_name, segment_name
from resnap.storage.log.producer_snapshot import read_snapshot, snapshot_bytes, store_snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from resnap.storage.log.producer_snapshot import ProducerEntry


class SnapshotStore(Protocol):
    """Stores the snapshots of one partition."""

    def offsets(self) -> Iterable[int]:
        """Return the offsets of all existing snapshots."""

    def read(self, offset: int) -> bytes:
        """Return the bytes of an existing snapshot."""

    def write(self, offset: int, entries: Sequence[ProducerEntry]) -> None:
        """Write a snapshot, whole or not at all, replacing an existing one."""

    def delete(self, offset: int) -> None:
        """Delete a snapshot, if it exists."""

    def mark_deleted(self, offset: int) -> bool:
        """Mark a snapshot for later deletion; return whether it existed."""


class MemorySnapshots:
    """Snapshots in memory."""

    def __init__(self) -> None:
        self.files: dict[int, bytes] = {}

    def offsets(self) -> Iterable[int]:
        """Return the offsets of all existing snapshots."""
        return tuple(self.files)

    def read(self, offset: int) -> bytes:
        """Return the bytes of an existing snapshot."""
        return self.files[offset]

    def write(self, offset: int, entries: Sequence[ProducerEntry]) -> None:
        """Store a snapshot."""
        self.files[offset] = snapshot_bytes(entries)

    def delete(self, offset: int) -> None:
        """Drop a snapshot."""
        self.files.pop(offset, None)

    def mark_deleted(self, offset: int) -> bool:
        """Drop a snapshot; return whether it existed."""
        return self.files.pop(offset, None) is not None


class SnapshotFiles:
    """Snapshots as files in a partition's directory, which a broker would load."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def offsets(self) -> Iterable[int]:
        """Return the offsets of all snapshot files, from their names."""
        named = (parse_file_name(path.name) for path in self.directory.iterdir())
        return [one.offset for one in named if one and (one.kind, one.state) == (FileKind.SNAPSHOT, FileState.LIVE)]

    def read(self, offset: int) -> bytes:
        """Return the bytes of a snapshot file."""
        return self._path(offset).read_bytes()

    def write(self, offset: int, entries: Sequence[ProducerEntry]) -> None:
        """Write a snapshot file durably; it gets its name only when it is complete."""
        store_snapshot(self._path(offset), sorted(entries), len(entries))

    def delete(self, offset: int) -> None:
        """Delete a snapshot file, if it exists."""
        self._path(offset).unlink(missing_ok=True)

    def mark_deleted(self, offset: int) -> bool:
        """Rename a snapshot file as brokers do before deletion; return whether it existed."""
        path = self._path(offset)
        try:
            path.rename(path.with_name(f"{path.name}.{FileState.DELETED}"))
        except FileNotFoundError:
            return False
        return True

    def _path(self, offset: int) -> Path:
        return self.directory / segment_name(offset, FileKind.SNAPSHOT)


class KnownSnapshots:
    """The snapshots that a manager knows, by offset."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._offsets: set[int] = set()
        self.look_again()

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    def look_again(self) -> None:
        """List the existing snapshots again, and know only these."""
        self._offsets = set(self._store.offsets())

    @property
    def offsets(self) -> list[int]:
        """Known offsets, ascending."""
        return sorted(self._offsets)

    @property
    def latest(self) -> int | None:
        """The highest offset."""
        return max(self._offsets, default=None)

    def write(self, offset: int, entries: Sequence[ProducerEntry]) -> None:
        """Write a snapshot, and add it to the known ones."""
        self._store.write(offset, entries)
        self._offsets.add(offset)

    def load_latest(self) -> tuple[int, dict[int, ProducerEntry]] | None:
        """Return offset and entries of the newest valid snapshot; newer invalid ones are deleted."""
        while (offset := self.latest) is not None:
            try:
                return offset, read_snapshot(self._store.read(offset))
            except FormatError:
                self.delete([offset])
        return None

    def delete(self, offsets: Iterable[int]) -> None:
        """Delete those of ``offsets`` that are known."""
        for offset in self._offsets.intersection(offsets):
            self._offsets.discard(offset)
            self._store.delete(offset)

    def mark_deleted(self, offset: int) -> bool:
        """Forget a snapshot and mark it for deletion; return whether it existed."""
        if offset not in self._offsets:
            return False
        self._offsets.discard(offset)
        return self._store.mark_deleted(offset)

    def delete_strays(self, base_offsets: Collection[int]) -> None:
        """Delete snapshots without a segment, except the newest one if above all segments: a clean shutdown left it."""
        self.look_again()
        strays = sorted(self._offsets.difference(base_offsets))
        if strays and (not base_offsets or strays[-1] >= max(base_offsets)):
            strays.pop()
        self.delete(strays)
