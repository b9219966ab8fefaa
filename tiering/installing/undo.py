"""The undo manifest of an installation, written before the first change, and what undoes the installation by it.

The bytes of each file show whether it is the old one or the installed one. So a killed installation is undone as far as
it went, a killed undo is continued, and a complete one changes nothing. Any other bytes mean that the file was changed
since, and then nothing at all is touched.

The manifest names every file by its path below the log dir, with its old and its new state. Replaced bytes are saved
beside the manifest, in ``aside/`` under the same paths. It is JSON, readable for people, too.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.disk import (
    Disk,
    FileAttributes,
    FileDigest,
    attributes_of,
    digest_of_file,
    is_directory,
    is_there,
    read_chunks,
    remove_file,
    temporary_of,
    writable,
    write_file,
)
from resnap.storage.errors import (
    FileGoneError,
    FormatError,
    ResnapError,
    StalePlanError,
    UsageError,
    VerificationError,
    in_file,
)
from resnap.storage.json_values import parsing, typed
from resnap.storage.log.log_dir_lock import (
    ShutdownMark,
    find_shutdown_mark,
    lock_stopped_broker,
    refuse_running,
)
from resnap.storage.log.names import DirKind, FileKind, FileState, parse_file_name, parse_partition_dir_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
    attributes: FileAttributes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One file of the log dir; at least one of ``old`` and ``new`` exists."""

    place: str
    """``<topic>-<partition>/<N, 20 digits>.snapshot``, or ``.txnindex``."""
    old: OldFile | None
    """None: there was no such file."""
    new: FileDigest | None
    """None: the file no longer exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoManifest:
    """All changes of one installation."""

    log_dir: str
    """Absolute."""
    made_at_ms: int
    shutdown: ShutdownMark
    folder_times_ns: Mapping[str, int]
    """Modification time of each partition's directory before, by its name."""
    changes: tuple[FileChange, ...]
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
    hint = "give the manifest.json that `resnap install` named"
    with parsing("undo manifest", expected="what `resnap install` has written", hint=hint):
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


def _digest_row(digest: FileDigest) -> dict[str, object]:
    return {"sizeBytes": digest.size_bytes, "sha256": digest.sha256}


def _old_row(old: OldFile) -> dict[str, object]:
    attributes = old.attributes
    owner = {"userId": attributes.user_id, "groupId": attributes.group_id}
    return {**_digest_row(old.digest), "mode": attributes.mode, **owner, "mtimeNs": attributes.mtime_ns}


def _change(item: dict[str, Any]) -> FileChange:
    old, new = item["old"], item["new"]
    if old is None and new is None:
        raise ValueError("a change of nothing")
    return FileChange(
        place=_place(item["place"]),
        old=None if old is None else OldFile(digest=_digest(old), attributes=_attributes(old)),
        new=None if new is None else _digest(new),
    )


def _digest(item: dict[str, Any]) -> FileDigest:
    return FileDigest(size_bytes=typed(int, item["sizeBytes"]), sha256=typed(str, item["sha256"]))


