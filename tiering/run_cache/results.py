"""The cached results of one partition, and the rules by which they are still valid.

They depend on unchanged closed segments, on the rules of the run, and, if they concern the whole directory, on
everything in it. Everything that has changed is computed again: a cached result saves reading, and never decides what
is correct. So it may be lost, or have another version, at any time.

A ``SegmentMark`` identifies a closed segment across runs without reading it. Offsets, size, modification time and inode
change with every change of a file, unless somebody restores them. So the headers of the first and the last batch count
as well; the end of the offset index shows where the last one is. Without a usable index, only the first one is used.
The time of an object in S3 is that of its last write and cannot be restored, so nothing of it is read; a ``file://``
URL is a file like any other.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from resnap.replay.plan import Coverage
from resnap.replay.results import BoundaryOutcome
from resnap.storage.errors import FormatError, LogDirError
from resnap.storage.layouts.aiven.members import member_of
from resnap.storage.log.indexes import OFFSET_ENTRY
from resnap.storage.log.partition_dir import LEADER_EPOCHS
from resnap.storage.log.producer_snapshot import NO_OPEN_TRANSACTION
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD
from resnap.storage.stores.urls import is_store_url, local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from resnap.replay.evidence import BoundaryEvidence, Evidence
    from resnap.replay.kernel.summary import Array
    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import BoundaryResult
    from resnap.replay.scan.splits import Anchor
    from resnap.replay.window import ReplayRules
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.log.producer_snapshot import LeftOut, SnapshotDigest
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources
    from resnap.tiering.judging.refusal import Refusal

KEPT_ANCHORS: Final = 8
HOPS: Final = 256
"""Batches that may follow the last one in the index; a broker adds an entry every 4 KiB or so."""
_UNREADABLE: Final = (FormatError, LogDirError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedBoundary:
    """A snapshot that an earlier replay wrote, or a broker's snapshot that it proved right."""

    offset: int
    as_of_ms: int
    made_ms: int
    coverage: Coverage
    window_start_offset: int | None
    known_from_offset: int
    entries: int
    digest: SnapshotDigest
    left_out: tuple[LeftOut, ...]
    evidence: str
    """Digest of the content of the small files, as far as the snapshot depends on it (``evidence_key``)."""
    proven: str | None = None
    """SHA-256 of the broker's own snapshot, where the replay gave the same."""

    def is_from(self, coverage: Coverage, start: int | None) -> bool:
        """Whether it has at least ``coverage``, read from ``start`` on; None: nothing need be read."""
        if self.coverage is Coverage.BEYOND_WINDOW and coverage is Coverage.WINDOW:
            return False
        return start is None or (self.window_start_offset is not None and self.window_start_offset <= start)

    def is_planned_alike(self, evidence: Evidence, log_start: int) -> bool:
        """Whether planning would today skip the same segments of a log that begins at ``log_start``."""
        if self.coverage is Coverage.BEYOND_WINDOW or self.window_start_offset is None:
            return evidence.shows_hanging_below(self.offset)
        return self.is_whole(log_start) or evidence.shows_hanging_below(self.window_start_offset)

    def is_whole(self, log_start: int) -> bool:
        """Whether everything below it in a log that begins at ``log_start`` was read for it."""
        start = self.window_start_offset
        return self.coverage is Coverage.WINDOW and start is not None and start <= log_start


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRefusals:
    """The refusals of a partition's last replay, after which nothing was left to ship."""

    store: str
    directory: str
    """Digest of everything in the directory (``directory_key``)."""
    high_watermark: int | None
    """As it was judged by."""
    made_ms: int
    refusals: tuple[Refusal, ...]
    last_stable_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedResults:
    """All cached results of one partition; may be empty."""

    rules: str = ""
    """Under which the boundaries and the refusals were found (``rules_key``)."""
    topic_id: str | None = None
    marks: tuple[SegmentMark, ...] = ()
    """Ascending; those that the boundaries and the anchors depend on."""
    directory: str = ""
    """Digest of everything in the directory when the boundaries were made."""
    boundaries: Mapping[int, CachedBoundary] = field(default_factory=dict)
    shown: tuple[int, ...] = ()
    """Producers that snapshots have shown to live on from below the first segment when the boundaries were made."""
    anchors: tuple[Anchor, ...] = ()
    refused: CachedRefusals | None = None

    def below(self, end: int | None) -> CachedResults:
        """Return the results that are still valid if the log is unchanged up to the offset ``end``, but not above."""
        end = -1 if end is None else end
        return replace(
            self,
            marks=tuple(mark for mark in self.marks if mark.next_base_offset <= end),
            boundaries={offset: known for offset, known in self.boundaries.items() if offset <= end},
            anchors=tuple(anchor for anchor in self.anchors if anchor.offset <= end and _is_there(anchor)),
        )

    def supported_by(self, evidence: Evidence, rules: ReplayRules, log_start: int) -> CachedResults:
        """Return this without the boundaries that a run would make differently now, in a changed directory.

        These are boundaries whose evidence has changed, those whose unread segments are no longer covered by a proof
        (unless ``rules`` limit how far back reading goes), and, under ``roll``, those whose next segment was active or
        has changed: it bounds the time of the roll. For producers from below the first segment only additional evidence
        counts: what snapshots have shown once stays true.
        """
        now = evidence.at(sorted(self.boundaries))
        below = _unexpired(evidence.below, rules)
        fresh = below[~np.isin(below["producer_id"], self.shown)]
        fresh_from = int(fresh["last_offset"].min()) if len(fresh) else None
        end = self.marks[-1].next_base_offset if self.marks else -1
        kept = {
            offset: known
            for offset, known in self.boundaries.items()
            if (offset < end or not rules.as_of.roll)
            and known.evidence == evidence_key(now.get(offset), known.coverage, known.window_start_offset)
            and (rules.max_reach_back_ms is not None or known.is_planned_alike(evidence, log_start))
            and not (known.window_start_offset and fresh_from is not None and fresh_from < known.window_start_offset)
        }
        return replace(self, boundaries=kept, shown=tuple(sorted({*self.shown, *below["producer_id"].tolist()})))

    def under(self, rules: ReplayRules) -> CachedResults:
        """Return the results that are valid under ``rules``, too.

        States are valid under any rules that ``replay.anchor`` accepts. A snapshot for an earlier T holds more than a
        later T requires, which does no harm: a loading broker drops expired entries.
        """
        if self.rules != rules_key(rules):
            # Results of reading without checksums do not count if checksums are requested.
            anchors = () if rules.verify_crc else self.anchors
            return replace(self, rules=rules_key(rules), boundaries={}, anchors=anchors, refused=None)
        as_of = rules.as_of
        kept = {
            offset: known for offset, known in self.boundaries.items() if as_of.roll or known.as_of_ms <= as_of.now_ms
        }
        return replace(self, boundaries=kept)


