"""Decides what becomes of each staged snapshot, and installs them in a log dir whose lock the caller holds.

Everything is decided first (``decide``), from the partition's directory, the staged files and the rules; then written
to the undo manifest together with the replaced bytes, then done, one file at a time. Wherever the run ends, each file
is either old or new; the next run does the rest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from resnap.storage.disk import (
    FileAttributes,
    FileDigest,
    attributes_of,
    digest_of_file,
    make_directories,
    read_chunks,
    remove_file,
    write_file,
)
from resnap.storage.errors import FormatError, LogDirError, VerificationError
from resnap.storage.log.names import FileKind, segment_name
from resnap.storage.log.producer_snapshot import HEADER, read_snapshot_array
from resnap.storage.words import instant
from resnap.tiering.installing.installation import (
    NOT_PROVEN_WRONG,
    Decision,
    Outcome,
    PartitionInstallation,
    Replace,
    broken_directory,
    decisions_beside,
    first_recovered,
    refuse_above,
    refuse_all,
    set_aside_at_log_end,
    with_tail_judged,
)
from resnap.tiering.installing.staging_area import Fingerprint, Staleness, print_segment
from resnap.tiering.installing.undo import (
    ASIDE,
    MANIFEST_FILE,
    FileChange,
    OldFile,
    UndoManifest,
    write_manifest,
)
from resnap.tiering.judging.inventory import with_beginning, with_log_end
from resnap.tiering.judging.known_faults import MOST_READABLE_ENTRIES, excess_active_ms, unreadable_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from resnap.storage.disk import Disk
    from resnap.storage.kafka_release import Release
    from resnap.storage.log.log_dir_lock import ShutdownMark
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.installing.staging_area import StagingArea
    from resnap.tiering.judging.inventory import PartitionInventory

Entries: TypeAlias = npt.NDArray[np.void]
"""Rows of ``ENTRY_DTYPE``."""
_UNFINISHED: Final = (
    "it is not what the fingerprint describes: the run that wrote it did not finish, or it was changed since"
)


def decide(
    inventory: PartitionInventory,
    offsets: Iterable[int],
    area: StagingArea,
    asked: Collection[Replace],
    releases: Callable[[], Sequence[Release]] = tuple,
) -> PartitionInstallation:
    """Decide what to do with the staged snapshots at ``offsets`` of one partition; nothing is changed.

    ``releases`` returns those of the broker, none where they are not known; it is called only for a snapshot that not
    every release reads.

    Raises:
        LogDirError, StoreError: something cannot be read.

    """
    offsets = list(offsets)
    directory = inventory.partition
    inventory = with_beginning(inventory)
    if inventory.log_end is not None and inventory.log_end.offset in offsets:
        inventory = with_log_end(inventory)
    fingerprint, without = _fingerprint(area, directory.topic_partition)
    staged = _Staged(directory.topic_partition, inventory, area, fingerprint, asked)
    decisions = [staged.compare(one) for one in decisions_beside(offsets, inventory, asked) if staged.counts(one)]
    indexes = list(staged.indexes())
    broken = broken_directory(inventory)
    if broken is not None:
        refused = tuple(refuse_all([*decisions, *indexes], *broken))
        return PartitionInstallation(directory=directory, decisions=refused)
    recovered = first_recovered(inventory, [index.offset for index in indexes if index.is_change])
    decisions = refuse_above(decisions, recovered)
    if fingerprint is None:
        fitting = refuse_all([*decisions, *indexes], Outcome.NO_FINGERPRINT, without)
    else:
        fitting = staged.fitting([*decisions, *indexes], fingerprint)
    fitting = [staged.readable(decision, releases) for decision in fitting]
    decisions = with_tail_judged(fitting[: len(decisions)], inventory, recovered and recovered[0])
    aside = set_aside_at_log_end(decisions, inventory, log_end_is_empty=_log_end_is_empty(inventory), asked=asked)
    every = (*decisions, *([aside] if aside is not None else []), *fitting[len(decisions) :])
    return PartitionInstallation(directory=directory, decisions=every)


def _fingerprint(area: StagingArea, topic_partition: TopicPartition) -> tuple[Fingerprint | None, str]:
    """Return the fingerprint of what is staged of a partition, and why there is none."""
    try:
        return area.fingerprint(topic_partition), "the segments it was made from are not known"
    except FormatError as error:
        return None, str(error)


@dataclass(frozen=True, slots=True)
class _Staged:
    """What is staged of one partition, beside what its directory has."""

    topic_partition: TopicPartition
    inventory: PartitionInventory
    area: StagingArea
    fingerprint: Fingerprint | None
    asked: Collection[Replace]

    def counts(self, decision: Decision) -> bool:
        """Whether a staged snapshot is reported: one that no longer exists only if the log has a place for it."""
        is_gone = decision.outcome is Outcome.STALE and self.area.read(self.topic_partition, decision.offset) is None
        return not is_gone

    def indexes(self) -> Iterator[Decision]:
        """Yield the decisions on the staged transaction indexes according to the directory."""
        bases = {segment.base_offset for segment in self.inventory.partition.segments}
        for index in self.fingerprint.indexes if self.fingerprint is not None else ():
            there = digest_of_file(_path(self.inventory, index.base_offset, FileKind.TXNINDEX))
            needs = None
            if there == FileDigest(size_bytes=index.size_bytes, sha256=index.sha256):
                outcome, detail = Outcome.ALREADY_THERE, None
            elif index.base_offset not in bases:
                outcome, detail = Outcome.BELOW_LOG_START, "retention has taken its segment"
            elif Replace.TXNINDEX not in self.asked:
                outcome, needs = Outcome.NOT_ASKED, Replace.TXNINDEX
                detail = "the batches contradict the transaction index, or that there is none"
            else:
                outcome, detail = Outcome.INSTALLED if there is None else Outcome.REPLACED, None
            yield Decision(
                offset=index.base_offset, outcome=outcome, detail=detail, kind=FileKind.TXNINDEX, needs=needs
            )

    def compare(self, decision: Decision) -> Decision:
        """Return ``decision``, unless the valid file there has the entries of the staged one, or is proven wrong.

        Only the replay that made the staged one can prove that (``replay.comparison``).
        """
        if decision.outcome not in {Outcome.GOOD_FILE_THERE, Outcome.REPLACED, Outcome.NOT_ASKED}:
            return decision
        data = b"".join(read_chunks(_path(self.inventory, decision.offset)))
        there = _entries(data, decision.offset)
        if there is None:
            return decision
        _, staged, _ = self._read(decision.offset)
        if staged is not None and _same(there, staged):
            return Decision(offset=decision.offset, outcome=Outcome.ALREADY_THERE, entries=len(there))
        return self._judge(decision.offset, there, hashlib.sha256(data).hexdigest())

    def _judge(self, offset: int, there: Entries, sha256: str) -> Decision:
        """Decide about a valid snapshot that differs from the staged one, by what the replay has proven."""
        compared = None if self.fingerprint is None else self.fingerprint.compared.get(offset)
        if self.fingerprint is None or compared is None or compared.sha256 != sha256:
            what = "the one that is there is another one, which the replay was not compared with"
            return Decision(offset=offset, outcome=Outcome.NOT_ASKED, detail=what)
        needs = Replace.FALSE_PARTIAL if len(there) else Replace.FALSE_EMPTY
        what = f"the replay has proven the one that is there wrong: {needs}"
        staged = self.fingerprint.at(offset)
        is_whole = staged is not None and not staged.left_out
        flags = {needs, Replace.FALSE_PARTIAL} if is_whole else {needs} & {Replace.FALSE_EMPTY}
        if compared.is_wrong and not flags.isdisjoint(self.asked):
            return Decision(offset=offset, outcome=Outcome.REPLACED, detail=what)
        if compared.is_wrong and is_whole:
            return Decision(offset=offset, outcome=Outcome.NOT_ASKED, needs=needs, detail=what)
        return Decision(offset=offset, outcome=Outcome.GOOD_FILE_THERE, detail=NOT_PROVEN_WRONG)

    def fitting(self, decisions: Sequence[Decision], fingerprint: Fingerprint) -> list[Decision]:
        """Refuse staged files that do not match the fingerprint, or that were made from a log that has changed."""
        if not any(decision.is_change for decision in decisions):
            return list(decisions)
        staleness = self._staleness(fingerprint, [decision for decision in decisions if decision.is_change])
        check = {FileKind.SNAPSHOT: self._check, FileKind.TXNINDEX: self._checked_index}
        return [check[one.kind](one, fingerprint, staleness) if one.is_change else one for one in decisions]

    def _staleness(self, fingerprint: Fingerprint, changes: Sequence[Decision]) -> Staleness:
        """Compare the closed segments that ``changes`` depend on with their prints."""
        segments = self.inventory.partition.segments
        prints = (fingerprint.at(change.offset) for change in changes if change.kind is FileKind.SNAPSHOT)
        lowest = min((known.depends_from for known in prints if known is not None), default=segments[0].base_offset)
        start = min(lowest, *(decision.offset for decision in changes if decision.kind is FileKind.TXNINDEX), lowest)
        # A file at the base of a segment is of that segment, too, where it is an index, or nothing is below.
        ends = (change.offset + (change.kind is FileKind.TXNINDEX) for change in changes)
        end = max(*ends, segments[0].base_offset + 1)
        needed = [s for s in segments if start <= s.base_offset < end and not s.is_active]
        present = [segment for segment in map(print_segment, needed) if segment is not None]
        return Staleness(fingerprint, present, max(segments[0].base_offset, start))

    def _check(self, decision: Decision, fingerprint: Fingerprint, staleness: Staleness) -> Decision:
        print_ = fingerprint.at(decision.offset)
        if print_ is None:
            detail = "the fingerprint beside it does not list it"
            return replace(decision, outcome=Outcome.NO_FINGERPRINT, detail=detail)
        changed = staleness.of(print_)
        if changed is not None:
            detail = f"segment {changed}, which it depends on, has changed"
            return replace(decision, outcome=Outcome.STALE, detail=detail)
        digest, entries, problem = self._read(decision.offset)
        if digest is not None and digest != FileDigest(size_bytes=print_.size_bytes, sha256=print_.sha256):
            return replace(decision, outcome=Outcome.STAGED_DAMAGED, detail=_UNFINISHED)
        if entries is None:
            return replace(decision, outcome=Outcome.STAGED_DAMAGED, detail=problem)
        found = replace(decision, entries=len(entries), left_out=print_.left_out)
        return replace(found, size_bytes=print_.size_bytes, sha256=print_.sha256)

    def readable(self, decision: Decision, releases: Callable[[], Sequence[Release]]) -> Decision:
        """Return ``decision``, unless the broker would delete the snapshot that it is to get."""
        if not decision.is_change or (decision.entries or 0) <= MOST_READABLE_ENTRIES:
            return decision
        _, staged, _ = self._read(decision.offset)
        why = unreadable_snapshot(decision.entries or 0, releases())
        if why is None or staged is None:
            return decision
        since = instant(excess_active_ms(staged["timestamp"]))
        detail = f"{why}, and the last of those was active at {since}"
        return replace(decision, outcome=Outcome.TOO_MANY_PRODUCERS, detail=detail)

    def _checked_index(self, decision: Decision, fingerprint: Fingerprint, staleness: Staleness) -> Decision:
        index = fingerprint.index_at(decision.offset)
        if index is None:
            raise AssertionError(f"{self.topic_partition}: no transaction index is staged at {decision.offset}")
        if staleness.of_index(index) is not None:
            return replace(decision, outcome=Outcome.STALE, detail=f"segment {index.base_offset} has changed")
        data = self.area.read(self.topic_partition, index.base_offset, FileKind.TXNINDEX)
        if data is None:
            detail = _gone_text(self.area.locator(self.topic_partition, index.base_offset, FileKind.TXNINDEX))
            return replace(decision, outcome=Outcome.STAGED_DAMAGED, detail=detail)
        if FileDigest.of(data) != FileDigest(size_bytes=index.size_bytes, sha256=index.sha256):
            return replace(decision, outcome=Outcome.STAGED_DAMAGED, detail=_UNFINISHED)
        return replace(decision, size_bytes=index.size_bytes, sha256=index.sha256)

    def _read(self, offset: int) -> tuple[FileDigest | None, Entries | None, str | None]:
        """Return a staged file's digest, None if it is gone; its entries, None if no broker could load it; and why."""
        data = self.area.read(self.topic_partition, offset)
        if data is None:
            return None, None, _gone_text(self.area.locator(self.topic_partition, offset))
        digest = FileDigest.of(data)
        try:
            return digest, read_snapshot_array(data), None
        except FormatError as error:
            return digest, None, str(error)


