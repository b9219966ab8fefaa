"""Translates error responses of S3-compatible stores: the error class, and what to do about it.

Stores agree on HTTP statuses more than on codes (a wrong checksum alone has three), and a HEAD response has no body and
so no code. So codes decide only where the status is ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from resnap.storage.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    TooLargeError,
    UnsupportedError,
    UploadGoneError,
)

_NO_SUCH_OBJECT: Final = {"NoSuchKey", "NotFound", "404"}
_OTHER_BYTES: Final = {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
_TOO_LARGE: Final = {"EntityTooLarge", "MaxMessageLengthExceeded"}
_FULL: Final = {"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientStorage"}
_ELSEWHERE: Final = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_COME_BACK: Final = {"ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "SlowDown", "Throttling"}
_COME_BACK_STATUSES: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}

_VIRTUAL: Final = "give --s3-addressing-style virtual: this store wants the bucket in the host name"
_UNKNOWN_KEY: Final = "the store does not know this access key: check it, the profile and the endpoint"
_ACCESS_HINTS: Final = {
    "AccessDenied": "these credentials may not do this; Resnap needs s3:ListBucket, s3:GetObject, s3:PutObject,"
    " s3:DeleteObject and s3:AbortMultipartUpload (without s3:ListBucket an absent object is reported as forbidden, "
    "too)",
    "ExpiredToken": "the credentials have expired: get new ones, and run again",
    "InvalidAccessKeyId": _UNKNOWN_KEY,
    "InvalidToken": "check AWS_SESSION_TOKEN, or unset it if the access key needs none",
    "NotSignedUp": _UNKNOWN_KEY,
    "PathStyleDomainForbidden": _VIRTUAL,
    "RequestTimeTooSkewed": "set the clock of this machine, or that of the store",
    "SecondLevelDomainForbidden": _VIRTUAL,
    "SignatureDoesNotMatch": "check the secret access key",
    "XAdminUserNotFound": _UNKNOWN_KEY,
}
_LOCKED_HINT: Final = (
    "a retention or a legal hold of the store locks the object: run again when that has ended; a bucket with versions"
    " keeps what is replaced as an older one"
)
_FORBIDDEN_HINT: Final = "check the credentials, and what they may do in this bucket"
_REGION_HINT: Final = (
    "the bucket lies in another region or behind another endpoint: give --s3-region, or --s3-endpoint-url"
)
_TOO_LARGE_HINT: Final = (
    "the store, or a proxy before it, limits the size of a request: let it take 17 MiB (client_max_body_size of nginx)"
)
_UNSUPPORTED_HINT: Final = (
    "where it does not know checksums, give --s3-request-checksum-calculation when_required and"
    " --s3-response-checksum-validation when_required"
)
_REFUSED_HINT: Final = "`resnap doctor URL` shows what this store keeps"
_RETRY_HINT: Final = "try again later; if it stays so, check the store"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """An error response; a HEAD has the status as ``code``, because it has no other."""

    status: int
    code: str
    message: str
    retry_after_s: float | None = None
    """When to come back, if the store said so."""

    def __str__(self) -> str:
        said = f"{self.code}: {self.message}" if self.message else self.code
        return f"{said} (HTTP {self.status})"


def store_error(answer: ErrorAnswer, *, where: str, key: str | None) -> StoreError:
    """Return the error to raise for ``answer``; ``where`` is the URL of the object or prefix concerned."""
    if answer.code == "NoSuchBucket":
        hint = "check the bucket's name and the endpoint, or create it: Resnap makes no buckets"
        return StoreAccessError(f"{where}: no such bucket", key=key, hint=hint)
    if answer.code in _NO_SUCH_OBJECT:
        return ObjectNotFoundError(f"{where}: no such object", key=key)
    if answer.code == "NoSuchUpload":
        return UploadGoneError(f"{where}: {answer}", key=key, hint="run the same command again")
    if answer.status == HTTPStatus.PRECONDITION_FAILED:
        return ObjectExistsError(f"{where}: the object already exists", key=key)
    if answer.code in _FULL or answer.status == HTTPStatus.INSUFFICIENT_STORAGE:
        return StoreFullError(f"{where}: {answer}", key=key, hint="make room in the store, or raise its quota")
    return _refusal(answer, where, key)


def _refusal(answer: ErrorAnswer, where: str, key: str | None) -> StoreError:
    if answer.code in _OTHER_BYTES:
        return StoreUnavailableError(f"{where}: other bytes arrived than were sent: {answer}", key=key,
                                     hint=_RETRY_HINT, retry_after_s=answer.retry_after_s)  # fmt: skip
    if answer.code in _ELSEWHERE or answer.status == HTTPStatus.MOVED_PERMANENTLY:
        return StoreAccessError(f"{where}: {answer}", key=key, hint=_REGION_HINT)
    if answer.code in _COME_BACK or _is_transient(answer.status):
        return StoreUnavailableError(f"{where}: {answer}", key=key, hint=_RETRY_HINT,
                                     retry_after_s=answer.retry_after_s)  # fmt: skip
    hint = _LOCKED_HINT if "object lock" in answer.message.lower() else _ACCESS_HINTS.get(answer.code)
    if hint or answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return StoreAccessError(f"{where}: {answer}", key=key, hint=hint or _FORBIDDEN_HINT)
    error, hint = StoreError, _REFUSED_HINT
    if answer.status == HTTPStatus.NOT_IMPLEMENTED:
        error, hint = UnsupportedError, _UNSUPPORTED_HINT
    elif answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or answer.code in _TOO_LARGE:
        error, hint = TooLargeError, _TOO_LARGE_HINT
    return error(f"{where}: the store refused: {answer}", key=key, hint=hint)


def may_refuse_bytes(answer: ErrorAnswer) -> bool:
    """Whether ``answer`` may mean that the bytes do not match their checksum; stores have many codes for that."""
    says_otherwise = answer.code in _COME_BACK or answer.code in _ELSEWHERE or answer.code in _ACCESS_HINTS
    return answer.status == HTTPStatus.BAD_REQUEST and not says_otherwise


def _is_transient(status: int) -> bool:
    server_error = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    return server_error or status in _COME_BACK_STATUSES
