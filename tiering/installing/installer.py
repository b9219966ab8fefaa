"""Installs staged snapshots beside the segments of a log dir whose lock the caller holds.

Everything is decided first (``install_survey``), then written to the undo manifest together with the replaced bytes,
then done, one file at a time. Wherever the run ends, each file is either old or new; the next run does the rest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import (
    Dress,
    FileDigest,
    digest_of_file,
    dress_of,
    make_directories,
    read_chunks,
    remove_file,
    write_file,
)
from resnap.storage.errors import LogDirError, VerificationError
from resnap.storage.log.names import FileKind
from resnap.tiering.installing.installation import Decision, Outcome
from resnap.tiering.installing.undo_manifest import (
    ASIDE,
    MANIFEST_FILE,
    Change,
    OldFile,
    ShutdownMark,
    UndoManifest,
    write_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.storage.disk import Disk
    from resnap.tiering.installing.install_survey import Surveyed
    from resnap.tiering.installing.staging_area import StagingArea

KEPT_MODE: Final = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """Makes the decided changes in a log dir, after writing how to undo them."""

    log_dir: Path
    area: StagingArea
    disk: Disk

    def write_down(
        self, surveyed: Sequence[Surveyed], mark: ShutdownMark, undo_dir: Path, *, now_ms: int
    ) -> UndoManifest:
        """Copy the bytes that will be replaced, then write the manifest, into the empty ``undo_dir``, durably.

        Raises:
            LogDirError: it cannot be written, or a link is in a file's place; nothing in the log dir has been changed.

        """
        changes = [
            self._change(partition, decision, undo_dir)
            for partition in surveyed
            for decision in partition.installation.changes
        ]
        changing = [partition.inventory.partition for partition in surveyed if partition.installation.changes]
        folders = [Path(str(partition.path)) for partition in changing]
        manifest = UndoManifest(
            log_dir=str(self.log_dir),
            made_at_ms=now_ms,
            shutdown=mark,
            folder_times_ns={folder.name: dress_of(folder).mtime_ns or 0 for folder in folders},
            changes=tuple(changes),
        )
        write_file(self.disk, undo_dir / MANIFEST_FILE, [write_manifest(manifest)], _kept(undo_dir))
        return manifest

    def _change(self, surveyed: Surveyed, decision: Decision, undo_dir: Path) -> Change:
        path = surveyed.path(decision)
        if path.is_symlink():
            raise LogDirError(f"{path} is a symbolic link, expected a file of the broker or none",
                              hint="put the file there that the link names, or remove the link")  # fmt: skip
        place = f"{path.parent.name}/{path.name}"
        old = None
        if decision.outcome is not Outcome.INSTALLED:
            aside = undo_dir / ASIDE / place
            make_directories(self.disk, aside.parent)
            dress = dress_of(path)
            old = OldFile(digest=write_file(self.disk, aside, read_chunks(path), _kept(undo_dir)), dress=dress)
        digest = None
        if decision.sha256 is not None:
            digest = FileDigest(size_bytes=decision.size_bytes, sha256=decision.sha256)
        return Change(place=place, old=old, new=digest)

    def apply(self, surveyed: Surveyed, done: Callable[[Decision], None]) -> None:
        """Make the changes of one partition; ``done`` is called for each.

        Raises:
            LogDirError: a file cannot be written; those before it stay.
            StoreError, VerificationError: a staged file can no longer be read, or has changed.

        """
        for decision in surveyed.installation.changes:
            if decision.outcome is Outcome.SET_ASIDE:
                remove_file(self.disk, surveyed.path(decision))
            else:
                self._put(surveyed, decision, replace(dress_of(_segment_of(surveyed, decision)), mtime_ns=None))
            done(decision)

    def _put(self, surveyed: Surveyed, decision: Decision, dress: Dress) -> None:
        path, topic_partition = surveyed.path(decision), surveyed.installation.topic_partition
        if decision.outcome is Outcome.INSTALLED and digest_of_file(path) is not None:
            hint = "another process changes the log dir despite its lock: find out which, then run again"
            raise LogDirError(f"{path} was created meanwhile", hint=hint)
        chunks = self.area.chunks(topic_partition, decision.offset, decision.kind)
        locator = self.area.locator(topic_partition, decision.offset, decision.kind)
        write_file(self.disk, path, _as_decided(chunks, decision, locator), dress)


def _segment_of(surveyed: Surveyed, decision: Decision) -> Path:
    """Return the log whose owner and mode a new file gets: of the segment below a snapshot, or of an index."""
    segments = surveyed.inventory.partition.segments
    is_index = decision.kind is FileKind.TXNINDEX
    below = (one for one in reversed(segments) if one.base_offset < decision.offset + is_index)
    return Path(next(below, segments[0]).path)


def _as_decided(chunks: Iterable[bytes], decision: Decision, locator: str) -> Iterator[bytes]:
    """Yield the bytes of a staged file, and fail at its end if they have changed since the decision."""
    sha256 = hashlib.sha256()
    for chunk in chunks:
        sha256.update(chunk)
        yield chunk
    if sha256.hexdigest() != decision.sha256:
        raise VerificationError(f"{locator} has changed since it was checked", hint="run the same command again")


def _kept(undo_dir: Path) -> Dress:
    """Return owner and mode for saved files: those of the folder, so that their owner can read them."""
    return replace(dress_of(undo_dir), mode=KEPT_MODE, mtime_ns=None)
