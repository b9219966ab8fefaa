"""Opens the files of a segment in the layout ``aiven`` by their locators; they are pieces of the segment's objects.

Objects are opened through an ``Opener``. A manifest is read once for all files of its segment, and cached for a minute:
a repair replaces the manifest, but leaves in place everything that the old one names.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from resnap.storage.encryption import DataKeyError
from resnap.storage.errors import ConfigurationError, FileGoneError, FormatError, ObjectNotFoundError, in_file
from resnap.storage.layouts.aiven.manifest import read_manifest
from resnap.storage.layouts.aiven.members import (
    INDEXES,
    KEY_PARTS,
    LOG,
    LOG_FILE,
    MANIFEST,
    Member,
    SegmentDecoder,
    index_size,
    member_of,
    parse_key,
    stem_of,
)
from resnap.storage.readers import BytesReader, FileFacts, RangeReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from resnap.storage.encryption import KeyRing, WrappedKey
    from resnap.storage.stores.protocol import ObjectStore

_KEYS_TRIED: Final = 16
"""Data keys that are tried before a private key counts as the wrong one."""
_KEPT_S: Final = 60
_LOST: Final = "what is encrypted under a data key that is lost cannot be read: only another copy of the manifest helps"


class Opener(Protocol):
    """Opens locators of objects, as ``storage.sources.files.Sources`` does; a hashable value."""

    def __hash__(self) -> int: ...

    @property
    def keys(self) -> KeyRing:
        """The private keys for encrypted segments."""
        ...

    def open(self, locator: str, *, end: int | None = None) -> AbstractContextManager[RangeReader]:
        """Open an object, or a file, for as long as the context lasts."""
        ...

    def read(self, locator: str) -> bytes:
        """Return the whole object or file."""
        ...

    def read_range(self, locator: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end)."""
        ...

    def facts(self, locator: str) -> FileFacts:
        """Return its size and modification time."""
        ...

    def store(self, url: str) -> ObjectStore:
        """Return the store at ``url``."""
        ...


@contextmanager
def open_member(opener: Opener, member: Member, end: int | None) -> Iterator[RangeReader]:
    """Open a file of a segment for as long as the context lasts; nothing is read ahead beyond ``end``.

    Raises:
        FormatError: its manifest, or the file, is damaged.
        ConfigurationError: it is encrypted, and its private key is missing.
        ObjectNotFoundError: the segment has no such file.

    """
    segment = stored_segment(opener, member.stem)
    if member.suffix == LOG_FILE:
        with opener.open(f"{member.stem}.{LOG}", end=segment.stored_end(end)) as stored:
            yield segment.open_log(stored, member.locator)
        return
    place, indexes = segment.index_range(member.suffix), f"{member.stem}.{INDEXES}"
    if place is None:
        raise ObjectNotFoundError(f"{member.locator}: the segment has none", key=member.locator)
    piece = opener.read_range(indexes, place.position, place.position + place.size) if place.size else b""
    with in_file(member.locator):
        data = segment.index(piece, place)
    yield BytesReader(data, member.locator)


def facts_of_member(opener: Opener, member: Member) -> FileFacts:
    """Return size and time of the file itself, if the objects that hold it are as its manifest says."""
    segment = stored_segment(opener, member.stem)
    if member.suffix != LOG_FILE:
        found = opener.facts(f"{member.stem}.{INDEXES}")
        return FileFacts(index_size(segment.manifest, member.suffix) or 0, found.mtime_ns, 0)
    found, chunks = opener.facts(f"{member.stem}.{LOG}"), segment.manifest.chunks
    size = chunks.file_size if found.size_bytes == chunks.stored_size else -found.size_bytes
    return FileFacts(size, found.mtime_ns, 0)


def named_member(opener: Opener, locator: str) -> Member | None:
    """Return the file that ``locator`` names; the locator of a ``.log`` object names the segment's log."""
    stem = stem_of(locator)
    if stem is None or not locator.endswith(f".{LOG}"):
        return member_of(locator)
    try:
        opener.facts(f"{stem}.{MANIFEST}")
    except (FileGoneError, ObjectNotFoundError):
        return None
    return Member(stem, LOG_FILE)


def stored_segment(opener: Opener, stem: str) -> SegmentDecoder:
    """Return how the segment is stored whose object locators begin with ``stem``.

    Raises:
        FormatError: its manifest is damaged.
        ConfigurationError: it is encrypted, and its private key is missing.
        FileGoneError, ObjectNotFoundError: the manifest does not exist.
        LogDirError, StoreError: it cannot be read.

    """
    try:
        return _segment(stem, opener, os.getpid(), int(monotonic() // _KEPT_S))
    except DataKeyError as error:
        if not _opens_others("/".join(stem.split("/")[:-KEY_PARTS]), opener, os.getpid()):
            raise ConfigurationError(str(error), hint=error.hint) from error
        with in_file(f"{stem}.{MANIFEST}"):
            raise FormatError("manifest: dataKey", position=0, found="another", expected="one that the private key"
                              " opens, as it opens those of other segments", hint=_LOST) from error  # fmt: skip


def forget_segments() -> None:
    """Drop all cached manifests, since a repair may have replaced them."""
    _segment.cache_clear()


@lru_cache(maxsize=256)
def _segment(stem: str, opener: Opener, process: int, minute: int) -> SegmentDecoder:  # noqa: ARG001 - as said below
    """Return the manifest, cached for a minute; a forked process reads it again."""
    locator = f"{stem}.{MANIFEST}"
    with in_file(locator):
        manifest = read_manifest(opener.read(locator))
    try:
        return SegmentDecoder.of(manifest, opener.keys)
    except ConfigurationError as error:
        raise type(error)(f"{locator}: {error}", hint=error.hint) from error


@lru_cache(maxsize=32)
def _opens_others(url: str, opener: Opener, process: int) -> bool:  # noqa: ARG001 - as above
    """Return whether the private keys open other segments below ``url``, of which a few are tried."""
    store = opener.store(url)
    encrypted = (key for info in store.list() if (key := _encryption_of(store, info.key)) is not None)
    return any(_is_opened(key, opener.keys) for key in islice(encrypted, _KEYS_TRIED))


def _encryption_of(store: ObjectStore, key: str) -> WrappedKey | None:
    """Return the encryption of the segment whose manifest is at ``key``; None for any other object."""
    if not key.endswith(f".{MANIFEST}") or parse_key(key) is None:
        return None
    try:
        return read_manifest(store.get(key)).encryption
    except (FormatError, ObjectNotFoundError):
        return None


def _is_opened(encryption: WrappedKey, keys: KeyRing) -> bool:
    try:
        keys.cipher(encryption)
    except ConfigurationError:
        return False
    return True
