"""An inspected file or object, open, with its kind and the facts that its name and neighbouring files give."""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import reading_given
from resnap.storage.errors import UsageError
from resnap.storage.layouts.aiven.members import MARK, stem_of
from resnap.storage.layouts.aiven.opening import named_member
from resnap.storage.log.names import OFFSET_DIGITS, FileKind, FileState, parse_file_name
from resnap.storage.log.producer_snapshot import ENTRY, HEADER, VERSION
from resnap.storage.log.record_batch import MAGIC_POSITION, MAGIC_V2
from resnap.storage.readers import FileReader, RangeReader
from resnap.storage.sources.files import PLAIN, Sources
from resnap.storage.stores.ranged_reader import ranged_reader
from resnap.storage.stores.urls import is_store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Kind(StrEnum):
    """What a file is; the value is what ``--kind`` takes."""

    SEGMENT = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    OFFSET_CHECKPOINT = "offset-checkpoint"
    LEADER_EPOCHS = "leader-epoch-checkpoint"
    PARTITION_METADATA = "partition.metadata"
    META_PROPERTIES = "meta.properties"
    QUORUM_STATE = "quorum-state"
    MANIFEST = "manifest"
    RSM_MANIFEST = "rsm-manifest"
    RSM_INDEXES = "indexes"
    TRANSACTION_STATE = "transaction-state"
    """A segment of ``__transaction_state`` by its records; a segment like others unless that is asked for."""


_PEEK_BYTES: Final = 256
_OFFSET: Final = re.compile(rf"[0-9]{{{OFFSET_DIGITS}}}|[0-9]+(?=_[\w-]{{22}}\.)")
_NAME = re.compile(
    rf"(?:\d{{{OFFSET_DIGITS}}}(?:-[^.]*)?|\d+_[\w-]{{22}})\.(?P<suffix>[a-z-]+)(?:\.(?:deleted|swap|cleaned|tmp))?"
)
"""Of a segment's files in a log dir, and of its objects in a store, which carry the segment's id, too.

So do the indexes that a broker has fetched from remote storage (``RemoteIndexCache``): offset, underscore, id.
"""


def leading_offset(name: str) -> int | None:
    """Return the offset that ``name`` begins with: in 20 digits, or before the underscore of a fetched index."""
    match = _OFFSET.match(name)
    return int(match[0]) if match else None


def kind_by_name(name: str) -> Kind | None:
    """Return what a file of this name is, in a log dir or in a store; None if the name does not say."""
    if name in {Kind.PARTITION_METADATA, Kind.META_PROPERTIES, Kind.LEADER_EPOCHS, Kind.QUORUM_STATE}:
        return Kind(name)
    if name.endswith("-offset-checkpoint"):
        return Kind.OFFSET_CHECKPOINT
    match = _NAME.fullmatch(name)
    suffix = match["suffix"] if match else ""
    return Kind(suffix) if suffix in set(Kind) else None


def kind_by_content(reader: RangeReader) -> Kind | None:
    """Return what a file looks like; None for the indexes, too, whose bytes have no mark."""
    start = reader.read(0, _PEEK_BYTES)
    return next((kind for kind, fits in _MARKS.items() if fits(start, reader.size_bytes)), None)


def _matches(pattern: bytes) -> Callable[[bytes, int], bool]:
    compiled = re.compile(pattern, re.MULTILINE)
    return lambda start, _: compiled.match(start) is not None


def _is_snapshot(start: bytes, size_bytes: int) -> bool:
    if len(start) < HEADER.size:
        return False
    version, _, count = HEADER.unpack_from(start)
    return bool(version == VERSION and size_bytes == HEADER.size + count * ENTRY.size)


def _is_segment(start: bytes, _: int) -> bool:
    # Offsets of real logs are far from using their first two bytes.
    return len(start) > MAGIC_POSITION and start[MAGIC_POSITION] <= MAGIC_V2 and start[:2] == bytes(2)


_MARKS: Final[dict[Kind, Callable[[bytes, int], bool]]] = {
    Kind.MANIFEST: _matches(rb"Obj\x01"),
    Kind.RSM_MANIFEST: _matches(rb'\s*\{\s*"version"\s*:\s*"?1"?\s*,\s*"chunkIndex"'),
    Kind.SNAPSHOT: _is_snapshot,
    Kind.PARTITION_METADATA: _matches(rb"version: ?\d+\s+topic_id:"),
    Kind.META_PROPERTIES: _matches(rb"(?:.*\n)*?(?:broker\.id|node\.id|cluster\.id)="),
    Kind.QUORUM_STATE: _matches(rb'\s*\{(?:.*\n)*?.*"leaderEpoch"\s*:'),
    Kind.LEADER_EPOCHS: _matches(rb"0\r?\n\d+\r?\n\d+ \d+\r?$"),
    Kind.OFFSET_CHECKPOINT: _matches(rb"0\r?\n\d+\r?\n(?:\S+ \d+ \d+\r?$|\Z)"),
    Kind.SEGMENT: _is_segment,
}
"""In the order of asking."""


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
    stem, member = stem_of(locator), named_member(sources, locator)
    if member is not None:
        with sources.open(member.locator) as reader:
            name = member.locator.rpartition("/")[2]
            yield OpenedFile(reader=reader, name=name, verify_crc=verify_crc, sources=sources)
        return
    if is_store_url(file):
        prefix, _, key = file.rpartition("/")
        ranges = {"ranges_in_flight": sources.ranges_in_flight, "range_bytes": sources.range_bytes}
        with ranged_reader(sources.store(prefix), key, **ranges) as reader:
            yield OpenedFile(reader=reader, name=key, verify_crc=verify_crc, stem=stem, sources=sources)
        return
    path = Path(file)
    with reading_given(path):
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
