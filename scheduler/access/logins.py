"""How often an address may fail: a bucket of attempts each, which fills again by itself; memory is bounded."""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from scheduler.clock import Clock

BURST: Final = 10
REFILL_S: Final = 6.0
ADDRESSES: Final = 4096
"""Remembered at most; the one that was heard of least lately makes room, and begins anew."""
_SITE_PREFIX: Final = 64


class _Bucket(NamedTuple):
    left: float
    at_s: float


class AttemptLimit:
    """Counts attempts by address: ``burst`` at once, then one every ``refill_s``. Thread-safe.

    It does not keep a right token out: 256 random bits are not guessed, at any rate, and behind a proxy or on the
    loopback interface one client with a stale token would lock out all. What it bounds is what failures cost: entries
    in the audit, lines in the log.
    """

    def __init__(
        self, clock: Clock, *, burst: int = BURST, refill_s: float = REFILL_S, addresses: int = ADDRESSES
    ) -> None:
        self._clock, self._burst, self._refill_s, self._addresses = clock, burst, refill_s, addresses
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, address: str) -> float:
        """Count an attempt; return 0 if it was within the limit, else the seconds until the next one will be."""
        key, now_s = site_of(address), self._clock.monotonic_s()
        with self._guard:
            bucket = self._buckets.pop(key, _Bucket(self._burst, now_s))
            left = min(self._burst, bucket.left + (now_s - bucket.at_s) / self._refill_s)
            within = left >= 1
            self._buckets[key] = _Bucket(left - 1 if within else left, now_s)
            while len(self._buckets) > self._addresses:
                self._buckets.popitem(last=False)
        return 0.0 if within else (1 - left) * self._refill_s

    def __len__(self) -> int:
        return len(self._buckets)


def site_of(address: str) -> str:
    """Return whom an address is counted for: of IPv6 the first 64 bits, since a site has all the rest to itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:  # noqa: PLR2004
        return str(parsed)
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((parsed, _SITE_PREFIX), strict=False))
