"""The application: routes put together over the services, behind the gate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from resnap.scheduler.api import audit, partitions, plans, probes, runs, schedules
from resnap.scheduler.api.following import Following
from resnap.scheduler.api.guard import guard
from resnap.scheduler.api.notes import route_in
from resnap.scheduler.web import explain, keeping, login, overview, static_files
from resnap.scheduler.web import partitions as partition_pages
from resnap.scheduler.web import plans as plan_pages
from resnap.scheduler.web import runs as run_pages

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from resnap.scheduler.daemon.services import Services

DESCRIPTION = """Asks for replays of producer state, watches them, and tells partition by partition whether tiering can
be turned on yet. Rows are those of the shell command's JSON."""


def create_app(services: Services, version: str) -> FastAPI:
    """Return the application over ``services``."""
    app = FastAPI(
        title="Resnap", version=version, description=DESCRIPTION, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.services, app.state.following = services, Following(services)
    for part in (probes, partitions, runs, plans, schedules, audit):
        app.include_router(part.router)
    for pages in (login, overview, partition_pages, explain, run_pages, plan_pages, keeping, static_files):
        app.include_router(pages.router)
    guard(app, services.gate)
    services.observation.metrics.routes(_routes(app))
    app.add_middleware(_Counted, services=services)
    return app


def _routes(app: FastAPI) -> list[tuple[str, str]]:
    """Return every route as (method, path), those of included routers too."""
    contexts = iter_route_contexts(app.routes)
    return [(method, str(context.path)) for context in contexts for method in context.methods or ()]


class _Counted:
    """ASGI middleware that counts requests by route; a stream counts from its first to its last byte."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app, self._services = app, services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - began_s
            route = route_in(scope) or ""  # what no route took is counted as one, however it was called
            self._services.observation.metrics.http_request(route, scope["method"], status, seconds)
