"""Which engine replays: Spark, or this process alone. Both give the same results for the same plans.

Spark is imported only here and only when it is used, so that commands that replay nothing answer at once.

A process that runs again and again keeps one engine, and with it one JVM, for all of its runs::

    with engine_of(settings) as engine:
        while ...:
            Planner(rules_of(settings, clock), engine).replay(...)
            engine.close()  # only to give the memory back until the next run, which starts another JVM

A JVM that died between two runs is replaced by the next one, unnoticed; one that dies in the middle of a run fails it,
and is replaced by the next.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from resnap.replay.rebuild import rebuild_locally
from resnap.replay.staging import open_sink
from resnap.storage.errors import UsageError
from resnap.storage.side_by_side import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import PartitionResult
    from resnap.replay.scan.reading import Reading
    from resnap.replay.spark.settings import SparkSettings
    from resnap.replay.spark.warm import WarmSpark
    from resnap.replay.watching import Watcher
    from resnap.storage.stores.s3_settings import S3Settings

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(slots=True, kw_only=True, eq=False)
class Engine:
    """How to replay; ``with`` it, or ``close`` it, since Spark once started stays for the next replay.

    Threads may share it: their replays go one after the other.

    Attributes:
        ahead: whether Spark may be started as soon as it is known that a replay will come.

    """

    kind: Literal["spark", "local"]
    spark: SparkSettings
    environment: Mapping[str, str]
    s3: S3Settings
    reading: Reading
    ahead: bool = False
    _warm: WarmSpark | None = field(default=None, init=False, repr=False)
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
        """Start Spark in the background if ``plan`` has something to read, and nobody minds that it is early."""
        if self.ahead and self.kind == "spark" and plan.runs:
            self._warm_spark().begin()

    def replay(
        self,
        plans: Sequence[PartitionPlan],
        sink_url: str,
        progress: Callable[[int, int], None] | None = None,
        watcher: Watcher | None = None,
        *,
        here_below_bytes: int = 0,
    ) -> Iterator[PartitionResult]:
        """Yield the result of each plan, in any order; snapshots go to the sink at ``sink_url``.

        Replays that several threads ask for go one after the other. ``progress`` is called with (segments, bytes
        covered) done since the last call, ``watcher`` hears of what comes on top and of what is going on. Segments of
        fewer bytes in all than ``here_below_bytes`` are replayed by this process, unless other machines are the engine.

        Raises:
            ResnapError: Spark did not start, or its job failed; the next replay starts it again where it has ended.

        """
        self._check_reach(sink_url)
        size_bytes = sum(plan.bytes_in_segments for plan in plans if plan.runs)
        if self.kind == "local" or not size_bytes or (size_bytes < here_below_bytes and not self.is_remote):
            sink = open_sink(sink_url, self.s3)
            yield from rebuild_locally(plans, sink, reading=self.reading, progress=progress, watcher=watcher)
            return
        from resnap.replay.spark.job import SparkRebuild  # noqa: PLC0415 - half a second, and a JVM

        with self._warm_spark().context() as context:
            job = SparkRebuild(
                context=context,
                sink_url=sink_url,
                s3=self.s3,
                reading=self.reading,
                progress=progress,
                watcher=watcher,
            )
            yield from job.run(plans)

    def each(self, look: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Return ``look(item)`` for each of ``items``, from where segments are read: the executors, if there are any.

        Raises:
            ResnapError: Spark did not start, or its job failed.

        """
        if not self.is_remote or not items:
            return list(each(look, items, remote=True))
        from resnap.replay.spark.job import on_executors  # noqa: PLC0415 - imports pyspark

        with self._warm_spark().context() as context:
            return on_executors(context, look, items)

    def spread(self, look: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Return ``look(item)`` for each of ``items``, which is work: on Spark, unless this process is the engine.

        Raises:
            ResnapError: Spark did not start, or its job failed.

        """
        if self.kind == "local" or not items:
            return list(map(look, items))
        from resnap.replay.spark.job import on_executors  # noqa: PLC0415 - imports pyspark

        with self._warm_spark().context() as context:
            return on_executors(context, look, items)

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
