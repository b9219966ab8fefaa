"""``resnap restore`` where executors write: their work pickled, done twice, late or in vain, without a cluster."""

from __future__ import annotations

import pickle
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from resnap.replay.watching import Progress
from resnap.storage.log.names import TopicPartition
from resnap.storage.sources.files import Sources
from resnap.tiering.restore import RestoreOrder, RestoreWork, restore
from resnap.tiering.restoring.restorer import Copier, unfinished_name, work_at
from resnap.tiering.selection import Scope
from tests.scheduler.test_restore import PARTITIONS, check_whole, log_dir, store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from resnap.storage.errors import ResnapError
    from resnap.tiering.restore import RestoreReport

__all__ = ["log_dir", "store"]


def executor(work: Any, _: int, wanted: Callable[[], bool]) -> Any:
    """Do what travels to an executor, as a task of two attempts, of which the first one counts."""
    assert wanted()
    first, _ = (work_at(None, pickle.loads(pickle.dumps(work))) for _ in range(2))  # noqa: S301 - our own
    return first


def on_executors(store: Path, log_dir: Path) -> list[ResnapError]:
    @contextmanager
    def copying(_: Collection[str], __: Collection[Path]) -> Iterator[Copier]:
        with ThreadPoolExecutor(4) as threads:
            yield Copier(threads=threads, at_once=4, elsewhere=executor)

    request = RestoreOrder(scope=Scope(sources=(store.as_uri(),)), log_dirs=(log_dir,))
    reports: list[RestoreReport] = []
    restore(request, RestoreWork(sources=Sources(), progress=Progress(), copying=copying), reports.append)
    return [fault for found in reports for fault in found.faults]


def test_what_several_attempts_wrote_is_taken_once_and_the_rest_removed(store: Path, log_dir: Path) -> None:
    for _ in range(2):  # the second one finds all of it there
        assert on_executors(store, log_dir) == []
        assert check_whole(store, log_dir) == set(PARTITIONS)


def test_what_a_task_of_a_dead_run_has_left_does_not_come_into_the_partition(store: Path, log_dir: Path) -> None:
    left = log_dir / unfinished_name(TopicPartition("payments", 0), "of executors")
    left.mkdir()
    (left / "00000000000000000000.log").write_bytes(b"of a run that was killed")
    assert on_executors(store, log_dir) == []
    assert check_whole(store, log_dir) == set(PARTITIONS)


def test_an_executor_that_can_write_no_more_is_reported_and_nothing_becomes_visible(store: Path, log_dir: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        faults = on_executors(store, log_dir)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(faults) == len(PARTITIONS)
    assert all("cannot be written: File too large" in str(fault) for fault in faults)
    assert check_whole(store, log_dir, killed=True) == set()
    assert on_executors(store, log_dir) == []
    assert check_whole(store, log_dir) == set(PARTITIONS)


def test_an_object_that_an_executor_finds_changed_is_reported(store: Path, log_dir: Path) -> None:
    changed = next(path for path in store.rglob("*.log"))
    body = changed.read_bytes()
    changed.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    try:
        (fault,) = on_executors(store, log_dir)
    finally:
        changed.write_bytes(body)
    assert "other bytes than its manifest says" in str(fault)
    assert len(check_whole(store, log_dir, killed=True)) == len(PARTITIONS) - 1
