"""Routes of the service itself: its schedules, which the configuration alone defines, and its audit log."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from resnap.scheduler.api.auth import Admin, Serving, Viewer
from resnap.scheduler.api.paging import Paging, TaggedRoute
from resnap.scheduler.api.problems import HttpError, problems
from resnap.scheduler.api.responses import AuditAnswer, AuditEntryAnswer, RunAnswer, ScheduleAnswer, SchedulesAnswer
from resnap.scheduler.api.runs import TAKEN, Submitting
from resnap.scheduler.service.schedules import ScheduleView, origin_of
from resnap.scheduler.service.services import Services

schedules = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=TaggedRoute)
audit = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=TaggedRoute)
Name = Annotated[str, Path(max_length=64)]
Text = Annotated[str | None, Query(max_length=200)]
_UNKNOWN = problems("not-found")


@schedules.get("", summary="Every schedule")
def list_schedules(services: Serving, _: Viewer) -> SchedulesAnswer:
    """Return every schedule, when it is due next, and its last run."""
    found = [ScheduleAnswer.model_validate(view) for view in services.schedules.all()]
    return SchedulesAnswer(schedules=found)


@schedules.get("/{name}", summary="One schedule", responses=_UNKNOWN)
def get_schedule(services: Serving, _: Viewer, name: Name) -> ScheduleAnswer:
    """Return a schedule."""
    return ScheduleAnswer.model_validate(_view_of(services, name))


@schedules.post("/{name}/pause", summary="Pause it", responses=_UNKNOWN)
def pause_schedule(services: Serving, who: Admin, name: Name) -> ScheduleAnswer:
    """Make no more runs due until it is resumed; the current run continues."""
    _view_of(services, name)
    services.schedules.pause(name, who.name)
    return ScheduleAnswer.model_validate(_view_of(services, name))


@schedules.post("/{name}/resume", summary="Resume it", responses=_UNKNOWN)
def resume_schedule(services: Serving, _: Admin, name: Name) -> ScheduleAnswer:
    """Undo a pause; what was missed meanwhile is made up for by one run."""
    _view_of(services, name)
    services.schedules.resume(name)
    return ScheduleAnswer.model_validate(_view_of(services, name))


@schedules.post("/{name}/run", status_code=202, summary="Run it now", responses={**TAKEN, **_UNKNOWN})
def run_schedule(submission: Submitting, name: Name) -> RunAnswer:
    """Make a run now, whatever the time, and whether it is paused or not."""
    return submission.take(_view_of(submission.services, name).request, origin=origin_of(name))


def _view_of(services: Services, name: str) -> ScheduleView:
    view = services.schedules.get(name)
    if view is None:
        raise HttpError("not-found", f"there is no schedule {name[:100]!r}")
    return view


@audit.get("", summary="Who changed what")
def list_audit(
    services: Serving, _: Admin, paging: Paging, principal: Text = None, action: Text = None, outcome: Text = None
) -> AuditAnswer:
    """Return a page of the audit, newest first."""
    asked = {"principal": principal or "", "action": action or "", "outcome": outcome or ""}
    found = services.access.audit.page(**asked, before=paging.after(int), limit=paging.most)
    page, following = paging.cut(found, lambda entry: entry.seq)
    return AuditAnswer(entries=[AuditEntryAnswer.model_validate(entry) for entry in page], next_cursor=following)
