"""Sign-in and sign-out of a browser: a token begins a session, which is read-only.

The cookie goes only with requests that the service's own pages make. Who follows a link from elsewhere therefore
comes without it: they get the form with a word to load it again, which the browser then does as a request of our own
page, with the cookie, and is sent on to where the link leads.
"""

from contextlib import suppress
from typing import Annotated, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Cookie, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from resnap.scheduler.access.control import AccessControl
from resnap.scheduler.access.roles import AccessError, Principal, TooManyFailuresError
from resnap.scheduler.access.tokens import SESSION_S
from resnap.scheduler.api.auth import SESSION_COOKIE, access_of
from resnap.scheduler.api.middleware import LOGIN_PATH, LOGOUT_PATH
from resnap.scheduler.api.problems import kind_of
from resnap.scheduler.api.request_context import address_in, context_in
from resnap.scheduler.web.rendering import render

router = APIRouter(include_in_schema=False)
_MOST_FIELDS: Final = 8
_MOST_FORM_BYTES: Final = 65_536
Session = Annotated[str | None, Cookie(alias=SESSION_COOKIE)]


@router.get(LOGIN_PATH)
def show_login(request: Request, session: Session = None, next: str = "/") -> Response:  # noqa: A002 - as links call it
    """Ask for a token, or send on a browser that needs none."""
    if _principal_of(access_of(request), session) is not None:
        return RedirectResponse(_own(next), 303)
    answer = _form(next)
    if request.headers.get("sec-fetch-site") == "cross-site":
        answer.headers["Refresh"] = "0"
    return answer


@router.post(LOGIN_PATH)
async def log_in(request: Request) -> Response:
    """Begin a session, and send the browser on."""
    access, context = access_of(request), context_in(request.scope)
    try:
        body = await request.body()
    except ClientDisconnect as error:  # as everywhere; it is not a fault of the service
        raise HTTPException(400, "the client disconnected before its request was complete") from error
    fields = _fields(body)
    secret, wanted = (fields.get(name, [""])[0] for name in ("token", "next"))
    try:
        context.principal, session = await run_in_threadpool(access.enter, secret, address_in(request.scope))
    except AccessError as error:
        return _refusal(error, wanted)
    answer = RedirectResponse(_own(wanted), 303)
    is_https = request.url.scheme == "https"
    answer.set_cookie(
        SESSION_COOKIE, session, max_age=SESSION_S, path="/", httponly=True, samesite="strict", secure=is_https
    )
    return answer


@router.post(LOGOUT_PATH)
def log_out(request: Request, session: Session = None) -> Response:
    """End the session."""
    access = access_of(request)
    context_in(request.scope).principal = _principal_of(access, session)
    if session is not None:
        access.tokens.end_session(session)
    answer = RedirectResponse(LOGIN_PATH, 303)
    answer.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return answer


def _fields(body: bytes) -> dict[str, list[str]]:
    """Return the fields of a form; none of one that is larger than any of ours, which would take long to read."""
    if len(body) > _MOST_FORM_BYTES:
        return {}
    with suppress(ValueError):
        return parse_qs(body.decode("ascii", "replace"), max_num_fields=_MOST_FIELDS)
    return {}


def _principal_of(access: AccessControl, session: str | None) -> Principal | None:
    try:
        return access.identify(bearer=None, session=session, address="")
    except AccessError:
        return None


def _refusal(error: AccessError, wanted: str) -> HTMLResponse:
    answer = _form(wanted, said=f"{error}.".capitalize())
    answer.status_code = kind_of(error).status
    if isinstance(error, TooManyFailuresError):
        answer.headers["Retry-After"] = str(int(error.retry_after_s) + 1)
    return answer


def _form(wanted: str, said: str = "") -> HTMLResponse:
    return HTMLResponse(render("login.html", {"next": _own(wanted), "said": said}))


def _own(path: str) -> str:
    """Return ``path`` if it leads to a page of ours, else that of the first one; to browsers a backslash is a slash."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_ours else "/"
