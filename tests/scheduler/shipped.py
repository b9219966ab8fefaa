"""What must be in a store after a log was shipped, found out by reading bytes naively, without any code of ours.

Batch headers are taken apart by ``struct``, manifests by ``fastavro``, digests by ``hashlib``.
"""

from __future__ import annotations

import hashlib
import io
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fastavro

from resnap.storage.log.names import DirKind, parse_partition_dir_name
from tests.scheduler.files import bases, batch_positions, file_at

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BATCH: Final = struct.Struct(">qiibIhiqqqhii")
SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
MAGIC_POSITION: Final = 16
TRANSACTIONAL, CONTROL = 0x10, 0x20
NOTES: Final = (".resnap/retained/", ".resnap/topic/")
"""Where objects lie that are of no segment."""
TOMBSTONE: Final = b"deleted by resnap: this id is not used again\n"


class Range(NamedTuple):
    """A segment, as it is identified in a store."""

    topic: str
    partition: int
    base_offset: int
    next_base_offset: int


def eligible(log_dir: Path, readable_up_to: Mapping[str, int] | None = None) -> set[Range]:
    """Return the segments of ``log_dir`` that must be shipped, and no others may be.

    Of a partition that can be read up to an offset only, those for which nothing above need be known.
    """
    found: set[Range] = set()
    compacted = {name for name, _ in _checkpoint(log_dir / "cleaner-offset-checkpoint")}
    for name, high_watermark in _checkpoint(log_dir / "replication-offset-checkpoint"):
        partition = log_dir / name
        if partition.is_dir() and name not in compacted:
            topic, _, number = name.rpartition("-")
            end = min(high_watermark, (readable_up_to or {}).get(name, high_watermark))
            first, stable = _first_and_stable(partition, end)
            closed = zip(bases(partition), bases(partition)[1:], strict=False)
            found |= {Range(topic, int(number), *one) for one in closed if one[0] >= first and one[1] <= stable}
    return found


def _checkpoint(path: Path) -> list[tuple[str, int]]:
    rows = [line.split() for line in path.read_text().splitlines()[2:]]
    return [(f"{topic}-{number}", int(offset)) for topic, number, offset in rows]


def _first_and_stable(partition: Path, high_watermark: int) -> tuple[int, int]:
    """Return where the batches with leader epochs begin, and the last stable offset."""
    first, open_since = None, {}
    for base in bases(partition):
        data = file_at(partition, base, "log").read_bytes()
        for position in batch_positions(file_at(partition, base, "log")):
            if data[position + MAGIC_POSITION] != 2:
                continue
            offset, *_, attributes, _, _, _, producer_id, _, _, _ = BATCH.unpack_from(data, position)
            first = offset if first is None else first
            if offset >= high_watermark:
                break
            if attributes & CONTROL:
                open_since.pop(producer_id, None)
            elif attributes & TRANSACTIONAL:
                open_since.setdefault(producer_id, offset)
    return first or 0, min([high_watermark, *open_since.values()])


def files_of(root: Path) -> dict[str, bytes]:
    """Return the objects of a store that is a directory."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def manifests(objects: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Return all manifests by key."""
    there = without_tombstones(objects)
    return {key: _read_manifest(body) for key, body in there.items() if key.endswith(".manifest")}


def without_tombstones(objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return ``objects`` without what deleted segments have left, and notes."""
    there = {key: body for key, body in objects.items() if not key.startswith(NOTES)}
    return {key: body for key, body in there.items() if not (key.endswith(".manifest") and body == TOMBSTONE)}


def _read_manifest(body: bytes) -> dict[str, Any]:
    (record,) = fastavro.reader(io.BytesIO(body))
    assert isinstance(record, dict)
    return record


def check_store(objects: Mapping[str, bytes], *, strict: bool = True) -> set[Range]:
    """Check that each segment has one manifest that all objects match, and (if strict) that nothing else is there."""
    found: dict[Range, str] = {}
    named = set()
    for key, manifest in manifests(objects).items():
        one = Range(manifest["topic"], manifest["partition"], manifest["baseOffset"], manifest["nextBaseOffset"])
        assert found.setdefault(one, key) == key, f"{one} is under {key} and {found[one]}"
        named |= {key, *(entry["key"] for entry in manifest["objects"])}
        for entry in manifest["objects"]:
            body = objects[entry["key"]]
            assert (len(body), hashlib.sha256(body).hexdigest()) == (entry["sizeBytes"], entry["sha256"]), entry
    if strict:
        assert named == set(without_tombstones(objects))
    return set(found)


def check_content(objects: Mapping[str, bytes], log_dir: Path, expected: Path | None = None) -> None:
    """Check that what is shipped is what lies in ``log_dir``, and the snapshots are those of ``expected``, as maps."""
    for manifest in manifests(objects).values():
        name, base = f"{manifest['topic']}-{manifest['partition']}", manifest["baseOffset"]
        bodies = {entry["kind"]: objects[entry["key"]] for entry in manifest["objects"]}
        for kind in ("log", "index", "timeindex", "txnindex"):
            path = file_at(log_dir / name, base, kind)
            theirs = path.read_bytes() if path.exists() else b""
            assert bodies.get(kind, b"") == theirs, path
        if expected is not None:
            path = file_at(expected / name, manifest["nextBaseOffset"], "snapshot")
            assert entries(bodies["snapshot"]) == entries(path.read_bytes()), path


def entries(snapshot: bytes) -> dict[int, tuple[int, ...]]:
    """Return the entries of a snapshot by producer id."""
    return {entry[0]: entry for entry in SNAPSHOT_ENTRY.iter_unpack(snapshot[10:])}


def shipped_files(store: Path) -> dict[str, dict[str, str]]:
    """Return digests of what belongs into each partition's directory, by the manifests, without any code of ours."""
    found: dict[str, dict[str, str]] = {}
    objects = {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for one in sorted(manifests(objects).values(), key=lambda manifest: int(manifest["baseOffset"])):
        files = found.setdefault(f"{one['topic']}-{one['partition']}", {})
        for entry in one["objects"]:
            at = one["nextBaseOffset"] if entry["kind"] == "snapshot" else one["baseOffset"]
            is_checkpoint = entry["kind"] == "leader-epoch-checkpoint"
            files[entry["kind"] if is_checkpoint else f"{at:020d}.{entry['kind']}"] = entry["sha256"]
    return found


def check_whole(store: Path, log_dir: Path, *, killed: bool = False) -> set[str]:
    """Check that every partition in ``log_dir`` is whole, and that what is in the making waits for its removal."""
    wanted, whole = shipped_files(store), set()
    for path in log_dir.iterdir():
        name = parse_partition_dir_name(path.name) if path.is_dir() else None
        if name is not None and name.kind is DirKind.DELETE:
            assert killed, f"{path} was left"
        elif path.name in wanted:
            there = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in path.iterdir()}
            metadata = there.pop("partition.metadata", None)
            assert (path.name, there) == (path.name, wanted[path.name])
            assert metadata is None or "topic_id: " in (path / "partition.metadata").read_text()
            whole.add(path.name)
    return whole
