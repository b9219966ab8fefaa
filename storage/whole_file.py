"""Reads and writes small files whole; only regular files of limited size are read.

A user with write access to a directory may put a pipe there, on which a reader would block for ever, or a link to an
endless device. Resnap's own small files, such as plans and states, are written whole or not at all. Files of a broker's
log dir are changed by ``disk`` instead, which also keeps their owner and mode.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Final
from uuid import uuid4

if TYPE_CHECKING:
    from pathlib import Path

MOST_SMALL_BYTES: Final = 16 << 20
"""The largest checkpoint or file of properties: of a hundred thousand partitions, some 5 MB."""
MOST_BYTES: Final = 1 << 31
"""The largest snapshot or index: Kafka's own positions in files end here."""
_NO_ACCESS_TIME: Final = getattr(os, "O_NOATIME", 0)


def open_regular(path: str | Path) -> tuple[int, int]:
    """Return a descriptor of the regular file ``path``, for reading, and its length in bytes.

    If we own the file its access time is not updated, which saves work at every read.

    Raises:
        OSError: it does not exist, is not a regular file, or cannot be read.

    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # else opening a pipe waits for a writer
    try:
        descriptor = os.open(path, flags | _NO_ACCESS_TIME)
    except PermissionError:
        descriptor = os.open(path, flags)
    status = check_regular(descriptor, path)
    os.set_blocking(descriptor, True)
    return descriptor, status.st_size


def open_file(path: str | Path) -> BinaryIO:
    """Return the regular file ``path``, open for reading; raises as ``open_regular``."""
    return open(path, "rb", opener=lambda name, _: open_regular(name)[0])


def open_for_writing(path: str | Path, flags: int) -> int:
    """Return a descriptor of the regular file ``path``, for writing; it is created if it does not exist.

    ``flags`` are those of ``os.open`` besides, such as ``os.O_APPEND``. Raises as ``open_regular``.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o666)
    check_regular(descriptor, path)
    return descriptor


def check_regular(descriptor: int, path: str | Path) -> os.stat_result:
    """Return the status of the open file ``path``; if it is not a regular one, it is closed.

    Raises:
        OSError: it is not a regular file.

    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return status


def read_whole(path: str | Path, most_bytes: int = MOST_SMALL_BYTES) -> bytes:
    """Return the content of the regular file ``path``; raises as ``open_regular``, also if it is too large."""
    descriptor, size_bytes = open_regular(path)
    try:  # a ``FileIO`` asks three times more of the kernel, and takes twice the time for a small file
        if size_bytes <= most_bytes:
            data = b"".join(iter(partial(os.read, descriptor, size_bytes + 4096), b""))
            if len(data) <= most_bytes:
                return data
    finally:
        os.close(descriptor)
    raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", str(path))


def write_whole(path: Path, parts: tuple[bytes | memoryview, ...]) -> None:
    """Write ``parts`` one after the other to ``path``: all of them, or nothing, also after a loss of power.

    Which of both that leaves is certain only after ``sync_directory``, which a cache can do without.

    Raises:
        OSError: the file cannot be written; ``path`` is as it was.

    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_directory(path: Path) -> None:
    """Make the entries of the directory ``path`` durable; raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
