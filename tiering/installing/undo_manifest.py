"""The undo manifest: the changes of an installation, written durably before the first change.

The manifest names every file by its path below the log dir, with its old and its new state. Replaced bytes are saved
beside the manifest, in ``aside/`` under the same paths. It is JSON, readable for people, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.disk import Dress, FileDigest
from resnap.storage.errors import FormatError, parser_says
from resnap.storage.json_values import typed
from resnap.storage.log.names import DirKind, FileKind, FileState, parse_file_name, parse_partition_dir_name

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST_FILE: Final = "manifest.json"
ASIDE: Final = "aside"
"""Folder beside the manifest with the files that were replaced or taken away."""
VERSION: Final = 1
_MAX_MODE: Final = 0o7777
_TOUCHED: Final = frozenset({FileKind.SNAPSHOT, FileKind.TXNINDEX})


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFile:
    """A file before the installation."""

    digest: FileDigest
    dress: Dress


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One file of the log dir; at least one of ``old`` and ``new`` exists."""

    place: str
    """``<topic>-<partition>/<N, 20 digits>.snapshot``, or ``.txnindex``."""
    old: OldFile | None
    """None: there was no such file."""
    new: FileDigest | None
    """None: the file no longer exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownMark:
    """The mark of the clean shutdown before the installation; a broker that has run leaves another one, or none."""

    digest: FileDigest
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoManifest:
    """All changes of one installation."""

    log_dir: str
    """Absolute."""
    made_at_ms: int
    shutdown: ShutdownMark
    folder_times_ns: Mapping[str, int]
    """Modification time of each partition's directory before, by its name."""
    changes: tuple[Change, ...]
    """In the order in which they are made."""


def write_manifest(manifest: UndoManifest) -> bytes:
    """Return ``manifest`` as JSON."""
    content = {
        "version": VERSION,
        "logDir": manifest.log_dir,
        "madeAtMs": manifest.made_at_ms,
        "cleanShutdown": {**_digest_row(manifest.shutdown.digest), "mtimeNs": manifest.shutdown.mtime_ns},
        "folders": dict(manifest.folder_times_ns),
        "changes": [
            {
                "place": change.place,
                "old": _old_row(change.old) if change.old else None,
                "new": _digest_row(change.new) if change.new else None,
            }
            for change in manifest.changes
        ],
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def read_manifest(text: bytes) -> UndoManifest:
    """Return the manifest that ``write_manifest`` wrote.

    Raises:
        FormatError: it is not a manifest, has another version, or names a file that is not a snapshot of a log dir.

    """
    try:
        content: dict[str, Any] = json.loads(text)
        if typed(int, content["version"]) != VERSION:
            raise FormatError("version of the undo manifest", position=0, expected=VERSION, found=content["version"])
        mark = content["cleanShutdown"]
        return UndoManifest(
            log_dir=_absolute(content["logDir"]),
            made_at_ms=typed(int, content["madeAtMs"]),
            shutdown=ShutdownMark(digest=_digest(mark), mtime_ns=typed(int, mark["mtimeNs"])),
            folder_times_ns={
                _folder(name): typed(int, at_ns) for name, at_ns in typed(dict, content["folders"]).items()
            },
            changes=tuple(_change(item) for item in typed(list, content["changes"])),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FormatError(
            "undo manifest", position=0, expected="what `resnap install` has written",
            found=parser_says(error), hint="give the manifest.json that `resnap install` named",
        ) from error  # fmt: skip


def _digest_row(digest: FileDigest) -> dict[str, object]:
    return {"sizeBytes": digest.size_bytes, "sha256": digest.sha256}


def _old_row(old: OldFile) -> dict[str, object]:
    dress = old.dress
    owner = {"userId": dress.user_id, "groupId": dress.group_id}
    return {**_digest_row(old.digest), "mode": dress.mode, **owner, "mtimeNs": dress.mtime_ns}


def _change(item: dict[str, Any]) -> Change:
    old, new = item["old"], item["new"]
    if old is None and new is None:
        raise ValueError("a change of nothing")
    return Change(
        place=_place(item["place"]),
        old=None if old is None else OldFile(digest=_digest(old), dress=_dress(old)),
        new=None if new is None else _digest(new),
    )


def _digest(item: dict[str, Any]) -> FileDigest:
    return FileDigest(size_bytes=typed(int, item["sizeBytes"]), sha256=typed(str, item["sha256"]))


def _dress(item: dict[str, Any]) -> Dress:
    mode = typed(int, item["mode"])
    if not 0 <= mode <= _MAX_MODE:
        raise ValueError(f"{mode} is not the mode of a file")
    return Dress(
        mode=mode,
        user_id=typed(int, item["userId"]),
        group_id=typed(int, item["groupId"]),
        mtime_ns=typed(int, item["mtimeNs"]),
    )


def _place(value: object) -> str:
    """Return a path below the log dir; only snapshots and transaction indexes of live partitions are allowed."""
    folder, _, name = typed(str, value).partition("/")
    file = parse_file_name(name)
    if file is None or file.kind not in _TOUCHED or file.state is not FileState.LIVE:
        raise ValueError(f"{value!r:.300} is not a snapshot or transaction index of a partition")
    return f"{_folder(folder)}/{name}"


def _folder(name: str) -> str:
    found = parse_partition_dir_name(name)
    if found is None or found.kind is not DirKind.LIVE:
        raise ValueError(f"{name!r:.300} is not a directory of a partition")
    return name


def _absolute(value: object) -> str:
    path = typed(str, value)
    if not path.startswith("/"):
        raise ValueError(f"{path!r:.300} is not absolute")
    return path
