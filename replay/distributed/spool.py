"""A place on disk for what comes in any order and is needed in one: bodies in a file, their places in memory.

What a task combines may be larger than its memory. So bodies go to a temporary file as they come, and are read back one
by one in the order of their places.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

IN_MEMORY_BYTES: Final = 16 << 20
"""What is smaller never meets a disk."""


class Stored(NamedTuple):
    """Something that was put into a spool."""

    place: tuple[int, ...]
    read: Callable[[], bytes]
    """Gives its body, as often as it is called."""


class Spool(AbstractContextManager["Spool"]):
    """Takes bodies with their places; gives them back by rising place."""

    def __init__(self, *, in_memory_bytes: int = IN_MEMORY_BYTES) -> None:
        self._file = SpooledTemporaryFile(in_memory_bytes)  # noqa: SIM115 - closed with the spool
        self._placed: list[tuple[tuple[int, ...], int, int]] = []
        self._end = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, place: tuple[int, ...], body: bytes) -> None:
        """Put ``body`` at ``place``, which no other may have."""
        self._file.seek(self._end)
        self._file.write(body)
        self._placed.append((place, self._end, len(body)))
        self._end += len(body)

    def ordered(self) -> Iterator[Stored]:
        """Yield everything by rising place; nothing may be added any more."""
        self._placed.sort()
        for place, start, length in self._placed:
            yield Stored(place, self._reader(start, length))

    def _reader(self, start: int, length: int) -> Callable[[], bytes]:
        def read() -> bytes:
            self._file.seek(start)
            return self._file.read(length)

        return read
