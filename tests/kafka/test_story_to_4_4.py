"""The whole way: a log of 2.7.2, run by 3.9.1, migrated to KRaft, run by 4.4.0, which tiers it once it is repaired.

Kafka's own notes are followed for the migration: a controller copies the metadata from ZooKeeper, the broker starts
again as one of KRaft, the controller lets ZooKeeper go, and both are upgraded. What an operator types is the runbook's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.kafka.brokers import SMALL, Broker, eventually, free_port, tiering, zookeeper
from tests.kafka.logs import all_snapshots_kept, partitions, snapshots_in, tiered_snapshots, to_be_tiered
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

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

CONTROLLER_ID: Final = 3000
MIGRATED: Final = "Completed migration of metadata from ZooKeeper to KRaft"
LEAST_OF_4_0: Final = "segment.bytes=1048576"
"""Brokers of 4.x do not start where a topic has less."""
START, SEE = 1, 1
"""Later blocks of a section."""


class Quorum:
    """The one controller of a cluster that comes from ZooKeeper, and the broker that belongs to it."""

    def __init__(self, log_dir: Path, zookeeper: str) -> None:
        """Take the cluster that ``log_dir`` is of."""
        found = re.search(r"^cluster\.id=(.*)$", (log_dir / "meta.properties").read_text(), flags=re.MULTILINE)
        assert found is not None
        self.metadata = log_dir.parent / "controller" / "metadata"
        self.metadata.parent.mkdir()
        self._cluster_id, self._port, self._log_dir = found[1], free_port(), log_dir
        self.voters = f"{CONTROLLER_ID}@127.0.0.1:{self._port}"
        self._migrates = {"zookeeper.metadata.migration.enable": "true", "zookeeper.connect": zookeeper}

    def controller(self, release: Release, *, migrates: bool = False) -> Broker:
        """Return the controller, which is to be started."""
        own = {
            "process.roles": "controller",
            "node.id": CONTROLLER_ID,
            "listeners": f"CONTROLLER://127.0.0.1:{self._port}",
            "remote.log.storage.system.enable": "true",
        }
        more = self._migrates if migrates else {}
        return Broker(release, [self.metadata], own | more, voters=self.voters, cluster_id=self._cluster_id)

    def migrating_broker(self, release: Release, address: str) -> Broker:
        """Return the broker with ZooKeeper that the controller takes along."""
        own = {
            "zookeeper.metadata.migration.enable": "true",
            "inter.broker.protocol.version": "3.9",
            "controller.quorum.voters": self.voters,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        return Broker(release, [self._log_dir], own, zookeeper=address)

    def broker(self, release: Release, properties: dict[str, object] | None = None) -> Broker:
        """Return the broker as one of KRaft."""
        return Broker(release, [self._log_dir], properties, voters=self.voters, cluster_id=self._cluster_id)


def migrate(data: Path, release: Release, address: str) -> Quorum:
    """Take the cluster of a stopped broker of 2.7 to ``release``, and from ZooKeeper to KRaft, and stop all."""
    with Broker(release, [data], {"inter.broker.protocol.version": "3.9"}, zookeeper=address).running():
        for name, partition in partitions([data], TOPIC).items():  # a partition without a topic id would be a stray one
            eventually((partition / "partition.metadata").exists, f"{name}: no topic id")
    quorum = Quorum(data, address)
    controller = quorum.controller(release, migrates=True)
    with controller.running():
        with quorum.migrating_broker(release, address).running():
            eventually(lambda: MIGRATED in controller.printed(), "the metadata is not migrated")
        with quorum.broker(release).running() as broker:
            controller.stop()
            controller = quorum.controller(release)
            with controller.running():  # without ZooKeeper: this ends the migration
                broker.drive("append", TOPIC, 0, 20)
                broker.drive("configure", TOPIC, LEAST_OF_4_0)
                broker.stop()  # before its controller, which must let it go
    return quorum


def test_a_log_of_2_7_is_tiered_by_4_4_once_it_is_repaired(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    old, new = release("2.7.2"), release("4.4.0")
    data, truth, remote = (tmp_path / name for name in ("data", "truth", "remote"))
    remote.mkdir()
    with zookeeper(old, tmp_path / "zookeeper") as address, all_snapshots_kept([data], TOPIC, truth):
        with Broker(old, [data], zookeeper=address).running() as broker:
            broker.drive("create", TOPIC, 2, *SMALL[old.version])
            broker.drive("traffic", TOPIC, 2, 260, request.config.getoption("seed"))
        quorum = migrate(data, release("3.9.1"), address)

    with quorum.controller(new).running():
        broker = quorum.broker(new, tiering(remote))
        operator = operator_of(broker, tmp_path)
        with broker.running():
            read = read_all(broker)
            operator.follow(SWITCH_ON)
            await_fault(broker, read)
            assert tiered_snapshots(remote, TOPIC) == {}
            check_metadata(command, quorum, data)
            operator.follow(LOOK)
            operator.follow(MAKE)
            operator.follow(PUT_IN)
            since, expected = len(broker.printed()), to_be_tiered([data], TOPIC, ends_of(read), snapshots_in(truth))
            assert all(len(segments) > 3 for segments in expected.values())
            operator.follow(PUT_IN, START)
            check_tiered(broker, expected, remote)
            assert read_all(broker) == read
            operator.follow(SWITCH_ON, SEE)
        assert broker.complaints(since) == []


def check_metadata(command: Resnap, quorum: Quorum, data: Path) -> None:
    """Check what the metadata log says of a cluster that was migrated and upgraded: no producer id was given twice."""
    image = command("controller", "image", quorum.metadata, "--output", "json").document
    assert TOPIC in {topic["topic"] for topic in image["topics"]}
    assert image["notes"] == []
    sources = [block["source"] for block in image["producerIdBlocks"]]
    assert sources == ["migration", *["allocated"] * (len(sources) - 1)]
    assert len(sources) > 1
    audited = command("controller", "audit", data, "--metadata-log", quorum.metadata)
    assert audited.code == 0, audited.out
