"""Verbs that are killed before any step or at any instant: what they leave keeps the promises; one rerun completes."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING, Final

import pytest

from tests.scheduler.failing_disk import kill_after_a_step
from tests.scheduler.files import tree
from tests.scheduler.scenes import SET, VERBS, Scene, contents, scenes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

pytestmark = pytest.mark.slow

STEPS: Final = ("fsync", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir")
"""Calls of ``os`` that change what there is, or make it durable."""
PATIENCE_S: Final = 300


@pytest.fixture
def new_scene(fixture_set: Callable[[str], FixtureSet], quick: Path) -> Callable[[str], Scene]:
    """Give a place in which a verb can be run, again and again."""
    return scenes(fixture_set(SET), quick)


def in_child(scene: Scene, verb: str, before_step: Callable[[int], None]) -> int:
    """Run the verb in a process of its own, which calls ``before_step`` before each step; return the process."""
    child = os.fork()
    if child:
        return child
    signal.alarm(PATIENCE_S)  # should the fork have caught a lock of another thread
    number = -1

    def stepping(call: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **named: object) -> object:
            nonlocal number
            number += 1
            before_step(number)
            return call(*arguments, **named)

        return step

    try:
        for name in STEPS:
            setattr(os, name, stepping(getattr(os, name)))
        scene.run(verb)
    finally:
        os._exit(0)


def kill_before(scene: Scene, verb: str, at: int) -> bool:
    """Run the verb until it dies before step ``at``; return whether it came so far."""

    def die(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    _, status = os.waitpid(in_child(scene, verb, die), 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check_rerun(scene: Scene, verb: str, expected: int) -> None:
    assert scene.run(verb) == 0
    assert scene.check(verb, scene.root) == expected
    before = contents(scene.root)
    assert scene.run(verb) == 0
    assert contents(scene.root) == before or verb == "remember"


def undisturbed(new_scene: Callable[[str], Scene], verb: str) -> tuple[int, int]:
    """Return how much the verb leaves without a kill, and in how many steps."""
    scene, (heard, told) = new_scene(verb), os.pipe()
    child = in_child(scene, verb, lambda _: os.write(told, b".") and None)
    os.close(told)
    steps = 0
    while data := os.read(heard, 1 << 16):
        steps += len(data)
    os.waitpid(child, 0)
    os.close(heard)
    return scene.check(verb, scene.root), steps


@pytest.mark.parametrize("kills", [6, pytest.param(1_000, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("verb", VERBS)
def test_a_kill_before_a_step_leaves_what_is_promised_and_one_rerun_completes(
    new_scene: Callable[[str], Scene], verb: str, kills: int
) -> None:
    expected, steps = undisturbed(new_scene, verb)
    stride, died = max(1, steps // kills), 0
    for at in range(stride // 2, steps, stride):
        scene = new_scene(verb)
        before = tree(scene.log_dir)
        died += kill_before(scene, verb, at)  # a first run may take a few steps more, such as to keep compiled code
        scene.check(verb, scene.root)
        check_rerun(scene, verb, expected)
        assert tree(scene.log_dir) == before
    assert died > 2, "the verb ended before it could be killed"


@pytest.mark.parametrize("kills", [10, pytest.param(125, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("verb", VERBS)
def test_a_kill_at_any_instant_leaves_what_is_promised_and_one_rerun_completes(
    new_scene: Callable[[str], Scene], verb: str, kills: int
) -> None:
    (expected, steps), draw, seen = undisturbed(new_scene, verb), random.Random(kills), set()
    scene = new_scene(verb)
    for number in range(kills):
        kill_after_a_step(lambda step, at=scene: in_child(at, verb, lambda _: step()), draw, steps, within_s=0.002)
        seen.add(scene.check(verb, scene.root))
        if number % 3 == 2:
            check_rerun(scene, verb, expected)
            scene = new_scene(verb)
    check_rerun(scene, verb, expected)
    assert len(seen) > 1 or kills < 100, f"the kills came too early or too late: {seen}"
