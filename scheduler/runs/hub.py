"""Tells listeners of what happens in runs, as it happens; who comes later reads the history."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.scheduler.runs.run import RunEvent


class Hub:
    """Hands each event to whoever listens to its run, in the thread that publishes it: listeners must not wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: defaultdict[str, list[Callable[[RunEvent], None]]] = defaultdict(list)

    def publish(self, event: RunEvent) -> None:
        """Tell all who listen to the run of ``event``."""
        with self._lock:
            listeners = tuple(self._listeners.get(event.run_id, ()))
        for tell in listeners:
            tell(event)

    @contextmanager
    def listening(self, run_id: str, tell: Callable[[RunEvent], None]) -> Iterator[None]:
        """Call ``tell`` with each event of a run while the context lasts."""
        with self._lock:
            self._listeners[run_id].append(tell)
        try:
            yield
        finally:
            with self._lock:
                self._listeners[run_id].remove(tell)
                if not self._listeners[run_id]:
                    del self._listeners[run_id]

    @property
    def listeners(self) -> int:
        """How many listen."""
        with self._lock:
            return sum(map(len, self._listeners.values()))
