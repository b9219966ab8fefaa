"""What ``resnap install`` leaves is opened by a real broker, which keeps what was installed; and its lock is respected.

A broker of 3.9.1 in KRaft mode, on a log that such a one wrote.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from resnap.replay.watching import Progress
from resnap.scheduler.clock import Clock
from resnap.storage.log.producer_snapshot import load_snapshot
from resnap.storage.stores.s3_settings import S3Settings
from resnap.tiering.install import InstallOrder, install
from resnap.tiering.selection import Scope
from tests.kafka.brokers import DRIVER, Broker, eventually
from tests.kafka.releases import PATIENCE_S
from tests.scheduler.failing_disk import WatchedDisk
from tests.scheduler.files import bases, file_at
from tests.scheduler.installed import check_install, copied, look, manifest_of, staged_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

LOCAL: Final = ("--engine", "local", "--as-of", "roll", "--topic", "payments")
JSON: Final = ("--output", "json")
KILLS: Final = 4
PARTITIONS: Final = ("payments-0", "payments-1")
"""Without snapshots below the last two bases."""


@pytest.fixture
def data(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    return copied(fixture_set("kafka-3.9.1-kraft").data, tmp_path / "data")


@pytest.fixture
def broker(release: Callable[[str], Release], data: Path) -> Broker:
    # By default it looks for segments to delete 30 s after its start, and then every five minutes.
    return Broker(release("3.9.1"), [data], {"log.retention.check.interval.ms": 500})


def snapshots(data: Path, name: str) -> dict[int, bytes]:
    return {int(path.stem): path.read_bytes() for path in (data / name).glob("*.snapshot")}


def check_opened(broker: Broker, since: int) -> None:
    """Check that the broker complained of nothing when it started on what was installed."""
    assert broker.complaints(since) == []


def test_what_was_installed_is_kept_by_the_broker_that_opens_it(
    command: Resnap, broker: Broker, data: Path, tmp_path: Path
) -> None:
    staged = tmp_path / "staged"
    assert command("regenerate", data, "--into", staged, *LOCAL).code == 0
    read = {}
    with broker.running():
        for number, name in enumerate(PARTITIONS):
            read[name] = broker.drive("read", "payments", number)
    ran = command("install", staged, data, *JSON)
    assert ran.code == 0, ran.err
    assert ran.document["summary"]["installed"] == len(staged_in(staged)) > 10
    before = {name: snapshots(data, name) for name in PARTITIONS}
    since = len(broker.printed())
    with broker.running():
        for number, name in enumerate(PARTITIONS):
            assert broker.drive("read", "payments", number) == read[name]
    check_opened(broker, since)
    for name in PARTITIONS:
        assert snapshots(data, name) == before[name]
        assert set(bases(data / name)[1:]) <= before[name].keys()
    undone = command("install", "--undo", manifest_of(ran), *JSON)
    assert (undone.code, "a broker has run" in undone.error["message"]) == (15, True)


def test_a_kill_at_any_step_leaves_what_a_broker_opens(
    command: Resnap, release: Callable[[str], Release], data: Path, tmp_path: Path
) -> None:
    staged, counted = tmp_path / "staged", WatchedDisk()
    assert command("regenerate", data, "--into", staged, *LOCAL).code == 0
    _install(staged, copied(data, tmp_path / "counted"), tmp_path / "counted-undo", counted)
    seen = set()
    for number in range(KILLS):
        place = tmp_path / f"killed-{number}"
        killed = copied(data, place / "data")
        before = look(killed)
        _install_and_die(staged, killed, place / "undo", counted.steps * (number + 1) // (KILLS + 1))
        made = check_install(killed, before, staged, killed=True)
        seen.add(len(made))
        broker = Broker(release("3.9.1"), [killed])
        with broker.running():
            pass
        check_opened(broker, 0)
        for name in made:
            assert (killed / name).read_bytes() == (staged / name).read_bytes()
        assert command("install", staged, killed, "--undo-dir", place / "undo", *JSON).code == 0
        shutil.rmtree(place)
    assert len(seen) > KILLS // 2


def _install(staged: Path, data: Path, undo: Path, disk: WatchedDisk) -> None:
    request = InstallOrder(staged=str(staged), scope=Scope(sources=(str(data),)), undo_dir=undo)
    install(request, now_ms=Clock().now_ms, s3=S3Settings(), progress=Progress(), disk=disk)


def _install_and_die(staged: Path, data: Path, undo: Path, step: int) -> None:
    """Install in a process that is killed before ``step``."""
    child = os.fork()
    if child == 0:
        try:
            _install(staged, data, undo, WatchedDisk(step, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_a_running_broker_is_never_worked_beside(command: Resnap, broker: Broker, data: Path, tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    assert command("regenerate", data, "--into", staged, *LOCAL).code == 0
    manifest = manifest_of(command("install", staged, data, *JSON))
    with broker.running():
        before = {name: snapshots(data, name) for name in PARTITIONS}
        for arguments in (("install", staged, data), ("install", "--undo", manifest)):
            ran = command(*arguments, *JSON)
            assert (ran.code, ran.error["type"]) == (14, "LogDirInUseError")
            assert "(java)" in ran.error["message"]
        assert {name: snapshots(data, name) for name in PARTITIONS} == before


@pytest.mark.parametrize("lock_file_is_there", [True, False])
def test_a_broker_that_starts_in_the_midst_of_an_installation_is_kept_out(
    command: Resnap, broker: Broker, data: Path, tmp_path: Path, lock_file_is_there: bool
) -> None:
    staged, counted, ends = tmp_path / "staged", WatchedDisk(), []
    assert command("regenerate", data, "--into", staged, *LOCAL).code == 0
    if lock_file_is_there:
        (data / ".lock").touch()
    _install(staged, copied(data, tmp_path / "counted"), tmp_path / "counted-undo", counted)

    def start_a_broker() -> None:
        if not ends:
            ends.append(broker.start().wait(PATIENCE_S))

    # A broker opens its metadata log before it asks for the lock; the partitions it leaves alone.
    before = {name: look(data / name) for name in PARTITIONS}
    _install(staged, data, tmp_path / "undo", WatchedDisk(counted.steps // 2, start_a_broker))
    assert ends
    assert ends != [0]
    assert "Failed to acquire lock on file .lock" in broker.printed()
    for name in PARTITIONS:
        assert check_install(data / name, before[name], staged / name) == staged_in(staged / name).keys()
    with broker.running():
        pass


def test_made_beside_a_live_broker_that_appends_rolls_and_deletes_and_installed_after_it_stopped(
    command: Resnap, broker: Broker, data: Path, tmp_path: Path
) -> None:
    staged, partition = tmp_path / "staged", data / "payments-0"
    with broker.running():
        appending = _in_background(broker, 150)
        assert command("regenerate", data, "--into", staged, *LOCAL).code == 0
        assert appending.wait(PATIENCE_S) == 0
        broker.drive("append", "payments", 0, 60)
        second = bases(partition)[2]
        broker.drive("delete", "payments", 0, second)
        eventually(lambda: bases(partition)[0] >= second, "the front of the log is not deleted")
        read = broker.drive("read", "payments", 0)
    assert max(bases(partition)) > max(bases(staged / "payments-0", "snapshot"))
    lost = set(bases(partition)[1:]) - set(bases(partition, "snapshot"))
    assert lost
    ran = command("install", staged, data, *JSON)
    assert ran.code == 0, ran.err
    outcomes = {snapshot["offset"]: snapshot["outcome"] for snapshot in ran.document["partitions"][0]["snapshots"]}
    assert {offset for offset, outcome in outcomes.items() if outcome == "installed"} == lost
    assert "below-log-start" in outcomes.values()
    since = len(broker.printed())
    with broker.running():
        assert broker.drive("read", "payments", 0) == read
    check_opened(broker, since)
    for offset in lost:
        kept = load_snapshot(file_at(partition, offset, "snapshot"))
        assert kept == load_snapshot(file_at(staged / "payments-0", offset, "snapshot"))


def _in_background(broker: Broker, transactions: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(broker.release.program(DRIVER, "append", broker.address, "payments", 0, transactions))
