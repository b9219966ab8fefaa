"""Routes of the audit log: who changed what, or was refused."""

from typing import Annotated

from fastapi import APIRouter, Query

from resnap.scheduler.access.audit_log import AuditFilter
from resnap.scheduler.api.auth import Admin, Serving
from resnap.scheduler.api.etags import TaggedRoute
from resnap.scheduler.api.paging import Paging, encoded
from resnap.scheduler.api.responses import AuditAnswer, AuditEntryAnswer

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=TaggedRoute)
Text = Annotated[str | None, Query(max_length=200)]


@router.get("", summary="Who changed what")
def list_audit(
    services: Serving, _: Admin, paging: Paging, principal: Text = None, action: Text = None, outcome: Text = None
) -> AuditAnswer:
    """Return a page of the audit, newest first."""
    wanted = AuditFilter(principal=principal, action=action, outcome=outcome)
    page = services.access.audit.page(wanted, before=paging.after(int), limit=paging.limit)
    entries = [AuditEntryAnswer.model_validate(one) for one in page.entries]
    return AuditAnswer(entries=entries, next_cursor=None if page.before is None else encoded(page.before))
