"""Every error that Resnap raises on purpose: one short tree, divided by whose fault the error is.

    ResnapError
      UsageError               the caller asked for something that makes no sense (exit 2)
      ConfigurationError       a setting is wrong or missing (exit 10)
      DataError                the bytes are not what Kafka writes (exit 1)
        FormatError            ... at a position of a file
        MetadataLogError       a metadata log lacks a part, or contradicts itself
          MetadataVersionError ... or depends on records of a version that this release does not know
      LogDirError              a log directory cannot be read or written (exit 1)
        FileGoneError          a file of it is no longer there
        LogDirInUseError       a broker, or another run, holds its lock (exit 14)
      StoreError               an object store said no (exit 12)
        ObjectNotFoundError
        ObjectExistsError      a conditional write found the key taken
        ObjectChangedError     an object was replaced while it was read
        StoreAccessError       credentials, permissions, no such bucket
        StoreFullError         no room left
        StoreUnavailableError  transient: worth trying again
        TooLargeError          the store takes no request of this size
        UnsupportedError       the store does not know a part of the request
        UploadGoneError        the store no longer knows a multipart upload; it may be tried again as a whole
      VerificationError      what was read back differs from what was written or recomputed (exit 13)
      ClusterError             a running cluster did not answer, or refused (exit 16)
      LostProducerStateError   a replica lacks producer state that another one has (exit 4)
      StalePlanError           the plan depends on something that has changed (exit 15)
      LockedError              another run is at the same work (exit 11)
      CancelledError           the work was asked to end (exit 130)
      LimitError               this process may have no more files, threads or memory (exit 1)

Anything else that escapes is a bug, and is left to crash. A message says what, where, what was expected and what was
found, in lower case and without a full stop; ``hint`` says what to do next.

``install_hint`` gives the command that installs an optional part of Resnap. ``INSTALLED_FROM`` is the argument for
installers: a clone, until a release is published. Then it becomes the name of the distribution, and README.md and
CONTRIBUTING.md (*A release*) change with it.
"""

from __future__ import annotations

import errno
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INSTALLED_FROM: Final = "."
LEAST_ADDRESS_SPACE_BYTES: Final = 1 << 30
"""Twice what replaying a small log took on two cores; libraries set aside more than they use."""
_FAULTS: Final = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""The errors of a disk, or of a network file system."""
_DISK_HINT: Final = "check that disk, and its free space, and run the same command again"
_MORE: Final = "raise the limit of {}, or do less at once (--threads, --parallel), and run the same command again"
_NO_THREAD: Final = "can't start new thread"


class ResnapError(Exception):
    """Root of the tree; ``transient`` says whether the same call may succeed later."""

    exit_code: ClassVar[int] = 1
    transient: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(ResnapError):
    """The request contradicts itself or names something that does not exist."""

    exit_code = 2


class ConfigurationError(ResnapError):
    """A setting cannot be used; the message names the setting and where it came from."""

    exit_code = 10


class DataError(ResnapError):
    """Bytes or values that Kafka would not have written."""


class FormatError(DataError):
    """Bad bytes at a position.

    Codecs know the position, edges know the file: ``in_file`` joins the two.

    Attributes:
        file: path or key, once known.
        position: byte offset of the offending field from the start of the file.

    """

    def __init__(
        self, what: str, *, position: int, expected: object = None, found: object = None, hint: str | None = None
    ) -> None:
        self.what = what
        self.position = position
        self.expected = expected
        self.found = found
        self.file: str | None = None
        super().__init__(what, hint=hint)

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file else ""
        text = f"{where}{self.what} at byte {self.position}"
        if self.expected is not None:
            text += f": expected {self.expected}"
            if self.found is not None:
                text += f", found {self.found}"
        elif self.found is not None:
            text += f": found {self.found}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        """Keep all fields when pickled: the error travels from Spark's workers to the driver."""
        return (_restored_format_error, (self.__dict__,))


class MetadataLogError(DataError):
    """The bytes can be read, but the metadata log contradicts itself or lacks a part."""


class MetadataVersionError(MetadataLogError):
    """Records that the result depends on have a type or version newer than this release knows."""


def _restored_format_error(fields: dict[str, object]) -> FormatError:
    error = FormatError.__new__(FormatError, fields["what"])
    error.__dict__.update(fields)
    return error


@contextmanager
def add_hint(hint: str) -> Iterator[None]:
    """Add ``hint`` to a ``FormatError`` that passes through without one."""
    try:
        yield
    except FormatError as error:
        error.hint = error.hint or hint
        raise


def parser_says(error: Exception) -> str:
    """Return the error message of another project's parser, on one short line."""
    if isinstance(error, KeyError):
        return f"nothing under {error}"
    return ascii(str(error)[:120])[1:-1] or type(error).__name__


