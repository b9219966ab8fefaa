"""Schedules: looked at, paused, resumed, run now. What they are comes from the configuration alone."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from resnap.scheduler.api.auth import Admin, Operator, Serving, Viewer
from resnap.scheduler.api.etags import validated
from resnap.scheduler.api.problem_kinds import NotFoundError
from resnap.scheduler.api.problems import problems
from resnap.scheduler.api.responses import ScheduleAnswer, SchedulesAnswer
from resnap.scheduler.api.runs import TAKEN, accepted
from resnap.scheduler.api.submitting import quota_items
from resnap.scheduler.service.schedules import ScheduleView, request_of
from resnap.scheduler.service.services import Services

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])
Name = Annotated[str, Path(max_length=64)]


@router.get("", response_model=SchedulesAnswer, summary="Every schedule", responses={304: {}})
def list_schedules(request: Request, services: Serving, _: Viewer) -> Response:
    """Return every schedule, when it is due next, and its last run."""
    found = [ScheduleAnswer.of(view, request_of(view.spec)) for view in services.schedules.all()]
    return validated(request, SchedulesAnswer(schedules=found))


@router.get(
    "/{name}", response_model=ScheduleAnswer, summary="One schedule", responses={304: {}, **problems("not-found")}
)
def get_schedule(request: Request, services: Serving, _: Viewer, name: Name) -> Response:
    """Return a schedule."""
    return _answer(request, _found(services, name))


@router.post("/{name}/pause", response_model=ScheduleAnswer, summary="Pause it", responses=problems("not-found"))
def pause_schedule(request: Request, services: Serving, who: Admin, name: Name) -> Response:
    """Make no more runs due until it is resumed; a run at work goes on."""
    _found(services, name)
    services.schedules.pause(name, who.name)
    return _answer(request, _found(services, name))


@router.post("/{name}/resume", response_model=ScheduleAnswer, summary="Resume it", responses=problems("not-found"))
def resume_schedule(request: Request, services: Serving, _: Admin, name: Name) -> Response:
    """Undo a pause; what was missed meanwhile is made up for by one run."""
    _found(services, name)
    services.schedules.resume(name)
    return _answer(request, _found(services, name))


@router.post("/{name}/run", status_code=202, summary="Run it now", responses={**TAKEN, **problems("not-found")})
def run_schedule(request: Request, services: Serving, who: Operator, name: Name) -> Response:
    """Make a run now, whatever the time, and whether it is paused or not."""
    view = _found(services, name)
    services.admission.charge(who.name, quota_items(request_of(view.spec)))
    return accepted(request, services.schedules.run_now(name, who.name))


def _found(services: Services, name: str) -> ScheduleView:
    view = services.schedules.get(name)
    if view is None:
        raise NotFoundError(f"there is no schedule {name[:100]!r}")
    return view


def _answer(request: Request, view: ScheduleView) -> Response:
    return validated(request, ScheduleAnswer.of(view, request_of(view.spec)))
