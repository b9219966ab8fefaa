"""The job ``verify``: compares snapshots with a replay, or reads a store back; any difference is an error.

In a store every object is compared with its manifest, the chains of segments are checked, and every snapshot is
compared with a replay of the stored segments (``tiering.verify``).
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typing_extensions import TypedDict

from resnap.replay.staging import DISCARD
from resnap.scheduler.cli.flags import ENGINE, MEMORY, PARTITIONS, READING, REMOTE, REPLAY, STORE
from resnap.scheduler.job.contract import PartitionState, Reported, Request, Result, Verb, View, unread
from resnap.scheduler.job.replaying import journal_of, planner_of
from resnap.scheduler.job.reports import AGAIN, MOST_ROWS, chain_row
from resnap.scheduler.job.wiring import scope_of
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import BYTES, Column
from resnap.scheduler.settings.settings import given_flags
from resnap.scheduler.settings.values import parse_moment
from resnap.scheduler.verbs.planned import note_selection
from resnap.scheduler.verbs.replayed import JudgedView, Rebuilt
from resnap.storage.errors import StoreError, UsageError, VerificationError
from resnap.storage.layouts.lineage import Chain
from resnap.storage.log.log_dir import log_dir_around
from resnap.storage.sources.files import Sources
from resnap.storage.sources.log_dirs import incomplete_warning, layout_at
from resnap.storage.stores.urls import is_store_url, local_path, without_slash
from resnap.storage.words import agreeing, first_of, human_bytes, human_count, second, some
from resnap.tiering.judging.planning import can_be_tiered
from resnap.tiering.selection import nothing_in, with_progress
from resnap.tiering.staged import check_staged
from resnap.tiering.store_check import Mismatch, fault_of, store_groups
from resnap.tiering.stored_snapshots import SnapshotCheck
from resnap.tiering.verify import Unfit, verify
from resnap.tiering.verifying.verification import VerifiedSegment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resnap.scheduler.job.contract import Context, Report
    from resnap.scheduler.output.rendering import Row
    from resnap.tiering.planner import Planned, Planner
    from resnap.tiering.selection import Selection
    from resnap.tiering.store_check import StoreCheck
    from resnap.tiering.verify import VerifyRow

_SHIP_THE_GAP: Final = "ship it from a replica that still has it; a broker that restores from here stops at the gap"
_CHOOSE: Final = (
    "two histories claim these offsets: keep the one that the cluster has, and delete the other's manifests"
)
_REPAIRED: Final = (".snapshot", ".txnindex")
"""What the names of objects end in that are made again."""
UNFIT: Final = "partitionsUnfit"
"""In totals: partitions that have unfit snapshots in the store."""


class VerifyRequest(Request):
    """Recompute and compare snapshots, or read a store back; any difference is listed, and ends with exit code 13.

    In a store, every object is compared with its manifest, and every snapshot with a replay of what is stored. With
    --verify-crc the whole log is read, as with --full.
    """

    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG_DIR|STORE",
            help="Log dirs, partition directories, or the URL of a store; the default is log.dirs.",
        ),
    ] = None
    snapshots: Annotated[
        str | None,
        typer.Option(metavar="DIR|URL", help="Compare the snapshots that `resnap regenerate --into DIR|URL` wrote."),
    ] = None
    store: Annotated[str | None, typer.Option(metavar="URL", help="A store, as the argument.")] = None
    since: Annotated[
        str | None, typer.Option(metavar="TIME|DURATION", help="Of a store: only segments shipped since then.")
    ] = None

    def settled(self, context: Context) -> VerifyRequest:
        """Return the request with the store that it is of, if it is of one; a run of the service always is.

        Raises:
            UsageError: it is of a store and of log dirs, or a flag is of the other.
            StoreError: the store failed.

        """
        if (self.places or self.snapshots) and self.store:
            hint = "`resnap verify --help` shows both forms"
            raise UsageError("either LOG_DIR or --store is to be verified", hint=hint)
        store = self.store or next(iter(self.scope.sources), None)
        store = store or (_store_in(self.places or [], context) if self.snapshots is None else None)
        of_a_log = next(given_flags(context.settings, ("remote", "partitions", "high_watermark")), None)
        if store and of_a_log:
            hint = "`resnap verify LOG_DIR --remote URL` compares a log dir's snapshots; a store is read back by topic"
            raise UsageError(f"{of_a_log} needs a log dir, and {store} is a store", hint=hint)
        if self.since and not store:
            raise UsageError("--since needs a store", hint="give the URL of a store in the place of the log dir")
        if store is None:
            return replace(self, scope=scope_of(context.settings, self.places))
        return replace(self, scope=replace(self.scope, sources=(store,)), store=store)


def run(request: VerifyRequest, context: Context, report: Report) -> None:
    """Report on the snapshots of log dirs, or on a store; raises as ``_of_log_dirs`` or ``_of_store``."""
    if request.store is None:
        _of_log_dirs(request, context, report)
    else:
        _of_store(request, request.store, context, report)


def _of_log_dirs(request: VerifyRequest, context: Context, report: Report) -> None:
    """Report how the snapshots of each partition compare with a replay.

    Raises:
        UsageError, LogDirError: a source is not what it should be.

    """
    planner = _planner(context)
    selection = planner.select(request.scope)
    with context.progress("plan") as (progress,):
        planned = [
            planner.plan_comparison(partition, request.snapshots)
            for partition in with_progress(selection.partitions, progress)
            if can_be_tiered(partition.inventory)
        ]
    note_selection(request.scope, selection, context)
    unusable = (
        _unusable(selection) if request.snapshots is None else _unusable_staged(selection, request.snapshots, planner)
    )
    compared = _compare(planner, [plan for plan in planned if plan.plan.boundaries], context)
    for result in chain(unread(selection, partly_done=False), [unusable], compared):
        report(result)


def _planner(context: Context) -> Planner:
    """Return the planner of the run, which checks the checksums of whole logs, not only of what a replay needs."""
    planner = planner_of(context)
    return replace(planner, rules=replace(planner.rules, full=planner.rules.full or planner.rules.verify_crc))


def _unusable(selection: Selection) -> Result:
    """Return the snapshots that are there and that no broker could load."""
    return Result(
        faults=tuple(
            VerificationError(
                f"{boundary.path}: {boundary.state}: {boundary.detail or 'no byte in it'}", hint="`resnap regenerate`"
            )
            for selected in selection.partitions
            for boundary in selected.inventory.unusable
            if boundary.path is not None
        )
    )


def _unusable_staged(selection: Selection, root: str, planner: Planner) -> Reported[int]:
    """Return the regenerated snapshots that no broker could load, and how many there should be besides."""
    broken, absent = check_staged(selection, root, planner.engine.reading.sources)
    lacking = f"{some(absent, 'boundary')} without the snapshot in {root} that each needs"
    return Reported(faults=broken, warnings=(lacking,) if absent else (), what=absent)


def _compare(planner: Planner, planned: list[Planned], context: Context) -> Iterator[Result]:
    wrong = 0
    with context.progress("replay") as (progress,):
        for replayed in planner.replay(planned, DISCARD, progress):
            found = [boundary.comparison for boundary in replayed.result.boundaries if boundary.comparison is not None]
            wrong += sum(not comparison.is_sound for comparison in found)
            yield Rebuilt.of(replayed, counts=False)
    if wrong:
        what = f"not what a replay gives: {some(wrong, 'snapshot')}"
        hint = "`resnap regenerate` makes them again; `resnap explain` shows which batches made an entry"
        yield Result(faults=(VerificationError(what, hint=hint),))


def _of_store(request: VerifyRequest, url: str, context: Context, report: Report) -> None:
    """Read a store back, and report segments, then what they are together, then snapshots.

    Raises:
        StoreError: the store failed.
        UsageError: nothing that was shipped is there.

    """
    store = Sources(s3=context.settings.s3()).store(without_slash(url))
    since_ms = None if request.since is None else _moment(request.since, context)
    journal = journal_of(context.settings, context.clock, store.url, context.warn)
    groups = store_groups(_planner(context), store, request.scope, journal, since_ms)
    waiting = list(islice(groups, 1))  # whether there is anything is known at once
    if not waiting:
        raise nothing_in(request.scope) if request.scope.topics else _nothing_shipped(url)

    has_manifests = False

    def reported() -> Iterator[Sequence[StoreCheck]]:
        nonlocal has_manifests
        while checks := waiting.pop() if waiting else next(groups, None):
            has_manifests = has_manifests or any(check.listing.manifests for check in checks)
            incomplete = [partition for check in checks for partition in check.listing.incomplete]
            warnings = [*incomplete_warning(incomplete, url)]
            if unnamed := _without_manifest(checks):
                warnings.append(
                    f"{some(len(unnamed), 'segment')} with objects and without a manifest, which was lost, or the copy"
                    f" did not finish: {first_of(unnamed)}; readers do not see it, and `resnap gc` deletes the objects"
                )
            report(Reported(what=checks, warnings=tuple(warnings)))
            yield checks

    verify(reported(), journal, context.progress, context.warn, lambda row: report(_result(row, url, context)))
    if not has_manifests:
        report(Result(faults=(_nothing_shipped(url),)))


def _without_manifest(checks: Sequence[StoreCheck]) -> list[str]:
    """Return the keys of the manifests that segments lack whose objects are there."""
    listings = [check.listing for check in checks]
    known = {one.missing_key for listing in listings for one in listing.incomplete}
    return sorted({key for listing in listings for key in listing.sizes.keys() - listing.manifests.keys()} - known)


def _result(row: VerifyRow, url: str, context: Context) -> Result:
    """Return the result that comes of what the work reports, and tell the context of it."""
    match row:
        case VerifiedSegment():
            return _read_back(row, url, context)
        case Chain():
            return _chain_result(row, context)
        case Unfit():
            return Reported(topic_partition=row.topic_partition, state=PartitionState.FAILED, what=row)
    problems = () if row.problem is None else (row.problem,)
    if isinstance(row.problem, StoreError):
        return Result(faults=problems)
    context.mismatches(Mismatch.SNAPSHOT, len(problems))
    return Reported(faults=problems, what=row)


def _read_back(verified: VerifiedSegment, url: str, context: Context) -> Reported[VerifiedSegment]:
    repair = f"`resnap repair {shlex.quote(url)}` replaces it"
    faults = tuple(
        fault_of(problem, repair if problem.partition(": ")[0].endswith(_REPAIRED) else verified.remedy)
        for problem in verified.problems
    )
    context.mismatches(Mismatch.OBJECT, sum(isinstance(error, VerificationError) for error in faults))
    return Reported(
        state=PartitionState.FAILED if faults else PartitionState.DONE,
        faults=faults,
        warnings=tuple(
            f"{text}: verify from the partition's first segment on, or compare with a replica"
            for text in verified.undecided
        ),
        what=verified,
    )


def _chain_result(one: Chain, context: Context) -> Reported[Chain]:
    gaps, overlaps = () if one.is_beside_unread else tuple(chain_gaps(one)), tuple(chain_overlaps(one))
    context.mismatches(Mismatch.GAP, len(gaps))
    context.mismatches(Mismatch.OVERLAP, len(overlaps))
    shared = (two for two in one.overlaps if two.is_one_lineage)
    return Reported(
        faults=(*gaps, *overlaps),
        warnings=tuple(
            f"{one.topic_partition}: two segments have the offsets {two.offsets}; their leader epochs are"
            " the same there"
            for two in shared
        ),
        what=one,
    )


def chain_gaps(chain: Chain) -> Iterator[VerificationError]:
    """Yield where readers of a partition's shipped segments would stop."""
    for gap in chain.gaps:
        what = f"{chain.topic_partition}: nothing was shipped of the offsets {gap}"
        yield VerificationError(what, hint=_SHIP_THE_GAP)


