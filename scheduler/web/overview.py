"""The first page: can tiering be turned on yet? In all, topic by topic, partition by partition."""

from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from resnap.scheduler.api.auth import Serving, Viewer
from resnap.scheduler.api.paging import PAGE, Cursor, Limit, cut, decoded, encoded
from resnap.scheduler.runs.history import RunFilter
from resnap.scheduler.runs.run import Run
from resnap.scheduler.runs.sightings import SeenFilter, SeenPartition, TopicOrder
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.answer import answer_of
from resnap.scheduler.web.commands import Command, Shell
from resnap.scheduler.web.disk import MOST_BOXES, disk_picture
from resnap.scheduler.web.pages import api_command, destination_of, glob_of, link, page, post_command
from resnap.scheduler.web.way import way_of
from resnap.scheduler.web.words import READINESS
from resnap.tiering.readiness import Readiness

router = APIRouter(include_in_schema=False)
Glob = Annotated[str, Query(max_length=260)]
Source = Annotated[str, Query(max_length=4096)]
_LAST_RUNS = 5


@router.get("/")
def show_overview(
    request: Request,
    services: Serving,
    who: Viewer,
    topic: Glob = "",
    readiness: Annotated[list[Readiness] | None, Query()] = None,
    source: Source = "",
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Answer the question, and show a page of partitions, topic by topic."""
    wanted = SeenFilter(topic=topic or None, readiness=tuple(readiness or ()), source=source or None)
    after = decoded(cursor, str, int, str)
    sightings = services.sightings
    seen = sightings.page(wanted, limit=limit + 1, after=None if after is None else (after[0], after[1], after[2]))
    shown, following = cut(seen, limit, lambda one: encoded(one.topic, one.partition, one.source))
    counts, sources = sightings.counts(), sightings.sources()
    asked = {"topic": topic, "readiness": [one.value for one in wanted.readiness], "source": source}
    values = {
        "answer": answer_of(counts, sum(one.error is not None for one in sources)),
        "way": way_of(counts, sum(one.error is not None for one in sources)),
        "counts": counts,
        "matching": sum(sightings.counts(wanted).values()),
        "groups": _by_topic(services, shown),
        "freeable": services.sightings.freeable(),
        "disk": disk_picture(services.sightings.disk(MOST_BOXES)),
        "sources": sources,
        "seen_ms": min((one.scanned_ms for one in sources if one.scanned_ms), default=None),
        "runs": _runs(services),
        "wanted": wanted,
        "kinds": READINESS,
        "link": link,
        "glob_of": glob_of,
        "first_url": link("/", **asked) if cursor else None,
        "next_url": link("/", **asked, cursor=following) if following else None,
        "commands": [
            *(_replays(request, services, topic, source) if counts[Readiness.BLOCKED] else ()),
            *_scans(request, services),
            Command(says="the same in a shell", line=Shell.of(services).scan(source, topic)),
            api_command(request, services, link("/v1/partitions", **asked), "the same from the API"),
        ],
    }
    return page(request, services, who, "overview.html", values)


@router.get("/topics")
def show_topics(
    request: Request,
    services: Serving,
    who: Viewer,
    topic: Glob = "",
    order: TopicOrder = TopicOrder.BLOCKED,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Answer the question for each topic of a page."""
    after = decoded(cursor, int)
    skip = after[0] if after else 0
    wanted = SeenFilter(topic=topic or None)
    seen = services.sightings.topics(wanted, limit=limit + 1, skip=skip, order=order)
    shown, following = cut(seen, limit, lambda _: encoded(skip + limit))
    values = {
        "topics": [(one, answer_of(one.counts)) for one in shown],
        "wanted": wanted,
        "kinds": READINESS,
        "link": link,
        "glob_of": glob_of,
        "order": order,
        "orders": {one.value: link("/topics", topic=topic, order=one.value) for one in TopicOrder},
        "first_url": link("/topics", topic=topic, order=order.value) if cursor else None,
        "next_url": link("/topics", topic=topic, order=order.value, cursor=following) if following else None,
        "commands": [
            *(_replays(request, services, topic) if any(one.counts[Readiness.BLOCKED] for one in shown) else ()),
            Command(says="the same in a shell", line=Shell.of(services).scan("", topic)),
        ],
    }
    return page(request, services, who, "topics.html", values)


def _replays(request: Request, services: Services, topic: str, source: str = "") -> list[Command]:
    """Return how to have made what is missing in what a page is of."""
    scope = {**({"sources": [source]} if source else {}), **({"topics": [topic]} if topic else {})}
    body = {**scope, "destination": destination_of(services)}
    return [
        api_command(request, services, "/v1/replays", "have this service make what is missing", body),
        Command(says="make it in a shell", line=Shell.of(services).regenerate(source, topic)),
    ]


def _scans(request: Request, services: Services) -> list[Command]:
    """Return how to have everything looked at now, such as after an installation."""
    scheduled = [
        post_command(request, services, f"/v1/schedules/{spec.name}/run", "have it scanned now")
        for spec in services.settings.schedules
        if spec.run == "scan"
    ]
    return scheduled or [api_command(request, services, "/v1/scans", "have it scanned now", {})]


def _by_topic(services: Services, shown: list[SeenPartition]) -> list[dict[str, object]]:
    """Return partitions by topic, with the answer for all of the topic."""
    topics = {one.topic: one for one in services.sightings.topics_named(one.topic for one in shown)}
    return [
        {"topic": topics[name], "answer": answer_of(topics[name].counts), "partitions": list(partitions)}
        for name, partitions in groupby(shown, key=lambda one: one.topic)
        if name in topics  # else a scan has replaced it meanwhile
    ]


def _runs(services: Services) -> list[Run]:
    """Return the runs at work, and the last ones."""
    going_on = services.history.open_runs()
    last = services.history.page(RunFilter(), limit=_LAST_RUNS)
    return [*(run for run in going_on if run not in last), *last]
