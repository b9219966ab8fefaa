"""Roles, in ascending order of permissions, the principals that have them, and the errors of callers without access."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from resnap.storage.errors import ResnapError


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


class AccessError(ResnapError):
    """Root of all access errors."""


class UnauthenticatedError(AccessError):
    """The token is missing, unknown, revoked or expired; the message does not say which."""


class TooOftenError(AccessError):
    """The caller is to wait; ``retry_after_s`` is how long."""

    def __init__(self, message: str, *, retry_after_s: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class TooManyFailuresError(TooOftenError):
    """Too many wrong credentials came from one address."""


class QuotaExceededError(TooOftenError):
    """The caller has used up its quota."""


class ForbiddenError(AccessError):
    """The caller is known, but does not have the role."""


class PlaceForbiddenError(AccessError):
    """A path or URL is outside the places that the configuration allows in requests."""


class UnknownHostError(AccessError):
    """The request names a host that is not the service's, as after DNS rebinding."""


class CrossSiteError(AccessError):
    """A page of another origin made the request."""
