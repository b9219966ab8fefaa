"""Random access to the bytes of one file, wherever it lies: what a scan reads segments through.

A reader is opened from a locator, a plain string, because a string is what travels to Spark's executors.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from storage.errors import LogDirError

if TYPE_CHECKING:
    from collections.abc import Iterator


class RangeReader(Protocol):
    """Bytes at positions; short only at the end of the file."""

    @property
    def locator(self) -> str:
        """Where the bytes come from, for messages and for opening again."""
        ...

    @property
    def size_bytes(self) -> int:
        """Length of the file when it was opened."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        ...


class FileReader:
    """A local file, read by position."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.locator = path
        self.size_bytes = os.fstat(descriptor).st_size
        self._descriptor = descriptor

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        return os.pread(self._descriptor, length, position)


class BytesReader:
    """Bytes in memory, read as if they were a file."""

    def __init__(self, data: bytes, locator: str = "<memory>") -> None:
        self.locator = locator
        self.size_bytes = len(data)
        self._data = data

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        return self._data[position : position + length]


@contextmanager
def open_reader(locator: str) -> Iterator[RangeReader]:
    """Open the local file ``locator`` for as long as the context lasts.

    Raises:
        LogDirError: it is gone, or may not be read.

    """
    try:
        descriptor = os.open(locator, os.O_RDONLY)
    except FileNotFoundError as error:
        hint = "retention may have deleted it since the log directory was listed; run again"
        raise LogDirError(f"{locator}: the file is gone", hint=hint) from error
    except OSError as error:
        hint = "give the user who runs resnap read access (the broker's group, usually)"
        raise LogDirError(f"{locator}: cannot be opened: {error.strerror}", hint=hint) from error
    try:
        yield FileReader(locator, descriptor)
    except OSError as error:
        raise LogDirError(f"{locator}: cannot be read: {error.strerror}", hint="check the disk") from error
    finally:
        os.close(descriptor)