def _gone_text(locator: str) -> str:
    return f"{locator} is gone, and the fingerprint beside it names it"


def _entries(data: bytes, offset: int | None = None) -> Entries | None:
    try:
        return read_snapshot_array(data, offset)
    except FormatError:
        return None


def _same(one: Entries, other: Entries) -> bool:
    """Whether two snapshots have the same entries, which a broker writes in the order of a hash table."""
    if len(one) != len(other):
        return False
    in_order = (array[array["producer_id"].argsort(kind="stable")] for array in (one, other))
    return next(in_order).tobytes() == next(in_order).tobytes()


def _log_end_is_empty(inventory: PartitionInventory) -> bool:
    """Whether the log end has a valid snapshot without entries."""
    log_end = inventory.log_end
    if log_end is None or log_end.size_bytes != HEADER.size:
        return False
    found = _entries(b"".join(read_chunks(Path(log_end.path))))
    return found is not None and not len(found)


def _path(inventory: PartitionInventory, offset: int, kind: FileKind = FileKind.SNAPSHOT) -> Path:
    return Path(str(inventory.partition.path)) / segment_name(offset, kind.value)


KEPT_MODE: Final = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """Makes the decided changes in a log dir, after writing how to undo them."""

    log_dir: Path
    area: StagingArea
    disk: Disk

    def write_down(
        self, partitions: Sequence[PartitionInstallation], mark: ShutdownMark, undo_dir: Path, *, now_ms: int
    ) -> UndoManifest:
        """Copy the bytes that will be replaced, then write the manifest, into the empty ``undo_dir``, durably.

        Raises:
            LogDirError: it cannot be written, or what is in a file's place is none; nothing in the log dir has been
                changed.

        """
        refuse_what_is_no_file(partitions)
        changes = [
            self._change(partition.path(decision), decision, undo_dir)
            for partition in partitions
            for decision in partition.changes
        ]
        folders = [Path(str(partition.directory.path)) for partition in partitions if partition.changes]
        manifest = UndoManifest(
            log_dir=str(self.log_dir),
            made_at_ms=now_ms,
            shutdown=mark,
            folder_times_ns={folder.name: attributes_of(folder).mtime_ns or 0 for folder in folders},
            changes=tuple(changes),
        )
        write_file(self.disk, undo_dir / MANIFEST_FILE, [write_manifest(manifest)], _attributes_of_saved(undo_dir))
        return manifest

    def _change(self, path: Path, decision: Decision, undo_dir: Path) -> FileChange:
        place = f"{path.parent.name}/{path.name}"
        old = None
        if decision.outcome is not Outcome.INSTALLED:
            aside = undo_dir / ASIDE / place
            make_directories(self.disk, aside.parent)
            attributes = attributes_of(path)
            digest = write_file(self.disk, aside, read_chunks(path), _attributes_of_saved(undo_dir))
            old = OldFile(digest=digest, attributes=attributes)
        new = None
        if decision.sha256 is not None:
            new = FileDigest(size_bytes=decision.size_bytes, sha256=decision.sha256)
        return FileChange(place=place, old=old, new=new)

    def apply(self, partition: PartitionInstallation, done: Callable[[Decision], None]) -> None:
        """Make the changes of one partition; ``done`` is called for each.

        Raises:
            LogDirError: a file cannot be written; those before it stay.
            StoreError, VerificationError: a staged file can no longer be read, or has changed.

        """
        for decision in partition.changes:
            if decision.outcome is Outcome.SET_ASIDE:
                remove_file(self.disk, partition.path(decision))
            else:
                self._put(partition, decision, replace(attributes_of(_segment_of(partition, decision)), mtime_ns=None))
            done(decision)

    def _put(self, partition: PartitionInstallation, decision: Decision, attributes: FileAttributes) -> None:
        path, topic_partition = partition.path(decision), partition.directory.topic_partition
        if decision.outcome is Outcome.INSTALLED and digest_of_file(path) is not None:
            hint = "another process changes the log dir despite its lock: find out which, then run again"
            raise LogDirError(f"{path} was created meanwhile", hint=hint)
        chunks = self.area.chunks(topic_partition, decision.offset, decision.kind)
        locator = self.area.locator(topic_partition, decision.offset, decision.kind)
        write_file(self.disk, path, _as_decided(chunks, decision, locator), attributes)


