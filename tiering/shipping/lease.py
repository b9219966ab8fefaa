"""Leases: allow one run at a time on a partition in a store; they save work, and nothing depends on them.

A lease is an object, ``.resnap/lease/<name>/<generation>``; the run that wrote the highest generation holds it, as
long as it renews the object. To take over a lease that was not renewed for ``LEASE_MS``, by the store's own clock, or
that a dead process of this machine held, a run creates the next generation on condition that it does not exist: only
one of several runs succeeds. A lease that was renewed further in the future than it lasts, because that clock was
ahead and was set right, counts as expired, too. So a store needs only ``If-None-Match``, and if it ignores even that,
two runs may at worst do the same work. A holder that was stopped, or whose machine was suspended, notices it by its own
clock before its next step; if it checked just before, it writes objects whose keys depend on their content, and a
manifest that is as correct as the other one, or deletes under an id that is not used again
(``storage.layouts.manifest``).
"""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from socket import gethostname
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from resnap.storage.errors import LockedError, ObjectExistsError, ObjectNotFoundError, StoreError
from resnap.storage.processes import Process, this_process, uptime_ms
from resnap.storage.stores.probe import store_clock_ms
from resnap.storage.stores.protocol import key_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.log.names import TopicPartition
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

LEASE_PREFIX: Final = ".resnap/lease"
LEASE_MS: Final = 300_000
"""After so long without renewal a lease is anybody's."""
_RENEWALS: Final = 5
"""In the time that a lease lasts."""
_LAST_MS: Final = 253_402_300_799_999
"""The last moment that can be shown: it ends the year 9999."""
_GENERATION_DIGITS: Final = 10
_ATTEMPTS: Final = 5
_LOGGER: Final = logging.getLogger(__name__)


class LeaseLostError(LockedError):
    """Another run has taken over, because this one did not renew its lease for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The holder of a lease."""

    run: str
    who: str
    since_ms: int
    """Since when it is held, by the clock of the holder."""
    process: Process

    @property
    def description(self) -> str:
        """The holder, and since when, for messages."""
        return f"{self.who}, since {datetime.fromtimestamp(self.since_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


_OVER_HERE: Final[set[str]] = set()
"""Runs of this process that have ended and could not say the store, which was down: they hold nothing any more."""
_NO_PROCESS: Final = Process(machine="", number=0, started_ticks=0)
_SOMEBODY: Final = Holder(run="", who="an unnamed run", since_ms=0, process=_NO_PROCESS)


@dataclass(slots=True, kw_only=True)
class Lease:
    """The lease of one name, such as that of a partition; ``acquire`` takes it."""

    store: ObjectStore
    name: str
    """Names what is leased, as a part of a key."""
    holder: Holder
    lease_ms: int = LEASE_MS
    clock_ms: Callable[[], int] = uptime_ms
    """Runs on while the machine is suspended, and is never set."""
    _key: str = field(default="", init=False)
    _lost: Holder | None = field(default=None, init=False)
    _sure_until_ms: int = field(default=0, init=False)
    """Until when, by the same clock, no other run can have taken over."""

    def acquire(self) -> None:
        """Take the lease, if it is free or expired.

        Raises:
            LockedError: another run holds it.
            StoreError: the store failed.

        """
        for _ in range(_ATTEMPTS):
            self._sure_until_ms = self.clock_ms() + self._sure_ms
            newest = self._newest()
            if newest is not None:
                self._refuse_fresh(newest)
            if self._create(1 if newest is None else _generation(newest.key) + 1):
                return
        raise self._held(self._holder(self._key) or _SOMEBODY)

    def check(self) -> None:
        """Check that no other run has taken over, or could have taken over unnoticed.

        Raises:
            LeaseLostError: another run has, or could have.

        """
        hint = "this run had stopped for too long; run again once the other is done"
        if self._lost is not None:
            raise LeaseLostError(f"{self.name}: taken over by {self._lost.description}", hint=hint)
        if not self._is_sure:
            raise LeaseLostError(
                f"{self.name}: this run could not renew its lease for {self._sure_ms // 1000} s, and another one may"
                " have taken over: the run or its machine was stopped, or the store did not answer",
                hint="run again: finished work is not repeated",
            )

    def renew(self) -> None:
        """Renew the lease; afterwards ``check`` knows if another run holds it."""
        now_ms = self.clock_ms()
        newest = self._newest()
        if newest is not None and newest.key > self._key:
            self._lost = self._holder(newest.key) or _SOMEBODY
        elif self._is_sure:
            self.store.put(self._key, self._body())
            self._sure_until_ms = now_ms + self._sure_ms

    def release(self) -> None:
        """Release the lease, unless another run has taken it over, or may have."""
        if self._is_sure:
            self.store.delete(self._key)

    @property
    def _is_sure(self) -> bool:
        return self.clock_ms() < self._sure_until_ms

    @property
    def _sure_ms(self) -> int:
        return self.lease_ms * 9 // 10

    def withdraw(self) -> None:
        """Release the lease after an interrupt in ``acquire``, if it was written."""
        if self._key and self._holder(self._key) == self.holder:
            self.release()

    def _refuse_fresh(self, newest: ObjectInfo) -> None:
        holder = self._holder(newest.key)
        if holder is None or holder.process.is_dead or holder.run in _OVER_HERE:
            return
        age_ms = store_clock_ms(self.store) - newest.modified_ms
        if abs(age_ms) < self.lease_ms:
            raise self._held(holder)
        if age_ms < 0:
            _LOGGER.warning(
                "%s: the lease of %s was renewed %d s in the future, by the store's clock, which was set right since:"
                " it counts as expired", self.name, holder.description, -age_ms // 1000,
            )  # fmt: skip

    def _held(self, holder: Holder) -> LockedError:
        return LockedError(
            f"{self.name}: another run is at work there: {holder.description}",
            hint=f"wait until it is done; else its lease ends after {self.lease_ms // 1000} s without a renewal",
        )

    def _create(self, generation: int) -> bool:
        """Write the lease of ``generation``, unless another run has; older ones are deleted."""
        self._key = f"{LEASE_PREFIX}/{self.name}/{generation:0{_GENERATION_DIGITS}d}"
        with suppress(ObjectExistsError):
            self.store.put(self._key, self._body(), if_absent=True)
        # Also after a success: the store may have ignored the condition, and another writer may have been later.
        if self._holder(self._key) != self.holder:
            return False
        for info in self.store.list(f"{LEASE_PREFIX}/{self.name}/"):
            if info.key < self._key:
                self.store.delete(info.key)
        return True

    def _newest(self) -> ObjectInfo | None:
        return max(self.store.list(f"{LEASE_PREFIX}/{self.name}/"), key=lambda info: info.key, default=None)

    def _body(self) -> bytes:
        return json.dumps(asdict(self.holder)).encode()

    def _holder(self, key: str) -> Holder | None:
        """Return who wrote ``key``; None if it was deleted."""
        try:
            return read_holder(self.store.get(key))
        except ObjectNotFoundError:
            return None


