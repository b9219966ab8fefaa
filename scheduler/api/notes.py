"""What is noted of a request while it is answered: its id, who asks, and what the audit shall say of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from resnap.scheduler.api.problem_kinds import INTERNAL
from resnap.scheduler.api.problems import problem_answer, problem_kind
from resnap.scheduler.observing.logs import logger
from resnap.scheduler.web.error_page import error_page, opens_page

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from fastapi import Response
    from starlette.requests import HTTPConnection

    from resnap.scheduler.access.roles import Principal

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110); all others are audited."""
_KEY: Final = "note"
_log = logger(__name__)


@dataclass(slots=True)
class Note:
    """Of one request; ``detail`` is what a route wants the audit to keep, ``code`` of the problem it ended in."""

    request_id: str
    principal: Principal | None = None
    code: str | None = None
    detail: dict[str, object] = field(default_factory=dict)


def add_note(scope: MutableMapping[str, Any], note: Note) -> None:
    """Attach a note to a request."""
    scope.setdefault("state", {})[_KEY] = note


def note_in(scope: MutableMapping[str, Any]) -> Note:
    """Return the note of a request."""
    note: Note = scope["state"][_KEY]
    return note


def note_of(request: HTTPConnection) -> Note:
    """Return the note of a request, as routes see it."""
    return note_in(request.scope)


def address_in(scope: MutableMapping[str, Any]) -> str:
    """Return where a request comes from; a socket of this machine has no address."""
    client = scope.get("client")
    return str(client[0]) if client else "local"


def route_in(scope: MutableMapping[str, Any]) -> str | None:
    """Return the path of the route that took a request, with the names of its parameters; None where none did."""
    known = getattr(scope.get("route"), "path", None)  # without the prefixes of the routers that the route is in
    if known is None:
        return None
    path, tail = str(scope["path"]).split("/"), str(known).split("/")[1:]
    return "/".join([*path[: len(path) - len(tail)], *tail])


def answer_of(scope: MutableMapping[str, Any], error: BaseException) -> Response:
    """Return the problem that ``error`` is answered with, as a page to whoever opens one.

    The log gets what the service is to blame for.
    """
    note = note_in(scope)
    answer = problem_answer(error, note.request_id)
    note.code = problem_kind(error).code
    if answer.status_code >= INTERNAL.status:
        asked = {"method": scope["method"], "path": str(scope["path"])}
        _log.error("request failed", request_id=note.request_id, **asked, exc_info=error)
    return error_page(json.loads(bytes(answer.body)), answer.headers) if opens_page(scope) else answer
