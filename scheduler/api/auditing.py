"""Every request to change something is in the audit before it is answered: who, what, and the outcome; refusals too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from resnap.scheduler.access.roles import ANONYMOUS
from resnap.scheduler.api.notes import SAFE_METHODS, address_in, note_in, route_in
from resnap.scheduler.api.problem_kinds import INTERNAL
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from resnap.scheduler.access.gate import Gate


class Auditing:
    """ASGI middleware.

    What was done and cannot be kept in the audit is answered as a failure, since nothing may be done in silence. Of
    callers whom nobody knows only so many refusals are kept: they must not be able to fill the disk.
    """

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and keep what came of it before the answer goes out."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        is_kept = False
        failure: ResnapError | None = None

        async def send_on(message: Message) -> None:
            nonlocal is_kept, failure
            if message["type"] == "http.response.start":
                is_kept = True
                try:
                    await run_in_threadpool(self._keep, scope, message["status"])
                except ResnapError as error:
                    failure = error
            if failure is None:
                await send(message)

        try:
            await self._app(scope, receive, send_on)
        except Exception:
            if not is_kept:
                await run_in_threadpool(self._keep, scope, INTERNAL.status)
            raise
        if failure is not None:
            raise failure

    def _keep(self, scope: Scope, status: int) -> None:
        note, address = note_in(scope), address_in(scope)
        who, ended = note.principal, {} if note.code is None else {"code": note.code}
        if who is None and self._gate.strangers.take(address) > 0:
            return
        self._gate.audit.append(
            principal=ANONYMOUS if who is None else who.name,
            role="" if who is None else who.role.value,
            action=f"{scope['method']} {route_in(scope) or scope['path']}",
            resource=scope["path"],
            outcome=str(status),
            detail={"requestId": note.request_id, "address": address, **ended, **note.detail},
        )
