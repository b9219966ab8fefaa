"""The job ``check``: may tiering be turned on? One verdict for each topic, and one in all.

``tiering.check`` judges the topics. Here is what it judges by: log dirs, the settings of their brokers, the cluster.

``--before-move`` says instead what partitions would lose by a move to another disk now. A replica that is moved between
two disks of its broker starts from remote storage, and then knows the producers of its local segments alone
(``docs/lost-producer-state.md``). So a move is safe once no producer whose last batch, or whose open transaction, is
below the local log start is unexpired. The newest snapshot shows them; producers that have written since then may be
safe already. A replica that has lost state before does not show all: its row says so.

Source: ``ReplicaAlterLogDirsThread``, ``TierStateMachine.buildProducerSnapshotFile``.
"""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Final, NotRequired

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.failures import MISSING_FOUND, OK, PARTIAL
from resnap.scheduler.cli.flags import CLUSTER, METADATA, PARTITIONS, REMOTE, SERVER, STORE
from resnap.scheduler.job.contract import Reported, Request, Result, Verb, unread
from resnap.scheduler.job.reports import (
    MOST_ROWS,
    SIZES,
    Identity,
    SizesRow,
    SummedView,
    count_of,
    most_urgent,
    stop_lines,
    summed_rest,
)
from resnap.scheduler.job.wiring import reading_of
from resnap.scheduler.output.answer import answer_of, turn_on_lines
from resnap.scheduler.output.records import columns_of, instant_of, row_of
from resnap.scheduler.output.rendering import Column, or_dash
from resnap.scheduler.settings.layers import static_properties
from resnap.scheduler.settings.metadata import of_another_node
from resnap.storage.errors import ClusterError, LogDirError, ResnapError, UsageError
from resnap.storage.log.producer_snapshot import read_snapshot
from resnap.storage.stores.urls import is_store_url
from resnap.storage.words import first_of, human_bytes, human_count, some
from resnap.tiering.broker_releases import releases_of
from resnap.tiering.check import BATCHES, CheckWork, check
from resnap.tiering.cluster.broker_settings import describe_brokers
from resnap.tiering.judging.lost_producer_state import state_of_replica
from resnap.tiering.judging.readiness import Verdict, day_of
from resnap.tiering.judging.refusal import ASKED, Reason, UnblockedBy
from resnap.tiering.selection import high_watermark_of, joined_once, select, warn_of_gaps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resnap.scheduler.job.contract import Context, Report
    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.settings.settings import Settings
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.storage.sources.files import Sources
    from resnap.tiering.selection import Scope, Selection

_MOST_SHOWN: Final = 3


class CheckRequest(Request):
    """Say for each topic whether tiering can be turned on, and what stops it.

    Ends with 0 if no topic is blocked, with 4 if one is, and with 3 if one could not be judged; topics that Kafka never
    tiers, such as compacted ones, change nothing, and --exclude-topic excludes others. It reads what `resnap scan`
    reads, the first batch of each closed segment, and the last entry of its offset index with the batches that follow,
    some 4 KiB. They show lost records, wrong offsets, and a wrong leader-epoch-checkpoint; `tier` reads those between.

    With --before-move, it lists tiered partitions with producers below the local log start, which a move between disks
    would lose, and until when. It ends with 4 if there are any, or if that is not known.
    """

    before_move: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="Instead: what a move of this topic (a glob; several times) between disks of a broker would lose now.",
        ),
    ] = None


def _reasons(blockers: list[BlockerRow]) -> str:
    found = Counter(str(blocker["reason"]) for blocker in blockers)
    return ", ".join(f"{reason} ({count})" if count > 1 else reason for reason, count in found.items()) or "-"


class BlockerRow(TypedDict):
    """What stops the tiering of a topic, or is to be known of it; null as partition where it is the whole topic."""

    partition: int | None
    baseOffset: NotRequired[Annotated[int, "stop.base_offset"]]
    nextBaseOffset: NotRequired[Annotated[int | None, "stop.next_base_offset"]]
    reason: Annotated[str | None, "stop.reason"]
    detail: Annotated[str, "stop.detail"]
    hint: Annotated[str, "stop.hint"]
    unblockedBy: Annotated[UnblockedBy | None, "stop.unblocked_by"]
    untilMs: Annotated[int | None, "stop.until_ms"]


