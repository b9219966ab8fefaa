"""A body that goes up at once while it is read, and whose digest was known before.

botocore would read it twice over plain HTTP, where it signs the SHA-256 of a body, and would take an error of the file
for one of the network.
"""

from __future__ import annotations

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

_SIGNER: Final = "s3v4-known-digest"
_SIGNED_BY_DIGEST: Final = {"v4", "s3v4"}
"""What botocore calls the signature for S3 before and after it has looked which service it is for."""


class S3Body(io.RawIOBase):
    """A body as botocore sends it, held against its length and checksum on the way.

    Its last chunk comes only after all of it was found to be as it must: whatever else was read leaves a request that
    no store takes for a whole one.
    """

    def __init__(self, open_body: BodyOpener, *, size_bytes: int, crc32c: int, sha256: str, key: str) -> None:
        self.sha256 = sha256
        """In hexadecimal digits, as the signature takes it."""
        self.error: Exception | None = None
        """What reading it has raised, which botocore does not pass on as it is."""
        self._open_body, self._size_bytes, self._crc32c, self._key = open_body, size_bytes, crc32c, key
        self._chunks = self._read()
        self._chunk = b""
        self._at = self._reported = 0
        """Of the chunk, and of all, what was given out."""

    def __len__(self) -> int:
        """Return the length of the whole body."""
        return self._size_bytes

    def readable(self) -> bool:
        """Say yes."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most ``size`` of the bytes that come next; none at the end."""
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
        """Return how much was read."""
        return self._reported

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go back to the start, the one place that botocore goes to: to send all of it again."""
        if (offset, whence) != (0, io.SEEK_SET):
            raise io.UnsupportedOperation(f"seek to {offset} from {whence}: expected the start")
        self._chunks.close()
        self._chunks, self._chunk, self._at, self._reported = self._read(), b"", 0, 0
        return 0

    def send(self, put: Callable[..., object]) -> None:
        """Have ``put`` send this from its start, as its ``Body``; where reading has failed, ``error`` says why."""
        self.seek(0)
        try:
            put(Body=self)
        except botocore.exceptions.BotoCoreError:
            if self.error is None:
                raise

    def close(self) -> None:
        """Close what was opened."""
        self._chunks.close()
        super().close()

    def _read(self) -> Generator[bytes, None, None]:
        chunks = body_chunks(
            self._open_body, size_bytes=self._size_bytes, crc32c=self._crc32c, chunk_bytes=CHUNK_BYTES, key=self._key
        )
        return _one_behind(chunks)


def _one_behind(chunks: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Yield each chunk once the next one, or the end, was reached."""
    last = None
    with closing(chunks):
        for chunk in chunks:
            if last is not None:
                yield last
            last = chunk
        if last is not None:
            yield last


class _Pieces:
    """A body as urllib3 gets it: of what can be read it would send 16 KiB at a time."""

    def __init__(self, body: S3Body) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body.read, b"")

    def seek(self, offset: int) -> int:
        """Go back to the start, to send all of it again."""
        return self._body.seek(offset)


def send_known_bodies(client: S3Client) -> None:
    """Have ``client`` send an ``S3Body`` as it is read, and sign by its digest wherever bodies are signed by theirs."""
    client.meta.events.register("choose-signer.s3.PutObject", _choose)  # type: ignore[arg-type]
    client.meta.events.register("before-send.s3.PutObject", _send_in_pieces)


def _send_in_pieces(request: AWSPreparedRequest, **_: object) -> None:
    body: Any = request.body
    if isinstance(body, S3Body):
        pieces: Any = _Pieces(body)
        request.body = pieces


def _choose(signature_version: object, signing_name: str, **_: object) -> str | None:
    return _SIGNER if signature_version in _SIGNED_BY_DIGEST and signing_name == "s3" else None


_S3Signer: Any = botocore.auth.AUTH_TYPE_MAPS["s3v4"]
"""Of the two that botocore has, that which it uses here."""


class _KnownDigestSigner(_S3Signer):  # type: ignore[misc]
    """Signs as botocore does for S3; of a body whose SHA-256 is known it takes that."""

    def payload(self, request: AWSRequest) -> Any:  # noqa: ANN401 - as botocore declares it
        """Return what stands for the body in the signature: where botocore signs by itself."""
        known = _digest(request) if self._should_sha256_sign_payload(request) else None
        return known or super().payload(request)

    def _get_existing_sha256(self, request: AWSRequest) -> str | None:
        """Return the same for the signer that is part of awscrt; it decides by itself whether to sign by it."""
        return _digest(request)


def _digest(request: AWSRequest) -> str | None:
    body: Any = request.data
    return body.sha256 if isinstance(body, S3Body) else None


botocore.auth.AUTH_TYPE_MAPS[_SIGNER] = _KnownDigestSigner
