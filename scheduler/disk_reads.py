"""How this process reads disks beside a broker: with a deadline, and after the broker.

``DiskReads`` reads log dirs and stores with a deadline, so that a caller never waits for a disk that does not answer. A
blocked system call, as on a network mount without its server, cannot be ended. So each read uses one of a few threads,
and the caller waits only until a deadline. If all threads are stuck, the next read is refused at once, and work without
log dirs continues. The threads do not prevent the process from ending.

``set_io_priority`` lets a broker on the same machine read first. Threads inherit the priority from the thread that
starts them, so it is set before any are started. Only some I/O schedulers use priorities (``bfq``, ``mq-deadline``);
others ignore them, and failing to set one is not an error.

Source: ``ioprio_set(2)``.
"""

from __future__ import annotations

import contextvars
import ctypes
import platform
import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from resnap.storage.errors import CancelledError, LogDirError

if TYPE_CHECKING:
    from collections.abc import Callable


READ_S: Final = 30.0
"""The deadline of what reads small files of one partition."""
LONG_READ_S: Final = 300.0
"""The deadline of what reads segments, or small files of all partitions."""
TURN_S: Final = 5.0
"""How long to wait for one of the threads, since any of them last began or ended a read."""
MOST_READS: Final = 8

_T = TypeVar("_T")


class DiskReads:
    """The threads for reads, and the callers that wait. Thread-safe."""

    def __init__(self, most: int = MOST_READS, *, turn_s: float = TURN_S) -> None:
        self._most, self._turns, self._turn_s = most, threading.Semaphore(most), turn_s
        self._moved_s = time.monotonic()
        self._awaited: set[Future[Any]] = set()
        self._is_closed = False

    def run(self, read: Callable[[], _T], within_s: float = READ_S) -> _T:
        """Return the result of ``read``, or raise its error.

        Raises:
            LogDirError: it takes longer than ``within_s``, or other blocked reads use all threads.
            CancelledError: the service is stopping.

        """
        left_s = self._moved_s + self._turn_s - time.monotonic()
        if not self._turns.acquire(timeout=max(left_s, 0)):
            raise _no_answer(f"{self._most} earlier reads have not returned")
        future: Future[_T] = Future()
        self._moved_s = time.monotonic()
        self._awaited.add(future)
        context = contextvars.copy_context()
        work = threading.Thread(target=context.run, args=(self._read, read, future), name="resnap-read", daemon=True)
        try:
            self._begin(work)
            return future.result(within_s)
        except TimeoutError:
            if future.done():  # what was read has raised it
                raise
            raise _no_answer(f"no answer within {within_s:g} s") from None
        finally:
            self._awaited.discard(future)

    def close(self) -> None:
        """Release all waiting callers, now and later."""
        self._is_closed = True
        for future in self._awaited.copy():
            with suppress(InvalidStateError):
                future.set_exception(CancelledError("the service is stopping", hint="try again when it answers"))

    def _begin(self, work: threading.Thread) -> None:
        try:
            work.start()
        except BaseException:  # the system gives no thread
            self._turns.release()
            raise
        if self._is_closed:
            self.close()

    def _read(self, read: Callable[[], _T], future: Future[_T]) -> None:
        try:
            try:
                result = read()
            finally:  # before the caller hears of it, who may have the next read at once
                self._moved_s = time.monotonic()
                self._turns.release()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            with suppress(InvalidStateError):
                future.set_exception(error)
        else:
            with suppress(InvalidStateError):
                future.set_result(result)


def _no_answer(why: str) -> LogDirError:
    return LogDirError(
        f"the disk or store does not answer: {why}",
        hint="check the disk or server that it is mounted from (dmesg, mount); reads of other places continue",
    )


_SYSTEM_CALLS: Final = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282}
"""Number of ``ioprio_set``, for which C libraries have no function."""
_THIS_THREAD: Final = (1, 0)
"""``IOPRIO_WHO_PROCESS``, and 0 for the calling process."""
_CLASS_SHIFT: Final = 13
_VALUES: Final[dict[str, int]] = {"low": 2 << _CLASS_SHIFT | 7, "idle": 3 << _CLASS_SHIFT}
"""The last of the levels of ``best-effort``, and the class that reads when no other process does."""


def set_io_priority(priority: Literal["normal", "low", "idle"]) -> bool:
    """Set the priority of this thread and of those it starts; return whether the system took it."""
    call = _SYSTEM_CALLS.get(platform.machine())
    if priority == "normal" or call is None or platform.system() != "Linux":
        return False
    refused: int = ctypes.CDLL(None).syscall(call, *_THIS_THREAD, _VALUES[priority])
    return not refused
