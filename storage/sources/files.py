"""Files wherever they lie, opened and read by locator: a path, or the URL of an object.

A locator is a plain string because a string is what travels to Spark's executors; ``Sources`` travels with it and knows
how stores are reached. Segments are read by position (``readers``), the small files beside them whole. A file that lies
in pieces inside other objects, as in the layout ``aiven``, has a locator and is read like any other.
"""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Final

from resnap.storage.errors import ConfigurationError, FileGoneError, FormatError, ObjectNotFoundError, in_file
from resnap.storage.layouts.aiven.encryption import NO_KEYS, DataKeyError, KeyRing
from resnap.storage.layouts.aiven.keys import INDEXES, LOG, MANIFEST, parse_key
from resnap.storage.layouts.aiven.manifest import read_manifest
from resnap.storage.layouts.aiven.members import LOG_FILE, Member, StoredSegment, member_of
from resnap.storage.readers import (
    DELETED_HINT,
    BytesReader,
    FileFacts,
    RangeReader,
    ReaderStream,
    open_reader,
    readable,
)
from resnap.storage.sources.cut_log import CutReader, uncut
from resnap.storage.stores.ranged_reader import RANGE_BYTES, RANGES_IN_FLIGHT, ranged_reader
from resnap.storage.stores.urls import is_store_url, local_path, open_store, split_object_url
from resnap.storage.whole_file import MOST_BYTES, open_file, read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.layouts.aiven.manifest import Encryption
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.storage.stores.s3_settings import S3Settings

