"""What a replay says those who watch it, beside the segments and bytes that it has done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from resnap.replay.plan import PartitionPlan

Phase: TypeAlias = Literal["waiting", "compiling", "scanning", "combining", "shipping"]
"""Compiling lasts until the first segment is done; combining includes the writing of snapshots, by the same tasks."""


class Watcher(Protocol):
    """Hears of the work, from any thread."""

    def expect(self, segments: int, size_bytes: int) -> None:
        """Add to what there is to do in all."""
        ...

    def at_work(self, phase: Phase, tasks: int) -> None:
        """Hear what is going on, and how many tasks run; said again and again while it lasts."""
        ...


def expect_more(watcher: Watcher | None, plan: PartitionPlan) -> None:
    """Tell ``watcher`` that ``plan`` comes on top: a round over a longer window."""
    if watcher is not None:
        watcher.expect(sum(run.end - run.start for run in plan.runs), plan.bytes_in_segments)
