"""The small files of a segment in the layout ``aiven``, changed without any code of ours: plain ones only."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

NAMES: Final = ("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction")
"""What a manifest calls them, in the order in which they lie in the object."""
ABORTED: Final = struct.Struct(">hqqqq")
"""An entry of a transaction index: version, producer id, first offset, offset of the marker, last stable offset."""


def manifests(store: Path, partition: int = 0) -> list[Path]:
    """Return the manifests of one partition, by base offset."""
    return sorted(path for path in store.rglob("*.rsm-manifest") if path.parent.name == str(partition))


def read(manifest: Path) -> dict[str, Any]:
    """Return what a manifest says."""
    said: dict[str, Any] = json.loads(manifest.read_text())
    return said


def write(manifest: Path, said: dict[str, Any]) -> None:
    """Make a manifest say something else."""
    manifest.write_text(json.dumps(said, separators=(",", ":")))


def index(manifest: Path, name: str) -> bytes:
    """Return one of the small files."""
    place = read(manifest)["segmentIndexes"].get(name)
    if place is None:
        return b""
    whole = manifest.with_suffix(".indexes").read_bytes()
    return whole[place["position"] : place["position"] + place["size"]]


def put_index(manifest: Path, name: str, data: bytes) -> None:
    """Replace one of the small files, and say in the manifest where they lie now."""
    parts = {one: index(manifest, one) for one in NAMES} | {name: data}
    said, position = read(manifest), 0
    for one, part in parts.items():
        if part or said["segmentIndexes"].get(one) is not None:
            said["segmentIndexes"][one] = {"position": position, "size": len(part)}
        position += len(part)
    manifest.with_suffix(".indexes").write_bytes(b"".join(parts.values()))
    write(manifest, said)


def aborted(manifest: Path) -> list[list[int]]:
    """Return the entries of the transaction index."""
    return [list(entry) for entry in ABORTED.iter_unpack(index(manifest, "transaction"))]


def put_aborted(manifest: Path, entries: list[list[int]]) -> None:
    """Replace the entries of the transaction index."""
    put_index(manifest, "transaction", b"".join(ABORTED.pack(*entry) for entry in entries))
