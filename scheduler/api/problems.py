"""Errors as RFC 9457 problems: what went wrong, a code for programs, and the next step.

``instance`` is the request's id, which is in the log as well. No problem contains a secret, or the message of a bug.
Routes name the problems they may answer with by ``responses=problems("not-found", ...)``; what every route may answer
is added to the description by ``web.app.describe``. ``/v1/problems`` says what the types of problems stand for.

``KINDS`` is the one table from our errors to a status and a stable code. A released code keeps its meaning;
``docs/api.md`` lists them all. A route that needs another one adds its row, and raises an ``HttpError`` of that code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from resnap.scheduler.access import roles as access
from resnap.scheduler.api.request_context import context_in
from resnap.scheduler.runs.partition_details import NoSnapshotError
from resnap.scheduler.runs.worker import RETRY_AFTER_S, QueueFullError
from resnap.scheduler.settings.values import redact
from resnap.scheduler.state.database import StateError
from resnap.scheduler.telemetry.logs import logger
from resnap.storage import errors

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from fastapi import Response

PROBLEMS_PATH: Final = "/v1/problems"


class HttpError(errors.ResnapError):
    """What only a request can get wrong: a problem of this code; ``headers`` go with the answer."""

    def __init__(
        self, code: str, message: str, *, hint: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = BY_CODE[code]
        self.headers = dict(headers or {})


class Kind(NamedTuple):
    """A kind of problem, which has the same status, code and title each time."""

    error: type[Exception]
    """Its errors are those of this class, unless a class below has another kind; of ``HttpError`` those that say so."""
    code: str
    status: int
    title: str
    hint: str
    """The next step, where the error itself names none."""
    retry_after_s: int | None = None
    """When to try again, where the error itself does not know."""

    @property
    def type(self) -> str:
        """Address of its description, relative to the service."""
        return f"{PROBLEMS_PATH}/{self.code}"


_WAIT = "try again after the time in Retry-After"

INTERNAL: Final = Kind(Exception, "internal-error", 500, "The service failed",
                       "this is a bug: report it, with the log entries of the id in instance")  # fmt: skip
KINDS: Final = (
    Kind(errors.UsageError, "unusable-request", 400, "The request cannot be carried out",
         "read detail, and change the request"),
    Kind(HttpError, "bad-request", 400, "The request is not valid HTTP", "read detail, and change the request"),
    Kind(access.UnauthenticatedError, "unauthenticated", 401, "A valid token is needed",
         "send one as a bearer token in the header Authorization; `resnap token create` makes it"),
    Kind(access.ForbiddenError, "forbidden", 403, "The role does not permit this",
         "use a token with a sufficient role; `resnap token create --role` makes one"),
    Kind(access.PlaceForbiddenError, "place-not-allowed", 403, "This path or URL may not be named in requests",
         "name a place that the configuration allows, or add this one to the configuration"),
    Kind(access.CrossSiteError, "cross-site", 403, "A page of another origin made the request",
         "make requests from a program, or from the service's own page"),
    Kind(HttpError, "not-found", 404, "Not found", "list the existing ones, and use an id from there"),
    Kind(NoSnapshotError, "no-snapshot", 404, "There is no snapshot at this offset",
         "list the boundaries of the partition; a replay makes what is missing"),
    Kind(errors.FileGoneError, "file-gone", 404, "A file is no longer there",
         "list again: the broker has deleted it since it was listed"),
    Kind(errors.ObjectNotFoundError, "object-not-found", 404, "The store has no such object",
         "list what the store holds"),
    Kind(HttpError, "method-not-allowed", 405, "The path does not support this method",
         "use a method that the header Allow names"),
    Kind(HttpError, "conflict", 409, "The current state does not permit this",
         "read it again to see its current state"),
    Kind(HttpError, "idempotency-key-reused", 409, "The idempotency key was used for another request",
         "send the same request again, or this one with a new key"),
    Kind(errors.LockedError, "locked", 409, "Another process is doing the same work",
         "wait until it has ended, or cancel it"),
    Kind(errors.LogDirInUseError, "log-dir-in-use", 409, "The lock of the log dir is held",
         "stop the broker, or wait for the other run"),
    Kind(errors.ObjectExistsError, "object-exists", 409, "The store has such an object already",
         "read the existing object: it was not changed"),
    Kind(errors.ObjectChangedError, "object-changed", 409, "An object was replaced while it was read", "try again"),
    Kind(errors.StalePlanError, "stale-plan", 412, "What the plan depends on has changed",
         "make a new plan, and run that"),
    Kind(HttpError, "body-too-large", 413, "The body is too large", "split the request"),
    Kind(HttpError, "not-json", 415, "The body is not JSON", "send it with Content-Type: application/json"),
    Kind(access.UnknownHostError, "unknown-host", 421, "The service does not accept this host name",
         "use the address it listens on, or add the name to allow-hosts"),
    Kind(HttpError, "invalid-request", 422, "The request does not match its description",
         "errors lists each wrong part; /openapi.json has the description"),
    Kind(errors.DataError, "unusable-data", 422, "The data is damaged, or not Kafka's",
         "take the file from another replica; one that resnap wrote may be deleted, and is made again"),
    Kind(access.TooManyFailuresError, "too-many-failures", 429, "Too many wrong tokens from this address", _WAIT, 6),
    Kind(access.QuotaExceededError, "quota-exceeded", 429, "More producer ids than the caller's quota allows", _WAIT),
    Kind(QueueFullError, "queue-full", 429, "The queue of runs is full", _WAIT, RETRY_AFTER_S),
    INTERNAL,
    Kind(errors.ConfigurationError, "misconfigured", 500, "The service is configured wrongly",
         "correct the configuration"),
    Kind(errors.ResnapError, "failed", 500, "The request failed", "read detail; the log has more under instance"),
    Kind(errors.LostProducerStateError, "lost-producer-state", 502,
         "A replica lacks producer state that another one has", "keep it from leading until it is repaired"),
    Kind(errors.ClusterError, "cluster-failed", 502, "The brokers refused, or do not answer",
         "read detail; see their logs"),
    Kind(errors.StoreError, "store-failed", 502, "The store refused or failed", "read detail; `resnap doctor` probes"),
    Kind(errors.StoreAccessError, "store-denied", 502, "The store denies access",
         "check credentials, permissions and bucket; `resnap doctor URL` probes them"),
    Kind(errors.VerificationError, "verification-failed", 502, "What was read back differs from what was written",
         "do not use it; check the store, then run again"),
    Kind(errors.LogDirError, "log-dir-unusable", 503, "A log dir cannot be read or written",
         "check that it is mounted, and its permissions", 30),
    Kind(errors.LimitError, "limit-met", 503, "The service has run out of files, threads or memory",
         "raise the limit that detail names, then start the service again", 30),
    Kind(errors.CancelledError, "cancelled", 503, "The work was cancelled", _WAIT, 10),
    Kind(HttpError, "too-many-streams", 503, "Too many event streams are open",
         "close some, or poll the run instead", 10),
    Kind(StateError, "state-unusable", 503, "The service's own file cannot be read or written",
         "check free space and permissions of the state directory", 10),
    Kind(errors.StoreUnavailableError, "store-unavailable", 503, "The store does not answer", _WAIT, 10),
    Kind(errors.UploadGoneError, "upload-gone", 503, "The store lost an unfinished upload", _WAIT, 10),
    Kind(errors.StoreFullError, "store-full", 507, "The store has no room left", "free space, or raise the quota"),
)  # fmt: skip
"""In the order of their statuses."""

BY_CODE: Final = {kind.code: kind for kind in KINDS}
_BY_CLASS: Final = {kind.error: kind for kind in KINDS if kind.error is not HttpError}


def kind_of(error: BaseException) -> Kind:
    """Return the kind of an error: its own, that of its class, or of the nearest class above."""
    if isinstance(error, HttpError):
        return error.kind
    return next((_BY_CLASS[base] for base in type(error).__mro__ if base in _BY_CLASS), INTERNAL)


MEDIA_TYPE: Final = "application/problem+json"
_LONGEST: Final = 2000
"""Characters of a text: what is refused may be as long as its sender likes."""
_LOOKED_AT: Final = 4 * _LONGEST
"""Characters that are searched for secrets. Problems are made on the event loop, and a search takes time by length."""
_SHOWN_ERRORS: Final = 20
_log = logger(__name__)
router = APIRouter(prefix=PROBLEMS_PATH, tags=["problems"])


class WrongPart(BaseModel):
    """One part of a request that is wrong."""

    within: Annotated[str, Field(alias="in", examples=["body"])]
    """body, query, path, header or cookie"""
    at: Annotated[str, Field(examples=["/partitions/0"])]
    """JSON pointer into the body, or the parameter's name."""
    detail: str


