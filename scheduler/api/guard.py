"""Puts the guard around an application: ``guard(app, gate)``, once all its routes are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from resnap.scheduler.access.errors import UnauthenticatedError
from resnap.scheduler.api.auditing import Auditing
from resnap.scheduler.api.doorkeeper import LOGIN_PATH, Doorkeeper
from resnap.scheduler.api.envelope import Envelope
from resnap.scheduler.api.notes import answer_of
from resnap.scheduler.api.openapi import describe
from resnap.scheduler.api.problem_kinds import BY_CODE, KINDS, PROBLEMS_PATH, Kind, MethodNotAllowedError, NotFoundError
from resnap.scheduler.api.problems import problems
from resnap.scheduler.web.error_page import opens_page
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

    from resnap.scheduler.access.gate import Gate

METHOD_NOT_ALLOWED: Final = KINDS[MethodNotAllowedError].status


def guard(app: FastAPI, gate: Gate) -> None:
    """Have every request of ``app`` go by ``gate``, and every error be told as a problem."""
    app.state.gate = gate
    for kind in (ResnapError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answered)
    app.include_router(router)
    describe(app, needs_token=gate.auth == "token")
    # The last one added is the outermost.
    app.add_middleware(Doorkeeper, gate=gate)
    app.add_middleware(Auditing, gate=gate)
    app.add_middleware(Envelope, random_bytes=gate.random_bytes)


async def _answered(request: Request, error: Exception) -> Response:
    """Tell an error; whoever opens a page in a browser without a session is asked to sign in."""
    if isinstance(error, UnauthenticatedError) and opens_page(request.scope):
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{LOGIN_PATH}?{urlencode({'next': path})}", 303)
    answer = answer_of(request.scope, error)
    if answer.status_code == METHOD_NOT_ALLOWED:
        # The framework has a route per method, and names that of the first alone.
        answer.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return answer


def _methods(request: Request) -> set[str]:
    """Return the methods that the path of a request knows."""
    contexts = [one for one in iter_route_contexts(request.app.routes) if one.path and one.methods]
    fitting = [one for one in contexts if compile_path(str(one.path))[0].match(request.scope["path"])]
    return {method for one in fitting for method in one.methods or ()}


router = APIRouter(prefix=PROBLEMS_PATH, tags=["problems"])


@router.get("", summary="All kinds of problems")
def list_problems() -> dict[str, list[dict[str, object]]]:
    """Return every kind of problem that this service tells of; needs no token."""
    return {"problems": [_told(kind) for kind in BY_CODE.values()]}


@router.get("/{code}", summary="One kind of problem", responses=problems("not-found"))
def get_problem(code: str) -> dict[str, object]:
    """Return what the ``type`` of a problem stands for; needs no token."""
    if code not in BY_CODE:
        raise NotFoundError(f"there is no kind of problem {code[:100]!r}")
    return _told(BY_CODE[code])


def _told(kind: Kind) -> dict[str, object]:
    return {"type": kind.type, "code": kind.code, "status": kind.status, "title": kind.title, "hint": kind.hint}
