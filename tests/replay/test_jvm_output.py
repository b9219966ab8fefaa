from __future__ import annotations

import io
import os
import subprocess
import sys
import time

import pytest

from resnap.replay.spark.jvm_output import JvmOutput

DROPPED_WORKER = """\
Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
DROPPED_WORKER_WITH_SOURCE = """\
Traceback (most recent call last):
  File "/x/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
BrokenPipeError: [Errno 32] Broken pipe
"""
DROPPED_WITH_ITS_OWN_ERROR = """\
Traceback (most recent call last):
  File "/x/replay/staging.py", line 1, in write
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/x/pyspark/serializers.py", line 2, in write_int
ConnectionResetError: [Errno 104] Connection reset by peer
"""
REAL_ERROR = """\
Traceback (most recent call last):
  File "/x/pyspark/daemon.py", line 264, in manager
  File "/x/replay/scan/header_scan.py", line 1, in scan
BrokenPipeError: [Errno 32] Broken pipe
"""


def carried(text: str, *, release: bool = True) -> str:
    """Write ``text`` as a JVM would, pass it on when ``release``, and return what are called its last words."""
    with JvmOutput() as output:
        subprocess.run(["cat"], input=text, text=True, stdout=output.descriptor, check=True)
        output.handed_over()
        words = output.last_words()
        if release:
            output.release()
    return words


def test_nothing_is_passed_on_before_release(capsys: pytest.CaptureFixture[str]) -> None:
    carried("real trouble\n", release=False)
    assert capsys.readouterr() == ("", "")
    carried("real trouble\n")
    assert capsys.readouterr() == ("", "real trouble\n")


def test_lines_are_passed_on_as_they_come_after_release(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", seen)
    with JvmOutput() as output:
        output.release()
        os.write(output.descriptor, b"now\n")
        deadline = time.monotonic() + 60
        while not seen.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen.getvalue() == "now\n"


def test_what_was_written_before_is_read_after_catching_up(capsys: pytest.CaptureFixture[str]) -> None:
    with JvmOutput() as output:
        output.release()
        for number in range(100):
            os.write(output.descriptor, f"1 2 ERROR Any: Application has been killed. Reason: {number}\n".encode())
            output.catch_up(lambda text: os.write(output.descriptor, text.encode()))
            assert output.ended_by == str(number)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "chatter",
    [
        "WARNING: Using incubator modules: jdk.incubator.vector\n",
        "WARNING: package sun.security.action not in java.base\n",
        "Picked up JAVA_TOOL_OPTIONS: -Dx=1\n",
        "NOTE: Picked up JDK_JAVA_OPTIONS: -Dx=1\n",
        DROPPED_WORKER,
        DROPPED_WORKER_WITH_SOURCE,
        DROPPED_WITH_ITS_OWN_ERROR,
    ],
)
def test_chatter_is_dropped_and_the_text_before_and_after_it_kept(
    chatter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    carried(f"before\n{chatter}after\n")
    assert capsys.readouterr().err == "before\nafter\n"


@pytest.mark.parametrize(
    "text", [REAL_ERROR, REAL_ERROR[:-40], DROPPED_WITH_ITS_OWN_ERROR[:110], DROPPED_WORKER[:-30], "unfinished"]
)
def test_every_other_text_comes_through_unchanged(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    carried(text)
    assert capsys.readouterr().err == text


def test_bytes_that_are_not_text_do_not_end_the_reading(capsys: pytest.CaptureFixture[str]) -> None:
    with JvmOutput() as output:
        os.write(output.descriptor, b"\xff\nafter\n")
        output.handed_over()
        output.last_words()
        output.release()
    assert capsys.readouterr().err.endswith("\nafter\n")


def test_last_words_are_one_line_without_stack_traces() -> None:
    text = "Error occurred\nCaused by: that\n\tat org.apache.spark.Main\n\n  indented\nthird\nfourth\nfifth\n"
    assert carried(text) == "Error occurred; Caused by: that; third; fourth"


@pytest.mark.parametrize("release", [True, False])
def test_the_end_of_an_application_is_kept_for_the_error_and_not_passed_on(
    release: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    line = (
        "2026-11-22 23:26:51 ERROR StandaloneSchedulerBackend: Application has been killed. Reason: Master removed it"
    )
    with JvmOutput() as output:
        if release:
            output.release()
        subprocess.run(["cat"], input=f"{line}\nmore\n", text=True, stdout=output.descriptor, check=True)
        output.handed_over()
        words = output.last_words()
        output.release()
    assert output.ended_by == "Master removed it"
    assert words == ("" if release else f"{line}; more")
    assert capsys.readouterr().err == "more\n"


def test_a_closed_standard_error_does_not_block_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    more_than_a_pipe_holds = "line\n" * 100_000
    with JvmOutput() as output:
        output.release()
        subprocess.run(
            ["cat"], input=more_than_a_pipe_holds, text=True, stdout=output.descriptor, check=True, timeout=60
        )
