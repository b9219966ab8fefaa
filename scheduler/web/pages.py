"""Common parts of all pages: the principal, the navigation, and an ETag, so that unchanged pages are not sent again.

A problem is a page, too, if a browser requested it; programs get JSON.
"""

import json
import socket
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlencode

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from resnap.scheduler.access.roles import Principal, Role
from resnap.scheduler.api.auth import Serving, Viewer
from resnap.scheduler.api.paging import Page, add_etag
from resnap.scheduler.api.problems import MEDIA_TYPE
from resnap.scheduler.api.request_context import context_in
from resnap.scheduler.runs.scans import ScannedPartition
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command, Shell, curl, plan_file
from resnap.scheduler.web.rendering import in_path, render

_OF_THE_BODY = {"content-type", "content-length"}


@dataclass(frozen=True, slots=True)
class PageContext:
    """Makes the page that is asked for, and the commands on it."""

    request: Request
    services: Serving
    who: Viewer

    def page(self, template: str, values: Mapping[str, object]) -> Response:
        """Return a page with its ETag, or 304 where the browser has it already."""
        common = {
            **menu_of(self.request, self.who, self.services),
            "now_ms": self.services.clock.now_ms(),
            "link": link,
            "partition_link": lambda seen: link(partition_path(seen), source=seen.source),
        }
        headers = {"Cache-Control": "private, no-cache", "Vary": "Cookie, Authorization"}
        return add_etag(self.request, HTMLResponse(render(template, {**common, **values}), headers=headers))

    @property
    def shell(self) -> Shell:
        """The shell beside the service."""
        return Shell.of(self.services)

    @property
    def destination(self) -> str:
        """A place for snapshots below the first allowed one, or a placeholder if none is allowed."""
        return self.shell.staged if self.services.settings.allow_destinations else "DIRECTORY"

    def api(self, path: str, says: str, body: Mapping[str, object] | None = None, words: Iterable[str] = ()) -> Command:
        """Return the curl command of the API request that a page stands for."""
        url = str(self.request.base_url).rstrip("/") + path
        needs_token = self.services.access.auth == "token"
        return Command(says, curl(url, needs_token=needs_token, body=body, words=words))

    def post(self, path: str, says: str) -> Command:
        """Return the request to the API that has something done and says no more than where."""
        return self.api(path, says, words=("-X", "POST"))

    def scheduled(self, kind: str, says: str) -> list[Command]:
        """Return the requests that have the schedules of a kind of runs run now."""
        specs = (spec for spec in self.services.settings.schedules if spec.run == kind)
        return [self.post(f"/v1/schedules/{spec.name}/run", says) for spec in specs]

    def plan(self, plan_id: str) -> Command:
        """Return the request that puts a plan into a file, for the shell command to carry out."""
        return self.api(f"/v1/plans/{plan_id}/file", "take the plan as a file", words=("-o", plan_file(plan_id)))


def menu_of(request: Request, who: Principal, services: Services) -> dict[str, object]:
    """Return what the head of every page shows to a known caller."""
    return {
        "here": request.url.path,
        "who": who,
        "has_fleet": bool(services.settings.fleet),
        "may_audit": who.role.covers(Role.ADMIN),
        "signs_out": services.access.auth == "token",
        "host": socket.gethostname(),
        "version": request.app.version,
    }


Context: TypeAlias = Annotated[PageContext, Depends()]


def link(path: str, **parameters: object) -> str:
    """Return an address with the parameters that are given; a list gives one of them several times."""
    given = {name: value for name, value in parameters.items() if value not in (None, "", [], ())}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def page_links(path: str, paging: Page, following: str | None, **asked: object) -> dict[str, str | None]:
    """Return the addresses of the first page of a list, unless this is it, and of the ``following``."""
    return {
        "first_url": link(path, **asked) if paging.cursor else None,
        "next_url": link(path, **asked, cursor=following) if following else None,
    }


def partition_path(seen: ScannedPartition) -> str:
    """Return the path of a partition's page; with ``/v1`` in front, that of the API."""
    return f"/partitions/{in_path(seen.topic)}/{seen.partition}"


def glob_of(name: str) -> str:
    """Return a glob that fits ``name`` alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


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
