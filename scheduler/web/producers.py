"""The page of producers: the last census by topic, with memory and expirations."""

from collections import Counter
from typing import Any, Final

from fastapi import APIRouter, Response

from resnap.scheduler.runs.history import History
from resnap.scheduler.runs.run import Row, Run, RunState
from resnap.scheduler.web.commands import Command
from resnap.scheduler.web.pages import Context, glob_of
from resnap.scheduler.web.rendering import Part, bar
from resnap.storage.words import human_count, some
from resnap.tiering.quota.producer_census import AGES, makes_an_id_per_message

router = APIRouter(include_in_schema=False)
_STATES: Final = (RunState.SUCCEEDED, RunState.PARTIALLY_FAILED)
_COUNTED: Final = ("producers", "expired", "transactional", "openTransactions", "oneBatch", "heapBytes")
MOST_TOPICS: Final = 100


@router.get("/producers")
def show_producers(context: Context) -> Response:
    """Show what the last census counted."""
    history = context.services.history
    found = history.page(kinds=("census",), states=_STATES, limit=1)
    run = found[0] if found else None
    topics = [] if run is None else _topics(history, run)
    most = topics[0]["producers"] if topics else 0
    totals = {} if run is None else run.totals
    values = {
        "run": run,
        "totals": totals,
        "ages": _ages(totals),
        "topics": [(topic, _bar(topic, most)) for topic in topics[:MOST_TOPICS]],
        "count": len(topics),
        "glob_of": glob_of,
        "commands": [
            *context.scheduled("census", "count it now"),
            Command("the same in a shell", context.shell.line("producer census", *context.shell.log_dirs)),
            *([] if run is None else [context.api(f"/v1/runs/{run.id}", "its totals from the API")]),
        ],
    }
    return context.page("producers.html", values)


def _topics(history: History, run: Run) -> list[dict[str, Any]]:
    """Return what was counted of each topic, most producers first."""
    topics: dict[str, Counter[str]] = {}
    for outcome in history.every_partition(run.id):
        numbers = {name: outcome.row.get(name, 0) for name in _COUNTED}
        topics.setdefault(outcome.topic, Counter()).update({"partitions": 1, **numbers})
    return [
        {
            "topic": topic,
            **dict.fromkeys((*_COUNTED, "partitions"), 0),
            **counts,
            "idPerMessage": makes_an_id_per_message(counts["producers"], counts["transactional"], counts["oneBatch"]),
        }
        for topic, counts in sorted(topics.items(), key=lambda item: (-item[1]["producers"], item[0]))
    ]


def _ages(totals: Row) -> list[tuple[str, int, str]]:
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
