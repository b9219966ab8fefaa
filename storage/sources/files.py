"""Opens and reads files by locator: a path, or the URL of an object.

A locator is a plain string because a string is what travels to Spark's executors; ``Sources`` travels with it and knows
how stores are reached. Segments are read by position (``readers``), the small files beside them whole. A file that is
in pieces inside other objects (a *member*) has a locator and is read like any other. So does a log up to a given size,
as when another log continues in the middle of a segment.
"""

from __future__ import annotations

import io
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO, Final

from resnap.storage.encryption import NO_KEYS, KeyRing
from resnap.storage.errors import FileGoneError, FormatError, LogDirError, ObjectNotFoundError
from resnap.storage.layouts.aiven.members import member_of
from resnap.storage.layouts.aiven.opening import facts_of_member, open_member
from resnap.storage.readers import DELETED_HINT, FileFacts, FileReader, RangeReader, ReaderStream, translate_read_errors
from resnap.storage.stores import RANGE_BYTES, RANGES_IN_FLIGHT
from resnap.storage.stores.keeping import Kept, keeping
from resnap.storage.stores.protocol import StoredBody, listed_object
from resnap.storage.stores.ranged_reader import RangedReader, ranged_reader
from resnap.storage.stores.urls import is_store_url, local_path, open_store, split_object_url
from resnap.storage.threads import made_once
from resnap.storage.whole_file import MOST_BYTES, open_file, read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.stores.protocol import BodyOpener, ObjectStore
    from resnap.storage.stores.s3_settings import S3Settings

