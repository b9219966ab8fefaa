"""The story again on 4.4.0: snapshots that are gone; false-empty ones, two log dirs, and a broker that was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kafka.brokers import SMALL, Broker, eventually, tiering
from tests.kafka.logs import keep_snapshots, partitions, snapshots_in, tiered_snapshots, to_be_tiered
from tests.kafka.story import (
    AFTER_A_CRASH,
    LOOK,
    MAKE,
    SWITCH_ON,
    TOPIC,
    TWO_DISKS,
    await_fault,
    check_tiered,
    ends_of,
    operator_of,
    read_all,
)
from tests.kafka.story import PUT_IN as ALL_IN
from tests.scheduler.files import bases
from tests.scheduler.installed import lose_all_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

PUT_IN, START = 1, 2
"""Later blocks of the section on two disks."""
UP, SEE = 1, 1
"""Later blocks of the sections on one, and on tiering."""


def test_snapshots_that_went_while_the_broker_was_down_are_put_in_before_it_starts(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data, truth, remote = (tmp_path / name for name in ("data", "truth", "remote"))
    remote.mkdir()
    broker = Broker(release("4.4.0"), [data], tiering(remote))
    with broker.running():
        broker.drive("create", TOPIC, 2, *SMALL["4.4.0"])
        broker.drive("traffic", TOPIC, 2, 260, request.config.getoption("seed"))
        read = read_all(broker)
    keep_snapshots([data], TOPIC, truth)
    places = partitions([data], TOPIC)
    for partition in places.values():
        lose_all_snapshots(partition)

    scanned = command("scan", data, "--topic", TOPIC, "--output", "json").document["partitions"]
    assert [(one["lost"], one["boundaries"]) for one in scanned] == [
        (len(bases(partition)) - 1,) * 2 for partition in places.values()
    ]
    operator = operator_of(broker, tmp_path)
    operator.follow(LOOK)
    operator.follow(MAKE)
    operator.follow(ALL_IN)
    since, expected = len(broker.printed()), to_be_tiered([data], TOPIC, ends_of(read), snapshots_in(truth))
    try:
        operator.follow(ALL_IN, UP)
        for name, partition in places.items():
            there = snapshots_in(partition)[name]
            assert {base: there[base] for base in bases(partition)[1:]} == {
                base: snapshots_in(truth)[name][base] for base in bases(partition)[1:]
            }  # none that is empty though it should not be
        operator.follow(SWITCH_ON)
        check_tiered(broker, expected, remote)
        assert read_all(broker) == read
        operator.follow(SWITCH_ON, SEE)
    finally:
        broker.stop()
    assert broker.complaints(since) == []


def test_false_empty_snapshots_on_two_disks_are_repaired_after_a_crash(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    disks, truth, remote = (tmp_path / "disk1", tmp_path / "disk2"), tmp_path / "truth", tmp_path / "remote"
    remote.mkdir()
    broker = Broker(release("4.4.0"), disks, tiering(remote))
    with broker.running():
        broker.drive("create", TOPIC, 2, *SMALL["4.4.0"])
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
            assert "was not shut down cleanly" in refused.error["message"]
            assert "start the broker" in refused.error["hint"]
        operator.follow(AFTER_A_CRASH)
        operator.follow(TWO_DISKS, PUT_IN)

        since, expected = len(broker.printed()), to_be_tiered(disks, TOPIC, ends_of(read), snapshots_in(truth))
        operator.follow(TWO_DISKS, START)
        check_tiered(broker, expected, remote)
        assert read_all(broker) == read
    assert broker.complaints(since) == []
