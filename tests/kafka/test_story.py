"""End to end: a log of 2.7.2 that newer brokers cannot tier is repaired, and tiered by them; consumers read all of it.

What an operator types is taken from the runbook, block by block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.kafka.brokers import SMALL, Broker, tiering, zookeeper
from tests.kafka.logs import all_snapshots_kept, snapshots_in, tiered_snapshots, to_be_tiered
from tests.kafka.story import (
    LOOK,
    MAKE,
    PUT_IN,
    SWITCH_ON,
    TOPIC,
    await_fault,
    check_tiered,
    ends_of,
    operator_of,
    read_all,
)
from tests.scheduler.installed import look

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

OLDER: Final = ("3.6.2", "3.8.1")
KINDS: Final = ("aborted", "committed", "fenced", "timedOut")
START, UNDO, SEE = 1, 2, 1
"""Later blocks of a section."""


@pytest.mark.parametrize("version", [*(pytest.param(older, marks=pytest.mark.heavy) for older in OLDER), "3.9.1"])
def test_a_log_of_2_7_that_a_newer_broker_cannot_tier_is_tiered_once_it_is_repaired(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, request: pytest.FixtureRequest, version: str
) -> None:
    old, new = release("2.7.2"), release(version)
    data, truth, remote = (tmp_path / name for name in ("data", "truth", "remote"))
    remote.mkdir()
    with zookeeper(old, tmp_path / "zookeeper") as address:
        broker = Broker(old, [data], zookeeper=address)
        with all_snapshots_kept([data], TOPIC, truth), broker.running():
            broker.drive("create", TOPIC, 2, *SMALL[old.version])
            told = broker.drive("traffic", TOPIC, 2, 260, request.config.getoption("seed"))
        assert all(f"{kind} " in told for kind in KINDS), told

        broker = Broker(
            new,
            [data],
            tiering(remote) | {"inter.broker.protocol.version": f"{new.line[0]}.{new.line[1]}"},
            zookeeper=address,
        )
        operator = operator_of(broker, tmp_path)
        with broker.running():
            read = read_all(broker)
            operator.follow(SWITCH_ON)
            await_fault(broker, read)
            assert tiered_snapshots(remote, TOPIC) == {}
            assert command("scan", data, "--exit-code").code == 4
            operator.follow(LOOK)
            operator.follow(MAKE)
            broker.stop()
            before = look(data)
            operator.follow(PUT_IN)
            assert look(data) != before
            operator.follow(PUT_IN, UNDO)
            assert look(data) == before
            operator.follow(PUT_IN)

            since, expected = len(broker.printed()), to_be_tiered([data], TOPIC, ends_of(read), snapshots_in(truth))
            assert all(len(segments) > 3 for segments in expected.values())
            operator.follow(PUT_IN, START)
            check_tiered(broker, expected, remote)
            assert read_all(broker) == read
            operator.follow(SWITCH_ON, SEE)
        assert broker.complaints(since) == []
