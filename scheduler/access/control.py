"""Access control of the service: identifies callers by token or session, limits failures, writes the audit log.

It also checks the host names of requests, and the origins of pages that may make them. On the loopback interface every
browser of the machine can reach the service, and so can any page opened there: by a name that the page's owner rebound
to 127.0.0.1, or by a plain form. So a request for a host name that is not the service's is refused, and so is a change
requested by a page of another origin.
"""

from __future__ import annotations

import ipaddress
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from resnap.scheduler.access.audit_log import AuditLog
from resnap.scheduler.access.roles import (
    LOCAL,
    CrossSiteError,
    ForbiddenError,
    Principal,
    Role,
    TooManyFailuresError,
    UnauthenticatedError,
    UnknownHostError,
)
from resnap.scheduler.access.tokens import Tokens
from resnap.storage.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.state.database import Database


AuthMode: TypeAlias = Literal["token", "none"]
_LOOPBACK_NAME: Final = "localhost"
_AUTHORITY: Final = re.compile(r"(?:\[([0-9a-f.]*:[0-9a-f:.]*)\]|([^\s:/?#@\[\]]+))(?::[0-9]{0,5})?", re.ASCII)
"""``host:port``, ``[v6]:port``, or either without a port."""
_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of ``Sec-Fetch-Site``: the page itself, or an address that was typed."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``; a name other than ``localhost`` may mean anything."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == _LOOPBACK_NAME


def check_listening(host: str, auth: AuthMode) -> None:
    """Check that only this machine can reach a service that requires no token.

    Raises:
        ConfigurationError: other machines can.

    """
    if auth == "none" and not is_loopback(host):
        raise ConfigurationError(
            f"listen {host}: every client that reaches it could start runs, since auth is none",
            hint="set auth = token, and make tokens with `resnap token create`; or listen on 127.0.0.1",
        )


@dataclass(frozen=True, slots=True)
class Hosts:
    """The host names of the service: where it listens, and those from the configuration.

    If it listens for other machines and no names are configured, every name is accepted: then every request needs a
    token, which a browser does not send by itself.
    """

    listen: str
    allowed: tuple[str, ...] = ()

    def check(self, headers: Mapping[str, str], *, changes: bool) -> None:
        """Check a request by its headers, in lower case; ``changes`` says whether it changes something.

        Raises:
            UnknownHostError: it names another host.
            CrossSiteError: it would change something, and a page of another origin made it.

        """
        authority = headers.get("host", "").lower()
        named = _AUTHORITY.fullmatch(authority)
        name = "" if named is None else named[1] or named[2]
        names = {self.listen.lower(), *(host.lower() for host in self.allowed)}
        is_any_taken = not self.allowed and not is_loopback(self.listen)
        if not (is_any_taken or is_loopback(name) or name in names):
            raise UnknownHostError(f"Host {authority[:100]!r} is not a name of this service")
        if not changes:
            return
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        if site not in _OWN_SITES or (origin is not None and origin.lower().partition("://")[2] != authority):
            raise CrossSiteError(f"a page of {(origin or site)[:100]!r} may not change anything here")


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
