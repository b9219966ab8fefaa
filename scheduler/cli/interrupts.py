"""SIGINT and SIGTERM: the first asks the run to end in order, and the second, or too long a wait, ends it as it stands.

In order means that what is on its way is let go, and leases and scratch directories with it. Whoever waits, for another
try or for ``--bwlimit``, wakes up; but a thread in the middle of a request can take minutes over it. What a run leaves
that ends at any instant is as safe as after SIGKILL, so nobody has to wait for it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from scheduler.cli.failures import INTERRUPTED
from storage.waiting import end_pauses

if TYPE_CHECKING:
    from types import FrameType

GRACE_S: Final = 20.0
"""For the orderly end; a container is killed 30 s after it was told to end, unless its owner says otherwise."""


def heed_interrupts() -> None:
    """Make the two signals mean the same in this process; SIGINT stays ignored where the caller had it so."""
    waiting = threading.Timer(GRACE_S, _end_as_it_stands)
    waiting.daemon = True
    told: list[int] = []

    def interrupted(number: int, _frame: FrameType | None) -> None:
        # The second may come in the middle of what the first has begun here: so it is noted before anything else.
        told.append(number)
        if len(told) > 1:
            _end_as_it_stands()
        end_pauses()
        waiting.start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as shells start what goes to the background
        signal.signal(signal.SIGINT, interrupted)


def _end_as_it_stands() -> NoReturn:
    """End the process whatever its threads are at; Python's own exit would wait for them."""
    with suppress(OSError):
        os.write(sys.stderr.fileno(), b"interrupted, without an orderly end\n")
    os._exit(INTERRUPTED)
