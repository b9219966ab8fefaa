"""The first page: can tiering be turned on yet? Overall, by topic, or by partition on request; or over all brokers.

Its picture shows missing snapshots over days; the table has a bar for the disk of each topic.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Depends, Query, Response
from markupsafe import Markup

from resnap.scheduler.api.fleet import collected_by, matching
from resnap.scheduler.api.paging import PAGE, Page, Paging
from resnap.scheduler.api.partitions import Wanted
from resnap.scheduler.fleet.status import FleetBrokerRow, FleetTopicRow
from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.output.answer import MOST_NAMED, answer_of, fault_rows_if, turn_on_lines, way_of, why_of
from resnap.scheduler.output.records import row_of
from resnap.scheduler.runs.run import Run
from resnap.scheduler.runs.scans import PartitionFilter, ScannedDay, ScannedTopic, TopicOrder
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command, Shell, installs
from resnap.scheduler.web.pages import Context, PageContext, glob_of, link, page_links, partition_path
from resnap.scheduler.web.rendering import LINE_PX, SIZES, Part, bar, element, picture, rect
from resnap.scheduler.web.words import UNBLOCKED_BY, VERDICTS
from resnap.storage.words import human_bytes, human_count, instant, some
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import UnblockedBy

router = APIRouter(include_in_schema=False)
Glob = Annotated[str, Query(max_length=260)]
_LAST_RUNS = 5
_MOST_LINKED = 5
"""Partitions with unfit snapshots in one store, or whose tiering has stopped."""
MOST_DAYS: Final = 90
_GAP: Final = 0.2
"""The gap between two bars, as a part of a day's width."""


_UnfitStore: TypeAlias = tuple[Run, int, list[str], list[str]]
"""The run that has found unfit snapshots in a store, in how many partitions, the first of them, and all topics."""


@dataclass(frozen=True, slots=True)
class _Listing(Page):
    """Which page of a list is asked for, and in which order of topics."""

    order: TopicOrder = TopicOrder.BLOCKED

    def addresses(self, path: str, asked: Mapping[str, object], following: str | None) -> dict[str, object]:
        """Return the addresses of the first page, the next, and this list in every order."""
        order = None if self.order is TopicOrder.BLOCKED else self.order.value
        orders = {order.value: link(path, **asked, order=order.value) for order in TopicOrder}
        return {"order": self.order, "orders": orders, **page_links(path, self, following, **asked, order=order)}


Listing = Annotated[_Listing, Depends()]


@router.get("/")
def show_overview(context: Context, listing: Listing, wanted: Wanted) -> Response:
    """Answer the question; show a page of topics, or of the partitions that are asked for."""
    services, shell = context.services, context.shell
    topic, source = wanted.topic or "", wanted.source or ""
    wanted = replace(wanted, topic=topic or None, source=source or None)  # a form sends what was not filled in, too
    asked = {
        "topic": topic,
        "verdict": [verdict.value for verdict in wanted.verdict],
        "unblockedBy": [unblocker.value for unblocker in wanted.unblocked_by],
        "source": source,
    }
    scans, now_ms = services.scans, services.clock.now_ms()
    counts, sources, unfit = scans.counts(), scans.sources(), _unfit(services)
    topics, waiting, sizes = scans.topics_by_verdict(), scans.waiting(), scans.sizes()
    unread = sum(source.error is not None for source in sources)
    is_whole = wanted == PartitionFilter()
    values = {
        **(_topics(services, wanted, listing) if is_whole else _partitions(services, wanted, asked, listing)),
        "answer": answer_of(topics, unread=unread, is_seen=bool(sources)),
        "partitions_of": partitions_of,
        "way": way_of(counts, waiting, len(topics[Verdict.READY]), unread),
        "waiting": _waiting(services, waiting),
        "counts": counts,
        "freeable": sizes["freeable"],
        "days": days_picture(services.scans.days(now_ms, MOST_DAYS)),
        "sources": sources,
        "unfit": unfit,
        "partition_path": partition_path,
        "overdue": scans.overdue(services.settings.copy_overdue_after_ms, limit=MOST_NAMED),
        "seen_ms": min((source.scanned_ms for source in sources if source.scanned_ms), default=None),
        "runs": _runs(services),
        "commands": [
            *(_turning_on(services, topics[Verdict.READY]) if not unread else ()),
            *(_installs(services) if waiting.get(UnblockedBy.INSTALL) else ()),
            *(_replays(context, topic, source) if waiting.get(UnblockedBy.REBUILD) else ()),
            *(context.scheduled("scan", "scan it now") or [context.api("/v1/scans", "scan it now", {})]),
            *_repairs(shell, unfit),
            Command("the same in a shell", shell.overview("scan", source, topic)),
            context.api(link("/v1/partitions", **asked), "the same from the API"),
        ],
    }
    return context.page("overview.html", values)


