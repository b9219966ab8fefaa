"""What is done with the staged snapshots of a partition, by its directory, the staged files and ``installation``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from resnap.storage.disk import FileDigest, read_chunks
from resnap.storage.errors import FormatError, ObjectNotFoundError
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import HEADER, read_snapshot_array
from resnap.tiering.installing.fingerprint import Fingerprint, StagedPrint, Staleness, print_segment
from resnap.tiering.installing.installation import (
    Decision,
    Outcome,
    PartitionInstallation,
    broken_directory,
    decisions_beside,
    refuse_all,
    set_aside_at_log_end,
    with_tail_judged,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.installing.installation import Replace
    from resnap.tiering.installing.staging_area import StagingArea
    from resnap.tiering.inventory import PartitionInventory

Entries: TypeAlias = npt.NDArray[np.void]
"""Rows of ``ENTRY_DTYPE``."""


class _Staged(NamedTuple):
    """A staged file as it was read."""

    digest: FileDigest
    entries: Entries | None
    """None if no broker could load it."""
    problem: str | None


def decide(
    inventory: PartitionInventory, offsets: Iterable[int], area: StagingArea, asked: Collection[Replace]
) -> PartitionInstallation:
    """Decide what becomes of the staged snapshots at ``offsets`` of one partition; nothing is changed.

    Raises:
        LogDirError, StoreError: something cannot be read.

    """
    topic_partition = inventory.partition.topic_partition
    decisions = [_compared(one, inventory, area) for one in decisions_beside(offsets, inventory, asked)]
    broken = broken_directory(inventory)
    if broken is not None:
        return PartitionInstallation(topic_partition=topic_partition, decisions=tuple(refuse_all(decisions, *broken)))
    decisions = with_tail_judged(_fitting(decisions, inventory, area), inventory)
    aside = set_aside_at_log_end(decisions, inventory, log_end_is_empty=_log_end_is_empty(inventory), asked=asked)
    return PartitionInstallation(
        topic_partition=topic_partition, decisions=(*decisions, *([aside] if aside is not None else []))
    )


def _compared(decision: Decision, inventory: PartitionInventory, area: StagingArea) -> Decision:
    """Return ``decision``, or that the file beside the segment has the entries of the staged one already."""
    if decision.outcome not in {Outcome.GOOD_FILE_THERE, Outcome.REPLACED, Outcome.NOT_ASKED}:
        return decision
    path = _snapshot_path(inventory, decision.offset)
    there = _entries(b"".join(read_chunks(path)))
    if there is None:
        return decision
    staged = _read_staged(area, inventory.partition.topic_partition, decision.offset)
    if staged.entries is None or not _same(there, staged.entries):
        return decision
    return Decision(offset=decision.offset, outcome=Outcome.ALREADY_THERE, entries=len(there))


def _fitting(decisions: Sequence[Decision], inventory: PartitionInventory, area: StagingArea) -> list[Decision]:
    """Refuse what is not as the fingerprint says, or was not made from the log as it is now."""
    if not any(decision.is_change for decision in decisions):
        return list(decisions)
    topic_partition = inventory.partition.topic_partition
    try:
        fingerprint = area.fingerprint(topic_partition)
    except FormatError as error:
        return refuse_all(decisions, Outcome.NO_FINGERPRINT, str(error))
    if fingerprint is None:
        what = "nothing says which segments it was made from"
        return refuse_all(decisions, Outcome.NO_FINGERPRINT, what)
    staleness = _staleness(fingerprint, [d.offset for d in decisions if d.is_change], inventory)
    return [
        _checked(one, fingerprint.at(one.offset), staleness, topic_partition, area) if one.is_change else one
        for one in decisions
    ]


def _staleness(fingerprint: Fingerprint, offsets: Collection[int], inventory: PartitionInventory) -> Staleness:
    """Compare the closed segments that snapshots at ``offsets`` depend on with what they were."""
    segments = inventory.partition.segments
    start = min((known.depends_from for known in map(fingerprint.at, offsets) if known is not None), default=0)
    needed = [s for s in segments if start <= s.base_offset < max(offsets) and not s.is_active]
    present = [one for one in map(print_segment, needed) if one is not None]
    return Staleness(fingerprint, present, max(segments[0].base_offset, start))


def _checked(
    decision: Decision,
    print_: StagedPrint | None,
    staleness: Staleness,
    topic_partition: TopicPartition,
    area: StagingArea,
) -> Decision:
    if print_ is None:
        return replace(decision, outcome=Outcome.NO_FINGERPRINT, detail="the fingerprint beside it does not know it")
    changed = staleness.of(print_)
    if changed is not None:
        return replace(
            decision, outcome=Outcome.STALE, detail=f"segment {changed}, which it depends on, is another one now"
        )
    staged = _read_staged(area, topic_partition, decision.offset)
    if staged.digest != FileDigest(size_bytes=print_.size_bytes, sha256=print_.sha256):
        detail = "it is not what the fingerprint describes: the run that wrote it did not finish"
        return replace(decision, outcome=Outcome.STAGED_DAMAGED, detail=detail)
    if staged.entries is None:
        return replace(decision, outcome=Outcome.STAGED_DAMAGED, detail=staged.problem)
    return replace(
        decision,
        size_bytes=print_.size_bytes,
        sha256=print_.sha256,
        entries=len(staged.entries),
        left_out=print_.left_out,
    )


def _read_staged(area: StagingArea, topic_partition: TopicPartition, offset: int) -> _Staged:
    try:
        data = b"".join(area.chunks(topic_partition, offset))
    except ObjectNotFoundError as error:
        return _Staged(FileDigest(size_bytes=0, sha256=""), None, str(error))
    digest = FileDigest(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    try:
        return _Staged(digest, read_snapshot_array(data), None)
    except FormatError as error:
        return _Staged(digest, None, str(error))


def _entries(data: bytes) -> Entries | None:
    try:
        return read_snapshot_array(data)
    except FormatError:
        return None


def _same(one: Entries, other: Entries) -> bool:
    """Whether two snapshots have the same entries: a broker writes them in the order of a hash table."""
    if len(one) != len(other):
        return False
    in_order = (array[array["producer_id"].argsort(kind="stable")] for array in (one, other))
    return next(in_order).tobytes() == next(in_order).tobytes()


def _log_end_is_empty(inventory: PartitionInventory) -> bool:
    """Whether a valid snapshot without entries stands at the log end."""
    log_end = inventory.log_end
    if log_end is None or log_end.size_bytes != HEADER.size:
        return False
    found = _entries(b"".join(read_chunks(Path(log_end.path))))
    return found is not None and not len(found)


def _snapshot_path(inventory: PartitionInventory, offset: int) -> Path:
    return Path(str(inventory.partition.path)) / segment_name(offset, "snapshot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """One partition, and what is done there."""

    inventory: PartitionInventory
    installation: PartitionInstallation

    def path(self, offset: int) -> Path:
        """Return where the snapshot at ``offset`` stands."""
        return _snapshot_path(self.inventory, offset)
