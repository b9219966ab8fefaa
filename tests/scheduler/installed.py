"""A log dir that lost snapshots, what was regenerated for it, and how to read both without any code of ours."""

from __future__ import annotations

import hashlib
import os
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resnap.scheduler.cli import run
from tests.fixture_sets import copied_tree
from tests.scheduler.shipped import entries

if TYPE_CHECKING:
    from pathlib import Path

SET: Final = "kafka-2.7.2-then-3.9.1"
INSTALLED: Final = 31
"""Lost boundaries of the set that are not of a compacted partition."""


class Look(NamedTuple):
    """Everything about a file or a folder that an undoing must bring back."""

    digest: str
    mode: int
    user_id: int
    group_id: int
    mtime_ns: int
    size_bytes: int


def look(root: Path) -> dict[str, Look]:
    """Return what lies below ``root``, itself included, by path."""
    return {str(path.relative_to(root)): _look(path) for path in (root, *sorted(root.rglob("*")))}


def _look(path: Path) -> Look:
    status = path.lstat()
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    size = status.st_size if path.is_file() else 0
    return Look(digest, status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, size)


def regenerate(data: Path, into: Path, *flags: str) -> None:
    """Make the lost snapshots of ``data`` as their broker would have written them."""
    os.environ.pop("RESNAP_ENGINE", None)
    arguments = ("regenerate", str(data), "--into", str(into), "--as-of", "roll", "--engine", "local", "--quiet")
    assert run([*arguments, "--output", "ndjson", *flags]) == 0


def staged_in(staged: Path) -> dict[str, bytes]:
    """Return the staged snapshots by their place."""
    return {str(path.relative_to(staged)): path.read_bytes() for path in sorted(staged.rglob("*.snapshot"))}


def check_install(log_dir: Path, before: dict[str, Look], staged: Path, *, killed: bool = False) -> set[str]:
    """Check that nothing but whole staged snapshots came into ``log_dir``; return the places of those that did.

    After a kill, files in the making and a lock file may lie about, too.
    """
    made = set()
    wanted = staged_in(staged)
    for place, now in look(log_dir).items():
        was = before.get(place)
        if now.digest == "folder" or now == was:
            continue
        if killed and (place.endswith(".snapshot.tmp") or place in {".lock", ".lock.tmp"}):
            continue
        body = (log_dir / place).read_bytes()
        assert body == wanted[place], f"{place} is neither as it was nor what was staged"
        assert len(entries(body)) == struct.unpack_from(">i", body, 6)[0]
        made.add(place)
    gone = before.keys() - look(log_dir).keys()
    assert {place for place in gone if not place.endswith(".snapshot")} == set()
    return made


def manifest_of(ran: Any) -> str:
    """Return the manifest that a run in JSON has named."""
    manifest: str = ran.document["undoManifest"]
    return manifest


def outcomes(document: dict[str, list[dict[str, object]]], place: str) -> dict[int, str]:
    """Return the outcome by offset of the partition whose directory is ``place``."""
    [row] = [one for one in document["partitions"] if f"{one['topic']}-{one['partition']}" == place]
    return {snapshot["offset"]: snapshot["outcome"] for snapshot in row["snapshots"]}  # type: ignore[attr-defined]


def lose_all_snapshots(partition: Path) -> None:
    for path in partition.glob("*.snapshot"):
        path.unlink()


def delete_oldest(partition: Path, count: int) -> None:
    """Delete the oldest segments with all their files, as retention does."""
    for log in sorted(partition.glob("*.log"))[:count]:
        for path in partition.glob(f"{log.stem}.*"):
            path.unlink()


def copied(source: Path, target: Path) -> Path:
    return copied_tree(source, target)
