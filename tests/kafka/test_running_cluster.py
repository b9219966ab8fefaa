"""What brokers are asked beside their topics: the producers of each replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import ClusterError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.client import Cluster
from resnap.tiering.cluster.producers import ReplicaProducers, describe_producers
from tests.kafka.brokers import Broker, zookeeper
from tests.kafka.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release

pytestmark = pytest.mark.kafka

TOPIC = "payments"


@pytest.mark.parametrize("version", ["3.9.1", "4.4.0"])
def test_a_broker_says_which_producers_each_of_its_replicas_has(
    release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    broker = Broker(release(version), [tmp_path / "data"])
    open_in, ended, missing = (TopicPartition(TOPIC, number) for number in range(3))
    with broker.running():
        broker.drive("create", TOPIC, 2)
        broker.drive("append", TOPIC, 1, 3)
        client = RawClient(broker.port, "open one")
        client.add(open_in)
        client.produce(open_in)
        client.produce(open_in, sequence=1)
        with Cluster(broker.address, {}) as cluster:
            found = describe_producers(cluster, 1, [open_in, ended, missing])
            with pytest.raises(ClusterError, match="cannot learn of producers from broker 7"):
                describe_producers(cluster, 7, [ended])
            assert describe_producers(cluster, 1, []) == {}
    (one,), (other,) = found[open_in].producers, found[ended].producers
    assert one[:3] == (client.producer_id, client.producer_epoch, 1)
    assert one[4:] == (-1, 0)
    epoch_begun_by_marker = release(version).line >= (4, 0)
    assert other.last_sequence == (-1 if epoch_begun_by_marker else 14)
    assert (other.coordinator_epoch, other.current_transaction_start_offset) == (0, None)
    assert other.last_timestamp > 0
    assert found[missing] == ReplicaProducers(error="UNKNOWN_TOPIC_OR_PARTITION")


def test_of_a_broker_too_old_to_be_asked_of_producers_it_says_so(
    release: Callable[[str], Release], tmp_path: Path
) -> None:
    with zookeeper(release("2.7.2"), tmp_path / "zookeeper") as address:
        broker = Broker(release("2.7.2"), [tmp_path / "data"], zookeeper=address)
        with broker.running(), Cluster(broker.address, {}) as cluster, pytest.raises(ClusterError) as caught:
            describe_producers(cluster, 1, [TopicPartition(TOPIC, 0)])
    assert "broker does not support the 'DescribeProducersRequest" in str(caught.value)
