"""Runs that end before their time: killed at any instant, interrupted, or ended by SIGTERM."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.storage.stores.local import is_temporary
from tests.scheduler.files import tree
from tests.scheduler.shipped import Range, check_content, check_store, eligible, files_of, manifests
from tests.stores.fault_proxy import Fault, Reply, ResetError, proxying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Resnap
    from tests.stores.fault_proxy import Call

pytestmark = pytest.mark.slow

ROLL = ("--as-of", "roll", "--engine", "local")
TIMES = (ROLL, ("--as-of", "now", "--engine", "local"), ("--producer-id-expiration-ms", "1000", "--engine", "local"))
OBJECTS = 27 * 7
"""At most so many objects and manifests make up what is eligible."""
PATIENCE_S = 300
TICK_S = 0.0005


@contextmanager
def started(resnap: Resnap, *arguments: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in the background, as a process that the test may end.

    Warnings are off: an interrupt between the opening of a file and its ``with`` leaves it to the garbage collector.
    """
    variables = {"PYTHONWARNINGS": "", "TMPDIR": str(resnap.directory)} | variables
    with subprocess.Popen(
        [sys.executable, "-m", "resnap", *map(str, arguments)],
        env=resnap.environment(variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], count: Callable[[], int], at_least: int) -> None:
    """Return when there are so many, or when the process has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and count() < at_least:
        assert time.monotonic() < deadline
        time.sleep(TICK_S)


def is_heard(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether a signal that was sent is no longer pending; of two that are, the kernel does not keep the order."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return not int(pending.split()[1], 16) >> (number - 1) & 1


def files_in(root: Path) -> Callable[[], int]:
    return lambda: sum(len(files) for _, _, files in os.walk(root))


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.heavy)])
def test_shipping_killed_at_any_instant_ends_whole_with_one_more_run(
    resnap: Resnap, command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, kills: int
) -> None:
    fixture, store = fixture_set("kafka-2.7.2-then-3.9.1"), tmp_path / "store"
    must, draw = eligible(fixture.data), random.Random(kills)
    to = ("tier", fixture.data, "--to", store.as_uri())
    arguments, visible = (*to, *ROLL), set[Range]()
    for instant in sorted(draw.randrange(OBJECTS) for _ in range(kills)):
        with started(resnap, *to, *draw.choice(TIMES)) as process:
            wait_for(process, files_in(store), instant)
            time.sleep(draw.random() * 0.01)
            process.kill()
            process.communicate()
        before, visible = visible, check_store(_without_temporary(store), strict=False)
        assert before <= visible <= must
    shipped_before = len(manifests(_without_temporary(store)))
    ran = command(*arguments, "--output", "json")
    # What a killed run has shipped under rules that keep fewer producers is named, and stays.
    code = 13 if "nothing in the store was changed" in ran.err else 0
    assert ran.code == code, ran.err
    assert ran.document["summary"]["already"] == shipped_before
    objects = _without_temporary(store)
    assert check_store(objects, strict=False) == must
    check_content(objects, fixture.data)
    assert command("verify", "--store", store.as_uri(), "--engine", "local").code == 0
    again = tree(store)
    assert command(*arguments).code == code
    assert tree(store) == again


def test_of_two_runs_at_once_on_a_log_dir_one_ships_each_segment_once(
    resnap: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    fixture, store = fixture_set("kafka-2.7.2-then-3.9.1"), tmp_path / "store"
    arguments = ("tier", fixture.data, "--to", store.as_uri(), *ROLL)
    with started(resnap, *arguments) as one, started(resnap, *arguments) as other:
        codes = []
        for process in (one, other):
            _, err = process.communicate(timeout=PATIENCE_S)
            codes.append(process.returncode)
            assert process.returncode != 11 or "another run is at work on it: process" in err
    assert sorted(codes) in ([0, 0], [0, 11]), "one after the other, or the second reports the first"
    assert check_store(files_of(store)) == eligible(fixture.data)
    check_content(files_of(store), fixture.data, fixture.expected)


def _without_temporary(store: Path) -> dict[str, bytes]:
    """Return the objects that a reader of the store sees."""
    return {key: body for key, body in files_of(store).items() if not is_temporary(key.rpartition("/")[2])}


@pytest.mark.s3
@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.heavy)])
def test_shipping_to_a_bucket_killed_at_any_instant_ends_whole_with_one_more_run(
    resnap: Resnap, command: Resnap, fixture_set: Callable[[str], FixtureSet], bucket: Bucket, kills: int
) -> None:
    fixture, draw = fixture_set("kafka-2.7.2-then-3.9.1"), random.Random(kills)
    must = {one for one in eligible(fixture.data) if one.topic == "payments"}
    arguments = ("tier", fixture.data, "--topic", "payments", "--to", bucket.url, *ROLL, *bucket.flags)
    for _ in range(kills):
        with started(resnap, *arguments, **bucket.variables) as process:
            wait_for(process, lambda: len(bucket.versions()), draw.randrange(len(must) * 7))
            process.kill()
            process.communicate()
        assert check_store(bucket.objects(), strict=False) <= must
    assert command(*arguments, **bucket.variables).code == 0
    assert check_store(bucket.objects(), strict=False) == must
    check_content(bucket.objects(), fixture.data, fixture.expected)


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_shipping_that_is_interrupted_ends_with_the_code_of_the_signal_and_leaves_nothing_half_made(
    resnap: Resnap, command: Resnap, broker_log: Path, tmp_path: Path, told: signal.Signals
) -> None:
    store, waiting = tmp_path / "store", tmp_path / "waiting"
    waiting.mkdir()
    must, before = eligible(broker_log), tree(broker_log)
    arguments = ("tier", broker_log, "--to", store.as_uri(), *ROLL)
    with started(resnap, *arguments, TMPDIR=str(waiting)) as process:
        wait_for(process, files_in(store), 20)
        process.send_signal(told)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + told
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    assert list(waiting.iterdir()) == []
    assert [key for key in files_of(store) if key.endswith("~")] == []
    assert check_store(files_of(store), strict=False) < must
    assert tree(broker_log) == before
    assert command(*arguments).code == 0
    assert check_store(files_of(store), strict=False) == must


@pytest.mark.parametrize("command_line", [(), ("nohup",)])
def test_a_terminal_that_closes_ends_shipping_in_order_and_under_nohup_not_at_all(
    resnap: Resnap, broker_log: Path, tmp_path: Path, command_line: tuple[str, ...]
) -> None:
    store = tmp_path / "store"
    arguments = ("-m", "resnap", "tier", broker_log, "--to", store.as_uri(), *ROLL, "--bwlimit", "100000")
    process_id, terminal = pty.fork()
    if not process_id:  # the leader of a session, as a shell is, that writes to the terminal
        os.chdir(tmp_path)  # where nohup writes
        words = [*command_line, sys.executable, *map(str, arguments)]
        os.execvpe(words[0], words, resnap.environment({"TMPDIR": str(tmp_path)}))  # noqa: S606 - no shell
    deadline = time.monotonic() + PATIENCE_S
    while files_in(store)() < 2:
        assert time.monotonic() < deadline
        time.sleep(TICK_S)
    os.close(terminal)
    _, status = os.waitpid(process_id, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if command_line else 130)
    assert [key for key in files_of(store) if key.startswith(".resnap/lease/") or is_temporary(key)] == []


@pytest.mark.s3
@pytest.mark.parametrize("told", [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM,)])
def test_a_store_that_does_not_answer_delays_no_end(
    resnap: Resnap, broker_log: Path, bucket: Bucket, told: tuple[signal.Signals, ...]
) -> None:
    """A second signal ends the run at once, and the first one after a time, though threads wait for the store."""
    over = threading.Event()

    def silent(_call: Call, _server: Callable[[Call], Reply]) -> Reply:
        over.wait()
        raise ResetError

    arguments = ("tier", broker_log, "--to", bucket.url, *ROLL, "--parallel", "2", *bucket.flags)
    with proxying(bucket.flags[1]) as proxy:
        proxy.set(
            Fault(name="silence", harm=silent), lambda call: call.method == "PUT" and ".log" in call.path, times=99
        )
        with started(resnap, *arguments, "--s3-endpoint-url", proxy.url, **bucket.variables) as process:
            wait_for(process, lambda: proxy.struck, 1)
            for number in told:
                process.send_signal(number)
                wait_for(process, lambda number=number: is_heard(process, number), 1)
            _, err = process.communicate(timeout=PATIENCE_S)
        over.set()
    assert process.returncode == 128 + told[0]
    assert err.splitlines()[-1] == "interrupted, without an orderly end"
    assert "Traceback" not in err


@pytest.mark.s3
def test_who_waits_for_a_busy_store_wakes_up_to_an_orderly_end(
    resnap: Resnap, broker_log: Path, bucket: Bucket
) -> None:
    def busy(_call: Call, _server: Callable[[Call], Reply]) -> Reply:
        return Reply(status=503, headers={"Retry-After": "100"})

    arguments = ("tier", broker_log, "--to", bucket.url, *ROLL, "--parallel", "2", *bucket.flags)
    with proxying(bucket.flags[1]) as proxy:
        proxy.set(Fault(name="busy", harm=busy), lambda call: call.method == "PUT" and ".log" in call.path, times=99)
        with started(resnap, *arguments, "--s3-endpoint-url", proxy.url, **bucket.variables) as process:
            wait_for(process, lambda: proxy.struck, 1)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.splitlines()[-1]) == (143, "interrupted")
    assert [key for key in bucket.objects() if key.startswith(".resnap/lease/")] == [], "it was let go of"


def test_who_waits_for_the_bandwidth_that_is_set_wakes_up_to_an_orderly_end(
    resnap: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with started(resnap, "tier", broker_log, "--to", store.as_uri(), *ROLL, "--bwlimit", "1") as process:
        wait_for(process, files_in(store), 1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.splitlines()[-1]) == (143, "interrupted")
    assert check_store(files_of(store), strict=False) == set()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("told", "after_s"),
    [(signal.SIGINT, 0), (signal.SIGINT, 0.5), (signal.SIGINT, 4), (signal.SIGTERM, 3), (signal.SIGKILL, 4)],
)
def test_spark_that_is_ended_leaves_no_process(
    resnap: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, told: signal.Signals, after_s: float
) -> None:
    data, waiting = fixture_set("kafka-2.7.2-then-3.9.1").data, tmp_path / "waiting"
    waiting.mkdir()
    slowly = ("tier", data, "--to", (tmp_path / "store").as_uri(), "--bwlimit", "1")  # not to be over by then
    with started(resnap, *slowly, TMPDIR=str(waiting)) as process:
        _wait_for_children(process)
        time.sleep(after_s)
        children = _wait_for_children(process)
        process.send_signal(told)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert children
    deadline = time.monotonic() + PATIENCE_S
    while any(_is_running(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert check_store(files_of(tmp_path / "store"), strict=False) <= eligible(data)
    if told is not signal.SIGKILL:
        assert process.returncode == 128 + told
        assert "Traceback" not in err
        assert list(waiting.iterdir()) == []


def _wait_for_children(process: subprocess.Popen[str]) -> list[int]:
    """Return them as soon as there are some: Java is asked for its version first, and there may be none after it."""
    children: list[int] = []

    def look() -> int:
        children[:] = _children(process.pid)
        return len(children)

    wait_for(process, look, 1)
    return children


def _children(pid: int) -> list[int]:
    ran = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in ran.stdout.split()]


def _is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # If process 1 of a container does not wait for processes that have lost their parent, they stay as zombies.
    return status.rpartition(")")[2].split()[0] != "Z"
