"""Shows the results of replays, boundary by boundary, for ``regenerate``, ``verify`` and ``plan --prove``."""

from __future__ import annotations

import shlex
from itertools import chain, filterfalse, islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, Self

from typing_extensions import TypedDict

from resnap.replay.comparison import SOUND, SnapshotVerdict
from resnap.replay.plan import Coverage
from resnap.replay.results import BoundaryOutcome
from resnap.replay.window import Unexplained
from resnap.scheduler.job.contract import PartitionState, Reported, Result, Unread, View
from resnap.scheduler.job.reports import AGAIN, MOST_ROWS, Identity, identity, more_topics, summed_note
from resnap.scheduler.output.records import row_of
from resnap.scheduler.output.rendering import Column, partition_name
from resnap.scheduler.verbs.planned import beginnings_gone, faults_of_files
from resnap.storage.errors import DataError
from resnap.storage.words import agreeing, counts_text, human_bytes, human_count, second, some
from resnap.tiering.installing.installation import Replace, replace_flags
from resnap.tiering.judging.inventory import SnapshotState
from resnap.tiering.judging.planning import left_out_warning, unread_warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.errors import ResnapError
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.planner import Replayed
    from resnap.tiering.run_cache.results import CachedBoundary
    from resnap.tiering.selection import Scope


class Rebuilt(Result):
    """One partition, and what its replay gave."""

    replayed: Replayed
    wrong_indexes: int = 0
    """Transaction indexes that were staged because the batches contradict those that are there, or are not."""

    @classmethod
    def of(cls, replayed: Replayed, *, counts: bool = True) -> Self:
        """Return the result of a replay; ``counts`` is whether it did some work."""
        result, unchanged = replayed.result, replayed.planned.still_valid
        faults = (*_faults(result), *faults_of_files(replayed.planned))
        outcomes = {boundary.outcome for boundary in result.boundaries}
        is_whole = result.error is None and outcomes <= {BoundaryOutcome.REBUILT}
        done = PartitionState.DONE if BoundaryOutcome.REBUILT in outcomes else PartitionState.NOTHING_TO_DO
        return cls(
            topic_partition=result.topic_partition,
            state=done if is_whole and not faults else PartitionState.FAILED,
            faults=faults,
            warnings=tuple(_warnings(replayed)),
            partly_done=counts and (done is PartitionState.DONE or bool(unchanged)),
            replayed=replayed,
        )


def _faults(result: PartitionResult) -> Iterator[ResnapError]:
    """Yield what kept boundaries of a partition from being rebuilt."""
    if result.error is not None:
        yield result.error
    illegal = [found for found in result.boundaries if found.outcome is BoundaryOutcome.ILLEGAL]
    if illegal:
        yield DataError(
            f"{result.topic_partition}: {illegal[0].reason}: {some(len(illegal), 'boundary')} above it"
            f" {agreeing(len(illegal))} refused",
            hint="a broker refuses to load this log, too: take the partition from another replica",
        )


def _warnings(replayed: Replayed) -> Iterator[str]:
    """Yield what is to be known of a partition's snapshots, though they were made."""
    result = replayed.result
    if result.lacks_records:
        yield (
            f"{result.topic_partition}: batches are missing, compacted away or lost: snapshots hold what a broker "
            "would rebuild from the remaining batches, which can be older than what producers had written"
        )
    yield from unread_warning(replayed.planned.plan)
    for found in result.boundaries:
        yield from left_out_warning(result.topic_partition, found.offset, found.left_out)
    for known in replayed.planned.still_valid:
        yield from left_out_warning(result.topic_partition, known.offset, known.left_out)


def _to_replace(rebuilt: Rebuilt) -> Iterator[Replace]:
    """Yield the kinds of replacement that wrong existing files need."""
    if rebuilt.wrong_indexes:
        yield Replace.TXNINDEX
    inventory = rebuilt.replayed.planned.selected.inventory
    states = {boundary.offset: boundary.state for boundary in inventory.boundaries}
    result = rebuilt.replayed.result
    for found in result.boundaries:
        state = states.get(found.offset, SnapshotState.MISSING)
        if state is not SnapshotState.MISSING and not state.is_usable:
            yield Replace.CORRUPT
        if found.comparison is not None and result.proves_wrong(found):
            is_empty = found.comparison.verdict is SnapshotVerdict.FALSE_EMPTY
            yield Replace.FALSE_EMPTY if is_empty else Replace.FALSE_PARTIAL


