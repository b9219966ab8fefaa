"""What is refused before a route sees it: other hosts and sites' pages, strangers, what is too long or no JSON.

Whoever wants to change something is asked who they are before their body is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from resnap.scheduler.api.notes import SAFE_METHODS, address_in, answer_of, note_in
from resnap.scheduler.api.problem_kinds import BodyTooLargeError, InvalidRequestError, NotJsonError
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from resnap.scheduler.access.gate import Gate
    from resnap.scheduler.access.roles import Principal

BODY_BYTES: Final = 1 << 20
LOGIN_PATH: Final = "/login"
LOGOUT_PATH: Final = "/logout"
FORM_PATHS: Final = frozenset({LOGIN_PATH, LOGOUT_PATH})
"""What a browser posts from the service's own page; nothing else is open to strangers, or takes a form."""
_JSON: Final = "application/json"
QUERY_BYTES: Final = 1 << 14
"""Of a query: room for a path of 4096 characters, each encoded. Each of its values is checked on the event loop."""
_FORM: Final = "application/x-www-form-urlencoded"
_TOO_LARGE: Final = f"the body is longer than {BODY_BYTES} bytes"


class Doorkeeper:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        changes = scope["method"] not in SAFE_METHODS
        try:
            self._gate.hosts.check(headers, changes=changes)
            if len(scope["query_string"]) > QUERY_BYTES:
                found = len(scope["query_string"])
                raise InvalidRequestError(f"a query of {found} bytes, expected {QUERY_BYTES} at most")
            if changes and scope["path"] not in FORM_PATHS:
                note_in(scope).principal = await run_in_threadpool(self._identify, headers, address_in(scope))
            if changes:
                _check_body(headers, is_form=scope["path"] in FORM_PATHS)
        except ResnapError as error:
            await answer_of(scope, error)(scope, receive, send)
            return
        await self._app(scope, _limited(receive), send)

    def _identify(self, headers: Headers, address: str) -> Principal:
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        bearer = secret.strip() if scheme.lower() == "bearer" else None
        return self._gate.identify(bearer=bearer, session=None, address=address)


def _check_body(headers: Headers, *, is_form: bool) -> None:
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > BODY_BYTES:
        raise BodyTooLargeError(f"{_TOO_LARGE}: Content-Length is {length}")
    if length != "0" or "transfer-encoding" in headers:
        wanted = _FORM if is_form else _JSON
        found = headers.get("content-type", "").partition(";")[0].strip().lower()
        if found != wanted:
            raise NotJsonError(f"Content-Type: expected {wanted}, found {found[:100]!r}")


def _limited(receive: Receive) -> Receive:
    """Return ``receive`` up to so many bytes: a body in chunks does not say how long it will be."""
    seen = 0

    async def received() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY_BYTES:
            # The framework would treat any other error as a failure to read the body.
            raise HTTPException(413, _TOO_LARGE)
        return message

    return received
