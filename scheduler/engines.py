"""Which engine replays: Spark, or this process alone. Both give the same results for the same plans.

Spark is imported only here and only when it is used, so that commands that replay nothing answer at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from replay.rebuild import rebuild_locally
from replay.staging import open_sink
from storage.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from replay.plan import PartitionPlan
    from replay.rebuild import PartitionResult
    from replay.spark_settings import SparkSettings
    from storage.remote.s3_settings import S3Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How to replay."""

    kind: Literal["spark", "local"]
    spark: SparkSettings
    environment: Mapping[str, str]
    s3: S3Settings

    @property
    def is_remote(self) -> bool:
        """Whether other machines read the sources and write the snapshots."""
        return self.kind == "spark" and not self.spark.is_local

    def replay(
        self,
        plans: Sequence[PartitionPlan],
        sink_url: str,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[PartitionResult]:
        """Yield the result of each plan, in any order; snapshots go to the sink at ``sink_url``.

        Raises:
            ResnapError: Spark did not start, or its job failed.

        """
        self._check_reach(sink_url)
        if self.kind == "local" or not any(plan.runs for plan in plans):
            yield from rebuild_locally(plans, open_sink(sink_url, self.s3), progress=progress)
            return
        from replay.spark_job import SparkRebuild  # noqa: PLC0415 - half a second, and a JVM
        from replay.spark_session import spark_session  # noqa: PLC0415

        with spark_session(self.spark, self.environment) as session:
            job = SparkRebuild(session=session, sink_url=sink_url, s3=self.s3, progress=progress)
            yield from job.run(plans)

    def _check_reach(self, sink_url: str) -> None:
        if self.is_remote and sink_url.startswith("memory:"):
            raise UsageError(f"{sink_url}: the executors of {self.spark.master} cannot write there",
                             hint="give a store, or a directory that all of them mount")  # fmt: skip