def chain_overlaps(chain: Chain) -> Iterator[VerificationError]:
    """Yield where readers of a partition's shipped segments could take either of two histories."""
    for gap in chain.breaks:
        what = f"{chain.topic_partition}: no segment begins where another ends on the way through {gap}"
        yield VerificationError(what, hint=_CHOOSE)
    for overlap in chain.overlaps:
        if not overlap.is_one_lineage:
            what = f"{chain.topic_partition}: two segments have the offsets {overlap.offsets}"
            yield VerificationError(f"{what}, under different leader epochs", hint=_CHOOSE)


def _nothing_shipped(url: str) -> UsageError:
    hint = (
        "give the URL that `resnap tier --to` was given, or the folder or prefix that brokers tier to;"
        " `resnap remote status LOG_DIR --store URL` compares it with what brokers know"
    )
    return UsageError(f"{url} holds no shipped segment", hint=hint)


class UnfitRow(TypedDict):
    """A partition of a run that verified a store, where snapshots are unfit."""

    unfitSnapshots: int


class VerifiedRow(TypedDict):
    """One segment of `resnap verify URL`."""

    manifest: Annotated[str, "manifest_key", Column(title="MANIFEST")]
    topic: Annotated[str | None, "manifest.topic"]
    partition: Annotated[int | None, "manifest.partition"]
    baseOffset: Annotated[int | None, "manifest.base_offset"]
    nextBaseOffset: Annotated[int | None, "manifest.next_base_offset"]
    bytes: Annotated[int, "size_bytes", BYTES]
    result: Annotated[
        str,
        lambda segment: "different" if segment.problems else "gone" if segment.is_retained_away else "ok",
        Column(title="RESULT", is_state=True),
    ]
    problems: list[str]
    undecided: list[str]


