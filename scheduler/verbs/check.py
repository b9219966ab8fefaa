"""The job ``check``: may tiering be turned on? One verdict for each topic, and one in all.

It judges what a broker's tiering would meet in each partition (``readiness.judge_partition``, as ``scan`` and the page
do), and the settings of broker and topics where they can be asked for. It reads what ``scan`` reads, and the newest
snapshot of each partition. What it was not given to judge by is named and changes no verdict; what it could not read
makes a topic unknown, unless the topic is blocked all the same.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final, NotRequired

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.failures import MISSING_FOUND, OK, PARTIAL
from resnap.scheduler.cli.flags import CLUSTER, METADATA, PARTITIONS, REMOTE, SERVER, STORE
from resnap.scheduler.job.contract import Request, Result, Verb, View
from resnap.scheduler.job.kafka_releases import facts_of, releases_of
from resnap.scheduler.job.reports import SIZES, RefusalRow, SizesRow, sizes_row, stop_lines
from resnap.scheduler.job.wiring import reading_of
from resnap.scheduler.output.answer import answer_of, turn_on_lines
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import Column
from resnap.scheduler.settings.layers import static_properties
from resnap.scheduler.settings.metadata import of_another_node
from resnap.scheduler.settings.values import split_list
from resnap.scheduler.verbs import before_move as moves
from resnap.storage.errors import ClusterError, LogDirError, UsageError
from resnap.storage.stores.urls import is_store_url
from resnap.storage.words import first_of, human_bytes
from resnap.tiering.cluster.broker_settings import describe_brokers
from resnap.tiering.judging.file_damage import damage_in_files
from resnap.tiering.judging.inventory import NEVER_TIERED
from resnap.tiering.judging.known_faults import Severity, met_faults
from resnap.tiering.judging.readiness import TieringSizes, Verdict, day_of, judge, judge_partition, topic_verdict
from resnap.tiering.judging.refusal import Reason, Stop, UnblockedBy
from resnap.tiering.judging.tiering_settings import ASKED, LOG_DIRS, broker_setting_blockers, topic_setting_blockers
from resnap.tiering.selection import high_watermark_of, joined_once, segments_in, select, warn_unmatched

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from resnap.scheduler.job.contract import Context
    from resnap.scheduler.job.kafka_releases import BrokerReleases
    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.settings.settings import Settings
    from resnap.storage.errors import ResnapError
    from resnap.storage.log.log_dir import PartitionProblem
    from resnap.storage.log.partition_dir import Place
    from resnap.storage.sources.files import Sources
    from resnap.tiering.cluster.broker_settings import BrokerSettings
    from resnap.tiering.judging.broker_start import BrokerStart
    from resnap.tiering.judging.readiness import JudgedPartition, Judgement
    from resnap.tiering.selection import Scope, SelectedPartition, Selection

_MOST_SHOWN: Final = 3
_FIRST: Final = (
    Reason.STRAY.value, Reason.DAMAGED.value, Reason.INDEX_UNUSABLE.value, Reason.INDEX_MISSING.value,
)  # fmt: skip
"""What is to be done something about before anything else: to ship such a log, or to start its broker, loses data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """Say for each topic whether tiering can be turned on, and what stops it.

    Ends with 0 if no topic is blocked, with 4 if one is, and with 3 if one could not be judged; topics that Kafka never
    tiers, such as compacted ones, change nothing, and --exclude-topic excludes others. It reads what
    `resnap scan` reads, and the last entry of every offset index with the batches that follow it, some 4 KiB: a log
    that ends before or inside them has lost records. It also compares leader-epoch-checkpoint with the first batches.

    With --before-move, it lists tiered partitions with producers below the local log start, which a move between disks
    would lose, and until when. It ends with 4 if there are any, or if that is not known.
    """

    before_move: Annotated[
        list[str] | None,
        typer.Option(
            "--before-move",
            metavar="TOPIC",
            help="Instead: what a move of this topic (a glob; several times) between disks of a broker would lose now.",
        ),
    ] = None


