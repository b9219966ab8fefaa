"""Roles, in ascending order of permissions, and the principals that have them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """The permissions of a caller, in ascending order."""

    VIEWER = "viewer"
    """Reads everything but the audit log."""
    OPERATOR = "operator"
    """Makes plans; starts, cancels and retries runs."""
    ADMIN = "admin"
    """Pauses and resumes schedules, and reads the audit log."""

    def covers(self, needed: Role) -> bool:
        """Whether this role includes the role ``needed``."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


ROLES: Final = frozenset(map(str, Role))
"""The values of all roles of this release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The caller: a token's name, ``local`` if no token is needed, or ``user:NAME`` at a shell."""

    name: str
    role: Role


LOCAL: Final = Principal(name="local", role=Role.ADMIN)
"""Every client, if the service listens on the loopback interface and requires no token.

An admin, since a principal that can start runs could do no more harm with the rest."""
ANONYMOUS: Final = "anonymous"
"""The name of an unknown principal in the audit log."""
