"""Refusals: what is asked for may be sound, but not by this caller, at this place, or so often."""

from __future__ import annotations

from resnap.storage.errors import ResnapError


class AccessError(ResnapError):
    """Root of all refusals."""


class UnauthenticatedError(AccessError):
    """No token, or one that is not known, was revoked, or has expired; which of these is not said."""


class TooManyFailuresError(AccessError):
    """Too many credentials from one address were wrong; ``retry_after_s`` is when the next may be tried."""

    def __init__(self, message: str, *, retry_after_s: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class QuotaExceededError(AccessError):
    """The caller has used up what its quota allows; ``retry_after_s`` is when there is some again."""

    def __init__(self, message: str, *, retry_after_s: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class ForbiddenError(AccessError):
    """The caller is known, and has not the role."""


class PlaceForbiddenError(AccessError):
    """A path or URL lies outside what the configuration allows in requests."""


class UnknownHostError(AccessError):
    """The request was made to a name that is not the service's, as a page does that had its name rebound."""


class CrossSiteError(AccessError):
    """A page of another origin made the request."""
