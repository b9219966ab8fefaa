"""Runs verbs while reads fail, in a process of its own: ``python -m tests.scheduler.read_faults STOPS VERB...``.

It is to be started with the library made of ``read_faults.c`` preloaded, whose path is in ``LD_PRELOAD``. Prints a JSON
object for each run.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
import tempfile
import traceback
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resnap.scheduler.cli import run
from tests.disks import folder_in_memory
from tests.fixture_sets import unpack
from tests.scheduler.scenes import SET, Scene, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS: Final = (errno.EIO, errno.ESTALE)
PATIENCE_S: Final = 300


class Run(NamedTuple):
    """How a verb ended of which a read failed, and the same command after it."""

    verb: str
    failed: str
    """What failed first, and of which file; empty if nothing did, since the run came to its end before."""
    strerror: str
    code: int
    told: str
    is_whole: bool
    """Whether there is afterwards what is there without a fault."""
    rerun_code: int
    rerun_told: str
    is_whole_after_rerun: bool
    wrong: str
    """What is there after either that must not be, whatever fails; empty if nothing is."""


class Ended(NamedTuple):
    """How one process ended."""

    code: int
    told: str
    steps: int
    failed: str


class Fault(NamedTuple):
    """Which step fails, counted from 0, and how."""

    step: int = -1
    number: int = 0
    goes_on: bool = False


def quietly(*arguments: object) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it said of errors."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as err:
        code = run([str(argument) for argument in arguments])
    return code, err.getvalue()


def ended(library: ctypes.CDLL, scene: Scene, fault: Fault) -> Ended:
    """Run the verb with ``fault`` in a process of its own: what it holds when it ends is held by a dead one."""
    heard, told = os.pipe()
    if not (child := os.fork()):
        signal.alarm(PATIENCE_S)
        try:
            os.write(told, json.dumps(_run(library, scene, fault)).encode()[:60_000])
        finally:
            os._exit(0)
    os.close(told)
    with open(heard, "rb") as file:  # noqa: PTH123 - a descriptor
        said = file.read()
    os.waitpid(child, 0)
    return Ended(*json.loads(said)) if said else Ended(-1, "it died", 0, "")


def _run(library: ctypes.CDLL, scene: Scene, fault: Fault) -> Ended:
    where = (str(scene.root).encode(), str(scene.source).encode())
    library.fault_arm(*where, fault.step, fault.number, int(fault.goes_on))
    try:
        code = scene.run()
        told = scene.output
    except BaseException as error:  # noqa: BLE001 - reported, since the process ends without a message
        code, told = -1, "".join(traceback.format_exception(error))
    steps, failed = library.fault_steps(), library.fault_first().decode()
    library.fault_arm(b"", b"", -1, 0, 0)
    return Ended(code, told, steps, failed)


def runs(library: ctypes.CDLL, stage: Stage, verb: str, stops: int) -> Iterator[Run]:
    """Run ``verb`` without a fault, and then with one at each of ``stops`` steps of it."""
    scene = Scene(stage, verb)
    whole = ended(library, scene, Fault())
    assert whole.code == 0, whole
    expected = scene.check()
    every = max(1, whole.steps // stops)
    for index, step in enumerate(range(every // 2, whole.steps, every)):
        fault = Fault(step, NUMBERS[index % 2], goes_on=index // 2 % 2 == 1)
        scene = Scene(stage, verb)
        found = ended(library, scene, fault)
        is_whole, wrong = outcome_of(scene, expected)
        code = scene.run()
        is_whole_now, wrong_now = outcome_of(scene, expected)
        yield Run(
            verb=verb, failed=found.failed, strerror=os.strerror(fault.number), code=found.code, told=found.told,
            is_whole=is_whole, rerun_code=code, rerun_told=scene.output, is_whole_after_rerun=is_whole_now,
            wrong=wrong + wrong_now,
        )  # fmt: skip


def outcome_of(scene: Scene, expected: object) -> tuple[bool, str]:
    """Return whether all is there that is to be, and what is there that may never be."""
    try:
        return scene.check() == expected, ""
    except AssertionError:
        return False, traceback.format_exc()


def loaded() -> ctypes.CDLL:
    """Return the library that was preloaded."""
    library: Any = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.fault_first.restype, library.fault_steps.restype = ctypes.c_char_p, ctypes.c_long
    library.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    return library


def main() -> None:
    """Print how each run went."""
    stops, *verbs = sys.argv[1:]
    os.environ["RESNAP_STATE_DIR"] = "none"
    with folder_in_memory() as folder:
        tempfile.tempdir = str(folder)
        stage = Stage(unpack(SET, folder / "fixture"), folder)
        for verb in verbs:
            for one in runs(loaded(), stage, verb, int(stops)):
                print(json.dumps(one._asdict()), flush=True)  # noqa: T201 - for the test


if __name__ == "__main__":
    main()
