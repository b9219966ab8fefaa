"""The page of the whole cluster: topic by topic over all brokers, and the unknown brokers."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from resnap.scheduler.api.fleet import collected_by, counts_of, matching, topics_by_verdict
from resnap.scheduler.api.paging import Paging
from resnap.scheduler.fleet.status import FleetBrokerRow, FleetTopicRow
from resnap.scheduler.output.answer import answer_of, fault_rows_if, why_of
from resnap.scheduler.output.records import row_of
from resnap.scheduler.web.commands import Command
from resnap.scheduler.web.pages import Context, glob_of, link, turned
from resnap.scheduler.web.words import VERDICTS
from resnap.tiering.judging.readiness import Verdict

router = APIRouter(include_in_schema=False)
_WORST_FIRST: Final = (Verdict.BLOCKED, Verdict.UNKNOWN, Verdict.READY, Verdict.NEVER)


@router.get("/fleet")
def show_fleet(
    context: Context,
    paging: Paging,
    topic: Annotated[str, Query(max_length=260)] = "",
    verdict: Annotated[list[Verdict] | None, Query()] = None,
) -> Response:
    """Answer for the whole cluster, and show a page of topics, those that are blocked first."""
    collected = collected_by(context.services)
    found = sorted(matching(collected, topic, verdict or ()), key=lambda answer: _WORST_FIRST.index(answer.verdict))
    shown, following = paging.cut_at(lambda limit, skip: found[skip : skip + limit])
    rows = [row_of(FleetTopicRow, answer) for answer in shown]
    asked = {"topic": topic, "verdict": [named.value for named in verdict or ()]}
    topics = {"topics": [topic]} if topic else None
    counts, status = counts_of(collected), collected.status
    values = {
        "answer": answer_of(topics_by_verdict(status.topics), silent=len(status.silent)),
        "rows_of": lambda topic: f"{link('/fleet', topic=glob_of(topic))}#topics",
        "collected_ms": collected.at_ms,
        "counts": counts,
        "kinds": VERDICTS,
        "topics": [(one, row, why_of(row)) for one, row in zip(shown, rows, strict=True)],
        "matching": len(found),
        "brokers": [row_of(FleetBrokerRow, broker) for broker in status.brokers],
        "unanswered": status.unanswered,
        "known_faults": fault_rows_if(status.releases),
        "not_checked": None if status.releases is None else status.releases.not_checked,
        "wanted": asked,
        **turned("/fleet", paging, following, **asked),
        "commands": [
            Command("the same in a shell", context.shell.line("fleet status", settings=topics)),
            context.api(link("/v1/fleet", **asked), "the same from the API"),
        ],
    }
    return context.page("fleet.html", values)
