"""A problem as a page, for whoever has opened one in a browser; programs get it as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.responses import HTMLResponse
from starlette.datastructures import Headers

from resnap.scheduler.web.rendering import render

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping


def opens_page(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request is a browser's, for one of the pages."""
    is_page = scope["method"] in {"GET", "HEAD"} and not str(scope["path"]).startswith("/v1/")
    return is_page and "text/html" in Headers(scope=scope).get("accept", "")


def error_page(problem: Mapping[str, object], headers: Mapping[str, str]) -> HTMLResponse:
    """Return a problem of RFC 9457 in words; ``headers`` are those it would have as JSON."""
    kept = {name: value for name, value in headers.items() if name.lower() not in {"content-type", "content-length"}}
    return HTMLResponse(render("error.html", {"problem": problem}), int(str(problem["status"])), headers=kept)
