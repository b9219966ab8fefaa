"""The page of the whole cluster: topic by topic over all brokers, and the unknown brokers."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from resnap.scheduler.api.fleet import collected_by, counts_of, matching
from resnap.scheduler.api.paging import Paging
from resnap.scheduler.fleet.rows import broker_row, topic_row, why_of
from resnap.scheduler.output.rendering import some
from resnap.scheduler.web.answer import Answer
from resnap.scheduler.web.commands import Command
from resnap.scheduler.web.pages import Context, link, turned
from resnap.scheduler.web.words import Word
from resnap.tiering.readiness import Verdict

router = APIRouter(include_in_schema=False)
_WORDS: Final = {
    Verdict.BLOCKED: Word("blocked", "✕", "todo", "a replica is blocked"),
    Verdict.UNKNOWN: Word("unknown", "?", "none", "some replicas are not known"),
    Verdict.READY: Word("ready", "✓", "good", "every replica is ready"),
}


@router.get("/fleet")
def show_fleet(
    context: Context,
    paging: Paging,
    topic: Annotated[str, Query(max_length=260)] = "",
    verdict: Annotated[list[Verdict] | None, Query()] = None,
) -> Response:
    """Answer for the whole cluster, and show a page of topics, those that are blocked first."""
    collected = collected_by(context.services)
    found = sorted(matching(collected, topic, verdict or ()), key=lambda one: list(_WORDS).index(one.verdict))
    shown, following = paging.cut_at(lambda limit, skip: found[skip : skip + limit])
    rows = [topic_row(one) for one in shown]
    asked = {"topic": topic, "verdict": [one.value for one in verdict or ()]}
    topics = {"topics": [topic]} if topic else None
    counts, status = counts_of(collected), collected.status
    values = {
        "answer": _answer(counts, status.verdict, len(status.silent)),
        "collected_ms": collected.at_ms,
        "counts": counts,
        "kinds": _WORDS,
        "topics": [(one, row, why_of(row)) for one, row in zip(shown, rows, strict=True)],
        "matching": len(found),
        "brokers": [broker_row(one) for one in status.brokers],
        "unanswered": status.unanswered,
        "wanted": asked,
        **turned("/fleet", paging, following, **asked),
        "commands": [
            Command("the same in a shell", context.shell.line("fleet status", settings=topics)),
            context.api(link("/v1/fleet", **asked), "the same from the API"),
        ],
    }
    return context.page("fleet.html", values)


def _answer(counts: dict[Verdict, int], verdict: Verdict, silent: int) -> Answer:
    """Return the answer in words."""
    not_known = f"{counts[Verdict.UNKNOWN]:,} not known" if counts[Verdict.UNKNOWN] else ""
    if verdict is Verdict.BLOCKED:
        blocked = f"{counts[Verdict.BLOCKED]:,} of {some(sum(counts.values()), 'topic')} blocked"
        return Answer(word="Not yet", tone="todo", sentence=f"{', '.join(filter(None, [blocked, not_known]))}.")
    if verdict is Verdict.UNKNOWN:
        who = f"{silent:,} did not answer" if silent else ""
        return Answer(word="Not known yet", tone="none", sentence=f"{', '.join(filter(None, [not_known, who]))}.")
    return Answer(
        word="Yes", tone="good", sentence=f"Every replica of {some(counts[Verdict.READY], 'topic')} is ready."
    )
