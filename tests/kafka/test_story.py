"""The whole story: a log of 2.7.2 that 3.9.1 cannot tier, mended, and tiered by the stock broker; consumers see all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.kafka.brokers import SMALL, Broker, eventually, tiering, zookeeper
from tests.kafka.logs import keep_snapshots, partitions, snapshots_in, tiered_snapshots, to_be_tiered
from tests.scheduler.files import bases
from tests.scheduler.installed import lose_all_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.kafka.logs import Snapshots
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

TOPIC: Final = "payments"
TIERED: Final = ("remote.storage.enable=true", "local.retention.bytes=1000", "local.retention.ms=-2", "retention.ms=-1")
FAULT: Final = '"producerStateSnapshotFile" is null'
KINDS: Final = ("aborted", "committed", "fenced", "timedOut")


def test_a_log_of_2_7_that_3_9_cannot_tier_is_tiered_once_it_is_mended(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    old, new = release("2.7.2"), release("3.9.1")
    data, truth, remote, staged = (tmp_path / name for name in ("data", "truth", "remote", "staged"))
    remote.mkdir()
    with zookeeper(old, tmp_path / "zookeeper") as address:
        broker = Broker(old, [data], zookeeper=address)
        with broker.running():
            broker.drive("create", TOPIC, 2, *SMALL[old.version])
            told = broker.drive("traffic", TOPIC, 2, 260, request.config.getoption("seed"))
            keep_snapshots([data], TOPIC, truth)
        keep_snapshots([data], TOPIC, truth)
        assert all(f"{kind} " in told for kind in KINDS), told

        broker = Broker(new, [data], tiering(remote) | {"inter.broker.protocol.version": "3.9"}, zookeeper=address)
        with broker.running():
            read = {name: broker.drive("read", TOPIC, name[-1]) for name in partitions([data], TOPIC)}
            broker.drive("configure", TOPIC, *TIERED)
            await_fault(broker, read)
        assert tiered_snapshots(remote, TOPIC) == {}

        assert command("scan", data, "--exit-code").code == 4
        assert command("regenerate", data, "--into", staged, "--as-of", "roll", "--engine", "local").code == 0
        assert command("install", staged, data).code == 0

        since, expected = len(broker.told()), to_be_tiered([data], TOPIC, ends_of(read), snapshots_in(truth))
        assert all(len(segments) > 3 for segments in expected.values())
        with broker.running():
            check_tiered(broker, expected, remote)
            assert {name: broker.drive("read", TOPIC, name[-1]) for name in read} == read
        assert broker.complaints(since) == []


def test_on_4_1_false_empty_snapshots_on_two_disks_are_mended_after_a_crash(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    disks, truth, remote, staged = (tmp_path / "1", tmp_path / "2"), *map(tmp_path.joinpath, ("t", "remote", "staged"))
    remote.mkdir()
    broker = Broker(release("4.1.1"), disks, tiering(remote))
    with broker.running():
        broker.drive("create", TOPIC, 2, *SMALL["4.1.1"])
        for number, disk in enumerate(disks):
            broker.drive("place", TOPIC, number, disk)
            eventually((disk / f"{TOPIC}-{number}").exists, f"{disk}: the partition does not come")
        broker.drive("traffic", TOPIC, 2, 260, request.config.getoption("seed"))
    keep_snapshots(disks, TOPIC, truth)
    for partition in partitions(disks, TOPIC).values():
        lose_all_snapshots(partition)

    with broker.running():
        read = {name: broker.drive("read", TOPIC, name[-1]) for name in partitions(disks, TOPIC)}
        broker.drive("configure", TOPIC, *TIERED)
        await_fault(broker, read)
        broker.kill()
    assert tiered_snapshots(remote, TOPIC) == {}

    flags = ("--as-of", "roll", "--engine", "local", "--boundaries", "all")
    assert command("regenerate", *disks, "--into", staged, *flags).code == 0
    for disk in disks:
        refused = command("install", staged, disk, "--replace", "false-empty", "--output", "json")
        assert refused.code == 1
        assert "did not stop in order" in refused.error["message"]
        assert "start the broker" in refused.error["hint"]
    since = len(broker.told())
    with broker.running():
        await_fault(broker, read, since)
    for disk in disks:
        ran = command("install", staged, disk, "--replace", "false-empty", "--output", "json")
        assert (ran.code, ran.document["summary"]["replaced"]) == (0, 2)

    since, expected = len(broker.told()), to_be_tiered(disks, TOPIC, ends_of(read), snapshots_in(truth))
    with broker.running():
        check_tiered(broker, expected, remote)
        assert {name: broker.drive("read", TOPIC, name[-1]) for name in read} == read
    assert broker.complaints(since) == []


def ends_of(read: dict[str, str]) -> dict[str, int]:
    """Return the last stable offset of each partition, as consumers have seen it."""
    return {name: int(dict(map(str.split, told.splitlines()))["end"]) for name, told in read.items()}


def check_tiered(broker: Broker, expected: Snapshots, remote: Path) -> None:
    """Check that all that can be tiered comes to ``remote``, with the right snapshots, and leaves the disk."""
    eventually(
        lambda: all(tiered_snapshots(remote, TOPIC).get(name, {}).keys() >= expected[name].keys() for name in expected),
        "not all is tiered",
    )
    assert tiered_snapshots(remote, TOPIC) == expected
    for name, partition in partitions(broker.log_dirs, TOPIC).items():
        eventually(lambda: not expected[name].keys() & set(bases(partition)), f"{name}: local copies stay")  # noqa: B023


def await_fault(broker: Broker, names: Iterable[str], since: int = 0) -> None:
    """Wait until the broker has said of each partition that it cannot tier it, for want of a snapshot."""
    for name in names:
        eventually(lambda name=name: _stuck(broker, name, since), f"{name}: the fault does not show")


def _stuck(broker: Broker, name: str, since: int) -> bool:
    said = (one for one in broker.complaints(since) if FAULT in one)
    return any("Error occurred while copying log segments of partition" in one and f":{name}]" in one for one in said)
