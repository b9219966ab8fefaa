"""Divides what was tiered to a store into groups of partitions, so that a run holds what is known of one at a time.

A partition is never divided, and neither is a topic with segments that were shipped without its id beside others: which
topic those belong to is known from all of its segments. A store in several layouts is one group, since the segments of
one layout may be named by another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.sources.log_dirs import TieredPart, tiered_part
from resnap.storage.sources.registry import SHIPPED, TIERED
from resnap.storage.stores.protocol import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from resnap.storage.layouts.protocol import Tiered
    from resnap.storage.sources.files import Sources

GROUP_OBJECTS: Final = 140_000
"""At most, unless a partition has more: 20,000 segments with an object of every kind."""


class TieredGroups(NamedTuple):
    """What was tiered to a store: in which layouts, and its folders in groups."""

    parts: Sequence[TieredPart]
    """The one with Resnap's own manifests first."""
    folders: Sequence[Sequence[str]]
    """URLs with a slash at the end, ascending; one empty sequence if all is one group."""


def tiered_groups(url: str, sources: Sources) -> TieredGroups:
    """Return ``tiered_part`` in each layout that has segments there, and its folders in groups.

    The store is listed once. Brokers that tier to the same place as Resnap write no manifest of its own.

    Raises:
        StoreError: the store failed.

    """
    first = tiered_part(url, sources)
    others = [layout for layout in TIERED if layout.name != first.layout.name]
    found: dict[str, Tiered] = {}
    counts: dict[str, int] = {}
    for info in first.store.list(first.within):
        if first.layout in SHIPPED:
            found.update((one.name, one) for one in others if one.name not in found and one.is_key(info.key))
        if first.layout.is_key(info.key):
            folder = f"{info.key.rpartition('/')[0]}/"
            counts[folder] = counts.get(folder, 0) + 1
    parts = [first, *(first._replace(layout=layout) for layout in others if layout.name in found)]
    groups: list[Sequence[str]] = [()]
    if not found and sum(counts.values()) > GROUP_OBJECTS:
        groups = [[f"{first.store.url}/{folder}" for folder in group] for group in grouped(counts, GROUP_OBJECTS)]
    return TieredGroups(sorted(parts, key=lambda part: not part.layout.tells_digests), groups)


def grouped(counts: Mapping[str, int], most: int) -> Iterator[Sequence[str]]:
    """Yield folders in groups that have at most ``most`` objects each, or one folder; ``counts`` are theirs."""
    whole = {_above(_above(folder)) for folder in counts if _above(folder).endswith(f"/{UNKNOWN}/")}
    units: dict[str, int] = {}
    for folder, count in counts.items():
        topic = _above(_above(folder))
        unit = topic if topic in whole else folder
        units[unit] = units.get(unit, 0) + count
    ordered, start, held = sorted(units), 0, 0
    for at, unit in enumerate(ordered):
        if start < at and held + units[unit] > most:
            yield _joined(ordered, start, at, whole)
            start, held = at, 0
        held += units[unit]
    yield _joined(ordered, start, len(ordered), whole)


def _joined(ordered: Sequence[str], start: int, end: int, whole: Collection[str]) -> Sequence[str]:
    """Return the folders [start, end), and in place of all folders of a topic id that of the id: one listing."""
    outside = (*ordered[start - 1 : start], *ordered[end : end + 1])
    found: dict[str, None] = {}
    for folder in ordered[start:end]:
        above = _above(folder)
        is_apart = folder in whole or not above or any(other.startswith(above) for other in outside)
        found[folder if is_apart else above] = None
    return list(found)


def _above(folder: str) -> str:
    """Return the folder that has ``folder``; empty at the root of the store."""
    return folder[: folder.rstrip("/").rfind("/") + 1]
