"""The route of the audit log: who changed what, or was refused."""

from typing import Annotated

from fastapi import APIRouter, Query

from resnap.scheduler.api.auth import Admin, Serving
from resnap.scheduler.api.paging import Paging, TaggedRoute
from resnap.scheduler.api.responses import AuditAnswer, AuditEntryAnswer

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=TaggedRoute)
Text = Annotated[str | None, Query(max_length=200)]


@router.get("", summary="Who changed what")
def list_audit(
    services: Serving, _: Admin, paging: Paging, principal: Text = None, action: Text = None, outcome: Text = None
) -> AuditAnswer:
    """Return a page of the audit, newest first."""
    asked = {"principal": principal or "", "action": action or "", "outcome": outcome or ""}
    found = services.access.audit.page(**asked, before=paging.after(int), limit=paging.most)
    page, following = paging.cut(found, lambda entry: entry.seq)
    return AuditAnswer(entries=[AuditEntryAnswer.model_validate(entry) for entry in page], next_cursor=following)
