"""Random access to an object of a store, by range requests, a few of them in flight at a time.

Sequential reads are prefetched, so that a scan does not wait for each response; memory is bounded by the number of
ranges times their size, whatever the size of the object. A hop over more than a range stops the prefetching: if batches
are larger than a range, only the requested bytes are fetched, never those between.

All ranges are of the object's version at the time the reader was opened.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import StoreUnavailableError
from resnap.storage.stores import RANGE_BYTES, RANGES_IN_FLIGHT
from resnap.storage.stores.protocol import OpeningStore, object_changed_error
from resnap.storage.threads import Threads, pause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

_ATTEMPTS: Final = 3
"""At one range: a client repeats requests by itself, but not a body that breaks off."""
_PAUSE_S: Final = 0.2
FIRST_BYTES: Final = 64 << 10
"""Requested with the facts of an object: a small one comes whole, by one request."""


class _Range(NamedTuple):
    """Bytes [start, end), fetched or in flight."""

    start: int
    end: int
    data: Future[bytes]


@contextmanager
def ranged_reader(
    store: ObjectStore,
    key: str,
    *,
    ranges_in_flight: int = RANGES_IN_FLIGHT,
    range_bytes: int = RANGE_BYTES,
    end: int | None = None,
) -> Iterator[RangedReader]:
    """Open the object at ``key`` for as long as the context lasts; nothing is read ahead beyond ``end``.

    Raises:
        ObjectNotFoundError: there is none.
        StoreError: the store failed.

    """
    found, first = _open_object(store, key, min(FIRST_BYTES, range_bytes, FIRST_BYTES if end is None else end))
    with Threads(ranges_in_flight, thread_name_prefix="resnap-range") as threads:
        try:
            yield RangedReader(
                store,
                key,
                found,
                first,
                threads,
                ranges_in_flight=ranges_in_flight,
                range_bytes=range_bytes,
                end=found.size_bytes if end is None else min(end, found.size_bytes),
            )
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _open_object(store: ObjectStore, key: str, length: int) -> tuple[ObjectInfo, bytes]:
    """Return the facts of an object, and its first ``length`` bytes where they come with the facts."""
    if length and isinstance(store, OpeningStore):
        with suppress(StoreUnavailableError):  # asking for the facts alone is repeated
            found, first = store.first(key, length)
            return found, first if len(first) == min(length, found.size_bytes) else b""
    return store.head(key), b""


class RangedReader:
    """A ``RangeReader`` of an object; one thread may use it."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        found: ObjectInfo,
        first: bytes,
        threads: Threads,
        *,
        ranges_in_flight: int,
        range_bytes: int,
        end: int,
    ) -> None:
        self.locator = f"{store.url}/{key}"
        self.etag = found.etag
        """The etag of the version that is read."""
        self.size_bytes, self.modified_ms = found.size_bytes, found.modified_ms
        self._store, self._key, self._threads = store, key, threads
        self._most, self._range_bytes, self._end = ranges_in_flight, range_bytes, end
        self._window: deque[_Range] = deque()
        """Adjacent and ascending; at most ``_most``."""
        if first:
            begun: Future[bytes] = Future()
            begun.set_result(first)
            self._window.append(_Range(0, len(first), begun))
        self._read_to: int | None = None
        """Where the read before this one ended; None before the first."""

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end.

        Raises:
            ObjectNotFoundError, ObjectChangedError: the object was deleted or replaced since it was opened.
            StoreError: the store failed.

        """
        end = min(position + length, self.size_bytes)
        if position >= end:
            return b""
        if self._window and position < self._window[0].start:
            return self._fetch(position, end)  # a read backwards, which changes nothing
        step, wanted = self._plan(position, end)
        while self._window and self._window[0].end <= position:
            self._window.popleft().data.cancel()
        pieces, at = [], position
        while at < end:
            self._send(at, wanted, step)
            first = self._window[0]
            pieces.append(memoryview(first.data.result())[at - first.start : end - first.start])
            at = min(end, first.end)
            if at < end:
                self._window.popleft()
        self._read_to = end
        return b"".join(pieces)

    def _plan(self, position: int, end: int) -> tuple[int, int]:
        """Return the size of the next ranges, and up to where they are wanted."""
        if self._read_to is None:
            return self._range_bytes, max(end, min(position + self._range_bytes, self._end))
        if position - self._read_to > self._range_bytes:
            return min(end - position, self._range_bytes), end
        return self._range_bytes, max(end, self._end)

    def _send(self, at: int, wanted: int, step: int) -> None:
        """Request what is wanted from ``at`` on and not in flight yet, within the limit."""
        start = self._window[-1].end if self._window else at
        while start < wanted and len(self._window) < self._most:
            end = min(start + step, wanted)
            self._window.append(_Range(start, end, self._threads.submit(self._fetch, start, end)))
            start = end

    def _fetch(self, start: int, end: int) -> bytes:
        """Return [start, end), which is not empty and is within the object."""
        for attempt in range(1, _ATTEMPTS):
            try:
                return self._fetch_once(start, end)
            except StoreUnavailableError:
                if not pause(_PAUSE_S * attempt):
                    raise
        return self._fetch_once(start, end)

    def _fetch_once(self, start: int, end: int) -> bytes:
        data = self._store.get_range(self._key, start, end, etag=self.etag)
        if len(data) != end - start:
            raise object_changed_error(self.locator, self._key)
        return data
