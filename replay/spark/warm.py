"""Keeps one Spark context for many replays: started on demand or ahead of time, replaced when its JVM has died.

It also groups the content of many items by key, on the executors; the driver gets one result per group.

A context takes seconds to start and a gigabyte of memory. The owner of a ``WarmSpark`` decides: a command begins it
before it plans and closes it at its end, a service keeps it between runs.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from pyspark import StorageLevel

from resnap.replay.scan.splits import TASKS_PER_SLOT
from resnap.replay.spark.context import spark_context
from resnap.replay.spark.failures import explain_job_failure, explain_jvm_death, has_ended
from resnap.replay.spark.progress import later_tasks
from resnap.replay.spark.reach import check_reach
from resnap.replay.spark.worker import begin_task
from resnap.storage.errors import UsageError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import TracebackType

    from pyspark import RDD, SparkContext

    from resnap.replay.spark.settings import SparkSettings
    from resnap.storage.disk import FileAttributes
    from resnap.storage.sources.files import Sources

_T = TypeVar("_T")
_R = TypeVar("_R")
_N = TypeVar("_N")
_V = TypeVar("_V")

TASK_ITEMS: Final = 64
"""A task reads no more items than that, whatever slots there are when it begins: others may come."""


class WarmSpark:
    """A Spark context that is ready when needed, for several threads in turn; use it in ``with``, or ``close`` it.

    It starts in a thread of its own, so that the caller can do something else.
    """

    def __init__(self, settings: SparkSettings, environment: Mapping[str, str]) -> None:
        self._settings, self._environment = settings, environment
        self._turn = threading.RLock()
        self._guard = threading.Lock()
        """Held while ``_start`` is changed: a JVM that is forgotten would never end."""
        self._start: _Start | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(in_order=kind is None)

    @property
    def has_context(self) -> bool:
        """Whether there is a context, so that none has to be waited for."""
        start = self._start
        return start is not None and start.context.done()

    def begin(self) -> None:
        """Start Spark in the background, unless it was started; ``context`` reports whether that succeeded."""
        with self._guard:
            if self._is_closed:
                raise UsageError("Spark was asked for after it had been closed", hint="begin a new one")
            if self._start is None:
                self._start = _Start(self._settings, self._environment)

    @contextmanager
    def context(self) -> Iterator[SparkContext]:
        """Yield the context, exclusively to one caller at a time.

        Raises:
            ResnapError: Spark did not start, or its JVM died; the next call starts another.

        """
        with self._turn:
            context = self._running_context()
            try:
                with explain_jvm_death(context):
                    yield context
            finally:
                if has_ended(context):
                    self._drop()

    def each(self, look: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Return ``look(item)`` for each of ``items``, in order, made by the executors; raises as ``grouped``."""
        with self.context() as context:
            return on_executors(context, look, items)

    def check_reach(
        self, locators: Collection[str], url: str, sources: Sources, attributes: FileAttributes | None
    ) -> frozenset[str]:
        """Return what executors reach of sources and of the destination at ``url``; raises where they do not."""
        with self.context() as context:
            return check_reach(context, locators, url, sources, attributes)

    @contextmanager
    def grouped(
        self,
        look: Callable[[_T], tuple[_N, list[tuple[str, _V]]]],
        join: Callable[[_N, _N], _N],
        items: Sequence[_T],
    ) -> Iterator[tuple[_N, Callable[[Callable[[str, list[_V]], Any]], list[Any]]]]:
        """Read ``items`` once with ``look``, which returns a note and values by key, for as long as the context lasts.

        Yields the joined note, and what maps a function over the groups (``_map_groups``).

        Raises:
            ResnapError: Spark did not start, or the job failed.

        """

        def read(numbered: Iterator[tuple[int, _T]]) -> Iterator[tuple[_N, list[tuple[str, tuple[int, _V]]]]]:
            begin_task()
            for number, item in numbered:
                note, values = look(item)
                yield note, [(key, (number, value)) for key, value in values]

        with self.context() as context:
            slots = context.defaultParallelism
            tasks = min(len(items), max(slots * TASKS_PER_SLOT, -(-len(items) // TASK_ITEMS)))
            read_items = context.parallelize(list(enumerate(items)), tasks).mapPartitions(read)
            found = read_items.persist(StorageLevel.DISK_ONLY)
            by_key = found.flatMap(lambda one: one[1]).groupByKey(later_tasks(slots, tasks)).mapValues(list)
            groups = by_key.persist(StorageLevel.DISK_ONLY)
            try:
                with explain_job_failure(context):
                    note = found.map(lambda one: one[0]).reduce(join)
                yield note, partial(_map_groups, context, groups)
            finally:
                with explain_job_failure(context):
                    groups.unpersist()
                    found.unpersist()

    def _running_context(self) -> SparkContext:
        self.begin()
        context = self._result()
        if has_ended(context):
            # It died while it was not in use, which is not an error.
            self._drop()
            self.begin()
            context = self._result()
        return context

    def _result(self) -> SparkContext:
        start = self._start
        if start is None:
            raise UsageError("Spark was closed while a run waited for it", hint="begin a new one")
        try:
            return start.context.result()
        except Exception:
            self._drop()
            raise

    def _drop(self, *, in_order: bool = True) -> None:
        with self._guard:
            start, self._start = self._start, None
        if start is not None:
            start.end(in_order=in_order)

    def close(self, *, in_order: bool = True) -> None:
        """End Spark, even while it is starting; does nothing if there is none.

        Unless it ends ``in_order``, it saves nothing for later starts; saving may take some seconds.
        """
        with self._guard:
            self._is_closed = True
        self._drop(in_order=in_order)


def on_executors(context: SparkContext, look: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Return ``look(item)`` for each of ``items``, in order.

    Raises:
        ResnapError: the job failed.

    """
    with explain_job_failure(context):
        found: list[_R] = context.parallelize(items, min(len(items), context.defaultParallelism)).map(look).collect()
    return found


def _map_groups(
    context: SparkContext, groups: RDD[tuple[str, list[tuple[int, _V]]]], work: Callable[[str, list[_V]], _R]
) -> list[_R]:
    """Return ``work(key, values)`` for each group, by key; values are in the order of their items.

    Raises:
        ResnapError: the job failed.

    """

    def made(group: tuple[str, list[tuple[int, _V]]]) -> tuple[str, _R]:
        key, values = group
        return key, work(key, [value for _, value in sorted(values, key=lambda one: one[0])])

    with explain_job_failure(context):
        return [value for _, value in sorted(groups.map(made).collect(), key=lambda one: one[0])]


class _Start:
    """A context that a thread starts, holds open until it is asked to end it, and ends."""

    def __init__(self, settings: SparkSettings, environment: Mapping[str, str]) -> None:
        self.context: Future[SparkContext] = Future()
        self._jvm: Future[subprocess.Popen[bytes]] = Future()
        self._ended = threading.Event()
        run = partial(self._run, settings, environment)
        self._thread = threading.Thread(target=run, name="resnap-spark", daemon=True)
        self._thread.start()

    def _run(self, settings: SparkSettings, environment: Mapping[str, str]) -> None:
        try:
            with spark_context(settings, environment, launched=self._jvm.set_result) as context:
                self.context.set_result(context)
                self._ended.wait()
        except BaseException as error:  # noqa: BLE001 - raised where the context is waited for
            for waiting in (self._jvm, self.context):
                if not waiting.done():
                    waiting.set_exception(error)

    def end(self, *, in_order: bool) -> None:
        """End the context; a start that is not finished is cut short."""
        self._ended.set()
        if not (in_order and self.context.done()) and self._jvm.exception() is None:
            self._jvm.result().kill()
        self._thread.join()
