"""The first page: can tiering be turned on yet? Overall, by topic, or by partition on request."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query, Response

from resnap.scheduler.api.paging import Page
from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.runs.history import RunFilter
from resnap.scheduler.runs.run import Run
from resnap.scheduler.runs.scan_history import scanned_days
from resnap.scheduler.runs.scans import PartitionFilter, TopicOrder
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.answer import answer_of, way_of
from resnap.scheduler.web.commands import Command, Shell
from resnap.scheduler.web.overview_pictures import (
    MOST_BOXES,
    MOST_DAYS,
    blocked_map,
    days_picture,
    disk_bars,
    partitions_of,
)
from resnap.scheduler.web.pages import Context, PageContext, glob_of, link, turned
from resnap.scheduler.web.words import READINESS
from resnap.tiering.readiness import Readiness

router = APIRouter(include_in_schema=False)
Glob = Annotated[str, Query(max_length=260)]
Source = Annotated[str, Query(max_length=4096)]
_LAST_RUNS = 5
_MOST_NAMED = 10
"""Partitions with unfit snapshots in one store."""


class _UnfitStore(NamedTuple):
    """A store with unfit snapshots, as a run has found them: in how many partitions, the first of them, all topics."""

    run: Run
    partitions: int
    names: list[str]
    topics: list[str]


@dataclass(frozen=True, slots=True)
class _Listing(Page):
    """Which page of a list is asked for, and in which order of topics."""

    order: TopicOrder = TopicOrder.BLOCKED

    def addresses(self, path: str, asked: Mapping[str, object], following: str | None) -> dict[str, object]:
        """Return the addresses of the first page, the next, and this list in every order."""
        order = None if self.order is TopicOrder.BLOCKED else self.order.value
        orders = {one.value: link(path, **asked, order=one.value) for one in TopicOrder}
        return {"order": self.order, "orders": orders, **turned(path, self, following, **asked, order=order)}


Listing = Annotated[_Listing, Depends()]


@router.get("/")
def show_overview(
    context: Context,
    listing: Listing,
    topic: Glob = "",
    readiness: Annotated[list[Readiness] | None, Query()] = None,
    source: Source = "",
) -> Response:
    """Answer the question; show a page of topics, or of the partitions that are asked for."""
    services, shell = context.services, context.shell
    wanted = PartitionFilter(topic=topic or None, readiness=tuple(readiness or ()), source=source or None)
    asked = {"topic": topic, "readiness": [one.value for one in wanted.readiness], "source": source}
    scans, now_ms = services.scans, services.clock.now_ms()
    counts, sources, unfit = scans.counts(), scans.sources(), _unfit(services)
    unread = sum(one.error is not None for one in sources)
    is_whole = wanted == PartitionFilter()
    values = {
        **(_topics(services, wanted, listing) if is_whole else _partitions(services, wanted, asked, listing)),
        "answer": answer_of(counts, unread),
        "way": way_of(counts, unread),
        "counts": counts,
        "freeable": scans.freeable(),
        "blocked_map": blocked_map(scans.topics(PartitionFilter(), limit=MOST_BOXES, order=TopicOrder.BLOCKED)),
        "days": days_picture(scanned_days(services.database, now_ms, MOST_DAYS)),
        "sources": sources,
        "unfit": unfit,
        "seen_ms": min((one.scanned_ms for one in sources if one.scanned_ms), default=None),
        "runs": _runs(services),
        "commands": [
            *(_replays(context, topic, source) if counts[Readiness.BLOCKED] else ()),
            *(
                context.scheduled("scan", "have it scanned now")
                or [context.api("/v1/scans", "have it scanned now", {})]
            ),
            *_repairs(shell, unfit),
            Command(says="the same in a shell", line=shell.scan(source, topic)),
            context.api(link("/v1/partitions", **asked), "the same from the API"),
        ],
    }
    return context.page("overview.html", values)


@router.get("/topics")
def show_topics(context: Context, listing: Listing, topic: Glob = "") -> Response:
    """Answer the question for each topic of a page."""
    values = _topics(context.services, PartitionFilter(topic=topic or None), listing)
    is_blocked = any(one.counts[Readiness.BLOCKED] for one, _, _ in values["topics"])
    values["commands"] = [
        *(_replays(context, topic) if is_blocked else ()),
        Command(says="the same in a shell", line=context.shell.scan("", topic)),
    ]
    return context.page("topics.html", values)


def _topics(services: Services, wanted: PartitionFilter, listing: _Listing) -> dict[str, Any]:
    """Return a page of topics, each with its answer and its disk."""
    shown, following = listing.cut_at(
        lambda limit, skip: services.scans.topics(wanted, limit=limit, skip=skip, order=listing.order)
    )
    answers = [answer_of(one.counts) for one in shown]
    return {
        "topics": list(zip(shown, answers, disk_bars(shown), strict=True)),
        "wanted": wanted,
        "kinds": READINESS,
        "partitions_of": partitions_of,
        **listing.addresses("/topics", {"topic": wanted.topic}, following),
    }


def _partitions(
    services: Services, wanted: PartitionFilter, asked: Mapping[str, object], listing: _Listing
) -> dict[str, Any]:
    """Return a page of partitions, topic by topic, with the answer for all of each topic."""
    shown, following = listing.cut_at(
        lambda limit, skip: services.scans.page_by_topic(wanted, listing.order, limit=limit, skip=skip)
    )
    topics = {one.topic: one for one in services.scans.topics_named(one.topic for one in shown)}
    groups = [
        {"topic": topics[name], "answer": answer_of(topics[name].counts), "partitions": list(partitions)}
        for name, partitions in groupby(shown, key=lambda one: one.topic)
        if name in topics  # else a scan has replaced it since
    ]
    return {
        "groups": groups,
        "matching": sum(services.scans.counts(wanted).values()),
        "wanted": wanted,
        "kinds": READINESS,
        "partitions_of": partitions_of,
        **listing.addresses("/", asked, following),
    }


def _replays(context: PageContext, topic: str, source: str = "") -> list[Command]:
    """Return how to have made what is missing in what a page is of."""
    scope = {**({"sources": [source]} if source else {}), **({"topics": [topic]} if topic else {})}
    body = {**scope, "destination": context.destination}
    return [
        context.api("/v1/replays", "have this service make what is missing", body),
        Command(says="make it in a shell", line=context.shell.regenerate(source, topic)),
    ]


def _unfit(services: Services) -> list[_UnfitStore]:
    """Return the stores with unfit snapshots."""
    stores = []
    for run, count in services.unfit_stores():
        found = services.history.partitions(run.id, limit=count, states=[PartitionState.FAILED])
        names = [f"{one.topic}-{one.partition}" for one in found[:_MOST_NAMED]]
        stores.append(_UnfitStore(run, count, names, sorted({glob_of(one.topic) for one in found})))
    return stores


def _repairs(shell: Shell, unfit: list[_UnfitStore]) -> list[Command]:
    """Return how to see what is wrong with the snapshots of each store, and how to repair them."""
    return [
        command
        for one in unfit
        for command in (
            Command(says="see what is wrong with what is tiered already", line=shell.run(one.run.request)),
            Command(says="repair it; --dry-run shows what", line=shell.repair(one.run.request, one.topics)),
        )
    ]


def _runs(services: Services) -> list[Run]:
    """Return the runs at work, and the last ones."""
    going_on = services.history.open_runs()
    last = services.history.page(RunFilter(), limit=_LAST_RUNS)
    return [*(run for run in going_on if run not in last), *last]
