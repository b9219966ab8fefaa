"""Stores objects in memory, shared within a process under a name: for tests, and for runs that must leave nothing."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import ObjectExistsError, ObjectNotFoundError
from resnap.storage.stores.protocol import (
    CHUNK_BYTES,
    ObjectInfo,
    body_chunks,
    check_etag,
    check_key,
    check_range,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.crc32c import Buffer
    from resnap.storage.stores.protocol import BodyOpener, Unfinished


class _Object(NamedTuple):
    body: bytes
    modified_ms: int
    version: int


@dataclass(slots=True)
class _Bucket:
    """Objects by whole key; the lock makes check and write one step."""

    objects: dict[str, _Object] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    writes: int = 0


_BUCKETS: Final[dict[str, _Bucket]] = {}
"""Stores by name, for the life of the process: that is what makes a ``memory://`` URL mean the same thing twice."""


def wall_clock_ms() -> int:
    """Return the wall-clock time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class MemoryObjectStore:
    """The store ``memory://name/prefix``; keeps every promise of the protocol except surviving its process."""

    def __init__(self, name: str, prefix: str = "", *, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._bucket = _BUCKETS.setdefault(name, _Bucket())
        self._prefix = f"{prefix}/" if prefix else ""
        self._clock_ms = clock_ms
        self._url = f"memory://{name}/{prefix}".rstrip("/")

    @property
    def url(self) -> str:
        """The URL that opens the same objects again in this process."""
        return self._url

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        """Write a small object; see ``ObjectStore.put``."""
        check_key(key)
        with self._bucket.lock:
            if if_absent and self._prefix + key in self._bucket.objects:
                raise ObjectExistsError(f"{self._url}/{key}: the object already exists", key=key)
            self._keep(key, body)

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        """Write a small object in place of one version; see ``ObjectStore.replace``."""
        check_key(key)
        with self._bucket.lock:
            found = self._bucket.objects.get(self._prefix + key)
            if found is None:
                raise self._not_found(key)
            check_etag(f"{self._url}/{key}", key, expected=etag, found=str(found.version))
            self._keep(key, body)

    def _keep(self, key: str, body: Buffer) -> None:
        self._bucket.writes += 1
        self._bucket.objects[self._prefix + key] = _Object(bytes(body), self._clock_ms(), self._bucket.writes)

    def put_stream(
        self,
        key: str,
        open_body: BodyOpener,
        *,
        size_bytes: int,
        crc32c: int | None = None,
        sha256: str | None = None,  # noqa: ARG002 - there is nothing to sign
    ) -> None:
        """Write a large object, held in memory entirely; see ``ObjectStore.put_stream``."""
        check_key(key)
        chunks = body_chunks(open_body, size_bytes=size_bytes, crc32c=crc32c, chunk_bytes=CHUNK_BYTES, key=key)
        self.put(key, b"".join(chunks))

    def get(self, key: str) -> bytes:
        """Return the whole object; see ``ObjectStore.get``."""
        return self._object(key).body

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        """Return the bytes [``start``, ``end``); see ``ObjectStore.get_range``."""
        check_range(start, end)
        found = self._object(key)
        check_etag(f"{self._url}/{key}", key, expected=etag, found=str(found.version))
        return found.body[start:end]

    @contextmanager
    def open(self, key: str, start: int = 0, end: int | None = None) -> Iterator[Iterator[bytes]]:
        """Stream the object; see ``ObjectStore.open``."""
        check_range(start, end)
        body = self._object(key).body[start:end]
        yield (body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES))

    def head(self, key: str) -> ObjectInfo:
        """Return size, time and etag; see ``ObjectStore.head``."""
        return _info(key, self._object(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below ``prefix`` as they are now; see ``ObjectStore.list``."""
        with self._bucket.lock:
            found = [item for item in self._bucket.objects.items() if item[0].startswith(self._prefix + prefix)]
        for path, entry in sorted(found):
            yield _info(path.removeprefix(self._prefix), entry)

    def delete(self, key: str, *, etag: str | None = None) -> None:
        """Remove the object if it exists; see ``ObjectStore.delete``."""
        check_key(key)
        with self._bucket.lock:
            found = self._bucket.objects.get(self._prefix + key)
            if found is not None:
                check_etag(f"{self._url}/{key}", key, expected=etag, found=str(found.version))
                del self._bucket.objects[self._prefix + key]

    def unfinished(self) -> Iterator[Unfinished]:
        """Yield nothing: a write here is one step; see ``ObjectStore.unfinished``."""
        return iter(())

    def discard(self, unfinished: Unfinished) -> None:
        """Do nothing; see ``ObjectStore.discard``."""

    def _object(self, key: str) -> _Object:
        with self._bucket.lock:
            entry = self._bucket.objects.get(self._prefix + key)
        if entry is None:
            raise self._not_found(key)
        return entry

    def _not_found(self, key: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(f"{self._url}/{key}: no such object", key=key)


def _info(key: str, entry: _Object) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=len(entry.body), modified_ms=entry.modified_ms, etag=str(entry.version))
