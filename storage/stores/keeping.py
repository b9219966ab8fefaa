"""Views of a store for runs that only read: one keeps small objects, the other lists some folders only.

A run reads each small object once: it is kept once it has come whole. What a later listing shows to have been replaced
is read again. What is too much for one pass is read in several, of some folders each.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import StoreUnavailableError
from resnap.storage.stores.protocol import OpeningStore, check_etag, check_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

MOST_BYTES: Final = 1 << 20
"""A larger object is not kept."""
KEPT_BYTES: Final = 128 << 20
"""The most bytes kept for a run; what comes after that is read as often as it is needed."""
_OF_AN_ENTRY: Final = 1 << 10
"""What is kept of an object beside its bytes: its key twice, its etag."""


@dataclass(slots=True)
class Kept:
    """What was read, by locator; it does not travel to other processes."""

    folders: Sequence[str] = ()
    """All that listings show, as in ``FolderStore``; everything if there are none."""
    objects: dict[str, tuple[ObjectInfo, bytes]] = field(default_factory=dict)
    left_bytes: int = KEPT_BYTES
    _guard: Lock = field(default_factory=Lock)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Arrive as None."""
        return type(None), ()

    def keep(self, locator: str, info: ObjectInfo, body: bytes) -> None:
        """Keep an object, if there is room."""
        with self._guard:
            if locator not in self.objects and len(body) + _OF_AN_ENTRY <= self.left_bytes:
                self.left_bytes -= len(body) + _OF_AN_ENTRY
                self.objects[locator] = info, body

    def drop(self, locator: str) -> None:
        """Forget an object, if it is kept."""
        with self._guard:
            if (kept := self.objects.pop(locator, None)) is not None:
                self.left_bytes += len(kept[1]) + _OF_AN_ENTRY


def keeping(store: ObjectStore, kept: Kept) -> ObjectStore:
    """Return ``store`` with reads that use and fill ``kept``; a directory's files are not kept."""
    listed = FolderStore(store, kept.folders) if kept.folders else store
    return KeepingStore(listed, kept) if isinstance(listed, OpeningStore) else listed


class KeepingStore:
    """Reads ``inner``, and what is ``kept`` of it."""

    def __init__(self, inner: OpeningStore, kept: Kept) -> None:
        self._inner, self._kept = inner, kept
        self.url = inner.url
        self.put, self.put_stream, self.replace, self.delete = inner.put, inner.put_stream, inner.replace, inner.delete
        self.unfinished, self.discard = inner.unfinished, inner.discard

    def first(self, key: str, length: int) -> tuple[ObjectInfo, bytes]:
        """Return the facts of an object and its first bytes; see ``OpeningStore.first``."""
        found = self._there(key)
        if found is None:
            found = self._inner.first(key, length)
            if len(found[1]) == found[0].size_bytes <= MOST_BYTES:
                self._kept.keep(f"{self.url}/{key}", *found)
        return found[0], found[1][:length]

    def get(self, key: str) -> bytes:
        """Return the whole object; see ``ObjectStore.get``."""
        found = self._small(key)
        return self._inner.get(key) if found is None else found

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        """Return the bytes [``start``, ``end``); see ``ObjectStore.get_range``."""
        found = self._there(key)
        if found is None:
            return self._inner.get_range(key, start, end, etag=etag)
        check_range(start, end)
        check_etag(f"{self.url}/{key}", key, expected=etag, found=found[0].etag)
        return found[1][start:end]

    @contextmanager
    def open(self, key: str, start: int = 0, end: int | None = None) -> Iterator[Iterator[bytes]]:
        """Stream the object; see ``ObjectStore.open``. A small object is kept if its first bytes are read."""
        found = self._small(key) if end is not None and end <= MOST_BYTES and not start else None
        if found is not None:
            yield iter(filter(None, (found[:end],)))
            return
        with self._inner.open(key, start, end) as chunks:
            yield chunks

    def head(self, key: str) -> ObjectInfo:
        """Return the facts of an object; see ``ObjectStore.head``."""
        found = self._there(key)
        return self._inner.head(key) if found is None else found[0]

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below ``prefix``; see ``ObjectStore.list``. What was replaced is forgotten."""
        for info in self._inner.list(prefix):
            found = self._there(info.key)
            if found is not None and found[0].etag != info.etag:
                self._kept.drop(f"{self.url}/{info.key}")
            yield info

    def _there(self, key: str) -> tuple[ObjectInfo, bytes] | None:
        return self._kept.objects.get(f"{self.url}/{key}")

    def _small(self, key: str) -> bytes | None:
        """Return an object that is kept, or small; None if it is larger, or did not come at the first attempt."""
        with suppress(StoreUnavailableError):
            info, body = self.first(key, MOST_BYTES)
            return body if len(body) == info.size_bytes else None
        return None


class FolderStore:
    """Reads ``inner``, and lists of it what is below ``folders``: URLs with a slash at the end, ascending."""

    def __init__(self, inner: ObjectStore, folders: Sequence[str]) -> None:
        self._inner, self._folders = inner, folders
        self.url = inner.url
        self.put, self.put_stream, self.replace, self.delete = inner.put, inner.put_stream, inner.replace, inner.delete
        self.unfinished, self.discard = inner.unfinished, inner.discard
        self.get, self.get_range, self.open, self.head = inner.get, inner.get_range, inner.open, inner.head
        if isinstance(inner, OpeningStore):
            self.first = inner.first

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below ``prefix`` that are in one of the folders; see ``ObjectStore.list``."""
        wanted = f"{self.url}/{prefix}"
        for folder in self._folders:
            if folder.startswith(wanted):
                yield from self._inner.list(folder.removeprefix(f"{self.url}/"))
            elif wanted.startswith(folder):
                yield from self._inner.list(prefix)
