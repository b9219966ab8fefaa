"""Errors as RFC 9457 problems: what went wrong, a code for programs, and the next step.

``instance`` is the request's id, which is in the log as well. No problem contains a secret, or the message of a bug.
Routes name the problems they may answer with by ``responses=problems("not-found", ...)``; what every route may answer
is added to the description by ``openapi.describe``. ``/v1/problems`` says what the types of problems stand for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from resnap.scheduler.access.roles import UnauthenticatedError
from resnap.scheduler.api.problem_kinds import (
    BY_CODE,
    INTERNAL,
    PROBLEMS_PATH,
    BodyTooLargeError,
    HttpError,
    InvalidRequestError,
    Kind,
    MethodNotAllowedError,
    NotFoundError,
    OtherHttpError,
    kind_of,
)
from resnap.scheduler.api.request_context import context_in
from resnap.scheduler.settings.redaction import redact
from resnap.scheduler.telemetry.logs import logger
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from fastapi import Response

MEDIA_TYPE: Final = "application/problem+json"
_LONGEST: Final = 2000
"""Characters of a text: what is refused may be as long as its sender likes."""
_LOOKED_AT: Final = 4 * _LONGEST
"""Characters that are searched for secrets. Problems are made on the event loop, and a search takes time by length."""
_SHOWN_ERRORS: Final = 20
_log = logger(__name__)
router = APIRouter(prefix=PROBLEMS_PATH, tags=["problems"])


class WrongPart(BaseModel):
    """One part of a request that is wrong."""

    within: Annotated[str, Field(alias="in", examples=["body"])]
    """body, query, path, header or cookie"""
    at: Annotated[str, Field(examples=["/partitions/0"])]
    """JSON pointer into the body, or the parameter's name."""
    detail: str


class Problem(BaseModel):
    """A problem, as RFC 9457 has it, with a code, a next step, and what is wrong part by part."""

    type: Annotated[str, Field(examples=["/v1/problems/not-found"])]
    title: str
    status: int
    detail: str
    instance: Annotated[str, Field(examples=["urn:uuid:5f0c954e-52c2-4a6c-8f2b-5a9c3a2d8f11"])]
    code: Annotated[str, Field(examples=["not-found"])]
    hint: str
    errors: list[WrongPart] = []


def error_response(scope: MutableMapping[str, Any], error: BaseException) -> Response:
    """Return the problem for ``error``; errors of the service itself are logged."""
    context = context_in(scope)
    response = problem_response(error, context.request_id)
    context.code = problem_kind(error).code
    if response.status_code >= INTERNAL.status:
        asked = {"method": scope["method"], "path": str(scope["path"])}
        _log.error("request failed", request_id=context.request_id, **asked, exc_info=error)
    return response


def problem_response(error: BaseException, request_id: str) -> JSONResponse:
    """Return the response where ``error`` ended a request."""
    error, kind = _ours(error), problem_kind(error)
    detail = str(error) if isinstance(error, ResnapError) else "the log has the details, under the id in instance"
    body: dict[str, object] = {
        "type": kind.type,
        "title": kind.title,
        "status": kind.status,
        "detail": _without_secrets(detail),
        "instance": f"urn:uuid:{request_id}",
        "code": kind.code,
        "hint": _without_secrets(getattr(error, "hint", None) or kind.hint),
    }
    if isinstance(error, _InvalidPartsError):
        body["errors"] = error.parts
    return JSONResponse(body, kind.status, headers=_headers(error, kind), media_type=MEDIA_TYPE)


def problem_kind(error: BaseException) -> Kind:
    """Return the kind of problem of ``error``, be it of ours or the framework's."""
    return kind_of(_ours(error))


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return ``responses`` of a route that may answer with the problems of these codes."""
    found: dict[int | str, dict[str, Any]] = {}
    for kind in (BY_CODE[code] for code in codes):
        said = found.setdefault(kind.status, {"description": "", "content": _CONTENT})
        said["description"] = f"{said['description']}; {kind.title} (`{kind.code}`)".removeprefix("; ")
    return found


_CONTENT: Final = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


class _InvalidPartsError(InvalidRequestError):
    """As many parts as are wrong, of which the first ones are listed."""

    def __init__(self, wrong: Sequence[Mapping[str, Any]]) -> None:
        self.parts = [_wrong_part(part) for part in wrong[:_SHOWN_ERRORS]]
        first = self.parts[0]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        where = f"{first['in']} {first['at']}".rstrip()
        super().__init__(f"{where}: {first['detail']}{more}")


def _ours(error: BaseException) -> BaseException:
    """Return the error of ours that stands for one of the framework's."""
    if isinstance(error, RequestValidationError):
        return _InvalidPartsError(error.errors())
    if isinstance(error, HTTPException) and error.status_code < INTERNAL.status:
        made = _OF_STATUS.get(error.status_code, OtherHttpError)
        detail = _DETAILS.get(error.status_code, str(error.detail))
        return made(detail, hint=_HINTS.get(error.status_code), headers=error.headers)
    return error


_OF_STATUS: Final[Mapping[int, type[HttpError]]] = {
    404: NotFoundError,
    405: MethodNotAllowedError,
    413: BodyTooLargeError,
}
_HINTS: Final = {404: "/ has the pages, /docs lists the paths of the API"}
_DETAILS: Final = {404: "there is nothing at this path", 405: "this path does not support the method"}


def _wrong_part(part: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong without what was sent, which may hold a secret."""
    where, *path = (str(step)[:_LOOKED_AT] for step in part["loc"])
    detail = str(part["msg"])
    if part["type"] == "json_invalid":
        path, detail = [], f"not JSON from character {part['loc'][-1]} onwards: {part['ctx']['error']}"
    steps = ["/" + step.replace("~", "~0").replace("/", "~1") for step in path]
    at = "".join(steps) if where == "body" else ".".join(path)
    return {"in": where, "at": _without_secrets(at), "detail": _without_secrets(detail)}


def _without_secrets(text: str) -> str:
    """Return the beginning of ``text``, without secrets."""
    return redact(text[:_LOOKED_AT])[:_LONGEST]


def _headers(error: BaseException, kind: Kind) -> dict[str, str]:
    headers = dict(getattr(error, "headers", None) or {})
    if isinstance(error, UnauthenticatedError):
        headers["WWW-Authenticate"] = 'Bearer realm="resnap"'
    wait_s = getattr(error, "retry_after_s", None) or kind.retry_after_s
    if wait_s is not None:
        headers.setdefault("Retry-After", str(max(1, math.ceil(wait_s))))
    return headers


@router.get("", summary="All kinds of problems")
def list_problems() -> dict[str, list[dict[str, object]]]:
    """Return every kind of problem that this service answers with; needs no token."""
    return {"problems": [_as_document(kind) for kind in BY_CODE.values()]}


@router.get("/{code}", summary="One kind of problem", responses=problems("not-found"))
def get_problem(code: str) -> dict[str, object]:
    """Return what the ``type`` of a problem stands for; needs no token."""
    if code not in BY_CODE:
        raise NotFoundError(f"there is no kind of problem {code[:100]!r}")
    return _as_document(BY_CODE[code])


def _as_document(kind: Kind) -> dict[str, object]:
    return {"type": kind.type, "code": kind.code, "status": kind.status, "title": kind.title, "hint": kind.hint}
