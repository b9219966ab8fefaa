"""Access control of the service: identifies callers by token or session, limits failures, writes the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.scheduler.access.attempt_limit import AttemptLimit
from resnap.scheduler.access.audit_log import AuditLog
from resnap.scheduler.access.errors import ForbiddenError, TooManyFailuresError, UnauthenticatedError
from resnap.scheduler.access.roles import LOCAL, Principal, Role
from resnap.scheduler.access.sessions import Sessions
from resnap.scheduler.access.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.scheduler.access.hosts import AuthMode, Hosts
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.state.database import Database


class AccessControl:
    """Authenticates callers, and holds the data to authorize their requests; its state is in ``database``."""

    def __init__(
        self, database: Database, clock: Clock, random_bytes: Callable[[int], bytes], *, auth: AuthMode, hosts: Hosts
    ) -> None:
        self.auth, self.hosts, self.random_bytes = auth, hosts, random_bytes
        self.tokens = Tokens(database, clock, random_bytes)
        self.sessions = Sessions(database, clock, random_bytes)
        self.audit = AuditLog(database, clock)
        self.failures = AttemptLimit(clock)
        """Wrong credentials by address."""
        self.anonymous_refusals = AttemptLimit(clock)
        """Refusals of unknown callers by address, as far as the audit log records them."""

    def identify(self, *, bearer: str | None, session: str | None, address: str) -> Principal:
        """Return the principal of a request.

        Args:
            bearer: the token that was sent.
            session: the browser's session; None where sessions do not count.
            address: the origin of the request.

        Raises:
            UnauthenticatedError: the client is unknown.
            TooManyFailuresError: the same, too often.

        """
        if self.auth == "none":
            return LOCAL
        if bearer is not None:
            found = self.tokens.find(bearer)
            if found is None:
                raise self._failed(address)
            return found.principal
        principal = self.sessions.find(session) if session else None
        if principal is None:
            raise UnauthenticatedError("the request has no valid token")
        return principal

    def enter(self, secret: str, address: str) -> tuple[Principal, str]:
        """Return the principal of a token, and the secret of a new session.

        Raises:
            UnauthenticatedError: it is not a valid token.
            TooManyFailuresError: the same, too often.

        """
        found = self.tokens.find(secret.strip())
        if found is None:
            raise self._failed(address)
        return found.principal, self.sessions.begin(found)

    def _failed(self, address: str) -> UnauthenticatedError | TooManyFailuresError:
        wait_s = self.failures.take(address)
        if wait_s > 0:
            return TooManyFailuresError("too many wrong tokens came from this address", retry_after_s=wait_s)
        return UnauthenticatedError(
            "the token is not known, was revoked, or has expired", hint="`resnap token list` shows which are valid"
        )


def require(principal: Principal, needed: Role) -> None:
    """Check that a principal has a role.

    Raises:
        ForbiddenError: it has a lesser one.

    """
    if not principal.role.covers(needed):
        raise ForbiddenError(f"{principal.name} is {principal.role.value}; this needs the role {needed.value}")
