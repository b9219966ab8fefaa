"""Very many batches of very many producers, drawn by columns: who writes next, how much, and when transactions end.

It makes millions of batches a second, for logs that are to be as large as an operator's. Each batch is one producer's
turn. A transaction ends right after a batch, or once its producer has been silent for a while; a few of them are
aborted, of which some by the coordinator, at the next epoch, which fences the client (KIP-360).

What is drawn follows from traffic, sizes and seed alone. What a broker would make of it is ``traffic_state``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

DAY_MS: Final = 86_400_000
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NO_PRODUCERS: Final = -1
"""Number of the producer of a batch without producer id."""
_NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What happens, and how often. A share is a probability between 0 and 1."""

    producers: int = 10_000
    skew: float = 1.0
    """Exponent of Zipf's law for how often each producer has its turn; 0 is all alike."""
    transactional_share: float = 0.2
    """Share of the producers that are transactional: every n-th of them, the most frequent one included."""
    plain_share: float = 0.05
    """Share of the batches that have no producer id."""
    end_share: float = 0.5
    """Share of the transactional batches after which the transaction ends at once."""
    linger_ms: int = 60_000
    """Silence after which a transaction ends that did not end at once."""
    abort_share: float = 0.01
    """Share of the transactions that are aborted."""
    fence_share: float = 0.1
    """Share of the aborts that the coordinator writes, at the next epoch."""
    records: int = 1
    """Number of records in each data batch."""
    start_ms: int = 1_700_000_000_000
    ms_per_batch: float = 10.0
    """How far apart the data batches are."""
    batches_per_leader: int = 0
    """Data batches after which the leader epoch, and with it the coordinator's, rises by one; 0 is never."""
    first_producer_id: int = 1000

    def is_transactional(self, producers: Ints) -> Bools:
        """Return which producers, by their numbers, have transactions."""
        if not self.transactional_share:
            return np.zeros(len(producers), dtype=np.bool_)
        chosen: Bools = (producers % round(1 / self.transactional_share) == 0) & (producers != NO_PRODUCERS)
        return chosen


class Turns(NamedTuple):
    """Batches in offset order, a column each."""

    producer: Ints
    """Number from 0 on, the most frequent one first, or ``NO_PRODUCERS``."""
    is_marker: Bools
    is_commit: Bools
    """Whether a marker commits."""
    is_fence: Bools
    """Whether the marker is at the epoch after the client's, which goes on at the one after that."""
    shape: Ints
    """Index into the sizes."""
    size_bytes: Ints
    timestamp: Ints
    """Milliseconds, never falling."""
    leader_epoch: Ints


