"""The application: routes put together over the services, behind the gate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.routing import Match

from scheduler.api import audit, partitions, plans, probes, runs, schedules
from scheduler.api.guard import guard

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from scheduler.daemon.services import Services

DESCRIPTION = """Asks for replays of producer state, watches them, and tells partition by partition whether tiering can
be turned on yet. Rows are those of the shell command's JSON."""


def create_app(services: Services, version: str) -> FastAPI:
    """Return the application over ``services``."""
    app = FastAPI(
        title="Resnap", version=version, description=DESCRIPTION, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.services = services
    for part in (probes, partitions, runs, plans, schedules, audit):
        app.include_router(part.router)
    guard(app, services.gate)
    services.observation.metrics.routes(_routes(app))
    app.add_middleware(_Counted, application=app, services=services)
    return app


def _routes(app: FastAPI) -> list[tuple[str, str]]:
    return [(method, route.path) for route in app.routes for method in getattr(route, "methods", None) or ()]  # type: ignore[attr-defined]


class _Counted:
    """ASGI middleware that counts requests by route; a stream counts from its first to its last byte."""

    def __init__(self, app: ASGIApp, application: FastAPI, services: Services) -> None:
        self._app, self._application, self._services = app, application, services

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
            self._services.observation.metrics.http_request(self._route(scope), scope["method"], status, seconds)

    def _route(self, scope: Scope) -> str:
        for route in self._application.routes:
            if route.matches(scope)[0] is Match.FULL:
                return getattr(route, "path", "")
        return ""
