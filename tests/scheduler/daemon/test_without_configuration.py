"""``resnap serve LOG_DIR``: a service without a configuration file."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.kafka.brokers import free_port
from tests.scheduler.daemon.process import eventually, started
from tests.scheduler.scenes import SET, one_partition

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap


@pytest.mark.slow
def test_a_log_dir_is_enough_and_copied_commands_have_a_place_of_their_own(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data, state = one_partition(fixture_set(SET).data, tmp_path / "data"), tmp_path / "state"
    address = f"http://127.0.0.1:{free_port()}"
    process = started(tmp_path, str(data), "--listen", address.removeprefix("http://"), "--engine", "local",
                      "--state-dir", str(state))  # fmt: skip
    try:
        with httpx.Client(base_url=address, timeout=60) as client:
            eventually(lambda: _partitions(client), lambda found: [one["partition"] for one in found] == [1])
            [schedule] = client.get("/v1/schedules").json()["schedules"]
            assert (schedule["name"], schedule["run"]) == ("scan", "scan")
            text = client.get("/").text
            place = str(state / "snapshots" / "staged")
            assert shlex.join(["resnap", "regenerate", str(data), "--into", place]) in text
            ran = client.post("/v1/replays", json={"destination": place}).headers["location"]
            eventually(lambda: client.get(ran).json()["state"], lambda found: found == "succeeded")
            assert list((state / "snapshots" / "staged").rglob("*.snapshot"))
            scan = client.post("/v1/scans", json={"topics": ["pay*"]}).headers["location"]
            assert re.fullmatch(r"/v1/runs/\w+", scan)
            eventually(lambda: client.get(scan).json()["state"], lambda found: found == "succeeded")
            assert client.post("/v1/scans", json={"sources": ["/etc"]}).status_code == 403
    finally:
        process.terminate()
        process.communicate()


def _partitions(client: httpx.Client) -> list[dict[str, object]]:
    with suppress(httpx.ConnectError):
        found: list[dict[str, object]] = client.get("/v1/partitions").json()["partitions"]
        return found
    return []


def test_a_log_dir_that_is_not_there_is_refused(command: Resnap, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for wrong in (tmp_path / "nowhere", file):
        checked = command("serve", "--check", wrong, "--engine", "local", "--state-dir", tmp_path / "state")
        assert checked.code == 2
        assert f"{wrong}: no such directory" in checked.err
    process = started(tmp_path, str(file), "--engine", "local", "--state-dir", str(tmp_path / "state"))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"{file}: no such directory" in err


@pytest.mark.parametrize(
    ("schedule", "code", "said"),
    [
        ('every = "1h"', 0, "the configuration can be used: 1 schedule, --listen 127.0.0.1:8936"),
        ('cron = "61 * * * *"', 10, "schedule look: cron '61 * * * *': "),
        ('every = "1h"\nto = "file:///x"', 10, "a scan takes no `to`: it writes nothing"),
        ('every = "1h"\nsettings = { xyzzy = 1 }', 10, "'xyzzy' cannot be set for one schedule"),
    ],
)
def test_a_configuration_is_checked_without_a_start(
    command: Resnap, tmp_path: Path, schedule: str, code: int, said: str
) -> None:
    config = tmp_path / "resnap.toml"
    config.write_text(f'[[schedules]]\nname = "look"\nrun = "scan"\n{schedule}\n')
    ran = command("serve", "--check", "--config", config, "--state-dir", tmp_path / "state")
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--listen", "127.0.0.1:99999999", "--listen '127.0.0.1:99999999': expected HOST:PORT"),
        ("--tokens-file", "/nowhere/tokens", "the tokens of /nowhere/tokens cannot be read"),
    ],
)
def test_a_check_refuses_what_a_start_would(command: Resnap, tmp_path: Path, flag: str, value: str, said: str) -> None:
    ran = command("serve", "--check", "--state-dir", tmp_path / "state", flag, value)
    assert (ran.code, said in ran.err) == (10, True), ran.err
