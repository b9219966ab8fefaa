"""Random record values for generated logs, cheap enough not to be what a benchmark measures."""

from __future__ import annotations

from random import Random
from typing import Final

POOL_BYTES: Final = 1 << 16


class Payloads:
    """Values cut from a pool of random bytes: drawing each byte anew would take longer than all the rest."""

    def __init__(self, seed: int) -> None:
        """Fill the pool; equal seeds give equal values for equal draws."""
        self._random = Random(seed)  # noqa: S311 - has to be repeatable, not secret
        self._pool = self._random.randbytes(POOL_BYTES)

    def draw(self, count: int, size_bytes: int) -> list[bytes]:
        """Return ``count`` values of ``size_bytes`` each."""
        while len(self._pool) < 2 * size_bytes:
            self._pool += self._random.randbytes(len(self._pool))
        room = len(self._pool) - size_bytes
        starts = [int(self._random.random() * room) for _ in range(count)]
        return [self._pool[start : start + size_bytes] for start in starts]
