"""A store of which listings show some folders only, so that what is too much for one pass is read in several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.storage.stores.protocol import OpeningStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


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
