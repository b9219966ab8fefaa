"""Readers of bytes by position, for a local file or bytes in memory; and a stream over a reader."""

from __future__ import annotations

import io
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from resnap.storage.disk import unread_error
from resnap.storage.errors import FileGoneError
from resnap.storage.whole_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


_SECOND: Final = 1_000_000_000
DELETED_HINT: Final = "retention may have deleted it since it was listed; run again"


class RangeReader(Protocol):
    """Bytes by position; short only at the end of the file."""

    @property
    def locator(self) -> str:
        """The locator of the bytes, for messages and for opening them again."""
        ...

    @property
    def size_bytes(self) -> int:
        """Length of the file when it was opened."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        ...


class FileFacts(NamedTuple):
    """Facts that show whether a file has changed since it was listed."""

    size_bytes: int
    mtime_ns: int
    inode: int
    """0 for an object."""

    def is_same(self, other: FileFacts) -> bool:
        """Whether both describe one unchanged file; stores list no inode, and some only seconds."""
        if 0 in (self.inode, other.inode):
            return (self.size_bytes, self.mtime_ns // _SECOND) == (other.size_bytes, other.mtime_ns // _SECOND)
        return self == other


class FileReader:
    """A local file, read by position, and open for as long as its context lasts."""

    def __init__(self, path: str) -> None:
        """Open ``path``.

        Raises:
            LogDirError: it does not exist, or cannot be read.

        """
        with translate_read_errors(path):
            # The descriptor is for machine code, too, which reads by itself.
            self.descriptor, self.size_bytes = open_regular(path)
        self.locator = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        os.close(self.descriptor)
        if isinstance(error, OSError):
            raise unread_error(self.locator, error) from error

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        return os.pread(self.descriptor, length, position)


class BytesReader:
    """Bytes in memory, read like a file."""

    def __init__(self, data: bytes, locator: str = "<memory>") -> None:
        self.locator = locator
        self.size_bytes = len(data)
        self._data = data

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        return self._data[position : position + length]


class ReaderStream(io.RawIOBase):
    """A stream over a reader, from its start."""

    def __init__(self, opened: AbstractContextManager[RangeReader]) -> None:
        self._closing = ExitStack()
        self._reader = self._closing.enter_context(opened)
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as io declares it
        """Fill ``buffer`` with the next bytes, fewer only at the end."""
        data = self._reader.read(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        """Close the stream, and drop reads that are still in flight."""
        self._closing.close()
        super().close()


@contextmanager
def translate_read_errors(path: str) -> Iterator[None]:
    """Translate the operating system's errors about a local file into ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileGoneError(f"{path}: the file is gone", hint=DELETED_HINT) from error
    except OSError as error:
        raise unread_error(path, error) from error
