"""Sorts data on disk: bodies are written in any order and read back in the order of their places.

The input of a combining task may exceed its memory. So bodies are written to a temporary file as they arrive, and read
back one by one in the order of their places, which stay in memory.
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
    """A body in a spool."""

    place: tuple[int, ...]
    read: Callable[[], bytes]
    """Gives its body, as often as it is called."""


class Spool(AbstractContextManager["Spool"]):
    """Stores bodies with their places; returns them by ascending place."""

    def __init__(self, *, in_memory_bytes: int = IN_MEMORY_BYTES) -> None:
        self._file = SpooledTemporaryFile(in_memory_bytes)  # noqa: SIM115 - closed with the spool
        self._placed: list[tuple[tuple[int, ...], int, int]] = []
        self._end = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, place: tuple[int, ...], body: bytes) -> None:
        """Store ``body`` at ``place``, which must be unique."""
        self._file.seek(self._end)
        self._file.write(body)
        self._placed.append((place, self._end, len(body)))
        self._end += len(body)

    def ordered(self) -> Iterator[Stored]:
        """Yield all bodies by ascending place; nothing may be added after that."""
        self._placed.sort()
        for place, start, length in self._placed:
            yield Stored(place, self._reader(start, length))

    def _reader(self, start: int, length: int) -> Callable[[], bytes]:
        def read() -> bytes:
            self._file.seek(start)
            return self._file.read(length)

        return read
