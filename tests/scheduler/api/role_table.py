"""Who may call which route of an application: compares a table with what the application really answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fastapi.routing import iter_route_contexts
from starlette.routing import Mount

from resnap.scheduler.access.roles import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI

    from tests.scheduler.api.serving import Served

NO_PRODUCERS: Final = ("none", "revoked", "expired", "garbage")
SAFE: Final = ("GET", "HEAD", "OPTIONS")
REFUSED: Final = {401, 403}
OWN_ROUTES: Final[Mapping[tuple[str, str], Role | None]] = {
    ("GET", "/openapi.json"): None,
    ("GET", "/v1/problems"): None,
    ("GET", "/v1/problems/{code}"): None,
}
"""What every application has that is guarded; None stands for every caller."""


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    """Return every route as (method, path); all below a mount is one, of the method ``GET``."""
    found: set[tuple[str, str]] = set()
    for context in iter_route_contexts(app.routes):
        if isinstance(context.original_route, Mount):
            found.add(("GET", f"{context.path}/{{path}}"))
        else:
            found |= {(method, str(context.path)) for method in (context.methods or ()) if method != "HEAD"}
    return found


def may(role: Role | None, caller: str) -> int | None:
    """Return the status with which ``caller`` must be refused a route for ``role``; None if they must not be."""
    if role is None:
        return None
    if caller in NO_PRODUCERS:
        return 401
    return None if Role(caller).covers(role) else 403


def check_route(service: Served, method: str, path: str, role: Role | None) -> None:
    """Call one route as every principal, and compare the response with the expected one."""
    for caller in (*NO_PRODUCERS, *Role):
        service.clock.advance(60_000)  # so that failures do not add up to a limit
        headers = {} if caller == "none" else {"Authorization": f"Bearer {service.secrets.get(caller, 'resnap_x')}"}
        where = re.sub(r"\{[^}]*\}", "1", path)
        body = None if method in SAFE else {}
        with service.client.stream(method, where, headers=headers, json=body) as answer:
            status = answer.status_code
        wanted = may(role, caller)
        assert (status == wanted) if wanted else (status not in REFUSED), (method, path, caller, status)