@dataclass(slots=True, kw_only=True)
class HeldLease:
    """A lease that is taken at its first use, and renewed from then on by a thread of its own."""

    lease: Lease
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _keeper: threading.Thread | None = field(default=None, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)

    def hold(self) -> None:
        """Take the lease, or check that it is still held; call it before each step that needs the lease.

        Raises:
            LockedError: another run holds it.
            StoreError: the store failed.

        """
        with self._lock:
            if self._keeper is not None:
                self.lease.check()
                return
            keeper = threading.Thread(target=self._keep, name="resnap-lease", daemon=True)
            try:
                with _over_here_if_it_fails(self.lease.holder):
                    self.lease.acquire()
                keeper.start()
                self._keeper = keeper
            except (KeyboardInterrupt, RuntimeError):  # the latter where the system gives no more threads
                self._ended.set()
                with suppress(StoreError):
                    self.lease.withdraw()
                raise

    def end(self) -> None:
        """Release the lease, if it was taken; if the store cannot be reached, it expires by itself."""
        self._ended.set()
        if self._keeper is not None:
            self._keeper.join()
            with suppress(StoreError), _over_here_if_it_fails(self.lease.holder):
                self.lease.release()

    def _keep(self) -> None:
        while not self._ended.wait(self.lease.lease_ms / 1000 / _RENEWALS):
            # The working threads notice a failing store; the next renewal may succeed.
            with suppress(StoreError):
                self.lease.renew()


def lease_name(cluster_id: str | None, topic_partition: TopicPartition) -> str:
    """Return the name of a partition's lease, which is the same with and without the topic's id."""
    return f"{key_part(cluster_id)}/{key_part(topic_partition.topic)}/{topic_partition.partition}"


@contextmanager
def _over_here_if_it_fails(holder: Holder) -> Iterator[None]:
    """Free the lease for this process if the store is down while a run ends, whatever the store still has."""
    try:
        yield
    except StoreError:
        _OVER_HERE.add(holder.run)
        raise


@contextmanager
def lease_on(store: ObjectStore, name: str, *, now_ms: int, verb: str = "") -> Iterator[HeldLease]:
    """Yield the lease of ``name``, which the caller takes by ``hold``, and release it at the end.

    Others read that it is held by this process; and for which ``verb``, unless it ships.
    """
    who = f"{gethostname()}, process {os.getpid()}{verb and f' ({verb})'}"
    holder = Holder(run=str(uuid4()), who=who, since_ms=now_ms, process=this_process())
    held = HeldLease(lease=Lease(store=store, name=name, holder=holder))
    try:
        yield held
    finally:
        held.end()


def read_holder(data: bytes) -> Holder:
    """Return who wrote the lease ``data``; an unknown holder if its form is not ours."""
    with suppress(ValueError, RecursionError):
        match json.loads(data):
            case {
                "run": str(run),
                "who": str(who),
                "since_ms": int(since_ms),
                "process": {"machine": str(machine), "number": int(number), "started_ticks": int(ticks)},
            } if 0 <= since_ms <= _LAST_MS:
                process = Process(machine=machine, number=number, started_ticks=ticks)
                return Holder(run=run, who=who, since_ms=since_ms, process=process)
    return _SOMEBODY


def _generation(key: str) -> int:
    """Return the generation of ``key``; 0 if it is not a lease of ours."""
    number = key.rpartition("/")[2]
    return int(number) if number.isascii() and number.isdigit() else 0
