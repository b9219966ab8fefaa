"""The protocol by which a replay reports its progress, beyond the segments and bytes that are done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from resnap.replay.plan import PartitionPlan

Phase: TypeAlias = Literal["waiting", "starting", "compiling", "scanning", "combining", "shipping"]
"""Starting is Spark's own, before any work. Compiling lasts until the first segment is done; combining includes the
writing of snapshots, by the same tasks."""


class Watcher(Protocol):
    """Receives progress, from any thread."""

    def expect(self, segments: int, size_bytes: int) -> None:
        """Add to the total amount of work."""
        ...

    def at_work(self, phase: Phase, tasks: int) -> None:
        """Receive the current phase and the number of running tasks, repeatedly while the work continues."""
        ...


def expect_more(watcher: Watcher | None, plan: PartitionPlan) -> None:
    """Add ``plan`` to the total of ``watcher``: another round over a longer window."""
    if watcher is not None:
        watcher.expect(sum(run.end - run.start for run in plan.runs), plan.bytes_in_segments)


class Progress:
    """Receives the progress of work; this one ignores it."""

    def expect(self, segments: int, size_bytes: int) -> None:
        """Add to the total amount of work."""

    def advance(self, segments: int, size_bytes: int) -> None:
        """Add to the finished amount."""

    def at_work(self, phase: Phase, tasks: int) -> None:
        """Receive the current phase, and the number of running tasks."""
