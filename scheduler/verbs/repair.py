"""The job ``repair``: replaces wrong snapshots and transaction indexes of tiered segments with correct ones.

Originals are saved in the store, below ``.resnap/repaired/<run>/``, and ``--undo`` restores them.
"""

from __future__ import annotations

import secrets
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.flags import ENGINE, READING, REPLAY, STORE, TOPIC, WRITE
from resnap.scheduler.job.contract import PartitionState, Reported, Request, Result, Verb, View
from resnap.scheduler.job.replaying import planner_of
from resnap.scheduler.job.reports import AGAIN, CostRow, Identity, SummedView, count_of, identity
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import PARTITION, Column
from resnap.scheduler.verbs.planned import AND_DO_IT, beginnings_gone
from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.log.names import TopicPartition
from resnap.storage.sources.log_dirs import tiered_part
from resnap.storage.sources.registry import manifests_above
from resnap.storage.stores.probe import Condition, condition, replacement
from resnap.storage.stores.urls import open_store
from resnap.storage.words import counts_text, some
from resnap.tiering.planner import cost_of
from resnap.tiering.repair import PartRepair, RepairedPartition, repair
from resnap.tiering.repairing.originals import RECORD, REPAIRED, Replacements, folders_in, read_record, runs
from resnap.tiering.repairing.replacing import Replacer
from resnap.tiering.selection import Scope, nothing_in
from resnap.tiering.shipping.lease import lease_on
from resnap.tiering.store_check import store_checks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.scheduler.job.contract import Context, Report
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore

_ALONE: Final = "make sure that nothing ships or deletes there, brokers included, and give --no-other-writers"


class RepairRequest(Request):
    """Replace snapshots and transaction indexes that a replay of what is tiered proves wrong, and nothing else.

    The originals are kept in the store, and --undo puts them back. What cannot be repaired is named.
    """

    url: Annotated[
        str, typer.Argument(metavar="URL", help="The store that brokers or `resnap tier` wrote to, or a part of it.")
    ]
    no_other_writers: Annotated[
        bool,
        typer.Option(
            help="Promise that nothing writes or deletes there now, brokers included; needed for stores that ignore "
            "conditions on what they replace."
        ),
    ] = False
    undo: Annotated[
        str | None, typer.Option(metavar="RUN", help="Put back what the run of this name has replaced.")
    ] = None


def run(request: RepairRequest, context: Context, report: Report) -> None:
    """Report the name of the run, then what is repaired, by partition; or what is put back, by segment.

    Raises:
        UsageError: nothing would keep others from writing meanwhile, manifests above name what is there, or there is
            no run to undo.
        StoreError: the store failed.

    """
    sources = context.engine().reading.sources
    store = tiered_part(request.url, sources).store
    if request.undo is not None:
        _undo(request.undo, store, request, context, report)
        return
    _refuse_below_manifests(store, request, sources)
    below = open_store(request.url, context.settings.s3())
    checks = store_checks(planner_of(context), below, request.scope)
    if not any(check.listing.manifests for check in checks):
        named = replace(request.scope, sources=(request.url,))
        raise nothing_in(named) if named.topics else _nothing_tiered(request.url)
    name = f"{datetime.fromtimestamp(context.clock.now_ms() / 1000, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    replacer = Replacer(store=store, run=name, is_conditional=_is_conditional(store, request, context))
    is_dry = context.settings.dry_run

    def heard(parts: Sequence[PartRepair]) -> None:
        for result in _results(parts, is_dry=is_dry):
            report(result)

    report(Reported(what=name))
    repair(checks, None if is_dry else replacer, context.clock.now_ms, context.progress, heard)


def _refuse_below_manifests(store: ObjectStore, request: RepairRequest, sources: Sources) -> None:
    """Refuse the folder of brokers' objects alone where manifests of Resnap's are above: they name the same objects."""
    above = manifests_above(store.url, sources)
    if above is not None:
        what = f"{request.url} is a part of {above}, whose manifests name digests of what lies there"
        topics = [word for topic in request.scope.topics for word in ("--topic", topic)]
        raise UsageError(what, hint=f"`{shlex.join(['resnap', 'repair', above, *topics])}` repairs both")


def _is_conditional(store: ObjectStore, request: RepairRequest, context: Context) -> bool:
    """Return whether the store replaces one version only; refuse where nothing keeps other writers away."""
    if context.settings.dry_run:
        return False
    found = replacement(store)
    if request.no_other_writers:
        return found is Condition.KEPT
    if found is not Condition.KEPT:
        what = f"{store.url}: conditions on the version that is replaced (If-Match) are {found}"
        raise UsageError(f"{what}, so nothing prevents others from writing at the same time", hint=_ALONE)
    alone = condition(store)
    if alone is not Condition.KEPT:
        what = f"{store.url}: conditional writes are {alone}, so no lease protects against other runs"
        raise UsageError(what, hint=_ALONE)
    return True


