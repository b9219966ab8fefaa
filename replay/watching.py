"""What a replay, or any work on segments, reports its progress to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from resnap.replay.plan import PartitionPlan

Phase: TypeAlias = Literal["waiting", "starting", "compiling", "scanning", "combining", "shipping"]
"""Starting is Spark's own, before any work. Compiling lasts until the first segment is done; combining includes the
writing of snapshots, by the same tasks."""


class Progress:
    """Receives the progress of work, from any thread; this one ignores it."""

    def expect(self, segments: int, size_bytes: int) -> None:
        """Add to the total amount of work."""

    def expect_plan(self, plan: PartitionPlan) -> None:
        """Add what ``plan`` reads to the total: a replay, or another round of it over a longer window."""
        self.expect(sum(run.end - run.start for run in plan.runs), plan.bytes_in_segments)

    def advance(self, segments: int, size_bytes: int) -> None:
        """Add to the finished amount."""

    def at_work(self, phase: Phase, tasks: int) -> None:
        """Receive the current phase and the number of running tasks, repeatedly while the work continues."""
