"""boto3's client, and the one way in which it is called: errors translated, transient ones tried again.

botocore's own retries are off, so that attempts are counted in one place. What a setting adds to requests (encryption,
the expected owner of the bucket, tags) is put into each operation that knows it, on its way out. Bodies are
signed where botocore signs them: always over plain HTTP, where a checksum does not keep an attacker from changing both.

Attempts are spaced by *full jitter*: a random time up to a bound that doubles, so that many clients which were refused
at once do not come back at once. A time that the store names itself (``Retry-After``) is the least that is waited; if
it is longer than anybody would wait within a run, the error is raised instead.
"""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
from botocore.config import Config

from resnap.storage.errors import ConfigurationError, StoreAccessError, StoreError, StoreUnavailableError
from resnap.storage.stores.protocol import ClaimRefusedError
from resnap.storage.stores.s3_body import send_known_bodies
from resnap.storage.stores.s3_errors import ErrorAnswer, may_refuse_bytes, store_error
from resnap.storage.waiting import pause

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
"""Of the times that stores ask for, the longest that is waited."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """How often something transient is tried, and how long is waited in between."""

    attempts: int = ATTEMPTS
    first_wait_s: float = FIRST_WAIT_S
    longest_wait_s: float = LONGEST_WAIT_S
    sleep: Callable[[float], bool] = pause
    """Says whether it was let sleep that long."""
    chance: Callable[[], float] = random.random
    """Gives numbers in [0, 1)."""

    def call(self, attempt: Callable[[], T]) -> T:
        """Return what ``attempt`` returns, once it does.

        Raises:
            StoreUnavailableError: it was still so at the last attempt, or the store wants to be left alone for long.
            StoreError: anything that would not be otherwise a second time, at once.

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
            StoreUnavailableError: ``error``, where that would take too long, or the process is to end.

        """
        asked_s = error.retry_after_s or 0.0
        if asked_s > LONGEST_ASKED_S:
            raise error
        bound_s = min(self.longest_wait_s, self.first_wait_s * 2 ** (failed - 1))
        if not self.sleep(asked_s + bound_s * self.chance()):
            raise error


class Slots:
    """How many bodies, or parts of them, all writers of one store may hold and send at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = threading.BoundedSemaphore(most)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Take a slot for as long as the context lasts; waits for one."""
        with self._free:
            yield

    def begin(self, parts: Iterator[bytes], send: Callable[[bytes], Future[T]]) -> Future[T] | None:
        """Take a slot until the next part, which ``send`` begins to send, is through; None, and no slot, at the end."""
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


class S3Caller:
    """Calls one client; ``url`` is that of the bucket and prefix, for messages."""

    def __init__(self, settings: S3Settings, url: str) -> None:
        self.client = _make_client(settings)
        self.slots = Slots(settings.parts_in_flight)
        self.retrying = Retrying(attempts=settings.max_attempts or ATTEMPTS)
        config: Any = self.client.meta.config
        self.sends_checksums: bool = config.request_checksum_calculation == "when_supported"
        self.signs_bodies = urlsplit(self.client.meta.endpoint_url).scheme == "http"
        """Whether botocore puts the SHA-256 of each body into its signature."""
        self._url = url

    def call(self, key: str | None, operation: Callable[[], T], *, claims: bool = False) -> T:
        """Return what ``operation`` returns, tried again where that helps.

        Raises:
            ClaimRefusedError: a bad request, where ``claims`` says that the request came with a checksum to be tried.
            StoreError: what went wrong with ``key``, or with the store.

        """
        return self.retrying.call(lambda: self.once(key, operation, claims=claims))

    def once(self, key: str | None, operation: Callable[[], T], *, claims: bool = False) -> T:
        """Do as ``call`` does, in a single attempt."""
        with self.translated(key):
            try:
                return operation()
            except botocore.exceptions.ClientError as error:
                answer = error_answer(error)
                # Stores have a code each for a wrong checksum; the status is what they share.
                if claims and may_refuse_bytes(answer):
                    raise ClaimRefusedError(f"{self.where(key)}: {answer}", key=key) from error
                raise

    def must_say(self, key: str | None, answer: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - as boto3 gives it
        """Return what ``answer`` says of ``name``.

        Raises:
            StoreError: the store says that all went well, and leaves out what it must say.

        """
        if name not in answer:
            raise StoreError(f"{self.where(key)}: the store answers without {name}", key=key,
                             hint="`resnap doctor --store URL` shows what this store keeps")  # fmt: skip
        return answer[name]

    def where(self, key: str | None) -> str:
        """Return what to call ``key`` in a message."""
        return f"{self._url}/{key}" if key else self._url

    @contextmanager
    def translated(self, key: str | None) -> Iterator[None]:
        """Turn what boto3 raises into the store's errors, in this one place."""
        try:
            yield
        except botocore.exceptions.ClientError as error:
            raise store_error(error_answer(error), where=self.where(key), key=key) from error
        except botocore.parsers.ResponseParserError as error:
            raise self._client_side_error(error, key) from error
        except botocore.exceptions.BotoCoreError as error:
            raise self._client_side_error(error, key) from error

    def _client_side_error(self, error: Exception, key: str | None) -> StoreError:
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
                " response_checksum_validation=when_required reads without believing them"
            )
            return StoreUnavailableError(what, key=key, hint=hint)
        if isinstance(error, _SERVICE_UNREACHABLE):
            hint = f"check the endpoint {endpoint} and the way to it; most stores other than AWS want path addressing"
            return StoreUnavailableError(what, key=key, hint=hint)
        return StoreError(what, key=key)


def error_answer(error: botocore.exceptions.ClientError) -> ErrorAnswer:
    """Return what the store answered."""
    said = error.response.get("Error", {})
    answer: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    return ErrorAnswer(
        status=answer.get("HTTPStatusCode", 0),
        code=said.get("Code", ""),
        message=said.get("Message", ""),
        retry_after_s=_seconds(answer.get("HTTPHeaders", {}).get("retry-after", "")),
    )


def _seconds(text: str) -> float | None:
    """Return the time of a ``Retry-After``; of its two forms stores use the number of seconds."""
    return float(text) if text.isascii() and text.isdigit() else None


def _make_client(settings: S3Settings) -> S3Client:
    _refuse_credentials(settings.endpoint_url)
    try:
        session = boto3.session.Session(**settings.session_options())
        config = Config(max_pool_connections=_CONNECTIONS, **settings.config_options())
        client = session.client("s3", config=config, **settings.client_options())
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        hint = "check the S3 settings, the AWS_* variables and the shared AWS configuration files"
        raise ConfigurationError(f"s3: {str(error).strip()}", hint=hint) from error
    _refuse_credentials(client.meta.endpoint_url)
    send_known_bodies(client)
    added = settings.request_parameters()
    if added:
        client.meta.events.register("provide-client-params.s3", _adder(added))  # type: ignore[arg-type]
    return client


def _refuse_credentials(endpoint_url: str | None) -> None:
    """Refuse an endpoint with a user or password in it: they would not be sent, and every message would show them."""
    if endpoint_url is not None and "@" in urlsplit(endpoint_url).netloc:
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and leave them out of the endpoint"
        raise ConfigurationError("s3: an endpoint URL with credentials in it: expected none", hint=hint)


def _adder(added: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Return the event handler that gives each operation those of ``added`` that it knows."""

    def add(params: dict[str, Any], model: OperationModel, **_: object) -> dict[str, Any]:
        known = model.input_shape.members if model.input_shape is not None else {}
        return {name: value for name, value in added.items() if name in known} | params

    return add
