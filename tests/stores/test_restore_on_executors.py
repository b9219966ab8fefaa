"""``resnap restore`` with executors of a real cluster that write what a real S3 server holds into a log dir."""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING, Final

import pytest

from resnap.scheduler.cli import run
from resnap.storage.log.names import DirKind, parse_partition_dir_name
from resnap.storage.log.properties import PartitionMetadata, write_partition_metadata
from tests.stores.servers import VERSITYGW
from tests.stores.test_tier_on_executors import (
    LIMIT,
    PARTITIONS,
    PATIENCE_S,
    SEGMENTS,
    SPECULATIVE,
    a_log,
    a_place,
    kill_one,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stores.servers import Server
    from tests.stores.test_tier_on_executors import Place

pytestmark = [pytest.mark.stores, pytest.mark.slow, pytest.mark.spark]
JSON: Final = ("--output", "json")


@pytest.fixture
def server(server_of: Callable[..., Server]) -> Server:
    return server_of(VERSITYGW)


def ship(place: Place, log: Path, to: str, *flags: str) -> None:
    """Ship with the driver alone."""
    ran = place.resnap("tier", log, "--to", to, "--as-of", "roll", "--engine", "local", *flags)
    assert ran.returncode == 0, ran.stderr


def check_restored(log: Path, into: Path) -> None:
    """Check that all closed segments of ``log`` are in ``into``, byte for byte, and nothing that was not shipped."""
    for number in range(PARTITIONS):
        there, name = into / f"payments-{number}", f"payments-{number}"
        kinds = [path.suffix for path in there.iterdir()]
        assert [kinds.count(one) for one in (".log", ".index", ".timeindex", ".snapshot")] == [SEGMENTS] * 4
        assert len(kinds) == SEGMENTS * 4 + (there / "partition.metadata").exists() + 1  # and the leader epochs
        for path in there.glob("*.log"):
            assert path.read_bytes() == (log / name / path.name).read_bytes()


def in_the_making(into: Path) -> list[str]:
    found = [(path.name, parse_partition_dir_name(path.name)) for path in into.iterdir() if path.is_dir()]
    return [name for name, parsed in found if parsed is not None and parsed.kind is DirKind.DELETE]


@pytest.mark.parametrize("layout", ["flat", pytest.param("local-tiered", marks=pytest.mark.heavy)])
def test_less_than_a_hundredth_of_the_bytes_pass_through_the_driver(
    server: Server, tmp_path: Path, layout: str
) -> None:
    """Also where no manifest has digests, so that what was written is held against itself."""
    small, large = a_log(tmp_path / "small", 1 << 16), a_log(tmp_path / "large", 12 << 20)
    size_bytes = sum(path.stat().st_size for path in large.rglob("*.log")) * SEGMENTS // (SEGMENTS + 1)
    with a_place(server, tmp_path, workers=2) as place:
        for log in (small, large):
            for number in range(PARTITIONS):
                metadata = write_partition_metadata(PartitionMetadata(version=0, topic_id="5e" * 10 + "5g"))
                (log / f"payments-{number}" / "partition.metadata").write_bytes(metadata)
            ship(place, log, f"{place.url}-{log.name}", "--layout", layout)
        ran = place.resnap("restore", f"{place.url}-small", "--into", tmp_path / "from-small", *JSON, *place.conf())
        assert ran.returncode == 0, ran.stderr
        read = place.rchar()
        place.drivers.size_bytes = place.executors.size_bytes = 0
        command = ("restore", f"{place.url}-large", "--into", tmp_path / "restored", *JSON, *place.conf())
        for outcome in ("restored", "already-there"):
            ran = place.resnap(*command)
            assert ran.returncode == 0, ran.stderr
            assert {partition["outcome"] for partition in json.loads(ran.stdout)["partitions"]} == {outcome}
            assert place.rchar() - read < size_bytes / 100  # it does not read back what was written
            assert place.drivers.size_bytes < size_bytes / 100
    assert place.executors.size_bytes > size_bytes * 0.99
    check_restored(large, tmp_path / "restored")
    assert in_the_making(tmp_path / "restored") == []


@pytest.mark.parametrize(
    "victim",
    ["driver", pytest.param("worker", marks=pytest.mark.heavy), pytest.param("executor", marks=pytest.mark.heavy)],
)
def test_what_is_killed_in_the_middle_leaves_whole_partitions_and_the_next_run_completes(
    server: Server, tmp_path: Path, victim: str
) -> None:
    log, into = a_log(tmp_path / "log", 8 << 20), tmp_path / "restored"
    with a_place(server, tmp_path, workers=3) as place:
        ship(place, log, place.url)
        turn, killed = threading.Lock(), threading.Event()
        kill: list[Callable[[], None]] = []

        def act(size_bytes: int) -> None:
            if size_bytes > 12 << 20 and kill and turn.acquire(blocking=False):
                kill[0]()
                killed.set()

        place.executors.heard = act
        command = ("restore", place.url, "--into", into, *JSON, *place.conf(**SPECULATIVE))
        with place.started(*command) as process:
            kill.append(lambda: kill_one(victim, place, process))
            _, err = process.communicate(timeout=PATIENCE_S)
        assert killed.is_set()
        if victim == "driver":
            assert process.returncode == -signal.SIGKILL
            there = {path.name for path in into.iterdir() if path.is_dir()} - set(in_the_making(into))
            assert len(there) < PARTITIONS
            ran = place.resnap(*command)
            assert ran.returncode == 0, ran.stderr
        else:
            assert process.returncode == 0, err
    check_restored(log, into)
    assert in_the_making(into) == []


def test_what_executors_do_not_reach_is_said_before_anything_is_written(server: Server, tmp_path: Path) -> None:
    log = a_log(tmp_path / "log", 1 << 16)
    with a_place(server, tmp_path, workers=2, AWS_SECRET_ACCESS_KEY="of somebody else") as place:
        ship(place, log, place.url)
        ran = place.resnap("restore", place.url, "--into", tmp_path / "restored", *place.conf())
        assert ran.returncode == 2, ran.stderr
        assert f"cannot reach s3://{place.bucket}" in ran.stderr
        local = (tmp_path / "store").as_uri()
        assert run(["tier", str(log), "--to", local, "--as-of", "roll", "--engine", "local", "--quiet"]) == 0
        ran = place.resnap("restore", local, "--into", "/proc/self/cwd/tmp", *place.conf())
        assert ran.returncode == 2, ran.stderr
        assert "cannot reach the destination /proc/self/cwd/tmp" in ran.stderr
        assert "--engine local" in ran.stderr
    written = [path for into in (tmp_path / "restored", *tmp_path.glob("driver-*/tmp")) for path in into.glob("*")]
    assert [path for path in written if path.name.startswith("payments")] == []


@pytest.mark.heavy
def test_a_limit_on_bytes_per_second_holds_for_all_executors_together(server: Server, tmp_path: Path) -> None:
    log = a_log(tmp_path / "log", 4 << 20)
    size_bytes = PARTITIONS * SEGMENTS * (4 << 20)
    with a_place(server, tmp_path, workers=2) as place:
        ship(place, log, place.url)
        took_s = place.limited("restore", place.url, "--into", tmp_path / "restored")
    assert took_s > 0.8 * size_bytes / LIMIT
    check_restored(log, tmp_path / "restored")
