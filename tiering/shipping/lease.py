"""One run at a time at one partition in a store: a lease saves work, and nothing depends on it.

A lease is an object, ``.resnap/lease/<place>/<generation>``; who wrote the highest generation holds it, for as long as
the object is renewed. To take over what was not renewed for ``LEASE_MS``, by the store's own clock, or what a
process of this machine held that is dead, is to create the next generation on condition that it is not there: of
several who try, one succeeds. So no store needs to know more than ``If-None-Match``, and where it ignores even that,
two runs may at worst both do the work. A holder that was stopped, or whose machine was suspended, finds out by its own
clock before its next step; should it have looked just before, it writes objects that are named by their content, and a
manifest that is as true as the other's, or deletes under an id that is not used again (``storage.layouts.manifest``).
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from resnap.storage.errors import LockedError, ObjectExistsError, ObjectNotFoundError, StoreError
from resnap.storage.processes import Process, this_process, uptime_ms
from resnap.storage.stores.key_part import key_part
from resnap.storage.stores.probe import store_clock_ms

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


class LeaseLostError(LockedError):
    """Another run has taken over, since this one did not renew its lease for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lease."""

    run: str
    who: str
    since_ms: int
    """By the clock of the holder."""
    process: Process

    @property
    def description(self) -> str:
        """Who, and since when."""
        return f"{self.who}, since {datetime.fromtimestamp(self.since_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


_OVER_HERE: Final[set[str]] = set()
"""Runs of this process that have ended and could not say the store, which was down: they hold nothing any more."""
_NO_PROCESS: Final = Process(machine="", number=0, started_ticks=0)
_SOMEBODY: Final = Holder(run="", who="a run that left no name", since_ms=0, process=_NO_PROCESS)


@dataclass(slots=True, kw_only=True)
class Lease:
    """The lease of one place, taken by ``acquire``."""

    store: ObjectStore
    place: str
    """Names what is leased, as a part of a key."""
    holder: Holder
    lease_ms: int = LEASE_MS
    clock_ms: Callable[[], int] = uptime_ms
    """Goes on while the machine is suspended, and is never set."""
    _key: str = field(default="", init=False)
    _lost: Holder | None = field(default=None, init=False)
    _sure_until_ms: int = field(default=0, init=False)
    """By the same clock: up to then no other run can have taken over."""

    def acquire(self) -> None:
        """Take the lease, if it is free, or was not renewed for long.

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
        """Make sure that no other run was seen to have taken over, and that none could have without being seen.

        Raises:
            LeaseLostError: one has, or could.

        """
        hint = "this run had stopped for too long; run again once the other is done"
        if self._lost is not None:
            raise LeaseLostError(f"{self.place}: taken over by {self._lost.description}", hint=hint)
        if not self._is_sure:
            raise LeaseLostError(
                f"{self.place}: this run could not renew its lease for {self._sure_ms // 1000} s, and another one may"
                " have taken over: the run or its machine was stopped, or the store did not answer",
                hint="run again: what is done is not done twice",
            )

    def renew(self) -> None:
        """Say that the holder is still there; ``check`` knows from then on if it no longer is the holder."""
        now_ms = self.clock_ms()
        newest = self._newest()
        if newest is not None and newest.key > self._key:
            self._lost = self._holder(newest.key) or _SOMEBODY
        elif self._is_sure:
            self.store.put(self._key, self._body())
            self._sure_until_ms = now_ms + self._sure_ms

    def release(self) -> None:
        """Let go of the lease; one that another run has taken over, or may have, is left to it."""
        if self._is_sure:
            self.store.delete(self._key)

    @property
    def _is_sure(self) -> bool:
        return self.clock_ms() < self._sure_until_ms

    @property
    def _sure_ms(self) -> int:
        return self.lease_ms * 9 // 10

    def withdraw(self) -> None:
        """Let go of the lease after an interrupt in ``acquire``, if it had come so far."""
        if self._key and self._holder(self._key) == self.holder:
            self.release()

    def _refuse_fresh(self, newest: ObjectInfo) -> None:
        holder = self._holder(newest.key)
        if holder is None or holder.process.is_dead or holder.run in _OVER_HERE:
            return
        if store_clock_ms(self.store) - newest.modified_ms < self.lease_ms:
            raise self._held(holder)

    def _held(self, holder: Holder) -> LockedError:
        return LockedError(
            f"{self.place}: another run is at work there: {holder.description}",
            hint=f"wait until it is done; else its lease ends after {self.lease_ms // 1000} s without a sign",
        )

    def _create(self, generation: int) -> bool:
        """Write the lease of ``generation``, unless another run has; what is older goes."""
        self._key = f"{LEASE_PREFIX}/{self.place}/{generation:0{_GENERATION_DIGITS}d}"
        with suppress(ObjectExistsError):
            self.store.put(self._key, self._body(), if_absent=True)
        # Also after a success: the store may have ignored the condition, and another writer may have been later.
        if self._holder(self._key) != self.holder:
            return False
        for info in self.store.list(f"{LEASE_PREFIX}/{self.place}/"):
            if info.key < self._key:
                self.store.delete(info.key)
        return True

    def _newest(self) -> ObjectInfo | None:
        return max(self.store.list(f"{LEASE_PREFIX}/{self.place}/"), key=lambda info: info.key, default=None)

    def _body(self) -> bytes:
        return json.dumps(asdict(self.holder)).encode()

    def _holder(self, key: str) -> Holder | None:
        """Return who wrote ``key``; None if it is gone."""
        try:
            return read_holder(self.store.get(key))
        except ObjectNotFoundError:
            return None


