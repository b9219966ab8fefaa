"""The context of a request for middleware and routes: its id, its principal, and details for the audit log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from resnap.scheduler.access.roles import Principal

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110); all others are audited."""


@dataclass(slots=True)
class RequestContext:
    """Of one request; ``detail`` is what a route wants the audit log to keep, ``code`` of the problem it ended in."""

    request_id: str
    principal: Principal | None = None
    code: str | None = None
    detail: dict[str, object] = field(default_factory=dict)


def context_in(scope: MutableMapping[str, Any]) -> RequestContext:
    """Return the context of the request with this scope."""
    context: RequestContext = scope["state"]["context"]
    return context


def address_in(scope: MutableMapping[str, Any]) -> str:
    """Return where a request comes from; a Unix socket has no address."""
    client = scope.get("client")
    return str(client[0]) if client else "local"


def route_in(scope: MutableMapping[str, Any]) -> str | None:
    """Return the path of the route that took a request, with the names of its parameters; None if no route did."""
    known = getattr(scope.get("route"), "path", None)  # without the prefixes of the routers that the route is in
    if known is None:
        return None
    path, tail = str(scope["path"]).split("/"), str(known).split("/")[1:]
    return "/".join([*path[: len(path) - len(tail)], *tail])
