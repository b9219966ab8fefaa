"""The audit: pages by cursor, filters, and no secret in it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.access.audit_log import AuditLog
from resnap.scheduler.settings.values import redact
from resnap.storage.errors import UsageError
from tests.cases import each

if TYPE_CHECKING:
    from resnap.scheduler.state.database import Database
    from tests.clocks import FixedClock

SECRET = "hV7/x+Qz0123456789abcdefghijklmnopqrstu"


@pytest.fixture
def audit(database: Database, clock: FixedClock) -> AuditLog:
    return AuditLog(database, clock)


def add(audit: AuditLog, principal: str = "ci", action: str = "token create", outcome: str = "ok") -> None:
    audit.append(principal=principal, role="admin", action=action, resource="x", outcome=outcome)


def test_pages_follow_each_other_newest_first_whatever_is_added_meanwhile(audit: AuditLog) -> None:
    for number in range(7):
        add(audit, outcome=str(number))
    seen, before = list[str](), None
    while True:
        page = audit.page(before=before, limit=3)
        if not page:
            break
        seen += [entry.outcome for entry in page]
        add(audit, outcome="later")
        before = page[-1].seq
    assert seen == ["6", "5", "4", "3", "2", "1", "0"]


def test_filters_are_taken_together(audit: AuditLog, clock: FixedClock) -> None:
    for principal in ("ci", "alice"):
        for outcome in ("200", "403"):
            add(audit, principal, "POST /v1/replays", outcome)
            clock.advance(1000)
    page = audit.page(principal="alice", outcome="403")
    assert [(entry.principal, entry.outcome) for entry in page] == [("alice", "403")]
    assert [entry.outcome for entry in audit.page(action="POST /v1/replays")] == ["403", "200"] * 2
    assert audit.page(action="token create") == []


def test_an_entry_is_in_the_transaction_of_the_change_that_it_records(audit: AuditLog) -> None:
    with suppress(UsageError), audit.database.write():
        add(audit)
        raise UsageError("it was not done")
    assert audit.page() == []


def test_no_secret_is_kept(audit: AuditLog) -> None:
    audit.append(
        principal="ci",
        role="admin",
        action="POST /v1/replays",
        resource=f"/v1/x?token={SECRET}",
        outcome="ok",
        detail={"destination": f"s3://key:{SECRET}@bucket/p", "password": SECRET, "inner": {"secret": SECRET}},
    )
    (entry,) = audit.page()
    assert SECRET not in repr(entry)
    assert entry.detail["destination"] == "s3://***@bucket/p"


def test_what_is_kept_is_bounded(audit: AuditLog) -> None:
    audit.append(
        principal="ci", role="", action="x" * 9999, resource="y" * 9999, outcome="ok", detail={"z": "z" * 99_999}
    )
    (entry,) = audit.page()
    assert max(len(entry.action), len(entry.resource)) == 300
    assert len(str(entry.detail)) < 4500


@each("unit", ["z", "secret", "?key", "://", "://a:", "bearer ", "token =", " ", "&a", "resnap_"])
def test_a_text_made_to_take_long_does_not(unit: str) -> None:
    assert len(redact(unit * (50_000 // len(unit)))) > 0
