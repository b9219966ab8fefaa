"""What all replicas of a partition have lost: `resnap replicas --remote` shows it by a replay of the log.

Brokers are played where they are asked (DescribeProducers, metadata); the remote part of the log is a real broker's.
"""

from __future__ import annotations

import random
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.scheduler.verbs import replicas as job
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import load_snapshot
from resnap.tiering.cluster.facts import ClusterFacts, PartitionFacts, TopicFacts
from resnap.tiering.cluster.live_replicas import BrokerTimes
from resnap.tiering.cluster.replica_comparison import ActiveProducer
from tests.fixture_sets import LOST
from tests.scheduler.files import file_at
from tests.tiering.simulated_cluster import Cluster, Partition, Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

FOREVER_MS: Final = 10**13
TOPIC_ID: Final = "E4QM6VpJR0SAB_nxBSDVVg"
LOCAL_FROM: Final = 205
LOG_END: Final = 671


@dataclass(slots=True, kw_only=True)
class Tiered(Cluster):
    """Brokers of a tiered topic whose leaders do not have the beginning of the log on their disks."""

    cluster: Any
    """The connection."""

    def topics(self, _names: Collection[str]) -> dict[str, TopicFacts]:
        facts = {
            one.name.partition: PartitionFacts(
                partition=one.name.partition, leader=one.leader, log_start_offset=0, local_start_offset=LOCAL_FROM
            )
            for one in self.cluster_partitions
        }
        settings = {"remote.storage.enable": "true"}
        return {"t": TopicFacts(name="t", topic_id=TOPIC_ID, settings=settings, partitions=facts)}

    def times(self) -> BrokerTimes:
        return BrokerTimes(lag_ms=0, expiration_ms=FOREVER_MS)


def producers_in(snapshot: Path) -> dict[int, ActiveProducer]:
    """Return what a broker says that has loaded a snapshot."""
    return {
        one.producer_id: ActiveProducer(
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            last_sequence=one.last_sequence,
            last_timestamp=one.timestamp,
            coordinator_epoch=one.coordinator_epoch,
            current_transaction_start_offset=one.current_txn_first_offset if one.has_open_transaction else None,
        )
        for one in load_snapshot(snapshot).values()
    }


def asked(
    command: Resnap, monkeypatch: pytest.MonkeyPatch, remote: Path, states: list[dict[int, dict[int, ActiveProducer]]],
    *more: object,
) -> Ran:  # fmt: skip
    """Ask a cluster in which each replica of each partition has the given producers."""
    made = [
        Partition(
            name=TopicPartition("t", number),
            leader=1,
            replicas={broker: Replica(producers=dict(known)) for broker, known in of_partition.items()},
            in_sync=set(of_partition),
        )
        for number, of_partition in enumerate(states)
    ]
    client: Any = SimpleNamespace(facts=lambda *_: ClusterFacts(cluster_id=None, topics={}), broker_ids=list)
    cluster = Tiered(cluster_partitions=made, chance=random.Random(1), is_quiet=True, cluster=client)
    monkeypatch.setattr(job, "cluster_of", lambda _: nullcontext(client))
    monkeypatch.setattr(job, "LiveBrokers", lambda **_: cluster)
    how = ("--remote", remote.as_uri(), "--producer-id-expiration-ms", FOREVER_MS, "--output", "json")
    return command("replicas", *how, *more)


def test_what_all_replicas_have_lost_is_found_by_a_replay_of_the_log(
    command: Resnap, monkeypatch: pytest.MonkeyPatch, fixture_set: Callable[[str], FixtureSet]
) -> None:
    fixture = fixture_set(LOST)
    right = producers_in(file_at(fixture.expected / "t-0", LOG_END, "snapshot"))
    cut = producers_in(file_at(fixture.data / "t-0", LOG_END, "snapshot"))
    tiered = producers_in(file_at(fixture.expected / "t-0", 625, "snapshot"))
    assert tiered.keys() - cut.keys(), "the set has what was lost"
    local = ("--engine", "local")
    assert asked(command, monkeypatch, fixture.remote, [{1: right, 2: right, 3: right}], *local).code == 0
    for same in ({1: cut}, {1: cut, 2: cut}, {1: cut, 2: cut, 3: cut}):
        for topic in ((), ("--topic", "t")):
            ran = asked(command, monkeypatch, fixture.remote, [same], *local, *topic)
            rows = ran.document["replicas"]
            assert (ran.code, [row["brokerId"] for row in rows]) == (4, list(same)), ran.err
            assert [row["leads"] for row in rows] == [True, *[False] * (len(same) - 1)]
            for row in rows:
                lost = {one["known"]["producerId"] for one in row["producers"] if "producer" in one["losses"]}
                assert (row["replayedTo"], lost) == (625, tiered.keys() - cut.keys())
    half = asked(command, monkeypatch, fixture.remote, [{1: right, 2: cut}], *local)
    assert (half.code, [row["brokerId"] for row in half.document["replicas"]]) == (4, [2])


@pytest.mark.slow
def test_many_partitions_are_replayed_on_spark_with_the_same_result(
    command: Resnap, monkeypatch: pytest.MonkeyPatch, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    fixture, many = fixture_set(LOST), 24
    folder = tmp_path / "remote" / "kafka-tiered-storage"
    for number in range(many):
        shutil.copytree(fixture.remote / folder.name / f"t-0-{TOPIC_ID}", folder / f"t-{number}-{TOPIC_ID}")
    right = producers_in(file_at(fixture.expected / "t-0", LOG_END, "snapshot"))
    cut = producers_in(file_at(fixture.data / "t-0", LOG_END, "snapshot"))
    states = [{1: cut, 2: cut} if number % 2 else {1: right, 2: right} for number in range(many)]
    found = []
    for engine in (("local",), ("spark", "--spark-master", "local[2]")):
        ran = asked(command, monkeypatch, tmp_path / "remote", states, "--topic", "t", "--engine", *engine)
        assert (ran.code, ran.document["summary"]["lost"]) == (4, many), ran.err
        found.append(ran.document["replicas"])
    assert found[0] == found[1]
    assert {row["partition"] for row in found[0]} == set(range(1, many, 2))