def _reasons(value: object) -> str:
    found = Counter(str(one["reason"]) for one in value) if isinstance(value, list) else {}
    return ", ".join(f"{reason} ({count})" if count > 1 else reason for reason, count in found.items()) or "-"


class BlockerRow(TypedDict):
    """What stops the tiering of a topic, or is to be known of it; null as partition where it is the whole topic."""

    partition: int | None
    reason: str | None
    detail: str
    hint: str
    unblockedBy: UnblockedBy | None
    untilMs: int | None
    baseOffset: NotRequired[int]
    nextBaseOffset: NotRequired[int | None]


class TopicRow(SizesRow):
    """One topic of `resnap check`."""

    topic: Annotated[str, Column(title="TOPIC")]
    verdict: Annotated[Verdict, Column(title="VERDICT", is_state=True)]
    partitions: Annotated[int, Column(title="PARTITIONS", right=True, extra=True)]
    verdicts: dict[Verdict, int]
    remoteStorageEnable: bool | None
    blockers: Annotated[list[BlockerRow], Column(title="WHY", show=_reasons)]
    warnings: list[BlockerRow]
    unknown: list[str]
    notChecked: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTopic(Result):
    """One topic."""

    row: TopicRow
    is_stored: bool
    """Whether remote storage that was named holds segments of it."""
    faults_not_checked: str | None
    """Why Kafka's known faults of some brokers are not checked, as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    """Judges topics by the settings of one run, and by what the cluster and the brokers have said."""

    sources: Sources
    now_ms: int
    transaction_max_timeout_ms: int
    expiration_ms: int
    high_watermark: int | None
    asked_cluster: bool
    by_broker: tuple[Stop, ...] | None
    """What the broker's settings say against tiering; None where they were not given."""
    stored: Collection[str]
    """Topics of which remote storage that was named holds segments."""
    releases: BrokerReleases
    starts: Mapping[Place, BrokerStart]
    """What a broker finds wrong with each partition when it starts, by their paths."""
    log_dirs: int
    """The most log dirs that a broker has, as far as is known."""
    unanswered: Sequence[str]
    """Why the cluster, a broker of it, or a file of a log dir did not answer."""

    def topic(
        self, name: str, partitions: Sequence[SelectedPartition], unread: Sequence[PartitionProblem]
    ) -> CheckedTopic:
        """Return the result for a topic."""
        sizes = TieringSizes()
        blockers: list[BlockerRow] = []
        warnings: list[BlockerRow] = []
        verdicts: Counter[Verdict] = Counter()
        unknown = [str(problem.error) for problem in unread]
        for selected in partitions:
            judged = judge_partition(
                selected.inventory,
                self.sources,
                now_ms=self.now_ms,
                transaction_max_timeout_ms=self.transaction_max_timeout_ms,
                expiration_ms=self.expiration_ms,
                high_watermark=self.high_watermark,
                retention_ms=selected.retention_ms,
                facts=selected.live_facts,
                remote_end=selected.remote_end,
                in_files=damage_in_files(selected.inventory.partition, self.sources),
                start=self.starts[selected.inventory.partition.path],
            )
            answer = judge(judged.facts, ())
            verdicts[answer.verdict] += 1
            sizes += judged.sizes()
            number = selected.topic_partition.partition
            blockers += _blocker_rows(number, judged, answer)
            unknown += [refusal.detail for refusal in judged.blockers.found if refusal.reason is Reason.UNREADABLE]
            warnings += [{"partition": number, **row_of(RefusalRow, one)} for one in judged.blockers.shipped_as_is]
        by_setting = self._setting_rows(partitions)
        facts = facts_of(partitions, self.log_dirs, self.sources, self.expiration_ms)
        for met in (fault for fault in met_faults(self.releases.known, facts) if fault.met):
            rows = blockers if met.fault.severity is Severity.BLOCKS else warnings
            rows.append(_row_of_all(met.fault.name, met.detail, met.hint))
        unknown += self.unanswered
        is_blocked = any(one["unblockedBy"] is not None for one in (*by_setting, *blockers))
        by_all = [*verdicts, *([Verdict.BLOCKED] if is_blocked else ()), *([Verdict.UNKNOWN] if unknown else ())]
        live = next((selected.live for selected in partitions), None)
        row: TopicRow = {
            "topic": name,
            "verdict": topic_verdict(by_all),
            "partitions": len({one.topic_partition for one in partitions} | {one.topic_partition for one in unread}),
            "verdicts": dict(sorted(verdicts.items())),
            "remoteStorageEnable": None if live is None else live.is_tiered,
            **sizes_row(sizes.all_blocked() if by_setting else sizes),
            "blockers": [*by_setting, *blockers],
            "warnings": warnings,
            "unknown": unknown,
            "notChecked": list(self._not_checked(partitions)),
        }
        return CheckedTopic(
            row=row,
            is_stored=name in self.stored,
            faults_not_checked=self.releases.not_checked,
            faults=tuple(problem.error for problem in unread),
        )

    def _setting_rows(self, partitions: Sequence[SelectedPartition]) -> list[BlockerRow]:
        live = next((selected.live for selected in partitions), None)
        found = [*(self.by_broker or ()), *(() if live is None else topic_setting_blockers(live))]
        return [_row_of_all(stop.reason, stop.detail, stop.hint) for stop in found]

    def _not_checked(self, partitions: Sequence[SelectedPartition]) -> Iterator[str]:
        """Yield what there was nothing to judge by."""
        if self.by_broker is None:
            yield "broker-settings"
        if not self.asked_cluster:
            yield "topic-settings"
            yield "last-stable-offset"
        if any(selected.inventory.partition.topic_id is None for selected in partitions):
            yield "topic-id"
        if any(selected.inventory.partition.high_watermark is None for selected in partitions):
            yield "high-watermark"
        if any(selected.live_facts is None or selected.live_facts.remote_end_offset is None for selected in partitions):
            yield "shipped"
        if self.releases.not_known is not None:
            yield "known-faults"
        yield "record-batches"


