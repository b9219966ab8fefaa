"""Probes and metrics, for machines: alive, ready, and what there is to count.

They need no token; the metrics name log dirs, schedules, and callers with a quota.

"""

import os
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from scheduler.api.answers import Readyz
from scheduler.api.context import Serving
from scheduler.daemon.services import Services
from storage.errors import ResnapError

router = APIRouter(tags=["probes"])


@router.get("/livez", summary="Is it alive?")
async def livez() -> dict[str, str]:
    """Answer; touches nothing."""
    return {"status": "alive"}


@router.get(
    "/readyz",
    response_model=Readyz,
    summary="Can it work?",
    responses={503: {"model": Readyz, "description": "Its file or a log dir cannot be used."}},
)
def readyz(services: Serving) -> JSONResponse:
    """Look at the service's file and the log dirs; stores are reported and do not count."""
    needed = {"state": _state(services), "logDirs": _log_dirs(services), "schedules": _running(services)}
    is_ready = all(said == "ok" for said in needed.values())
    body = Readyz(status="ready" if is_ready else "not ready", checks={**needed, "stores": services.observation.stores})
    return JSONResponse(body.model_dump(by_alias=True), 200 if is_ready else 503)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics."}},
)
def metrics(request: Request, services: Serving) -> Response:
    """Return all series, in the form that Accept asks for."""
    services.observation.measure(services)
    body, content_type = services.observation.metrics.render(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})


def _state(services: Services) -> str:
    try:
        services.database.probe()
    except ResnapError as error:
        return type(error).__name__
    return "ok"


def _log_dirs(services: Services) -> str:
    unreadable = [path for path in map(Path, services.settings.log_dirs) if not os.access(path, os.R_OK | os.X_OK)]
    return f"{len(unreadable)} cannot be read" if unreadable else "ok"


def _running(services: Services) -> str:
    return "ending" if services.is_ending else "ok"
