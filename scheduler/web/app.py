"""The ASGI application: routes over the services, behind the middleware."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from resnap.scheduler.access.roles import UnauthenticatedError
from resnap.scheduler.api import fleet, partitions, plans, probes, problems, runs
from resnap.scheduler.api.auth import identified_if_known
from resnap.scheduler.api.events import EventFeeds
from resnap.scheduler.api.middleware import LOGIN_PATH, audit_changes, count_requests, refuse_unroutable, with_headers
from resnap.scheduler.api.openapi import describe, operation_id
from resnap.scheduler.api.problems import KINDS, InvalidRequestError, MethodNotAllowedError, error_response
from resnap.scheduler.api.service import audit, schedules
from resnap.scheduler.settings.values import did_you_mean
from resnap.scheduler.web import login, overview, producers, rendering
from resnap.scheduler.web import partitions as partition_pages
from resnap.scheduler.web import runs as run_pages
from resnap.scheduler.web.pages import opens_page, with_error_pages
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import Response
    from fastapi.dependencies.models import Dependant
    from starlette.routing import BaseRoute

    from resnap.scheduler.access.control import AccessControl
    from resnap.scheduler.service.services import Services

DESCRIPTION = """Asks for replays of producer state, watches them, and says partition by partition whether tiering can
be turned on yet. Rows are those of the shell command's JSON."""
METHOD_NOT_ALLOWED: Final = KINDS[MethodNotAllowedError].status


def create_app(services: Services, version: str) -> FastAPI:
    """Return the application for ``services``."""
    app = FastAPI(
        title="Resnap", version=version, description=DESCRIPTION, docs_url=None, redoc_url=None, redirect_slashes=False,
        generate_unique_id_function=operation_id, routes=_all_routes(),
    )  # fmt: skip
    app.state.services, app.state.feeds = services, EventFeeds(services)
    guard(app, services.access)
    metrics = services.observation.metrics
    metrics.routes(_routes(app))
    app.add_middleware(count_requests, metrics=metrics)
    return app


@cache
def _all_routes() -> list[BaseRoute]:
    """Return the routes of every service; what their parameters are is found out once, which takes 70 ms."""
    every = APIRouter(generate_unique_id_function=operation_id)
    every.include_router(probes.router)
    for part in (partitions.router, runs.router, plans.router, schedules, fleet.router, audit):
        every.include_router(part, dependencies=[Depends(_no_other_parameters)])
    for pages in (login, overview, partition_pages, producers, run_pages, rendering):
        every.include_router(pages.router)
    return every.routes


def guard(app: FastAPI, access: AccessControl) -> None:
    """Add the middleware around ``app``, after all its routes, and turn every error into a problem."""
    app.state.access = access
    for kind in (ResnapError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _handle_error)
    app.include_router(problems.router)
    describe(app, needs_token=access.auth == "token")
    # The last one added is the outermost.
    app.add_middleware(refuse_unroutable, access=access)
    app.add_middleware(audit_changes, access=access)
    app.add_middleware(with_headers, random_bytes=access.random_bytes)
    app.add_middleware(with_error_pages)


async def _no_other_parameters(request: Request) -> None:
    """Refuse a query that names what the route does not have: a filter without effect would show what was not asked."""
    known = set(_parameters(request.scope["route"].dependant))
    for name in request.query_params:
        if name not in known:
            raise InvalidRequestError(
                f"query {name[:100]}: there is no such parameter", hint=did_you_mean(name[:100], known)
            )


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for further in dependant.dependencies:
        yield from _parameters(further)


async def _handle_error(request: Request, error: Exception) -> Response:
    """Respond with a problem; a browser without a session is asked to sign in."""
    if isinstance(error, UnauthenticatedError) and opens_page(request.scope):
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{LOGIN_PATH}?{urlencode({'next': path})}", 303)
    if opens_page(request.scope):
        await identified_if_known(request)  # whose menu the page of the error has
    response = error_response(request.scope, error)
    if response.status_code == METHOD_NOT_ALLOWED:
        # The framework has a route per method, and names that of the first alone.
        response.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """Return the methods that the path of a request supports."""
    contexts = [context for context in iter_route_contexts(request.app.routes) if context.path and context.methods]
    fitting = [context for context in contexts if compile_path(str(context.path))[0].match(request.scope["path"])]
    return {method for context in fitting for method in context.methods or ()}


def _routes(app: FastAPI) -> list[tuple[str, str]]:
    """Return every route as (method, path), including those of included routers."""
    contexts = iter_route_contexts(app.routes)
    return [(method, str(context.path)) for context in contexts for method in context.methods or ()]
