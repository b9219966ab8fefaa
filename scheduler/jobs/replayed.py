"""What replays gave, boundary by boundary, as ``regenerate``, ``verify`` and ``plan --prove`` show it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self

from resnap.replay.comparison import Verdict
from resnap.replay.results import Outcome
from resnap.scheduler.clock import instant
from resnap.scheduler.job.contract import PartitionState, Result, Unread, View
from resnap.scheduler.job.reports import count_of, identity
from resnap.scheduler.jobs.planned import beginnings_gone
from resnap.scheduler.output.rendering import PARTITION, Column, human_bytes, human_count
from resnap.storage.errors import DataError
from resnap.tiering.installing.installation import Replace, replace_flags
from resnap.tiering.inventory import SnapshotState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.replay.boundary_state import LeftOut
    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.scheduler.job.work_items import Replayed
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.errors import ResnapError
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.run_cache.results import CachedBoundary

MOST_NAMED: Final = 5
"""Most producers that a warning names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt(Result):
    """One partition, and what its replay gave."""

    replayed: Replayed
    wrong_indexes: int = 0
    """Transaction indexes that were staged because the batches contradict those that are there, or are not."""

    @classmethod
    def of(cls, replayed: Replayed, *more: ResnapError, counts: bool = True) -> Self:
        """Return the result of a replay, with faults that the job found; ``counts`` is whether it did some work."""
        result, unchanged = replayed.result, replayed.planned.still_valid
        made = any(one.outcome is Outcome.REBUILT for one in result.boundaries)
        is_whole = result.error is None and all(one.outcome is Outcome.REBUILT for one in result.boundaries)
        done = PartitionState.DONE if made else PartitionState.NOTHING_TO_DO
        return cls(
            topic_partition=result.topic_partition,
            state=done if is_whole else PartitionState.FAILED,
            faults=(*_faults(result), *more),
            warnings=tuple(_warnings(replayed)),
            partly_done=counts and (made or bool(unchanged)),
            replayed=replayed,
        )


def _faults(result: PartitionResult) -> Iterator[ResnapError]:
    """Yield what kept boundaries of a partition from being rebuilt."""
    if result.error is not None:
        yield result.error
    illegal = [found for found in result.boundaries if found.outcome is Outcome.ILLEGAL]
    if illegal:
        yield DataError(
            f"{result.topic_partition}: {illegal[0].reason}: {len(illegal)} boundaries above it are refused",
            hint="a broker refuses to load this log, too: take the partition from another replica",
        )


def _warnings(replayed: Replayed) -> Iterator[str]:
    """Yield what is to be known of a partition's snapshots, though they were made."""
    result = replayed.result
    if result.compacted:
        yield (
            f"{result.topic_partition}: a cleaner has removed batches: snapshots hold what a broker would rebuild from"
            " those that are left, which can be older than what producers had written"
        )
    for found in result.boundaries:
        yield from _left_out(result.topic_partition, found.boundary.offset, found.left_out)
    for known in replayed.planned.still_valid:
        yield from _left_out(result.topic_partition, known.offset, known.left_out)


def _left_out(topic_partition: TopicPartition, offset: int, left_out: tuple[LeftOut, ...]) -> Iterator[str]:
    if left_out:
        ids = ", ".join(str(pid) for pid, _ in left_out[:MOST_NAMED])
        yield (
            f"{topic_partition}: {len(left_out)} producers are left out of the snapshot at {offset}, their past is not"
            f" in what could be read: {ids}"
        )


def _to_replace(rebuilt: Rebuilt) -> Iterator[Replace]:
    """Yield what the files that are there must be replaced as, where they are wrong."""
    if rebuilt.wrong_indexes:
        yield Replace.TXNINDEX
    inventory = rebuilt.replayed.planned.selected.inventory
    states = {one.offset: one.state for one in inventory.boundaries}
    for found in rebuilt.replayed.result.boundaries:
        state = states.get(found.boundary.offset, SnapshotState.MISSING)
        if state is not SnapshotState.MISSING and not state.is_usable:
            yield Replace.CORRUPT
        verdict = None if found.comparison is None else found.comparison.verdict
        if verdict is Verdict.FALSE_EMPTY:
            yield Replace.FALSE_EMPTY
        elif verdict in {Verdict.FALSE_PARTIAL, Verdict.DIFFERENT} and not found.left_out:
            yield Replace.FALSE_PARTIAL


