"""Writes the files of a partition directory, several at a time: by threads of this process, or by Spark tasks.

Both use the same functions. A task may be repeated, or run twice at the same time, even after this run has ended: so
executors write into a directory of their own, under names of their own, and only this process moves the reported files
from there.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from resnap.storage.disk import TEMPORARY, Disk, write_new_file
from resnap.storage.errors import CancelledError, FormatError, VerificationError
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.sources.files import GONE
from resnap.storage.threads import Throttle, made_once
from resnap.tiering.restoring.restoration import HINT
from resnap.tiering.shipping.side_by_side import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from resnap.storage.disk import Dress
    from resnap.tiering.restoring.restoration import ShippedFile

GROUP_FILES: Final = 16
GROUP_BYTES: Final = 64 << 20
"""Files that are written one after the other are no more, and no larger, unless it is one alone."""

_R = TypeVar("_R")


class Flow(NamedTuple):
    """Limits the rate of bytes, and stops them when they are no longer wanted."""

    throttle: Throttle
    is_wanted: Callable[[], bool] = lambda: True

    def through(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield ``chunks``.

        Raises:
            CancelledError: they are no longer wanted.

        """
        for chunk in chunks:
            if not (self.is_wanted() and self.throttle.take(len(chunk), self.is_wanted)):
                raise CancelledError("the run was ended while files were written")
            yield chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Copier:
    """Runs work on the files of a partition; in this thread, unless ``threads`` are given."""

    throttle: Throttle = field(default_factory=Throttle)
    threads: Executor | None = None
    at_once: int = 1
    """Groups of files of a partition."""
    elsewhere: Callable[[Callable[[Flow], Any], int, Callable[[], bool]], Any] | None = None
    """Has an executor do work on so many bytes, if that is still wanted when one has room for it."""
    stop: Callable[[], None] = lambda: None
    """Ends what executors are at."""

    def each(self, work: Callable[[tuple[ShippedFile, ...], Flow], _R], files: Iterable[ShippedFile]) -> Iterator[_R]:
        """Yield what ``work`` returns for each group of ``files``, in order."""
        ended = Event()

        def wanted() -> bool:
            return not ended.is_set()

        def one(group: tuple[ShippedFile, ...]) -> _R:
            return self.run(partial(work, group), sum(file.size_bytes for file in group), wanted)

        if self.threads is None:
            yield from map(one, groups(files))
            return
        with closing(side_by_side(one, groups(files), self.at_once, ended.set, self.threads)) as begun:
            for _, result in begun:
                yield result()

    def run(self, work: Callable[[Flow], _R], size_bytes: int, wanted: Callable[[], bool] = lambda: True) -> _R:
        """Return the result of ``work`` on so many bytes, in this thread or another."""
        if self.elsewhere is None:
            return work(Flow(self.throttle, wanted))
        result: _R = self.elsewhere(work, size_bytes, wanted)
        return result


@dataclass(frozen=True, slots=True)
class FileTask:
    """Work on files for an executor; each of its processes moves so many bytes per second."""

    bytes_per_s: int | None

    def __call__(self, work: Callable[[Flow], _R]) -> _R:
        """Return the result."""
        return work(Flow(_throttle(self.bytes_per_s)))


@made_once(maxsize=4)
def _throttle(bytes_per_s: int | None) -> Throttle:
    return Throttle(bytes_per_s=bytes_per_s)


def groups(files: Iterable[ShippedFile]) -> Iterator[tuple[ShippedFile, ...]]:
    """Yield ``files`` in order, in groups that are written one after the other."""
    group: list[ShippedFile] = []
    size_bytes = 0
    for file in files:
        if group and (len(group) == GROUP_FILES or size_bytes + file.size_bytes > GROUP_BYTES):
            yield tuple(group)
            group, size_bytes = [], 0
        group.append(file)
        size_bytes += file.size_bytes
    if group:
        yield tuple(group)


def write_files(folder: Path, dress: Dress, disk: Disk, files: tuple[ShippedFile, ...], flow: Flow) -> tuple[int, int]:
    """Write ``files`` into ``folder``, which is not visible yet, and return their ``amount``.

    Raises:
        VerificationError: an object is not what its manifest says.
        LogDirError, StoreError: a file cannot be written, an object not be read.

    """
    for file in files:
        _write(disk, file, folder / file.name, dress, flow)
    return amount(files)


def amount(files: Iterable[ShippedFile]) -> tuple[int, int]:
    """Return the number of segments among ``files``, and the total size."""
    counted = [(file.name.endswith(f".{ObjectKind.LOG}"), file.size_bytes) for file in files]
    return sum(is_log for is_log, _ in counted), sum(size for _, size in counted)


def write_apart(
    folder: Path, dress: Dress, files: tuple[ShippedFile, ...], flow: Flow
) -> list[tuple[str, ShippedFile]]:
    """Write ``files`` into ``folder`` and return each with its name there; raises as ``write_files``."""
    named = [(f"{uuid4().hex}{TEMPORARY}", file) for file in files]
    for name, file in named:
        _write(Disk(), file, folder / name, dress, flow)
    return named


def _write(disk: Disk, file: ShippedFile, path: Path, dress: Dress, flow: Flow) -> None:
    try:
        with file.open() as chunks:
            written = write_new_file(disk, path, flow.through(chunks), dress)
    except GONE as error:
        raise VerificationError(f"{file.source}: missing, though a manifest names it", hint=HINT) from error
    except FormatError as error:
        raise VerificationError(str(error), hint=HINT) from error
    if written.size_bytes != file.size_bytes or file.digest not in (None, written):
        raise VerificationError(f"{file.source}: other bytes than its manifest says", hint=HINT)
