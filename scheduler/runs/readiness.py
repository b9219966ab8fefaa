"""Can tiering be turned on yet? The answer for one partition, from what a scan showed and what runs have made since."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from resnap.tiering.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Readiness(StrEnum):
    """What a stock broker with tiering on would make of a partition, and what can be done about it."""

    READY = "ready"
    """It tiers every closed segment."""
    SHIPPED = "shipped"
    """It would stop, but all that may be tiered lies in a store already."""
    PREPARED = "prepared"
    """It would stop; the snapshots it lacks are made, and are to be put beside the segments."""
    BLOCKED = "blocked"
    """It stops; a replay makes what it lacks."""
    UNFIT = "unfit"
    """It stops, and something stands in the way of a replay, too."""
    EXCLUDED = "excluded"
    """Compacted: nobody can tier it."""

    @property
    def is_good(self) -> bool:
        """Whether nothing is left to be made."""
        return self in _GOOD


_GOOD: Final = frozenset({Readiness.READY, Readiness.SHIPPED, Readiness.PREPARED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What a run has made of a partition."""

    how: Literal["regenerated", "shipped"]
    destination: str
    offsets: frozenset[int]
    """Boundaries for which there is a snapshot, or a shipped segment, now."""
    run_id: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The answer, why, and the next step."""

    readiness: Readiness
    reason: str | None
    """Code of what a broker, or Resnap, stops at first."""
    detail: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why tiering stops at a segment."""

    reason: str
    detail: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFacts:
    """What the answer for one partition depends on.

    Attributes:
        is_compacted: whether it cannot be tiered at all.
        lost: boundaries without a usable snapshot.
        broker_stop: where a broker's own tiering stops.
        blocking: where Resnap stops.

    """

    is_compacted: bool
    lost: frozenset[int]
    broker_stop: Stop | None
    blocking: Stop | None


def facts_in(row: Mapping[str, Any]) -> ScanFacts:
    """Return the facts of a row of ``scan``, as it is kept."""
    return ScanFacts(
        is_compacted=row["compaction"] == "compacted",
        lost=frozenset(one["offset"] for one in row["lostBoundaries"]),
        broker_stop=_stop_in(row["brokerStops"]),
        blocking=_stop_in(row["blocking"]),
    )


def _stop_in(refusal: Mapping[str, str] | None) -> Stop | None:
    if refusal is None:
        return None
    return Stop(reason=refusal["reason"], detail=refusal["detail"], hint=refusal["hint"])


def judge(facts: ScanFacts, repairs: Sequence[Repair]) -> Judgement:
    """Return the answer for a partition, by what a scan showed and what runs have made of it since."""
    stop, blocking = facts.broker_stop, facts.blocking
    if facts.is_compacted:
        why = blocking or Stop(reason="", detail="compacted topics cannot be tiered", hint="leave the topic out")
        return _answer(Readiness.EXCLUDED, "compacted", why.detail, why.hint)
    if stop is None:
        return _answer(Readiness.READY, None, "a broker can tier every closed segment", "turn tiering on")
    lacks_snapshots = stop.reason == Reason.MISSING_SNAPSHOT
    for repair in repairs if facts.lost else ():
        if not facts.lost <= repair.offsets:
            continue
        if repair.how == "shipped":
            step = f"all that may be tiered is in {repair.destination}"
            return _answer(Readiness.SHIPPED, stop.reason, stop.detail, step)
        if lacks_snapshots:
            step = f"stop the broker, then `resnap install {repair.destination} LOG_DIR`"
            return _answer(Readiness.PREPARED, stop.reason, stop.detail, step)
    if blocking is not None:
        return _answer(Readiness.UNFIT, blocking.reason, blocking.detail, blocking.hint)
    step = "start a replay: `resnap regenerate`, or `resnap tier`" if lacks_snapshots else stop.hint
    return _answer(Readiness.BLOCKED, stop.reason, stop.detail, step)


def _answer(readiness: Readiness, reason: str | None, detail: str, next_step: str) -> Judgement:
    return Judgement(readiness=readiness, reason=reason, detail=detail, next_step=next_step)