class _Head(TypedDict):
    """What stands before the sizes."""

    topic: Annotated[str, Column(title="TOPIC")]
    verdict: Annotated[Verdict, Column(title="VERDICT", is_state=True)]
    partitions: Annotated[int, Column(title="PARTITIONS", right=True, extra=True)]
    verdicts: dict[Verdict, int]
    remoteStorageEnable: Annotated[bool | None, "is_tiered"]


class TopicRow(_Head, SizesRow):
    """One topic of `resnap check`."""

    blockers: Annotated[list[BlockerRow], Column(title="WHY", show=_reasons)]
    warnings: list[BlockerRow]
    unknown: list[str]
    notChecked: list[str]


def run(request: CheckRequest, context: Context, report: Report) -> None:
    """Report each topic in scope; those that brokers never tier are excluded unless named.

    Raises:
        UsageError: a source is not what it should be.

    """
    scope, properties = request.scope, context.settings.server_properties
    if request.before_move:
        if scope.topics:
            raise UsageError("--before-move names the topics itself", hint="leave out --topic")
        scope = replace(scope, topics=tuple(request.before_move), topic_flag="--before-move")
        _before_move(scope, context, report)
        return
    if properties is not None and (of_another := of_another_node(properties, scope.sources)) is not None:
        context.warn(of_another)
    silent: list[ClusterError] = []
    try:
        work = _work(scope, context)
    except LogDirError as error:
        report(Result(faults=(error,)))
        return
    except ClusterError as error:
        silent.append(error)
        work = _work(replace(scope, connect=None), context, silent)
    for fault in _of_log_dirs(work.selection):
        report(Result(faults=(fault,)))
    with context.progress("check") as (progress,):
        check(work, progress, lambda topic: report(Reported(what=topic, faults=topic.faults)))
    for fault in silent:
        report(Result(faults=(fault,)))


def _work(scope: Scope, context: Context, silent: Sequence[ClusterError] = ()) -> CheckWork:
    """Return what is to be checked; ``silent`` says why the cluster does not answer, where it was to be asked."""
    settings, sources = context.settings, reading_of(context.settings).sources
    scope = joined_once(scope, sources)
    selection = select(scope, sources)
    with nullcontext() if scope.connect is None else scope.connect() as cluster:
        releases = releases_of(settings.kafka_version, settings.metadata, cluster)
        ids = {selected.log_dir.broker_id for selected in selection.partitions}
        brokers = [] if cluster is None else describe_brokers(cluster, ASKED)
        brokers = [broker for broker in brokers if broker.broker_id in ids or ids == {None}]
    warn_of_gaps(scope, selection, context.warn)
    if any(selected.log_dir.is_shipped for selected in selection.partitions):
        store = next(source for source in scope.sources if is_store_url(source))
        hint = f"give a broker's log dir; `resnap verify {shlex.quote(store)}` reads back what was tiered"
        raise UsageError(f"{store} holds tiered segments, and is not a log dir", hint=hint)
    in_files = [] if settings.server_properties is None else [static_properties(settings.server_properties)]
    of_brokers = [broker.error for broker in brokers if broker.error is not None]
    return CheckWork(
        scope=scope,
        selection=selection,
        sources=sources,
        now_ms=context.clock.now_ms(),
        transaction_max_timeout_ms=settings.transaction_max_timeout_ms,
        expiration_ms=settings.expiration_ms,
        high_watermark=high_watermark_of(scope, selection, sources, context.warn),
        broker_settings=[broker.values for broker in brokers if broker.error is None] or in_files,
        releases=releases,
        unanswered=[str(error) for error in (*silent, *of_brokers, *_of_log_dirs(selection))],
    )


def _of_log_dirs(selection: Selection) -> list[ResnapError]:
    return [problem.error for problem in selection.problems if problem.topic_partition is None]


