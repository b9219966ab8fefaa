"""Collects the status of the whole cluster in the background, as long as it is requested.

The last collection is returned with its time. Before the first one, and if the last one is too old, every broker is
unknown.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.scheduler.fleet.collecting import Collector
from resnap.scheduler.fleet.status import FleetStatus, fleet_status
from resnap.storage.errors import ResnapError
from resnap.tiering.fleet import BrokerReplicas

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.settings.service import FleetEntry
    from resnap.scheduler.settings.settings import Settings

EVERY_S: Final = 60.0
"""From the end of a collection to the next."""
LINGER_S: Final = 900.0
"""How long it continues after the last request."""
OLD_S: Final = 600.0
"""What was collected so long ago is not known any more."""
FIRST_S: Final = 3.0
"""How long the first question waits, so that quick services have answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A collection, and its time."""

    status: FleetStatus
    at_ms: int | None
    """None where nothing was collected yet."""


@dataclass(slots=True, kw_only=True)
class FleetWatch:
    """Collects the status of the cluster as long as it is requested. Thread-safe."""

    settings: Callable[[], Settings]
    """Those in force."""
    clock: Clock
    warn: Callable[[str], None]
    _collector: Collector = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _has_any: threading.Event = field(default_factory=threading.Event)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _asked_s: float = 0.0
    _last: tuple[tuple[FleetEntry, ...], float, Collected] | None = None
    """Of which services, when, and what."""

    def __post_init__(self) -> None:
        self._collector = Collector(now_ms=self.clock.now_ms)

    def collected(self) -> Collected:
        """Return the last collection, and keep collecting from now on."""
        with self._lock:
            self._asked_s = self.clock.monotonic_s()
            known = self._recent()
            if (self._thread is None or not self._thread.is_alive()) and not self._is_over.is_set():
                self._has_any.clear()
                self._thread = threading.Thread(target=self._go_on, name="resnap-fleet-watch", daemon=True)
                self._thread.start()
        if known is None:
            self._has_any.wait(FIRST_S)
            known = self._recent()
        return known or Collected(status=self._nothing("not asked yet"), at_ms=None)

    def stop(self) -> None:
        """Stop collecting."""
        self._is_over.set()

    def _recent(self) -> Collected | None:
        if self._last is None:
            return None
        entries, at_s, last = self._last
        is_old = self.clock.monotonic_s() - at_s > OLD_S
        return None if is_old or entries != self.settings().fleet else last

    def _go_on(self) -> None:
        while not self._is_over.is_set() and self.clock.monotonic_s() - self._asked_s < LINGER_S:
            settings = self.settings()
            try:
                status = fleet_status(settings, self._collector, self.warn)
            except ResnapError as error:  # the cluster cannot be queried with this configuration
                status = self._nothing(str(error))
            collected = Collected(status=status, at_ms=self.clock.now_ms())
            self._last = settings.fleet, self.clock.monotonic_s(), collected
            self._has_any.set()
            self._is_over.wait(EVERY_S)

    def _nothing(self, why: str) -> FleetStatus:
        brokers = [
            BrokerReplicas(broker_id=one.broker, error=f"broker {one.broker}: {why}") for one in self.settings().fleet
        ]
        return FleetStatus(brokers=brokers, topics=(), unanswered=None)