@router.get("/topics")
def show_topics(context: Context, listing: Listing, topic: Glob = "") -> Response:
    """Answer the question for each topic of a page."""
    values = _topics(context.services, PartitionFilter(topic=topic or None), listing)
    is_blocked = any(topic.missing and topic.counts[Verdict.BLOCKED] for topic, _ in values["topics"])
    values["commands"] = [
        *(_replays(context, topic) if is_blocked else ()),
        Command("the same in a shell", context.shell.overview("scan", "", topic)),
    ]
    return context.page("topics.html", values)


@router.get("/fleet")
def show_fleet(
    context: Context,
    paging: Paging,
    topic: Glob = "",
    verdict: Annotated[list[Verdict] | None, Query()] = None,
) -> Response:
    """Answer for the whole cluster, and show a page of topics, those that are blocked first."""
    status = collected_by(context.services)
    found = sorted(matching(status, topic, verdict or ()), key=lambda answer: answer.verdict.rank)
    shown, following = paging.cut_at(lambda limit, skip: found[skip : skip + limit])
    rows = [row_of(FleetTopicRow, answer) for answer in shown]
    asked = {"topic": topic, "verdict": [named.value for named in verdict or ()]}
    topics = {"topics": [topic]} if topic else None
    by_verdict = status.by_verdict
    values = {
        "answer": answer_of(by_verdict, silent=len(status.silent)),
        "rows_of": lambda topic: f"{link('/fleet', topic=glob_of(topic))}#topics",
        "collected_ms": status.at_ms,
        "counts": {verdict: len(names) for verdict, names in by_verdict.items()},
        "kinds": VERDICTS,
        "topics": [(topic, row, why_of(row)) for topic, row in zip(shown, rows, strict=True)],
        "matching": len(found),
        "brokers": [row_of(FleetBrokerRow, broker) for broker in status.brokers],
        "unanswered": status.unanswered,
        "known_faults": fault_rows_if(status.releases),
        "not_checked": None if status.releases is None else status.releases.not_checked,
        "wanted": asked,
        **page_links("/fleet", paging, following, **asked),
        "commands": [
            Command("the same in a shell", context.shell.line("fleet status", settings=topics)),
            context.api(link("/v1/fleet", **asked), "the same from the API"),
        ],
    }
    return context.page("fleet.html", values)


