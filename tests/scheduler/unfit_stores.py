"""Stores of each layout with snapshots and transaction indexes that are wrong, for ``resnap repair``."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.crc32c import crc32c
from resnap.storage.layouts.manifest import ObjectKind, read_manifest, write_manifest
from resnap.storage.log.producer_snapshot import read_snapshot, snapshot_bytes
from tests.scheduler import aiven_files
from tests.scheduler.aiven_files import ABORTED
from tests.scheduler.files import EMPTY_SNAPSHOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scheduler.conftest import Ran, Resnap


ENGINE: Final = ("--engine", "local", "--topic", "payments", "--as-of", "roll", "--output", "json", "-q")
PARTITION: Final = 0


class Files:
    """The small files of a stored segment of one partition, by its number; a layout of its own each."""

    def __init__(self, store: Path) -> None:
        self.store = store

    @property
    def segments(self) -> list[Path]:
        """What makes each segment visible, by base offset."""
        raise NotImplementedError

    def read(self, number: int, kind: ObjectKind) -> bytes:
        """Return a file of a segment; no bytes where there is none."""
        raise NotImplementedError

    def write(self, number: int, kind: ObjectKind, body: bytes) -> None:
        """Store another one, with all that is said of it true."""
        raise NotImplementedError


class Manifested(Files):
    """Segments with manifests of ours, wherever their objects lie."""

    @property
    def segments(self) -> list[Path]:
        return [path for path in sorted(self.store.rglob("*.manifest")) if path.parent.name == str(PARTITION)]

    def read(self, number: int, kind: ObjectKind) -> bytes:
        entry = read_manifest(self.segments[number].read_bytes()).object(kind)
        return b"" if entry is None else (self.store / entry.key).read_bytes()

    def write(self, number: int, kind: ObjectKind, body: bytes) -> None:
        path = self.segments[number]
        manifest = read_manifest(path.read_bytes())
        entry = manifest.object(kind)
        assert entry is not None
        (self.store / entry.key).write_bytes(body)
        true = replace(entry, size_bytes=len(body), crc32c=crc32c(body), sha256=sha256(body).hexdigest())
        objects = tuple(true if one is entry else one for one in manifest.objects)
        path.write_bytes(write_manifest(replace(manifest, objects=objects)))


class Brokers(Files):
    """The layout ``local-tiered`` as brokers leave it."""

    @property
    def segments(self) -> list[Path]:
        return [path for path in sorted(self.store.rglob("*.log")) if path.parent.name.startswith("payments-0-")]

    def read(self, number: int, kind: ObjectKind) -> bytes:
        path = self.segments[number].with_suffix(f".{kind}")
        return path.read_bytes() if path.exists() else b""

    def write(self, number: int, kind: ObjectKind, body: bytes) -> None:
        self.segments[number].with_suffix(f".{kind}").write_bytes(body)


class Plugins(Files):
    """The layout ``aiven``, written by the plugin or by us; what is encrypted is read and changed by our own code."""

    NAMES: Final = {ObjectKind.SNAPSHOT: "producerSnapshot", ObjectKind.TXN_INDEX: "transaction"}

    def __init__(self, store: Path, private: Path | None) -> None:
        super().__init__(store)
        self.private = private

    @property
    def segments(self) -> list[Path]:
        return aiven_files.manifests(self.store)

    def read(self, number: int, kind: ObjectKind) -> bytes:
        if self.private is None:
            return aiven_files.index(self.segments[number], self.NAMES[kind])
        from resnap.storage.layouts.aiven.members import SegmentDecoder  # noqa: PLC0415

        segment = SegmentDecoder.of(self._manifest(number), self._keys())
        place = segment.index_range(kind)
        indexes = self.segments[number].with_suffix(".indexes").read_bytes()
        return b"" if place is None else segment.index(indexes[place.position : place.position + place.size], place)

    def write(self, number: int, kind: ObjectKind, body: bytes) -> None:
        path = self.segments[number]
        if self.private is None:
            aiven_files.put_index(path, self.NAMES[kind], body)
            return
        from resnap.storage.layouts.aiven.layout import with_indexes  # noqa: PLC0415

        beside = path.with_suffix(".indexes")
        indexes, manifest = with_indexes(path.read_bytes(), beside.read_bytes(), {kind: body}, self._keys())
        beside.write_bytes(indexes)
        path.write_bytes(manifest)

    def _manifest(self, number: int) -> Any:
        from resnap.storage.layouts.aiven.manifest import read_manifest as read_aiven  # noqa: PLC0415

        return read_aiven(self.segments[number].read_bytes())

    def _keys(self) -> Any:
        from resnap.storage.encryption import KeyRing, RsaKey  # noqa: PLC0415
        from resnap.storage.key_file import KeyFile  # noqa: PLC0415

        assert self.private is not None
        return KeyRing((RsaKey("key1", KeyFile.read(self.private)),))


@dataclass
class Scene:
    """A store of one layout with two snapshots and a transaction index that are wrong."""

    files: Files
    command: Resnap
    options: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return self.files.store.as_uri()

    def repair(self, *arguments: object) -> Ran:
        return self.command("repair", self.url, *ENGINE, *self.options, *arguments)

    def verify(self) -> Ran:
        return self.command("verify", "--store", self.url, *ENGINE, *self.options)

    def damage(self) -> tuple[int, int, int]:
        """Make the second snapshot false-empty, the third false-partial, and an index lack a transaction."""
        files = self.files
        files.write(1, ObjectKind.SNAPSHOT, EMPTY_SNAPSHOT)
        entries = list(read_snapshot(files.read(2, ObjectKind.SNAPSHOT)).values())
        assert len(entries) > 1
        files.write(2, ObjectKind.SNAPSHOT, snapshot_bytes(entries[1:]))
        indexed = [n for n in range(len(files.segments)) if len(files.read(n, ObjectKind.TXN_INDEX)) > ABORTED.size]
        there = files.read(indexed[-1], ObjectKind.TXN_INDEX)
        files.write(indexed[-1], ObjectKind.TXN_INDEX, there[ABORTED.size :])
        return 1, 2, indexed[-1]

    def contents(self) -> dict[str, bytes]:
        """Return what lies in the store, except what no reader reads."""
        root = self.files.store
        paths = (path for path in sorted(root.rglob("*")) if path.is_file())
        return {str(path.relative_to(root)): path.read_bytes() for path in paths}

    def parts(self) -> list[tuple[dict[int, Any], list[tuple[Any, ...]]]]:
        """Return what all snapshots and transaction indexes say."""
        numbers = range(len(self.files.segments))
        return [
            (
                read_snapshot(self.files.read(n, ObjectKind.SNAPSHOT)),
                list(struct.iter_unpack(ABORTED.format, self.files.read(n, ObjectKind.TXN_INDEX))),
            )
            for n in numbers
        ]


LAYOUTS: Final = ("flat", "local-tiered", "brokers", "aiven", "plugin", "plugin-zstd", "plugin-encrypted")
PLUGIN_SETS: Final = {
    "plugin": "kafka-3.9.1-aiven-plain",
    "plugin-zstd": "kafka-3.9.1-aiven-zstd",
    "plugin-encrypted": "kafka-3.9.1-aiven-encrypted",
}
