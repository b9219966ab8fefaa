"""Who may have how much: the quota of producer ids (KIP-936), put on those who call the API.

A replay costs the producer ids that it activates. How many those are is known once it is done, so it is asked for and
paid for apart: before it is taken, each partition that it names counts as one id, strictly, and whoever is in debt
waits; afterwards the ids of its snapshots are charged, and may lead into debt. What was paid for lately costs nothing
again.

Limits are those of ``resnap quota set`` and, below them, those of the cluster's metadata log; where there are none,
nothing is counted. A principal is a user by its name. Schedules pay nothing.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Final

from scheduler.access.errors import QuotaExceededError
from scheduler.quotas import PREFIX, origins, rates_of
from storage.disk import Disk
from tiering.quota.quota_file import QuotaFile
from tiering.quota.quota_manager import ProducerIdQuotaManager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from scheduler.clock import Clock

REFRESH_S: Final = 5.0
"""How long limits that were set meanwhile may go unnoticed."""


class AdmissionControl:
    """The quota manager of the service, and where its limits come from. Thread-safe."""

    def __init__(
        self, state_directory: Path, metadata_log: Path | None, clock: Clock, complain: Callable[[str], None]
    ) -> None:
        self._file, self._metadata_log = QuotaFile(state_directory, Disk()), metadata_log
        self._clock, self._complain = clock, complain
        self.manager = ProducerIdQuotaManager(clock.now_ms)
        self._lock = threading.Lock()
        self._read_s = float("-inf")

    def charge(self, principal: str, things: Iterable[str]) -> None:
        """Take what a call is about: each new one of ``things``, such as a partition, costs as much as one producer id.

        Raises:
            QuotaExceededError: the principal is to wait.

        """
        self._refresh()
        ids = [_id_of(thing) for thing in things]
        admission = self.manager.admit_request(principal, ids)
        if not admission.admitted:
            wait_s = admission.throttle_time_ms / 1000
            raise QuotaExceededError(
                f"{PREFIX}{principal} has activated more producer ids than its producer_ids_rate allows",
                retry_after_s=wait_s,
                hint=f"wait {wait_s:.0f} s, or have the limit raised: `resnap quota set RATE --user {principal}`",
            )

    def activated(self, principal: str, producer_ids: Iterable[int]) -> None:
        """Charge what a replay has activated, whatever debt that leads to."""
        self._refresh()
        self.manager.admit_request(principal, list(producer_ids), permissive=True)

    def clean_up(self) -> None:
        """Forget what is over."""
        self.manager.clean_up()

    def _refresh(self) -> None:
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s - self._read_s < REFRESH_S:
                return
            self._read_s = now_s
            self.manager.update(rates_of(origins(self._file, self._metadata_log, self._complain), self._complain))


def _id_of(thing: str) -> int:
    """Return a number of 63 bits that stands for ``thing``."""
    return int.from_bytes(hashlib.blake2b(thing.encode(), digest_size=8).digest()) >> 1