@dataclass(slots=True)
class CheckView(SummedView[Result]):
    """A row per topic; people see what is blocked first."""

    scope: Scope
    settings: Settings

    kind = "topic"
    columns = columns_of(TopicRow, "topic", "verdict", "partitions", *SIZES, "blockers")

    _by_verdict: dict[Verdict, list[str]] = field(default_factory=lambda: {verdict: [] for verdict in Verdict})
    """Topics."""
    _sizes: Counter[str] = field(default_factory=Counter)
    _not_checked: dict[str, None] = field(default_factory=dict)
    _faults_not_checked: str | None = None
    _blockers: dict[str, tuple[str, BlockerRow]] = field(default_factory=dict)
    """The first of each reason, and its topic."""
    _warnings: dict[str, tuple[str, BlockerRow]] = field(default_factory=dict)
    _unknown: list[str] = field(default_factory=list)
    """Why, of the topics that are unknown; what is a fault of its own is reported as one."""
    _is_unread: bool = False
    _off: list[str] = field(default_factory=list)
    """Topics that are ready, and of which nothing says that they are tiered; ``_stored`` are in remote storage."""
    _stored: list[str] = field(default_factory=list)

    def row(self, result: Result) -> Row | None:
        """Return the row of a topic, and count it."""
        if not isinstance(result, Reported):
            self._is_unread = self._is_unread or bool(result.faults)
            return None
        row, topic = row_of(TopicRow, result.what), result.what
        ends_ms = [blocker["untilMs"] for blocker in row["blockers"]]
        until = "" if None in ends_ms or not ends_ms else f" until {day_of(max(filter(None, ends_ms)))}"
        self._by_verdict[row["verdict"]].append(f"{row['topic']}{until}")
        self._sizes.update({key: value for key in SIZES if isinstance(value := row[key], int)})
        self._not_checked |= dict.fromkeys(row["notChecked"])
        self._faults_not_checked = topic.faults_not_checked
        for one in row["blockers"]:
            if row["verdict"] is not Verdict.NEVER or one["unblockedBy"] is None:  # of such a topic nothing else counts
                self._blockers.setdefault(str(one["reason"]), (row["topic"], one))
        for warning in row["warnings"]:
            self._warnings.setdefault(str(warning["reason"]), (row["topic"], warning))
        if row["verdict"] is Verdict.UNKNOWN and not result.faults and len(self._unknown) < _MOST_SHOWN:
            self._unknown += [why for why in row["unknown"][:1] if why not in self._unknown]
        if row["verdict"] is Verdict.READY and row["remoteStorageEnable"] is not True:
            is_stored = topic.is_stored and row["remoteStorageEnable"] is None
            (self._stored if is_stored else self._off).append(row["topic"])
        return row

    def table_rest(self) -> Iterator[Row]:
        """Yield the topics, by verdict, then name; above some number the rest is one row."""
        topics = sorted(self._held, key=lambda row: Verdict(str(row["verdict"])).rank)
        yield from summed_rest([(row, [row]) for row in topics], "blockers")

    @property
    def verdict(self) -> Verdict:
        """The one in all: what is blocked counts before what is unknown; where there is no topic, nothing is."""
        found = {verdict for verdict, topics in self._by_verdict.items() if topics}
        if self._is_unread or self.is_cut_short:
            found.add(Verdict.UNKNOWN)
        return Verdict.of_all(found)

    @property
    def exit_code(self) -> int:
        """What the verdict calls for; what Kafka never tiers calls for nothing."""
        return {Verdict.BLOCKED: MISSING_FOUND, Verdict.UNKNOWN: PARTIAL}.get(self.verdict, OK)

    def totals(self) -> Row:
        """Return the verdict in all, topics by verdict, and sizes."""
        return {
            "verdict": self.verdict.value,
            "topics": sum(map(len, self._by_verdict.values())),
            **{verdict.value: len(topics) for verdict, topics in self._by_verdict.items()},
            **{key: self._sizes.get(key) for key in SIZES},
            "notChecked": list(self._not_checked),
        }

    def closing(self) -> Iterable[str]:
        """Yield the first of each reason with what to do about it, the answer, and the next command."""
        yield ""
        if len(self._held) > MOST_ROWS:
            yield f"Not shown: {some(len(self._held) - MOST_ROWS, 'more topic')}; `--output json` has each."
        for topic, stop in (*self._blockers.values(), *self._warnings.values()):
            yield from stop_lines(stop, topic if stop["partition"] is None else f"{topic}-{stop['partition']}")
        if self.is_cut_short:
            self._off.clear()
            yield "Not known: the run ended before every topic was checked."
        else:
            on = len(self._by_verdict[Verdict.READY]) - len(self._off) - len(self._stored)
            is_seen = self.verdict is not Verdict.UNKNOWN
            yield from map(str, answer_of(self._by_verdict, on=on, is_seen=is_seen).sentences)
        for why in self._unknown:
            yield f"  not known: {why}"
        yield f"{human_bytes(self._sizes['freeableBytes'])} could be freed by tiering every closed segment."
        if self._not_checked:
            more = "; --bootstrap-server HOST:PORT checks more of it" if self.scope.connect is None else ""
            said = (f"{name} but a segment's first and last" if name == BATCHES else name for name in self._not_checked)
            yield f"Not checked: {', '.join(said)}{more}."
        if self._faults_not_checked is not None:
            yield self._faults_not_checked
        if self._stored:
            yield (
                f"{self.scope.remote} holds segments of {first_of(self._stored, _MOST_SHOWN)} already: nothing is left"
                " to do where remote.storage.enable is true, which --bootstrap-server HOST:PORT shows."
            )
        yield from self._next()

    def _next(self) -> Iterator[str]:
        """Yield what to do next: turn on what is ready, then what is broken, rebuilt, or blocked by something else."""
        word = "Next"
        if self._off:
            yield "These are the replicas given: check every broker's, or all at once with `resnap fleet status`."
            yield "Next: turn tiering on:"
            yield from (f"  {line}" for line in turn_on_lines(self._off, self.settings))
            word = "Then"
        urgent = most_urgent([key for key, (_, stop) in self._blockers.items() if stop["unblockedBy"] is not None])
        if urgent == Reason.MISSING_SNAPSHOT:
            install = self.scope.install_command("DIR")
            stopped = "stop the broker (start a killed one first)"
            yield f"{word}: `resnap regenerate {self.scope.typed} --into DIR`, {stopped}, then `{install}`."
        elif urgent is not None:
            topic, one = self._blockers[urgent]
            where = topic if one["partition"] is None else f"{topic}-{one['partition']}"
            yield f"{word}: {where}: {one['hint']}."
        elif self.verdict is Verdict.UNKNOWN:
            yield f"{word}: repair what could not be read, then `resnap check {self.scope.typed}` again."
        elif self._stored:
            yield f"{word}: `resnap check {self.scope.typed} --bootstrap-server HOST:PORT`."
        elif not self._off:
            known = {True: "tiering is on for each topic that Kafka tiers", False: "Kafka tiers none of these topics"}
            yield f"Next: nothing is left to do: {known[bool(self._by_verdict[Verdict.READY])]}."


