"""Writes one object into a store, and makes sure that the store holds the intended bytes.

The store's own check of our checksums is sufficient only if it was seen to refuse a wrong one and to write nothing
(``storage.stores.probe``), which is tested once per run, before the first object. Otherwise, and whenever the user
wants it, the whole object is read back. A length, an ETag, or a checksum that a store merely echoes prove nothing.

Where a store was seen to refuse a conditional write to a taken key, segments of other runs are not looked for again
before that write: the lease keeps them away, and a deletion takes the key of a manifest first.

If the store already holds an object with the same bytes, it copies it itself, if it was seen to do that correctly, too:
from the version that was read, and with its checksum.
"""

from __future__ import annotations

import io
import math
import threading
import time
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, TypeAlias, cast

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import (
    ObjectChangedError,
    ObjectNotFoundError,
    ResnapError,
    StoreError,
    VerificationError,
)
from resnap.storage.stores.probe import Condition, condition_of_one, copy_problem, upload_checks
from resnap.storage.stores.protocol import CopyingStore, StoredBody, WireStore, length_of
from resnap.storage.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.storage.layouts.segments import NewObject
    from resnap.storage.stores.protocol import ObjectStore

Verification: TypeAlias = Literal["auto", "read-back"]

_LISTED_AT_ONCE: Final = 1000
"""Objects looked for by one listing: what a page of it holds."""
_FRESH_S: Final = 10.0
"""How long what a listing has shown counts as there; a manifest may wait longer for the one before it."""
_ENDED: Final = "the run was ended while objects were being sent"


class AbandonedError(ResnapError):
    """The run is ending: work in progress is dropped."""


