"""The pages of the service itself: its schedules, the description of its API, and, for admins, its audit log."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from resnap.scheduler.api.auth import Admin
from resnap.scheduler.api.paging import Paging
from resnap.scheduler.web.pages import Context, link, page_links

router = APIRouter(include_in_schema=False)
Text = Annotated[str, Query(max_length=200)]


@router.get("/schedules")
def show_schedules(context: Context) -> Response:
    """Show every schedule, when it is due next, and its last run."""
    found = [(view, context.shell.run(view.request)) for view in context.services.schedules.all()]
    commands = [context.api("/v1/schedules", "the same from the API")]
    return context.page("schedules.html", {"schedules": found, "commands": commands})


@router.get("/docs")
def show_api(context: Context) -> Response:
    """Show what the HTTP API can be asked for; ``/openapi.json`` has the whole description."""
    paths = context.request.app.openapi()["paths"]
    operations = [
        (method.upper(), path, operation) for path, methods in paths.items() for method, operation in methods.items()
    ]
    commands = [context.api("/openapi.json", "the whole description")]
    return context.page("api.html", {"operations": operations, "commands": commands})


@router.get("/audit")
def show_audit(
    context: Context, _: Admin, paging: Paging, principal: Text = "", action: Text = "", outcome: Text = ""
) -> Response:
    """Show a page of the audit, newest first."""
    asked = {"principal": principal, "action": action, "outcome": outcome}
    found = context.services.access.audit.page(**asked, before=paging.after(int), limit=paging.most)
    shown, following = paging.cut(found, lambda entry: entry.seq)
    values = {
        "entries": shown,
        "wanted": asked,
        **page_links("/audit", paging, following, **asked),
        "commands": [context.api(link("/v1/audit", **asked), "the same from the API")],
    }
    return context.page("audit.html", values)
