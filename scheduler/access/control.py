"""Access control of the service: identifies callers by token or session, limits failures, writes the audit log."""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.scheduler.access.audit_log import AuditLog
from resnap.scheduler.access.roles import (
    LOCAL,
    ForbiddenError,
    Principal,
    Role,
    TooManyFailuresError,
    UnauthenticatedError,
)
from resnap.scheduler.access.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.scheduler.access.hosts import AuthMode, Hosts
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.state.database import Database

BURST: Final = 10
REFILL_S: Final = 6.0
ALL: Final = 10
"""All addresses together may have this many times as much: a client with many addresses gains no more than that."""
ADDRESSES: Final = 4096
"""Kept at most; the least recently used one makes room, and begins again."""
NO_ADDRESS: Final = "none"
_SITE_PREFIX: Final = 64


class _Bucket(NamedTuple):
    left: float
    at_s: float


class AttemptLimit:
    """Counts attempts by address: ``burst`` at once, then one every ``refill_s``; for all, ``ALL`` times that.

    It does not block a correct token: 256 random bits cannot be guessed at any rate, and behind a proxy or on the
    loopback interface one client with a stale token would lock out all others. It bounds what failures cost: entries in
    the audit log, lines in the service's log. Thread-safe.
    """

    def __init__(
        self, clock: Clock, *, burst: int = BURST, refill_s: float = REFILL_S, addresses: int = ADDRESSES
    ) -> None:
        self._clock, self._burst, self._refill_s, self._addresses = clock, burst, refill_s, addresses
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._of_all = _Bucket(burst * ALL, clock.monotonic_s())
        self._guard = threading.Lock()

    def take(self, address: str) -> float:
        """Count an attempt; return 0 if it is within the limit, else the seconds until the next one will be."""
        key, now_s = site_of(address), self._clock.monotonic_s()
        with self._guard:
            bucket = self._buckets.pop(key, _Bucket(self._burst, now_s))
            left = _attempts_left(bucket, now_s, self._burst, self._refill_s)
            of_all = _attempts_left(self._of_all, now_s, self._burst * ALL, self._refill_s / ALL)
            wait_s = max((1 - left) * self._refill_s, (1 - of_all) * self._refill_s / ALL, 0.0)
            cost = 0 if wait_s else 1
            self._buckets[key], self._of_all = _Bucket(left - cost, now_s), _Bucket(of_all - cost, now_s)
            while len(self._buckets) > self._addresses:
                self._buckets.popitem(last=False)
        return wait_s

    def __len__(self) -> int:
        return len(self._buckets)


def _attempts_left(bucket: _Bucket, now_s: float, most: float, refill_s: float) -> float:
    """Return how many attempts are left in a bucket."""
    return min(most, bucket.left + (now_s - bucket.at_s) / refill_s)


def site_of(address: str) -> str:
    """Return the site for which an address counts: the first 64 bits of IPv6, because a site owns all the rest.

    All values that are not addresses, as a proxy may report them, count as one site.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return NO_ADDRESS
    if parsed.version == 4:  # noqa: PLR2004
        return str(parsed)
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((parsed, _SITE_PREFIX), strict=False))


class AccessControl:
    """Authenticates callers, and holds the data to authorize their requests; its state is in ``database``."""

    def __init__(
        self, database: Database, clock: Clock, random_bytes: Callable[[int], bytes], *, auth: AuthMode, hosts: Hosts
    ) -> None:
        self.auth, self.hosts, self.random_bytes = auth, hosts, random_bytes
        self.tokens = Tokens(database, clock, random_bytes)
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
                raise self._failure(address)
            return found.principal
        principal = self.tokens.principal_of_session(session) if session else None
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
            raise self._failure(address)
        return found.principal, self.tokens.begin_session(found)

    def _failure(self, address: str) -> UnauthenticatedError | TooManyFailuresError:
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