@dataclass(slots=True)
class Proof:
    """The promises that a store was seen to keep, once it was tested."""

    counts: bool | None = None
    """Whether its checks of what is written count."""
    conditions: bool | None = None
    """Whether it refuses to write where something is, if it is told to."""
    copies: bool | None = None
    """Whether it copies objects that it holds correctly."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True, kw_only=True)
class Delivery:
    """Puts objects into ``store``, from several threads at once."""

    store: ObjectStore
    verification: Verification = "auto"
    throttle: Throttle = field(default_factory=Throttle)
    """On what is sent, and on what is read back."""
    warn: Callable[[str], None] = lambda _: None
    """Called, once, with why the store does not copy objects that it holds already."""
    proof: Proof = field(default_factory=Proof)
    _whole: Delivery | None = None
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _written: dict[str, int] = field(default_factory=dict, init=False)
    """The length of each object that was noted as written, and that no listing has shown yet."""
    _shown: dict[str, float] = field(default_factory=dict, init=False)
    """When a listing has shown an object that nobody has asked for yet, by key."""

    def part(self) -> Delivery:
        """Return a delivery to the same store, within the same limits, that can be stopped separately."""
        return replace(self, _whole=self)

    @property
    def reads_back(self) -> bool:
        """Whether objects are read back; tests the store, the first time.

        Raises:
            StoreError: the store failed.

        """
        proof = self.proof
        with proof.lock:
            if proof.counts is None:
                proof.counts = self.verification == "auto" and upload_checks(self.store).count
        return not proof.counts

    @property
    def keeps_conditions(self) -> bool:
        """Whether the store refuses to write where something is; tests one that others serve, the first time.

        Raises:
            StoreError: the store failed.

        """
        proof, store = self.proof, self.store
        with proof.lock:
            if proof.conditions is None:
                proof.conditions = not isinstance(store, WireStore) or condition_of_one(store) is Condition.KEPT
        return proof.conditions

    def _has_copied(self, one: NewObject) -> bool:
        """Let the store copy ``one`` from an object that it holds; return False if it must be sent."""
        store, source, proof = self.store, one.open_body, self.proof
        if not isinstance(source, StoredBody) or not isinstance(store, CopyingStore):
            return False
        if _scheme(source.store_url) != _scheme(store.url):
            return False
        try:
            with proof.lock:
                if proof.copies is None:
                    self._copies_unless(copy_problem(store))
            if proof.copies:
                self.check_going_on()
                store.copy(source, one.key, size_bytes=one.size_bytes, crc32c=one.crc32c)
        except (ObjectChangedError, ObjectNotFoundError):
            raise
        except StoreError as error:
            self._copies_unless(str(error))
        return proof.copies is True

    def _copies_unless(self, problem: str | None) -> None:
        """Record whether the store copies from here on, and report why it does not."""
        was_known_not_to, self.proof.copies = self.proof.copies is False, problem is None
        if problem is not None and not was_known_not_to:
            self.warn(f"what the store holds already is read and sent to it once more: {problem}")

    @property
    def is_stopped(self) -> bool:
        """Whether this delivery, or the one it is a part of, was stopped."""
        return self._stop.is_set() or (self._whole is not None and self._whole.is_stopped)

    def stop(self) -> None:
        """Drop all work in progress, in all threads: their next read of a body raises ``AbandonedError``."""
        self._stop.set()

    def check_going_on(self) -> None:
        """Check that the delivery was not stopped.

        Raises:
            AbandonedError: ``stop`` was called.

        """
        if self.is_stopped:
            raise AbandonedError(_ENDED)

    def deliver(self, one: NewObject) -> None:
        """Write an object, and make sure that the store holds it as intended.

        Raises:
            VerificationError: the body did not match its length or checksum, or differs when read back.
            AbandonedError: ``stop`` was called.
            StoreError: the store refused or failed.

        """
        reads_back = self.reads_back

        def opened() -> BinaryIO:
            return cast("BinaryIO", _Paced(one.open_body(), self))

        if not self._has_copied(one):
            self.store.put_stream(one.key, opened, size_bytes=one.size_bytes, crc32c=one.crc32c, sha256=one.sha256)
        if reads_back:
            self.verify(one.key, size_bytes=one.size_bytes, checksum=one.crc32c)

    def note_written(self, objects: Iterable[NewObject]) -> None:
        """Have the next listing of ``missing`` look for ``objects`` as well, which are delivered."""
        self._written.update({one.key: one.size_bytes for one in objects})

    def missing(self, objects: Sequence[NewObject]) -> Iterator[str]:
        """Yield the keys of ``objects``, of one folder, that the store does not have, or has in another length.

        A listing shows them together, with what was noted as written before it and follows them; what it has shown is
        looked for again after ``_FRESH_S``. Of a directory it would read the names of the whole partition.
        """
        stale_s = time.monotonic() - _FRESH_S
        self.note_written(one for one in objects if self._shown.get(one.key, -math.inf) <= stale_s)
        if isinstance(self.store, WireStore) and any(one.key in self._written for one in objects):
            self._list_written(self.store, min(one.key for one in objects))
        for one in objects:
            self._shown.pop(one.key, None)
            if self._written.pop(one.key, None) is not None and length_of(self.store, one.key) != one.size_bytes:
                yield one.key

    def _list_written(self, store: WireStore, first: str) -> None:
        """List what was written from the key ``first`` on, in one page: what others have between takes its place."""
        written, now_s = self._written.copy(), time.monotonic()  # what is noted later may be written after the listing
        folder = first[: first.rindex("/") + 1]
        keys = sorted(key for key in written if key >= first and key.startswith(folder))[:_LISTED_AT_ONCE]
        listed = store.list(folder, page_keys=len(keys), after=first.rpartition(".")[0])
        for info in islice(listed, len(keys)):
            if written.get(info.key) == info.size_bytes:
                del self._written[info.key]
                self._shown[info.key] = now_s
            if info.key >= keys[-1]:
                return

    def verify(self, key: str, *, size_bytes: int, checksum: int) -> None:
        """Read the object at ``key`` whole and compare it with its expected length and checksum.

        Raises:
            VerificationError: it is missing, or has another length or CRC-32C.
            AbandonedError: ``stop`` was called.

        """
        found_size, found = 0, 0
        try:
            with self.store.open(key) as chunks:
                for chunk in chunks:
                    self.pace(len(chunk))
                    found_size += len(chunk)
                    found = crc32c(chunk, found)
        except ObjectNotFoundError as error:
            raise VerificationError(f"{key}: not there", hint="run the same command again") from error
        if (found_size, found) != (size_bytes, checksum):
            raise VerificationError(
                f"{key}: expected {size_bytes} bytes with CRC-32C {checksum:08x}, read {found_size} with {found:08x}",
                hint="the store, or something between, changes bytes: `resnap doctor URL` tests it",
            )

    def pace(self, size_bytes: int) -> None:
        """Wait until ``size_bytes`` may pass, unless the run is ending."""
        self.check_going_on()
        if not self.throttle.take(size_bytes, lambda: not self.is_stopped):
            raise AbandonedError(_ENDED)


def _scheme(url: str) -> str:
    return url.partition("://")[0]


class _Paced(io.BufferedIOBase):
    """A body that is read within the rate limit, and only while the run continues."""

    def __init__(self, body: BinaryIO, delivery: Delivery) -> None:
        self._body, self._delivery = body, delivery

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes of the body."""
        data = self._body.read(-1 if size is None else size)
        self._delivery.pace(len(data))
        return data

    def close(self) -> None:
        """Close the body, too."""
        self._body.close()
        super().close()
