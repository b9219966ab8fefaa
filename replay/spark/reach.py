"""Checks before a replay that a cluster's executors can read its sources and write to its destination.

Executors on other machines can use files of this machine only if all of them mount the same directory, and a store may
accept the driver but not them: credentials from the environment, a profile or a role belong to each machine. So each
executor reads a byte of one segment of each log dir and bucket, and either finds a mark that the driver left in the
destination directory and writes a file beside it, or writes to the destination's store.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from resnap.replay.spark.failures import explain_job_failure
from resnap.storage.disk import Disk, write_new_file
from resnap.storage.errors import LogDirError, ResnapError, UsageError
from resnap.storage.stores.probe import PROBE_PREFIX
from resnap.storage.stores.urls import is_store_url, local_path, split_object_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pyspark import SparkContext

    from resnap.storage.disk import FileAttributes
    from resnap.storage.sources.files import Sources

_TASKS_PER_SLOT: Final = 4
"""More tasks than slots, so that every executor is likely to get one."""
_MOUNT: Final = (
    "all executors must mount the directory at the same place, and may write there; without --spark-master, or with"
    " --engine local, this machine does it alone"
)
_REACH: Final = (
    "endpoint and credentials must be known to the executors, too: a role, AWS_* in their environment, or a profile"
    " on their machines; without --spark-master, or with --engine local, this machine does it alone"
)


def check_reach(
    context: SparkContext,
    locators: Collection[str],
    sink_url: str,
    sources: Sources,
    attributes: FileAttributes | None = None,
) -> frozenset[str]:
    """Let the executors read the sources, by the ``locators`` of segments, and write to the destination; return both.

    ``attributes`` is the owner and mode that they will give files there, if that matters.

    Raises:
        UsageError: one of them does not see a file or an object, or cannot write to the destination.
        LogDirError: the destination cannot be written from here.

    """
    needed = one_of_each_root(locators)
    directory = local_path(sink_url)
    if directory is not None:
        with _mark(directory) as mark:
            answers = _ask(context, _Question((*needed, mark), None, sources, mark, attributes))
            where = {mark: f"the destination {directory}"}
    else:
        into = (sink_url, f"{PROBE_PREFIX}/{uuid4().hex}") if is_store_url(sink_url) else None
        answers = _ask(context, _Question(tuple(needed), into, sources))
        where = {sink_url: f"the destination {sink_url}"}
    for locator, said in answers.items():
        raise UsageError(
            f"executors of {context.master} cannot reach {where.get(locator, locator)}: {said}",
            hint=_REACH if is_store_url(locator) and local_path(locator) is None else _MOUNT,
        )
    return frozenset((sink_url, *map(root_of, locators)))


def one_of_each_root(locators: Iterable[str]) -> Iterable[str]:
    """Return one locator of each log dir and bucket, enough to check that an executor can read there."""
    return {root_of(locator): locator for locator in locators}.values()


def is_reached(locators: Iterable[str], sink_url: str, reached: Collection[str]) -> bool:
    """Whether everything is within ``reached``: roots of sources, and destinations that were checked."""
    has_sink = any(sink_url == url or sink_url.startswith(f"{url}/") for url in reached)
    return has_sink and all(root_of(locator) in reached for locator in locators)


def root_of(locator: str) -> str:
    """Return the log dir or the bucket of ``locator``."""
    path = local_path(locator) if is_store_url(locator) else Path(locator)
    return split_object_url(locator)[0] if path is None else str(path.parent.parent)


class _Question(NamedTuple):
    """The check for an executor: read a byte of each locator, and write to a store, or beside a file."""

    locators: tuple[str, ...]
    into: tuple[str, str] | None
    """The store, and the key below which each task writes an object of its own."""
    sources: Sources
    beside: str | None = None
    """One of the locators."""
    attributes: FileAttributes | None = None

    def answers(self, task: int) -> Iterator[tuple[str, str]]:
        """Yield what cannot be reached, and why.

        A task that runs again, as its executor was killed, deletes what it has left in the store.
        """
        for locator in dict.fromkeys(self.locators):
            try:
                self.sources.read_range(locator, 0, 1)
                if locator == self.beside:
                    self._write(Path(f"{locator}{uuid4().hex}~"))
            except ResnapError as error:
                yield locator, str(error)
        if self.into is not None:
            url, key = self.into
            try:
                store = self.sources.store(url)
                store.put(f"{key}/{task}", b"")
                store.delete(f"{key}/{task}")
            except ResnapError as error:
                yield url, str(error)

    def _write(self, path: Path) -> None:
        try:
            write_new_file(Disk(), path, [b"-"], self.attributes)
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _mark(directory: Path) -> Iterator[str]:
    """Leave an empty file in ``directory`` while the context lasts, and then nothing that begins with its name."""
    mark = directory / f".resnap-{uuid4().hex}~"
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise LogDirError(f"{mark.parent}: cannot be written: {error.strerror}", hint="choose another place") from error
    try:
        yield str(mark)
    finally:
        for left in directory.glob(f"{mark.name}*"):  # also by an executor that was killed
            left.unlink(missing_ok=True)


def _ask(context: SparkContext, question: _Question) -> dict[str, str]:
    with explain_job_failure(context):
        tasks = context.defaultParallelism * _TASKS_PER_SLOT
        asked = context.parallelize(range(tasks), tasks).mapPartitionsWithIndex(lambda task, _: question.answers(task))
        return dict(asked.collect())
