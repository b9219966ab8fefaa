"""A partition's boundaries in a row of cells, oldest first: one per boundary, or per so many of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.scheduler.web.words import Word
from resnap.tiering.inventory import SnapshotState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resnap.scheduler.runs.looking import SeenBoundary

MOST_CELLS: Final = 120
MADE: Final = "made"
BOUNDARIES: Final[Mapping[str, Word]] = {
    SnapshotState.CORRUPT: Word("corrupt", "!", "stop", "a snapshot that no broker would load"),
    SnapshotState.ZERO_BYTE: Word("zero-byte", "0", "stop", "what a crash leaves of a snapshot"),
    SnapshotState.MISSING: Word("missing", "✕", "todo", "no snapshot"),
    MADE: Word("made", "+", "near", "made by a run, and not beside the segments yet"),
    SnapshotState.EMPTY: Word("empty", "○", "good", "a snapshot without producers"),
    SnapshotState.PRESENT: Word("present", "•", "good", "a snapshot with producers"),
}
"""What can stand at a boundary, worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Boundaries from ``first`` to ``last``, shown as the worst of them."""

    first: int
    last: int
    word: Word
    title: str


def state_of(boundary: SeenBoundary) -> str:
    """Return what a boundary is shown as."""
    return MADE if boundary.made else boundary.state


def cells(boundaries: Sequence[SeenBoundary], most: int = MOST_CELLS) -> list[Cell]:
    """Return at most ``most`` cells, each of as many boundaries as the others; the last may have fewer."""
    size = max(1, -(-len(boundaries) // most))
    return [_cell(boundaries[at : at + size]) for at in range(0, len(boundaries), size)]


def spread_of(boundaries: Sequence[SeenBoundary]) -> str:
    """Return how many boundaries are in each state, worst first."""
    counts = Counter(map(state_of, boundaries))
    return ", ".join(f"{counts[state]:,} {word.text}" for state, word in BOUNDARIES.items() if counts[state])


def _cell(boundaries: Sequence[SeenBoundary]) -> Cell:
    first, last = boundaries[0].offset, boundaries[-1].offset
    found = set(map(state_of, boundaries))
    word = next(word for state, word in BOUNDARIES.items() if state in found)
    where = f"{first}" if first == last else f"{first} to {last}"
    return Cell(first=first, last=last, word=word, title=f"{where}: {spread_of(boundaries)}")
