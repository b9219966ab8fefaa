"""A limit of bytes per second, for all threads of one run together."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resnap.storage.threads import LOOK_S, pause

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True, kw_only=True)
class Throttle:
    """Makes each caller wait until its bytes may pass; ``bytes_per_s`` None means no limit.

    Unused time is not saved up: after a pause the rate is the same as before it.
    """

    bytes_per_s: int | None = None
    sleep: Callable[[float], bool] = pause
    """Says whether it was let sleep that long."""
    clock_s: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _free_at_s: float = field(default=0.0, init=False)

    def take(self, size_bytes: int, goes_on: Callable[[], bool] = lambda: True) -> bool:
        """Wait until ``size_bytes`` may pass, and return whether they may.

        They may not in a stopping process, nor once ``goes_on``, which is called each second, returns False.
        """
        if self.bytes_per_s is None:
            return True
        with self._lock:
            now_s = self.clock_s()
            self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self.bytes_per_s
            wait_s = self._free_at_s - now_s
        while wait_s > LOOK_S:
            if not (self.sleep(LOOK_S) and goes_on()):
                return False
            wait_s -= LOOK_S
        return self.sleep(wait_s)
