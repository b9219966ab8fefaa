"""Objects in an S3-compatible bucket; the one module that knows boto3.

A body is one PUT up to ``PART_BYTES``, a multipart upload above. Each request carries the CRC-32C of its bytes (save
under ``request_checksum_calculation=when_required``), and a multipart upload is completed only once the whole body had
the promised length and checksum; otherwise it is aborted. Part checksums are of type COMPOSITE: the one type that old
and new stores share, and readers do not mistake its value for that of the whole object.

Parts go up one after the other, since segments go up side by side: a thread that writes holds ``PART_BYTES``.
"""

from __future__ import annotations

import base64
import re
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, Required, TypedDict

import boto3
import botocore.exceptions
from botocore.config import Config

from storage.crc32c import crc32c as compute_crc32c
from storage.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    ResnapError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
)
from storage.remote.object_store import (
    CHUNK_BYTES,
    ObjectInfo,
    body_chunks,
    changed,
    check_etag,
    check_key,
    check_range,
)
from storage.remote.s3_errors import ErrorAnswer, store_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, GetObjectOutputTypeDef

    from storage.crc32c import Buffer
    from storage.remote.object_store import BodyOpener
    from storage.remote.s3_settings import S3Settings

PART_BYTES: Final = 16 << 20
"""Of a multipart upload; S3 wants 5 MiB at least, and 10,000 parts at most."""
MAX_PARTS: Final = 10_000
_CONNECTIONS: Final = 64
"""Kept open at most; threads beyond that wait for one instead of making botocore throw connections away."""
_SERVICE_UNREACHABLE: Final = (
    botocore.exceptions.ConnectionError,
    botocore.exceptions.HTTPClientError,
    botocore.exceptions.IncompleteReadError,
)
_NO_CREDENTIALS: Final = (
    botocore.exceptions.NoCredentialsError,
    botocore.exceptions.NoAuthTokenError,
    botocore.exceptions.CredentialRetrievalError,
    botocore.exceptions.TokenRetrievalError,
    botocore.exceptions.MetadataRetrievalError,
    botocore.exceptions.SSOError,
    botocore.exceptions.LoginError,
)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class _Checksum(TypedDict, total=False):
    ChecksumCRC32C: str


class _Place(TypedDict, total=False):
    Bucket: Required[str]
    Key: Required[str]
    Range: str
    IfMatch: str


class _Algorithm(TypedDict, total=False):
    ChecksumAlgorithm: Literal["CRC32C"]


