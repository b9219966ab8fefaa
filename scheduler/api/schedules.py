"""Routes of schedules: show, pause, resume, run now. The configuration alone defines them."""

from typing import Annotated

from fastapi import APIRouter, Path

from resnap.scheduler.api.auth import Admin, Serving, Viewer
from resnap.scheduler.api.paging import TaggedRoute
from resnap.scheduler.api.problems import NotFoundError, problems
from resnap.scheduler.api.responses import RunAnswer, ScheduleAnswer, SchedulesAnswer
from resnap.scheduler.api.runs import TAKEN, Submitting
from resnap.scheduler.service.schedules import ScheduleView, origin_of
from resnap.scheduler.service.services import Services

router = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=TaggedRoute)
Name = Annotated[str, Path(max_length=64)]
_UNKNOWN = problems("not-found")


@router.get("", summary="Every schedule")
def list_schedules(services: Serving, _: Viewer) -> SchedulesAnswer:
    """Return every schedule, when it is due next, and its last run."""
    found = [ScheduleAnswer.model_validate(view) for view in services.schedules.all()]
    return SchedulesAnswer(schedules=found)


@router.get("/{name}", summary="One schedule", responses=_UNKNOWN)
def get_schedule(services: Serving, _: Viewer, name: Name) -> ScheduleAnswer:
    """Return a schedule."""
    return ScheduleAnswer.model_validate(_view_of(services, name))


@router.post("/{name}/pause", summary="Pause it", responses=_UNKNOWN)
def pause_schedule(services: Serving, who: Admin, name: Name) -> ScheduleAnswer:
    """Make no more runs due until it is resumed; the current run continues."""
    _view_of(services, name)
    services.schedules.pause(name, who.name)
    return ScheduleAnswer.model_validate(_view_of(services, name))


@router.post("/{name}/resume", summary="Resume it", responses=_UNKNOWN)
def resume_schedule(services: Serving, _: Admin, name: Name) -> ScheduleAnswer:
    """Undo a pause; what was missed meanwhile is made up for by one run."""
    _view_of(services, name)
    services.schedules.resume(name)
    return ScheduleAnswer.model_validate(_view_of(services, name))


@router.post("/{name}/run", status_code=202, summary="Run it now", responses={**TAKEN, **_UNKNOWN})
def run_schedule(submission: Submitting, name: Name) -> RunAnswer:
    """Make a run now, whatever the time, and whether it is paused or not."""
    return submission.take(_view_of(submission.services, name).request, origin=origin_of(name))


def _view_of(services: Services, name: str) -> ScheduleView:
    view = services.schedules.get(name)
    if view is None:
        raise NotFoundError(f"there is no schedule {name[:100]!r}")
    return view
