"""An inspected file or object, open, with the facts that its name and neighbouring files give."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING

from resnap.scheduler.verbs.inspect.file_kinds import leading_offset
from resnap.storage.disk import readable
from resnap.storage.errors import UsageError
from resnap.storage.layouts.aiven.members import MARK, stem_of
from resnap.storage.layouts.aiven.opening import member_meant
from resnap.storage.log.names import FileKind, FileState, parse_file_name
from resnap.storage.readers import FileReader, RangeReader
from resnap.storage.sources.files import PLAIN, Sources
from resnap.storage.stores.urls import is_store_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.stores.protocol import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """A file that is open."""

    reader: RangeReader
    name: str
    verify_crc: bool
    shows_validity: bool = False
    """Whether a wrong checksum is shown as a fact, and is not damage."""
    is_active: bool = False
    """Whether this is the last segment of a directory, which a broker may be writing."""
    log_size: int | None = None
    """Size of the segment beside an index, if there is one."""
    log_dir: Path | None = None
    """The directory above that of the file, which of a partition's file is the log dir; None in a store."""
    stem: str | None = None
    """What locators of the same segment's objects begin with, where these hold it in pieces."""
    sources: Sources = PLAIN
    """How these are reached."""

    @property
    def base_offset(self) -> int | None:
        """The number in front of the name, which for a snapshot is the offset it stands for."""
        return leading_offset(self.name)

    def content(self) -> bytes:
        """Return all bytes."""
        return self.reader.read(0, self.reader.size_bytes)


class _ObjectReader:
    """An object of a store, read in ranges."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self.locator = f"{store.url}/{key}"
        self.size_bytes = store.head(key).size_bytes
        self._store, self._key = store, key

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        return self._store.get_range(self._key, position, position + length)


@contextmanager
def opened_file(file: str, sources: Sources, *, verify_crc: bool) -> Iterator[OpenedFile]:
    """Open ``file``, a path or the URL of an object, for as long as the context lasts.

    A segment that is stored in pieces is opened as what it was, whatever its ``.log`` object holds, if its manifest is
    beside it.

    Raises:
        UsageError: there is no such file, or it is a directory.
        LogDirError: it cannot be read.
        StoreError: likewise, of a store.

    """
    locator = _locator(file)
    stem, member = stem_of(locator), member_meant(sources, locator)
    if member is not None:
        with sources.open(member.locator) as reader:
            name = member.locator.rpartition("/")[2]
            yield OpenedFile(reader=reader, name=name, verify_crc=verify_crc, sources=sources)
        return
    if is_store_url(file):
        prefix, _, key = file.rpartition("/")
        reader = _ObjectReader(sources.store(prefix), key)
        yield OpenedFile(reader=reader, name=key, verify_crc=verify_crc, stem=stem, sources=sources)
        return
    path = Path(file)
    with readable(path):
        if S_ISDIR(path.stat().st_mode):
            shown = f"`resnap scan {shlex.quote(str(path))}` shows a log dir or a partition"
            raise UsageError(f"{file} is a directory", hint=f"give one file of it; {shown}")
        is_active, log_size = _is_active(path), _log_size(path)
    with FileReader(file) as reader:
        yield OpenedFile(
            reader=reader,
            name=path.name,
            verify_crc=verify_crc,
            is_active=is_active,
            log_size=log_size,
            log_dir=path.absolute().parent.parent,
            stem=stem,
            sources=sources,
        )


def _locator(file: str) -> str:
    """Return the URL of ``file``, a path or a URL; what is behind the mark of a segment's file stays as it is."""
    if is_store_url(file):
        return file
    path, mark, suffix = file.rpartition(MARK)
    return f"{Path(path if mark else file).absolute().as_uri()}{mark}{suffix if mark else ''}"


def _is_active(path: Path) -> bool:
    """Whether no live segment follows this one in its directory."""
    offset = _live_segment(path.name)
    if offset is None:
        return False
    others = (_live_segment(other.name) for other in path.parent.iterdir())
    return all(other is None or other <= offset for other in others)


def _live_segment(name: str) -> int | None:
    file = parse_file_name(name)
    return file.offset if file and file.kind is FileKind.LOG and file.state is FileState.LIVE else None


def _log_size(path: Path) -> int | None:
    log = path.with_suffix(".log")
    return log.stat().st_size if log.is_file() else None