def boundary_row(topic_partition: TopicPartition, found: BoundaryResult) -> Row:
    """Return what became of one boundary in a replay."""
    comparison = found.comparison
    row: dict[str, object] = {
        **identity(topic_partition),
        "offset": found.boundary.offset,
        "outcome": found.outcome.value,
        "coverage": found.boundary.coverage.value,
        "asOfMs": found.as_of_ms,
        "windowStartOffset": found.window_start_offset,
        "knownFromOffset": found.known_from_offset,
        "entries": found.entries if found.outcome is Outcome.REBUILT else None,
        "sha256": found.digest.sha256 if found.digest else None,
        "leftOut": [{"producerId": pid, "reason": reason.value} for pid, reason in found.left_out],
        "reason": found.reason,
    }
    if comparison is not None:
        row["verdict"] = comparison.verdict.value
        for name, producers in (
            ("missing", comparison.missing),
            ("different", comparison.different),
            ("sweptByBroker", comparison.swept),
            ("coordinatorEpochLost", comparison.coordinator_lost),
            ("byOlderRules", comparison.older_rules),
            ("withoutRecords", comparison.unrecorded),
        ):
            row |= {name: list(producers.named), f"{name}Count": producers.total}
    return row


def known_row(topic_partition: TopicPartition, known: CachedBoundary) -> Row:
    """Return one boundary that an earlier run has made, and that was not made again."""
    return {
        **identity(topic_partition),
        "offset": known.offset,
        "outcome": "unchanged",
        "coverage": known.coverage.value,
        "asOfMs": known.as_of_ms,
        "windowStartOffset": known.window_start_offset,
        "knownFromOffset": known.known_from_offset,
        "entries": known.entries,
        "sha256": known.digest.sha256,
        "leftOut": [{"producerId": pid, "reason": reason.value} for pid, reason in known.left_out],
        "reason": None,
        "madeMs": known.made_ms,
    }


def _if_any(count: object) -> str:
    return str(count) if count else ""


_SHARED: Final = (
    PARTITION,
    Column(key="offset", title="SNAPSHOT", right=True),
    Column(key="outcome", title="OUTCOME"),
    Column(key="entries", title="ENTRIES", right=True),
    Column(key="coverage", title="COVERAGE"),
)