def run(request: Asked, context: Context) -> Iterator[Result]:
    """Return the result for each topic in scope; those that brokers never tier are excluded unless named.

    Raises:
        UsageError: a source is not what it should be.

    """
    scope, settings = request.scope, context.settings
    if request.before_move:
        if scope.topics:
            raise UsageError("--before-move names the topics itself", hint="leave out --topic")
        return moves.run(replace(scope, topics=tuple(request.before_move), topic_flag="--before-move"), context)
    sources = reading_of(settings).sources
    unanswered: list[str] = []
    known: list[Mapping[str, str]] = []
    if settings.server_properties is not None:
        known.append(static_properties(settings.server_properties))
        of_another = of_another_node(settings.server_properties, scope.sources)
        if of_another is not None:
            context.warn(of_another)
    faults: list[ResnapError] = []
    try:
        scope = joined_once(scope, sources)
        selection = select(scope, sources)
        brokers, releases = _settings_and_releases(scope, selection, settings)
    except LogDirError as error:
        return iter([Result(faults=(error,))])
    except ClusterError as error:
        faults.append(error)
        unanswered.append(str(error))
        scope = replace(scope, connect=None)
        selection, brokers, releases = select(scope, sources), [], releases_of(settings, None)
    warn_unmatched(scope, selection, context.warn)
    if any(selected.log_dir.is_shipped for selected in selection.partitions):
        store = next(source for source in scope.sources if is_store_url(source))
        hint = f"give a broker's log dir; `resnap verify {shlex.quote(store)}` reads back what was tiered"
        raise UsageError(f"{store} holds tiered segments, and is not a log dir", hint=hint)
    unanswered += [broker.error for broker in brokers if broker.error is not None]
    known = [broker.values for broker in brokers if broker.error is None] or known
    judged_by = _Judge(
        sources=sources,
        now_ms=context.clock.now_ms(),
        transaction_max_timeout_ms=settings.transaction_max_timeout_ms,
        expiration_ms=settings.expiration_ms,
        high_watermark=high_watermark_of(scope, selection, sources, context.warn),
        asked_cluster=scope.connect is not None,
        by_broker=tuple(dict.fromkeys(chain.from_iterable(map(broker_setting_blockers, known)))) if known else None,
        stored={one.topic_partition.topic for one in (scope.joining.stored.partitions if scope.joining else ())},
        releases=releases,
        starts=selection.starts(sources),
        log_dirs=max([selection.most_log_dirs, *(len(split_list(one.get(LOG_DIRS, ""))) for one in known)]),
        unanswered=unanswered,
    )
    return chain(_check(judged_by, scope, selection, context), (Result(faults=(fault,)) for fault in faults))