def _unexpired(below: Array, rules: ReplayRules) -> Array:
    """Return the entries of ``below`` that have not expired at a fixed T; all under ``roll``."""
    if rules.as_of.roll:
        return below
    kept_after_ms = rules.kept_after_ms(rules.as_of.now_ms)
    kept: Array = below[
        (below["timestamp"] > kept_after_ms) | (below["current_txn_first_offset"] != NO_OPEN_TRANSACTION)
    ]
    return kept


def is_cached_as_well(still_valid: Iterable[CachedBoundary], plan: PartitionPlan) -> bool:
    """Whether everything ``plan`` would write is ``still_valid``, read from at least as far back.

    If the reach of reading is limited, a boundary may benefit from what is read for others, and from what is in doubt
    there. So all of them are still valid, or none.
    """
    known = {boundary.offset: boundary for boundary in still_valid}
    starts: dict[int, int | None] = {boundary.offset: None for boundary in plan.idle}
    for run in plan.runs:
        starts |= dict.fromkeys((boundary.offset for boundary in run.boundaries), plan.segments[run.start].base_offset)
    return all(
        boundary.offset in known and known[boundary.offset].is_from(boundary.coverage, starts[boundary.offset])
        for boundary in plan.boundaries
    )


def cached_boundary(result: BoundaryResult, made_ms: int) -> CachedBoundary | None:
    """Return what to cache of ``result``; None if it made no snapshot."""
    if result.outcome is not BoundaryOutcome.REBUILT or result.digest is None:
        return None
    comparison = result.comparison
    return CachedBoundary(
        offset=result.offset,
        as_of_ms=result.as_of_ms,
        made_ms=made_ms,
        coverage=result.coverage,
        window_start_offset=result.window_start_offset,
        known_from_offset=result.known_from_offset,
        entries=result.entries,
        digest=result.digest,
        left_out=result.left_out,
        evidence=evidence_key(result.boundary.evidence, result.coverage, result.window_start_offset),
        proven=comparison.sha256 if comparison is not None and comparison.verdict == "proven" else None,
    )


def nearest_and_farther(anchors: Iterable[Anchor]) -> tuple[Anchor, ...]:
    """Return the anchors to keep, one per offset, later ones winning: the newest, and some with growing gaps."""
    newest_first = sorted({anchor.offset: anchor for anchor in anchors}.values(), key=lambda one: -one.offset)
    kept: list[Anchor] = []
    for anchor in newest_first:
        near = len(kept) < 2  # noqa: PLR2004 - the newest, and one below the segment that may be made once more
        if near or newest_first[0].offset - anchor.offset >= 2 * (newest_first[0].offset - kept[-1].offset):
            kept.append(anchor)
    return tuple(kept[:KEPT_ANCHORS])


@lru_cache(maxsize=4)
def rules_key(rules: ReplayRules) -> str:
    """Return the part of ``rules`` that decides the content of a snapshot, except T."""
    values = asdict(rules) | {"as_of": rules.as_of.roll, "expiry": rules.expiry, "history": rules.written_under}
    return json.dumps({name: value for name, value in values.items() if name != "full"}, sort_keys=True)


