"""The middleware around every request, from the outside in: metrics, headers and errors, audit log, checks.

These are refused before a route sees them: other hosts, pages of other sites, unknown callers, bodies that are too long
or not JSON. The caller of a change is authenticated before the body is read.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from resnap.scheduler.access.roles import ANONYMOUS
from resnap.scheduler.api.problems import INTERNAL, HttpError, error_response
from resnap.scheduler.api.request_context import SAFE_METHODS, RequestContext, address_in, context_in, route_in
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from resnap.scheduler.access.control import AccessControl
    from resnap.scheduler.access.roles import Principal
    from resnap.scheduler.telemetry.metrics import Metrics

REQUEST_ID_HEADER: Final = "X-Request-Id"
SECURITY_HEADERS: Final = {
    # Nothing from elsewhere, nothing inline, in no other page's frame.
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""On every answer; a route may set ``Cache-Control`` otherwise."""
BODY_BYTES: Final = 1 << 20
LOGIN_PATH: Final = "/login"
LOGOUT_PATH: Final = "/logout"
FORM_PATHS: Final = frozenset({LOGIN_PATH, LOGOUT_PATH})
"""What a browser posts from the service's own page; nothing else is open to unknown callers, or takes a form."""
_JSON: Final = "application/json"
QUERY_BYTES: Final = 1 << 14
"""The longest query: a path of 4096 characters, each encoded. Each of its values is checked on the event loop."""
_FORM: Final = "application/x-www-form-urlencoded"
_TOO_LARGE: Final = f"the body is longer than {BODY_BYTES} bytes"


def count_requests(app: ASGIApp, metrics: Metrics) -> ASGIApp:
    """Return ``app`` with its requests counted by route; a stream counts from its first to its last byte.

    HEAD is answered as GET, as load balancers and ``curl -I`` ask; the server leaves the body out.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        began_s, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - began_s
            route = route_in(scope) or ""  # what no route took is counted as one, however it was called
            metrics.http_request(route, scope["method"], status, seconds)

    return answer


def with_headers(app: ASGIApp, random_bytes: Callable[[int], bytes]) -> ASGIApp:
    """Return ``app`` with an id for every request, security headers, and a problem for an error that was not caught."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext(str(uuid.UUID(bytes=random_bytes(16), version=4)))
        scope.setdefault("state", {})["context"] = context
        is_begun = False

        async def send_on(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = context.request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await app(scope, receive, send_on)
        except Exception as error:
            response = error_response(scope, error)
            if is_begun:  # too late for another response: the server cuts the connection
                raise
            await response(scope, receive, send_on)

    return answer


def audit_changes(app: ASGIApp, access: AccessControl) -> ASGIApp:
    """Return ``app`` with every request to change something in the audit log before its response; refusals too.

    What was done and cannot be kept in the audit log ends as a failure, since nothing may be done in silence. Only a
    limited number of refusals of unknown callers is kept: they must not be able to fill the disk.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in SAFE_METHODS:
            await app(scope, receive, send)
            return
        is_kept = False
        failure: ResnapError | None = None

        async def send_on(message: Message) -> None:
            nonlocal is_kept, failure
            if message["type"] == "http.response.start":
                is_kept = True
                try:
                    await run_in_threadpool(_keep, access, scope, message["status"])
                except ResnapError as error:
                    failure = error
            if failure is None:
                await send(message)

        try:
            await app(scope, receive, send_on)
        except Exception:
            if not is_kept:
                await run_in_threadpool(_keep, access, scope, INTERNAL.status)
            raise
        if failure is not None:
            raise failure

    return answer


def _keep(access: AccessControl, scope: Scope, status: int) -> None:
    context, address = context_in(scope), address_in(scope)
    who, ended = context.principal, {} if context.code is None else {"code": context.code}
    if who is None and access.anonymous_refusals.take(address) > 0:
        return
    access.audit.append(
        principal=ANONYMOUS if who is None else who.name,
        role="" if who is None else who.role.value,
        action=f"{scope['method']} {route_in(scope) or scope['path']}",
        resource=scope["path"],
        outcome=str(status),
        detail={"requestId": context.request_id, "address": address, **ended, **context.detail},
    )


def refuse_unroutable(app: ASGIApp, access: AccessControl) -> ASGIApp:
    """Return ``app`` behind a refusal of what no route is to see."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        changes = scope["method"] not in SAFE_METHODS
        try:
            access.hosts.check(headers, changes=changes)
            if len(scope["query_string"]) > QUERY_BYTES:
                found = len(scope["query_string"])
                raise HttpError("invalid-request", f"a query of {found} bytes, expected {QUERY_BYTES} at most")
            if changes and scope["path"] not in FORM_PATHS:
                context_in(scope).principal = await run_in_threadpool(_identify, access, headers, address_in(scope))
            if changes:
                _check_body(headers, is_form=scope["path"] in FORM_PATHS)
        except ResnapError as error:
            await error_response(scope, error)(scope, receive, send)
            return
        await app(scope, _limit(receive), send)

    return answer


def _identify(access: AccessControl, headers: Headers, address: str) -> Principal:
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    bearer = secret.strip() if scheme.lower() == "bearer" else None
    return access.identify(bearer=bearer, session=None, address=address)


def _check_body(headers: Headers, *, is_form: bool) -> None:
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > BODY_BYTES:
        raise HttpError("body-too-large", f"{_TOO_LARGE}: Content-Length is {length}")
    if length != "0" or "transfer-encoding" in headers:
        wanted = _FORM if is_form else _JSON
        found = headers.get("content-type", "").partition(";")[0].strip().lower()
        if found != wanted:
            raise HttpError("not-json", f"Content-Type: expected {wanted}, found {found[:100]!r}")


def _limit(receive: Receive) -> Receive:
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
