"""boto3's client, and the one way in which it is called: errors translated, transient ones tried again.

botocore's own retries are off, so that attempts are counted in one place. What a setting adds to requests (encryption,
the expected owner of the bucket, tags) is put into each operation that knows it, on its way out. Bodies are
signed where botocore signs them: always over plain HTTP, where a checksum keeps nobody from changing both.
"""

from __future__ import annotations

from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
from botocore.config import Config

from resnap.storage.errors import ConfigurationError, StoreAccessError, StoreError, StoreUnavailableError
from resnap.storage.stores.protocol import ClaimRefusedError
from resnap.storage.stores.retries import ATTEMPTS, Retrying
from resnap.storage.stores.s3_body import send_known_bodies
from resnap.storage.stores.s3_errors import ErrorAnswer, store_error
from resnap.storage.stores.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client

    from resnap.storage.stores.s3_settings import S3Settings

T = TypeVar("T")

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
                if claims and answer.status == HTTPStatus.BAD_REQUEST:
                    raise ClaimRefusedError(f"{self.where(key)}: {answer}", key=key) from error
                raise

    def must_say(self, key: str | None, answer: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - as boto3 gives it
        """Return what ``answer`` says of ``name``.

        Raises:
            StoreError: the store says that all went well, and leaves out what it must tell.

        """
        if name not in answer:
            raise StoreError(f"{self.where(key)}: the store answers without {name}", key=key,
                             hint="`resnap doctor --store URL` tells what this store keeps")  # fmt: skip
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
        what = f"{self.where(key)}: {error}"
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
        raise ConfigurationError(f"s3: {error}", hint=hint) from error
    _refuse_credentials(client.meta.endpoint_url)
    send_known_bodies(client)
    added = settings.request_parameters()
    if added:
        client.meta.events.register("provide-client-params.s3", _adder(added))  # type: ignore[arg-type]
    return client


def _refuse_credentials(endpoint_url: str | None) -> None:
    """Refuse an endpoint with a user or password in it: nobody sends them, and every message would show them."""
    if endpoint_url is not None and "@" in urlsplit(endpoint_url).netloc:
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and leave them out of the endpoint"
        raise ConfigurationError("s3: an endpoint URL with credentials in it: expected none", hint=hint)


def _adder(added: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Return the event handler that gives each operation those of ``added`` that it knows."""

    def add(params: dict[str, Any], model: OperationModel, **_: object) -> dict[str, Any]:
        known = model.input_shape.members if model.input_shape is not None else {}
        return {name: value for name, value in added.items() if name in known} | params

    return add
