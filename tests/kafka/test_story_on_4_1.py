"""The story again on 4.1.1, with false-empty snapshots, two log dirs, and a broker that was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kafka.brokers import SMALL, Broker, eventually, tiering
from tests.kafka.logs import keep_snapshots, partitions, snapshots_in, tiered_snapshots, to_be_tiered
from tests.kafka.story import (
    AFTER_A_CRASH,
    SWITCH_ON,
    TOPIC,
    TWO_DISKS,
    await_fault,
    check_tiered,
    ends_of,
    operator_of,
    read_all,
)
from tests.scheduler.installed import lose_all_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

PUT_IN, START = 1, 2
"""Later blocks of the section on two disks."""


def test_false_empty_snapshots_on_two_disks_are_mended_after_a_crash(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    disks, truth, remote = (tmp_path / "disk1", tmp_path / "disk2"), tmp_path / "truth", tmp_path / "remote"
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

    operator = operator_of(broker, tmp_path)
    with broker.running():
        read = read_all(broker)
        operator.follow(SWITCH_ON)
        await_fault(broker, read)
        broker.kill()
        assert tiered_snapshots(remote, TOPIC) == {}
        operator.follow(TWO_DISKS)
        for disk in disks:
            refused = command("install", tmp_path / "snapshots", disk, "--output", "json")
            assert refused.code == 1
            assert "did not stop in order" in refused.error["message"]
            assert "start the broker" in refused.error["hint"]
        operator.follow(AFTER_A_CRASH)
        operator.follow(TWO_DISKS, PUT_IN)

        since, expected = len(broker.told()), to_be_tiered(disks, TOPIC, ends_of(read), snapshots_in(truth))
        operator.follow(TWO_DISKS, START)
        check_tiered(broker, expected, remote)
        assert read_all(broker) == read
    assert broker.complaints(since) == []
