"""`resnap producer census`: whose producer ids are active, their age, memory and expiration.

It counts the newest producer snapshot of each partition, or a replay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired

import typer
from typing_extensions import TypedDict

from resnap.replay.results import BoundaryOutcome
from resnap.replay.staging import scratch_directory, snapshot_key
from resnap.scheduler.cli.flags import CLUSTER, ENGINE, PARTITIONS, READING, REPLAY, STORE
from resnap.scheduler.job.contract import PartitionState, Request, Result, Unread, Verb, View, unread
from resnap.scheduler.job.replaying import planner_of
from resnap.scheduler.job.reports import Identity, identity
from resnap.scheduler.output.records import columns_of
from resnap.scheduler.output.rendering import Column
from resnap.scheduler.verbs.plots import check_plot, draw_census
from resnap.scheduler.verbs.quota_uses import PrincipalFile, principals_in
from resnap.storage.errors import DataError, ResnapError, UsageError, in_file
from resnap.storage.log.producer_snapshot import entries_in, snapshot_arrays
from resnap.storage.words import exact_duration, human_bytes, human_count, instant, second, some
from resnap.tiering.controller.transactions.state_log import transactional_ids
from resnap.tiering.quota.producer_census import AGES, HEAP_BYTES, Census, Owners, age_edges, makes_an_id_per_message
from resnap.tiering.selection import warn_unmatched

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resnap.scheduler.job.contract import Context
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.partition_dir import Place
    from resnap.tiering.planner import Planner
    from resnap.tiering.quota.producer_census import Ints, PrincipalMap
    from resnap.tiering.selection import SelectedPartition, Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Result):
    """The producers of one partition.

    Attributes:
        selected: the partition.
        census: whom the snapshot names.
        origin: whether a snapshot on disk was counted, or one that was replayed; ``none`` where there is neither.
        offset: of the snapshot.
        reason: why there was a replay.
        unread_bytes: size of the segments from there on, whose producers are not counted.

    """

    selected: SelectedPartition
    census: Census
    origin: Literal["snapshot", "replay", "none"]
    offset: int | None
    unread_bytes: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCounter:
    """Counts producers, partition by partition."""

    planner: Planner
    now_ms: int
    edges: Ints
    principals: PrincipalMap | None
    owners: dict[str, Owners] = field(default_factory=dict)
    """By log dir, each read once."""

    def counted(self, selection: Selection, context: Context) -> Iterator[Counted]:
        """Yield what the newest snapshots show, then what replays show of partitions that lack one."""
        lacking = []
        for selected in selection.partitions:
            context.check()
            found = self._of_snapshot(selected)
            if isinstance(found, Counted):
                yield found
            else:
                lacking.append((selected, found))
        if lacking:
            yield from self._of_replays(lacking, context)

    def _of_snapshot(self, selected: SelectedPartition) -> Counted | str:
        """Return what the newest snapshot shows, or why it has to be made first."""
        partition = selected.inventory.partition
        newest = max((snapshot.offset for snapshot in partition.snapshots), default=None)
        boundary = max(partition.boundaries, default=None)
        if newest is None and boundary is None:
            return self._result(selected)
        if newest is None or newest < (boundary or 0):
            is_there = "there is no" if newest is None else f"{newest} is the newest"
            return f"{is_there} snapshot, and offset {boundary} has none"
        try:
            census = self._read(selected, partition.snapshots[-1].path)
        except ResnapError as error:
            if boundary is None:
                return self._result(selected, error=error)
            return str(error)
        if newest is not None:
            last = partition.snapshots[-1]
            self.planner.on_state(selected.topic_partition, newest, entries_in(last.size_bytes), last.path)
        return self._result(selected, census, "snapshot", newest)

    def _of_replays(self, lacking: list[tuple[SelectedPartition, str]], context: Context) -> Iterator[Counted]:
        """Replay the newest boundaries, here: what executors write, this process may not see."""
        engine = self.planner.engine
        planner = replace(self.planner, engine=replace(engine, kind="local")) if engine.is_remote else self.planner
        why = {selected.topic_partition: (selected, text) for selected, text in lacking}
        with scratch_directory("census") as scratch, context.progress("replay") as (progress,):
            planned = [
                planner.boundaries(selected, selected.inventory.partition.boundaries[-1:], None, None)
                for selected, _ in lacking
            ]
            for replayed in planner.replay(planned, scratch.as_uri(), progress):
                result = replayed.result
                selected, text = why[result.topic_partition]
                (found,) = result.boundaries
                if found.outcome is not BoundaryOutcome.REBUILT:
                    error = result.error or DataError(f"{result.topic_partition}: {found.reason}")
                    yield self._result(selected, error=error)
                    continue
                made = scratch / snapshot_key(result.topic_partition, found.offset)
                census = self._read(selected, str(made))
                made.unlink()
                yield replace(self._result(selected, census, "replay", found.offset), reason=text)

    def _read(self, selected: SelectedPartition, locator: str) -> Census:
        """Count a snapshot, a few thousand entries at a time; nothing counts of one whose checksum is wrong."""
        census, owners = Census.empty(self.edges), self._owners(selected.log_dir.path)
        with in_file(locator), self.planner.engine.reading.sources.open(locator) as file:
            for entries in snapshot_arrays(file.read, file.size_bytes):
                census.count(selected.topic_partition.topic, entries, self.now_ms, owners)
        return census

    def _owners(self, log_dir: Place) -> Owners:
        known = self.owners.get(str(log_dir))
        if known is None:
            names = transactional_ids(log_dir)
            known = Owners(None if self.principals is None else self.principals.knowing(names), names)
            self.owners[str(log_dir)] = known
        return known

    def _result(
        self,
        selected: SelectedPartition,
        census: Census | None = None,
        origin: Literal["snapshot", "replay", "none"] = "none",
        offset: int | None = None,
        error: ResnapError | None = None,
    ) -> Counted:
        segments = selected.inventory.partition.segments
        return Counted(
            topic_partition=selected.topic_partition,
            state=PartitionState.DONE if error is None else PartitionState.FAILED,
            faults=() if error is None else (error,),
            partly_done=True,
            selected=selected,
            census=Census.empty(self.edges) if census is None else census,
            origin=origin,
            offset=offset,
            unread_bytes=sum(one.size_bytes for one in segments if offset is None or one.base_offset >= offset),
        )


MOST_PRINCIPALS: Final = 20
"""Most principals that people are shown."""
MOST_NAMED: Final = 5
"""Most transactional ids that people are shown."""
MOST_TRANSACTIONAL_IDS: Final = 1_000
"""Most of them in JSON, those with the most producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CensusRequest(Request):
    """Count the producers that a broker holds: by topic and age, what memory they take, and what expires when."""

    under_ms: Annotated[
        int | None,
        typer.Option("--under", metavar="MS", min=1, help="Another producer.id.expiration.ms to show the effect of."),
    ] = None
    principal_map: PrincipalFile = None
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw ages and expiry into a .png or .svg file.")
    ] = None