class StoreView(View[Result]):
    """A row per segment that was read or is wrong."""

    kind = "segment"
    columns = columns_of(VerifiedRow, "result", "bytes", "manifest")

    def __init__(self) -> None:
        self._checks: Sequence[StoreCheck] = ()
        """The checks of the partitions at work."""
        self._resumed = self._not_asked_for = 0
        """Segments of partitions before."""
        self._lacks_manifests = False
        self._chains: list[Chain] = []
        self._shown = self._not_shown = 0
        """Segments that people see, and that they see no row of, as there are too many."""
        self._counts = dict.fromkeys(
            ("segments", "bytes", "different", "gone", "snapshotsReplayed", "snapshotsDifferent", UNFIT), 0
        )

    def rows(self, result: Result) -> Iterable[Row]:
        """Return the row of a segment; that of a partition is for the service."""
        row = self.row(result)
        return () if row is None or "unfitSnapshots" in row else (row,)

    def row(self, result: Result) -> Row | None:
        """Return the row of a segment, or of an unfit partition, and count it."""
        match result:
            case Reported(what=list(checks)):
                self._resumed, self._not_asked_for = self._of_manifests()
                self._checks = checks
                self._lacks_manifests = self._lacks_manifests or bool(_without_manifest(checks))
            case Reported(what=VerifiedSegment() as segment):
                return self._segment(segment)
            case Reported(what=Chain() as chained):
                self._chains.append(chained)
            case Reported(what=SnapshotCheck()):
                self._counts["snapshotsReplayed"] += 1
                self._counts["snapshotsDifferent"] += bool(result.faults)
            case Reported(what=Unfit(snapshots=snapshots)):
                self._counts[UNFIT] += 1
                return {"unfitSnapshots": snapshots}
        return None

    def table_rows(self, result: Result) -> list[Row]:
        """Return the row of a segment that is not as it should be, or not wholly known to be, unless these are many."""
        rows = [row for row in self.rows(result) if row["result"] != "ok" or row["undecided"]]
        shown = rows[: MOST_ROWS - self._shown]
        self._shown, self._not_shown = self._shown + len(shown), self._not_shown + len(rows) - len(shown)
        return shown

    def _segment(self, verified: VerifiedSegment) -> Row | None:
        self._counts["segments"] += verified.was_read
        self._counts["bytes"] += verified.size_bytes
        self._counts["different"] += bool(verified.problems)
        self._counts["gone"] += verified.is_retained_away
        return row_of(VerifiedRow, verified) if verified.was_read or verified.problems else None

    def totals(self) -> Row:
        """Return how many there are of each."""
        resumed, not_asked_for = self._of_manifests()
        return {**self._counts, "resumed": resumed, "notAskedFor": not_asked_for}

    def _of_manifests(self) -> tuple[int, int]:
        """Return how many segments an interrupted run has read, and how many were not to be."""
        resumed = self._resumed + sum(check.resumed for check in self._checks)
        return resumed, self._not_asked_for + sum(check.not_asked_for for check in self._checks)

    def tail(self) -> Row:
        """Return the totals, and what the segments of each partition are together."""
        return {**self.totals(), "chains": [chain_row(log_chain) for log_chain in self._chains]}

    def closing(self) -> Iterator[str]:
        """Yield the offsets of each partition, saying which is which of two of a name, and the totals in words."""
        ids, layouts = (
            Counter(
                topic_partition for topic_partition, _ in {(one.topic_partition, what(one)) for one in self._chains}
            )
            for what in (attrgetter("topic_id"), attrgetter("layout"))
        )
        broken = [chain for chain in self._chains if chain.gaps or chain.overlaps]
        are_summed = len(self._chains) > MOST_ROWS
        if self._not_shown:
            yield f"Not shown: {some(self._not_shown, 'more segment')}; `--output json` has each."
        for one in broken if are_summed else self._chains:
            of = f", topic id {one.topic_id}" if ids[one.topic_partition] > 1 and one.topic_id else ""
            of += f", layout {one.layout}" if layouts[one.topic_partition] > 1 else ""
            gaps = f", {some(len(one.gaps), 'gap')}" if one.gaps else ""
            overlaps = f", {some(len(one.overlaps), 'overlap')}" if one.overlaps else ""
            yield (
                f"{one.topic_partition}{of}: offsets [{one.start}, {one.end}) in {some(one.segments, 'segment')}"
                f"{gaps}{overlaps}."
            )
        if are_summed:
            whole = some(len(self._chains) - len(broken), "partition")
            yield f"{whole} without a gap or an overlap; `--output json` has each."
        if count := self._of_manifests()[0]:
            begun = second(self._checks[0].journal.begun_ms)
            yield f"The run of {begun}, which was interrupted, had read back {some(count, 'segment')}."
        counts = self._counts
        differ = counts["snapshotsDifferent"]
        yield (
            f"{some(counts['segments'], 'segment')} read back ({human_bytes(counts['bytes'])}),"
            f" {human_count(counts['different'])} with differences; {some(counts['snapshotsReplayed'], 'snapshot')} "
            f"compared with a replay, {human_count(differ)} of them {agreeing(differ, 'differs', 'differ')}"
            f"{' or cannot be compared' if differ else ''}."
        )
        if self.has_faults or self.is_cut_short:
            yield AGAIN
        elif self._lacks_manifests:
            yield "Next: `resnap tier` ships segments without a manifest again, from where they are still on a disk."
        elif not counts["segments"] and not self._of_manifests()[0]:
            yield "Next: the same command without --since: nothing was read back."
        else:
            yield "Next: nothing is left to do: the store holds what its manifests and a replay say."


