"""The size of a Bloom filter: bits and hashes from items and false positive rate, and back.

Source: Bloom (1970); the formulas are those that Guava, Cassandra and the KIP's sketch use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MAX_BITS: Final = (1 << 32) - 1
"""Places are found by 32 bits of a hash."""
_BITS_PER_WORD: Final = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """How many bits a filter has, and how many of them each item sets."""

    bits: int
    hashes: int

    @property
    def size_bytes(self) -> int:
        """Memory for the bits, in whole words of 64."""
        return -(-self.bits // _BITS_PER_WORD) * _BITS_PER_WORD // 8

    def false_positive_rate(self, items: float) -> float:
        """Return the probability that an item is found that is none of ``items`` others."""
        return float((1 - math.exp(-self.hashes * items / self.bits)) ** self.hashes)


def shape_for(items: int, false_positive_rate: float) -> Shape:
    """Return the smallest filter that keeps to ``false_positive_rate`` while it holds up to ``items``.

    Raises:
        ValueError: fewer than one item, a rate outside (0, 1), or more bits than a filter may have.

    """
    if items < 1 or not 0 < false_positive_rate < 1:
        raise ValueError(f"no filter for {items} items at a false positive rate of {false_positive_rate}")
    bits = math.ceil(-items * math.log(false_positive_rate) / math.log(2) ** 2)
    hashes = max(1, round(bits / items * math.log(2)))
    bits = max(bits, hashes + 1)
    if bits > MAX_BITS:
        raise ValueError(f"{items} items at {false_positive_rate} need {bits} bits, the most is {MAX_BITS}")
    return Shape(bits, hashes)


def rate_of_one(joint: float, filters: int) -> float:
    """Return the false positive rate of each of ``filters`` so that any of them errs with ``joint``."""
    return float(-math.expm1(math.log1p(-joint) / filters))
