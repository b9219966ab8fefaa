"""Roles, each of which may do all that the one before it may, and principals, who have them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What a caller may do; in ascending order."""

    VIEWER = "viewer"
    """Looks at everything but the audit."""
    OPERATOR = "operator"
    """Makes plans; starts, cancels and retries runs."""
    ADMIN = "admin"
    """Pauses and resumes schedules, and looks at the audit."""

    def covers(self, needed: Role) -> bool:
        """Whether a principal of this role may do what ``needed`` is asked for."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks: the name of a token, ``local`` where none is needed, or ``user:NAME`` at a shell."""

    name: str
    role: Role


LOCAL: Final = Principal(name="local", role=Role.ADMIN)
"""Every client, where the service listens on the loopback interface and asks for no token.

An admin, since a principal that can start runs could do no more harm with the rest."""
ANONYMOUS: Final = "anonymous"
"""Stands in the audit where the principal is not known."""
