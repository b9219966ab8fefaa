"""The life of the service as a process: signals, a second one beside it, and ``kill -9`` in every state of a run."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
import time
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pytest

from resnap.scheduler.clock import Clock, milliseconds
from resnap.scheduler.runs.run import Ids, Run, RunEnd, RunRequest, RunState
from resnap.scheduler.state.database import DATABASE_FILE, Database
from tests.scheduler.api.whole import FINAL
from tests.scheduler.daemon.process import PATIENCE_S, PROJECT, Process, configure, eventually, serving, started, states
from tests.scheduler.runs.working import history_of
from tests.scheduler.scenes import SET, one_partition

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from tests.fixture_sets import FixtureSet

SHIPPING: Final = """
[[schedules]]
name = "ship"
run = "tier"
cron = "0 0 29 2 *"
to = "file://{directory}/store"
settings = {{ as-of = "roll", bwlimit = "{rate}" }}
"""
"""Asked for by hand; so slowly that a segment takes longer than any test."""
SLOWLY: Final = "50"
LOOKING: Final = """
[[schedules]]
name = "hourly"
run = "scan"
every = "1h"

[[schedules]]
name = "daily"
run = "scan"
cron = "30 {hour} * * *"
"""
FAULTY: Final = """
from resnap.scheduler.service.services import Services

def catch_up(self, faults=[RuntimeError("a fault of the upkeep")]):
    if faults:
        raise faults.pop()
    self.observation.note("caught up after the fault")

def reload(self):
    raise RuntimeError("a fault of the reload")

Services.catch_up, Services.reload = catch_up, reload
"""
"""Python runs it before the service."""
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


@pytest.fixture
def directory(tmp_path: Path, fixture_set: Callable[[str], FixtureSet]) -> Path:
    one_partition(fixture_set(SET).data, tmp_path / "data")
    configure(tmp_path, tmp_path / "data", SHIPPING.format(directory=tmp_path, rate=SLOWLY))
    return tmp_path


def ship(client: httpx.Client, process: Process) -> str:
    """Begin to ship, which will not come to its end; return the run's address."""
    at = client.post("/v1/schedules/ship/run").headers["location"]
    eventually(lambda: client.get(at).json()["state"], lambda state: state == "running")
    eventually(lambda: [*process.directory.joinpath("store").rglob("*")], bool)
    return str(at)


@pytest.mark.slow
def test_a_signal_ends_the_service_in_order_while_a_run_is_at_work(directory: Path) -> None:
    with serving(directory) as process, process.client() as client:
        at, waiting = ship(client, process), client.post("/v1/schedules/ship/run").headers["location"]
        process.send_signal(signal.SIGTERM)
        process.wait_for_notice("STOPPING=1")
        code, log = process.end()
        assert code == 0, log
        assert "Traceback" not in log
    found = states(directory)
    assert (found[at.rpartition("/")[2]], found[waiting.rpartition("/")[2]]) == ("failed", "queued")
    with serving(directory) as process, process.client() as client:
        assert client.get(at).json()["errors"][0]["code"] == "ServiceStopped"
        eventually(lambda: client.get(waiting).json()["state"], lambda state: state == "running")
        assert "resnap_runs_orphaned_total 0.0" in client.get("/metrics").text
        process.send_signal(signal.SIGINT)
        assert process.end()[0] == 0


@pytest.mark.slow
def test_the_second_signal_ends_it_at_once(directory: Path) -> None:
    with serving(directory) as process, process.client() as client:
        at = ship(client, process)
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as unfinished:
            head = ("POST /v1/replays HTTP/1.1", "Host: localhost", "Content-Type: application/json",
                    "Content-Length: 9", "Expect: 100-continue", "", "")  # fmt: skip
            unfinished.sendall("\r\n".join(head).encode())
            assert unfinished.recv(4096).startswith(b"HTTP/1.1 100 "), "it waits for the rest by now"
            process.send_signal(signal.SIGINT)
            process.wait_for_notice("STOPPING=1")  # and waits for the rest of the request
            process.send_signal(signal.SIGINT)
            assert process.end()[0] == 130
    assert states(directory)[at.rpartition("/")[2]] == "running"


