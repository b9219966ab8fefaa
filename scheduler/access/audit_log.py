"""The audit log: who changed what, or was refused, when, and with what outcome. It is append-only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.scheduler.settings.values import json_form, redact
from resnap.scheduler.state.database import Database, from_row, insert_row, read_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resnap.scheduler.clock import Clock

_TEXT: Final = 300
"""Characters of a field at most: what is refused may be as long as its sender likes."""
_DETAIL: Final = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One action of a principal, or an attempt.

    Attributes:
        seq: ascending number, used as a cursor.
        at_ms: time in milliseconds since 1970.
        principal: name of the token, ``local``, ``anonymous``, or ``user:NAME`` of a shell.
        role: of the principal; empty where there is none.
        action: such as ``POST /v1/replays`` or ``token create``.
        resource: path, or name of the changed object.
        outcome: HTTP status, or ``ok``.
        detail: facts about it, without secrets.

    """

    seq: int
    at_ms: int
    principal: str
    role: str
    action: str
    resource: str
    outcome: str
    detail: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AuditLog:
    """The audit log in the service's file."""

    database: Database
    clock: Clock

    def append(
        self,
        *,
        principal: str,
        role: str,
        action: str,
        resource: str,
        outcome: str,
        detail: Mapping[str, object] | None = None,
    ) -> None:
        """Add an entry, without the secrets in it; it is on disk when this returns.

        Raises:
            StateError: it could not be written.

        """
        texts = {"principal": principal, "role": role, "action": action, "resource": resource, "outcome": outcome}
        values: dict[str, object] = {name: redact(text[:_TEXT]) for name, text in texts.items()}
        with self.database.write() as connection:
            insert_row(connection, "audit", {"at_ms": self.clock.now_ms(), **values, "detail": _shorten(detail or {})})

    def page(
        self, *, principal: str = "", action: str = "", outcome: str = "", before: int | None = None, limit: int = 50
    ) -> list[AuditEntry]:
        """Return up to ``limit`` entries, newest first, with these values, and older than the entry ``before``."""
        asked = {"principal = ?": principal, "action = ?": action, "outcome = ?": outcome, "seq < ?": before}
        conditions = {clause: value for clause, value in asked.items() if value}
        where = " AND ".join(["1", *conditions])
        query = f"SELECT * FROM audit WHERE {where} ORDER BY seq DESC LIMIT ?"  # noqa: S608 - our own words
        rows = self.database.rows(query, (*conditions.values(), limit))
        return [from_row(AuditEntry, row, detail=read_column(row, "detail")) for row in rows]


def _shorten(detail: Mapping[str, object]) -> str:
    text = json.dumps(json_form(detail), default=str)
    return text if len(text) <= _DETAIL else json.dumps({"beginning": text[:_DETAIL]})