class LeftOutRow(TypedDict):
    """A producer without an entry, because its past could not be read."""

    producerId: int
    reason: str


class _BoundaryFacts(TypedDict):
    """The facts of one boundary, from a replay or from the cache of an earlier run."""

    offset: int
    outcome: Annotated[str, lambda boundary: str(getattr(boundary, "outcome", "unchanged"))]
    coverage: str
    asOfMs: int
    windowStartOffset: int | None
    knownFromOffset: int
    entries: Annotated[
        int | None, lambda one: one.entries if getattr(one, "outcome", "rebuilt") == BoundaryOutcome.REBUILT else None
    ]
    sha256: Annotated[str | None, "digest.sha256"]
    leftOut: list[LeftOutRow]
    reason: Annotated[str | None, lambda boundary: getattr(boundary, "reason", None)]
    madeMs: NotRequired[int]
    anchor: NotRequired[int | None]
    verdict: NotRequired[Annotated[str, "comparison.verdict"]]
    missing: NotRequired[Annotated[list[int], "comparison.missing.named"]]
    missingCount: NotRequired[Annotated[int, "comparison.missing.total"]]
    different: NotRequired[Annotated[list[int], "comparison.different.named"]]
    differentCount: NotRequired[Annotated[int, "comparison.different.total"]]
    sweptByBroker: NotRequired[Annotated[list[int], "comparison.swept.named"]]
    sweptByBrokerCount: NotRequired[Annotated[int, "comparison.swept.total"]]
    coordinatorEpochLost: NotRequired[Annotated[list[int], "comparison.coordinator_lost.named"]]
    coordinatorEpochLostCount: NotRequired[Annotated[int, "comparison.coordinator_lost.total"]]
    lastBatchLost: NotRequired[Annotated[list[int], "comparison.batch_lost.named"]]
    lastBatchLostCount: NotRequired[Annotated[int, "comparison.batch_lost.total"]]
    byOlderRules: NotRequired[Annotated[list[int], "comparison.older_rules.named"]]
    byOlderRulesCount: NotRequired[Annotated[int, "comparison.older_rules.total"]]
    withoutRecords: NotRequired[Annotated[list[int], "comparison.unrecorded.named"]]
    withoutRecordsCount: NotRequired[Annotated[int, "comparison.unrecorded.total"]]


class BoundaryRow(Identity, _BoundaryFacts):
    """One snapshot of `resnap regenerate`, or of `resnap verify` and `resnap plan --prove`, which give a verdict."""


def _boundary_row(topic_partition: TopicPartition, found: BoundaryResult | CachedBoundary) -> Row:
    return {**identity(topic_partition), **row_of(_BoundaryFacts, found)}


class SnapshotsRow(TypedDict):
    """A partition of a run that made snapshots."""

    boundaries: list[BoundaryRow]
    warnings: list[str]


def _excluded_text(left_out: list[LeftOutRow] | None) -> str:
    """Return how many have no entry, or lack more of it than a coordinator epoch; empty for none."""
    return _if_any(sum(entry["reason"] != Unexplained.COORDINATOR for entry in left_out or ()))


def _if_any(count: object) -> str:
    return str(count) if count else ""


def _is_in_order(row: Mapping[str, Any]) -> bool:
    """Return whether nothing is wrong with a boundary, so that the totals of its partition say enough."""
    is_made = row["outcome"] in {"rebuilt", "unchanged"} and not _excluded_text(row["leftOut"])
    return is_made and row.get("verdict", SnapshotVerdict.PROVEN) in SOUND


def _totals_row(rows: Sequence[Mapping[str, Any]]) -> Row:
    """Return the rows of a partition's boundaries as one, for people."""
    entries = [row["entries"] for row in rows if isinstance(row["entries"], int)]
    row: dict[str, object] = {key: rows[0][key] for key in ("topic", "partition")} | {"snapshots": len(rows)}
    for key in ("outcome", "coverage", "verdict"):
        row[key] = counts_text(boundary[key] for boundary in rows if key in boundary)
    if entries:
        row["entries"] = f"{min(entries)} to {max(entries)}" if min(entries) < max(entries) else entries[0]
    row["leftOut"] = [entry for some in rows for entry in some["leftOut"]]
    for key in ("missingCount", "differentCount", "byOlderRulesCount"):
        row[key] = sum(boundary.get(key, 0) for boundary in rows)
    return row


