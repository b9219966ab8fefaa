"""Whether a cluster's executors can reach what a replay reads and where it writes: asked before it starts, not after.

Files of this machine are of no use to executors on other machines unless all of them mount the same directory. So the
executors are asked to look: for the first segment of each partition, and for a mark that the driver leaves in the
destination.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from storage.errors import LogDirError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark import SparkContext

    from replay.plan import PartitionPlan

_TASKS_PER_SLOT: Final = 4
"""More tasks than slots, so that every executor is likely to get one."""


def check_reach(context: SparkContext, plans: Sequence[PartitionPlan], sink_url: str) -> None:
    """Have the executors look for the sources and the destination.

    Raises:
        UsageError: one of them does not see a file.
        LogDirError: the destination cannot be written from here.

    """
    needed = [plan.segments[run.start].locator for plan in plans for run in plan.runs[:1]]
    with _mark(sink_url) as marks:
        missing = _unseen(context, [*needed, *marks])
    if missing:
        where = "the destination" if missing[0] in marks else missing[0]
        raise UsageError(
            f"executors of {context.master} cannot see {where}",
            hint="all executors must mount the directory at the same place; without --spark-master it is replayed here",
        )


@contextmanager
def _mark(sink_url: str) -> Iterator[list[str]]:
    """Leave an empty file in the destination while the context lasts, if it is a directory."""
    parts = urlsplit(sink_url)
    if parts.scheme != "file":
        yield []
        return
    mark = Path(unquote(parts.path)) / f".resnap-{uuid4().hex}~"
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise LogDirError(f"{mark.parent}: cannot be written: {error.strerror}", hint="choose another place") from error
    try:
        yield [str(mark)]
    finally:
        mark.unlink(missing_ok=True)


def _unseen(context: SparkContext, paths: Sequence[str]) -> list[str]:
    wanted = list(paths)

    def look(_: Iterator[int]) -> Iterator[str]:
        yield from (path for path in wanted if not os.access(path, os.R_OK))

    tasks = context.defaultParallelism * _TASKS_PER_SLOT
    seen_missing: set[str] = set(context.parallelize(range(tasks), tasks).mapPartitions(look).collect())
    return [path for path in wanted if path in seen_missing]
