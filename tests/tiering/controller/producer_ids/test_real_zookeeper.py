"""Blocks of producer ids in a real ZooKeeper 3.5, by kazoo: many takers, each block once, and bytes that are Kafka's.

``KAFKA_JARS`` names a folder below which ``zookeeper-3.5.*.jar`` lies together with all that it needs.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from tiering.controller.producer_ids.block import ProducerIdsBlock
from tiering.controller.producer_ids.kazoo_node import KazooBlockNode
from tiering.controller.producer_ids.zookeeper_blocks import (
    PATH,
    ZooKeeperProducerIds,
    block_json,
    block_to_write_back,
    records_to_migrate,
    take_block,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S: Final = 120
pytestmark = pytest.mark.heavy


def jars() -> Path:
    root = os.environ.get("KAFKA_JARS")
    found = sorted(Path(root).rglob("zookeeper-3.5.*.jar")) if root else []
    if not found or shutil.which("java") is None:
        pytest.skip("NOT TESTED: ZooKeeper needs KAFKA_JARS with ZooKeeper 3.5, and a JDK")
    return found[-1].parent


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("zookeeper")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = directory / "zoo.cfg"
    settings.write_text(
        f"dataDir={directory}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        "maxClientCnxns=0\n"
    )
    command = ["java", "-Xmx256m", "-cp", f"{jars()}/*", "org.apache.zookeeper.server.ZooKeeperServerMain", settings]
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


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


def test_without_a_znode_there_is_nothing_to_read_and_nothing_is_written(client: Any) -> None:
    node = KazooBlockNode(client, "/no-such-node")
    assert node.read() == (None, 0)
    assert not node.write(b"{}", 0)
    KazooBlockNode(client).create()


def test_the_way_to_kraft_and_back_gives_no_id_twice(client: Any) -> None:
    node = KazooBlockNode(client)
    node.create()
    take_block(node, 1)
    (record,) = records_to_migrate(node.read()[0])
    assert record.next_producer_id == 1000
    client.set(PATH, block_to_write_back(record.next_producer_id + 5000))
    assert ZooKeeperProducerIds(node, 1).generate() == 7000