def run(request: CensusRequest, context: Context) -> Iterator[Counted | Unread]:
    """Return the producers of each partition in scope.

    Raises:
        UsageError: a source or ``--as-of`` is not what it should be.
        LogDirError: a source cannot be listed.
        ConfigurationError: what draws is not installed.

    """
    settings = context.settings
    if settings.as_of == "roll":
        raise UsageError(
            "--as-of roll stands for many times, and a census needs one", hint="give a time; without --as-of it is now"
        )
    if request.plot is not None:
        check_plot(request.plot)
    principals = None if request.principal_map is None else principals_in(request.principal_map)
    planner = planner_of(context, replays=False)
    counter = ProducerCounter(
        planner=planner,
        now_ms=planner.rules.as_of.now_ms,
        edges=age_edges(expirations(settings.expiration_ms, request.under_ms)),
        principals=principals,
    )
    selection = planner.select(request.scope)
    warn_unmatched(request.scope, selection, context.warn)
    return chain(unread(selection), counter.counted(selection, context))


def expirations(present_ms: int, under_ms: int | None) -> tuple[int, ...]:
    """Return the expirations to count by, the present one first."""
    return (present_ms,) if under_ms is None else (present_ms, under_ms)


def _of_age(age: str, row: Mapping[str, Any]) -> object:
    return row["ages"][age]