def _results(parts: Sequence[PartRepair], *, is_dry: bool) -> Iterator[Result]:
    yield Result(faults=tuple(failure for part in parts for failure in part.failures))
    done = PartitionState.PLANNED if is_dry else PartitionState.DONE
    for one in (partition for part in parts for partition in part.partitions):
        yield Reported(
            topic_partition=one.topic_partition,
            state=PartitionState.FAILED if one.failures else done if one.repaired else PartitionState.NOTHING_TO_DO,
            faults=tuple(one.failures),
            warnings=tuple(one.warnings),
            partly_done=bool(one.repaired),
            what=one,
        )


def _nothing_tiered(url: str) -> UsageError:
    hint = "give the URL that `resnap tier --to` was given, or the folder or prefix that brokers tier to"
    return UsageError(f"{url} holds no tiered segment", hint=hint)


def _undo(name: str, store: ObjectStore, request: RepairRequest, context: Context, report: Report) -> None:
    found = [folder for folder in folders_in(store, name) if folder.run == name and RECORD in folder.names]
    if not found:
        there = ", ".join(runs(folders_in(store))) or "none"
        hint = f"runs whose originals are kept there: {there}; `resnap gc` deletes them once they are old"
        raise UsageError(f"{store.url} keeps no originals of a run {name}", hint=hint)
    replacer = Replacer(store=store, run=name, is_conditional=_is_conditional(store, request, context))
    _put_back(found, replacer, request.scope, context, report)


def _put_back(found: Sequence[Any], replacer: Replacer, scope: Scope, context: Context, report: Report) -> None:
    """Put back what was replaced in scope, the last segment first; what cannot be is named."""
    is_in_scope = False
    for folder in reversed(found):
        context.check()
        try:
            record = read_record(replacer.store, folder.path)
            if not scope.wants(record.topic):
                continue
            is_in_scope = True
            if not context.settings.dry_run:
                now_ms = context.clock.now_ms()
                with lease_on(replacer.store, record.lease, verb="repair --undo", now_ms=now_ms) as lease:
                    replacer.hold_lease = lease.hold
                    replacer.put_back(folder.path, record)
        except ResnapError as error:
            is_in_scope = True
            if error.transient:
                raise
            report(Result(faults=(error,)))
        else:
            report(Reported(what=record, partly_done=not context.settings.dry_run))
    if not is_in_scope:
        raise UsageError(f"the run {replacer.run} has replaced nothing of a topic that matches --topic",
                         hint="leave out --topic to put back all that it has replaced")  # fmt: skip


class IndexRepairRow(TypedDict):
    """What was wrong with a transaction index."""

    problems: list[str]
    lacks: Annotated[int, "lacking"]


class RepairedRow(TypedDict):
    """A segment whose snapshot or transaction index is replaced."""

    baseOffset: int
    nextBaseOffset: int
    snapshot: Annotated[str | None, "verdict"]
    lacks: Annotated[int, lambda segment: segment.check.lacks.total if segment.check else 0]
    differs: Annotated[int, lambda segment: segment.check.differs.total if segment.check else 0]
    entries: Annotated[int | None, "check.replayed.result.entries"]
    transactionIndex: Annotated[IndexRepairRow | None, "index"]
    manifest: Annotated[str, "manifest_key"]


class RepairRow(Identity):
    """One partition of `resnap repair`."""

    topicId: str | None
    segments: Annotated[int, Column(title="SEGMENTS", right=True)]
    read: Annotated[CostRow, lambda repaired: row_of(CostRow, cost_of(repaired.plans))]
    repaired: Annotated[
        list[RepairedRow], Column(title="WRONG", right=True, show=count_of), Column(title="WHAT", show=_kinds)
    ]
    notRepaired: Annotated[int, lambda repaired: len(repaired.failures), Column(title="NOT REPAIRED", right=True)]
    reasons: Annotated[list[str], "failures"]


def _kinds(repaired: list[RepairedRow]) -> str:
    kinds = ((row["snapshot"], "transaction index" if row["transactionIndex"] else None) for row in repaired)
    return counts_text(kind for of_one in kinds for kind in of_one if kind)


