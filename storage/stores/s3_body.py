"""A body that is sent in one request while it is read, with a digest that is known in advance.

Over plain HTTP botocore signs the SHA-256 of a body, so it would read the body twice; and it would treat an error in
reading the file as a network error.
"""

from __future__ import annotations

import hashlib
import io
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import botocore.auth
import botocore.exceptions

from resnap.storage.stores.protocol import CHUNK_BYTES, body_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from botocore.awsrequest import AWSPreparedRequest, AWSRequest
    from mypy_boto3_s3 import S3Client

    from resnap.storage.stores.protocol import BodyOpener

_SIGNER: Final = "s3v4-of-resnap"
_SIGNED_BY_DIGEST: Final = {"v4", "s3v4"}
"""What botocore calls the signature for S3 before and after it has looked which service it is for."""


class S3Body(io.RawIOBase):
    """A body that botocore sends; its length and checksum are checked while it is read.

    Its last chunk is sent only after the whole body was found correct: otherwise the request stays incomplete, and no
    store accepts it.
    """

    def __init__(self, open_body: BodyOpener, *, size_bytes: int, crc32c: int, sha256: str, key: str) -> None:
        self.sha256 = sha256
        """In hexadecimal digits, as the signature takes it."""
        self.error: Exception | None = None
        """The error of reading it, which botocore does not pass on unchanged."""
        self._open_body, self._size_bytes, self._crc32c, self._key = open_body, size_bytes, crc32c, key
        self._chunks = self._read()
        self._chunk = b""
        self._at = self._reported = 0
        """How much of the chunk, and of all, was returned."""

    def __len__(self) -> int:
        """Return the length of the whole body."""
        return self._size_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most ``size`` of the next bytes; none at the end."""
        try:
            if self._at == len(self._chunk):
                self._chunk, self._at = next(self._chunks, b""), 0
        except Exception as error:
            self.error = error
            raise
        end = len(self._chunk) if size < 0 else min(self._at + size, len(self._chunk))
        piece, self._at = self._chunk[self._at : end], end
        self._reported += len(piece)
        return piece

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._reported

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seek to the start, the only position that botocore seeks to, before it sends the body again."""
        if (offset, whence) != (0, io.SEEK_SET):
            raise io.UnsupportedOperation(f"seek to {offset} from {whence}: expected the start")
        self._chunks.close()
        self._chunks, self._chunk, self._at, self._reported = self._read(), b"", 0, 0
        return 0

    def send(self, put: Callable[..., object]) -> None:
        """Let ``put`` send this body from its start, as its ``Body``; if reading failed, ``error`` has the reason."""
        self.seek(0)
        try:
            put(Body=self)
        except botocore.exceptions.BotoCoreError:
            if self.error is None:
                raise

    def close(self) -> None:
        """Close the underlying stream."""
        self._chunks.close()
        super().close()

    def _read(self) -> Generator[bytes, None, None]:
        chunks = body_chunks(
            self._open_body, size_bytes=self._size_bytes, crc32c=self._crc32c, chunk_bytes=CHUNK_BYTES, key=self._key
        )
        return _one_behind(chunks)


def _one_behind(chunks: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Yield each chunk only after the next one, or the end, was read."""
    last = None
    with closing(chunks):
        for chunk in chunks:
            if last is not None:
                yield last
            last = chunk
        if last is not None:
            yield last


class _Pieces:
    """A body for urllib3, which would send a readable one in pieces of 16 KiB."""

    def __init__(self, body: S3Body) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body.read, b"")

    def seek(self, offset: int) -> int:
        """Seek to the start, to send all of it again."""
        return self._body.seek(offset)


def send_known_bodies(client: S3Client) -> None:
    """Make ``client`` send an ``S3Body`` while it is read, and sign requests with ``_Signer``."""
    client.meta.events.register("choose-signer.s3", _choose)  # type: ignore[arg-type]
    client.meta.events.register("before-send.s3.PutObject", _send_in_pieces)


def _send_in_pieces(request: AWSPreparedRequest, **_: object) -> None:
    body: Any = request.body
    if isinstance(body, S3Body):
        pieces: Any = _Pieces(body)
        request.body = pieces


def _choose(signature_version: object, signing_name: str, **_: object) -> str | None:
    return _SIGNER if signature_version in _SIGNED_BY_DIGEST and signing_name == "s3" else None


class _Signer(botocore.auth.S3SigV4Auth):
    """Signs S3 requests as botocore does where there is no awscrt, whose signer takes longer for small requests.

    Where bodies are signed, the digest of an ``S3Body`` is the known one.
    """

    def payload(self, request: AWSRequest) -> str:
        """Return the body's digest for the signature; ``request.body``, as botocore reads it, copies all headers."""
        body: Any = request.data
        is_signed: Callable[[AWSRequest], bool] = self._should_sha256_sign_payload  # type: ignore[attr-defined]
        if isinstance(body, bytes | S3Body) and is_signed(request):
            return body.sha256 if isinstance(body, S3Body) else hashlib.sha256(body).hexdigest()
        return super().payload(request)


botocore.auth.AUTH_TYPE_MAPS[_SIGNER] = _Signer
