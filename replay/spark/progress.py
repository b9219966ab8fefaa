"""Progress of a replay on Spark, reported while the driver waits: finished segments and bytes, running tasks.

Finished segments and bytes are summed by an accumulator, to which each task adds when it ends; the number of running
tasks is Spark's status of the job group. The group is also used to cancel the jobs when no caller waits for them any
more.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from py4j.protocol import Py4JError

from resnap.replay.scan.splits import TASKS_PER_SLOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import Accumulator, SparkContext

    from resnap.replay.watching import Phase, Progress

INTERVAL_S: Final = 0.5
_CANCEL_TIMEOUT_S: Final = 10
_GROUP: Final = "spark.jobGroup.id"
_SEGMENT: Final = 1 << 48
"""One accumulator carries both counts: segments above this bit, bytes below it."""
_MOST_LATER_TASKS: Final = 1000


def progress_of(size_bytes: int, *, ends_segment: bool) -> int:
    """Return the values that a task adds to the accumulator for one split."""
    return size_bytes + (_SEGMENT if ends_segment else 0)


@dataclass(slots=True, kw_only=True)
class JobWatch:
    """Reports on the jobs of one group while they run.

    Attributes:
        stop: set from outside when no caller waits for the jobs any more.
        phase: what the jobs are doing; set by the caller that starts them.
        compiles: whether the first tasks compile machine code before they scan.

    """

    context: SparkContext
    group: str
    done: Accumulator[int]
    progress: Progress
    stop: threading.Event
    phase: Phase = "scanning"
    compiles: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    stopped_by: Exception | None = None
    """What the receiver of a report raised, so that the work ends."""

    def report(self) -> None:
        """Report at intervals, and once more at the end; runs in a thread of its own."""
        try:
            self._report()
        except Exception as error:  # noqa: BLE001 - raised where the jobs are waited for
            self.stopped_by = error
            cancel_jobs(self.context, self.group)

    def _report(self) -> None:
        reported = 0
        while not self.ended.wait(INTERVAL_S):
            if self.stop.is_set():
                cancel_jobs(self.context, self.group)
                return
            reported = self._advance(reported)
            # A JVM that has died is reported where it is waited for.
            with suppress(Py4JError, OSError):
                running = running_tasks(self.context, self.group)
                self.progress.at_work("compiling" if self.compiles and not reported else self.phase, running)
        self._advance(reported)

    def _advance(self, reported: int) -> int:
        now: int = self.done.value
        if now > reported:
            self.progress.advance(now // _SEGMENT - reported // _SEGMENT, now % _SEGMENT - reported % _SEGMENT)
        return now


@contextmanager
def watched_jobs(
    context: SparkContext,
    done: Accumulator[int],
    progress: Progress,
    stop: threading.Event | None = None,
) -> Iterator[JobWatch]:
    """Report to ``progress`` the segments and bytes newly added to ``done``, and the phase, while jobs run.

    Jobs that the calling thread starts in this context belong to one group, the caller's own if it has set one. They
    are cancelled if the context ends by an error or an interrupt, if ``stop`` is set, or if ``progress`` raises
    an error, which the context then raises, too. A task that Spark repeats may be counted twice, which is good
    enough for a display.
    """
    group, is_ours = context.getLocalProperty(_GROUP), False
    if group is None:
        group, is_ours = f"resnap-{uuid4()}", True
        context.setJobGroup(group, "replay of batch headers", interruptOnCancel=True)
    stop = stop or threading.Event()
    watch = JobWatch(context=context, group=group, done=done, progress=progress, stop=stop)
    reporter = threading.Thread(target=watch.report, name="resnap-progress", daemon=True)
    reporter.start()
    try:
        yield watch
    except Exception:
        cancel_jobs(context, group)
        if watch.stopped_by is not None:
            raise watch.stopped_by from None
        raise
    except BaseException:
        cancel_jobs(context, group)
        raise
    finally:
        watch.ended.set()
        reporter.join()
        if is_ours:
            with suppress(Py4JError, OSError):
                context.setLocalProperty(_GROUP, None)
    if watch.stopped_by is not None:  # the jobs were through before they could be cancelled
        raise watch.stopped_by


def running_tasks(context: SparkContext, group: str) -> int:
    """Return how many tasks of the group's jobs are running."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = {stage for job in jobs if job is not None and job.status == "RUNNING" for stage in job.stageIds}
    infos = [tracker.getStageInfo(stage) for stage in stages]
    return sum(info.numActiveTasks for info in infos if info is not None)


def cancel_jobs(context: SparkContext, group: str) -> None:
    """Cancel the jobs of ``group`` from another thread: an interrupt may leave this one's connection unusable."""

    def cancel() -> None:
        with suppress(Py4JError, OSError):
            context.cancelJobGroup(group)

    canceller = threading.Thread(target=cancel, name="resnap-cancel", daemon=True)
    canceller.start()
    canceller.join(_CANCEL_TIMEOUT_S)


def later_tasks(slots: int, tasks: int) -> int:
    """Return how many tasks follow a first stage of ``tasks``: not too many, as each reads from each of the first."""
    return max(slots * TASKS_PER_SLOT, min(tasks, _MOST_LATER_TASKS))