@pytest.mark.slow
def test_a_bug_beside_the_runs_is_logged_and_the_service_goes_on_to_an_end_in_order(directory: Path) -> None:
    (directory / "sitecustomize.py").write_text(FAULTY)
    variables = {"WATCHDOG_USEC": "400000", "PYTHONPATH": f"{directory}:{PROJECT}"}
    with serving(directory, variables=variables) as process:
        for _ in range(3):  # what is between two of them is done by the second
            process.wait_for_notice("WATCHDOG=1")
        process.send_signal(signal.SIGHUP)
        process.wait_for_notice("RELOADING=1")
        process.wait_for_notice("READY=1")
        process.send_signal(signal.SIGTERM)
        code, log = process.end()
    assert code == 0, log
    for fault in ("a fault of the upkeep", "a fault of the reload"):
        assert f"RuntimeError: {fault}" in log
    assert log.count("a bug in resnap") == 2
    assert "caught up after the fault" in log


def test_a_good_configuration_is_taken_and_a_bad_one_is_not(directory: Path) -> None:
    def schedules(client: httpx.Client) -> list[str]:
        return [schedule["name"] for schedule in client.get("/v1/schedules").json()["schedules"]]

    with serving(directory, variables={"WATCHDOG_USEC": "400000"}) as process, process.client() as client:
        process.wait_for_notice("WATCHDOG=1")
        assert schedules(client) == ["ship"]
        more = '[[schedules]]\nname = "look"\nrun = "scan"\ncron = "{cron}"\n'
        for cron, wanted in (("61 * * * *", ["ship"]), ("0 3 * * *", ["look", "ship"])):
            text = SHIPPING.format(directory=directory, rate=SLOWLY) + more.format(cron=cron)
            configure(directory, directory / "data", text)
            process.send_signal(signal.SIGHUP)
            process.wait_for_notice("RELOADING=1")
            process.wait_for_notice("READY=1")
            assert schedules(client) == wanted
        text = (directory / "resnap.toml").read_text()
        for broken in (f'auth = "token"\n{text}', "not = [toml"):
            (directory / "resnap.toml").write_text(broken)
            process.send_signal(signal.SIGHUP)
            process.wait_for_notice("RELOADING=1")
            process.wait_for_notice("READY=1")
            assert schedules(client) == ["look", "ship"]
        answer = client.post("/v1/replays", json={"destination": str(directory / "out")})
        over = eventually(lambda: client.get(answer.headers["location"]).json(), lambda run: run["state"] in FINAL)
        assert over["state"] == "succeeded", "a file that is broken has no run fail, either"
        process.send_signal(signal.SIGTERM)
        code, log = process.end()
    assert code == 0
    assert log.count("the configuration was not changed") == 2
    assert re.search(r"resnap\.toml is not TOML: [^\"]+ \(at line 1,", log)
    assert log.count("the configuration was read again") == 2
    assert "at the next start of the service: auth" in log


@pytest.mark.slow
def test_a_second_service_reports_the_first_one_and_what_it_holds(directory: Path) -> None:
    with serving(directory) as process, process.client() as client:
        port = client.base_url.port
        other = started(directory)
        _, log = other.communicate(timeout=PATIENCE_S)
        assert other.returncode == 11
        assert f"process {process.popen.pid}" in log
        other = started(directory, "--state-dir", str(directory / "other"), "--listen", f"127.0.0.1:{port}")
        _, log = other.communicate(timeout=PATIENCE_S)
        assert other.returncode == 10
        assert f"127.0.0.1:{port}" in log
        assert "in use" in log
        assert client.get("/livez").status_code == 200


def test_a_file_of_a_newer_service_is_refused_and_left_as_it_is(directory: Path) -> None:
    (directory / "state").mkdir()
    with closing(sqlite3.connect(directory / "state" / DATABASE_FILE)) as newer:
        newer.execute("PRAGMA journal_mode = WAL")
        newer.execute("PRAGMA user_version = 99")
    before = (directory / "state" / DATABASE_FILE).read_bytes()
    older = started(directory)
    _, log = older.communicate(timeout=PATIENCE_S)
    assert older.returncode == 1
    assert "newer Resnap: its version is 99" in log
    assert (directory / "state" / DATABASE_FILE).read_bytes() == before