def _store_in(sources: Sequence[str], context: Context) -> str | None:
    """Return the store of shipped segments among ``sources``; None where all of them are logs.

    Raises:
        UsageError: there is more than it.
        StoreError: the store failed.

    """
    reading = Sources(s3=context.settings.s3())
    found = ((source, layout_at(source, reading)) for source in sources if is_store_url(source))
    store = next((url for url, layout in found if layout is not None and not layout.is_plain_copy), None)
    if store is not None and len(sources) > 1:
        raise UsageError(f"{store} is a store: it is verified by itself", hint="run `resnap verify` once for each")
    return store


def _moment(since: str, context: Context) -> int:
    try:
        return parse_moment(since, context.clock.now_ms())
    except ValueError as error:
        raise UsageError(f"--since {since}: {error}") from error


def view_of(request: VerifyRequest, _: Context) -> View[Any]:
    """Return how the results of this run are shown."""
    if request.store is not None:
        return StoreView()
    staged = request.snapshots
    path = None if staged is None else local_path(staged) if is_store_url(staged) else Path(staged)
    is_beside = path is not None and log_dir_around(path) is not None  # where nothing is made, nor installed from
    return JudgedView(request.scope, None if is_beside else staged)


VERB = Verb(
    takes=(PARTITIONS, REMOTE, ("kafka_version",), REPLAY, ENGINE, READING, MEMORY, STORE),
    request=VerifyRequest,
    run=run,
    view=view_of,
    reads="store",
    of_shell=("snapshots", "store"),
    rows=(UnfitRow,),
)