def evidence_key(known: BoundaryEvidence | None, coverage: Coverage, read_from: int | None) -> str:
    """Return a digest of the evidence at a boundary that a replay from the offset ``read_from`` on depends on.

    In a log that was read from its first offset only the batches count. In any other, evidence may also settle doubts
    about a transaction that seemed to begin within the offsets read.
    """
    if known is None or (coverage is Coverage.WINDOW and read_from == 0):
        return ""
    facts = [
        (pid, first, _epoch_shown(known, pid), known.at_boundary.get(pid, known.by_index.get(pid)))
        for pid, first in sorted(known.spanning.items())
    ]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16] if facts else ""


def _epoch_shown(known: BoundaryEvidence, producer_id: int) -> tuple[int, int] | None:
    """Return what a later snapshot shows of a transaction, without what changes while the transaction continues."""
    entry = known.shown.get(producer_id)
    return None if entry is None else (entry.current_txn_first_offset, entry.coordinator_epoch)


def directory_key(partition: PartitionDir) -> str:
    """Return a digest of everything that listing the directory and reading the checkpoints shows."""
    return hashlib.sha256(f"{partition!r}{_leader_epochs(partition)}".encode()).hexdigest()


def _leader_epochs(partition: PartitionDir) -> tuple[int, int] | None:
    if not isinstance(partition.path, Path):
        return None
    try:
        status = (partition.path / LEADER_EPOCHS).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _is_there(anchor: Anchor) -> bool:
    """Whether the files of the state have the expected length; reading them checks the rest."""
    try:
        return all(Path(state.path).stat().st_size == state.size_bytes for state in anchor.states)
    except OSError:
        return False


class SegmentMark(NamedTuple):
    """The mark of one closed segment."""

    base_offset: int
    next_base_offset: int
    size_bytes: int
    mtime_ns: int
    inode: int
    headers: str
    """Digest of the first and the last batch header; empty for an object that is not a file."""


def mark_of(segment: Segment, sources: Sources) -> SegmentMark | None:
    """Return the mark of ``segment``; None if it is active, or cannot be read."""
    if segment.next_base_offset is None:
        return None
    try:
        headers = _headers(segment, sources) if _is_file(segment.path) else ""
    except _UNREADABLE:
        return None
    return SegmentMark(
        segment.base_offset, segment.next_base_offset, segment.size_bytes, segment.mtime_ns, segment.inode, headers
    )


def unchanged_up_to(segments: Iterable[Segment], marks: Sequence[SegmentMark], sources: Sources) -> int | None:
    """Return the offset up to which the log still matches ``marks``; None if none of it does.

    Retention may have deleted the oldest segments; the first existing one must be marked, and so must all up to the
    returned offset, unchanged.
    """
    known = {mark.base_offset: mark for mark in marks}
    end: int | None = None
    for segment in segments:
        mark = known.get(segment.base_offset)
        if mark is None or not _looks_like(segment, mark) or mark_of(segment, sources) != mark:
            break
        end = mark.next_base_offset
    return end


def _looks_like(segment: Segment, mark: SegmentMark) -> bool:
    facts = (segment.next_base_offset, segment.size_bytes, segment.mtime_ns, segment.inode)
    return facts == (mark.next_base_offset, mark.size_bytes, mark.mtime_ns, mark.inode)


def _is_file(locator: str) -> bool:
    return member_of(locator) is None and (not is_store_url(locator) or local_path(locator) is not None)


def _headers(segment: Segment, sources: Sources) -> str:
    with sources.open(segment.path) as log:
        digest = hashlib.blake2b(log.read(0, HEADER.size), digest_size=16)
        position = _last_indexed(segment, sources)
        if position is not None:
            digest.update(_last_header(log, position))
    return digest.hexdigest()


def _last_indexed(segment: Segment, sources: Sources) -> int | None:
    """Return the position of the last batch in the offset index; None if it has no valid one."""
    if not segment.index_bytes or segment.index_bytes % OFFSET_ENTRY.size:
        return None
    with sources.open(segment.sibling("index")) as index:
        tail = index.read(max(segment.index_bytes - OFFSET_ENTRY.size, 0), OFFSET_ENTRY.size)
    position = int(OFFSET_ENTRY.unpack(tail)[1]) if len(tail) == OFFSET_ENTRY.size else 0
    return position if 0 < position < segment.size_bytes else None


def _last_header(log: RangeReader, position: int) -> bytes:
    """Return the header of the last batch, by hopping from the one at ``position``."""
    header = log.read(position, HEADER.size)
    for _ in range(HOPS):
        position += LOG_OVERHEAD + int.from_bytes(header[8:LOG_OVERHEAD], "big", signed=True)
        following = log.read(position, HEADER.size) if position + HEADER.size <= log.size_bytes else b""
        if len(following) < HEADER.size or int.from_bytes(following[8:LOG_OVERHEAD], "big", signed=True) <= 0:
            break
        header = following
    return header
