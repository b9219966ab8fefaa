"""Routes of the whole cluster: one verdict per topic over all replicas, from the services beside the brokers."""

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Annotated

from fastapi import APIRouter, Query

from resnap.scheduler.api.auth import Serving, Viewer
from resnap.scheduler.api.paging import Paging, TaggedRoute
from resnap.scheduler.api.problems import HttpError, problems
from resnap.scheduler.api.responses import FleetAnswer
from resnap.scheduler.fleet.status import FleetBrokerRow, FleetStatus, FleetTopicRow
from resnap.scheduler.output.answer import fault_rows_if
from resnap.scheduler.output.records import row_of
from resnap.scheduler.service.services import Services
from resnap.storage.words import instant
from resnap.tiering.fleet import TopicAnswer
from resnap.tiering.judging.readiness import Verdict

router = APIRouter(prefix="/v1", tags=["fleet"], route_class=TaggedRoute)


@router.get("/fleet", summary="Can tiering be turned on in the whole cluster?", responses=problems("not-found"))
def get_fleet(
    services: Serving,
    _: Viewer,
    paging: Paging,
    topic: Annotated[str | None, Query(max_length=260, description="A glob.")] = None,
    verdict: Annotated[list[Verdict] | None, Query(description="May be given several times.")] = None,
) -> FleetAnswer:
    """Return a page of topics over all replicas of the cluster, and which brokers are not known.

    Services are asked once a minute while this is asked, and for a quarter of an hour after.
    """
    status = collected_by(services)
    found = matching(status, topic, verdict or ())
    page, following = paging.cut_whole(found, lambda answer: answer.topic, str)
    return FleetAnswer(
        collected=None if status.at_ms is None else instant(status.at_ms),
        verdict=status.verdict,
        counts={verdict: len(topics) for verdict, topics in status.by_verdict.items()},
        unanswered=status.unanswered,
        known_faults=fault_rows_if(status.releases),
        brokers=[row_of(FleetBrokerRow, broker) for broker in status.brokers],
        topics=[row_of(FleetTopicRow, answer) for answer in page],
        next_cursor=following,
    )


def collected_by(services: Services) -> FleetStatus:
    """Return what the service has collected.

    Raises:
        HttpError: its configuration names no fleet.

    """
    if not services.settings.fleet:
        hint = "name the services of the brokers in [[fleet]] tables of the configuration"
        raise HttpError("not-found", "the configuration has no [[fleet]] table", hint=hint)
    return services.fleet.collected()


def matching(status: FleetStatus, topic: str | None, verdicts: Collection[Verdict]) -> list[TopicAnswer]:
    """Return the topics whose name fits a glob, and that have one of some verdicts; all by default."""
    return [
        found
        for found in status.topics
        if (not topic or fnmatchcase(found.topic, topic)) and (not verdicts or found.verdict in verdicts)
    ]