class Problem(BaseModel):
    """A problem, as RFC 9457 has it, with a code, a next step, and what is wrong part by part."""

    type: Annotated[str, Field(examples=["/v1/problems/not-found"])]
    title: str
    status: int
    detail: str
    instance: Annotated[str, Field(examples=["urn:uuid:5f0c954e-52c2-4a6c-8f2b-5a9c3a2d8f11"])]
    code: Annotated[str, Field(examples=["not-found"])]
    hint: str
    errors: list[WrongPart] = []


def error_response(scope: MutableMapping[str, Any], error: BaseException) -> Response:
    """Return the problem for ``error``; errors of the service itself are logged."""
    context, ours = context_in(scope), _ours(error)
    kind = kind_of(ours)
    context.code = kind.code
    if kind.status >= INTERNAL.status:
        asked = {"method": scope["method"], "path": str(scope["path"])}
        _log.error("request failed", request_id=context.request_id, **asked, exc_info=error)
    detail = str(ours) if isinstance(ours, errors.ResnapError) else "the log has the details, under the id in instance"
    body: dict[str, object] = {
        "type": kind.type,
        "title": kind.title,
        "status": kind.status,
        "detail": _without_secrets(detail),
        "instance": f"urn:uuid:{context.request_id}",
        "code": kind.code,
        "hint": _without_secrets(getattr(ours, "hint", None) or kind.hint),
    }
    if isinstance(ours, _InvalidPartsError):
        body["errors"] = ours.parts
    return JSONResponse(body, kind.status, headers=_headers(ours, kind), media_type=MEDIA_TYPE)


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return ``responses`` of a route that may answer with the problems of these codes."""
    found: dict[int | str, dict[str, Any]] = {}
    for kind in (BY_CODE[code] for code in codes):
        said = found.setdefault(kind.status, {"description": "", "content": _CONTENT})
        said["description"] = f"{said['description']}; {kind.title} (`{kind.code}`)".removeprefix("; ")
    return found


_CONTENT: Final = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


class _InvalidPartsError(HttpError):
    """As many parts as are wrong, of which the first ones are listed."""

    def __init__(self, wrong: Sequence[Mapping[str, Any]]) -> None:
        self.parts = [_wrong_part(part) for part in wrong[:_SHOWN_ERRORS]]
        first = self.parts[0]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        where = f"{first['in']} {first['at']}".rstrip()
        super().__init__("invalid-request", f"{where}: {first['detail']}{more}")


def _ours(error: BaseException) -> BaseException:
    """Return the error of ours that stands for one of the framework's."""
    if isinstance(error, RequestValidationError):
        return _InvalidPartsError(error.errors())
    if isinstance(error, HTTPException) and error.status_code < INTERNAL.status:
        code = _CODES.get(error.status_code, "bad-request")
        detail = _DETAILS.get(error.status_code, str(error.detail))
        return HttpError(code, detail, hint=_HINTS.get(error.status_code), headers=error.headers)
    return error


