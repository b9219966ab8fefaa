"""Groups the content of many items by key, on the executors; the driver gets one result per group."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pyspark import StorageLevel

from resnap.replay.scan.splits import TASKS_PER_SLOT
from resnap.replay.spark.failures import job_failure_told
from resnap.replay.spark.worker import begin_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark import RDD, SparkContext

_I = TypeVar("_I")
_N = TypeVar("_N")
_V = TypeVar("_V")
_R = TypeVar("_R")

TASK_ITEMS: Final = 64
"""A task reads no more items than that, whatever slots there are when it begins: others may come."""
_MOST_LATER_TASKS: Final = 1000


def later_tasks(slots: int, tasks: int) -> int:
    """Return how many tasks follow a first stage of ``tasks``: not too many, as each reads from each of the first."""
    return max(slots * TASKS_PER_SLOT, min(tasks, _MOST_LATER_TASKS))


class SparkGroups(Generic[_N, _V]):
    """Values by key; ``note`` is the joined note of reading all items."""

    def __init__(self, context: SparkContext, note: _N, groups: RDD[tuple[str, list[tuple[int, _V]]]]) -> None:
        self.note = note
        self._context, self._groups = context, groups

    def map(self, work: Callable[[str, list[_V]], _R]) -> list[_R]:
        """Return ``work(key, values)`` for each group, by key; values are in the order of their items.

        Raises:
            ResnapError: the job failed.

        """

        def made(group: tuple[str, list[tuple[int, _V]]]) -> tuple[str, _R]:
            key, values = group
            return key, work(key, [value for _, value in sorted(values, key=lambda one: one[0])])

        with job_failure_told(self._context):
            return [one for _, one in sorted(self._groups.map(made).collect(), key=lambda one: one[0])]


@contextmanager
def grouped(
    context: SparkContext,
    look: Callable[[_I], tuple[_N, list[tuple[str, _V]]]],
    join: Callable[[_N, _N], _N],
    items: Sequence[_I],
) -> Iterator[SparkGroups[_N, _V]]:
    """Read ``items`` once with ``look``, which returns a note and values by key, for as long as the context lasts.

    Raises:
        ResnapError: the job failed.

    """
    slots = context.defaultParallelism
    tasks = min(len(items), max(slots * TASKS_PER_SLOT, -(-len(items) // TASK_ITEMS)))

    def read(numbered: Iterator[tuple[int, _I]]) -> Iterator[tuple[_N, list[tuple[str, tuple[int, _V]]]]]:
        begin_task()
        for number, item in numbered:
            note, values = look(item)
            yield note, [(key, (number, value)) for key, value in values]

    found = context.parallelize(list(enumerate(items)), tasks).mapPartitions(read).persist(StorageLevel.DISK_ONLY)
    later = later_tasks(slots, tasks)
    groups = found.flatMap(lambda one: one[1]).groupByKey(later).mapValues(list).persist(StorageLevel.DISK_ONLY)
    try:
        with job_failure_told(context):
            note = found.map(lambda one: one[0]).reduce(join)
        yield SparkGroups(context, note, groups)
    finally:
        with job_failure_told(context):
            groups.unpersist()
            found.unpersist()
