"""Disks that stop or fail at a step, to see what an installation leaves behind then."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


STEPS_BEYOND: Final = 3
"""How many steps a process may take after the one after which it is killed."""


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

    def write(self, descriptor: int, data: memoryview) -> int:
        self._step()
        return super().write(descriptor, data[: max(1, len(data) // 2)])


def _stepping(name: str) -> Callable[..., Any]:
    def call(disk: WatchedDisk, *arguments: Any) -> Any:
        disk._step()
        return getattr(Disk, name)(disk, *arguments)

    return call


for _name in ("create", "set_attributes", "sync", "rename", "remove", "make_directory", "remove_directory",
              "set_directory_attributes", "set_directory_time", "sync_directory"):  # fmt: skip
    setattr(WatchedDisk, _name, _stepping(_name))


def killed_at(step: int) -> WatchedDisk:
    """Return a disk on which the process dies before ``step``: from then on nothing is done any more."""

    def die() -> None:
        raise Killed

    return WatchedDisk(step, die)


def kill_after_a_step(begin: Callable[[Callable[[], None]], int], draw: Random, steps: int, within_s: float) -> bool:
    """Kill the process that ``begin`` starts, a moment after some step that it has come to; it calls what it gets.

    It waits for its death a few steps later, lest it comes to its end where this process gets no processor.
    Return whether it died of that, and had not ended before.
    """
    heard, told = os.pipe()
    kill_at, done = draw.randrange(steps), 0

    def step() -> None:
        nonlocal done
        done += 1
        os.write(told, b".")
        if done > kill_at + STEPS_BEYOND:
            signal.pause()

    child = begin(step)
    os.close(told)
    for _ in range(kill_at):
        if not os.read(heard, 1):
            break  # it has come to its end
    time.sleep(draw.random() * within_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(heard)
    return os.WIFSIGNALED(status)
