"""A file system whose power may fail: what would be left is what was synced, and of the rest perhaps the names.

It works below all code, by the calls that ``os`` makes: bytes of a file are on the medium since its last ``fsync``, the
names of a folder since the last ``fsync`` of that folder. After every call that changes names or syncs, a test may look
at what a failure would leave then: of the names that were not synced none, the newest alone, or all; bytes that were
not synced are torn.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_CHANGES_NAMES: Final = ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir")
_GIVES_A_NAME: Final = {"replace", "rename", "link"}
_HELPERS: Final = {"sync", "sync_directory", "synced"}
"""Functions that sync for others: their caller decides whose sync it is."""


class Luck(StrEnum):
    """Which of the names that were not synced survive: a file system promises nothing of their order."""

    NONE = "none"
    NEWEST = "newest"
    ALL = "all"


@dataclass(slots=True)
class Power:
    """What of the files below ``root`` is on the medium; everything that is there when it begins."""

    root: Path
    look: Callable[[Power], None]
    """Called after each step."""
    forgets: str | None = None
    """The sync that does nothing, as ``module.function`` of who asks for it."""
    looks_at_names: bool = False
    """Whether ``look`` is not called where only the bytes of a file were synced, which have no name to be found by."""
    synced: set[str] = field(default_factory=set)
    """All who asked for one."""
    _bytes: dict[int, bytes] = field(default_factory=dict)
    _names: dict[int, dict[str, tuple[int, bool]]] = field(default_factory=dict)
    _held: list[int] = field(default_factory=list)
    _guard: Any = field(default_factory=threading.RLock)
    _looking: bool = False
    _newest: tuple[int, str] | None = None
    """Folder and name of what was named last."""

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take what is there as durable, and watch from now on."""
        for folder, _, files in os.walk(self.root):
            self._keep_names(folder)
            for name in files:
                self._keep_bytes(os.path.join(folder, name))  # noqa: PTH118
        for name in _CHANGES_NAMES:
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))
        monkeypatch.setattr(os, "fsync", self._fsync)

    def watch(self, work: Callable[[], object], left: Path) -> None:
        """Do ``work``, and write into ``left`` what a failure of the power would leave once it has returned."""
        with pytest.MonkeyPatch.context() as watched:
            self.begin(watched)
            try:
                work()
            finally:
                self.survivors(left, luck=Luck.NONE)
                self.end()

    def survivors(self, into: Path, *, luck: Luck) -> Path:
        """Write into ``into``, a new directory, what a failure of the power would leave now."""
        looking, self._looking = self._looking, True
        try:
            shutil.rmtree(into, ignore_errors=True)
            self._write(self.root, os.stat(self.root).st_ino, into, luck=luck)  # noqa: PTH116
        finally:
            self._looking = looking
        return into

    def end(self) -> None:
        """Let go of what was held."""
        for descriptor in self._held:
            os.close(descriptor)

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            result = call(*arguments, **named)
            if not self._looking and call.__name__ in _GIVES_A_NAME:
                folder, name = os.path.split(os.fspath(arguments[1]))
                self._newest = os.stat(folder).st_ino, name  # noqa: PTH116
            self._step()
            return result

        return watched

    def _fsync(self, descriptor: int) -> None:
        with self._guard:
            who = _asker()
            self.synced.add(who)
            if who != self.forgets:
                path = f"/proc/self/fd/{descriptor}"
                is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
                (self._keep_names if is_folder else self._keep_bytes)(path)
        if not self.looks_at_names or stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._step()

    def _step(self) -> None:
        with self._guard:
            if not self._looking:
                self._looking = True
                try:
                    self.look(self)
                finally:
                    self._looking = False

    def _keep_names(self, path: str) -> None:
        self._names[self._hold(path)] = dict(_listed(path))

    def _keep_bytes(self, path: str) -> None:
        with open(path, "rb") as file:  # noqa: PTH123 - also a descriptor's
            self._bytes[self._hold(path)] = file.read()

    def _hold(self, path: str) -> int:
        """Keep the file open, so that its number is given to no other."""
        descriptor = os.open(path, os.O_RDONLY)
        self._held.append(descriptor)
        return os.fstat(descriptor).st_ino

    def _write(self, live: Path, number: int, into: Path, *, luck: Luck) -> None:
        into.mkdir()
        names = self._survives(number, dict(_listed(str(live))), luck)
        for name, (inode, is_folder) in names.items():
            if is_folder:
                self._write(live / name, inode, into / name, luck=luck)
            elif inode in self._bytes:
                (into / name).write_bytes(self._bytes[inode])
            else:
                torn = (live / name).read_bytes() if luck is not Luck.NONE else b""
                (into / name).write_bytes(torn[: len(torn) // 2])

    def _survives(self, number: int, live: dict[str, tuple[int, bool]], luck: Luck) -> dict[str, tuple[int, bool]]:
        if luck is Luck.ALL:
            return live
        names = dict(self._names.get(number, {}))
        if luck is Luck.NEWEST and self._newest is not None and self._newest[0] == number:
            name = self._newest[1]
            names.update({name: live[name]} if name in live else {})
        return names


def _listed(path: str) -> Iterator[tuple[str, tuple[int, bool]]]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry.name, (entry.inode(), entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return


def _asker() -> str:
    frame = sys._getframe(2)
    while frame.f_code.co_name in _HELPERS and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_globals['__name__'].rpartition('.')[2]}.{frame.f_code.co_name}"
