"""Blocks of producer ids in a real ZooKeeper 3.5, by kazoo: each block once, and bytes that are Kafka's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from resnap.storage.errors import DataError
from resnap.tiering.controller.producer_ids.allocation import ProducerIdsBlock
from resnap.tiering.controller.producer_ids.broker_ids import (
    PATH,
    ZooKeeperProducerIds,
    block_json,
    block_to_write_back,
    records_to_migrate,
    take_block,
)
from resnap.tiering.controller.producer_ids.kazoo_node import KazooBlockNode
from tests.kafka.brokers import zookeeper
from tests.kafka.releases import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kafka.releases import Release

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def address(release: Callable[[str], Release], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with zookeeper(release("2.7.2"), tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    client = connected(address)
    yield client
    client.delete(PATH)
    close(client)


def connected(address: str) -> Any:
    client = KazooClient(address, connection_retry=KazooRetry(max_tries=-1, max_delay=1))
    client.start(timeout=PATIENCE_S)
    return client


def close(client: Any) -> None:
    client.stop()
    client.close()


def test_brokers_take_blocks_one_after_the_other(client: Any) -> None:
    node = KazooBlockNode(client)
    node.create()
    first, second = ZooKeeperProducerIds(node, 0), ZooKeeperProducerIds(node, 1)
    assert (first.generate(), second.generate()) == (0, 1000)
    assert client.get(PATH)[0] == b'{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}'


def test_many_at_once_take_each_block_once(client: Any, address: str) -> None:
    KazooBlockNode(client).create()

    def take(broker_id: int) -> list[int]:
        own = connected(address)
        blocks = [take_block(KazooBlockNode(own), broker_id).first for _ in range(50)]
        close(own)
        return blocks

    with ThreadPoolExecutor(6) as pool:
        taken = sorted(first for blocks in pool.map(take, range(6)) for first in blocks)
    assert taken == list(range(0, 300_000, 1000))


def test_a_write_on_condition_of_an_old_version_is_refused(client: Any) -> None:
    node = KazooBlockNode(client)
    node.create()
    data, version = node.read()
    assert data is None
    assert node.write(block_json(ProducerIdsBlock(broker_id=1, first=0)), version)
    assert not node.write(b"late", version)
    assert node.read()[1] == version + 1


def test_without_a_znode_there_is_nothing_to_read_and_a_broker_is_told_so_instead_of_trying_forever(
    client: Any,
) -> None:
    node = KazooBlockNode(client, "/no-such-node")
    assert node.read() == (None, 0)
    with pytest.raises(DataError, match="/no-such-node: no such znode"):
        ZooKeeperProducerIds(node, 1)
    assert client.exists("/no-such-node") is None
    KazooBlockNode(client).create()


def test_the_way_to_kraft_and_back_gives_no_id_twice(client: Any) -> None:
    node = KazooBlockNode(client)
    node.create()
    take_block(node, 1)
    (record,) = records_to_migrate(node.read()[0])
    assert record.next_producer_id == 1000
    client.set(PATH, block_to_write_back(record.next_producer_id + 5000))
    assert ZooKeeperProducerIds(node, 1).generate() == 7000
