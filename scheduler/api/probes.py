"""Probes and metrics, for machines: alive, ready, and the service's counters.

They need no token; the metrics name log dirs, schedules, and callers with a quota. They have threads of their own, and
wait for no log dir, so that they can report whatever blocks other requests.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from resnap.scheduler.api.auth import Serving
from resnap.scheduler.api.responses import Readyz
from resnap.scheduler.service.services import PROBE_S, Services
from resnap.storage.errors import ResnapError

router = APIRouter(tags=["probes"])
_THREADS: Final = ThreadPoolExecutor(4, thread_name_prefix="resnap-probe")


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


@router.get(
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
    paths = [Path(path) for path in services.settings.log_dirs]
    try:
        unreadable = services.probing.run(
            lambda: sum(not os.access(path, os.R_OK | os.X_OK) for path in paths), PROBE_S
        )
    except ResnapError:
        return "do not answer"
    return f"{unreadable} cannot be read" if unreadable else "ok"
