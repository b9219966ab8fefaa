"""What every page has: who looks, where they are, and a validator, so that what has not changed is not sent again."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from fastapi.responses import HTMLResponse, Response

from resnap.scheduler.access.roles import Role
from resnap.scheduler.api.etags import tagged
from resnap.scheduler.web.commands import STAGED, Command, curl, plan_file
from resnap.scheduler.web.rendering import in_path, render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import Request

    from resnap.scheduler.access.roles import Principal
    from resnap.scheduler.runs.sightings import SeenPartition
    from resnap.scheduler.service.services import Services


def page(request: Request, services: Services, who: Principal, template: str, values: Mapping[str, object]) -> Response:
    """Return a page with its ETag, or 304 where the browser has it already."""
    common = {
        "here": request.url.path,
        "who": who,
        "may_audit": who.role.covers(Role.ADMIN),
        "signs_out": services.access.auth == "token",
        "host": socket.gethostname(),
        "version": request.app.version,
        "now_ms": services.clock.now_ms(),
    }
    headers = {"Cache-Control": "private, no-cache", "Vary": "Cookie, Authorization"}
    return tagged(request, HTMLResponse(render(template, {**common, **values}), headers=headers))


def link(path: str, **parameters: object) -> str:
    """Return an address with the parameters that are given; a list gives one of them several times."""
    given = {name: value for name, value in parameters.items() if value not in (None, "", [], ())}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def api_command(
    request: Request, services: Services, path: str, says: str, body: Mapping[str, object] | None = None
) -> Command:
    """Return the request to the API that answers what a page shows, or that does something about it."""
    url = str(request.base_url).rstrip("/") + path
    return Command(says=says, line=curl(url, needs_token=services.access.auth == "token", body=body))


def post_command(request: Request, services: Services, path: str, says: str) -> Command:
    """Return the request to the API that has something done and says no more than where."""
    url = str(request.base_url).rstrip("/") + path
    return Command(says=says, line=curl(url, needs_token=services.access.auth == "token", words=("-X", "POST")))


def plan_command(request: Request, services: Services, plan_id: str) -> Command:
    """Return the request that puts a plan into a file, for the shell command to carry out."""
    url = str(request.base_url).rstrip("/") + f"/v1/plans/{plan_id}/file"
    words = ("-o", plan_file(plan_id))
    line = curl(url, needs_token=services.access.auth == "token", words=words)
    return Command(says="take the plan as a file", line=line)


def destination_of(services: Services) -> str:
    """Return a place for snapshots below the first that is allowed, or a word for it where none is."""
    allowed = services.settings.allow_destinations
    return f"{str(allowed[0]).rstrip('/')}/{STAGED}" if allowed else "DIRECTORY"


def partition_path(seen: SeenPartition) -> str:
    """Return the path of a partition's page; with ``/v1`` in front, that of the API."""
    return f"/partitions/{in_path(seen.topic)}/{seen.partition}"


def glob_of(name: str) -> str:
    """Return a glob that fits ``name`` alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
