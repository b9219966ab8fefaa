"""Stores objects in an S3-compatible bucket.

A body is one PUT up to ``PART_BYTES``, and up to ``WHOLE_BYTES`` where its digests are known before it is read; a
multipart upload above. Over plain HTTP, where each part would be hashed once more, one of known digests is tried as a
single PUT up to ``SIGNED_WHOLE_BYTES``. Each request carries the CRC-32C of its bytes (save under
``request_checksum_calculation=when_required``), and reading goes on where a connection broke off, in the same version
of the object.
"""

from __future__ import annotations

import io
import re
from contextlib import closing, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import botocore.exceptions

from resnap.storage.crc32c import crc32c as compute_crc32c
from resnap.storage.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
    TooLargeError,
    UnsupportedError,
    UploadGoneError,
)
from resnap.storage.stores.protocol import (
    CHUNK_BYTES,
    ObjectInfo,
    Unfinished,
    body_chunks,
    can_be_below,
    check_etag,
    check_key,
    check_order,
    check_range,
    is_safe_path,
    length_of,
    object_changed_error,
)
from resnap.storage.stores.s3_body import S3Body
from resnap.storage.stores.s3_client import S3Caller, error_answer
from resnap.storage.stores.s3_upload import (
    SIGNED_WHOLE_BYTES,
    WHOLE_BYTES,
    MultipartUpload,
    abort_upload,
    checksum_header,
    part_bytes_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from datetime import datetime

    from botocore.response import StreamingBody
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

    from resnap.storage.crc32c import Buffer
    from resnap.storage.stores.protocol import BodyOpener, StoredBody
    from resnap.storage.stores.s3_settings import S3Settings

PAGE_KEYS: Final = 1000
"""Keys requested per page of a listing, and deleted by a request: the most that S3 takes."""
_UNASKED_BYTES: Final = 64 << 10
"""Up to here a body follows its headers at once; before a larger one, a file for botocore, the store is asked first."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class S3ObjectStore:
    """The store ``s3://bucket/prefix``. It cannot be pickled: send its URL and settings, and open it again."""

    def __init__(self, bucket: str, prefix: str, settings: S3Settings) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._storage_class = settings.storage_class
        self._knows_conditions = True
        self._caller = S3Caller(settings, self.url)
        self._client = self._caller.client

    @property
    def url(self) -> str:
        """The URL that opens the same bucket and prefix again, given the same settings."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def sends_checksums(self) -> bool:
        """Whether each request carries the checksum of its bytes, so that the store may check them."""
        return self._caller.sends_checksums

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        """Write with one PUT; see ``ObjectStore.put``.

        A store that answers that it does not know the condition is written to without, as others ignore it.
        """
        check_key(key)
        data = bytes(body)
        if if_absent and self._knows_conditions:
            with suppress(UnsupportedError):
                self._put(key, data, {"IfNoneMatch": "*"})
                return
        self._put(key, data)
        self._knows_conditions = self._knows_conditions and not if_absent

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        """Write with one PUT in place of one version; see ``ObjectStore.replace``."""
        check_key(key)
        try:
            self._put(key, bytes(body), {"IfMatch": etag})
        except ObjectExistsError as error:  # what a condition that does not hold is taken for
            raise object_changed_error(self._caller.where(key), key) from error

    def _put(
        self,
        key: str,
        data: bytes,
        condition: Mapping[str, Any] | None = None,
        *,
        storage_class: str | None = None,
        claimed: int | None = None,
    ) -> None:
        put = self._put_request(key, compute_crc32c(data) if claimed is None else claimed, storage_class)
        body = bytes if len(data) <= _UNASKED_BYTES else io.BytesIO
        self._caller.call(key, lambda: put(Body=body(data), **(condition or {})), claims=claimed is not None)

    def _put_request(self, key: str, crc32c: int, storage_class: str | None) -> Callable[..., object]:
        """Return a function that writes an object with one request, given its body."""
        options: dict[str, Any] = {**checksum_header(crc32c)} if self._caller.sends_checksums else {}
        if storage_class is not None:
            options["StorageClass"] = storage_class
        return partial(self._client.put_object, Bucket=self._bucket, Key=self._prefix + key, **options)

    def put_stream(
        self, key: str, open_body: BodyOpener, *, size_bytes: int, crc32c: int | None = None, sha256: str | None = None
    ) -> None:
        """Write with a multipart upload if one part is too small; see ``ObjectStore.put_stream``."""
        check_key(key)
        part_bytes = part_bytes_for(size_bytes)

        def parts() -> Iterator[bytes]:
            return body_chunks(open_body, size_bytes=size_bytes, crc32c=crc32c, chunk_bytes=part_bytes, key=key)

        if size_bytes <= part_bytes:
            with self._caller.slots.one():
                self._put(key, b"".join(parts()), storage_class=self._storage_class)
            return
        if crc32c is not None and sha256 is not None:
            body = S3Body(open_body, size_bytes=size_bytes, crc32c=crc32c, sha256=sha256, key=key)
            if self._put_whole(body, key, crc32c):
                return
        try:
            self._upload(key).put(parts())
        except UploadGoneError:
            # Completed, if the answer that said so was lost; or aborted. To write it again is right in both cases.
            self._upload(key).put(parts())

    def _put_whole(self, body: S3Body, key: str, crc32c: int) -> bool:
        """Send a body while it is read; return False if it must be sent in parts instead.

        Errors in reading the body pass through unchanged, and are not retried.
        """
        is_small = len(body) <= WHOLE_BYTES
        if not is_small and (len(body) > SIGNED_WHOLE_BYTES or not self._caller.signs_bodies):
            return False
        put = self._put_request(key, crc32c, self._storage_class)
        attempt = self._caller.call if is_small else self._caller.once
        try:
            with body, self._caller.slots.one():
                attempt(key, lambda: body.send(put))
        except StoreError as error:
            if body.error is not None or (is_small and not isinstance(error, TooLargeError)):
                raise
            if isinstance(error, StoreUnavailableError):
                self._caller.retrying.wait(1, error)
            return False
        if body.error is not None:
            raise body.error
        return True

    def copy(self, source: StoredBody, key: str, *, size_bytes: int, crc32c: int) -> None:
        """Let the store copy an object of up to 5 GiB, S3's limit, in one request; see ``CopyingStore.copy``.

        For a copy in parts, real servers return the checksum of the whole source for a part, or none, or refuse
        (versitygw, MinIO).
        """
        check_key(key)
        self._caller.call(key, lambda: self._copy(source, key))
        said = self._caller.call(
            key,
            lambda: self._client.head_object(Bucket=self._bucket, Key=self._prefix + key, ChecksumMode="ENABLED"),
        )
        expected: dict[str, object] = {"ContentLength": size_bytes}
        if self._caller.sends_checksums:
            expected["ChecksumCRC32C"] = checksum_header(crc32c)["ChecksumCRC32C"]
        for name, value in expected.items():
            if said.get(name) != value:
                where = self._caller.where(key)
                found = said.get(name, "nothing")
                raise StoreError(f"{where}: the store reports for its copy {name} {found}, expected {value}", key=key,
                                 hint="`resnap doctor URL` shows what this store keeps")  # fmt: skip

    def put_as_others(self, key: str, body: bytes) -> None:
        """Write with one PUT, and the checksum that boto3 chooses; see ``CopyingStore.put_as_others``."""
        put = partial(self._client.put_object, Bucket=self._bucket, Key=self._prefix + key, Body=body)
        self._caller.call(key, put)

    def _copy(self, source: StoredBody, key: str) -> None:
        try:
            self._client.copy_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                CopySource={"Bucket": source.store_url.partition("://")[2], "Key": source.key},
                CopySourceIfMatch=source.etag,
                MetadataDirective="REPLACE",
                **self._caller.options_of_new(self._storage_class),
            )
        except botocore.exceptions.ClientError as error:
            if error_answer(error).status == HTTPStatus.PRECONDITION_FAILED:
                raise object_changed_error(f"{source.store_url}/{source.key}", source.key) from error
            raise

    def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:
        """Write ``body`` with the checksum ``crc32c``; see ``WireStore.put_claimed``."""
        check_key(key)
        if in_parts:
            self._upload(key).put([body], claimed=crc32c)
        else:
            self._put(key, body, claimed=crc32c)

    def begin(self, key: str) -> Unfinished:
        """Begin an upload in parts, and do not complete it; see ``WireStore.begin``."""
        check_key(key)
        return Unfinished(key=key, begun_ms=0, handle=self._upload(key).begin())

    def _upload(self, key: str) -> MultipartUpload:
        return MultipartUpload(self._caller, self._bucket, self._prefix + key, key, self._storage_class)

    def get(self, key: str) -> bytes:
        """Return the whole object; see ``ObjectStore.get``."""
        return self._caller.retrying.call(lambda: self._read(key, 0, None, None))

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        """Return the bytes [``start``, ``end``); see ``ObjectStore.get_range``."""
        check_range(start, end)
        return self._caller.retrying.call(lambda: self._read(key, start, end, etag))

    def _read(self, key: str, start: int, end: int | None, etag: str | None) -> bytes:
        found = self._body(key, start, end, etag)
        if found is None:
            return b""
        with closing(found[0]) as body, self._caller.translate_errors(key):
            return b"".join(body.iter_chunks(CHUNK_BYTES))

    @contextmanager
    def open(self, key: str, start: int = 0, end: int | None = None) -> Iterator[Iterator[bytes]]:
        """Stream the object, over a new connection if one breaks; see ``ObjectStore.open``."""
        check_range(start, end)
        chunks = self._chunks(key, start, end)
        # The first chunk is requested here, so that a missing object is reported on entering.
        first = next(chunks)
        with closing(chunks):
            yield (chunk for part in ((first,), chunks) for chunk in part if chunk)

    def _chunks(self, key: str, start: int, end: int | None) -> Generator[bytes, None, None]:
        """Yield an empty chunk once the object is open, then its bytes; progress resets the count of attempts."""
        etag: str | None = None
        at, failed = start, 0
        while True:
            try:
                found = self._body(key, at, end, etag)
                if found is None:
                    yield b""
                    return
                body, etag = found
                with closing(body), self._caller.translate_errors(key):
                    yield b""
                    for chunk in body.iter_chunks(CHUNK_BYTES):
                        yield chunk
                        at, failed = at + len(chunk), 0
                    return
            except StoreUnavailableError as error:
                failed += 1
                if failed >= self._caller.retrying.attempts or _is_of_other_bytes(error):
                    raise
                self._caller.retrying.wait(failed, error)

    def head(self, key: str) -> ObjectInfo:
        """Return size, time and etag; see ``ObjectStore.head``. A missing bucket gives: no such object."""
        self._check_reachable(key)
        found = self._caller.call(key, lambda: self._client.head_object(Bucket=self._bucket, Key=self._prefix + key))
        return self._info(key, found, self._caller.must_say(key, found, "ContentLength"))

    def first(self, key: str, length: int) -> tuple[ObjectInfo, bytes]:
        """Return the facts of an object and its first bytes; see ``OpeningStore.first``."""
        self._check_reachable(key)
        answer = self._caller.once(key, lambda: self._answer(key, 0, length, None))
        if answer is None:  # an empty object has no range
            return self.head(key), b""
        with closing(answer["Body"]) as body:
            if not answer.get("ContentLength"):
                return self.head(key), b""
            size_bytes = self._check_content_range(key, answer.get("ContentRange", ""), 0, length)
            with self._caller.translate_errors(key):
                return self._info(key, answer, size_bytes), b"".join(body.iter_chunks(CHUNK_BYTES))

    def _info(self, key: str, answer: Mapping[str, Any], size_bytes: int) -> ObjectInfo:
        must = self._caller.must_say
        return ObjectInfo(
            key=key,
            size_bytes=size_bytes,
            modified_ms=_modified_ms(must(key, answer, "LastModified")),
            etag=must(key, answer, "ETag"),
        )

    def list(self, prefix: str = "", *, page_keys: int = PAGE_KEYS, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below ``prefix``, a page in memory at a time; see ``WireStore.list``.

        A store may end a listing early and call it complete: SeaweedFS did up to 4.41. So one more request asks for
        what follows the last key.
        """
        if not can_be_below(prefix):
            return
        last, must = "", self._caller.must_say
        options: dict[str, Any] = {"MaxKeys": page_keys} | ({"StartAfter": self._prefix + after} if after else {})
        while True:
            page = self._page(prefix, options)
            is_truncated = must(None, page, "IsTruncated")  # without it the answer may be anything but a listing
            for entry in page.get("Contents", ()):
                name = must(None, entry, "Key")
                last = check_order(self.url, last, name)
                if not name.endswith("/"):
                    key = name.removeprefix(self._prefix)
                    yield ObjectInfo(
                        key=key,
                        size_bytes=must(key, entry, "Size"),
                        modified_ms=_modified_ms(must(key, entry, "LastModified")),
                        etag=entry.get("ETag", ""),
                    )
            token = page.get("NextContinuationToken")
            if not is_truncated:
                if not last or not self._has_above(last, self._page(prefix, {"MaxKeys": 1, "StartAfter": last})):
                    return
                again = self._page(prefix, options)
                if not again["IsTruncated"] and not self._has_above(last, again):
                    raise StoreError(
                        f"{self.url}: the store says that its listing ends at {last!r}, and it has objects after that",
                        hint="nothing that was listed can be relied on: update the server (SeaweedFS up to 4.41 does"
                        " it), or use another store; `resnap doctor URL` tests its listings",
                    )
                options = {"MaxKeys": page_keys, "StartAfter": last}  # an object was written meanwhile
                continue
            if not token or token == options.get("ContinuationToken"):
                raise StoreError(f"{self.url}: the store ends a listing early, without a token to continue it",
                                 hint="`resnap doctor URL` shows what this store keeps")  # fmt: skip
            options["ContinuationToken"] = token

    def _page(self, prefix: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = dict(options)
        return self._caller.call(
            None,
            lambda: self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + prefix, **asked),
        )

    def _has_above(self, last: str, page: Mapping[str, Any]) -> bool:
        """Whether a page has a key after ``last``; where a store ignores ``StartAfter``, other keys show nothing."""
        return any(self._caller.must_say(None, entry, "Key") > last for entry in page.get("Contents", ()))

    def delete(self, key: str, *, etag: str | None = None) -> None:
        """Remove the object if it exists; see ``ObjectStore.delete``."""
        check_key(key)
        remove = partial(self._client.delete_object, Bucket=self._bucket, Key=self._prefix + key)
        try:
            with suppress(ObjectNotFoundError):
                self._caller.call(key, remove if etag is None else partial(remove, IfMatch=etag))
        except ObjectExistsError as error:  # what a condition that does not hold is taken for
            if length_of(self, key) is not None:  # SeaweedFS answers so where there is none, also at a second attempt
                raise object_changed_error(self._caller.where(key), key) from error

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove a thousand objects by a request, or one by one where the store does not; see ``SweepingStore``."""
        for at in range(0, len(keys), PAGE_KEYS):
            group = keys[at : at + PAGE_KEYS]
            if not self._has_deleted(group):
                for key in group:
                    self.delete(key)

    def _has_deleted(self, keys: Sequence[str]) -> bool:
        """Delete ``keys`` by one attempt; return whether the store says of each that it is gone."""
        for key in keys:
            check_key(key)
        asked: Any = {"Objects": [{"Key": self._prefix + key} for key in keys]}
        remove = partial(self._client.delete_objects, Bucket=self._bucket, Delete=asked)
        with suppress(StoreError):
            return len(self._caller.once(None, remove).get("Deleted", ())) == len(keys)
        return False

    def unfinished(self) -> Iterator[Unfinished]:
        """Yield the multipart uploads that are not completed; see ``ObjectStore.unfinished``."""
        markers: dict[str, Any] = {}
        must = self._caller.must_say
        while True:
            ask = partial(self._client.list_multipart_uploads, Bucket=self._bucket, Prefix=self._prefix, **markers)
            try:
                page: Mapping[str, Any] = self._caller.call(None, ask)
            except UploadGoneError:  # so `rclone serve s3` says that there is none
                return
            # `rclone serve s3` leaves it out; without both the answer may be anything but a listing.
            if "IsTruncated" not in page:
                must(None, page, "Bucket")
            for upload in page.get("Uploads", ()):
                key = must(None, upload, "Key").removeprefix(self._prefix)
                yield Unfinished(
                    key=key,
                    begun_ms=_modified_ms(must(key, upload, "Initiated")),
                    handle=must(key, upload, "UploadId"),
                )
            if not page.get("IsTruncated"):
                return
            markers = {
                "KeyMarker": must(None, page, "NextKeyMarker"),
                "UploadIdMarker": page.get("NextUploadIdMarker", ""),
            }

    def discard(self, unfinished: Unfinished) -> None:
        """Abort a multipart upload; see ``ObjectStore.discard``."""
        name = self._prefix + unfinished.key
        with suppress(UploadGoneError):
            self._caller.call(None, lambda: abort_upload(self._client, self._bucket, name, unfinished.handle))

    def _body(self, key: str, start: int, end: int | None, etag: str | None) -> tuple[StreamingBody, str] | None:
        """Return the bytes [``start``, ``end``) as a stream, with their version; None if there are none.

        It makes a single attempt: the reader of the body retries both.
        """
        self._check_reachable(key)
        where = self._caller.where(key)
        if end == start:
            check_etag(where, key, expected=etag, found=self.head(key).etag)
            return None
        answer = self._caller.once(key, lambda: self._answer(key, start, end, etag))
        if answer is None:
            return None
        body = answer["Body"]
        try:
            # Some stores do not know the condition.
            check_etag(where, key, expected=etag, found=answer.get("ETag", ""))
            if start or end is not None:
                self._check_content_range(key, answer.get("ContentRange", ""), start, end)
        except StoreError:
            body.close()
            raise
        return body, answer.get("ETag", "")

    def _check_reachable(self, key: str) -> None:
        """Refuse to read a key with empty parts, ``.`` or ``..``: some stores return another object for it."""
        if not is_safe_path(key):
            raise ObjectNotFoundError(f"{self._caller.where(key)}: no such object", key=key)

    def _answer(self, key: str, start: int, end: int | None, etag: str | None) -> GetObjectOutputTypeDef | None:
        """Request [``start``, ``end``) of the version ``etag``; None if the object ends before ``start``."""
        place: dict[str, Any] = {"Bucket": self._bucket, "Key": self._prefix + key}
        if start or end is not None:
            place["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if etag is not None:
            place["IfMatch"] = etag
        try:
            return self._client.get_object(**place)
        except botocore.exceptions.ClientError as error:
            status = error_answer(error).status
            if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return None
            if status == HTTPStatus.PRECONDITION_FAILED:
                raise object_changed_error(self._caller.where(key), key) from error
            raise

    def _check_content_range(self, key: str, given: str, start: int, end: int | None) -> int:
        """Check that the store returned the requested range, and return the size; some do not support ranges."""
        match = _CONTENT_RANGE.fullmatch(given)
        if match:
            first, last, size_bytes = map(int, match.groups())
            if first == start and last + 1 == min(size_bytes, size_bytes if end is None else end):
                return size_bytes
        wanted = f"[{start}, {'end' if end is None else end})"
        where = self._caller.where(key)
        raise StoreError(f"{where}: the store answered another range than {wanted}: {given!r}", key=key,
                         hint="this store cannot be read in ranges")  # fmt: skip


def _modified_ms(at: datetime) -> int:
    """Return a modification time in whole seconds: a HEAD gives no more, while some listings do."""
    return int(at.timestamp()) * 1000


def _is_of_other_bytes(error: StoreUnavailableError) -> bool:
    """Whether the bytes were not those the store described, so that reading cannot continue after them."""
    return isinstance(error.__cause__, botocore.exceptions.FlexibleChecksumError)