STREAM_BYTES: Final = 1 << 20
GONE: Final = (FileGoneError, ObjectNotFoundError)
"""The errors for a file that does not exist, local or in a store."""
UNREADABLE: Final = (FormatError, LogDirError, ObjectNotFoundError)
"""A file is damaged or gone; a store that fails is no such case."""
_CUT: Final = re.compile(r"cut=([0-9]+):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Opens locators; a plain value, so that it can be sent to executors.

    A path, a ``file://`` or ``s3://`` URL means the same in every process with access to it; ``memory://`` only in the
    process that wrote it.
    """

    s3: S3Settings | None = None
    ranges_in_flight: int = RANGES_IN_FLIGHT
    range_bytes: int = RANGE_BYTES
    """At most the product of the two is held of an object at a time."""
    keys: KeyRing = NO_KEYS
    """What encrypted segments are read by."""
    kept: Kept | None = field(default=None, compare=False)
    """Keeps small objects that were read, and says which folders are listed, for a run that only reads."""
    by_listing: bool = False
    """Whether the facts of objects are those that listings give."""

    @contextmanager
    def open(self, locator: str, *, end: int | None = None) -> Iterator[RangeReader]:
        """Open ``locator`` for as long as the context lasts; of an object nothing is read ahead beyond ``end``.

        Raises:
            FileGoneError, ObjectNotFoundError: it is not there.
            ObjectChangedError: an object was replaced while it was read.
            LogDirError, StoreError: it cannot be read.

        """
        whole, cut = uncut(locator)
        if cut is not None:
            with self.open(whole, end=cut if end is None else min(end, cut)) as reader:
                yield CutReader(reader, cut)
            return
        member = member_of(whole)
        if member is not None:
            with open_member(self, member, end) as reader:
                yield reader
            return
        path = _path(whole)
        if path is not None:
            with FileReader(path) as reader:
                yield reader
            return
        store, key = self._object(whole)
        with (
            _explain_deletion(),
            ranged_reader(
                store, key, ranges_in_flight=self.ranges_in_flight, range_bytes=self.range_bytes, end=end
            ) as reader,
        ):
            yield reader

    def open_body(self, locator: str) -> BinaryIO:
        """Open ``locator`` as a stream, to be read from its start and closed; raises as ``open`` does."""
        whole, cut = uncut(locator)
        path = None if member_of(whole) or cut is not None else _path(whole)
        if path is not None:
            return open_file(path)
        return io.BufferedReader(ReaderStream(self.open(locator)), STREAM_BYTES)

    def body(self, locator: str, etag: str | None = None) -> BodyOpener:
        """Return a function that opens ``locator`` as a stream; with ``etag`` it names that version of the object."""

        def opened() -> BinaryIO:
            return self.open_body(locator)

        if etag is None:
            return opened
        store_url, key = split_object_url(locator)
        return StoredBody(store_url=store_url, key=key, etag=etag, open_body=opened)

    def read(self, locator: str) -> bytes:
        """Return the whole of a small file.

        Raises:
            FileGoneError, ObjectNotFoundError: it is not there.
            LogDirError, StoreError: it cannot be read.

        """
        place, cut = uncut(locator)
        if member_of(place) or cut is not None:
            with self.open(locator) as whole:
                return whole.read(0, whole.size_bytes)
        path = _path(place)
        if path is not None:
            with translate_read_errors(path):
                return read_whole(path, MOST_BYTES)
        store, key = self._object(place)
        with _explain_deletion():
            return store.get(key)

    def read_range(self, locator: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a small file, fewer where it ends before; raises as ``read`` does."""
        place, cut = uncut(locator)
        is_plain = cut is None and not member_of(place)
        path = _path(place) if is_plain else None
        if path is not None or not is_plain:
            with self.open(locator) if path is None else FileReader(path) as reader:
                return reader.read(start, end - start)
        store, key = self._object(place)
        with _explain_deletion():
            return store.get_range(key, start, end)

    def facts(self, locator: str, opened: RangeReader | None = None) -> FileFacts:
        """Return size and time, as the reader ``opened`` may know them already; raises as ``read`` does."""
        if isinstance(opened, RangedReader):
            return FileFacts(opened.size_bytes, opened.modified_ms * 1_000_000, 0)
        locator, cut = uncut(locator)
        if cut is not None:
            found = self.facts(locator)
            return found._replace(size_bytes=min(cut, found.size_bytes))
        member = member_of(locator)
        if member is not None:
            return facts_of_member(self, member)
        path = _path(locator)
        if path is not None:
            with translate_read_errors(path):
                status = os.stat(path)  # noqa: PTH116 - as above
            return FileFacts(status.st_size, status.st_mtime_ns, status.st_ino)
        store, key = self._object(locator)
        with _explain_deletion():
            info = listed_object(store, key) if self.by_listing else store.head(key)
        return FileFacts(info.size_bytes, info.modified_ms * 1_000_000, 0)

    def is_unchanged(self, segment: Segment) -> bool:
        """Whether a ``.log`` file is as it was listed; raises as ``read`` does. Its store must list consistently."""
        listed = FileFacts(segment.size_bytes, segment.mtime_ns, segment.inode)
        return any(sources.facts(segment.path).is_same(listed) for sources in (self, replace(self, by_listing=True)))

    def store(self, url: str) -> ObjectStore:
        """Return the store at ``url``; a process makes one client per store, and caches it.

        Raises:
            UsageError: not the URL of a store.

        """
        found = _store(url, self.s3, os.getpid())
        return found if self.kept is None else keeping(found, self.kept)

    def _object(self, locator: str) -> tuple[ObjectStore, str]:
        url, key = split_object_url(locator)
        return self.store(url), key


PLAIN: Final = Sources()
"""Stores as boto3 itself would reach them."""


@made_once(maxsize=32)
def _store(url: str, s3: S3Settings | None, process: int) -> ObjectStore:  # noqa: ARG001 - a fork makes its own
    return open_store(url, s3)


def _path(locator: str) -> str | None:
    """Return the path of a local file; None for an object."""
    if not is_store_url(locator):
        return locator
    path = local_path(locator)
    return None if path is None else str(path)


@contextmanager
def _explain_deletion() -> Iterator[None]:
    """Add what may have deleted an object that does not exist."""
    try:
        yield
    except ObjectNotFoundError as error:
        error.hint = error.hint or DELETED_HINT
        raise


def cut_locator(locator: str, size_bytes: int) -> str:
    """Return the locator of the first ``size_bytes`` of the log at ``locator``; its other files stay whole."""
    return f"cut={size_bytes}:{locator}"


def uncut(locator: str) -> tuple[str, int | None]:
    """Return the locator of the whole file, and how many bytes of it count; None for all of it."""
    found = _CUT.fullmatch(locator) if locator.startswith("cut=") else None
    if found is None:
        return locator, None
    return found[2], int(found[1]) if found[2].endswith("log") else None


class CutReader:
    """Reads the first bytes of another reader."""

    def __init__(self, reader: RangeReader, size_bytes: int) -> None:
        self._reader = reader
        self.locator = reader.locator
        self.size_bytes = min(size_bytes, reader.size_bytes)

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        return self._reader.read(position, min(length, max(self.size_bytes - position, 0)))