@pytest.mark.slow
def test_a_kill_in_any_state_of_a_run_is_reported_and_counted_at_the_next_start(directory: Path) -> None:
    def last_event(client: httpx.Client, at: str) -> str:
        return [line for line in client.get(f"{at}/events").text.splitlines() if line.startswith("data:")][-1]

    with serving(directory) as process, process.client() as client:
        at, waiting = ship(client, process), client.post("/v1/schedules/ship/run").headers["location"]
        process.send_signal(signal.SIGKILL)
        process.end()
    assert set(states(directory).values()) == {"running", "queued"}
    with serving(directory) as process, process.client() as client:
        told = client.get(at).json()
        assert (told["state"], told["errors"][0]["code"]) == ("failed", "RunOrphaned")
        assert '"state": "failed"' in last_event(client, at)
        assert "resnap_runs_orphaned_total 1.0" in client.get("/metrics").text
        assert client.get("/readyz").status_code == 200
        # What waited had not begun, and was taken with 202: it is carried out now.
        at = waiting
        eventually(lambda: client.get(at).json()["state"], lambda state: state == "running")
        # It ends at its next word, which may come before ours; test_history.py has both cases apart.
        assert client.post(f"{at}/cancel").json()["state"] in {"cancelling", "cancelled"}
        process.send_signal(signal.SIGKILL)
        process.end()
    left = states(directory)[at.rpartition("/")[2]]
    assert left in {"cancelling", "cancelled"}
    with serving(directory) as process, process.client() as client:
        told = client.get(at).json()
        assert told["state"] == "cancelled"
        assert [error["code"] for error in told["errors"]] == ["RunOrphaned"] * (left == "cancelling")
        assert f"resnap_runs_orphaned_total {float(left == 'cancelling')}" in client.get("/metrics").text
        answer = client.post("/v1/replays", json={"destination": str(directory / "out")})
        over = eventually(lambda: client.get(answer.headers["location"]).json(), lambda run: run["state"] in FINAL)
        assert over["state"] == "succeeded", over
        assert [*directory.joinpath("out").rglob("*.snapshot")]


@pytest.mark.slow
def test_a_clock_that_was_set_back_over_a_restart_disorders_nothing_and_stops_no_schedule(directory: Path) -> None:
    now_ms = Clock().now_ms()
    hour = (time.gmtime().tm_hour + 12) % 24  # far from any time at which this test may run
    configure(directory, directory / "data", LOOKING.format(hour=hour))
    with closing(Database(directory / "state" / DATABASE_FILE)) as left:
        ids, history = Ids(lambda: now_ms + 10 * DAY_MS, lambda _: 1), history_of(left)
        for name in ("hourly", "daily", "hourly"):
            run = Run(id=ids.make(), request=RunRequest(kind="scan"), state=RunState.QUEUED,
                      origin=f"schedule:{name}", principal="schedule", created_ms=now_ms + 10 * DAY_MS)  # fmt: skip
            history.add(run)
            history.ended(run.id, RunEnd(state=RunState.SUCCEEDED, totals={}, errors=()))
    with serving(directory) as process, process.client() as client:
        told = client.get("/v1/schedules").json()["schedules"]
        due = {one["name"]: milliseconds(datetime.fromisoformat(one["next"])) for one in told}
        assert now_ms + HOUR_MS <= due["hourly"] <= Clock().now_ms() + HOUR_MS
        assert now_ms < due["daily"] <= Clock().now_ms() + DAY_MS
        assert len(client.get("/v1/runs").json()["runs"]) == 3, "nothing was due"
        answer = client.post("/v1/replays", json={"destination": str(directory / "out")})
        newest = client.get("/v1/runs", params={"limit": 2}).json()
        assert [one["id"] for one in newest["runs"]] == [answer.json()["id"], run.id]
        rest = client.get("/v1/runs", params={"limit": 9, "cursor": newest["nextCursor"]}).json()["runs"]
        assert len(rest) == 2
        over = eventually(lambda: client.get(answer.headers["location"]).json(), lambda run: run["state"] in FINAL)
        assert over["state"] == "succeeded"