def _topics(services: Services, wanted: PartitionFilter, listing: _Listing) -> dict[str, Any]:
    """Return a page of topics, each with its answer and its disk."""
    shown, following = listing.cut_at(
        lambda limit, skip: services.scans.topics(wanted, limit=limit, skip=skip, order=listing.order)
    )
    return {
        "topics": list(zip(shown, disk_bars(shown), strict=True)),
        "wanted": wanted,
        "kinds": VERDICTS,
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
    topics = {topic.topic: topic for topic in services.scans.topics_named(partition.topic for partition in shown)}
    groups = [
        {"topic": topics[name], "partitions": list(partitions)}
        for name, partitions in groupby(shown, key=lambda seen: seen.topic)
        if name in topics  # else a scan has replaced it since
    ]
    return {
        "groups": groups,
        "matching": sum(services.scans.counts(wanted).values()),
        "wanted": wanted,
        "kinds": VERDICTS,
        "partitions_of": partitions_of,
        **listing.addresses("/", asked, following),
    }


def _waiting(services: Services, waiting: Mapping[UnblockedBy, int]) -> list[dict[str, Any]]:
    """Return what is to be done about blocked partitions, how many, and the first of them; the most urgent first."""
    return [
        {
            "says": says,
            "partitions": waiting[by],
            "first": services.scans.page(PartitionFilter(unblocked_by=(by,)), limit=_MOST_LINKED),
            "href": f"{link('/', unblockedBy=by.value)}#partitions",
        }
        for by, says in UNBLOCKED_BY.items()
        if waiting.get(by)
    ]


def _turning_on(services: Services, topics: Sequence[str]) -> list[Command]:
    """Return the command that turns tiering on for the topics that are ready."""
    if not topics:
        return []
    line, *more = turn_on_lines(topics, services.settings)
    which = f": the first {MOST_NAMED} of {some(len(topics), 'topic')}" if more else ""
    return [Command(f"turn tiering on for what is ready{which}", line)]


def _installs(services: Services) -> list[Command]:
    """Return how to install what was rebuilt, a command for each place and log dir."""
    waiting = services.scans.page(PartitionFilter(unblocked_by=(UnblockedBy.INSTALL,)), limit=PAGE)
    found = (command for seen in waiting for command in installs(seen, services.scans.repairs(seen)))
    return list(dict.fromkeys(found))


def _replays(context: PageContext, topic: str, source: str = "") -> list[Command]:
    """Return how to have made what is missing in what a page is of."""
    scope = {**({"sources": [source]} if source else {}), **({"topics": [topic]} if topic else {})}
    body = {**scope, "destination": context.destination}
    return [
        context.api("/v1/replays", "let this service make what is missing", body),
        Command(
            "make it in a shell", context.shell.overview("regenerate", source, topic, "--into", context.shell.staged)
        ),
    ]


def _unfit(services: Services) -> list[_UnfitStore]:
    """Return the stores with unfit snapshots."""
    stores = []
    for run, count in services.unfit_stores():
        found = services.history.partitions(run.id, limit=count, states=[PartitionState.FAILED])
        names = [f"{outcome.topic}-{outcome.partition}" for outcome in found[:MOST_NAMED]]
        stores.append((run, count, names, sorted({glob_of(outcome.topic) for outcome in found})))
    return stores


def _repairs(shell: Shell, unfit: list[_UnfitStore]) -> list[Command]:
    """Return how to see what is wrong with the snapshots of each store, and how to repair them."""
    return [
        command
        for run, _, _, topics in unfit
        for command in (
            Command("see what is wrong with what is tiered already", shell.run(run.request)),
            Command("repair it; --dry-run shows what", shell.repair(run.request, topics)),
        )
    ]


def _runs(services: Services) -> list[Run]:
    """Return the runs at work, and the last ones."""
    going_on = services.history.open_runs()
    last = services.history.page(limit=_LAST_RUNS)
    return [*(run for run in going_on if run not in last), *last]


def disk_bars(topics: Sequence[ScannedTopic]) -> list[Markup]:
    """Return a bar for each topic, all to one scale, with what is to do first."""
    most = max((topic.closed for topic in topics), default=0)
    return [bar(_parts(topic), most) for topic in topics]


def partitions_of(topic: str) -> str:
    """Return the address of the partitions of one topic."""
    return f"{link('/', topic=glob_of(topic))}#partitions"


def _parts(topic: ScannedTopic) -> list[Part]:
    parts = {
        "blocked": ("todo", topic.blocked),
        "tierable": ("good", topic.tierable),
        "shipped": ("busy", topic.shipped),
    }
    return [Part(tone, size, f"{human_bytes(size)} {what}") for what, (tone, size) in parts.items()]


def days_picture(days: Sequence[ScannedDay]) -> dict[str, Any] | None:
    """Return what has become of missing snapshots in ``days``; None for fewer than two, which show no course.

    That is in words, for each size as a picture, oldest day first, and the latest day first as rows.
    """
    if len(days) < 2:  # noqa: PLR2004 - a course has a beginning and an end
        return None
    first, last = days[0], days[-1]
    text = f"{human_count(last.missing)} now, {human_count(first.missing)} on {_date(first)}"
    title = f"Missing snapshots by day: {text}"
    pictures = [picture(*size, title, _shapes(days, *size), class_=f"days {name}") for name, size in SIZES.items()]
    return {"text": text, "pictures": pictures, "rows": [(_date(day), day) for day in reversed(days)]}


def _shapes(days: Sequence[ScannedDay], width: float, height: float) -> Iterator[Markup]:
    """Yield a bar for each day below the largest count, a ground line, and the dates of both ends."""
    most = max((day.missing for day in days), default=0)
    top, ground, step = LINE_PX + 6.0, height - LINE_PX - 6.0, width / len(days)
    for number, day in enumerate(days):
        tall = (ground - top) * day.missing / most if most else 0.0
        tone = "none" if not day.is_scanned else "todo" if day.missing else "good"
        title = f"{_date(day)}: {day.missing:,} missing{'' if day.is_scanned else ', as scanned before'}"
        yield rect(number * step, ground - max(tall, 2), step * (1 - _GAP), max(tall, 2), tone, title)
    yield element("line", x1=0, x2=width, y1=ground, y2=ground, class_="ground")
    yield element("text", f"{most:,}" if most else "none missing", x=0, y=LINE_PX - 2)
    yield element("text", _date(days[0]), x=0, y=height - 4)
    yield element("text", _date(days[-1]), x=width, y=height - 4, text_anchor="end")


def _date(day: ScannedDay) -> str:
    return instant(day.start_ms)[:10]
