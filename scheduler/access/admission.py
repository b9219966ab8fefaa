"""Applies the quota of producer ids (KIP-936) to callers of the API.

A replay costs the producer ids that it activates. Their number is known only after the replay, so it is charged twice:
before it is accepted, each partition that it names counts as one id, strictly, and a principal in debt must wait;
afterwards the ids of its newest snapshots are charged, and may lead into debt. Ids that were charged lately cost
nothing again. Plans, explanations and dry runs activate no ids, and cost only the first charge.

Limits come from ``resnap quota set`` and, with lower precedence, from the cluster's metadata log, and are read again
when they change; without limits nothing is counted. An unreadable file is reported, and leaves the limits unchanged: it
must neither lift them nor lock out all principals. A principal is a user by its name. Scheduled runs pay nothing.
"""

from __future__ import annotations

import hashlib
import math
import threading
from typing import TYPE_CHECKING, Final

from resnap.scheduler.access.roles import QuotaExceededError
from resnap.scheduler.disk_reads import READ_S, DiskReads
from resnap.storage.disk import Disk
from resnap.storage.errors import LogDirError, ResnapError
from resnap.tiering.quota.client_quotas import PREFIX, ClientQuotas
from resnap.tiering.quota.quota_manager import ProducerIdQuotaManager
from resnap.tiering.quota.user_quotas import MetadataQuotas, QuotaFile, rates_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from resnap.scheduler.clock import Clock
    from resnap.tiering.quota.active_producers import Remembering
    from resnap.tiering.quota.client_quotas import UserRates
    from resnap.tiering.quota.token_bucket import QuotaConfig

REFRESH_S: Final = 5.0
"""How long changed limits may go unnoticed."""
REREAD_S: Final = 2.0
"""How long a call waits for new records of a metadata log if its disk does not answer."""


class AdmissionControl:
    """The service's quota manager, with the sources of its limits. Thread-safe."""

    def __init__(
        self,
        state_directory: Path,
        metadata_log: Path | None,
        clock: Clock,
        warn: Callable[[str], None],
        *,
        config: QuotaConfig | None = None,
        remembering: Remembering | None = None,
    ) -> None:
        """Begin without ids; ``config`` and ``remembering`` are as for ``ProducerIdQuotaManager``."""
        self._limits = _Limits(QuotaFile(state_directory, Disk()), metadata_log, warn)
        self._clock = clock
        self.manager = ProducerIdQuotaManager(clock.now_ms, config=config, remembering=remembering)
        self._lock = threading.Lock()
        self._read_s = float("-inf")
        self._reads, self._warn = DiskReads(1, turn_s=0), warn
        self._within_s = READ_S
        self._is_reported = False
        """Whether it was logged that a disk does not answer."""

    def charge(self, principal: str, things: Iterable[str]) -> None:
        """Charge a request: each new one of ``things``, such as a partition, costs as much as one producer id.

        Raises:
            QuotaExceededError: the principal must wait; nothing was charged.

        """
        self._refresh()
        admission = self.manager.admit_request(principal, [_id_of(thing) for thing in things], permissive=False)
        if not admission.admitted:
            wait_s = math.ceil(admission.throttle_time_ms / 1000)
            raise QuotaExceededError(
                f"{PREFIX}{principal} has activated more producer ids than its producer_ids_rate allows",
                retry_after_s=wait_s,
                hint=f"wait {wait_s} s, or raise the limit: `resnap quota set RATE --user {principal}`",
            )

    def activated(self, principal: str, producer_ids: Iterable[int]) -> None:
        """Charge the ids that a replay has activated, even into debt."""
        self._refresh()
        self.manager.admit_request(principal, list(producer_ids), permissive=True)

    def watch(self, metadata_log: Path | None) -> None:
        """Use the limits of this cluster from now on."""
        with self._lock:
            self._limits.watch(metadata_log)
            self._read_s = float("-inf")

    def _refresh(self) -> None:
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s - self._read_s >= REFRESH_S:
                self._read_s = now_s
                self._read()

    def _read(self) -> None:
        try:
            self.manager.update(self._reads.run(self._limits.read, self._within_s))
        except LogDirError as error:
            if not self._is_reported:
                self._warn(f"the quotas cannot be read again, and the last ones still apply: {error}")
            self._is_reported = True
        else:
            self._is_reported = False
        self._within_s = REREAD_S


class _Limits:
    """The rates of the file and of the cluster, as last read. Each problem is reported once while it lasts."""

    def __init__(self, file: QuotaFile, metadata_log: Path | None, warn: Callable[[str], None]) -> None:
        self._file, self._metadata_log, self._warn = file, metadata_log, warn
        self._of_file = ClientQuotas()
        self._cluster: MetadataQuotas | None = None
        self._reported: set[str] = set()
        self._said: set[str] = set()

    def watch(self, metadata_log: Path | None) -> None:
        if metadata_log != self._metadata_log:
            self._metadata_log, self._cluster = metadata_log, None

    def read(self) -> UserRates:
        """Return the current rates; for an unreadable source, its last ones."""
        self._reported = set()
        try:
            self._of_file = self._file.load()
        except ResnapError as error:
            self._report(f"{error}: the quotas last read from it still apply")
        try:
            if self._cluster is not None:
                self._cluster.refresh()
            elif self._metadata_log is not None:
                self._cluster = MetadataQuotas(self._metadata_log, self._report)
        except ResnapError as error:
            self._report(f"{self._metadata_log}: the quotas cannot be read: {error}")
        found = [self._of_file]
        if self._cluster is not None:
            found.append(self._cluster.quotas)
        rates = rates_of(found, self._report)
        for text in sorted(self._reported - self._said):
            self._warn(text)
        self._said = self._reported
        return rates

    def _report(self, text: str) -> None:
        self._reported.add(text)


def _id_of(thing: str) -> int:
    """Return a 63-bit number for ``thing``; allocated producer ids are far smaller."""
    return int.from_bytes(hashlib.blake2b(thing.encode(errors="surrogatepass"), digest_size=8).digest()) >> 1
