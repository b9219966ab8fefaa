"""The engines that replay: Spark, or this process alone. Both give the same results for the same plans.

Spark is imported only here and only when it is used, so that commands without a replay respond at once.

A long-running process keeps one engine, and with it one JVM, for all of its runs::

    with engine_of(settings) as engine:
        while ...:
            Planner(rules_of(settings, clock), engine).replay(...)
            engine.close()  # only to give the memory back until the next run, which starts another JVM

A JVM that died between two runs is replaced silently by the next run; one that dies in the middle of a run fails that
run, and is replaced by the next.
"""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from resnap.replay.rebuild import rebuild_locally
from resnap.replay.scan.splits import Reading
from resnap.replay.spark.settings import SparkSettings
from resnap.replay.staging import open_sink
from resnap.storage.errors import UsageError
from resnap.storage.stores.s3_settings import S3Settings
from resnap.storage.threads import each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import TracebackType

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import PartitionResult
    from resnap.replay.spark.task_pool import TaskPool
    from resnap.replay.spark.warm import WarmSpark
    from resnap.replay.watching import Progress
    from resnap.storage.disk import FileAttributes
    from resnap.storage.sources.files import Sources

_T = TypeVar("_T")
_R = TypeVar("_R")
_N = TypeVar("_N")
_V = TypeVar("_V")


