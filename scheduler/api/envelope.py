"""What goes around every answer: an id, headers that keep browsers from harm, and a problem where it failed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from starlette.datastructures import MutableHeaders

from resnap.scheduler.api.notes import Note, add_note, answer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_HEADER: Final = "X-Request-Id"
SECURITY_HEADERS: Final = {
    # Nothing from elsewhere, nothing inline, in nobody's frame.
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


class Envelope:
    """ASGI middleware, the outermost."""

    def __init__(self, app: ASGIApp, random_bytes: Callable[[int], bytes]) -> None:
        self._app, self._random_bytes = app, random_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and answer it if nobody else has."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        note = Note(str(uuid.UUID(bytes=self._random_bytes(16), version=4)))
        add_note(scope, note)
        is_begun = False

        async def send_on(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = note.request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except Exception as error:
            answer = answer_of(scope, error)
            if is_begun:  # too late for another answer: the server cuts the connection
                raise
            await answer(scope, receive, send_on)
