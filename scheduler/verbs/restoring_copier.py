"""Chooses what copies the files of `resnap restore`: threads of this process, or executors on other machines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resnap.scheduler.settings.declaration import DEFAULT_ORIGIN
from resnap.storage.disk import dress_of
from resnap.storage.threads import Throttle
from resnap.tiering.restoring.restorer import FILE_MODE, Copier, FileTask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from resnap.replay.spark.task_pool import TaskPool
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.engine import Engine


@contextmanager
def restoring_copier(
    engine: Engine, settings: Settings, sources: Collection[str], into: Collection[Path]
) -> Iterator[Copier]:
    """Give what copies: executors of other machines, if there are any, which must reach all that is named.

    Raises:
        UsageError: they do not.

    """
    if not engine.is_remote or not sources:
        with ThreadPoolExecutor(settings.parallel, "resnap-copy") as threads:
            yield Copier(throttle=Throttle(bytes_per_s=settings.bwlimit), threads=threads, at_once=settings.parallel)
        return
    for log_dir in into:
        engine.check_reach(sources, log_dir.as_uri(), replace(dress_of(log_dir), mode=FILE_MODE, mtime_ns=None))
    asked = settings.parallel if settings.origin("parallel") != DEFAULT_ORIGIN else None
    most_tasks, bytes_per_s = engine.shares(asked, settings.bwlimit)
    pool: TaskPool[Any, Any]
    with (
        engine.task_pool(FileTask(bytes_per_s), "writing files", most_tasks=most_tasks, most_items=asked) as pool,
        ThreadPoolExecutor(pool.items_at_once, "resnap-copy") as threads,
    ):
        yield Copier(threads=threads, at_once=pool.items_at_once, elsewhere=pool.result, stop=pool.close)
