"""`resnap producer census`: whose producer ids are active, their age, memory and expiration.

It counts the newest producer snapshot of each partition, or a replay.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.flags import CLUSTER, ENGINE, PARTITIONS, READING, REPLAY, STORE
from resnap.scheduler.job.contract import PartitionState, Reported, Request, Unread, Verb, View, unread
from resnap.scheduler.job.replaying import planner_of
from resnap.scheduler.job.reports import Identity, identity
from resnap.scheduler.output.records import columns_of
from resnap.scheduler.output.rendering import Column
from resnap.scheduler.verbs.plots import check_plot, draw_census
from resnap.scheduler.verbs.quota_uses import PrincipalFile, principals_in
from resnap.storage.errors import UsageError
from resnap.storage.words import exact_duration, human_bytes, human_count, instant, second, some
from resnap.tiering.census import CountedPartition, ProducerCounter
from resnap.tiering.quota.producer_census import AGES, HEAP_BYTES, Census, age_edges, makes_an_id_per_message
from resnap.tiering.selection import warn_of_gaps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resnap.scheduler.job.contract import Context, Report
    from resnap.scheduler.output.rendering import Row


MOST_PRINCIPALS: Final = 20
"""Most principals that people are shown."""
MOST_NAMED: Final = 5
"""Most transactional ids that people are shown."""
MOST_TRANSACTIONAL_IDS: Final = 1_000
"""Most of them in JSON, those with the most producers."""


class CensusRequest(Request):
    """Count the producers that a broker holds: by topic and age, what memory they take, and what expires when."""

    under_ms: Annotated[
        int | None,
        typer.Option("--under", metavar="MS", min=1, help="Another producer.id.expiration.ms to show the effect of."),
    ] = None
    principal_map: PrincipalFile = None
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw ages and expiry into a .png or .svg file.")
    ] = None


def run(request: CensusRequest, context: Context, report: Report) -> None:
    """Count the producers of each partition in scope.

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
    warn_of_gaps(request.scope, selection, context.warn)
    for problem in unread(selection):
        report(problem)
    counter.count(selection.partitions, context.progress, lambda counted: report(_result(counted)))


def _result(counted: CountedPartition) -> Reported[CountedPartition]:
    return Reported(
        topic_partition=counted.selected.topic_partition,
        state=PartitionState.DONE if counted.error is None else PartitionState.FAILED,
        faults=() if counted.error is None else (counted.error,),
        partly_done=True,
        what=counted,
    )


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


class CensusView(View["Reported[CountedPartition] | Unread"]):
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

    def rows(self, result: Reported[CountedPartition] | Unread) -> tuple[Row, ...]:
        """Return nothing yet: a topic is shown once all of its partitions are counted."""
        self.row(result)
        return ()

    def row(self, result: Reported[CountedPartition] | Unread) -> Row | None:
        """Return what was counted of one partition, and count it in."""
        if isinstance(result, Unread):
            return result.row
        counted = result.what
        topic = counted.selected.topic_partition.topic
        row = {
            **identity(counted.selected.topic_partition),
            **self._figures(counted.census),
            "from": counted.origin,
            "offset": counted.offset,
            "unreadBytes": counted.unread_bytes,
            "reason": counted.reason,
        }
        self._topics.setdefault(topic, Census.empty(self._all.edges)).add(counted.census)
        self._partitions.setdefault(topic, []).append({name: row[name] for name in row if name != "topic"})
        self._all.add(counted.census)
        self._origins[counted.origin] += 1
        self._unread_bytes += counted.unread_bytes
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
    reads="log dirs",
    rows=(CensusRow,),
)