@contextmanager
def in_file(file: str | Path) -> Iterator[None]:
    """Add the file name ``file`` to a ``FormatError`` that passes through without one."""
    try:
        yield
    except FormatError as error:
        if error.file is None:
            error.file = str(file)
        raise


class LogDirError(ResnapError):
    """A log directory, or something in it, cannot be used."""


class FileGoneError(LogDirError):
    """A file does not exist; if it was listed, the broker has deleted it since."""


class LogDirInUseError(LogDirError):
    """Another process holds the lock of a log directory that is to be changed."""

    exit_code = 14


class StoreError(ResnapError):
    """An object store refused or failed; ``key`` is the object concerned, when there is one."""

    exit_code = 12

    def __init__(self, message: str, *, key: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class ObjectNotFoundError(StoreError):
    """No object under this key."""


class ObjectExistsError(StoreError):
    """A conditional write found an existing object, which is unchanged."""


class ObjectChangedError(StoreError):
    """The object was replaced while it was read; the bytes already read are of no use."""


class StoreAccessError(StoreError):
    """The store denies access: credentials, permissions, or a bucket that does not exist."""


class StoreFullError(StoreError):
    """The store has no room left."""


class StoreUnavailableError(StoreError):
    """The store did not answer, or asked for a retry later: after ``retry_after_s``, if it says so."""

    transient = True

    def __init__(
        self, message: str, *, key: str | None = None, hint: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, key=key, hint=hint)
        self.retry_after_s = retry_after_s


class TooLargeError(StoreError):
    """The store takes no request of this size; it may take the same body in parts."""


class UnsupportedError(StoreError):
    """The store does not know a part of the request, such as a checksum or a condition."""


class UploadGoneError(StoreError):
    """The store no longer knows a multipart upload: completed, if the answer was lost, or aborted."""

    transient = True


class VerificationError(ResnapError):
    """What was read back differs from what was written or recomputed."""

    exit_code = 13


class ClusterError(ResnapError):
    """A running cluster did not answer, or refused."""

    exit_code = 16


class LostProducerStateError(ResnapError):
    """A replica of a running cluster lacks producer state that another one has."""

    exit_code = 4


class StalePlanError(ResnapError):
    """Something that a saved plan depends on has changed since."""

    exit_code = 15


class CancelledError(ResnapError):
    """The work was cancelled; no part of it may treat this as its own failure and continue."""

    exit_code = 130


class LockedError(ResnapError):
    """Another run does the same work; the message says which, and since when."""

    exit_code = 11


class LimitError(ResnapError):
    """The system refuses this process more of a resource: files, threads, processes or memory."""


def fault_of_machine(error: BaseException) -> ResnapError | None:
    """Return which limit of the system, or fault of a disk, ``error`` reports, None if it reports none.

    Such errors can come from anywhere, even from imports and from printing, and are not a bug.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in {errno.EMFILE, errno.ENFILE}:
        hint = _MORE.format("open files (ulimit -n, LimitNOFILE=)")
        return LimitError(f"too many files are open: {error}", hint=hint)
    is_fork = number == errno.EAGAIN and "write" not in str(error)  # as the system says that it starts no process
    if is_fork or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD):
        # Of memory a thread needs its stack, and the system names no cause.
        is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        memory = " and of memory (ulimit -v)" if is_limited else ""
        hint = _MORE.format(f"processes and threads (ulimit -u, TasksMax=, pids.max of the container){memory}")
        return LimitError("no more processes or threads can be started", hint=hint)
    if number == errno.ENOMEM or isinstance(error, MemoryError):
        hint = _MORE.format("memory (ulimit -v, MemoryMax=, the container's)")
        return LimitError("there is no more memory", hint=hint)
    if number in _FAULTS and isinstance(error, OSError):
        what = error.filename or "a file, or where the output goes,"
        return ResnapError(f"{what} cannot be read or written: {error.strerror}", hint=_DISK_HINT)
    return None


def check_address_space() -> None:
    """Refuse to start under an address-space limit under which libraries of ours abort or crash.

    Raises:
        LimitError: there is such a limit.

    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if resource.RLIM_INFINITY != limit < LEAST_ADDRESS_SPACE_BYTES:
        what = f"the address space of this process is limited to {limit >> 20} MiB, expected"
        raise LimitError(
            f"{what} {LEAST_ADDRESS_SPACE_BYTES >> 20} MiB or more",
            hint="raise the limit (ulimit -v, LimitAS=); MemoryMax= and the container's limit what is used instead",
        )


def install_hint(extra: str, library: str) -> str:
    """Return how to install an extra, or the one library that it brings."""
    where = " in a clone of Resnap" if INSTALLED_FROM == "." else ""
    return f"pip install '{INSTALLED_FROM}[{extra}]'{where}, or pip install {library}"
