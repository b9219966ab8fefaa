"""`resnap producer census`: whose producer ids are active, their age, memory and expiration.

It counts the newest producer snapshot of each partition, or a replay (``census_count``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from resnap.scheduler.cli.flags import CLUSTER, ENGINE, PARTITIONS, READING, REPLAY, STORE
from resnap.scheduler.job.contract import Request, Unread, Verb, View, unread
from resnap.scheduler.job.replaying import planner_of
from resnap.scheduler.job.reports import identity
from resnap.scheduler.output.documents import CensusRow
from resnap.scheduler.output.rendering import Column
from resnap.scheduler.verbs.census_count import Counted, ProducerCounter
from resnap.scheduler.verbs.plots import check_plot, draw_census
from resnap.scheduler.verbs.quota_uses import PrincipalFile, principals_in
from resnap.storage.errors import UsageError
from resnap.storage.words import bytes_text, human_bytes, human_count, instant, some, span
from resnap.tiering.quota.producer_census import AGES, HEAP_BYTES, Census, age_edges, makes_an_id_per_message
from resnap.tiering.selection import warn_unmatched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.job.contract import Context
    from resnap.scheduler.output.rendering import Row

MOST_PRINCIPALS: Final = 20
"""Most principals that people are shown."""
MOST_NAMED: Final = 5
"""Most transactional ids that people are shown."""
MOST_TRANSACTIONAL_IDS: Final = 1_000
"""Most of them in JSON, those with the most producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """Count the producers that a broker holds: by topic and age, what memory they take, and what expires when."""

    under_ms: Annotated[
        int | None,
        typer.Option("--under", metavar="MS", min=1, help="Another producer.id.expiration.ms to show the effect of."),
    ] = None
    principal_map: PrincipalFile = None
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw ages and expiry into a .png or .svg file.")
    ] = None


def run(request: Asked, context: Context) -> Iterator[Counted | Unread]:
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


@dataclass(slots=True)
class TopicCount:
    """What was counted of one topic so far."""

    census: Census
    partitions: list[Row]


def _of_age(age: str, row: Row) -> object:
    return cast("dict[str, int]", row["ages"])[age]


class CensusView(View["Counted | Unread"]):
    """A row per topic, most producers first, with its partitions; the service keeps a row per partition."""

    name = "topics"
    kind = "topic"
    columns = (
        Column(key="topic", title="TOPIC"),
        Column(key="partitions", title="PARTITIONS", right=True, show=lambda value: str(len(cast("list[Row]", value)))),
        Column(key="producers", title="PRODUCERS", right=True),
        *(
            Column(key=age, title=f"< {age}" if age in AGES else "OLDER", right=True, of=partial(_of_age, age))
            for age in (*AGES, "older")
        ),
        Column(key="transactional", title="TRANSACTIONAL", right=True),
        Column(key="openTransactions", title="OPEN", right=True),
        Column(key="oneBatch", title="ONE BATCH", right=True),
        Column(key="heapBytes", title="HEAP", right=True, show=bytes_text),
    )

    def __init__(self, request: Asked, context: Context) -> None:
        self._request, self._context = request, context
        present = context.settings.expiration_ms
        self._expirations = expirations(present, request.under_ms)
        self._now_ms = context.settings.as_of_ms or context.clock.now_ms()
        self._all = Census.empty(age_edges(self._expirations))
        self._topics: dict[str, TopicCount] = {}
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
        mine = self._topics.setdefault(topic, TopicCount(Census.empty(self._all.edges), []))
        mine.census.add(result.census)
        mine.partitions.append({name: value for name, value in row.items() if name != "topic"})
        self._all.add(result.census)
        self._origins[result.origin] += 1
        self._unread_bytes += result.unread_bytes
        return row

    def rest(self) -> Iterator[Row]:
        """Yield the topics, most producers first."""
        for topic, mine in sorted(self._topics.items(), key=lambda item: (-item[1].census.producers, item[0])):
            partitions = sorted(mine.partitions, key=lambda row: int(str(row["partition"])))
            yield {"topic": topic, **self._figures(mine.census), "partitions": partitions}
        if self._request.plot is not None:
            topics = {topic: mine.census for topic, mine in self._topics.items()}
            draw_census(topics, self._all, self._expirations, self._request.plot)
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
        expiry = f"{span(settings.expiration_ms)} ({settings.expiration_origin})"
        return {"as of": instant(self._now_ms), "producers expire after": expiry}

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
                    "expirationMs": one,
                    "expired": self._all.expires(one),
                    "neverExpire": self._all.open_transactions,
                    "heapBytes": self._all.heap_bytes(one),
                }
                for one in self._expirations
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
        for one in self._expirations:
            moments = (f"{human_count(count)} {_moment(name)}" for name, count in total.expires(one).items())
            yield f"With producer.id.expiration.ms={one}, expired unless they write again: {', '.join(moments)}."
        if total.open_transactions:
            yield f"{some(total.open_transactions, 'producer')} with an open transaction: they do not expire."
        if total.ahead:
            yield f"{some(total.ahead, 'producer')} with a time after {instant(self._now_ms)}: counted as young."
        if named := total.transactional_ids:
            most = (f"{name} {human_count(count)}" for name, count in named.most_common(MOST_NAMED))
            whose = f"{some(named.total(), 'producer')} of {some(len(named), 'transactional id')}"
            yield f"{whose}, most of {', '.join(most)}."
        for principal, count in total.principals.most_common(MOST_PRINCIPALS):
            yield f"{principal}: {some(count, 'producer')}."
        for topic, mine in self._topics.items():
            if _stands_out(mine.census):
                yield (
                    f"{topic}: {human_count(mine.census.one_batch)} of"
                    f" {some(mine.census.producers - mine.census.transactional, 'producer')} wrote a single batch: a "
                    "client creates a producer for each message, and should reuse one."
                )


def _stands_out(census: Census) -> bool:
    return makes_an_id_per_message(census.producers, census.transactional, census.one_batch)


def _moment(name: str) -> str:
    return name if name == "now" else f"in {name}"


VERB = Verb(
    takes=(PARTITIONS, CLUSTER, REPLAY, ENGINE, READING, STORE),
    request=Asked,
    run=run,
    view=CensusView,
    rows=(CensusRow,),
)