class Move(Result):
    """What a move of one partition would lose.

    Attributes:
        local_start: first offset on the disk.
        at: offset of the snapshot that shows the producers; None if there is none that can be read.
        producers: those that would be lost.
        not_known: why there may be more; None if nothing shows that.
        safe_from_ms: when a move loses nothing any more; None while a transaction is open, or if it is not known.

    """

    local_start: int
    at: int | None
    producers: tuple[ProducerEntry, ...]
    not_known: str | None
    safe_from_ms: int | None

    @property
    def is_safe(self) -> bool:
        """Whether nothing would be lost."""
        return not self.producers and self.not_known is None


def _before_move(scope: Scope, context: Context, report: Report) -> None:
    """Report each partition of which a part is in remote storage alone.

    Raises:
        UsageError, LogDirError: a source is not what it should be, or nothing is in scope.

    """
    sources, settings = reading_of(context.settings).sources, context.settings
    selection = select(scope, sources)
    warn_of_gaps(scope, selection, context.warn)
    for problem in unread(selection):
        report(problem)
    for selected in selection.partitions:
        partition = selected.inventory.partition
        begins = partition.segments[0].base_offset if partition.segments else 0
        if partition.local_from is not None or begins > partition.log_start_offset:
            report(_move(partition, sources, context.clock.now_ms(), settings.expiration_ms))