class S3ObjectStore:
    """The store ``s3://bucket/prefix``. It cannot be pickled: its URL and settings travel, and open it again."""

    def __init__(self, bucket: str, prefix: str, settings: S3Settings) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = _make_client(settings)
        config: Any = self._client.meta.config
        self._sends_checksums = config.request_checksum_calculation == "when_supported"

    @property
    def url(self) -> str:
        """The URL that opens the same bucket and prefix again, given the same settings."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        """Write with one PUT; see ``ObjectStore.put``."""
        check_key(key)
        data = bytes(body)
        name, checksum = self._prefix + key, self._checksum(data)
        with self._translated(key):
            if if_absent:
                self._client.put_object(Bucket=self._bucket, Key=name, Body=data, IfNoneMatch="*", **checksum)
            else:
                self._client.put_object(Bucket=self._bucket, Key=name, Body=data, **checksum)

    def put_stream(self, key: str, open_body: BodyOpener, *, size_bytes: int, crc32c: int | None = None) -> None:
        """Write with a multipart upload if one part does not hold it; see ``ObjectStore.put_stream``."""
        check_key(key)
        part_bytes = max(PART_BYTES, -(-size_bytes // MAX_PARTS))
        parts = body_chunks(open_body, size_bytes=size_bytes, crc32c=crc32c, chunk_bytes=part_bytes, key=key)
        if size_bytes <= part_bytes:
            self.put(key, b"".join(parts))
        else:
            self._put_parts(key, parts)

    def get(self, key: str) -> bytes:
        """Return the whole object; see ``ObjectStore.get``."""
        with self.open(key) as chunks:
            return b"".join(chunks)

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        """Return the bytes [``start``, ``end``); see ``ObjectStore.get_range``."""
        with self._opened(key, start, end, etag) as chunks:
            return b"".join(chunks)

    @contextmanager
    def open(self, key: str, start: int = 0, end: int | None = None) -> Iterator[Iterator[bytes]]:
        """Stream the object over one connection; see ``ObjectStore.open``."""
        with self._opened(key, start, end, None) as chunks:
            yield chunks

    @contextmanager
    def _opened(self, key: str, start: int, end: int | None, etag: str | None) -> Iterator[Iterator[bytes]]:
        check_range(start, end)
        body = self._body(key, start, end, etag)
        if body is None:
            yield iter(())
            return
        with closing(body):
            yield self._chunks(key, body)

    def head(self, key: str) -> ObjectInfo:
        """Return size, time and etag; see ``ObjectStore.head``. Of an absent bucket it says: no such object."""
        with self._translated(key):
            found = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
        return ObjectInfo(
            key=key,
            size_bytes=found["ContentLength"],
            modified_ms=int(found["LastModified"].timestamp() * 1000),
            etag=found["ETag"],
        )

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below ``prefix``, a page of 1,000 in memory at a time; see ``ObjectStore.list``."""
        pages = self._client.get_paginator("list_objects_v2")
        with self._translated(None):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for entry in page.get("Contents", ()):
                    if entry["Key"].endswith("/"):
                        continue
                    yield ObjectInfo(
                        key=entry["Key"].removeprefix(self._prefix),
                        size_bytes=entry["Size"],
                        modified_ms=int(entry["LastModified"].timestamp() * 1000),
                        etag=entry["ETag"],
                    )

    def delete(self, key: str) -> None:
        """Remove the object if it is there; see ``ObjectStore.delete``."""
        check_key(key)
        with suppress(ObjectNotFoundError), self._translated(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def _put_parts(self, key: str, parts: Iterable[bytes]) -> None:
        """Upload ``parts``; whatever goes wrong on the way, the key is left as it was."""
        name = self._prefix + key
        with self._translated(key):
            upload = self._client.create_multipart_upload(Bucket=self._bucket, Key=name, **self._algorithm())
        upload_id = upload["UploadId"]
        try:
            done = [self._put_part(key, upload_id, number, part) for number, part in enumerate(parts, start=1)]
            with self._translated(key):
                self._client.complete_multipart_upload(
                    Bucket=self._bucket, Key=name, UploadId=upload_id, MultipartUpload={"Parts": done}
                )
        except BaseException:
            # What the abort says matters less than why it is needed; what it leaves, `gc` finds.
            with suppress(ResnapError), self._translated(key):
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload_id)
            raise

    def _put_part(self, key: str, upload_id: str, number: int, part: bytes) -> CompletedPartTypeDef:
        checksum = self._checksum(part)
        with self._translated(key):
            answer = self._client.upload_part(
                Bucket=self._bucket,
                Key=self._prefix + key,
                UploadId=upload_id,
                PartNumber=number,
                Body=part,
                **checksum,
            )
        completed: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
        if "ChecksumCRC32C" in checksum:
            completed["ChecksumCRC32C"] = checksum["ChecksumCRC32C"]
        return completed

    def _checksum(self, data: bytes) -> _Checksum:
        if not self._sends_checksums:
            return {}
        return {"ChecksumCRC32C": base64.b64encode(compute_crc32c(data).to_bytes(4, "big")).decode()}

    def _algorithm(self) -> _Algorithm:
        return {"ChecksumAlgorithm": "CRC32C"} if self._sends_checksums else {}

    def _body(self, key: str, start: int, end: int | None, etag: str | None) -> StreamingBody | None:
        """Return the bytes [``start``, ``end``) as they come, or None where there are none in an object that is."""
        if end == start:
            check_etag(self._where(key), key, expected=etag, found=self.head(key).etag)
            return None
        answer = self._answer(key, start, end, etag)
        if answer is None:
            return None
        body = answer["Body"]
        try:
            # Some stores do not know the condition.
            check_etag(self._where(key), key, expected=etag, found=answer.get("ETag", ""))
            if start or end is not None:
                self._check_content_range(key, answer.get("ContentRange", ""), start, end)
        except StoreError:
            body.close()
            raise
        return body

    def _answer(self, key: str, start: int, end: int | None, etag: str | None) -> GetObjectOutputTypeDef | None:
        """Ask for [``start``, ``end``) of the version ``etag``; None where the object ends before."""
        place: _Place = {"Bucket": self._bucket, "Key": self._prefix + key}
        if start or end is not None:
            place["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if etag is not None:
            place["IfMatch"] = etag
        with self._translated(key):
            try:
                return self._client.get_object(**place)
            except botocore.exceptions.ClientError as error:
                status = _answer(error).status
                if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    return None
                if status == HTTPStatus.PRECONDITION_FAILED:
                    raise changed(self._where(key), key) from error
                raise

    def _check_content_range(self, key: str, given: str, start: int, end: int | None) -> None:
        """Make sure that the store answered the range that was asked for; some do not know ranges."""
        match = _CONTENT_RANGE.fullmatch(given)
        if match:
            first, last, size_bytes = map(int, match.groups())
            if first == start and last + 1 == min(size_bytes, size_bytes if end is None else end):
                return
        wanted = f"[{start}, {'end' if end is None else end})"
        raise StoreError(f"{self._where(key)}: the store answered another range than {wanted}: {given!r}", key=key,
                         hint="this store cannot be read in ranges")  # fmt: skip

    def _chunks(self, key: str, body: StreamingBody) -> Iterator[bytes]:
        with self._translated(key):
            yield from body.iter_chunks(CHUNK_BYTES)

    def _where(self, key: str | None) -> str:
        return f"{self.url}/{key}" if key else self.url

    @contextmanager
    def _translated(self, key: str | None) -> Iterator[None]:
        """Turn what boto3 raises into the store's errors, in this one place."""
        try:
            yield
        except botocore.exceptions.ClientError as error:
            raise store_error(_answer(error), where=self._where(key), key=key) from error
        except botocore.exceptions.BotoCoreError as error:
            raise self._client_side_error(error, key) from error

    def _client_side_error(self, error: botocore.exceptions.BotoCoreError, key: str | None) -> StoreError:
        what = f"{self._where(key)}: {error}"
        endpoint = self._client.meta.endpoint_url
        if isinstance(error, botocore.exceptions.SSLError):
            hint = f"check the certificate of {endpoint}; AWS_CA_BUNDLE names a file of authorities to trust"
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


def _make_client(settings: S3Settings) -> S3Client:
    try:
        session = boto3.session.Session(**settings.session_options())
        config = Config(max_pool_connections=_CONNECTIONS, **settings.config_options())
        return session.client("s3", config=config, **settings.client_options())
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        hint = "check the S3 settings, the AWS_* variables and the shared AWS configuration files"
        raise ConfigurationError(f"s3: {error}", hint=hint) from error


def _answer(error: botocore.exceptions.ClientError) -> ErrorAnswer:
    said = error.response.get("Error", {})
    return ErrorAnswer(
        status=error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0),
        code=said.get("Code", ""),
        message=said.get("Message", ""),
    )