def _settings_and_releases(
    scope: Scope, selection: Selection, settings: Settings
) -> tuple[Sequence[BrokerSettings], BrokerReleases]:
    """Return the settings of the brokers of the log dirs, where the cluster is to be asked, and the releases of all."""
    if scope.connect is None:
        return [], releases_of(settings, None)
    ids = {selected.log_dir.broker_id for selected in selection.partitions}
    with scope.connect() as cluster:
        found = [broker for broker in describe_brokers(cluster, ASKED) if broker.broker_id in ids or ids == {None}]
        return found, releases_of(settings, cluster)


def _check(judged_by: _Judge, scope: Scope, selection: Selection, context: Context) -> Iterator[Result]:
    unread: dict[str, list[PartitionProblem]] = {}
    of_log_dirs = [problem.error for problem in selection.problems if problem.topic_partition is None]
    yield from (Result(faults=(error,)) for error in of_log_dirs)
    for problem in selection.problems:
        if problem.topic_partition is not None:
            unread.setdefault(problem.topic_partition.topic, []).append(problem)
    judged_by = replace(judged_by, unanswered=[*judged_by.unanswered, *map(str, of_log_dirs)])
    topics: dict[str, list[SelectedPartition]] = {}
    for selected in selection.partitions:
        topics.setdefault(selected.topic_partition.topic, []).append(selected)
    names = (topics.keys() | unread.keys()) - (set() if scope.topics or scope.partitions else NEVER_TIERED)
    with context.progress("check") as (progress,):
        progress.expect(segments_in(selection.partitions), 0)
        for name in sorted(names):
            yield judged_by.topic(name, topics.get(name, []), unread.get(name, []))
            progress.advance(segments_in(topics.get(name, [])), 0)


def _blocker_rows(partition: int, judged: JudgedPartition, answer: Judgement) -> Iterator[BlockerRow]:
    """Yield what stops a broker in a partition, and what is in the way of a replay that would change it."""
    if answer.verdict in {Verdict.READY, Verdict.UNKNOWN}:
        return
    found = [refusal for refusal in judged.blockers.found if refusal.reason is not Reason.UNREADABLE]
    if answer.verdict is Verdict.NEVER or judged.lost_state is not None or not found:
        yield {
            "partition": partition,
            "reason": answer.reason,
            "detail": answer.detail,
            "hint": answer.next_step,
            "unblockedBy": answer.unblocked_by,
            "untilMs": answer.until_ms,
        }
    if answer.verdict is Verdict.NEVER or not found:
        return
    blocking = judged.candidates.blocking
    if blocking is not None and blocking.reason not in {Reason.HW_UNKNOWN, *(refusal.reason for refusal in found)}:
        found.append(blocking)
    for refusal in found:
        yield {"partition": partition, **row_of(RefusalRow, refusal)}


def _row_of_all(reason: str, detail: str, hint: str) -> BlockerRow:
    """Return the row of what blocks a whole topic."""
    by = UnblockedBy.OTHER
    return {"partition": None, "reason": reason, "detail": detail, "hint": hint, "unblockedBy": by, "untilMs": None}


