"""Signal handling: the first SIGINT, SIGTERM or SIGHUP stops the run in order; a second, or a timeout, at once.

A terminal that closes sends SIGHUP twice, by the shell and by the kernel: all hangups together count as one signal.

In order means that work in progress is dropped, and leases and scratch directories are released. Threads that wait for
a retry or for ``--bwlimit`` wake up; but a thread in the middle of a request can take minutes. A run that ends at any
instant leaves everything as safe as after SIGKILL, so such threads need not be waited for.

The kernel delivers a signal to any thread: two signals at once, or one while the process is stopped, may never reach
the main thread, and only that runs Python's handlers, once it no longer waits for its threads. So a separate thread
reads each signal from a pipe, and wakes the main one up.

An exception cannot leave a callback that C code calls, such as those that load machine code: Python prints it and
continues. In that case the interrupt is raised again, a moment later.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from resnap.scheduler.cli.failures import INTERRUPTED, TERMINATED
from resnap.storage.threads import end_pauses

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

GRACE_S: Final = 20.0
"""How long an orderly end may take; a container is killed 30 s after it was asked to end, unless told otherwise."""
_WAKES_UP: Final = signal.SIGURG
"""Ends the main thread's wait for a lock, and means nothing else: by default it is ignored."""
_AGAIN_S: Final = 0.1
_INTERRUPTS: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_MOST_BYTES: Final = 512
_HEARD: Final[list[int]] = []
_LOST: Final[list[BaseException]] = []
"""Interrupts that could not be raised where they came."""


def is_interrupted() -> bool:
    """Whether this process was asked to stop."""
    return bool(_HEARD)


def code_of_interrupt(heard: Sequence[int] = _HEARD) -> int:
    """Return the exit code of a process that its first signal has ended."""
    return TERMINATED if heard[:1] == [signal.SIGTERM] else INTERRUPTED


def handle_interrupts() -> None:
    """Handle the signals in this process; signals that the caller ignores, as ``nohup`` does, stay ignored.

    Raises:
        RuntimeError: no thread can be started to wait for them.

    """

    def interrupted(number: int, _frame: FrameType | None) -> None:
        _HEARD.append(number)
        if len(_HEARD) == 1:
            raise KeyboardInterrupt

    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(_WAKES_UP, _raise_again)
    sys.unraisablehook = _keep_if_interrupt
    signal.signal(signal.SIGTERM, interrupted)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # SIGINT by shells, of what they start in the background
            signal.signal(number, interrupted)
    threading.Thread(target=_watch, args=(read,), name="resnap-signals", daemon=True).start()


def _keep_if_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _LOST.append(unraisable.exc_value)
    else:
        sys.__unraisablehook__(unraisable)


def _raise_again(_number: int, _frame: FrameType | None) -> None:
    if _LOST:
        _LOST.clear()
        raise KeyboardInterrupt


def _watch(read: int) -> None:
    """Wake up the main thread until it reacts; end the process at a second signal, or when the grace period is over."""
    heard: list[int] = []
    while not heard:
        heard = _interrupts(read, None)
    end_pauses()
    end = time.monotonic() + GRACE_S
    while _count(heard) < 2 and time.monotonic() < end:  # noqa: PLR2004 - the second
        if not _HEARD or _LOST:
            signal.pthread_kill(threading.main_thread().ident or 0, _WAKES_UP)
        time.sleep(_AGAIN_S)
        heard += _interrupts(read, 0)
    _exit_at_once(code_of_interrupt(heard))


def _count(heard: Sequence[int]) -> int:
    return len(heard) - max(0, heard.count(signal.SIGHUP) - 1)


def _interrupts(read: int, seconds: float | None) -> list[int]:
    """Return the interrupts received; wait for any signal, for at most the given time."""
    ready, _, _ = select.select([read], [], [], seconds)
    return [number for number in os.read(read, _MOST_BYTES) if number in _INTERRUPTS] if ready else []


def forget_the_interrupt() -> None:
    """Forget an interrupt that passed through ``exec``, as on its way out of an import.

    CPython would otherwise end the process by the signal, whatever its exit code is. The next ``exec`` resets that.
    """
    exec("")  # noqa: S102 - nothing


def _exit_at_once(code: int) -> NoReturn:
    """End the process without waiting for its threads, which Python's own exit would do."""
    with suppress(OSError):
        os.write(sys.stderr.fileno(), b"interrupted, without an orderly end\n")
    os._exit(code)
