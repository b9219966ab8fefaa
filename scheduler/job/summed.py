"""Rows of partitions as people see them: where there are too many, those of a topic are summed up as one."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from resnap.scheduler.job.contract import Result, View
from resnap.storage.words import counted, some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from resnap.scheduler.output.rendering import Row

R = TypeVar("R", bound=Result)

MOST_ROWS: Final = 50
"""For people: more partitions than that are summed up by topic, and more of anything else is counted."""


class SummedView(View[R]):
    """A view of which people see the partitions at the end: all of them, or their topics where there are too many."""

    most_first: ClassVar[str]
    """The key whose numbers, or lists, order the topics."""
    joined: ClassVar[tuple[str, ...]] = ()
    """Keys of lists that are joined; other lists are left out."""

    @cached_property
    def _held(self) -> list[Row]:
        """The rows that people see."""
        return []

    def for_people(self, row: Row) -> Row | None:
        """Return what people see of the row of a partition; None for nothing."""
        return row

    def table_rows(self, result: R) -> Iterable[Row]:
        """Keep back what people see of a result."""
        self._held.extend(filter(None, map(self.for_people, self.rows(result))))
        return ()

    def rest(self) -> Iterator[Row]:
        """Yield what people see, the most of ``most_first`` first where topics are summed up."""
        yield from summed_by_topic(self._held, self.most_first, *self.joined)

    def summed_note(self) -> Iterator[str]:
        """Say that rows are summed up by topic, where they are."""
        yield from summed_note(self._held)


def summed_by_topic(held: Sequence[Mapping[str, Any]], most_first: str, *joined: str) -> Sequence[Row]:
    """Return rows of partitions, or of their topics where there are too many: the most of ``most_first`` first.

    Lists are left out, but those of ``joined``.
    """
    if len(held) <= MOST_ROWS:
        return held
    by_topic: dict[str, list[Mapping[str, Any]]] = {}
    for row in held:
        by_topic.setdefault(row["topic"], []).append(row)
    topics = sorted(by_topic.values(), key=lambda rows: (-_sum_in(rows, most_first), rows[0]["topic"]))
    return summed_rest([(rows[0] if len(rows) == 1 else _sum_of(rows, joined), rows) for rows in topics], *joined)


def summed_rest(topics: Sequence[tuple[Row, Sequence[Mapping[str, Any]]]], *joined: str) -> Sequence[Row]:
    """Return the first rows of topics, and a row for all others where there are too many; each comes with its parts."""
    shown = [row for row, _ in topics[:MOST_ROWS]]
    rest = [part for _, parts in topics[MOST_ROWS:] for part in parts]
    if rest:
        shown.append({**_sum_of(rest, joined), **more_topics(len(topics))})
    return shown


def more_topics(topics: int) -> Row:
    """Return what names the row of all topics that have none of their own."""
    return {"topic": some(topics - MOST_ROWS, "more topic"), "partition": None}


def _sum_in(rows: Sequence[Mapping[str, Any]], key: str) -> int:
    return sum(len(row[key]) if isinstance(row[key], list) else row[key] for row in rows)


def summed_note(held: Sequence[object]) -> Iterator[str]:
    """Say that rows are summed up by topic, where they are."""
    if len(held) > MOST_ROWS:
        yield f"Summed up by topic: {some(len(held), 'partition')}; `--output json` has each."


_OUTCOMES: Final = frozenset({"outcome", "logDir", "verdict"})
"""What a sum counts by its values."""


def _sum_of(rows: Sequence[Mapping[str, Any]], joined: Sequence[str]) -> dict[str, Any]:
    """Return the rows of one topic as one: numbers and bytes add up, but not offsets; of all else the first counts."""
    sums: dict[str, Any] = {}
    for key in rows[0]:
        found = [row[key] for row in rows if row[key]]
        if key in joined:
            sums[key] = [entry for one in found for entry in one]
        elif key.endswith("Offset"):
            sums[key] = None
        elif not found:
            sums[key] = rows[0][key]
        elif all(isinstance(one, int) for one in found):
            sums[key] = sum(found)
        elif key in _OUTCOMES:
            sums[key] = found[0] if len(set(found)) == 1 else counted(found)
        elif all(isinstance(one, dict) and "bytes" in one for one in found):
            sums[key] = {"bytes": sum(one["bytes"] for one in found)}
        else:
            sums[key] = next((one for one in found if not isinstance(one, list)), None)
    return {**sums, "topic": rows[0]["topic"], "partition": f"* ({len(rows)})"}
