"""Every error Resnap raises on purpose: one short tree, cut by whose fault it is.

    ResnapError
      UsageError               the caller asked for something that makes no sense (exit 2)
      ConfigurationError       a setting is wrong or missing (exit 10)
      DataError                the bytes are not what Kafka writes (exit 1)
        FormatError            ... at a position of a file
        MetadataLogError       a metadata log lacks a part, or contradicts itself
          MetadataVersionError ... or depends on records of a version that is unknown here
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
        UploadGoneError        a multipart upload is not known any more; the whole of it may be tried again
      VerificationError        what was read back is not what was meant (exit 13)
      ClusterError             a running cluster did not answer, or refused (exit 16)
      LostProducerStateError   a replica lacks producer state that another one has (exit 4)
      StalePlanError           the plan depends on something that has changed (exit 15)
      LockedError              another run is at the same work (exit 11)
      CancelledError           the work was asked to end (exit 130)
      LimitError               this process may have no more files, threads or memory (exit 1)

Anything else that escapes is a bug, and is left to crash. A message says what, where, what was expected and what was
found, in lower case and without a full stop; ``hint`` says what to do next.
"""

from __future__ import annotations

import errno
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class ResnapError(Exception):
    """Root of the tree; ``transient`` says whether the same call may go through later."""

    exit_code: ClassVar[int] = 1
    transient: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(ResnapError):
    """The request contradicts itself or names something that is not there."""

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
        """Survive pickling with its fields: it travels from Spark's workers to the driver."""
        return (_restored_format_error, (self.__dict__,))


class MetadataLogError(DataError):
    """Every byte can be read, but what a quorum's log says cannot be, or is not all there."""


class MetadataVersionError(MetadataLogError):
    """Records that an answer depends on are of a type or version that is younger than this release."""


def _restored_format_error(fields: dict[str, object]) -> FormatError:
    error = FormatError.__new__(FormatError, fields["what"])
    error.__dict__.update(fields)
    return error


@contextmanager
def hinted(hint: str) -> Iterator[None]:
    """Give ``hint`` to a ``FormatError`` that passes through without one."""
    try:
        yield
    except FormatError as error:
        error.hint = error.hint or hint
        raise


def parser_says(error: Exception) -> str:
    """Return what a parser of another project has against its input, on one short line."""
    if isinstance(error, KeyError):
        return f"nothing under {error}"
    return ascii(str(error)[:120])[1:-1] or type(error).__name__


@contextmanager
def in_file(file: str | Path) -> Iterator[None]:
    """Give the name of ``file`` to a ``FormatError`` that passes through without one."""
    try:
        yield
    except FormatError as error:
        if error.file is None:
            error.file = str(file)
        raise


class LogDirError(ResnapError):
    """A log directory, or something in it, cannot be used."""


class FileGoneError(LogDirError):
    """A file is not there; where it was listed, the broker has deleted it since."""


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
    """A conditional write found an object already there; it was left as it is."""


class ObjectChangedError(StoreError):
    """The object is another one than when reading it began; what was read of the first is of no use."""


class StoreAccessError(StoreError):
    """The store does not let us: credentials, permissions, or a bucket that does not exist."""


class StoreFullError(StoreError):
    """The store has no room left."""


class StoreUnavailableError(StoreError):
    """The store did not answer, or asked to come back later; ``retry_after_s`` is when, if it said so."""

    transient = True

    def __init__(
        self, message: str, *, key: str | None = None, hint: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, key=key, hint=hint)
        self.retry_after_s = retry_after_s


class UploadGoneError(StoreError):
    """A multipart upload is not known any more: completed, where the answer was lost, or aborted."""

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
    """What a saved plan depends on has changed since."""

    exit_code = 15


class CancelledError(ResnapError):
    """The work was asked to end; no part of it may take this for a failure of its own and go on."""

    exit_code = 130


class LockedError(ResnapError):
    """Another run is at the same work; the message says who, and since when."""

    exit_code = 11


class LimitError(ResnapError):
    """The system gives this process no more of something: files, threads, processes or memory."""


def limit_met(error: BaseException) -> LimitError | None:
    """Return what ``error`` says of a limit that the system sets, None where it says nothing of one.

    Such errors come from anywhere, also from imports, and are not a bug.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in {errno.EMFILE, errno.ENFILE}:
        return LimitError(
            f"too many files are open: {error}", hint=_MORE.format("open files (ulimit -n, LimitNOFILE=)")
        )
    is_fork = number == errno.EAGAIN and "write" not in str(error)  # as the system says that it starts no process
    if is_fork or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD):
        # Of memory a thread needs its stack, and the system names no cause.
        memory = (
            "" if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY else " and of memory (ulimit -v)"
        )
        hint = _MORE.format(f"processes and threads (ulimit -u, TasksMax=, pids.max of the container){memory}")
        return LimitError("no more processes or threads can be started", hint=hint)
    if number == errno.ENOMEM or isinstance(error, MemoryError):
        hint = _MORE.format("memory (ulimit -v, MemoryMax=, the container's)")
        return LimitError("there is no more memory", hint=hint)
    return None


def check_address_space() -> None:
    """Refuse to begin under a limit that libraries of ours do not bear: they end the process, or crash it.

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


LEAST_ADDRESS_SPACE_BYTES: Final = 1 << 30
"""Twice what replaying a small log took on two cores; libraries set aside more than they use."""
_NO_THREAD: Final = "can't start new thread"
_MORE: Final = "raise the limit of {}, or do less at once (--threads, --parallel), and run the same command again"