class CensusRow(Identity, TypedDict("_From", {"from": str})):
    """A partition of a run that counted producers."""

    producers: Annotated[int, Column(title="PRODUCERS", right=True)]
    expired: int
    transactional: Annotated[int, Column(title="TRANSACTIONAL", right=True, extra=True)]
    openTransactions: Annotated[int, Column(title="OPEN", right=True, extra=True)]
    oneBatch: Annotated[int, Column(title="ONE BATCH", right=True, extra=True)]
    idPerMessage: bool
    heapBytes: Annotated[int, Column(title="HEAP", right=True, extra=True, show=human_bytes)]
    ages: dict[str, int]
    offset: int | None
    unreadBytes: int
    reason: str | None
    transactionalIds: NotRequired[dict[str, int]]
    principals: NotRequired[dict[str, int]]


class CensusView(View["Counted | Unread"]):
    """A row per topic, most producers first, with its partitions; the service keeps a row per partition."""

    kind = "topic"
    columns = (
        Column(key="topic", title="TOPIC"),
        Column(key="partitions", title="PARTITIONS", right=True, extra=True, show=lambda found: str(len(found))),
        *columns_of(CensusRow, "producers"),
        *(
            Column(key=age, title=f"< {age}" if age in AGES else "OLDER", right=True, of=partial(_of_age, age))
            for age in (*AGES, "older")
        ),
        *columns_of(CensusRow, "transactional", "openTransactions", "oneBatch", "heapBytes"),
    )

    def __init__(self, request: CensusRequest, context: Context) -> None:
        self._request, self._context = request, context
        present = context.settings.expiration_ms
        self._expirations = expirations(present, request.under_ms)
        self._now_ms = context.settings.as_of_ms or context.clock.now_ms()
        self._all = Census.empty(age_edges(self._expirations))
        self._topics: dict[str, Census] = {}
        self._partitions: dict[str, list[dict[str, Any]]] = {}
        """Rows by topic."""
        self._origins: Counter[str] = Counter()
        self._unread_bytes = 0

    def rows(self, result: Counted | Unread) -> tuple[Row, ...]:
        """Return nothing yet: a topic is shown once all of its partitions are counted."""
        self.row(result)
        return ()

    def row(self, result: Counted | Unread) -> Row | None:
        """Return what was counted of one partition, and count it in."""
        if isinstance(result, Unread):
            return result.row
        topic = result.selected.topic_partition.topic
        row = {
            **identity(result.selected.topic_partition),
            **self._figures(result.census),
            "from": result.origin,
            "offset": result.offset,
            "unreadBytes": result.unread_bytes,
            "reason": result.reason,
        }
        self._topics.setdefault(topic, Census.empty(self._all.edges)).add(result.census)
        self._partitions.setdefault(topic, []).append({name: row[name] for name in row if name != "topic"})
        self._all.add(result.census)
        self._origins[result.origin] += 1
        self._unread_bytes += result.unread_bytes
        return row

    def rest(self) -> Iterator[Row]:
        """Yield the topics, most producers first."""
        for topic, census in sorted(self._topics.items(), key=lambda item: (-item[1].producers, item[0])):
            partitions = sorted(self._partitions[topic], key=itemgetter("partition"))
            yield {"topic": topic, **self._figures(census), "partitions": partitions}
        if self._request.plot is not None:
            draw_census(self._topics, self._all, self._expirations, self._request.plot)
            self._context.note(f"drawn into {self._request.plot}")

    def _figures(self, census: Census) -> dict[str, object]:
        """Return what is in every row."""
        figures: dict[str, object] = {
            "producers": census.producers,
            "expired": census.expired(self._expirations[0]),
            "transactional": census.transactional,
            "openTransactions": census.open_transactions,
            "oneBatch": census.one_batch,
            "idPerMessage": _stands_out(census),
            "heapBytes": census.heap_bytes(self._expirations[0]),
            "ages": census.ages(),
        }
        if census.transactional_ids:
            figures["transactionalIds"] = dict(census.transactional_ids.most_common(MOST_TRANSACTIONAL_IDS))
        if self._request.principal_map is not None:
            figures["principals"] = dict(census.principals.most_common())
        return figures

    def head(self) -> Row:
        """Return what ages and expiry are counted by."""
        settings = self._context.settings
        return {
            "asOf": instant(self._now_ms),
            "producerIdExpirationMs": settings.expiration_ms,
            "producerIdExpirationFrom": settings.expiration_origin,
            "bytesPerEntry": HEAP_BYTES,
        }

    def table_head(self) -> Row:
        """Return the same in words."""
        settings = self._context.settings
        expiry = f"{exact_duration(settings.expiration_ms)} ({settings.expiration_origin})"
        return {"as of": second(self._now_ms), "producers expire after": expiry}

    def totals(self) -> Row:
        """Return what was counted in all, and what expires when."""
        return {
            "topics": len(self._topics),
            "partitions": self._origins.total(),
            "counted": {origin: self._origins[origin] for origin in ("snapshot", "replay", "none")},
            "unreadBytes": self._unread_bytes,
            **self._figures(self._all),
            "expires": [
                {
                    "expirationMs": expiration,
                    "expired": self._all.expires(expiration),
                    "neverExpire": self._all.open_transactions,
                    "heapBytes": self._all.heap_bytes(expiration),
                }
                for expiration in self._expirations
            ],
        }

    def closing(self) -> Iterator[str]:
        """Yield the same in words."""
        total, replayed = self._all, self._origins["replay"]
        by_replay = f", {human_count(replayed)} of them by a replay" if replayed else ""
        yield (
            f"{some(total.producers, 'producer')} in {some(self._origins.total(), 'partition')}{by_replay};"
            f" those that have not expired take about {human_bytes(total.heap_bytes(self._expirations[0]))} of the"
            f" broker's heap, {HEAP_BYTES} bytes each."
        )
        if self._unread_bytes:
            yield f"Not counted: what {human_bytes(self._unread_bytes)} of active segments hold since their snapshot."
        for expiration in self._expirations:
            moments = (f"{human_count(count)} {_moment(name)}" for name, count in total.expires(expiration).items())
            expired = f"expired unless they write again: {', '.join(moments)}."
            yield f"With a producer.id.expiration.ms of {exact_duration(expiration)}, {expired}"
        if total.open_transactions:
            yield f"{some(total.open_transactions, 'producer')} with an open transaction: they do not expire."
        if total.ahead:
            yield f"{some(total.ahead, 'producer')} with a time after {second(self._now_ms)}: counted as young."
        if named := total.transactional_ids:
            most = (f"{name} {human_count(count)}" for name, count in named.most_common(MOST_NAMED))
            whose = f"{some(named.total(), 'producer')} of {some(len(named), 'transactional id')}"
            yield f"{whose}, most of {', '.join(most)}."
        for principal, count in total.principals.most_common(MOST_PRINCIPALS):
            yield f"{principal}: {some(count, 'producer')}."
        for topic, census in self._topics.items():
            if _stands_out(census):
                yield (
                    f"{topic}: {human_count(census.one_batch)} of"
                    f" {some(census.producers - census.transactional, 'producer')} wrote a single batch: a "
                    "client creates a producer for each message, and should reuse one."
                )


def _stands_out(census: Census) -> bool:
    return makes_an_id_per_message(census.producers, census.transactional, census.one_batch)


def _moment(name: str) -> str:
    return name if name == "now" else f"in {name}"


VERB = Verb(
    takes=(PARTITIONS, CLUSTER, REPLAY, ENGINE, READING, STORE),
    request=CensusRequest,
    run=run,
    view=CensusView,
    rows=(CensusRow,),
)
