"""Uploads a body in parts, and completes the multipart upload only once the whole body was sent and checked.

Each part carries the CRC-32C of its bytes. Part checksums have the type COMPOSITE, the only one that old and new stores
share; readers do not mistake its value for the checksum of the whole object. Parts are read one after the other and
sent in parallel, limited by the slots that all writers of the store share. A writer that waits for a slot may still
hold the part it sent last.
"""

from __future__ import annotations

import base64
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.crc32c import crc32c as compute_crc32c
from resnap.storage.errors import ResnapError
from resnap.storage.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

    from resnap.storage.stores.s3_client import S3Caller

PART_BYTES: Final = 16 << 20
"""The size of a part of a multipart upload; S3 wants 5 MiB at least, and 10,000 parts at most."""
MAX_PARTS: Final = 10_000
WHOLE_BYTES: Final = 128 << 20
"""What goes up in one request at most; when its connection breaks, all of it is sent again."""
SIGNED_WHOLE_BYTES: Final = 2 << 30
"""The same where bodies are signed, which of each part takes a digest of its own: what the largest segment has, and
less than half of what S3 takes at once. Should the connection break, all of it goes again in parts."""


def part_bytes_for(size_bytes: int) -> int:
    """Return the size of the parts of a body; only the last one is smaller."""
    return max(PART_BYTES, -(-size_bytes // MAX_PARTS))


def requests_for(size_bytes: int, whole_bytes: int = WHOLE_BYTES) -> int:
    """Return how many requests a body takes: one up to ``whole_bytes``; else its parts, the begin, and the end."""
    return 1 if size_bytes <= whole_bytes else -(-size_bytes // part_bytes_for(size_bytes)) + 2


def checksum_header(crc32c: int) -> dict[str, Any]:
    """Return the headers with the checksum ``crc32c`` of the bytes sent; buckets with object lock need both."""
    return {
        "ChecksumCRC32C": base64.b64encode(crc32c.to_bytes(4, "big")).decode(),
        "ChecksumAlgorithm": "CRC32C",
    }


class MultipartUpload:
    """One upload to ``name`` in ``bucket``; ``key`` is its name in messages."""

    def __init__(self, caller: S3Caller, bucket: str, name: str, key: str, storage_class: str | None) -> None:
        self._caller, self._bucket, self._name, self._key = caller, bucket, name, key
        self._storage_class = storage_class

    def put(self, parts: Iterable[bytes], claimed: int | None = None) -> None:
        """Upload ``parts``; if anything fails, the key is unchanged.

        ``claimed`` is sent as the CRC-32C of every part instead of its own; a refusal then raises a
        ``ClaimRefusedError``.

        Raises:
            UploadGoneError: the store no longer knows the upload, so its outcome is unknown.
            StoreError: the store refused or failed.

        """
        upload_id = self.begin()
        client = self._caller.client
        try:
            done = self._put_parts(upload_id, iter(parts), claimed)
            self._caller.call(
                self._key,
                lambda: client.complete_multipart_upload(
                    Bucket=self._bucket, Key=self._name, UploadId=upload_id, MultipartUpload={"Parts": done}
                ),
                claims=claimed is not None,
            )
        except BaseException:
            # An error of the abort matters less than its cause; `gc` finds what it leaves.
            with suppress(ResnapError):
                self._caller.once(self._key, lambda: abort_upload(client, self._bucket, self._name, upload_id))
            raise

    def begin(self) -> str:
        """Return the id of a new upload."""
        options = self._caller.options_of_new(self._storage_class)
        client = self._caller.client
        answer = self._caller.call(
            self._key, lambda: client.create_multipart_upload(Bucket=self._bucket, Key=self._name, **options)
        )
        return str(self._caller.must_say(self._key, answer, "UploadId"))

    def _put_parts(self, upload_id: str, parts: Iterator[bytes], claimed: int | None) -> list[CompletedPartTypeDef]:
        """Send the parts in parallel; if one cannot be read or sent, wait for those in flight."""
        done: list[CompletedPartTypeDef] = []
        begun: deque[Future[CompletedPartTypeDef]] = deque()

        def send(part: bytes) -> Future[CompletedPartTypeDef]:
            while begun and begun[0].done():  # raises what one before has met, so that no further one goes up in vain
                done.append(begun.popleft().result())
            return threads.submit(self._put_part, upload_id, len(done) + len(begun) + 1, part, claimed)

        with Threads(self._caller.slots.most, thread_name_prefix="resnap-part") as threads:
            try:
                while (sent := self._caller.slots.begin(parts, send)) is not None:
                    begun.append(sent)
                done += [future.result() for future in begun]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        return done

    def _put_part(self, upload_id: str, number: int, part: bytes, claimed: int | None) -> CompletedPartTypeDef:
        checksum: dict[str, Any] = {}
        if self._caller.sends_checksums:
            checksum = checksum_header(compute_crc32c(part) if claimed is None else claimed)
        client = self._caller.client
        answer = self._caller.call(
            self._key,
            lambda: client.upload_part(
                Bucket=self._bucket, Key=self._name, UploadId=upload_id, PartNumber=number, Body=part, **checksum
            ),
            claims=claimed is not None,
        )
        completed: CompletedPartTypeDef = {
            "PartNumber": number,
            "ETag": self._caller.must_say(self._key, answer, "ETag"),
        }
        if "ChecksumCRC32C" in checksum:
            completed["ChecksumCRC32C"] = checksum["ChecksumCRC32C"]
        return completed


def abort_upload(client: S3Client, bucket: str, name: str, upload_id: str) -> None:
    """Discard the parts of an upload that will not be completed."""
    client.abort_multipart_upload(Bucket=bucket, Key=name, UploadId=upload_id)