@dataclass(slots=True, kw_only=True, eq=False)
class Engine:
    """Replays plans; use it in ``with``, or ``close`` it, because Spark keeps running for the next replay.

    Threads may share it: their replays run one after the other.

    Attributes:
        ahead: whether Spark may be started as soon as a replay is certain.

    """

    kind: Literal["spark", "local"] = "local"
    spark: SparkSettings = field(default_factory=SparkSettings)
    environment: Mapping[str, str] = field(default_factory=dict)
    s3: S3Settings = field(default_factory=S3Settings)
    reading: Reading = field(default_factory=Reading)
    ahead: bool = False
    _warm: WarmSpark | None = field(default=None, init=False, repr=False)
    _reached: frozenset[str] = field(default=frozenset(), init=False, repr=False)
    """What executors were asked for on behalf of the next replay, which need not ask again."""
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(in_order=kind is None)

    @property
    def is_remote(self) -> bool:
        """Whether other machines read the sources and write the snapshots."""
        return self.kind == "spark" and not self.spark.is_local

    def needed_for(self, plan: PartitionPlan) -> None:
        """Start Spark in the background if ``plan`` has something to read and an early start is harmless."""
        if self.ahead and self.kind == "spark" and plan.runs:
            self._warm_spark().begin()

    def replay(
        self,
        plans: Sequence[PartitionPlan],
        sink_url: str,
        progress: Progress,
        *,
        here_below_bytes: int = 0,
        sources: Sources | None = None,
        together: Callable[[Sequence[PartitionResult]], None] | None = None,
    ) -> Iterator[PartitionResult]:
        """Yield the result of each plan, in any order; snapshots are written to the sink at ``sink_url``.

        Replays that several threads ask for go one after the other. ``progress`` receives all that is to be read, what
        is done of it, and the current phase. Segments with fewer bytes in all than ``here_below_bytes`` are replayed by
        this process, unless other machines are the engine; this process opens them by ``sources``, if given.
        ``together`` is called with the results of one Spark wave, before the first of them is yielded.

        Raises:
            ResnapError: Spark did not start, or its job failed; the next replay starts it again if it has ended.

        """
        self._check_reach(sink_url)
        for plan in plans:
            progress.expect_plan(plan)
        reached, self._reached = self._reached, frozenset()
        size_bytes = sum(plan.bytes_in_segments for plan in plans if plan.runs)
        if self.kind == "local" or not size_bytes or (size_bytes < here_below_bytes and not self.is_remote):
            sink = open_sink(sink_url, self.s3)
            reading = self.reading if sources is None else replace(self.reading, sources=sources)
            yield from rebuild_locally(plans, sink, reading=reading, progress=progress)
            return
        if self._warm is None or not self._warm.has_context:
            progress.at_work("starting", 0)
        from resnap.replay.spark.job import SparkRebuild  # noqa: PLC0415 - half a second, and a JVM

        with self._warm_spark().context() as context:
            job = SparkRebuild(
                context=context,
                sink_url=sink_url,
                s3=self.s3,
                reading=self.reading,
                progress=progress,
                together=together,
                reached=reached,
            )
            yield from job.run(plans)

    def each(self, look: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Return ``look(item)`` for each of ``items``, run where segments are read: on the executors, if there are any.

        Raises:
            ResnapError: Spark did not start, or its job failed.

        """
        if not self.is_remote or not items:
            return list(each(look, items, remote=True))
        return self._warm_spark().each(look, items)

    @contextmanager
    def grouped(
        self,
        look: Callable[[_T], tuple[_N, list[tuple[str, _V]]]],
        join: Callable[[_N, _N], _N],
        nothing: _N,
        items: Sequence[_T],
    ) -> Iterator[tuple[_N, Callable[[Callable[[str, list[_V]], Any]], list[Any]]]]:
        """Read ``items``, each of which gives a note and values by key, and keep the values where they were read.

        That is on Spark, unless this process is the engine. ``join`` joins two notes; ``nothing`` is the note of no
        items. Yields the joined note, and what maps a function over the groups: it returns ``work(key, values)`` of
        each, by key; values are in the order of their items.

        Raises:
            ResnapError: Spark did not start, or its job failed.

        """
        if self.kind == "local" or not items:
            found = [look(item) for item in items]
            values: dict[str, list[_V]] = {}
            for key, value in (pair for _, pairs in found for pair in pairs):
                values.setdefault(key, []).append(value)
            note = reduce(join, (note for note, _ in found), nothing)
            yield note, lambda work: [work(key, values[key]) for key in sorted(values)]
            return
        with self._warm_spark().grouped(look, join, items) as groups:
            yield groups

    def check_reach(self, locators: Collection[str], url: str, attributes: FileAttributes | None = None) -> None:
        """Let the executors read segments, and write to the destination at ``url``, before any real write.

        ``attributes`` is the owner and mode that they will give files there, if that matters.

        Raises:
            UsageError: they cannot.
            ResnapError: Spark did not start, or its job failed.

        """
        self._check_reach(url)
        self._reached = self._warm_spark().check_reach(locators, url, self.reading.sources, attributes)

    @contextmanager
    def task_pool(
        self,
        work: Callable[[int | None], Callable[[_T], _R]],
        description: str,
        *,
        at_once: int | None = None,
        bytes_per_s: int | None = None,
    ) -> Iterator[TaskPool[_T, _R]]:
        """Yield executors that run ``work``, beside the replays that the same thread starts.

        Args:
            work: gives a plain value for a task's share of ``bytes_per_s``; the value is called with an item, and an
                error of ours that it raises is raised here.
            description: its name on Spark's own pages.
            at_once: tasks, and requested items, at once; None for as many as there are slots.
            bytes_per_s: a limit, which is divided among the current slots, or the tasks if these are fewer.

        Raises:
            ResnapError: Spark did not start.

        """
        from resnap.replay.spark.task_pool import TaskPool  # noqa: PLC0415 - imports pyspark

        with self._warm_spark().context() as context:
            most_tasks = at_once
            if bytes_per_s is not None:
                slots: int = context.defaultParallelism
                most_tasks = min(slots, at_once or slots)
                bytes_per_s = max(1, bytes_per_s // most_tasks)
            pool = TaskPool(context, work(bytes_per_s), description, most_tasks=most_tasks, most_items=at_once)
            with closing(pool):
                yield pool

    def close(self, *, in_order: bool = True) -> None:
        """End Spark if it runs, at once unless ``in_order``; a later replay starts another."""
        with self._guard:
            warm, self._warm = self._warm, None
        if warm is not None:
            warm.close(in_order=in_order)

    def _warm_spark(self) -> WarmSpark:
        from resnap.replay.spark.warm import WarmSpark  # noqa: PLC0415 - imports pyspark

        with self._guard:
            if self._warm is None:
                self._warm = WarmSpark(self.spark, self.environment)
            return self._warm

    def _check_reach(self, sink_url: str) -> None:
        if self.is_remote and sink_url.startswith("memory:"):
            raise UsageError(f"{sink_url}: the executors of {self.spark.master} cannot write there",
                             hint="give a store, or a directory that all of them mount")  # fmt: skip
