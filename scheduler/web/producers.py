"""Who holds producer ids: the last census, topic by topic, with what memory that is and what expires when."""

from collections import Counter
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from resnap.scheduler.api.auth import Serving, Viewer
from resnap.scheduler.output.rendering import human_count, some
from resnap.scheduler.runs.history import History, RunFilter
from resnap.scheduler.runs.run import PartitionOutcome, Run, RunKind, RunState
from resnap.scheduler.web.commands import Command, Shell
from resnap.scheduler.web.pages import api_command, glob_of, link, page, post_command
from resnap.scheduler.web.svg import Part, bar
from resnap.tiering.quota.producer_census import AGES, makes_an_id_per_message

router = APIRouter(include_in_schema=False)
_STATES: Final = (RunState.SUCCEEDED, RunState.PARTIALLY_FAILED)
_BATCH: Final = 1_000
_COUNTED: Final = ("producers", "expired", "transactional", "openTransactions", "oneBatch", "heapBytes")
MOST_TOPICS: Final = 100


@router.get("/producers")
def show_producers(request: Request, services: Serving, who: Viewer) -> Response:
    """Show what the last census counted."""
    found = services.history.page(RunFilter(kinds=(RunKind.CENSUS,), states=_STATES), limit=1)
    run = found[0] if found else None
    topics = [] if run is None else _topics(services.history, run)
    most = topics[0]["producers"] if topics else 0
    totals: dict[str, Any] = {} if run is None else dict(run.totals)
    values = {
        "run": run,
        "totals": totals,
        "ages": _ages(totals),
        "topics": [(one, _bar(one, most)) for one in topics[:MOST_TOPICS]],
        "count": len(topics),
        "link": link,
        "glob_of": glob_of,
        "commands": [
            *(
                post_command(request, services, f"/v1/schedules/{spec.name}/run", "have it counted now")
                for spec in services.settings.schedules
                if spec.run == "census"
            ),
            Command(says="the same in a shell", line=Shell.of(services).census()),
            *([] if run is None else [api_command(request, services, f"/v1/runs/{run.id}", "its totals from the API")]),
        ],
    }
    return page(request, services, who, "producers.html", values)


def _topics(history: History, run: Run) -> list[dict[str, Any]]:
    """Return what was counted of each topic, most producers first."""
    topics: dict[str, Counter[str]] = {}
    after: tuple[str, int] | None = None
    while shown := history.partitions(run.id, limit=_BATCH, after=after):
        for one in shown:
            topics.setdefault(one.topic, Counter()).update(_numbers(one))
        after = shown[-1].topic, shown[-1].partition
    return [
        {
            "topic": topic,
            **dict.fromkeys((*_COUNTED, "partitions"), 0),
            **counts,
            "idPerMessage": makes_an_id_per_message(counts["producers"], counts["transactional"], counts["oneBatch"]),
        }
        for topic, counts in sorted(topics.items(), key=lambda item: (-item[1]["producers"], item[0]))
    ]


def _numbers(outcome: PartitionOutcome) -> dict[str, int]:
    row: dict[str, Any] = dict(outcome.row)
    return {"partitions": 1, **{name: int(row.get(name, 0)) for name in _COUNTED}}


def _ages(totals: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Return the ages with how many there are of each, and a bar."""
    ages: dict[str, int] = totals.get("ages", {})
    most = max(ages.values(), default=0)
    said = {age: f"less than {age}" if age in AGES else age for age in ages}
    return [
        (said[age], count, bar([Part("busy", count, f"{human_count(count)} silent for {said[age]}")], most))
        for age, count in ages.items()
    ]


def _bar(topic: dict[str, Any], most: int) -> str:
    tone = "todo" if topic["idPerMessage"] else "busy"
    return bar([Part(tone, topic["producers"], some(topic["producers"], "producer"))], most)
