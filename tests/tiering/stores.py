"""Stores that watch what is done to them, or do something else than they were asked."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from resnap.storage.errors import StoreFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from resnap.storage.crc32c import Buffer
    from resnap.storage.stores.protocol import BodyOpener, ObjectInfo, ObjectStore, Unfinished


@dataclass
class PassingStore:
    """Passes everything on."""

    inner: ObjectStore

    @property
    def url(self) -> str:
        return self.inner.url

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        self.inner.put(key, body, if_absent=if_absent)

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        self.inner.replace(key, body, etag=etag)

    def put_stream(
        self, key: str, open_body: BodyOpener, *, size_bytes: int, crc32c: int | None = None, sha256: str | None = None
    ) -> None:
        self.inner.put_stream(key, open_body, size_bytes=size_bytes, crc32c=crc32c, sha256=sha256)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        return self.inner.get_range(key, start, end, etag=etag)

    def open(self, key: str, start: int = 0, end: int | None = None) -> AbstractContextManager[Iterator[bytes]]:
        return self.inner.open(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        return self.inner.head(key)

    def list(self, prefix: str = "", **pages: Any) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, **pages)

    def delete(self, key: str, *, etag: str | None = None) -> None:
        self.inner.delete(key, etag=etag)

    def unfinished(self) -> Iterator[Unfinished]:
        return self.inner.unfinished()

    def discard(self, unfinished: Unfinished) -> None:
        self.inner.discard(unfinished)


@dataclass
class BeginningStore(PassingStore):
    """Gives by a HEAD when the writing of an object began, and lists when it ended, as rclone does."""

    def head(self, key: str) -> ObjectInfo:
        info = self.inner.head(key)
        return replace(info, modified_ms=info.modified_ms - 1_500)


@dataclass
class RecordingStore(PassingStore):
    """Records what was done to which key, in order."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def written(self) -> list[str]:
        return [key for verb, key in self.calls if verb == "put"]

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        super().put(key, body, if_absent=if_absent)
        self.calls.append(("put", key))

    def put_stream(
        self, key: str, open_body: BodyOpener, *, size_bytes: int, crc32c: int | None = None, sha256: str | None = None
    ) -> None:
        super().put_stream(key, open_body, size_bytes=size_bytes, crc32c=crc32c, sha256=sha256)
        self.calls.append(("put", key))

    @contextmanager
    def open(self, key: str, start: int = 0, end: int | None = None) -> Iterator[Iterator[bytes]]:
        self.calls.append(("read", key))
        with super().open(key, start, end) as chunks:
            yield chunks

    def head(self, key: str) -> ObjectInfo:
        self.calls.append(("head", key))
        return super().head(key)


@dataclass
class ActingStore(PassingStore):
    """Acts after each write, before it is acknowledged: ``act`` is given the store beneath and the key."""

    act: Callable[[ObjectStore, str], None]

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        super().put(key, body, if_absent=if_absent)
        self.act(self.inner, key)

    def put_stream(
        self, key: str, open_body: BodyOpener, *, size_bytes: int, crc32c: int | None = None, sha256: str | None = None
    ) -> None:
        super().put_stream(key, open_body, size_bytes=size_bytes, crc32c=crc32c, sha256=sha256)
        self.act(self.inner, key)


@dataclass
class ReplacingStore(PassingStore):
    """Has an object replaced by another writer at the moment in which its deletion is asked for, once for each."""

    keys: set[str]

    def delete(self, key: str, *, etag: str | None = None) -> None:
        if key in self.keys:
            self.keys.remove(key)
            self.inner.put(key, b"of another writer")
        super().delete(key, etag=etag)


@dataclass
class FullStore(PassingStore):
    """Has room for ``room`` writes."""

    room: int

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        self._take(key)
        super().put(key, body, if_absent=if_absent)

    def put_stream(
        self, key: str, open_body: BodyOpener, *, size_bytes: int, crc32c: int | None = None, sha256: str | None = None
    ) -> None:
        self._take(key)
        super().put_stream(key, open_body, size_bytes=size_bytes, crc32c=crc32c, sha256=sha256)

    def _take(self, key: str) -> None:
        if not self.room:
            raise StoreFullError(f"{key}: no space left", key=key)
        self.room -= 1


def flip_byte(inner: ObjectStore, key: str) -> None:
    """Damage one bit near the end of an object: in a manifest, past the schema and before the sync marker."""
    body = bytearray(inner.get(key))
    body[max(len(body) - 20, 0)] ^= 1
    inner.put(key, body)


def truncate(inner: ObjectStore, key: str) -> None:
    """Take the last byte off an object."""
    inner.put(key, inner.get(key)[:-1])


def lose(inner: ObjectStore, key: str) -> None:
    """Forget an object."""
    inner.delete(key)
