"""Life cycles of layers: how long one is written, and how long it is remembered.

The texts of KIP-936 contradict each other, so the life cycle is data, and each text has its name here. With W the quota
window (``producer.id.quota.window.size.seconds``):

    P-A   written for W,   remembered for 1.5 W: the first text; an id is forgotten after 0.5 W to 1.5 W
    P-B   written for W/2, remembered for 1.5 W: the comment in the KIP's sketch of a class; after W to 1.5 W
    P-C   written for W/2, remembered for W:     the last prose, "two filters, one of them writable"; after 0.5 W to W
    P-L   written for W/4, remembered for W:     the layered filter of the discussion; after 0.75 W to W

Edges: a layer is forgotten at exactly its lifetime, and takes no more ids from exactly its span on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_WINDOW_MS: Final = 3_600_000
"""``producer.id.quota.window.size.seconds``, 3600 of them."""
DEFAULT_LAYERS: Final = 4
"""Layers of P-L in one window."""
MOST_LAYERS: Final = 24
"""Each is looked at for each id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeCycle:
    """One principal's layers over time; all times in milliseconds."""

    span_ms: int
    """How long a layer is written."""
    lifetime_ms: int
    """How long it is remembered, from its first write on."""
    capacity: int | None = None
    """Ids that a layer is made for; None to follow the quota. A layer that holds more is closed early."""
    refresh_on_hit: bool = True
    """Whether an id that is seen again moves on into the newest layer, so that one in use is never charged again."""

    def __post_init__(self) -> None:
        if not 0 < self.span_ms <= self.lifetime_ms:
            raise ValueError(f"a span of {self.span_ms} ms in a lifetime of {self.lifetime_ms} ms")
        if self.layers > MOST_LAYERS:
            raise ValueError(f"{self.layers} layers at a time, the most is {MOST_LAYERS}")
        if self.capacity is not None and self.capacity < 1:
            raise ValueError(f"a layer for {self.capacity} ids")

    @property
    def layers(self) -> int:
        """How many layers are remembered at once at most, but for those that are closed early."""
        return -(-self.lifetime_ms // self.span_ms)


NAMES: Final = ("P-A", "P-B", "P-C", "P-L")
DEFAULT: Final = "P-C"
_PARTS: Final = {"P-A": (2, 3), "P-B": (1, 3), "P-C": (1, 2)}
"""Span and lifetime in halves of the window."""


def life_cycle(
    profile: str = DEFAULT,
    window_ms: int = DEFAULT_WINDOW_MS,
    *,
    layers: int = DEFAULT_LAYERS,
    capacity: int | None = None,
    refresh_on_hit: bool = True,
) -> LifeCycle:
    """Return the life cycle of a named profile; ``layers`` counts for P-L alone.

    Raises:
        ValueError: there is no such profile, or the window is too short to be divided.

    """
    if profile == "P-L":
        span_ms, lifetime_ms = window_ms // layers, window_ms
    elif profile in _PARTS:
        span, lifetime = _PARTS[profile]
        span_ms, lifetime_ms = window_ms * span // 2, window_ms * lifetime // 2
    else:
        raise ValueError(f"there is no profile {profile!r}: {', '.join(NAMES)}")
    return LifeCycle(span_ms=span_ms, lifetime_ms=lifetime_ms, capacity=capacity, refresh_on_hit=refresh_on_hit)
