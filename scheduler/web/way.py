"""The way to tiering in four steps, check, rebuild, install and tier, and where all partitions together are on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from resnap.scheduler.output.rendering import human_count, some
from resnap.tiering.readiness import Readiness

if TYPE_CHECKING:
    from collections.abc import Mapping


class Step(NamedTuple):
    """A step: whether it is behind, here or ahead, and what is left of it."""

    name: str
    place: Literal["done", "here", "ahead"]
    text: str
    command: str


def way_of(counts: Mapping[Readiness, int], unread: int = 0) -> list[Step]:
    """Return the steps, of which the first that is not done is here; ``unread`` sources could not be checked."""
    seen = sum(counts.values())
    stops, waits = counts[Readiness.BLOCKED] + counts[Readiness.UNFIT], counts[Readiness.PREPARED]
    is_checked = bool(seen) and not unread
    known = [
        ("Check", is_checked, _checked(seen, unread), "resnap check"),
        ("Rebuild", is_checked and not stops, f"{some(stops, 'partition')} to go", "resnap regenerate"),
        ("Install", is_checked and not stops + waits, f"{some(waits, 'partition')} to go", "resnap install"),
        ("Tier", False, _tiered(counts), "remote.storage.enable=true"),
    ]
    steps, is_here = list[Step](), True
    for name, is_done, text, command in known:
        place: Literal["done", "here", "ahead"] = "done" if is_done and is_here else "here" if is_here else "ahead"
        is_here = place == "done"
        steps.append(Step(name, place, text, command))
    return steps


def _checked(seen: int, unread: int) -> str:
    if unread:
        return f"{some(unread, 'source')} not read"
    return f"{some(seen, 'partition')} seen" if seen else "nothing seen yet"


def _tiered(counts: Mapping[Readiness, int]) -> str:
    ready, shipped = counts[Readiness.READY], counts[Readiness.SHIPPED]
    said = f"{human_count(ready)} ready"
    return f"{said}, {human_count(shipped)} shipped" if shipped else said
