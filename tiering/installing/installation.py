"""The rules for installing each staged snapshot; no file is touched here.

``N.snapshot`` is installed if it is missing and N is the base offset of a segment above the log start. A valid file is
never replaced; one that no broker could load, or that is empty although the replay found producers, only on request.

Two more rules follow from how a broker loads a log. It loads the newest snapshot that is not above the log end, and
replays the batches above it. So snapshots below the newest do not change its state, and one that becomes the newest
must lack no producer. And if it finds no snapshot file after a clean shutdown, it skips the replay; a single old one
would make it read everything above, so then the base offset of the last segment must have one.

Source: ``LogLoader.load``, ``UnifiedLog.rebuildProducerState``, ``ProducerStateManager.truncateAndReload``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.log.names import FileKind, segment_name
from resnap.storage.sources.files import PLAIN
from resnap.tiering.judging.broker_start import broker_start
from resnap.tiering.judging.inventory import SnapshotState
from resnap.tiering.judging.refusal import HINTS as REASON_HINTS
from resnap.tiering.judging.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.tiering.judging.inventory import BoundaryStatus, PartitionInventory


class Replace(StrEnum):
    """Which existing files may be replaced."""

    CORRUPT = "corrupt"
    """Snapshots that no broker could load, those of no bytes among them."""
    FALSE_EMPTY = "false-empty"
    """Valid ones without entries, where the replay found producers."""
    FALSE_PARTIAL = "false-partial"
    """All valid ones that the replay has proven wrong: without entries, without some of them, or with wrong ones."""
    TXNINDEX = "txnindex"
    """Transaction indexes that the batches contradict."""


class Outcome(StrEnum):
    """The decision on a staged snapshot; the values are codes that never change."""

    INSTALLED = "installed"
    """It was put beside its segment, where there was none."""
    REPLACED = "replaced"
    """It replaced a file that ``--replace`` names, which is kept aside."""
    SET_ASIDE = "set-aside"
    """A false-empty snapshot at the log end is removed: the broker makes it again from the one installed below it."""
    ALREADY_THERE = "already-there"
    """A valid file with the same entries is there; it stays."""
    GOOD_FILE_THERE = "good-file-there"
    """Another valid one, which the replay has not proven wrong; it stays."""
    NOT_ASKED = "not-asked"
    """A file is there that only ``--replace`` replaces, or that was written since the replay."""
    BELOW_LOG_START = "below-log-start"
    """Retention has taken the segment meanwhile: it is not needed."""
    STALE = "stale"
    """The log is not as it was when the snapshot was made (exit code 15)."""
    NO_FINGERPRINT = "no-fingerprint"
    """The log it was made from is not known (exit code 15)."""
    STAGED_DAMAGED = "staged-damaged"
    """It is not what ``resnap regenerate`` left (exit code 13)."""
    DIRECTORY_BUSY = "directory-busy"
    """A cleaner's or splitter's unfinished files are in the directory: its broker must repair it first."""
    INDEX_MISSING = "index-missing"
    """A broker that starts recovers a segment below it, which has no offset index, or a wrong transaction index, and
    deletes the snapshots above that; those of the last two segments it writes again."""
    STRAY = "stray"
    """A broker of KRaft takes the directory for a stray one, and would set it aside."""
    TAIL_UNCOVERED = "tail-uncovered"
    """The broker has found no snapshot, and none would be at the base of the last segment."""
    TAIL_INCOMPLETE = "tail-incomplete"
    """It would be the newest, though producers were excluded from it: the broker would continue from it."""
    TOO_MANY_PRODUCERS = "too-many-producers"
    """The broker would delete it, because it reads no snapshot of so many producers."""
    NOT_REACHED = "not-reached"
    """The run ended before it, by an error."""


CHANGES: Final = frozenset({Outcome.INSTALLED, Outcome.REPLACED, Outcome.SET_ASIDE})
REFUSALS: Final = frozenset({
    Outcome.STALE, Outcome.NO_FINGERPRINT, Outcome.STAGED_DAMAGED, Outcome.DIRECTORY_BUSY, Outcome.INDEX_MISSING,
    Outcome.STRAY, Outcome.TAIL_UNCOVERED, Outcome.TAIL_INCOMPLETE, Outcome.TOO_MANY_PRODUCERS,
})  # fmt: skip
"""Something is not as it should be: an error, where the others are an answer."""

NOT_PROVEN_WRONG: Final = "a valid one, which the replay has not proven wrong"
_AGAIN: Final = (
    "make it again from this log dir: start the broker, `resnap regenerate LOG_DIR --into STAGED`, stop the broker,"
    " install; what was made from the log dir of another broker fits that one alone"
)
_START_ONCE: Final = "start the broker and stop it once, which repairs that; then install"
HINTS: Final = {
    Outcome.STALE: _AGAIN,
    Outcome.NO_FINGERPRINT: "run `resnap regenerate` again into the same place: it leaves the fingerprint at its end",
    Outcome.STAGED_DAMAGED: "run `resnap regenerate` again into the same place, and let it finish",
    Outcome.DIRECTORY_BUSY: _START_ONCE,
    Outcome.INDEX_MISSING: REASON_HINTS[Reason.INDEX_MISSING],
    Outcome.STRAY: REASON_HINTS[Reason.STRAY],
    Outcome.TAIL_UNCOVERED: "run `resnap regenerate` again, for all boundaries of the partition, and install those",
    Outcome.TAIL_INCOMPLETE: "run `resnap regenerate --full`, or leave it: the broker continues from an older one",
    Outcome.TOO_MANY_PRODUCERS: "lower producer.id.expiration.ms, and make it again once enough have expired; where the"
    " broker is of a release that reads it, give --kafka-version",
    Outcome.NOT_ASKED: "--replace with corrupt, false-empty, false-partial or txnindex replaces it, and keeps the old",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision on one staged snapshot, or on one at the log end."""

    offset: int
    outcome: Outcome
    detail: str | None = None
    """The fact, with its numbers."""
    size_bytes: int = 0
    """Size of the staged file."""
    sha256: str | None = None
    entries: int | None = None
    left_out: int = 0
    kind: FileKind = FileKind.SNAPSHOT
    """Of a transaction index, ``offset`` is the base offset of its segment."""
    needs: Replace | None = None
    """What must be asked for, of one that was not."""

    @property
    def is_change(self) -> bool:
        """Whether it changes a file."""
        return self.outcome in CHANGES

    @property
    def hint(self) -> str | None:
        """The operator's next step."""
        is_unknown = self.outcome is Outcome.NOT_ASKED and self.needs is None
        return _AGAIN if is_unknown else HINTS.get(self.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInstallation:
    """The decisions on the staged snapshots of one partition."""

    directory: PartitionDir
    """As the log dir has it."""
    decisions: tuple[Decision, ...]
    """The decisions by offset."""

    def path(self, decision: Decision) -> Path:
        """Return the path of the file that ``decision`` concerns."""
        return Path(str(self.directory.path)) / segment_name(decision.offset, decision.kind.value)

    @property
    def changes(self) -> tuple[Decision, ...]:
        """Return the changes in an order in which a crash after any of them leaves the log end covered.

        The highest offset first; a file is set aside only once the broker has another one to load.
        """
        changes = [decision for decision in self.decisions if decision.is_change]
        return tuple(sorted(changes, key=lambda decision: (decision.outcome is Outcome.SET_ASIDE, -decision.offset)))


def replace_flags(needs: Iterable[Replace | None]) -> str:
    """Return the flags of `resnap install` that correspond to all of ``needs``."""
    named = set(needs)
    return " ".join(f"--replace {kind}" for kind in Replace if kind in named)


def decisions_beside(
    offsets: Iterable[int], inventory: PartitionInventory, asked: Collection[Replace]
) -> list[Decision]:
    """Return the decisions on staged snapshots at ``offsets`` that the directory alone allows.

    ``INSTALLED`` and ``REPLACED`` still depend on the staged file and its segments, and that of a valid file on whether
    the replay has proven it wrong.
    """
    partition = inventory.partition
    first = partition.segments[0].base_offset if partition.segments else 0
    log_start_offset = max(partition.log_start_offset, first)
    boundaries = {boundary.offset: boundary for boundary in inventory.boundaries}
    # Where the log begins in remote storage, the base of the first segment is a boundary, too (``with_beginning``).
    starts = {True: partition.log_start_offset, False: log_start_offset}
    return [_decision(offset, starts[offset in boundaries], boundaries.get(offset), asked) for offset in offsets]


def _decision(
    offset: int, log_start_offset: int, boundary: BoundaryStatus | None, asked: Collection[Replace]
) -> Decision:
    if offset <= log_start_offset:
        return Decision(offset=offset, outcome=Outcome.BELOW_LOG_START, detail=f"the log starts at {log_start_offset}")
    if boundary is None:
        return Decision(offset=offset, outcome=Outcome.STALE, detail=f"{offset} is no longer the base of a segment")
    return _beside(boundary, asked)


def _beside(boundary: BoundaryStatus, asked: Collection[Replace]) -> Decision:
    match boundary.state:
        case SnapshotState.MISSING:
            return Decision(offset=boundary.offset, outcome=Outcome.INSTALLED)
        case SnapshotState.PRESENT:
            return Decision(offset=boundary.offset, outcome=Outcome.GOOD_FILE_THERE, detail=NOT_PROVEN_WRONG)
        case SnapshotState.EMPTY:
            needs = Replace.FALSE_EMPTY
            detail = "the one that is there has no entries, the staged one has"
        case _:
            needs = Replace.CORRUPT
            detail = f"the one that is there is {boundary.state}"
    if needs in asked:
        return Decision(offset=boundary.offset, outcome=Outcome.REPLACED, detail=detail)
    return Decision(offset=boundary.offset, outcome=Outcome.NOT_ASKED, detail=detail, needs=needs)


def refuse_all(decisions: Iterable[Decision], outcome: Outcome, detail: str) -> list[Decision]:
    """Return ``decisions`` with every change refused for one reason."""
    return [replace(one, outcome=outcome, detail=detail) if one.is_change else one for one in decisions]


def broken_directory(inventory: PartitionInventory) -> tuple[Outcome, str] | None:
    """Return why nothing can be installed into the directory as it is; None if something can."""
    partition = inventory.partition
    if partition.stray is not None:
        return Outcome.STRAY, f"{partition.stray}: a broker would set the directory aside"
    if partition.unfinished:
        return Outcome.DIRECTORY_BUSY, f"{partition.unfinished[0]} is there: a cleaner or a split has not finished"
    return None


def first_recovered(inventory: PartitionInventory, replaced: Collection[int]) -> tuple[int, str] | None:
    """Return the first segment that a broker recovers when it starts, and why; None if it recovers none.

    ``replaced`` are the base offsets of the segments whose transaction indexes are replaced as well.
    """
    for base_offset, found in broker_start(inventory.partition, PLAIN).recovered.items():
        if found.reason is Reason.INDEX_MISSING or base_offset not in replaced:
            return base_offset, f"{found.detail}: a broker that starts deletes the snapshots above it"
    return None


def refuse_above(decisions: Iterable[Decision], recovered: tuple[int, str] | None) -> list[Decision]:
    """Return ``decisions`` with every snapshot refused that a broker deletes as it recovers a segment."""
    if recovered is None:
        return list(decisions)
    base_offset, detail = recovered
    return [
        one
        if one.offset <= base_offset or one.kind is not FileKind.SNAPSHOT
        else refuse_all([one], Outcome.INDEX_MISSING, detail)[0]
        for one in decisions
    ]


def with_tail_judged(
    decisions: Sequence[Decision], inventory: PartitionInventory, recovered: int | None = None
) -> list[Decision]:
    """Return ``decisions`` without those that would harm the state that a broker loads.

    ``recovered`` is the first segment that the broker recovers: it loads the newest snapshot up to there, replays what
    is above in any case, and without any snapshot all that is below, too.
    """
    judged = _without_incomplete_newest(decisions, inventory, recovered)
    if recovered is not None:
        return judged
    placed = [decision.offset for decision in judged if decision.is_change]
    last_base = inventory.partition.segments[-1].base_offset if inventory.partition.segments else None
    found_by_broker = len(inventory.partition.snapshots) > len(inventory.strays)
    if placed and not found_by_broker and max(placed) != last_base:
        detail = f"no snapshot is there, and none would be at the last segment base, {last_base}"
        return refuse_all(judged, Outcome.TAIL_UNCOVERED, detail)
    return judged


def _without_incomplete_newest(
    decisions: Sequence[Decision], inventory: PartitionInventory, recovered: int | None
) -> list[Decision]:
    """Refuse an incomplete snapshot that would become the newest, if the broker has a complete one, or makes one."""
    usable = [boundary.offset for boundary in inventory.boundaries if boundary.state.is_usable]
    usable += [inventory.log_end.offset] if inventory.log_end else []
    if recovered is None:
        newest = max(usable, default=None)
    else:
        newest = max([offset for offset in usable if offset <= recovered], default=-1)
    judged = list(decisions)
    for index in reversed(range(len(judged))):
        one = judged[index]
        if newest is None or one.offset <= newest or (one.is_change and not one.left_out):
            break
        if one.is_change:
            detail = f"producers excluded from it: {one.left_out}, and the broker would continue from it"
            judged[index] = replace(one, outcome=Outcome.TAIL_INCOMPLETE, detail=detail)
    return judged


def set_aside_at_log_end(
    decisions: Iterable[Decision], inventory: PartitionInventory, *, log_end_is_empty: bool, asked: Collection[Replace]
) -> Decision | None:
    """Return the decision to set aside a false-empty snapshot at the log end, if there is one.

    It is false if the replay has entries at the last segment base below it. Otherwise the broker would load it, and
    everything in the other snapshots would be lost again.
    """
    if inventory.log_end is None or not log_end_is_empty or Replace.FALSE_EMPTY not in asked:
        return None
    last_base = inventory.partition.segments[-1].base_offset
    covering = {Outcome.INSTALLED, Outcome.REPLACED, Outcome.ALREADY_THERE}
    if not any(one.offset == last_base and one.outcome in covering and one.entries for one in decisions):
        return None
    detail = f"without entries, though the snapshot at {last_base} has some"
    return Decision(offset=inventory.log_end.offset, outcome=Outcome.SET_ASIDE, detail=detail)
