"""Signals reach the thread that waits for others, whichever thread the kernel gives them to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import pytest

from resnap.scheduler.cli.failures import INTERRUPTED, TERMINATED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"
WAITING: Final = """
import socket
from concurrent.futures import ThreadPoolExecutor
from resnap.scheduler.cli.interrupts import handle_interrupts

handle_interrupts()
here, _there = socket.socketpair()
with ThreadPoolExecutor(2) as threads:
    begun = [threads.submit(here.recv, 1) for _ in range(2)]
    try:
        print("waiting", flush=True)
        begun[0].result()
    except KeyboardInterrupt:
        print("heard", flush=True)
"""
"""Its threads end at no interrupt, so only a second one ends it, or the grace."""

IN_A_CALLBACK: Final = """
import ctypes, signal, time
from resnap.scheduler.cli.interrupts import handle_interrupts

handle_interrupts()
call = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGTERM))
try:
    call()
    time.sleep(300)
except KeyboardInterrupt:
    print("heard", flush=True)
"""

TIMES: Final = 8
"""More than half of the stopped processes never handled the signal where nothing woke the main thread up."""

PATIENCE_S: Final = 300
ENDS_S: Final = 15
"""For an end that two signals bring at once; under the grace, which would bring it as well."""


@contextmanager
def waiting(*codes: int) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Start it, and end it where a signal that it should have handled did not; it ends with one of ``codes``."""
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        late = threading.Timer(ENDS_S, process.kill)
        late.start()
        time.sleep(0.05)  # until the main thread waits
        yield process, process.stdout
        _, err = process.communicate()
        late.cancel()
    assert process.returncode in codes
    assert err == "interrupted, without an orderly end\n"


def terminate(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


def stop_and_terminate(process: subprocess.Popen[str]) -> None:
    """As Ctrl-Z, kill and fg do: every thread wakes up, and any may take the signal."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("first", [terminate, stop_and_terminate])
def test_a_first_signal_is_handled_and_a_second_one_ends_the_process(
    first: Callable[[subprocess.Popen[str]], None],
) -> None:
    for _ in range(TIMES):
        with waiting(TERMINATED) as (process, out):
            first(process)
            assert out.readline() == "heard\n"
            process.send_signal(signal.SIGINT)


def test_hangups_of_one_terminal_are_one_signal() -> None:
    """A terminal that closes sends it twice: the shell does, and the kernel once the shell has gone."""
    with waiting(INTERRUPTED) as (process, out):
        process.send_signal(signal.SIGHUP)
        assert out.readline() == "heard\n"
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)


def test_two_signals_that_come_together_end_the_process() -> None:
    for _ in range(TIMES):
        with waiting(INTERRUPTED, TERMINATED) as (process, _):
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)


MIDST: Final = """
import os
import signal
import resnap.scheduler.cli

def work(_):
    os.kill(os.getpid(), signal.{signal})
    signal.pause()

class Failed:
    def main(self, *_, **__):
        return 12

def import_something(_):
    {body}

resnap.scheduler.cli.get_command = import_something
resnap.scheduler.cli.main()
"""
IN_THE_MIDST_OF: Final = {
    "code that is made as it is imported": 'exec("work(None)")',
    "a command that tells what it broke": "try: work(None)\n    except KeyboardInterrupt: return Failed()",
    "a library that makes another error of it": "try: work(None)\n    except KeyboardInterrupt: raise ImportError",
}
"""CPython ends by the signal itself after the first, whatever the exit code is, and the others look like faults."""


@pytest.mark.parametrize(("told", "code"), [("SIGINT", INTERRUPTED), ("SIGHUP", INTERRUPTED), ("SIGTERM", TERMINATED)])
@pytest.mark.parametrize("body", IN_THE_MIDST_OF.values(), ids=IN_THE_MIDST_OF)
def test_an_interrupt_ends_with_its_exit_code_wherever_it_comes(
    body: str, told: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "midst.py").write_text(MIDST.format(body=body, signal=told))
    ran = subprocess.run(
        [sys.executable, "-m", "midst"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (ran.returncode, ran.stderr) == (code, "interrupted\n")


@pytest.mark.parametrize(("told", "code"), [("SIGINT", INTERRUPTED), ("SIGHUP", INTERRUPTED), ("SIGTERM", TERMINATED)])
def test_an_interrupt_while_the_command_is_being_loaded_ends_as_any_other(told: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(f"import signal; signal.raise_signal(signal.{told})\n")  # is imported first
    module, _, function = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["scripts"]["resnap"].partition(":")
    script = f"import sys; from {module} import {function}; sys.exit({function}())"
    for words in (["-m", "resnap"], ["-c", script]):
        command = [sys.executable, *words, "version"]
        ran = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "interrupted\n")


def test_an_interrupt_that_comes_while_c_calls_python_is_handled_and_not_printed() -> None:
    ran = subprocess.run([sys.executable, "-c", IN_A_CALLBACK], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "heard\n", "")


def test_other_exceptions_that_cannot_be_raised_are_still_printed() -> None:
    script = "from resnap.scheduler.cli.interrupts import handle_interrupts; handle_interrupts()\n"
    script += "class Odd:\n    def __del__(self): raise ValueError('odd')\nOdd()"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "ValueError: odd" in ran.stderr