@dataclass(slots=True)
class CheckView(View[Result]):
    """A row per topic; people see what is blocked first."""

    scope: Scope
    settings: Settings

    name = "topics"
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
    _held: list[Row] = field(default_factory=list)
    _stored: list[str] = field(default_factory=list)

    def row(self, result: Result) -> Row | None:
        """Return the row of a topic, and count it."""
        if not isinstance(result, CheckedTopic):
            self._is_unread = self._is_unread or bool(result.faults)
            return None
        row = result.row
        ends_ms = [one["untilMs"] for one in row["blockers"]]
        until = "" if None in ends_ms or not ends_ms else f" until {day_of(max(filter(None, ends_ms)))}"
        self._by_verdict[row["verdict"]].append(f"{row['topic']}{until}")
        self._sizes.update({key: value for key in SIZES if isinstance(value := row[key], int)})
        self._not_checked |= dict.fromkeys(row["notChecked"])
        self._faults_not_checked = result.faults_not_checked
        for one in row["blockers"]:
            self._blockers.setdefault(str(one["reason"]), (row["topic"], one))
        for one in row["warnings"]:
            self._warnings.setdefault(str(one["reason"]), (row["topic"], one))
        if row["verdict"] is Verdict.UNKNOWN and not result.faults and len(self._unknown) < _MOST_SHOWN:
            self._unknown += [why for why in row["unknown"][:1] if why not in self._unknown]
        if row["verdict"] is Verdict.READY and row["remoteStorageEnable"] is not True:
            is_stored = result.is_stored and row["remoteStorageEnable"] is None
            (self._stored if is_stored else self._off).append(row["topic"])
        return row

    def table_rows(self, result: Result) -> Iterable[Row]:
        """Keep back the row of a topic."""
        self._held += self.rows(result)
        return ()

    def rest(self) -> Iterator[Row]:
        """Yield the topics, by verdict, then name."""
        yield from sorted(self._held, key=lambda row: Verdict(str(row["verdict"])).rank)

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
        for topic, one in (*self._blockers.values(), *self._warnings.values()):
            yield from stop_lines(one, topic if one["partition"] is None else f"{topic}-{one['partition']}")
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
            yield f"Not checked: {', '.join(self._not_checked)}{more}."
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
        blocker = next((self._blockers[one] for one in (*_FIRST, *self._blockers) if one in self._blockers), None)
        if blocker is not None and blocker[1]["unblockedBy"] is None:  # what Kafka never tiers
            blocker = next((one for one in self._blockers.values() if one[1]["unblockedBy"] is not None), None)
        if Reason.MISSING_SNAPSHOT in self._blockers and not self._blockers.keys() & {*_FIRST}:
            install = self.scope.install_command("DIR")
            yield f"{word}: `resnap regenerate {self.scope.typed} --into DIR`, then `{install}`."
        elif blocker is not None:
            topic, one = blocker
            where = topic if one["partition"] is None else f"{topic}-{one['partition']}"
            yield f"{word}: {where}: {one['hint']}."
        elif self.verdict is Verdict.UNKNOWN:
            yield f"{word}: repair what could not be read, then `resnap check {self.scope.typed}` again."
        elif self._stored:
            yield f"{word}: `resnap check {self.scope.typed} --bootstrap-server HOST:PORT`."
        elif not self._off:
            known = {True: "tiering is on for each topic that Kafka tiers", False: "Kafka tiers none of these topics"}
            yield f"Next: nothing is left to do: {known[bool(self._by_verdict[Verdict.READY])]}."


VERB = Verb(
    takes=(
        *(PARTITIONS, CLUSTER, REMOTE, SERVER, METADATA),
        *(("producer_id_expiration_ms", "transaction_max_timeout_ms"), STORE),
    ),
    request=Asked,
    run=run,
    view=lambda request, context: (
        moves.BeforeMoveView() if request.before_move else CheckView(request.scope, context.settings)
    ),
)
