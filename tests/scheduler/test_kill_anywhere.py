"""Verbs that are killed before any step or at any instant: what they leave keeps the promises; one rerun completes."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING, Final

import pytest

from resnap.tiering.shipping.lease import LEASE_PREFIX, read_holder
from tests.scheduler.failing_disk import kill_after_a_step
from tests.scheduler.files import tree
from tests.scheduler.scenes import OFTENER, VERBS, Scene, Stage, contents

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("producers_stay")]

STEPS: Final = ("fsync", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "fchmod", "utime", "open")
"""Calls of ``os`` that change what there is, or make it durable."""
PATIENCE_S: Final = 300


def in_child(scene: Scene, before_step: Callable[[int], None]) -> int:
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
        scene.run()
    finally:
        os._exit(0)


def kill_before(scene: Scene, at: int) -> bool:
    """Run the verb until it dies before step ``at``; return whether it came so far."""

    def die(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    _, status = os.waitpid(in_child(scene, die), 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check_rerun(scene: Scene, expected: object) -> None:
    assert scene.run() == 0
    assert scene.check() == expected
    # One that was killed after its work leaves its lease to the next run that has any.
    leases = [path for path in scene.root.rglob(f"{LEASE_PREFIX}/**/*") if path.is_file()]
    assert all(read_holder(path.read_bytes()).process.is_dead for path in leases)
    scene.check_end()
    before = contents(scene.root)
    assert scene.run() == 0
    assert contents(scene.root) == before or scene.verb == "remember"
    scene.check_undone()


def undisturbed(scene: Scene) -> tuple[object, int]:
    """Return how much the verb leaves without a kill, and in how many steps."""
    heard, told = os.pipe()
    child = in_child(scene, lambda _: os.write(told, b".") and None)
    os.close(told)
    steps = 0
    while data := os.read(heard, 1 << 16):
        steps += len(data)
    os.waitpid(child, 0)
    os.close(heard)
    return scene.check(), steps


@pytest.mark.parametrize("kills", [6, pytest.param(1_000, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("verb", VERBS)
def test_a_kill_before_a_step_leaves_what_is_promised_and_one_rerun_completes(
    stage: Stage, verb: str, kills: int
) -> None:
    expected, steps = undisturbed(Scene(stage, verb))
    stride, died = max(1, steps // (kills * OFTENER.get(verb, 1))), 0
    for at in range(stride // 2, steps, stride):
        scene = Scene(stage, verb)
        before = tree(scene.source)
        died += kill_before(scene, at)  # a first run may take a few steps more, such as to keep compiled code
        scene.check()
        check_rerun(scene, expected)
        assert tree(scene.source) == before
    assert died > 2, "the verb ended before it could be killed"


@pytest.mark.parametrize("kills", [10, pytest.param(125, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("verb", VERBS)
def test_a_kill_at_any_instant_leaves_what_is_promised_and_one_rerun_completes(
    stage: Stage, verb: str, kills: int
) -> None:
    (expected, steps), draw, seen = undisturbed(Scene(stage, verb)), random.Random(kills), set()
    scene, died = Scene(stage, verb), 0
    for number in range(kills):
        died += kill_after_a_step(lambda step, at=scene: in_child(at, lambda _: step()), draw, steps, within_s=0.002)
        seen.add(scene.check())
        if number % 3 == 2:
            check_rerun(scene, expected)
            scene = Scene(stage, verb)
    check_rerun(scene, expected)
    assert died > 2, "the verb ended before it could be killed"
    assert len(seen) > 1 or kills < 100, f"the kills came too early or too late: {seen}"