def refuse_what_is_no_file(partitions: Iterable[PartitionInstallation]) -> None:
    """Refuse changes in whose places there are links or directories.

    Raises:
        LogDirError: one is there.

    """
    for path in (partition.path(decision) for partition in partitions for decision in partition.changes):
        if path.is_symlink():
            raise LogDirError(f"{path} is a symbolic link, expected a file of the broker or none",
                              hint="put the file there that the link names, or remove the link")  # fmt: skip
        if path.is_dir():
            raise LogDirError(f"{path} is a directory, expected a file of the broker or none",
                              hint="move it to a place outside the log dir")  # fmt: skip


def _segment_of(partition: PartitionInstallation, decision: Decision) -> Path:
    """Return the log whose owner and mode a new file gets: of the segment below a snapshot, or of an index."""
    segments = partition.directory.segments
    is_index = decision.kind is FileKind.TXNINDEX
    below = (segment for segment in reversed(segments) if segment.base_offset < decision.offset + is_index)
    return Path(next(below, segments[0]).path)


def _as_decided(chunks: Iterable[bytes], decision: Decision, locator: str) -> Iterator[bytes]:
    """Yield the bytes of a staged file, and fail at its end if they have changed since the decision."""
    sha256 = hashlib.sha256()
    for chunk in chunks:
        sha256.update(chunk)
        yield chunk
    if sha256.hexdigest() != decision.sha256:
        raise VerificationError(f"{locator} has changed since it was checked", hint="run the same command again")


def _attributes_of_saved(undo_dir: Path) -> FileAttributes:
    """Return owner and mode for saved files: those of the folder, so that their owner can read them."""
    return replace(attributes_of(undo_dir), mode=KEPT_MODE, mtime_ns=None)