class ReplayView(View["Rebuilt | Unread | Result"]):
    """A row per boundary; the service keeps all of a partition as one."""

    name: ClassVar[str | None] = "boundaries"
    kind: ClassVar[str] = "boundary"

    columns: ClassVar[Sequence[Column]] = (
        *_SHARED,
        Column(key="leftOut", title="LEFT OUT", right=True, show=count_of),
    )

    def __init__(self, into: str | None = None) -> None:
        """Count nothing yet; ``into`` is where snapshots are made, if any are."""
        self._into = into
        self._results: list[PartitionResult] = []
        self._known: list[tuple[TopicPartition, CachedBoundary]] = []
        """Boundaries that an earlier run has made."""
        self._to_replace: set[Replace] = set()

    def row(self, result: Result) -> Row | None:
        """Return all boundaries of a partition."""
        if isinstance(result, Unread):
            return result.row
        if not isinstance(result, Rebuilt):
            return None
        return {"boundaries": list(self.rows(result)), "warnings": list(result.warnings)}

    def rows(self, result: Result) -> Iterator[Row]:
        """Yield a row per boundary, and count it."""
        if not isinstance(result, Rebuilt):
            return
        topic_partition, found = result.replayed.result.topic_partition, result.replayed.result
        self._to_replace.update(_to_replace(result))
        for known in result.replayed.planned.still_valid:
            self._known.append((topic_partition, known))
            yield known_row(topic_partition, known)
        self._results.append(found)
        for boundary in found.boundaries:
            yield {**boundary_row(topic_partition, boundary), "anchor": found.anchor}

    def totals(self) -> Row:
        """Return totals over all replays."""
        boundaries = [found for result in self._results for found in result.boundaries]
        return {
            "partitions": len(self._results),
            "snapshots": sum(found.outcome is Outcome.REBUILT for found in boundaries),
            "failed": sum(found.outcome is not Outcome.REBUILT for found in boundaries),
            "leftOut": sum(len(found.left_out) for found in boundaries),
            "batches": sum(result.batches for result in self._results),
            "bytesRead": sum(result.bytes_read for result in self._results),
            "segmentsRead": sum(result.segments_read for result in self._results),
            "unchanged": len(self._known),
        }

    def closing(self) -> Iterator[str]:
        """Yield the totals in words."""
        yield from self._unchanged()
        if not self._known or any(result.boundaries for result in self._results):
            yield self._sum()
        yield from self._older_rules()
        known_from = {topic_partition: known.known_from_offset for topic_partition, known in self._known}
        for result in self._results:
            for found in result.boundaries:
                known_from[result.topic_partition] = found.known_from_offset
        yield from beginnings_gone(known_from)
        if self._into is not None and (self._known or self.totals()["snapshots"]):
            flags = " ".join(["--dry-run", *filter(None, [replace_flags(self._to_replace)])])
            yield f"Next: stop the broker, then `resnap install {shlex.quote(self._into)} LOG_DIR {flags}`."

    def _unchanged(self) -> Iterator[str]:
        """Say what was not made again, because it is there and nothing that it depends on has changed."""
        if not self._known:
            return
        made = sum(len(result.boundaries) for result in self._results)
        partitions = len({topic_partition for topic_partition, _ in self._known})
        since = instant(max(known.made_ms for _, known in self._known))
        nothing_read = "; nothing was read" if not made else ""
        yield (
            f"{human_count(len(self._known))} of {human_count(len(self._known) + made)} boundaries of"
            f" {human_count(partitions)} partitions unchanged since {since}{nothing_read}."
        )

    def _sum(self) -> str:
        boundaries = [found for result in self._results for found in result.boundaries]
        made = sum(found.outcome is Outcome.REBUILT for found in boundaries)
        failed = f", {len(boundaries) - made} not" if len(boundaries) > made else ""
        batches = human_count(sum(result.batches for result in self._results))
        segments = human_count(sum(result.segments_read for result in self._results))
        read = human_bytes(sum(result.bytes_read for result in self._results))
        begun = sum(result.anchor is not None for result in self._results)
        anchored = f" In {human_count(begun)} partitions reading began where an earlier run ended." if begun else ""
        return (
            f"{human_count(made)} snapshots rebuilt{failed}, from {batches} batches of {segments} segments ({read}"
            f" read).{anchored}"
        )

    def _older_rules(self) -> Iterator[str]:
        """Say how many entries differ because the brokers that wrote them were older."""
        boundaries = [found for result in self._results for found in result.boundaries]
        entries = sum(found.comparison.older_rules.total for found in boundaries if found.comparison)
        if entries:
            yield (
                f"{human_count(entries)} of the entries that differ are as brokers before 2.4.1 (KAFKA-9144) or before"
                " 1.0 left them at a transaction's marker: later brokers make of the log what the replay gives."
            )


class JudgedView(ReplayView):
    """A row per boundary, with the verdict on the snapshot that is there."""

    columns: ClassVar[Sequence[Column]] = (
        *_SHARED,
        Column(key="verdict", title="VERDICT"),
        Column(key="missingCount", title="MISSING", right=True, show=_if_any),
        Column(key="differentCount", title="DIFFERENT", right=True, show=_if_any),
        Column(key="byOlderRulesCount", title="BY OLDER RULES", right=True, show=_if_any),
    )
