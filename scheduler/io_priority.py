"""Sets this process's I/O priority, so that a broker on the same machine reads first.

Threads inherit it from the thread that starts them, so it is set before any are started. Only some I/O schedulers use
priorities (``bfq``, ``mq-deadline``); others ignore them, and failing to set one is not an error.

Source: ``ioprio_set(2)``.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final, Literal

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
