"""Who asks, as routes ask for it: ``def cancel(who: Operator)`` lets nobody in but operators and admins.

The role stands in the description of the API as well (``security`` of each operation). A session counts only for
looking: what changes something needs the token itself, which no browser sends by itself.
"""

from functools import partial
from typing import Annotated, Final, TypeAlias

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from starlette.concurrency import run_in_threadpool

from resnap.scheduler.access.gate import Gate, require
from resnap.scheduler.access.roles import Principal, Role
from resnap.scheduler.api.notes import address_in, note_of

SESSION_COOKIE: Final = "resnap_session"
SCHEME: Final = "token"
_bearer = HTTPBearer(
    auto_error=False, scheme_name=SCHEME, description="A token that `resnap token create` made; the role is in it."
)


def gate_of(request: Request) -> Gate:
    """Return the gate of the service that a request was made to."""
    gate: Gate = request.app.state.gate
    return gate


async def identified(
    request: Request,
    roles: SecurityScopes,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> Principal:
    """Return who asks, if they have the role that is needed.

    Raises:
        AccessError: nobody is known, or has not the role.

    """
    note = note_of(request)
    if note.principal is None:  # not known yet: the request changes nothing
        gate = gate_of(request)
        identify = partial(
            gate.identify,
            bearer=None if credentials is None else credentials.credentials,
            session=request.cookies.get(SESSION_COOKIE),
            address=address_in(request.scope),
        )
        # Where there are no tokens nothing is looked up, and nobody need wait for a thread.
        note.principal = identify() if gate.auth == "none" else await run_in_threadpool(identify)
    for role in roles.scopes:
        require(note.principal, Role(role))
    return note.principal


Viewer: TypeAlias = Annotated[Principal, Security(identified, scopes=[Role.VIEWER.value])]
Operator: TypeAlias = Annotated[Principal, Security(identified, scopes=[Role.OPERATOR.value])]
Admin: TypeAlias = Annotated[Principal, Security(identified, scopes=[Role.ADMIN.value])]
