"""Every kind of problem that the HTTP side reports: one table, from our errors to a status and a stable code.

A code, once released, keeps its meaning; ``docs/api.md`` has them all, and the service itself lists them at
``/v1/problems``. What a route adds is a class of error here, with its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.scheduler.access import errors as access
from resnap.scheduler.runs.looking import NoSnapshotError
from resnap.scheduler.runs.worker import RETRY_AFTER_S, QueueFullError
from resnap.scheduler.state.database import StateError
from resnap.storage import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBLEMS_PATH: Final = "/v1/problems"


class HttpError(errors.ResnapError):
    """What only a request can get wrong; ``headers`` go with the answer."""

    def __init__(self, message: str, *, hint: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.headers = dict(headers or {})


class NotFoundError(HttpError):
    """Nothing of this name or id."""


class MethodNotAllowedError(HttpError):
    """The path is known, but not with this method."""


class InvalidRequestError(HttpError):
    """Parameters or the body are not of the form that was described."""


class NotJsonError(HttpError):
    """The body is of another type than JSON."""


class BodyTooLargeError(HttpError):
    """The body is longer than is read."""


class ConflictError(HttpError):
    """What is asked for does not fit the state that something is in."""


class KeyReusedError(HttpError):
    """An idempotency key came again, with another request."""


class PreconditionError(HttpError):
    """What ``If-Match`` asked for does not hold."""


class TooManyStreamsError(HttpError):
    """As many event streams are open as may."""


class OtherHttpError(HttpError):
    """What a server refuses by itself, such as a request that is no HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of problem, which has the same status, code and title each time."""

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


_WAIT = "try again after the seconds that Retry-After says"

INTERNAL: Final = Kind(
    code="internal-error",
    status=500,
    title="The service failed",
    hint="this is a bug: report it, with what the log says under the id that instance names",
)
KINDS: Final[Mapping[type[Exception], Kind]] = {
    errors.UsageError: Kind(
        code="unusable-request", status=400, title="The request makes no sense",
        hint="read detail, and change the request",
    ),
    OtherHttpError: Kind(
        code="bad-request", status=400, title="The request cannot be taken", hint="read detail, and change the request"
    ),
    access.UnauthenticatedError: Kind(
        code="unauthenticated", status=401, title="A valid token is needed",
        hint="send one as a bearer token in the header Authorization; `resnap token create` makes it",
    ),
    access.ForbiddenError: Kind(
        code="forbidden", status=403, title="The role does not suffice",
        hint="use the token of a role that may; `resnap token create --role` makes one",
    ),
    access.PlaceForbiddenError: Kind(
        code="place-not-allowed", status=403, title="This path or URL may not be named in requests",
        hint="name a place that the configuration allows, or have it allow this one",
    ),
    access.CrossSiteError: Kind(
        code="cross-site", status=403, title="A page of another origin made the request",
        hint="make requests from a program, or from the service's own page",
    ),
    NotFoundError: Kind(
        code="not-found", status=404, title="There is no such thing", hint="list what there is, and take its id"
    ),
    NoSnapshotError: Kind(
        code="no-snapshot", status=404, title="There is no snapshot at this offset",
        hint="list the boundaries of the partition; a replay makes what is missing",
    ),
    errors.FileGoneError: Kind(
        code="file-gone", status=404, title="A file is no longer there",
        hint="look again: where it was listed, the broker has deleted it since",
    ),
    errors.ObjectNotFoundError: Kind(
        code="object-not-found", status=404, title="The store has no such object", hint="list what the store holds"
    ),
    MethodNotAllowedError: Kind(
        code="method-not-allowed", status=405, title="The path knows no such method",
        hint="use a method that the header Allow names",
    ),
    ConflictError: Kind(
        code="conflict", status=409, title="It is in no state for that", hint="get it again, and see what it is at"
    ),
    KeyReusedError: Kind(
        code="idempotency-key-reused", status=409, title="The idempotency key came with another request before",
        hint="send the same request again, or this one with a new key",
    ),
    errors.LockedError: Kind(
        code="locked", status=409, title="Another run is at the same work", hint="wait until it has ended, or cancel it"
    ),
    errors.LogDirInUseError: Kind(
        code="log-dir-in-use", status=409, title="Somebody holds the lock of the log dir",
        hint="stop the broker, or wait for the other run",
    ),
    errors.ObjectExistsError: Kind(
        code="object-exists", status=409, title="The store has such an object already",
        hint="look at what is there: it was left as it is",
    ),
    errors.ObjectChangedError: Kind(
        code="object-changed", status=409, title="An object was replaced while it was read", hint="try again"
    ),
    errors.StalePlanError: Kind(
        code="stale-plan", status=412, title="What the plan depends on has changed",
        hint="make a new plan, and run that"
    ),
    PreconditionError: Kind(
        code="precondition-failed", status=412, title="What If-Match asks for does not hold",
        hint="get it again, and decide on what it is now",
    ),
    BodyTooLargeError: Kind(
        code="body-too-large", status=413, title="The body is longer than is read", hint="ask for less at once"
    ),
    NotJsonError: Kind(
        code="not-json", status=415, title="The body is not JSON", hint="send it with Content-Type: application/json"
    ),
    access.UnknownHostError: Kind(
        code="unknown-host", status=421, title="The service does not go by this name",
        hint="use the address it listens on, or add the name to allow-hosts",
    ),
    InvalidRequestError: Kind(
        code="invalid-request", status=422, title="The request is not of the form that is described",
        hint="errors has each part that is wrong; /openapi.json describes the form",
    ),
    errors.DataError: Kind(
        code="unusable-data", status=422, title="The bytes are not what Kafka writes",
        hint="take the file from another replica; one that resnap wrote may be deleted, and is made again",
    ),
    access.TooManyFailuresError: Kind(
        code="too-many-failures", status=429, title="Too many wrong tokens from this address", hint=_WAIT,
        retry_after_s=6,
    ),
    access.QuotaExceededError: Kind(
        code="quota-exceeded", status=429, title="More producer ids than the caller's quota allows", hint=_WAIT
    ),
    QueueFullError: Kind(
        code="queue-full", status=429, title="As many runs wait as may", hint=_WAIT, retry_after_s=RETRY_AFTER_S
    ),
    Exception: INTERNAL,
    errors.ConfigurationError: Kind(
        code="misconfigured", status=500, title="The service is configured wrongly", hint="correct the configuration"
    ),
    errors.ResnapError: Kind(
        code="failed", status=500, title="It did not work", hint="read detail; the log has more under instance"
    ),
    errors.LostProducerStateError: Kind(
        code="lost-producer-state", status=502, title="A replica lacks producer state that another one has",
        hint="keep it from leading until it is repaired",
    ),
    errors.ClusterError: Kind(
        code="cluster-failed", status=502, title="The brokers refused, or do not answer",
        hint="read detail; see their logs",
    ),
    errors.StoreError: Kind(
        code="store-failed", status=502, title="The store refused or failed", hint="read detail; `resnap doctor` probes"
    ),
    errors.StoreAccessError: Kind(
        code="store-denied", status=502, title="The store does not let the service in",
        hint="check credentials, permissions and bucket; `resnap doctor --store URL` probes them",
    ),
    errors.VerificationError: Kind(
        code="verification-failed", status=502, title="What was read back is not what was meant",
        hint="do not use it; look at the store, then run it again",
    ),
    errors.LogDirError: Kind(
        code="log-dir-unusable", status=503, title="A log dir cannot be read or written",
        hint="check that it is mounted, and its permissions", retry_after_s=30,
    ),
    errors.LimitError: Kind(
        code="limit-met", status=503, title="The system gives the service no more files, threads or memory",
        hint="raise the limit that detail names, then start the service again", retry_after_s=30,
    ),
    errors.CancelledError: Kind(
        code="cancelled", status=503, title="The work was asked to end", hint=_WAIT, retry_after_s=10
    ),
    TooManyStreamsError: Kind(
        code="too-many-streams", status=503, title="As many event streams are open as may",
        hint="close some, or get the run itself now and then", retry_after_s=10,
    ),
    StateError: Kind(
        code="state-unusable", status=503, title="The service's own file cannot be read or written",
        hint="check room and permissions of the state directory", retry_after_s=10,
    ),
    errors.StoreUnavailableError: Kind(
        code="store-unavailable", status=503, title="The store does not answer", hint=_WAIT, retry_after_s=10
    ),
    errors.UploadGoneError: Kind(
        code="upload-gone", status=503, title="An upload was lost on its way", hint=_WAIT, retry_after_s=10
    ),
    errors.StoreFullError: Kind(
        code="store-full", status=507, title="The store has no room left", hint="make room, or raise the quota"
    ),
}  # fmt: skip
"""By class of error; the nearest base class counts. In the order of their statuses."""

BY_CODE: Final = {kind.code: kind for kind in KINDS.values()}


def kind_of(error: BaseException) -> Kind:
    """Return the kind of an error: that of its class, or of the nearest class above."""
    return next((KINDS[base] for base in type(error).__mro__ if base in KINDS), INTERNAL)
