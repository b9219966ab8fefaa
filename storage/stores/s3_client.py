"""Calls boto3's client: translates its errors, and retries transient ones.

botocore's own retries are off, so that attempts are counted in one place. Parameters from settings (encryption, the
expected owner of the bucket, tags) are added to each operation that supports them. Bodies are signed where botocore
signs them: always over plain HTTP, where a checksum does not keep an attacker from changing both.

Attempts are spaced by *full jitter*: a random time up to a bound that doubles, so that many clients which were refused
at once do not come back at once. The store's own ``Retry-After`` is the minimum wait; if it is too long for a run, the
error is raised instead.

Error responses become an error class, and what to do about it. Stores agree on HTTP statuses more than on codes (a
wrong checksum alone has three), and a HEAD response has no body and so no code. So codes decide only where the status
is ambiguous.
"""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import boto3
import botocore.credentials
import botocore.exceptions
import botocore.session
from botocore.config import Config
from botocore.handlers import add_retry_headers, convert_body_to_file_like_object
from botocore.loaders import create_loader
from botocore.utils import parse_timestamp

from resnap.storage.errors import (
    ConfigurationError,
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
from resnap.storage.stores.protocol import ClaimRefusedError
from resnap.storage.stores.s3_answers import require_whole_heads
from resnap.storage.stores.s3_body import send_known_bodies
from resnap.storage.threads import pause
from resnap.storage.version import resnap_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client

    from resnap.storage.stores.s3_settings import S3Settings

T = TypeVar("T")
ATTEMPTS: Final = 6
"""At one request, the first included."""
FIRST_WAIT_S: Final = 0.2
LONGEST_WAIT_S: Final = 20.0
LONGEST_ASKED_S: Final = 120.0
"""The longest ``Retry-After`` that is waited for."""
_CONNECTIONS: Final = 64
"""Kept open at most; threads beyond that wait for one instead of making botocore throw connections away."""
_SERVICE_UNREACHABLE: Final = (
    botocore.exceptions.ConnectionError,
    botocore.exceptions.HTTPClientError,
    botocore.exceptions.IncompleteReadError,
    botocore.parsers.ResponseParserError,
)
"""The last: an answer that was cut off or changed on its way."""
_NO_CREDENTIALS: Final = (
    botocore.exceptions.NoCredentialsError,
    botocore.exceptions.NoAuthTokenError,
    botocore.exceptions.CredentialRetrievalError,
    botocore.exceptions.TokenRetrievalError,
    botocore.exceptions.MetadataRetrievalError,
    botocore.exceptions.SSOError,
    botocore.exceptions.LoginError,
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
_RENEWED_HINT: Final = "other credentials were read meanwhile: run the same command again"
_RETRY_HINT: Final = "try again later; if it stays so, check the store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """How often a transient error is retried, and how long to wait between attempts."""

    attempts: int = ATTEMPTS
    first_wait_s: float = FIRST_WAIT_S
    longest_wait_s: float = LONGEST_WAIT_S
    sleep: Callable[[float], bool] = pause
    """Says whether it was let sleep that long."""
    chance: Callable[[], float] = random.random
    """Gives numbers in [0, 1)."""

    def call(self, attempt: Callable[[], T]) -> T:
        """Return the result of ``attempt``, retrying it after transient errors.

        Raises:
            StoreUnavailableError: the last attempt failed, too, or the store asked for too long a wait.
            StoreError: any error that a retry would not change, at once.

        """
        for number in range(1, self.attempts):
            try:
                return attempt()
            except StoreUnavailableError as error:
                self.wait(number, error)
        return attempt()

    def wait(self, failed: int, error: StoreUnavailableError) -> None:
        """Wait before the next attempt, after ``failed`` of them.

        Raises:
            StoreUnavailableError: ``error``, if the wait would be too long, or the process is stopping.

        """
        asked_s = error.retry_after_s or 0.0
        if asked_s > LONGEST_ASKED_S:
            raise error
        bound_s = min(self.longest_wait_s, self.first_wait_s * 2 ** (failed - 1))
        if not self.sleep(asked_s + bound_s * self.chance()):
            raise error


class Slots:
    """Limits how many bodies, or parts of them, all writers of one store hold and send at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = threading.BoundedSemaphore(most)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold one slot for as long as the context lasts; waits for it."""
        with self._free:
            yield

    def begin(self, parts: Iterator[bytes], send: Callable[[bytes], Future[T]]) -> Future[T] | None:
        """Take a slot until ``send`` has sent the next part; return None, without a slot, at the end."""
        self._free.acquire()
        begun = None
        try:
            part = next(parts, None)
            begun = None if part is None else send(part)
        finally:
            if begun is None:  # also where the system gives no thread to send it
                self._free.release()
        if begun is not None:
            begun.add_done_callback(lambda _: self._free.release())
        return begun


class HeldCredentials:
    """The credentials of a client, which botocore reads once, unless they say when they expire.

    So a process that lives long would use those of a file for ever, also after they were replaced and revoked.
    """

    def __init__(self, session: botocore.session.Session | None) -> None:
        held = None if session is None else session.get_credentials()
        self._held = held if type(held) is botocore.credentials.Credentials else None
        self._providers: Any = None if session is None else session.get_component("credential_provider")
        self._one_at_a_time = threading.Lock()

    @property
    def in_use(self) -> object:
        """What requests are signed with; None if botocore renews it, or it was given."""
        held = self._held
        return None if held is None else (held.access_key, held.secret_key, held.token)

    def are_others_than(self, used: object) -> bool:
        """Whether requests are signed with others than ``used`` from now on; reads them again from where they are."""
        with self._one_at_a_time:
            held = self._held
            if held is not None and self.in_use == used:
                with suppress(botocore.exceptions.BotoCoreError):
                    found = self._providers.get_provider(held.method).load()
                    if found is not None:
                        held.access_key, held.secret_key, held.token = found.access_key, found.secret_key, found.token
        return self.in_use != used


class S3Caller:
    """Calls one client; ``url`` is the bucket and prefix, for messages."""

    def __init__(self, settings: S3Settings, url: str) -> None:
        self.client, self._credentials = _make_client(settings)
        self.slots = Slots(settings.parts_in_flight)
        self.retrying = Retrying(attempts=settings.max_attempts or ATTEMPTS)
        config: Any = self.client.meta.config
        self.sends_checksums: bool = config.request_checksum_calculation == "when_supported"
        self.signs_bodies = urlsplit(self.client.meta.endpoint_url).scheme == "http"
        """Whether botocore puts the SHA-256 of each body into its signature."""
        self._url = url

    def call(self, key: str | None, operation: Callable[[], T], *, claims: bool = False) -> T:
        """Return the result of ``operation``, retried where that helps.

        Raises:
            ClaimRefusedError: a bad request, if ``claims`` says that the request tests a checksum.
            StoreError: any other failure of ``key``, or of the store.

        """
        return self.retrying.call(lambda: self.once(key, operation, claims=claims))

    def once(self, key: str | None, operation: Callable[[], T], *, claims: bool = False) -> T:
        """Call as ``call`` does, in a single attempt."""
        used = self._credentials.in_use
        try:
            return self._once(key, operation, claims=claims)
        except StoreAccessError as error:
            if not self._credentials.are_others_than(used):
                raise
            raise StoreUnavailableError(str(error), key=key, hint=_RENEWED_HINT) from error

    def _once(self, key: str | None, operation: Callable[[], T], *, claims: bool) -> T:
        with self.translate_errors(key):
            try:
                return operation()
            except botocore.exceptions.ClientError as error:
                answer = error_answer(error)
                # Stores have a code each for a wrong checksum; the status is what they share.
                if claims and may_refuse_bytes(answer):
                    raise ClaimRefusedError(f"{self.where(key)}: {answer}", key=key) from error
                raise

    def options_of_new(self, storage_class: str | None) -> dict[str, Any]:
        """Return the options of a request that makes an object of parts, or of another object."""
        checksum = {"ChecksumAlgorithm": "CRC32C"} if self.sends_checksums else {}
        return checksum if storage_class is None else {**checksum, "StorageClass": storage_class}

    def must_say(self, key: str | None, answer: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - as boto3 gives it
        """Return the field ``name`` of ``answer``.

        Raises:
            StoreError: the store reported success, but omitted a required field.

        """
        if name not in answer:
            raise StoreError(f"{self.where(key)}: the store answers without {name}", key=key,
                             hint="`resnap doctor URL` shows what this store keeps")  # fmt: skip
        return answer[name]

    def where(self, key: str | None) -> str:
        """Return the name of ``key`` in messages."""
        return f"{self._url}/{key}" if key else self._url

    @contextmanager
    def translate_errors(self, key: str | None) -> Iterator[None]:
        """Translate boto3's errors into the store's; the only place that does."""
        try:
            yield
        except botocore.exceptions.ClientError as error:
            raise store_error(error_answer(error), where=self.where(key), key=key) from error
        except (botocore.parsers.ResponseParserError, botocore.exceptions.BotoCoreError) as error:
            raise self._client_side_error(error, key) from error

    def _client_side_error(self, error: Exception, key: str | None) -> StoreError:
        """Return the store's error where botocore has no valid response."""
        what = f"{self.where(key)}: {str(error).strip()}"
        endpoint = self.client.meta.endpoint_url
        if isinstance(error, botocore.exceptions.SSLError):
            hint = f"check the certificate of {endpoint}; --s3-ca-bundle names a file of authorities to trust"
            return StoreAccessError(what, key=key, hint=hint)
        if isinstance(error, _NO_CREDENTIALS):
            hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role"
            return StoreAccessError(what, key=key, hint=hint)
        if isinstance(error, botocore.exceptions.FlexibleChecksumError):
            hint = (
                "try again; if it stays so, the object is damaged, or the store sends wrong checksums:"
                " response_checksum_validation=when_required reads without verifying them"
            )
            return StoreUnavailableError(what, key=key, hint=hint)
        if isinstance(error, _SERVICE_UNREACHABLE):
            hint = f"check the endpoint {endpoint} and the network; most stores other than AWS need path addressing"
            return StoreUnavailableError(what, key=key, hint=hint)
        return StoreError(what, key=key)


def error_answer(error: botocore.exceptions.ClientError) -> S3ErrorAnswer:
    """Return the store's error response."""
    said = error.response.get("Error", {})
    answer: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    return S3ErrorAnswer(
        status=answer.get("HTTPStatusCode", 0),
        code=said.get("Code", ""),
        message=said.get("Message", ""),
        retry_after_s=_seconds(answer.get("HTTPHeaders", {}).get("retry-after", "")),
    )


def _seconds(text: str) -> float | None:
    """Return the time of a ``Retry-After`` in seconds, the one of its two forms that stores use."""
    return float(text) if text.isascii() and text.isdigit() else None


def _make_client(settings: S3Settings) -> tuple[S3Client, HeldCredentials]:
    """Return a client with ``settings``, which makes a single attempt at each request, and its credentials."""
    _refuse_credentials(settings.endpoint_url)
    try:
        core = botocore.session.get_session()
        core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_instant)
        core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
        session = boto3.session.Session(botocore_session=core, **settings.session_options())
        # Given as a whole: botocore else composes it again for each request, twice.
        who = f"resnap/{resnap_version()} {core.user_agent()}"
        core.user_agent_extra = ""  # it is at the end of this, and a client adds it once more
        config = Config(user_agent=who, max_pool_connections=_CONNECTIONS, **settings.config_options())
        client = session.client("s3", config=config, **settings.client_options())
        held = HeldCredentials(core if settings.access_key_id is None else None)
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        hint = "check the S3 settings, the AWS_* variables and the shared AWS configuration files"
        raise ConfigurationError(f"s3: {str(error).strip()}", hint=hint) from error
    _refuse_credentials(client.meta.endpoint_url)
    # It makes files of all bodies, and the store is asked before each file whether it takes one.
    client.meta.events.unregister("before-parameter-build.s3.PutObject", convert_body_to_file_like_object)
    # They count attempts, of which botocore makes one.
    client.meta.events.unregister("request-created", add_retry_headers)
    send_known_bodies(client)
    require_whole_heads()
    added = settings.request_parameters()
    if added:
        client.meta.events.register("provide-client-params.s3", _adder(added))  # type: ignore[arg-type]
    return client, held


_loader = lru_cache(create_loader)
"""Returns the loader of botocore's own files; it takes 0.1 s, so there is one for all clients of the process."""


def _instant(text: str) -> datetime:
    """Return a time of a response; the two forms that stores use are parsed without dateutil, which takes long."""
    with suppress(AttributeError, TypeError, ValueError):
        if text.endswith("Z"):
            return datetime.fromisoformat(text)
        if text.endswith("GMT"):
            return parsedate_to_datetime(text)
    return parse_timestamp(text)


def _refuse_credentials(endpoint_url: str | None) -> None:
    """Refuse an endpoint with a user or password: they would not be sent, and every message would show them."""
    if endpoint_url is not None and "@" in urlsplit(endpoint_url).netloc:
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and leave them out of the endpoint"
        raise ConfigurationError("s3: an endpoint URL with credentials in it: expected none", hint=hint)


def _adder(added: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Return an event handler that adds to each operation the parameters of ``added`` that it supports."""

    def add(params: dict[str, Any], model: OperationModel, **_: object) -> dict[str, Any]:
        known = model.input_shape.members if model.input_shape is not None else {}
        return {name: value for name, value in added.items() if name in known} | params

    return add


@dataclass(frozen=True, slots=True, kw_only=True)
class S3ErrorAnswer:
    """An error response; a HEAD has the status as ``code``, because it has no other."""

    status: int
    code: str
    message: str
    retry_after_s: float | None = None
    """When to come back, if the store said so."""

    def __str__(self) -> str:
        said = f"{self.code}: {self.message}" if self.message else self.code
        return f"{said} (HTTP {self.status})"


def store_error(answer: S3ErrorAnswer, *, where: str, key: str | None) -> StoreError:
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


def _refusal(answer: S3ErrorAnswer, where: str, key: str | None) -> StoreError:
    """Return the error for a response that ``store_error`` has not recognised by its status or code."""
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


def may_refuse_bytes(answer: S3ErrorAnswer) -> bool:
    """Whether ``answer`` may mean that the bytes do not match their checksum; stores have many codes for that."""
    says_otherwise = answer.code in _COME_BACK or answer.code in _ELSEWHERE or answer.code in _ACCESS_HINTS
    return answer.status == HTTPStatus.BAD_REQUEST and not says_otherwise


def _is_transient(status: int) -> bool:
    server_error = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    return server_error or status in _COME_BACK_STATUSES
