"""Lets many threads run work on executors item by item; each waits for the result of its own item.

Waiting items are sent in tasks of a few items, bounded by number and bytes, and a few jobs of such tasks run at once:
so slots have work while the last task of a job runs, and executors that join late get some, too. Tasks may be repeated,
or run twice at the same time, so the work must be idempotent.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark import InheritableThread

from resnap.replay.spark.failures import explain_job_failure, explain_jvm_death
from resnap.replay.spark.progress import cancel_jobs
from resnap.replay.spark.worker import begin_task
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import SparkContext

_T = TypeVar("_T")
_R = TypeVar("_R")

JOBS: Final = 3
"""Under way at once."""
SUBMITTED_PER_SLOT: Final = 2
"""Tasks: one that runs, and one that is ready when it ends."""
MOST_ITEMS: Final = 512
"""Asked for at once, however many slots there are now: others may come. A thread waits for each."""
TASK_ITEMS: Final = 64
COPY_TASK_BYTES: Final = 1 << 30
"""A task takes no further item that would make it larger."""
MESSAGE_BYTES: Final = 32 << 20
"""Items that are larger go in tasks of half as many: Spark sends no task of more than 128 MiB."""
_AT_ONCE: Final = 2
"""Items of a task, so that one is read while another one is sent."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting(Generic[_T, _R]):
    """An item, and the future of its result."""

    item: _T
    size_bytes: int
    is_wanted: Callable[[], bool]
    result: Future[_R | ResnapError] = field(default_factory=Future)


class TaskPool(Generic[_T, _R]):
    """Runs ``work`` on executors until it is closed; at most ``most_tasks`` at once, if that is given."""

    def __init__(
        self,
        context: SparkContext,
        work: Callable[[_T], _R],
        description: str,
        *,
        most_tasks: int | None = None,
        most_items: int | None = None,
    ) -> None:
        """Start the pool; an error of ours that ``work`` raises is raised to the caller, and does not fail the task."""
        self._context, self._work, self._description, self._most_tasks = context, work, description, most_tasks
        self._group = f"resnap-{uuid4()}"
        self._waiting: deque[_Waiting[_T, _R]] = deque()
        self._going: set[_Waiting[_T, _R]] = set()
        self._tasks = 0
        self._is_closed = False
        self._change = threading.Condition()
        self.items_at_once: int = most_items or MOST_ITEMS
        """How many should be asked for at once."""
        self._jobs = JOBS if most_tasks is None else min(JOBS, most_tasks)
        for number in range(self._jobs):
            InheritableThread(self._run_jobs, name=f"resnap-job-{number}", daemon=True).start()

    @property
    def tasks(self) -> int:
        """Number of running tasks."""
        return self._tasks

    def result(self, item: _T, size_bytes: int, is_wanted: Callable[[], bool] = lambda: True) -> _R:
        """Return the result of ``work`` on an executor for ``item``, which has about ``size_bytes``.

        Raises:
            ResnapError: ``work`` raised it, the job failed, the pool was closed, or ``is_wanted`` returned False
                before an executor had the item.

        """
        waiting: _Waiting[_T, _R] = _Waiting(item, size_bytes, is_wanted)
        with self._change:
            if self._is_closed:
                raise _closed_error()
            self._waiting.append(waiting)
            self._change.notify()
        result = waiting.result.result()
        if isinstance(result, ResnapError):
            raise result
        return result

    def close(self) -> None:
        """Cancel running jobs; callers that wait for a result get an error."""
        with self._change:
            self._is_closed = True
            left = [*self._waiting, *self._going]
            self._waiting.clear()
            self._change.notify_all()
        for task in left:
            _fail(task, _closed_error())
        if left:
            cancel_jobs(self._context, self._group)

    def _run_jobs(self) -> None:
        """Run one job after the other, until the pool is closed."""
        while (tasks := self._take()) is not None:
            if not tasks:
                continue
            items = [item for task in tasks for item in task]
            try:
                for task, result in zip(items, self._run(tasks), strict=True):
                    with suppress(Exception):  # the pool was closed meanwhile
                        task.result.set_result(result)
            except BaseException as error:  # noqa: BLE001 - raised where the item is waited for
                for task in items:
                    _fail(task, error)
            with self._change:
                self._going.difference_update(items)
                self._tasks -= len(tasks)

    def _take(self) -> list[list[_Waiting[_T, _R]]] | None:
        """Wait for items, and return the tasks of the next job; None once the pool is closed."""
        with self._change:
            while not self._waiting and not self._is_closed:
                self._change.wait()
            if self._is_closed:
                return None
            most = self._tasks_per_job()
            share = min(TASK_ITEMS, -(-len(self._waiting) // (most * self._jobs)))
            tasks = [task for _ in range(most) if (task := self._next_task(share))]
            self._going.update(item for task in tasks for item in task)
            self._tasks += len(tasks)
        return tasks

    def _tasks_per_job(self) -> int:
        if self._most_tasks is not None:
            return self._most_tasks // self._jobs
        try:
            slots: int = self._context.defaultParallelism
        except (Py4JError, OSError):
            slots = 1  # the job will say that the JVM has died
        return -(-slots * SUBMITTED_PER_SLOT // self._jobs)

    def _next_task(self, most: int) -> list[_Waiting[_T, _R]]:
        """Take the items of one task from those that wait, ``most`` at most."""
        task: list[_Waiting[_T, _R]] = []
        left_bytes = COPY_TASK_BYTES
        while self._waiting and len(task) < most and (not task or self._waiting[0].size_bytes <= left_bytes):
            one = self._waiting.popleft()
            if one.is_wanted():
                task.append(one)
                left_bytes -= one.size_bytes
            else:
                _fail(one, _closed_error())
        return task

    def _run(self, tasks: list[list[_Waiting[_T, _R]]]) -> list[_R | ResnapError]:
        """Run one job; return the result, or the error of ours, of each item, in order."""
        context, work = self._context, self._work
        pickled = [body for task in tasks for body in _bodies([waiting.item for waiting in task])]

        def run(bodies: Iterator[bytes]) -> Iterator[bytes]:
            begin_task()
            for body in bodies:
                items = pickle.loads(body)  # noqa: S301 - our own
                with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="resnap-item") as threads:
                    yield pickle.dumps(list(threads.map(partial(_outcome, work), items)))

        with explain_jvm_death(context), explain_job_failure(context):
            context.setJobGroup(self._group, self._description, interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", self._description)
            found = context.parallelize(pickled, len(pickled)).mapPartitions(run).collect()
        return [result for body in found for result in pickle.loads(body)]  # noqa: S301 - of our own tasks


def _bodies(items: list[_T]) -> list[bytes]:
    """Return ``items``, in order, in as few messages as Spark takes."""
    body, half = pickle.dumps(items), len(items) // 2
    return [body] if len(body) <= MESSAGE_BYTES or not half else [*_bodies(items[:half]), *_bodies(items[half:])]


def _outcome(work: Callable[[_T], _R], item: _T) -> _R | ResnapError:
    try:
        return work(item)
    except ResnapError as error:
        return error


def _fail(waiting: _Waiting[_T, _R], error: BaseException) -> None:
    with suppress(Exception):  # it has a result already
        waiting.result.set_exception(error)


def _closed_error() -> ResnapError:
    return ResnapError("the run was ended while executors were at work")
