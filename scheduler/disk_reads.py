"""Reads of log dirs and stores for those who wait for an answer, and must not wait for a disk that has gone.

A system call that does not return, as on a network mount whose server is gone, cannot be ended. So each read has a
thread of its own, of which there are few, and the caller waits for a time and no longer. Where all of them are stuck
the next one is refused at once, and whatever reads no log dir goes on. The threads keep no process from its end.
"""

from __future__ import annotations

import contextvars
import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from resnap.storage.errors import CancelledError, LogDirError

if TYPE_CHECKING:
    from collections.abc import Callable

READ_S: Final = 30.0
"""For what reads small files of one partition."""
LONG_READ_S: Final = 300.0
"""For what reads segments, or small files of all partitions."""
TURN_S: Final = 5.0
"""How long to wait for one of the threads, since any of them last began or ended a read."""
MOST_READS: Final = 8

_T = TypeVar("_T")


class DiskReads:
    """Threads for reads, and who waits for them. Thread-safe."""

    def __init__(self, most: int = MOST_READS, *, turn_s: float = TURN_S) -> None:
        self._most, self._turns, self._turn_s = most, threading.Semaphore(most), turn_s
        self._moved_s = time.monotonic()
        self._awaited: set[Future[Any]] = set()
        self._is_closed = False

    def run(self, read: Callable[[], _T], within_s: float = READ_S) -> _T:
        """Return what ``read`` gives, or raise what it raises.

        Raises:
            LogDirError: it takes longer than ``within_s``, or so many others do that there is no thread for it.
            CancelledError: the service ends.

        """
        left_s = self._moved_s + self._turn_s - time.monotonic()
        if not self._turns.acquire(timeout=max(left_s, 0)):
            raise _no_answer(f"{self._most} reads before this one have not come back")
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
            raise _no_answer(f"nothing has come back within {within_s:g} s") from None
        finally:
            self._awaited.discard(future)

    def close(self) -> None:
        """Let go of all who wait, and of all who will."""
        self._is_closed = True
        for future in self._awaited.copy():
            with suppress(InvalidStateError):
                future.set_exception(CancelledError("the service ends", hint="ask again when it is back"))

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
        hint="look whether what it is mounted from is there (dmesg, mount); reads of other places go on",
    )
