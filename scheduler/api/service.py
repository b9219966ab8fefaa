"""Routes of the service itself: probes, metrics, the schedules, which the configuration alone defines, the audit log.

Probes and metrics are for machines, and need no token; the metrics name log dirs, schedules, and callers with a quota.
They have threads of their own, and wait for no log dir, so that they can report whatever blocks other requests.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path as FilePath
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from resnap.scheduler.api.auth import Admin, Serving, Viewer
from resnap.scheduler.api.paging import Paging, TaggedRoute
from resnap.scheduler.api.problems import HttpError, problems
from resnap.scheduler.api.responses import (
    AuditAnswer,
    AuditEntryAnswer,
    Readyz,
    RunAnswer,
    ScheduleAnswer,
    SchedulesAnswer,
)
from resnap.scheduler.api.runs import TAKEN, Submitting
from resnap.scheduler.service.schedules import ScheduleView, origin_of
from resnap.scheduler.service.services import PROBE_S, Services
from resnap.storage.errors import ResnapError

probes = APIRouter(tags=["probes"])
schedules = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=TaggedRoute)
audit = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=TaggedRoute)
Name = Annotated[str, Path(max_length=64)]
Text = Annotated[str | None, Query(max_length=200)]
_UNKNOWN = problems("not-found")
_THREADS: Final = ThreadPoolExecutor(4, thread_name_prefix="resnap-probe")


@probes.get("/livez", summary="Is it alive?")
async def livez() -> dict[str, str]:
    """Answer; touches nothing."""
    return {"status": "alive"}


@probes.get(
    "/readyz",
    response_model=Readyz,
    summary="Can it work?",
    responses={503: {"model": Readyz, "description": "Its file or a log dir cannot be used."}},
)
async def readyz(services: Serving) -> JSONResponse:
    """Try the service's file and the log dirs; stores are reported and do not count."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _readyz, services)


def _readyz(services: Services) -> JSONResponse:
    needed = {
        "state": _state(services),
        "logDirs": _log_dirs(services),
        "schedules": "ending" if services.is_ending else "ok",
    }
    is_ready = all(said == "ok" for said in needed.values())
    body = Readyz(status="ready" if is_ready else "not ready", checks={**needed, "stores": services.observation.stores})
    return JSONResponse(body.model_dump(by_alias=True), 200 if is_ready else 503)


@probes.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics."}},
)
async def metrics(request: Request, services: Serving) -> Response:
    """Return all series, in the form that Accept asks for."""
    accept = request.headers.get("accept", "")
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _metrics, services, accept)


def _metrics(services: Services, accept: str) -> Response:
    services.measure()
    body, content_type = services.observation.metrics.render(accept)
    return Response(body, headers={"Content-Type": content_type})


def _state(services: Services) -> str:
    try:
        services.database.probe()
    except ResnapError as error:
        return type(error).__name__
    return "ok"


def _log_dirs(services: Services) -> str:
    paths = [FilePath(path) for path in services.settings.log_dirs]
    try:
        unreadable = services.probing.run(
            lambda: sum(not os.access(path, os.R_OK | os.X_OK) for path in paths), PROBE_S
        )
    except ResnapError:
        return "do not answer"
    return f"{unreadable} cannot be read" if unreadable else "ok"


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
