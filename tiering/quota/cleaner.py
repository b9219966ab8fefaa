"""A thread that cleans up now and then. Answers do not depend on it, only memory does: it may fail, and stop."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

logger = logging.getLogger(__name__)

DEFAULT_INTERVAL_MS: Final = 10_000
"""KIP-936 drafts 10 ms (``producer.id.quota.cache.cleanup.scheduler.interval.ms``); layers live for hours."""


class Cleaner:
    """Calls ``clean_up`` every ``interval_ms`` until it is closed; ``with`` it, or ``close`` it."""

    def __init__(self, clean_up: Callable[[], object], interval_ms: int = DEFAULT_INTERVAL_MS) -> None:
        if interval_ms < 1:
            raise ValueError(f"cleaning up every {interval_ms} ms: it must be 1 or more")
        self._clean_up = clean_up
        self._interval_s = interval_ms / 1000
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="resnap-quota-cleaner", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether its thread lives."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread, and wait for it."""
        self._closed.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closed.wait(self._interval_s):
            try:
                self._clean_up()
            except Exception:
                logger.exception("cleaning up the producer ids of principals failed; the next attempt follows")
