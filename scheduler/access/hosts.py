"""Checks the host names of requests, and the origins of pages that may make them.

On the loopback interface every browser of the machine can reach the service, and so can any page opened there: by a
name that the page's owner rebound to 127.0.0.1, or by a plain form. So a request for a host name that is not the
service's is refused, and so is a change requested by a page of another origin.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from resnap.scheduler.access.roles import CrossSiteError, UnknownHostError
from resnap.storage.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

AuthMode: TypeAlias = Literal["token", "none"]
_LOOPBACK_NAME: Final = "localhost"
_AUTHORITY: Final = re.compile(r"(?:\[([0-9a-f.]*:[0-9a-f:.]*)\]|([^\s:/?#@\[\]]+))(?::[0-9]{0,5})?", re.ASCII)
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
        if not self._knows(_name_in(authority)):
            raise UnknownHostError(f"Host {authority[:100]!r} is not a name of this service")
        if not changes:
            return
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        if site not in _OWN_SITES or (origin is not None and origin.lower().partition("://")[2] != authority):
            raise CrossSiteError(f"a page of {(origin or site)[:100]!r} may not change anything here")

    def _knows(self, name: str) -> bool:
        if not self.allowed and not is_loopback(self.listen):
            return True
        return is_loopback(name) or name in {self.listen.lower(), *(host.lower() for host in self.allowed)}


def _name_in(authority: str) -> str:
    """Return the host in ``host:port``, ``[v6]:port`` or either without a port; nothing if it has another form."""
    match = _AUTHORITY.fullmatch(authority)
    return "" if match is None else match[1] or match[2]