class RepairView(SummedView[Result]):
    """A row per partition."""

    kind = "partition"
    columns = columns_of(RepairRow)
    most_first = "repaired"
    joined = ("repaired",)

    def __init__(self, url: str, *, is_dry: bool) -> None:
        self._url, self._is_dry, self._run = url, is_dry, ""
        self._totals = dict.fromkeys(("segments", "repaired", "snapshots", "transactionIndexes", "notRepaired"), 0)
        self._known_from: dict[TopicPartition, int] = {}
        """Where what is stored of a repaired partition begins."""

    def row(self, result: Result) -> Row | None:
        """Return the row of a partition, and count it."""
        match result:
            case Reported(what=RepairedPartition() as one):
                pass
            case Reported(what=str(run)):
                self._run = run
                return None
            case _:
                self._totals["notRepaired"] += len(result.faults)
                return None
        if one.repaired:
            self._known_from[one.topic_partition] = max((plan.known_from() for plan in one.plans), default=0)
        self._totals["snapshots"] += sum(segment.check is not None for segment in one.repaired)
        self._totals["transactionIndexes"] += sum(segment.index is not None for segment in one.repaired)
        self._totals["segments"] += one.segments
        self._totals["repaired"] += len({segment.manifest_key for segment in one.repaired})
        self._totals["notRepaired"] += len(one.failures)
        return row_of(RepairRow, one)

    def for_people(self, row: Row) -> Row | None:
        """Return the row of a partition that something is wrong with."""
        return row if row["repaired"] or row["notRepaired"] else None

    def totals(self) -> Row:
        """Return how much was or would be replaced, and the name of the run that ``--undo`` takes."""
        is_kept = self._totals["repaired"] and not self._is_dry
        return {"dryRun": self._is_dry, "run": self._run if is_kept else None, **self._totals}

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and how to take the run back."""
        count = self._totals
        what = (
            f"{some(count['snapshots'], 'snapshot')} and {some(count['transactionIndexes'], 'transaction index')} of"
            f" {some(count['repaired'], 'segment')}"
        )
        left = f" Not repaired: {some(count['notRepaired'], 'finding')}." if count["notRepaired"] else ""
        if not count["segments"]:
            yield "Nothing was compared or replaced."
            yield AGAIN
            return
        yield from self.summed_note()
        yield from beginnings_gone(self._known_from)
        if not count["repaired"]:
            nothing = "Nothing replaced" if left else "Nothing to repair"
            yield f"{nothing} in {some(count['segments'], 'segment')}.{left}"
            if not left:
                yield "Next: nothing is left to do."
        elif self._is_dry:
            yield f"would replace {what}.{left} Nothing was written."
            yield AND_DO_IT
        else:
            yield f"{what} replaced, each read back.{left}"
            if count["transactionIndexes"]:
                yield (
                    "Brokers keep indexes that they have fetched: to have them read the new ones, stop each, and delete"
                    " the folder remote-log-index-cache in its log dirs."
                )
            yield (
                f"The originals are kept in {REPAIRED}/{self._run} until `resnap gc --older-than` deletes them. To put"
                f" them back: resnap repair {shlex.quote(self._url)} --undo {self._run}"
            )
            if not left:
                yield f"Next: `resnap verify {shlex.quote(self._url)}` reads back what is there now."
        if left:
            yield AGAIN


class RepairUndoView(View[Result]):
    """A row per segment."""

    kind = "segment"
    columns = (
        PARTITION,
        Column(key="baseOffset", title="BASE OFFSET", right=True),
        Column(key="objects", title="OBJECTS", right=True),
    )

    def __init__(self, *, is_dry: bool) -> None:
        self._totals = {"dryRun": is_dry, "undone": 0, "notUndone": 0}

    def row(self, result: Result) -> Row | None:
        """Return the row of a segment, and count it."""
        self._totals["notUndone"] += len(result.faults)
        if not isinstance(result, Reported):
            return None
        self._totals["undone"] += 1
        record: Replacements = result.what
        return {
            **identity(TopicPartition(record.topic, record.partition)),
            "baseOffset": record.base_offset,
            "objects": len(record.changes),
            "manifest": record.manifest_key,
        }

    def closing(self) -> Iterator[str]:
        """Yield the totals in words."""
        segments = some(self._totals["undone"], "segment")
        if self._totals["dryRun"]:
            yield f"would put back {segments}. Nothing was written."
            yield AND_DO_IT
        else:
            yield f"{segments} put back, to the byte."
            yield "Next: `resnap repair` again, where the originals were wrong."


def _view(request: RepairRequest, context: Context) -> View[Result]:
    is_dry = context.settings.dry_run
    return RepairUndoView(is_dry=is_dry) if request.undo is not None else RepairView(request.url, is_dry=is_dry)


VERB = Verb(
    takes=(TOPIC, ("kafka_version",), REPLAY, ENGINE, READING, WRITE, STORE),
    request=RepairRequest,
    run=run,
    view=_view,
)
