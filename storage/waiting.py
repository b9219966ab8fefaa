"""Interruptible waits: a thread that sleeps here wakes up when the run is asked to stop.

A pipe wakes the threads, because a signal handler may run at any instruction: it may write to a pipe, but must not take
a lock that the interrupted thread may hold.
"""

from __future__ import annotations

import os
import select
from typing import Final

_PIPE: Final = [*os.pipe()]
_MS_PER_S: Final = 1000


def pause(seconds: float) -> bool:
    """Wait; return False if the process was asked to stop before the time was over."""
    poll = select.poll()
    poll.register(_PIPE[0], select.POLLIN)
    return not poll.poll(seconds * _MS_PER_S)


def end_pauses() -> None:
    """Wake up all threads that pause in this process, now or later; may be called from a signal handler."""
    os.write(_PIPE[1], b"!")


def _take_a_pipe_of_its_own() -> None:
    """Give a forked process a pipe of its own, so that it can be stopped without its parent."""
    _PIPE[:] = os.pipe()


os.register_at_fork(after_in_child=_take_a_pipe_of_its_own)