_CODES: Final = {404: "not-found", 405: "method-not-allowed", 413: "body-too-large"}
_HINTS: Final = {404: "/ has the pages, /docs lists the paths of the API"}
_DETAILS: Final = {404: "there is nothing at this path", 405: "this path does not support the method"}


def _wrong_part(part: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong without what was sent, which may hold a secret."""
    where, *path = (str(step)[:_LOOKED_AT] for step in part["loc"])
    detail = str(part["msg"])
    if part["type"] == "json_invalid":
        path, detail = [], f"not JSON from character {part['loc'][-1]} onwards: {part['ctx']['error']}"
    steps = ["/" + step.replace("~", "~0").replace("/", "~1") for step in path]
    at = "".join(steps) if where == "body" else ".".join(path)
    return {"in": where, "at": _without_secrets(at), "detail": _without_secrets(detail)}


def _without_secrets(text: str) -> str:
    """Return the beginning of ``text``, without secrets."""
    return redact(text[:_LOOKED_AT])[:_LONGEST]


def _headers(error: BaseException, kind: Kind) -> dict[str, str]:
    headers = dict(getattr(error, "headers", None) or {})
    if isinstance(error, access.UnauthenticatedError):
        headers["WWW-Authenticate"] = 'Bearer realm="resnap"'
    wait_s = getattr(error, "retry_after_s", None) or kind.retry_after_s
    if wait_s is not None:
        headers.setdefault("Retry-After", str(max(1, math.ceil(wait_s))))
    return headers


@router.get("", summary="All kinds of problems")
def list_problems() -> dict[str, list[dict[str, object]]]:
    """Return every kind of problem that this service answers with; needs no token."""
    return {"problems": [_as_document(kind) for kind in BY_CODE.values()]}


@router.get("/{code}", summary="One kind of problem", responses=problems("not-found"))
def get_problem(code: str) -> dict[str, object]:
    """Return what the ``type`` of a problem stands for; needs no token."""
    if code not in BY_CODE:
        raise HttpError("not-found", f"there is no kind of problem {code[:100]!r}")
    return _as_document(BY_CODE[code])


def _as_document(kind: Kind) -> dict[str, object]:
    return {"type": kind.type, "code": kind.code, "status": kind.status, "title": kind.title, "hint": kind.hint}
