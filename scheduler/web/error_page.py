"""Renders a problem as a page if a browser requested it; programs get JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastapi.responses import HTMLResponse
from starlette.datastructures import Headers
from starlette.requests import Request

from resnap.scheduler.api.problems import MEDIA_TYPE
from resnap.scheduler.api.request_context import context_in
from resnap.scheduler.web.pages import menu_of
from resnap.scheduler.web.rendering import render

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OF_THE_BODY = {"content-type", "content-length"}


def opens_page(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request is a browser's, for one of the pages."""
    is_page = scope["method"] in {"GET", "HEAD"} and not str(scope["path"]).startswith("/v1/")
    return is_page and "text/html" in Headers(scope=scope).get("accept", "")


def with_error_pages(app: ASGIApp) -> ASGIApp:
    """Return ``app`` with problems as pages of the same status and headers where a page was asked for."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if not opens_page(scope):
            await app(scope, receive, send)
            return
        start: Message | None = None
        problem = b""

        async def send_on(message: Message) -> None:
            nonlocal start, problem
            if (
                message["type"] == "http.response.start"
                and Headers(raw=message["headers"]).get("content-type") == MEDIA_TYPE
            ):
                start = message
            elif start is None:
                await send(message)
            else:
                problem += message.get("body", b"")
                if not message.get("more_body"):
                    await _page(problem, start, Request(scope))(scope, receive, send)

        await app(scope, receive, send_on)

    return answer


def _page(problem: bytes, start: Message, request: Request) -> HTMLResponse:
    who = context_in(request.scope).principal
    menu = {} if who is None else menu_of(request, who, request.app.state.services)
    headers = {name: value for name, value in Headers(raw=start["headers"]).items() if name not in _OF_THE_BODY}
    return HTMLResponse(
        render("error.html", {**menu, "problem": json.loads(problem)}), start["status"], headers=headers
    )