def _attributes(item: dict[str, Any]) -> FileAttributes:
    mode = typed(int, item["mode"])
    if not 0 <= mode <= _MAX_MODE:
        raise ValueError(f"{mode} is not the mode of a file")
    return FileAttributes(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """One installation to undo."""

    manifest: UndoManifest
    folder: Path
    """Where the manifest is, and what was kept aside."""
    disk: Disk

    @property
    def log_dir(self) -> Path:
        """The log dir that was changed."""
        return Path(self.manifest.log_dir)

    def steps(self) -> list[FileChange]:
        """Return the changes to undo, in an order that may be interrupted anywhere; nothing is changed.

        Raises:
            StalePlanError: a file is neither the old nor the installed one, or a partition was deleted.
            LogDirError: a file cannot be read, or a saved file has changed.

        """
        gone = next((name for name in self.manifest.folder_times_ns if not is_directory(self.log_dir / name)), None)
        if gone is not None:
            raise StalePlanError(f"{self.log_dir / gone}: the partition's directory is no longer there",
                                 hint="what was installed is gone with it: restore the directory, or leave it"
                                 + self._where_old_files_are())  # fmt: skip
        return [change for change in reversed(self.manifest.changes) if self._judge(change)]

    def check(self) -> None:
        """Refuse if a broker has run since the installation.

        Raises:
            LogDirInUseError: a broker runs now.
            LogDirError: that cannot be determined.
            StalePlanError: a broker has run.

        """
        refuse_running(self.log_dir)
        if find_shutdown_mark(self.log_dir) != self.manifest.shutdown:
            raise StalePlanError(
                f"a broker has run on {self.log_dir} since the installation",
                hint="it has loaded these snapshots, may have tiered segments with them, and keeps them by itself now: "
                f"leave them{self._where_old_files_are()}",
            )

    def apply(self, done: Callable[[FileChange], None]) -> int:
        """Undo all changes, calling ``done`` after each; return their number.

        Raises:
            StalePlanError, LogDirError: as ``steps``, before anything is changed.
            LogDirError: a file cannot be changed; the same command continues from there.

        """
        self.check()
        with lock_stopped_broker(self.log_dir):
            self.check()
            steps = self.steps()
            self._remove_unfinished()
            for change in steps:
                self._undo(change)
                done(change)
            self._restore_times()
        return len(steps)

    def _judge(self, change: FileChange) -> bool:
        """Return whether the change must be undone: the file is the installed one, and not the old one already."""
        path = self.log_dir / change.place
        found = digest_of_file(path)
        as_before = found == (change.old.digest if change.old else None)
        if as_before and (change.old is None or attributes_of(path) == change.old.attributes):
            return False
        if not as_before and found != change.new:
            raise StalePlanError(
                f"{path} is neither what was there before the installation nor what it left",
                hint=f"it was changed since: leave it, or correct it by hand{self._where_old_files_are()}",
            )
        if change.old is not None:
            self._check_aside(change, change.old)
        return True

    def _check_aside(self, change: FileChange, old: OldFile) -> None:
        aside = self.folder / ASIDE / change.place
        if digest_of_file(aside) != old.digest:
            raise VerificationError(f"{aside} is not the file that was kept aside",
                                    hint="restore it from a backup: without it nothing is undone")  # fmt: skip

    def _where_old_files_are(self) -> str:
        has_old = any(change.old is not None for change in self.manifest.changes)
        return f"; what was replaced is in {self.folder / ASIDE}" if has_old else ""

    def _remove_unfinished(self) -> None:
        """Remove the file that a killed run was writing."""
        for change in self.manifest.changes:
            temporary = temporary_of(self.log_dir / change.place)
            if is_there(temporary):
                remove_file(self.disk, temporary)

    def _undo(self, change: FileChange) -> None:
        path, old = self.log_dir / change.place, change.old
        if old is None:
            remove_file(self.disk, path)
        else:
            write_file(self.disk, path, read_chunks(self.folder / ASIDE / change.place), old.attributes)

    def _restore_times(self) -> None:
        for name, mtime_ns in self.manifest.folder_times_ns.items():
            folder = self.log_dir / name
            if attributes_of(folder).mtime_ns != mtime_ns:
                with writable(folder):
                    self.disk.set_directory_time(folder, mtime_ns)
                    self.disk.sync_directory(folder)


def still_installed(undone: Undo) -> list[Path]:
    """Return the manifests beside that of ``undone`` that can be undone after it, the newest first."""
    found: list[tuple[int, Path]] = []
    for path in sorted(undone.folder.parent.glob(f"*/{MANIFEST_FILE}")):
        with suppress(ResnapError):  # a broker has run, or files were changed since: it cannot be undone
            other = read_undo(path, undone.disk)
            other.check()
            if other.folder != undone.folder and other.steps():
                found.append((other.manifest.made_at_ms, path))
    return [path for _, path in sorted(found, reverse=True)]


def read_undo(path: Path, disk: Disk) -> Undo:
    """Return the undo of the installation whose manifest is at ``path``, or in the folder ``path``.

    Raises:
        UsageError: there is no such file.
        LogDirError: it cannot be read.
        FormatError: it is not a manifest.

    """
    file = path / MANIFEST_FILE if is_directory(path) else path
    try:
        text = b"".join(read_chunks(file))
    except FileGoneError as error:
        raise UsageError(str(error), hint="give the manifest that `resnap install` named") from error
    with in_file(file):
        return Undo(manifest=read_manifest(text), folder=file.absolute().parent, disk=disk)
