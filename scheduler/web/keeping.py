"""Schedules, the description of the API, and the audit for admins: what is due, and who changed what."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from resnap.scheduler.access.audit_log import AuditFilter
from resnap.scheduler.api.auth import Admin, Serving, Viewer
from resnap.scheduler.api.paging import PAGE, Cursor, Limit, decoded, encoded
from resnap.scheduler.service.schedules import request_of
from resnap.scheduler.web.commands import Shell
from resnap.scheduler.web.pages import api_command, link, page

router = APIRouter(include_in_schema=False)
Text = Annotated[str, Query(max_length=200)]


@router.get("/schedules")
def show_schedules(request: Request, services: Serving, who: Viewer) -> Response:
    """Show every schedule, when it is due next, and its last run."""
    shell = Shell.of(services)
    found = [(view, shell.run(request_of(view.spec))) for view in services.schedules.all()]
    commands = [api_command(request, services, "/v1/schedules", "the same from the API")]
    return page(request, services, who, "schedules.html", {"schedules": found, "commands": commands})


@router.get("/docs")
def show_api(request: Request, services: Serving, who: Viewer) -> Response:
    """Show what the HTTP API can be asked for; ``/openapi.json`` has the whole description."""
    paths = request.app.openapi()["paths"]
    operations = [
        (method.upper(), path, operation) for path, methods in paths.items() for method, operation in methods.items()
    ]
    commands = [api_command(request, services, "/openapi.json", "the whole description")]
    return page(request, services, who, "api.html", {"operations": operations, "commands": commands})


@router.get("/audit")
def show_audit(
    request: Request,
    services: Serving,
    who: Admin,
    principal: Text = "",
    action: Text = "",
    outcome: Text = "",
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Show a page of the audit, newest first."""
    before = decoded(cursor, int)
    found = services.access.audit.page(
        AuditFilter(principal=principal or None, action=action or None, outcome=outcome or None),
        before=before[0] if before else None,
        limit=limit,
    )
    asked = {"principal": principal, "action": action, "outcome": outcome}
    values = {
        "entries": found.entries,
        "wanted": asked,
        "first_url": link("/audit", **asked) if cursor else None,
        "next_url": None if found.before is None else link("/audit", **asked, cursor=encoded(found.before)),
        "commands": [api_command(request, services, link("/v1/audit", **asked), "the same from the API")],
    }
    return page(request, services, who, "audit.html", values)
