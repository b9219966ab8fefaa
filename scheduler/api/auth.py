"""FastAPI dependencies of routes: the services, and the authenticated caller.

``def route(services: Serving)`` gets the services; ``def cancel(who: Operator)`` lets only operators and admins in.

The role is also in the description of the API (``security`` of each operation). A session only allows reading: a change
needs the token itself, which no browser sends by itself.
"""

from contextlib import suppress
from functools import partial
from typing import Annotated, Final, TypeAlias

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from starlette.concurrency import run_in_threadpool

from resnap.scheduler.access.control import AccessControl, require
from resnap.scheduler.access.roles import Principal, Role
from resnap.scheduler.api.request_context import address_in, context_in
from resnap.scheduler.service.services import Services
from resnap.storage.errors import ResnapError

SESSION_COOKIE: Final = "resnap_session"
SCHEME: Final = "token"
_bearer = HTTPBearer(
    auto_error=False, scheme_name=SCHEME, description="A token that `resnap token create` made; the role is in it."
)


async def services_in(request: Request) -> Services:
    """Return the services of a request's application; immediate, and so without a thread of its own."""
    services: Services = request.app.state.services
    return services


def access_of(request: Request) -> AccessControl:
    """Return the access control of a request's service."""
    access: AccessControl = request.app.state.access
    return access


async def identified(
    request: Request,
    roles: SecurityScopes,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> Principal:
    """Return the principal of the request, if it has the required role.

    Raises:
        AccessError: the caller is unknown, or does not have the role.

    """
    context = context_in(request.scope)
    if context.principal is None:  # not known yet: the request changes nothing
        access = access_of(request)
        identify = partial(
            access.identify,
            bearer=None if credentials is None else credentials.credentials,
            session=request.cookies.get(SESSION_COOKIE),
            address=address_in(request.scope),
        )
        # Without tokens nothing is looked up, and no thread is needed.
        context.principal = identify() if access.auth == "none" else await run_in_threadpool(identify)
    for role in roles.scopes:
        require(context.principal, Role(role))
    return context.principal


async def identified_if_known(request: Request) -> None:
    """Note who asks where no route does, as none takes the request; of an unknown caller nothing is noted."""
    with suppress(ResnapError):
        await identified(request, SecurityScopes(), await _bearer(request))


Serving: TypeAlias = Annotated[Services, Depends(services_in)]
Viewer: TypeAlias = Annotated[Principal, Security(identified, scopes=[Role.VIEWER.value])]
Operator: TypeAlias = Annotated[Principal, Security(identified, scopes=[Role.OPERATOR.value])]
Admin: TypeAlias = Annotated[Principal, Security(identified, scopes=[Role.ADMIN.value])]
