"""Undoes an installation by its manifest: restores every file in name, bytes, mode, owner and time.

The bytes of each file show whether it is the old one or the installed one. So a killed installation is undone as far as
it went, a killed undo is continued, and a complete one changes nothing. Any other bytes mean that the file was changed
since, and then nothing at all is touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resnap.storage.disk import (
    Disk,
    digest_of_file,
    dress_of,
    is_directory,
    is_there,
    read_chunks,
    remove_file,
    temporary_of,
    writable,
    write_file,
)
from resnap.storage.errors import FileGoneError, StalePlanError, UsageError, VerificationError, in_file
from resnap.tiering.installing.stopped_broker import find_shutdown_mark, refuse_running, stopped
from resnap.tiering.installing.undo_manifest import ASIDE, MANIFEST_FILE, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.tiering.installing.undo_manifest import Change, OldFile, UndoManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """One installation to undo."""

    manifest: UndoManifest
    folder: Path
    """Where the manifest lies, and what was kept aside."""
    disk: Disk

    @property
    def log_dir(self) -> Path:
        """The log dir that was changed."""
        return Path(self.manifest.log_dir)

    def steps(self) -> list[Change]:
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

    def apply(self, done: Callable[[Change], None]) -> int:
        """Undo all changes, calling ``done`` after each; return their number.

        Raises:
            StalePlanError, LogDirError: as ``steps``, before anything is changed.
            LogDirError: a file cannot be changed; the same command continues from there.

        """
        self.check()
        with stopped(self.log_dir):
            self.check()
            steps = self.steps()
            self._remove_unfinished()
            for change in steps:
                self._undo(change)
                done(change)
            self._restore_times()
        return len(steps)

    def _judge(self, change: Change) -> bool:
        """Return whether the file is the installed one, and so must be undone; it may also be the old one."""
        path = self.log_dir / change.place
        found = digest_of_file(path)
        as_before = found == (change.old.digest if change.old else None)
        if as_before and (change.old is None or dress_of(path) == change.old.dress):
            return False
        if not as_before and found != change.new:
            raise StalePlanError(
                f"{path} is neither what was there before the installation nor what it left",
                hint=f"it was changed since: leave it, or correct it by hand{self._where_old_files_are()}",
            )
        if change.old is not None:
            self._check_aside(change, change.old)
        return True

    def _check_aside(self, change: Change, old: OldFile) -> None:
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

    def _undo(self, change: Change) -> None:
        path, old = self.log_dir / change.place, change.old
        if old is None:
            remove_file(self.disk, path)
        else:
            write_file(self.disk, path, read_chunks(self.folder / ASIDE / change.place), old.dress)

    def _restore_times(self) -> None:
        for name, mtime_ns in self.manifest.folder_times_ns.items():
            folder = self.log_dir / name
            if dress_of(folder).mtime_ns != mtime_ns:
                with writable(folder):
                    self.disk.set_directory_time(folder, mtime_ns)
                    self.disk.sync_directory(folder)


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
