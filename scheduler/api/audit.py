"""The audit: who changed what, or was refused."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from resnap.scheduler.access.audit_log import AuditFilter
from resnap.scheduler.api.auth import Admin, Serving
from resnap.scheduler.api.etags import validated
from resnap.scheduler.api.paging import PAGE, Cursor, Limit, decoded, encoded
from resnap.scheduler.api.responses import AuditAnswer, AuditEntryAnswer
from resnap.scheduler.clock import instant

router = APIRouter(prefix="/v1/audit", tags=["audit"])
Text = Annotated[str | None, Query(max_length=200)]


@router.get("", response_model=AuditAnswer, summary="Who changed what", responses={304: {}})
def list_audit(
    request: Request,
    services: Serving,
    _: Admin,
    principal: Text = None,
    action: Text = None,
    outcome: Text = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Return a page of the audit, newest first."""
    before = decoded(cursor, int)
    page = services.access.audit.page(
        AuditFilter(principal=principal, action=action, outcome=outcome),
        before=before[0] if before else None,
        limit=limit,
    )
    entries = [
        AuditEntryAnswer(
            seq=one.seq, at=instant(one.at_ms), principal=one.principal, role=one.role, action=one.action,
            resource=one.resource, outcome=one.outcome, detail=dict(one.detail),
        )
        for one in page.entries
    ]  # fmt: skip
    following = None if page.before is None else encoded(page.before)
    return validated(request, AuditAnswer(entries=entries, next_cursor=following))