def _partition_or_offset(row: Row) -> str:
    return f"  at {row['offset']}" if "offset" in row else partition_name(row)


_MOST_SHOWN: Final = 3
"""Boundaries of one topic that something is wrong with, where partitions are summed up."""
_SHARED: Final = (
    Column(key="partition", title="PARTITION", of=_partition_or_offset),
    Column(key="snapshots", title="SNAPSHOTS", right=True),
    Column(key="outcome", title="OUTCOME"),
    Column(key="entries", title="ENTRIES", right=True, extra=True),
    Column(key="coverage", title="COVERAGE", extra=True),
)


class ReplayView(View[Result]):
    """A row per boundary; people see one per partition, and below it the boundaries that are not right.

    The service keeps all of a partition as one.
    """

    kind = "boundary"

    columns: Sequence[Column] = (
        *_SHARED,
        Column(key="leftOut", title="EXCLUDED", right=True, show=_excluded_text),
    )

    made = "rebuilt"

    def __init__(self, scope: Scope, into: str | None = None) -> None:
        """Count nothing yet; ``into`` is where snapshots of ``scope`` are made, if any are."""
        self._scope, self._into = scope, into
        self._results: list[PartitionResult] = []
        self._boundaries: list[BoundaryResult] = []
        self._known: list[tuple[TopicPartition, CachedBoundary]] = []
        """Boundaries that an earlier run has made."""
        self._to_replace: set[Replace] = set()
        self._held: list[list[Row]] = []
        """Rows of each partition, for people."""

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
            yield _boundary_row(topic_partition, known)
        self._results.append(found)
        self._boundaries += found.boundaries
        for boundary in found.boundaries:
            yield {**_boundary_row(topic_partition, boundary), "anchor": found.anchor}

    def table_rows(self, result: Result) -> Iterator[Row]:
        """Keep back the rows of a partition."""
        self._held += filter(None, [[*self.rows(result)]])
        yield from ()

    def table_rest(self) -> Iterator[Row]:
        """Yield what people see: totals of each partition, with its boundaries that something is wrong with.

        Where there are too many partitions these are totals of topics; those with something wrong come first.
        """
        if len(self._held) <= MOST_ROWS:
            for rows in self._held:
                yield _totals_row(rows)
                yield from filterfalse(_is_in_order, rows)
            return
        by_topic: dict[object, list[list[Row]]] = {}
        for rows in self._held:
            by_topic.setdefault(rows[0]["topic"], []).append(rows)
        topics = [(len(of_one), [*chain.from_iterable(of_one)]) for of_one in by_topic.values()]
        topics.sort(key=lambda one: (-sum(not _is_in_order(row) for row in one[1]), -len(one[1])))
        for partitions, rows in topics[:MOST_ROWS]:
            yield _totals_row(rows) if partitions == 1 else {**_totals_row(rows), "partition": f"* ({partitions})"}
            for row in islice(filterfalse(_is_in_order, rows), _MOST_SHOWN):
                yield {**row, "offset": f"{row['offset']} of {partition_name(row)}"}
        if rest := [row for _, rows in topics[MOST_ROWS:] for row in rows]:
            yield {**_totals_row(rest), **more_topics(len(topics))}

    def totals(self) -> dict[str, int]:
        """Return totals over all replays."""
        made = sum(found.outcome is BoundaryOutcome.REBUILT for found in self._boundaries)
        return {
            "partitions": len(self._results),
            "snapshots": made,
            "failed": len(self._boundaries) - made,
            "leftOut": sum(len(found.left_out) for found in self._boundaries),
            "batches": sum(result.batches for result in self._results),
            "bytesRead": sum(result.bytes_read for result in self._results),
            "segmentsRead": sum(result.segments_read for result in self._results),
            "unchanged": len(self._known),
        }

    def closing(self) -> Iterator[str]:
        """Yield the totals in words."""
        yield from summed_note(self._held)
        is_partial = self.is_cut_short or self.has_faults
        if self._into is not None and not (self._known or self._boundaries or is_partial):
            yield "Nothing is missing: every closed segment has a usable snapshot at its end. Nothing was written."
            yield f"Next: `resnap check {shlex.join(self._scope.sources)}` says which topics can be tiered."
            return
        yield from self._unchanged_lines()
        if not self._known or self._boundaries:
            yield self._sum()
        yield from self._older_rules()
        known_from = {topic_partition: known.known_from_offset for topic_partition, known in self._known}
        for result in self._results:
            for found in result.boundaries:
                known_from[result.topic_partition] = found.known_from_offset
        yield from beginnings_gone(known_from)
        if self._into is None:
            return
        if is_partial:
            yield "Next: the same command again, once the errors named here are repaired; it makes the rest."
        if self._known or self.totals()["snapshots"]:
            flags = filter(None, ("--dry-run", replace_flags(self._to_replace)))
            when = "Or install what there is, and the rest later" if is_partial else "Next"
            yield f"{when}: stop the broker, then `{self._scope.install_command(self._into, *flags)}`."

    def _unchanged_lines(self) -> Iterator[str]:
        """Yield how many boundaries were not rebuilt, because nothing they depend on has changed."""
        if not self._known:
            return
        made = len(self._boundaries)
        partitions = len({topic_partition for topic_partition, _ in self._known})
        since = second(max(known.made_ms for _, known in self._known))
        nothing_read = "; nothing was read" if not made else ""
        yield (
            f"{human_count(len(self._known))} of {some(len(self._known) + made, 'boundary')} of"
            f" {some(partitions, 'partition')} unchanged since {since}{nothing_read}."
        )

    def _sum(self) -> str:
        total = self.totals()
        made, batches = some(total["snapshots"], "snapshot"), some(total["batches"], "batch")
        failed = f", {total['failed']} not" if total["failed"] else ""
        read = f"{some(total['segmentsRead'], 'segment')} ({human_bytes(total['bytesRead'])} read)"
        begun = sum(result.anchor is not None for result in self._results)
        anchored = f" In {some(begun, 'partition')} reading began where an earlier run ended." if begun else ""
        return f"{made} {self.made}{failed}, from {batches} of {read}.{anchored}"

    def _older_rules(self) -> Iterator[str]:
        """Say how many entries differ because the brokers that wrote them were older."""
        entries = sum(found.comparison.older_rules.total for found in self._boundaries if found.comparison)
        if entries:
            yield (
                f"{human_count(entries)} of the entries that differ have the values that brokers before 2.4.1 "
                "(KAFKA-9144) or before 1.0 wrote at a transaction's marker: later brokers rebuild from the log what "
                "the replay gives. They"
                " are not damage, and do not count in the exit code."
            )


