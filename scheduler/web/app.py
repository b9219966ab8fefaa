"""The ASGI application: routes over the services, behind the middleware, and its description, OpenAPI.

The description is FastAPI's own, with an example of every route, and the problems that it may return.
"""

from __future__ import annotations

import json
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import RedirectResponse
from fastapi.routing import iter_route_contexts
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from resnap.scheduler.access.roles import UnauthenticatedError
from resnap.scheduler.api import fleet, partitions, plans, problems, runs
from resnap.scheduler.api.auth import identified_if_known
from resnap.scheduler.api.events import EventFeeds
from resnap.scheduler.api.middleware import LOGIN_PATH, audit_changes, count_requests, refuse_unroutable, with_headers
from resnap.scheduler.api.problems import BY_CODE, HttpError, error_response
from resnap.scheduler.api.service import audit, probes, schedules
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
    from fastapi.routing import APIRoute
    from starlette.routing import BaseRoute

    from resnap.scheduler.access.control import AccessControl
    from resnap.scheduler.service.services import Services

DESCRIPTION = """Asks for replays of producer state, watches them, and says partition by partition whether tiering can
be turned on yet. Rows are those of the shell command's JSON."""
METHOD_NOT_ALLOWED: Final = BY_CODE["method-not-allowed"].status


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
    every.include_router(probes)
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
            what = f"query {name[:100]}: there is no such parameter"
            raise HttpError("invalid-request", what, hint=did_you_mean(name[:100], known))


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


ALWAYS: Final = ("unknown-host", "invalid-request", "internal-error", "misconfigured", "failed", "state-unusable")
OF_TOKENS: Final = ("unauthenticated", "forbidden", "too-many-failures")
OF_CHANGES: Final = ("cross-site", "body-too-large", "not-json")
OF_BODIES: Final = ("bad-request",)
_EXAMPLES: Final[dict[str, object]] = {
    "sources": ["/var/lib/kafka/data"], "topics": ["payments*"], "destination": "/var/lib/resnap/snapshots",
    "topic": "payments", "partition": 0, "offset": 552, "to": 683, "producerId": 4,
    "run_id": "01m8b8n2eb84hb97fgnj", "plan_id": "01m8b8n2eb84hb97fgnk", "name": "look", "code": "not-found",
}  # fmt: skip
"""Examples by parameter, or by field of a body; what has none is its own example."""
_IN_BODIES: Final = ("sources", "topics")
"""What an example of a body has, besides what it must have."""
_OF_THE_FRAMEWORK: Final = ("HTTPValidationError", "ValidationError")


def operation_id(route: APIRoute) -> str:
    """Return what generated clients call an operation, such as ``listRuns``."""
    return to_camel(route.name)


def describe(app: FastAPI, *, needs_token: bool) -> None:
    """Have ``app`` describe itself with all problems; without ``needs_token`` tokens are not described."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, summary=app.summary, description=app.description,
                routes=app.routes, tags=app.openapi_tags,
            )  # fmt: skip
            for path, methods in schema.get("paths", {}).items():
                for method, operation in methods.items():
                    # As they come in the path: generated clients take them in this order.
                    operation.get("parameters", []).sort(key=lambda one: path.find(f"{{{one['name']}}}") % (1 << 16))
                    _complete(operation, method, needs_token=needs_token)
                    _exemplify(operation, method, path, schema["components"]["schemas"])
            _define_problem(schema, needs_token=needs_token)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign] # the way that FastAPI documents


def _complete(operation: dict[str, Any], method: str, *, needs_token: bool) -> None:
    """Add the problems of an operation to those that its route names."""
    if not needs_token:
        operation.pop("security", None)
    codes = list(ALWAYS)
    codes += OF_TOKENS if "security" in operation else ()
    codes += OF_CHANGES if method not in {"get", "head", "options"} else ()
    codes += OF_BODIES if "requestBody" in operation else ()
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)  # the framework's own, which is not what is answered
    for status, said in problems.problems(*dict.fromkeys(codes)).items():
        named = responses.setdefault(str(status), said)
        if said["description"] not in named["description"]:
            named["description"] += f"; {said['description']}"
    operation["responses"] = dict(sorted(responses.items()))


def _exemplify(operation: dict[str, Any], method: str, path: str, schemas: dict[str, Any]) -> None:
    """Add an example to what a request must have, and the request as a command."""
    needed = [parameter for parameter in operation.get("parameters", []) if parameter["required"]]
    for parameter in needed:
        parameter["example"] = _EXAMPLES.get(parameter["name"], parameter["name"])
    query = urlencode({parameter["name"]: parameter["example"] for parameter in needed if parameter["in"] == "query"})
    for parameter in needed:
        path = path.replace(f"{{{parameter['name']}}}", quote(str(parameter["example"]), safe=""))
    command = ["curl", "-s", *(() if method == "get" else ("-X", method.upper()))]
    if "security" in operation:
        command += ["-H", "Authorization: Bearer TOKEN"]
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        body = schemas[content["schema"]["$ref"].rsplit("/")[-1]]
        names = [name for name in body["properties"] if name in {*_IN_BODIES, *body.get("required", ())}]
        content["example"] = {name: _EXAMPLES.get(name, name) for name in names}
        command += ["-H", "Content-Type: application/json", "-d", json.dumps(content["example"])]
    address = f"http://127.0.0.1:8936{path}{'?' if query else ''}{query}"
    operation["x-codeSamples"] = [{"lang": "Shell", "source": shlex.join([*command, address])}]


def _define_problem(schema: dict[str, Any], *, needs_token: bool) -> None:
    components = schema.setdefault("components", {})
    if not needs_token:
        components.pop("securitySchemes", None)
    schemas = components.setdefault("schemas", {})
    for name in _OF_THE_FRAMEWORK:
        schemas.pop(name, None)
    defined = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(defined.pop("$defs"))
    schemas["Problem"] = defined
