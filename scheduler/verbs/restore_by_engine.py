"""What `resnap restore` has an engine do: rebuild the wrong snapshots of a store without digests, and copy files.

No manifest there has a digest of them, and brokers wrote them: a snapshot that ``verify URL`` refuses would make a
broker refuse good producers, or serve aborted records. A replay of the stored segments rebuilds it. Threads of this
process copy, or executors on other machines.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resnap.replay.staging import DISCARD, scratch_directory
from resnap.scheduler.settings.declaration import DEFAULT_ORIGIN
from resnap.storage.disk import dress_of
from resnap.storage.errors import StoreError, VerificationError
from resnap.storage.sources.log_dirs import tiered_part
from resnap.storage.throttle import Throttle
from resnap.tiering.restoring.restoration import Replaced
from resnap.tiering.restoring.restorer import FILE_MODE, Copier, FileTask
from resnap.tiering.store_check import StoreCheck
from resnap.tiering.stored_snapshots import StoredSnapshots
from resnap.tiering.verifying.verification import StoreReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from resnap.replay.spark.task_pool import TaskPool
    from resnap.replay.watching import Progress
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.engine import Engine
    from resnap.tiering.planner import Planner
    from resnap.tiering.selection import Scope
    from resnap.tiering.stored_snapshots import SnapshotCheck


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


@contextmanager
def replaced_snapshots(planner: Planner, progress: Progress, scope: Scope) -> Iterator[Mapping[str, Replaced]]:
    """Give what takes the place of snapshots that are wrong, by their locators; nothing where manifests have digests.

    Raises:
        ResnapError: the replay failed.

    """
    with scratch_directory("restored") as directory:
        yield {check.key: _replace(check, directory) for check in _wrong_snapshots(planner, progress, scope, directory)}


def _wrong_snapshots(planner: Planner, progress: Progress, scope: Scope, directory: Path) -> Iterator[SnapshotCheck]:
    sources = planner.engine.reading.sources
    check = StoreCheck(part=tiered_part(scope.sources[0], sources), scope=scope, planner=planner, sources=sources)
    if check.part.layout.tells_digests:
        return
    reader = StoreReader(store=check.part.store, listing=check.listing, sources=sources)
    # The executors of a cluster cannot write into a directory of this machine.
    check.sink = DISCARD if planner.engine.is_remote else directory.as_uri()
    for key in check.listing.manifests:
        manifest = reader.verify(key, reads_objects=False).manifest
        if manifest is not None:
            check.manifests[key] = manifest
            check.asked_for.add(key)
    for found in StoredSnapshots(check).compared(progress):
        if isinstance(found.problem, StoreError):
            raise found.problem
        if found.problem is not None:
            yield found


def _replace(check: SnapshotCheck, directory: Path) -> Replaced:
    made = None if check.rebuilt is None else directory / check.rebuilt
    hint = "see `resnap verify URL`"
    if made is None or not made.exists():
        why = f"{check.problem}; it was not restored: the broker makes it again when it loads the log"
        return Replaced(None, VerificationError(why, hint=hint))
    why = f"{check.problem}; it was not restored, and rebuilt from the stored segments"
    return Replaced(str(made), VerificationError(why, hint=hint))