class TurnSource:
    """Draws the batches of one partition, some at a time."""

    def __init__(self, traffic: Traffic, sizes: Sequence[int], marker_bytes: int, *, seed: int) -> None:
        """Begin.

        Args:
            traffic: what happens.
            sizes: of data batches, in bytes, from which each draws one.
            marker_bytes: size of a batch with a marker, whose shape is ``len(sizes)``.
            seed: equal seeds give equal batches.

        """
        self._traffic = traffic
        self._sizes = np.array([*sizes, marker_bytes], dtype=np.int64)
        self._mean_bytes = sum(sizes) / len(sizes)
        self._random = np.random.default_rng(seed)
        weights = 1 / np.arange(1, traffic.producers + 1, dtype=np.float64) ** traffic.skew
        self._cumulative = np.cumsum(weights) / weights.sum()
        self._linger = max(1, round(traffic.linger_ms / traffic.ms_per_batch))
        self._tick = 0
        """Number of the data batch to come."""
        self._open = np.zeros(0, dtype=np.int64)
        """Producers with an open transaction, ascending, and the tick of their last batch."""
        self._open_ticks = np.zeros(0, dtype=np.int64)

    def draw(self, *, room_bytes: int, at_most: int) -> Turns:
        """Return the next batches, as many as ``room_bytes`` and ``at_most`` allow; none if not even one fits."""
        count = min(at_most, int(room_bytes / self._mean_bytes) + 8)
        ticks = self._tick + np.arange(count)
        producers = self._draw_producers(count)
        ends = self._random.random(count) < self._traffic.end_share
        shapes = self._random.integers(len(self._sizes) - 1, size=count)
        ending, keys = self._endings(producers, ends, ticks)
        order = np.argsort(np.concatenate((2 * ticks, keys)), kind="stable")
        shapes = np.concatenate((shapes, np.full(len(ending), len(self._sizes) - 1)))[order]
        # Nothing is drawn below this line, so that what does not fit leaves no trace.
        fitting = int(np.searchsorted(np.cumsum(self._sizes[shapes]), room_bytes, side="right"))
        order, shapes = order[:fitting], shapes[:fitting]
        turns = self._turns(order, shapes, np.concatenate((producers, ending)), np.concatenate((2 * ticks, keys)))
        self._remember(turns)
        return turns

    def _draw_producers(self, count: int) -> Ints:
        drawn = np.searchsorted(self._cumulative, self._random.random(count)).clip(max=self._traffic.producers - 1)
        drawn[self._random.random(count) < self._traffic.plain_share] = NO_PRODUCERS
        return drawn

    def _endings(self, producers: Ints, ends: Bools, ticks: Ints) -> tuple[Ints, Ints]:
        """Return whose transactions end, and where: twice the tick of the data batch before the marker, plus one."""
        mine = np.flatnonzero(self._traffic.is_transactional(producers))
        who = np.concatenate((self._open, producers[mine]))
        when = np.concatenate((self._open_ticks, ticks[mine]))
        at_once = np.concatenate((np.zeros(len(self._open), dtype=bool), ends[mine]))
        order = np.argsort(who, kind="stable")
        who, when, at_once = who[order], when[order], at_once[order]
        same = who[1:] == who[:-1]
        next_turn = np.append(np.where(same, when[1:], _NEVER), _NEVER)[: len(who)]
        late = when + self._linger
        lingers = ~at_once & (next_turn > late) & (late < self._tick + len(ticks))
        ended = at_once | lingers
        return who[ended], np.maximum(2 * np.where(at_once, when, late) + 1, 2 * self._tick - 1)[ended]

    def _turns(self, order: Ints, shapes: Ints, producers: Ints, keys: Ints) -> Turns:
        is_marker = shapes == len(self._sizes) - 1
        # A hash of the position decides how it ends: a draw would change all that follows, even if this does not fit.
        dice = ((keys[order] * 0x9E3779B1 ^ producers[order] * 0x85EBCA77) & 0xFFFFFFFF) / 2**32
        is_abort = is_marker & (dice < self._traffic.abort_share)
        ticks = keys[order] >> 1
        every = self._traffic.batches_per_leader
        return Turns(
            producer=producers[order],
            is_marker=is_marker,
            is_commit=is_marker & ~is_abort,
            is_fence=is_abort & (dice < self._traffic.abort_share * self._traffic.fence_share),
            shape=shapes,
            size_bytes=self._sizes[shapes],
            timestamp=self._traffic.start_ms + (ticks * self._traffic.ms_per_batch).astype(np.int64),
            leader_epoch=np.maximum(ticks, 0) // every if every else np.zeros(len(ticks), dtype=np.int64),
        )

    def _remember(self, turns: Turns) -> None:
        """Move on past ``turns``, and keep which transactions they leave open."""
        data = ~turns.is_marker
        ticks = self._tick + np.cumsum(data) - 1
        self._tick += int(data.sum())
        mine = np.flatnonzero(self._traffic.is_transactional(turns.producer))
        who = np.concatenate((self._open, turns.producer[mine]))
        when = np.concatenate((self._open_ticks, ticks[mine]))
        closed = np.concatenate((np.zeros(len(self._open), dtype=bool), turns.is_marker[mine]))
        order = np.argsort(who, kind="stable")
        last = order[np.append(who[order][1:] != who[order][:-1], True)[: len(order)]]
        last = last[~closed[last]]
        self._open, self._open_ticks = who[last], when[last]