def _move(partition: PartitionDir, sources: Sources, now_ms: int, expiration_ms: int) -> Move:
    start = partition.segments[0].base_offset if partition.local_from is None else partition.local_from
    at, entries = _newest(partition, sources, start)
    lost_before = state_of_replica(partition, sources, expiration_ms)
    not_known = f"no snapshot from offset {start} on can be read" if at is None else None
    if lost_before is not None:
        not_known = f"the replica seems to lack state already: {lost_before.detail}"
    lost = [
        entry
        for entry in entries
        if (entry.last_offset < start or (entry.has_open_transaction and entry.current_txn_first_offset < start))
        and (entry.has_open_transaction or now_ms - entry.timestamp < expiration_ms)
    ]
    is_open = any(entry.has_open_transaction and entry.current_txn_first_offset < start for entry in lost)
    last_ms = max((entry.timestamp for entry in lost), default=now_ms - expiration_ms)
    return Move(
        topic_partition=partition.topic_partition,
        local_start=start,
        at=at,
        producers=tuple(sorted(lost)),
        not_known=not_known,
        safe_from_ms=None if is_open or not_known else max(last_ms + expiration_ms, now_ms),
    )


def _newest(partition: PartitionDir, sources: Sources, start: int) -> tuple[int | None, Sequence[ProducerEntry]]:
    """Return the newest snapshot that can be read: its offset, and its entries."""
    for snapshot in reversed(partition.snapshots):
        if snapshot.offset < start:
            break
        try:
            return snapshot.offset, tuple(read_snapshot(sources.read(snapshot.path)).values())
        except ResnapError:
            continue
    return None, ()


class MoveRow(Identity):
    """One partition that a move would cost producer state now, or of which that is not known."""

    localStartOffset: Annotated[int, "local_start", Column(title="ON DISK FROM", right=True)]
    snapshotOffset: Annotated[int | None, "at"]
    producers: Annotated[
        list[int],
        lambda move: [producer.producer_id for producer in move.producers],
        Column(title="WOULD BE LOST", right=True, show=count_of),
    ]
    openTransactions: Annotated[
        int,
        lambda move: sum(entry.has_open_transaction for entry in move.producers),
        Column(title="OPEN", right=True),
    ]
    notKnown: Annotated[str | None, Column(title="NOT KNOWN", show=lambda value: str(value or ""))]
    safeFrom: Annotated[str | None, instant_of("safe_from_ms"), Column(title="SAFE FROM", show=or_dash)]


class BeforeMoveView(SummedView[Result]):
    """A row per partition that a move would cost producer state now, or of which that is not known."""

    kind = "partition"
    columns = columns_of(
        MoveRow, "partition", "localStartOffset", "producers", "openTransactions", "safeFrom", "notKnown"
    )
    most_first = "producers"
    joined = ("producers",)

    def __init__(self) -> None:
        self._totals = {"partitions": 0, "safe": 0, "lossy": 0, "unknown": 0}

    @property
    def exit_code(self) -> int:
        """Whether a move now may lose state."""
        return MISSING_FOUND if self._totals["lossy"] or self._totals["unknown"] else OK

    def row(self, result: Result) -> Row | None:
        """Return the row of a partition that is not safe, and count it."""
        if not isinstance(result, Move) or result.topic_partition is None:
            return None
        self._totals["partitions"] += 1
        self._totals["safe" if result.is_safe else "lossy" if result.producers else "unknown"] += 1
        if result.is_safe:
            return None
        return row_of(MoveRow, result)

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and what to do."""
        counts = self._totals
        yield ""
        yield from self.summed_note()
        yield (
            f"{some(counts['partitions'], 'partition')} with a part in remote storage alone:"
            f" {human_count(counts['safe'])} safe to move between disks,"
            f" {human_count(counts['lossy'])} would lose producer state,"
            f" {human_count(counts['unknown'])} not known."
        )
        if self.exit_code:
            yield (
                "Next: wait until the time under SAFE FROM; or raise local.retention.ms and local.retention.bytes for"
                " as long as producers live, and move then; docs/lost-producer-state.md says why."
            )


VERB = Verb(
    takes=(
        *(PARTITIONS, CLUSTER, REMOTE, SERVER, METADATA),
        *(("producer_id_expiration_ms", "transaction_max_timeout_ms"), STORE),
    ),
    request=CheckRequest,
    run=run,
    view=lambda request, context: (
        BeforeMoveView() if request.before_move else CheckView(request.scope, context.settings)
    ),
    reads="log dirs",
)