STREAM_BYTES: Final = 1 << 20
_KEY_PARTS: Final = 3
"""Parts of the key of an object of the layout ``aiven``, without its prefix."""
_KEYS_TRIED: Final = 16
"""Data keys that are tried before a private key counts as the wrong one."""
_LOST: Final = "what is encrypted under a data key that is lost cannot be read: only another copy of the manifest helps"
GONE: Final = (FileGoneError, ObjectNotFoundError)
"""What is raised of a file that is not there, wherever that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """How locators are opened; a plain value, so that it travels to executors.

    A path, a ``file://`` or ``s3://`` URL means the same in every process that reaches it; ``memory://`` only in the
    one that wrote it.
    """

    s3: S3Settings | None = None
    ranges_in_flight: int = RANGES_IN_FLIGHT
    range_bytes: int = RANGE_BYTES
    """At most the product of the two is held of an object at a time."""
    keys: KeyRing = NO_KEYS
    """What encrypted segments are read by."""

    @contextmanager
    def open(self, locator: str, *, end: int | None = None) -> Iterator[RangeReader]:
        """Open ``locator`` for as long as the context lasts; of an object nothing is read ahead from ``end`` on.

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
            with self._open_member(member, end) as reader:
                yield reader
            return
        path = _path(whole)
        if path is not None:
            with open_reader(path) as reader:
                yield reader
            return
        store, key = self._object(whole)
        with (
            _deletion_explained(),
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
            with readable(path):
                return read_whole(path, MOST_BYTES)
        store, key = self._object(place)
        with _deletion_explained():
            return store.get(key)

    def read_range(self, locator: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a small file, fewer where it ends before; raises as ``read`` does."""
        place, cut = uncut(locator)
        if cut is not None or member_of(place) is not None or _path(place) is not None:
            with self.open(locator) as reader:
                return reader.read(start, end - start)
        store, key = self._object(place)
        with _deletion_explained():
            return store.get_range(key, start, end)

    def facts(self, locator: str) -> FileFacts:
        """Return size and time without reading; raises as ``read`` does."""
        locator, cut = uncut(locator)
        if cut is not None:
            found = self.facts(locator)
            return found._replace(size_bytes=min(cut, found.size_bytes))
        member = member_of(locator)
        if member is not None:
            return self._member_facts(member)
        path = _path(locator)
        if path is not None:
            with readable(path):
                status = os.stat(path)  # noqa: PTH116 - as above
            return FileFacts(status.st_size, status.st_mtime_ns, status.st_ino)
        store, key = self._object(locator)
        with _deletion_explained():
            info = store.head(key)
        return FileFacts(info.size_bytes, info.modified_ms * 1_000_000, 0)

    def store(self, url: str) -> ObjectStore:
        """Return the store at ``url``; a process makes one client for the same store, and keeps it.

        Raises:
            UsageError: not the URL of a store.

        """
        return _store(url, self.s3, os.getpid())

    def segment(self, stem: str) -> StoredSegment:
        """Return how the segment is stored whose objects' locators begin with ``stem``; raises as ``read`` does.

        Raises:
            FormatError: its manifest is damaged.
            ConfigurationError: it is encrypted, and its private key is not at hand.

        """
        try:
            return _segment(stem, self, os.getpid())
        except DataKeyError as error:
            if not _opens_others("/".join(stem.split("/")[:-_KEY_PARTS]), self, os.getpid()):
                raise ConfigurationError(str(error), hint=error.hint) from error
            with in_file(f"{stem}.{MANIFEST}"):
                raise FormatError("manifest: dataKey", position=0, found="another", expected="one that the private key"
                                  " opens, as it opens those of other segments", hint=_LOST) from error  # fmt: skip

    @contextmanager
    def _open_member(self, member: Member, end: int | None) -> Iterator[RangeReader]:
        segment = self.segment(member.stem)
        if member.suffix == LOG_FILE:
            with self.open(f"{member.stem}.{LOG}", end=segment.stored_end(end)) as stored:
                yield segment.open_log(stored, member.locator)
            return
        place, indexes = segment.index_range(member.suffix), f"{member.stem}.{INDEXES}"
        if place is None:
            raise ObjectNotFoundError(f"{member.locator}: the segment has none", key=member.locator)
        piece = self.read_range(indexes, place.position, place.position + place.size) if place.size else b""
        with in_file(member.locator):
            data = segment.index(piece, place)
        yield BytesReader(data, member.locator)

    def _member_facts(self, member: Member) -> FileFacts:
        """Return what the file itself would show, while the objects it lies in are as its manifest says."""
        segment = self.segment(member.stem)
        if member.suffix != LOG_FILE:
            found = self.facts(f"{member.stem}.{INDEXES}")
            return FileFacts(segment.index_size(member.suffix) or 0, found.mtime_ns, 0)
        found, chunks = self.facts(f"{member.stem}.{LOG}"), segment.manifest.chunks
        size = chunks.file_size if found.size_bytes == chunks.stored_size else -found.size_bytes
        return FileFacts(size, found.mtime_ns, 0)

    def _object(self, locator: str) -> tuple[ObjectStore, str]:
        url, key = split_object_url(locator)
        return self.store(url), key


PLAIN: Final = Sources()
"""Stores as boto3 itself would reach them."""


@lru_cache(maxsize=32)
def _store(url: str, s3: S3Settings | None, process: int) -> ObjectStore:  # noqa: ARG001 - a fork makes its own
    return open_store(url, s3)


@lru_cache(maxsize=256)
def _segment(stem: str, sources: Sources, process: int) -> StoredSegment:  # noqa: ARG001 - as above
    """Read a manifest, once for all files of the segment: nobody changes one that is there."""
    locator = f"{stem}.{MANIFEST}"
    with in_file(locator):
        manifest = read_manifest(sources.read(locator))
    try:
        return StoredSegment.of(manifest, sources.keys)
    except ConfigurationError as error:
        raise type(error)(f"{locator}: {error}", hint=error.hint) from error


@lru_cache(maxsize=32)
def _opens_others(url: str, sources: Sources, process: int) -> bool:  # noqa: ARG001 - as above
    """Whether the private keys at hand open segments below ``url``, of which a few are tried."""
    store = sources.store(url)
    encrypted = (key for info in store.list() if (key := _encrypted(store, info.key)) is not None)
    return any(_is_opened(key, sources.keys) for key in islice(encrypted, _KEYS_TRIED))


def _encrypted(store: ObjectStore, key: str) -> Encryption | None:
    """Return how the segment is encrypted whose manifest lies under ``key``; None of every other object."""
    if not key.endswith(f".{MANIFEST}") or parse_key(key) is None:
        return None
    try:
        return read_manifest(store.get(key)).encryption
    except (FormatError, ObjectNotFoundError):
        return None


def _is_opened(encryption: Encryption, keys: KeyRing) -> bool:
    try:
        keys.cipher(encryption.data_key, encryption.aad)
    except ConfigurationError:
        return False
    return True


def _path(locator: str) -> str | None:
    """Return the path of a local file; None for an object."""
    if not is_store_url(locator):
        return locator
    path = local_path(locator)
    return None if path is None else str(path)


@contextmanager
def _deletion_explained() -> Iterator[None]:
    """Say what may have become of an object that is not there."""
    try:
        yield
    except ObjectNotFoundError as error:
        error.hint = error.hint or DELETED_HINT
        raise