@dataclass(slots=True, kw_only=True)
class Tenure:
    """A lease that is taken when it is first needed, and renewed from then on by a thread of its own."""

    lease: Lease
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _keeper: threading.Thread | None = field(default=None, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)

    def hold(self) -> None:
        """Take the lease, or make sure that it is still held; called before each step that others must not do, too.

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
        """Let go of the lease, if it was taken; where the store does not hear of it, it ends by itself."""
        self._ended.set()
        if self._keeper is not None:
            self._keeper.join()
            with suppress(StoreError), _over_here_if_it_fails(self.lease.holder):
                self.lease.release()

    def _keep(self) -> None:
        while not self._ended.wait(self.lease.lease_ms / 1000 / _RENEWALS):
            # A store in trouble is noticed by those who work; the next renewal may go through.
            with suppress(StoreError):
                self.lease.renew()


def lease_place(cluster_id: str | None, topic_partition: TopicPartition) -> str:
    """Return what the lease of a partition is called, whatever its topic's id is known to be."""
    return f"{key_part(cluster_id)}/{key_part(topic_partition.topic)}/{topic_partition.partition}"


@contextmanager
def _over_here_if_it_fails(holder: Holder) -> Iterator[None]:
    """Keep no run of this process out by what the store has, or may have, of a run that ends because it is down."""
    try:
        yield
    except StoreError:
        _OVER_HERE.add(holder.run)
        raise


@contextmanager
def leased(store: ObjectStore, place: str, *, who: str, now_ms: int, lease_ms: int = LEASE_MS) -> Iterator[Tenure]:
    """Give the lease of ``place``, which the caller takes by ``hold``, and let go of it with the context."""
    holder = Holder(run=str(uuid4()), who=who, since_ms=now_ms, process=this_process())
    tenure = Tenure(lease=Lease(store=store, place=place, holder=holder, lease_ms=lease_ms))
    try:
        yield tenure
    finally:
        tenure.end()


def read_holder(data: bytes) -> Holder:
    """Return who wrote the lease ``data``; somebody, where it is not in a form of ours."""
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
    """Return the generation that ``key`` is of; 0 for what is no lease of ours."""
    number = key.rpartition("/")[2]
    return int(number) if number.isascii() and number.isdigit() else 0
