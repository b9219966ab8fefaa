"""Access errors: valid requests that are refused for this caller, place or rate."""

from __future__ import annotations

from resnap.storage.errors import ResnapError


class AccessError(ResnapError):
    """Root of all access errors."""


class UnauthenticatedError(AccessError):
    """The token is missing, unknown, revoked or expired; the message does not say which."""


class TooOftenError(AccessError):
    """The caller is to wait; ``retry_after_s`` is how long."""

    def __init__(self, message: str, *, retry_after_s: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class TooManyFailuresError(TooOftenError):
    """Too many wrong credentials came from one address."""


class QuotaExceededError(TooOftenError):
    """The caller has used up its quota."""


class ForbiddenError(AccessError):
    """The caller is known, but does not have the role."""


class PlaceForbiddenError(AccessError):
    """A path or URL is outside the places that the configuration allows in requests."""


class UnknownHostError(AccessError):
    """The request names a host that is not the service's, as after DNS rebinding."""


class CrossSiteError(AccessError):
    """A page of another origin made the request."""
