"""Disks that stop, fail, or lose power at a step, to see what an installation leaves behind then."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _File:
    """A file's bytes, as they are and as they are on the medium."""

    live: bytes = b""
    durable: bytes = b""


@dataclass(slots=True)
class _Folder:
    """A folder's names, as they are and as they are on the medium."""

    live: dict[str, _File | _Folder] = field(default_factory=dict)
    durable: dict[str, _File | _Folder] = field(default_factory=dict)


class PowerLossDisk(WatchedDisk):
    """Keeps beside the real files what of them would survive if the power failed: only what was synced.

    Names that were not synced may or may not survive, so there are two outcomes to check.
    """

    def __init__(self, root: Path, forgets: frozenset[str] = frozenset()) -> None:
        """Watch all below ``root``; syncs called from a function in ``forgets`` do not count."""
        super().__init__()
        self._root, self._forgets = root, forgets
        self._tree = _read_tree(root)
        self._opened: dict[int, _File] = {}
        self.after_step: Callable[[], None] = lambda: None

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        names = self._folder(path.parent).live
        file = names.get(path.name)
        if not isinstance(file, _File):
            file = names[path.name] = _File()
        file.live = b""
        self._opened[descriptor] = file
        self.after_step()
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        count = super().write(descriptor, data)
        self._opened[descriptor].live += bytes(data[:count])
        self.after_step()
        return count

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        if not self._is_forgotten("sync"):
            self._opened[descriptor].durable = self._opened[descriptor].live
        self.after_step()

    def rename(self, path: Path, target: Path) -> None:
        super().rename(path, target)
        self._folder(target.parent).live[target.name] = self._folder(path.parent).live.pop(path.name)
        self.after_step()

    def remove(self, path: Path) -> None:
        super().remove(path)
        del self._folder(path.parent).live[path.name]
        self.after_step()

    def make_directory(self, path: Path) -> None:
        super().make_directory(path)
        self._folder(path.parent).live[path.name] = _Folder()
        self.after_step()

    def remove_directory(self, path: Path) -> None:
        super().remove_directory(path)
        del self._folder(path.parent).live[path.name]
        self.after_step()

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        if not self._is_forgotten("sync_directory"):
            folder = self._folder(path)
            folder.durable = dict(folder.live)
        self.after_step()

    def _is_forgotten(self, step: str) -> bool:
        """Whether the function that asks for this sync is taken to have lost the line with it."""
        frame = sys._getframe(2)
        while frame.f_code.co_name == step and frame.f_back is not None:  # of a disk that builds on this one
            frame = frame.f_back
        return f"{frame.f_code.co_name}.{step}" in self._forgets

    def survivors(self, into: Path, *, names_survive: bool) -> None:
        """Write into ``into``, a new directory, what a failure of the power would leave now."""
        _write_tree(self._tree, into, names_survive=names_survive)

    def _folder(self, path: Path) -> _Folder:
        folder = self._tree
        for part in path.relative_to(self._root).parts:
            below = folder.live[part]
            assert isinstance(below, _Folder)
            folder = below
        return folder


def _read_tree(root: Path) -> _Folder:
    found: dict[str, _File | _Folder] = {
        path.name: _read_tree(path) if path.is_dir() else _File(path.read_bytes(), path.read_bytes())
        for path in root.iterdir()
    }
    return _Folder(found, dict(found))


def _write_tree(folder: _Folder, into: Path, *, names_survive: bool) -> None:
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    for name, below in (folder.live if names_survive else folder.durable).items():
        if isinstance(below, _Folder):
            _write_tree(below, into / name, names_survive=names_survive)
        else:
            (into / name).write_bytes(below.durable)


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