class JudgedView(ReplayView):
    """The same, with the verdict on the snapshots that are there."""

    columns = (
        *_SHARED,
        Column(key="verdict", title="VERDICT"),
        Column(key="missingCount", title="MISSING", right=True, show=_if_any),
        Column(key="differentCount", title="DIFFERENT", right=True, show=_if_any),
        Column(key="byOlderRulesCount", title="BY OLDER RULES", right=True, show=_if_any, extra=True),
    )

    made = "recomputed"

    def __init__(self, scope: Scope, staged: str | None = None) -> None:
        """Count nothing yet; ``staged`` is where the snapshots are that are judged, if not beside the segments."""
        super().__init__(scope)
        self._staged = staged
        self._absent = 0

    def rows(self, result: Result) -> Iterator[Row]:
        """Yield a row per boundary, and count it, and those that have no snapshot."""
        self._absent += result.what if isinstance(result, Reported) else 0
        yield from super().rows(result)

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and what to do next with snapshots that are as they should be."""
        yield from super().closing()
        found = [boundary.comparison for boundary in self._boundaries]
        if self._staged is None and not found:
            yield f"No snapshot is there to compare. Next: `resnap scan {self._scope.typed}` shows what is missing."
        if any(boundary.coverage is Coverage.BEYOND_WINDOW for boundary in self._boundaries):
            yield "Producers beyond the window have expired, and are not compared; --as-of roll compares them."
        are_good = all(comparison is None or comparison.verdict in SOUND for comparison in found)
        if self.has_faults:
            yield AGAIN
        elif not are_good:
            again = f"resnap regenerate {self._scope.typed} --boundaries all --into DIR"
            yield f"Next: `{again}` makes those again that a replay contradicts."
        elif None in found:
            yield f"Next: `resnap regenerate {self._scope.typed} --into DIR` makes those that are missing."
        elif self._staged is None:
            if found:
                yield f"Next: `resnap check {self._scope.typed}` says which topics can be tiered."
        elif self._absent:
            into = shlex.quote(self._staged)
            yield f"Next: `resnap regenerate {self._scope.typed} --into {into}`, which makes the missing ones."
        else:
            yield f"Next: stop the broker, then `{self._scope.install_command(self._staged, '--dry-run')}`."
