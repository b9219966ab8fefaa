"""Waiting that ends with the process: a thread that sleeps here wakes up when the run is asked to stop.

A pipe wakes them up, since a signal may come at any instruction, and its handler may write to a pipe then, but may not
take a lock that the very thread it interrupts might hold.
"""

from __future__ import annotations

import os
import select
from typing import Final

_PIPE: Final = [*os.pipe()]
_MS_PER_S: Final = 1000


def pause(seconds: float) -> bool:
    """Wait; return whether all of it was waited, which it is not in a process that was asked to end."""
    poll = select.poll()
    poll.register(_PIPE[0], select.POLLIN)
    return not poll.poll(seconds * _MS_PER_S)


def end_pauses() -> None:
    """Wake up all threads that pause in this process, now or later; may be called from a signal handler."""
    os.write(_PIPE[1], b"!")


def _take_a_pipe_of_its_own() -> None:
    """Let a forked process be asked to end without its parent, which has the other one."""
    _PIPE[:] = os.pipe()


os.register_at_fork(after_in_child=_take_a_pipe_of_its_own)
