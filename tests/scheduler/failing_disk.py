"""Disks that stop or fail at a step, to see what an installation leaves behind then."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from resnap.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from resnap.storage.disk import Dress


class Killed(BaseException):
    """The process has ended: nothing that it would still do has any effect."""


class WatchedDisk(Disk):
    """The real disk, whose steps are counted; before step ``stop`` it calls ``at_stop``."""

    def __init__(self, stop: int | None = None, at_stop: Callable[[], None] | None = None) -> None:
        self.steps = 0
        self._stop, self._at_stop = stop, at_stop

    def _step(self) -> None:
        if self._at_stop is not None and self._stop is not None and self.steps >= self._stop:
            self._at_stop()
        self.steps += 1

    def create(self, path: Path) -> int:
        self._step()
        return super().create(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        self._step()
        return super().write(descriptor, data[: max(1, len(data) // 2)])

    def dress(self, descriptor: int, dress: Dress) -> None:
        self._step()
        super().dress(descriptor, dress)

    def sync(self, descriptor: int) -> None:
        self._step()
        super().sync(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        self._step()
        super().rename(path, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def make_directory(self, path: Path) -> None:
        self._step()
        super().make_directory(path)

    def remove_directory(self, path: Path) -> None:
        self._step()
        super().remove_directory(path)

    def dress_directory(self, path: Path, dress: Dress) -> None:
        self._step()
        super().dress_directory(path, dress)

    def set_directory_time(self, path: Path, mtime_ns: int) -> None:
        self._step()
        super().set_directory_time(path, mtime_ns)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)


def killed_at(step: int) -> WatchedDisk:
    """Return a disk on which the process dies before ``step``: from then on nothing is done any more."""

    def die() -> None:
        raise Killed

    return WatchedDisk(step, die)


def failing_at(step: int, number: int) -> WatchedDisk:
    """Return a disk on which ``step`` and all after it fail."""

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    return WatchedDisk(step, fail)


def kill_after_a_step(begin: Callable[[Callable[[], None]], int], draw: Random, steps: int, within_s: float) -> None:
    """Kill the process that ``begin`` starts, a moment after some step that it has come to; it calls what it gets."""
    heard, told = os.pipe()
    child = begin(lambda: os.write(told, b".") and None)
    os.close(told)
    for _ in range(draw.randrange(steps)):
        if not os.read(heard, 1):
            break  # it has come to its end
    time.sleep(draw.random() * within_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(heard)


def kill_on_a_disk(work: Callable[[Disk], object], draw: Random, steps: int) -> None:
    """Do ``work`` with a disk in a process of its own, and kill that a moment after some step."""

    def begin(step: Callable[[], None]) -> int:
        child = os.fork()
        if not child:
            try:
                work(WatchedDisk(0, step))
            finally:
                os._exit(0)
        return child

    kill_after_a_step(begin, draw, steps, within_s=0.001)
