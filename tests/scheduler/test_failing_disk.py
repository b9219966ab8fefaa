"""A disk that fails within a verb: reported with file and next step, nothing half-made, one rerun completes."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import tempfile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from tests.scheduler.files import tree
from tests.scheduler.scenes import OFTENER, Scene, Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("producers_stay")]

VERBS: Final = ("regenerate", "tier", "retain", "gc", *OFTENER)
CHANGES: Final = (
    "replace",
    "rename",
    "link",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
    "fsync",
    "write",
    "fchmod",
    "utime",
)
"""Calls of ``os`` that change what there is, or make it durable."""
NUMBERS: Final = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES)
TYPED: Final = {1, 3, 12}
"""Exit codes: failed, partly done, store."""
PATIENCE_S: Final = 300


class FailingDisk:
    """What lies below ``root``, and fails at step ``stop`` and ever after."""

    def __init__(self, root: Path, number: int, stop: int | None = None) -> None:
        self.root, self.number, self.stop, self.steps = str(root), number, stop, 0

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Watch from now on."""
        for name in CHANGES:
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), lambda *_: True))
        monkeypatch.setattr(os, "open", self._watched(os.open, _opens_for_writing))
        monkeypatch.setattr(io, "open", self._watched(io.open, _opens_to_write))

    def _watched(self, call: Callable[..., Any], is_change: Callable[..., bool]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if self._is_ours(arguments[0]) and is_change(*arguments, *named.values()):
                self.steps += 1
                if self.stop is not None and self.steps > self.stop:
                    raise OSError(self.number, os.strerror(self.number), str(arguments[0]))
            return call(*arguments, **named)

        return watched

    def _is_ours(self, what: Any) -> bool:
        where = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)  # noqa: PTH115
        return str(where).startswith(self.root)


def _opens_for_writing(_path: object, flags: int, *_: object) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _opens_to_write(_path: object, mode: str = "r", *_: object) -> bool:
    return not {"w", "a", "x", "+"}.isdisjoint(mode)


@pytest.fixture
def new_scene(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Scene]:
    """Give a place in which a verb can be run, with a temporary directory of its own; again and again."""

    def made(verb: str) -> Scene:
        monkeypatch.setattr(tempfile, "tempdir", None)
        scene = Scene(stage, verb)
        (scene.root / "tmp").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(scene.root / "tmp"))
        return scene

    return made


class Ended(NamedTuple):
    """How a run ended."""

    code: int
    output: str
    steps: int


def run_on(scene: Scene, disk: FailingDisk) -> Ended:
    """Run the verb on ``disk``, in a process of its own: what it still holds when it ends is held by a dead one."""
    heard, output = os.pipe()
    if not (child := os.fork()):
        signal.alarm(PATIENCE_S)  # should the fork have caught a lock of another thread
        try:
            with pytest.MonkeyPatch.context() as patched:
                disk.begin(patched)
                code = scene.run()
            os.write(output, json.dumps(Ended(code, scene.output, disk.steps)).encode())
        finally:
            os._exit(0)
    os.close(output)
    with open(heard, "rb") as file:  # noqa: PTH123 - a descriptor
        said = file.read()
    os.waitpid(child, 0)
    return Ended(*json.loads(said))


def check_reported(scene: Scene, ended: Ended, number: int) -> None:
    output = ended.output
    assert ended.code in TYPED, ended
    assert "this is a bug" not in output, output
    assert os.strerror(number).lower() in output.lower(), output
    assert str(scene.root) in output, output
    assert "hint: " in output, output


@pytest.mark.parametrize("stops", [4, pytest.param(1_000, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_fails_at_any_step_is_reported_and_one_rerun_completes(
    new_scene: Callable[[str], Scene], verb: str, stops: int
) -> None:
    scene = new_scene(verb)
    code, output, steps = run_on(scene, FailingDisk(scene.root, errno.EIO))
    assert code == 0, output
    expected, failed = scene.check(), 0
    numbers = NUMBERS if stops > len(NUMBERS) else None
    stops *= OFTENER.get(verb, 1)
    for index, stop in enumerate(range(0, steps, max(1, -(-steps // stops)))):
        for number in numbers or (NUMBERS[index % len(NUMBERS)],):
            scene = new_scene(verb)
            before = tree(scene.source)
            ended = run_on(scene, FailingDisk(scene.root, number, stop))
            if ended.code or scene.check() != expected:
                failed += 1
                check_reported(scene, ended, number)
            assert scene.run() == 0
            assert scene.check() == expected
            scene.check_end()
            scene.check_undone()
            assert tree(scene.source) == before
    assert failed > 2, "the disk failed where it does not matter"
