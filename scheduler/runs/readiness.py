"""Can tiering be turned on yet? The answer for one partition, from what a scan showed and what runs have made since."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resnap.scheduler.runs.run import Row


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
class Mending:
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


def judge(row: Row, mendings: Sequence[Mending]) -> Judgement:
    """Return the answer for a partition of which ``row`` is what ``scan_row`` made."""
    stop, blocking = _refusal(row, "brokerStops"), _refusal(row, "blocking")
    if row["compaction"] == "compacted":
        why = blocking or {"detail": "compacted topics cannot be tiered", "hint": "leave the topic out"}
        return _say(Readiness.EXCLUDED, "compacted", str(why["detail"]), str(why["hint"]))
    if stop is None:
        return _say(Readiness.READY, None, "a broker can tier every closed segment", "turn tiering on")
    reason, detail = str(stop["reason"]), str(stop["detail"])
    lost = {int(str(one["offset"])) for one in row["lostBoundaries"]}  # type: ignore[attr-defined]
    is_snapshots = reason == "missing-snapshot"
    for mending in mendings if lost else ():
        if not lost <= mending.offsets:
            continue
        if mending.how == "shipped":
            return _say(Readiness.SHIPPED, reason, detail, f"all that may be tiered is in {mending.destination}")
        if is_snapshots:
            step = f"stop the broker, then `resnap install {mending.destination} LOG_DIR`"
            return _say(Readiness.PREPARED, reason, detail, step)
    if blocking is not None:
        return _say(Readiness.UNFIT, str(blocking["reason"]), str(blocking["detail"]), str(blocking["hint"]))
    step = "start a replay: `resnap regenerate`, or `resnap tier`" if is_snapshots else str(stop["hint"])
    return _say(Readiness.BLOCKED, reason, detail, step)


def _say(readiness: Readiness, reason: str | None, detail: str, next_step: str) -> Judgement:
    return Judgement(readiness=readiness, reason=reason, detail=detail, next_step=next_step)


def _refusal(row: Row, key: str) -> Mapping[str, object] | None:
    found = row[key]
    return found if isinstance(found, dict) else None
