"""Verbs that get SIGTERM, SIGSTOP and SIGCONT, or another clock, at any step: complete, and continued by a rerun."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from resnap.scheduler.cli.interrupts import handle_interrupts
from tests.scheduler.scenes import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scheduler.scenes import Stage

pytestmark = pytest.mark.slow

VERBS: Final = ("regenerate", "tier", "install", "restore", "retain", "gc", "verify")
STEPS: Final = frozenset({"open", "os.listdir", "os.scandir", "os.rename", "os.mkdir", "os.rmdir", "os.link"})
"""What is asked of the disk, by Python's audit events. Not that a file be removed: it would be left, half-made."""
DAY_S: Final = 86_400
CODES: Final = {"SIGTERM": 143, "SIGSTOP, SIGTERM, SIGCONT": 143}
PATIENCE_S: Final = 300


class Ended(NamedTuple):
    """How a run in a process of its own ended."""

    code: int
    output: str
    steps: int


def ended(place: Scene, at_step: Callable[[int], None]) -> Ended:
    """Run the place's verb in a process of its own, which calls ``at_step`` before each step.

    If that stops the process, it gets SIGTERM, and SIGCONT.
    """
    heard, steps_to = os.pipe()
    if not (child := os.fork()):
        os.close(heard)
        _run(place, at_step, steps_to)
    os.close(steps_to)
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
    with open(heard, "rb") as file:  # noqa: PTH123 - a descriptor
        steps, _, said = file.read().decode().partition(" ")
    return Ended(os.waitstatus_to_exitcode(status), said, int(steps or 0))


def _run(place: Scene, at_step: Callable[[int], None], steps_to: int) -> None:
    signal.alarm(PATIENCE_S)  # should the fork have caught a lock of another thread
    code, said, steps = -1, "", 0
    ours = (str(place.root), str(place.source))

    def count_step(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal steps
        if event in STEPS and isinstance(arguments[0], str) and arguments[0].startswith(ours):
            steps += 1
            at_step(steps - 1)

    try:
        tempfile.tempdir = str(place.root / "tmp")
        (place.root / "tmp").mkdir()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the parent of the tests ignores it
        # Interrupted between the opening of a directory and the block that closes it, Python closes it, and warns.
        warnings.simplefilter("ignore", ResourceWarning)
        handle_interrupts()
        sys.addaudithook(count_step)
        code = place.run()
        said = place.output
    except BaseException:  # noqa: BLE001 - reported, since the process ends without a message
        said = traceback.format_exc()
    finally:
        os.write(steps_to, f"{steps} {said}".encode()[:60_000])
        os._exit(code & 0xFF)


def once(number: signal.Signals, at: int) -> Callable[[int], None]:
    return lambda step: os.kill(os.getpid(), number) if step == at else None


def again_and_again(number: signal.Signals, at: int) -> Callable[[int], None]:
    """Send the signal once more if the process takes any step of its own after that."""
    return lambda step: os.kill(os.getpid(), number) if step >= at else None


def clock_set(place: Scene, by_s: int, at: int) -> Callable[[int], None]:
    """Set the clock of this process from one step on, and that of what it writes into its store."""
    return lambda step: _set_clock(place, by_s) if step == at else None


def _set_clock(place: Scene, by_s: int) -> None:
    now_s, now_ns, store = time.time, time.time_ns, str(place.root / "store")

    def dated(publish: Callable[..., None]) -> Callable[..., None]:
        def published(source: Any, target: Any, **others: Any) -> None:
            publish(source, target, **others)
            if str(target).startswith(store):
                os.utime(target, (now_s() + by_s, now_s() + by_s))

        return published

    time.time, time.time_ns = lambda: now_s() + by_s, lambda: now_ns() + by_s * 10**9
    os.replace, os.link = dated(os.replace), dated(os.link)


def leftovers(place: Scene) -> list[str]:
    """Return what no run that ends in order leaves: files in the making, leases, scratch directories."""
    found = (path.relative_to(place.root) for path in place.root.rglob("*") if path.is_file())
    return [str(path) for path in found if path.suffix == ".tmp" or "lease" in path.parts or path.parts[0] == "tmp"]


DISTURBANCES: Final[dict[str, Callable[[Scene, int], Callable[[int], None]]]] = {
    "SIGTERM": lambda _, at: once(signal.SIGTERM, at),
    "SIGINT": lambda _, at: once(signal.SIGINT, at),
    "SIGSTOP, SIGTERM, SIGCONT": lambda _, at: once(signal.SIGSTOP, at),
    "SIGINT twice": lambda _, at: again_and_again(signal.SIGINT, at),
    "a day ahead": lambda place, at: clock_set(place, DAY_S, at),
    "a day back": lambda place, at: clock_set(place, -DAY_S, at),
}


def check_end(found: Ended, place: Scene, expected: object, how: str) -> None:
    assert "Traceback" not in found.output, found
    if how.startswith("a day"):
        assert (found.code, place.check()) == (0, expected), found
    elif how != "SIGINT twice":
        assert (found.code, found.output.endswith("interrupted\n")) == (CODES.get(how, 130), True), found
    else:
        assert found.code == 130, found
        return  # at once, like one that was killed
    assert leftovers(place) == [], found


@pytest.fixture(scope="module")
def undisturbed(stage: Stage) -> Callable[[str], tuple[object, int]]:
    """Return what is there after an undisturbed run, and its number of steps."""

    @cache
    def result_of(verb: str) -> tuple[object, int]:
        place = Scene(stage, verb)
        found = ended(place, lambda _: None)
        assert (found.code, leftovers(place)) == (0, []), found
        return place.check(), found.steps

    return result_of


@pytest.mark.parametrize("stops", [1, pytest.param(1_000, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("how", DISTURBANCES)
@pytest.mark.parametrize("verb", VERBS)
def test_a_disturbance_at_any_step_leaves_nothing_half_made_and_the_next_run_continues(
    stage: Stage, undisturbed: Callable[[str], tuple[object, int]], verb: str, how: str, stops: int
) -> None:
    expected, steps = undisturbed(verb)
    reached = steps * 4 // 5  # threads may take them in another order, and a few less
    for at in range(0, reached, -(-reached // stops)) if stops > 1 else [Random(f"{verb} {how}").randrange(reached)]:
        place = Scene(stage, verb)
        check_end(ended(place, DISTURBANCES[how](place, at)), place, expected, how)
        place.check()
        assert (place.run(), place.check()) == (0, expected), place.output
