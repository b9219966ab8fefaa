"""Blocks in ZooKeeper: the bytes of the znode, who takes which block, and the way to KRaft and back."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from resnap.storage.errors import DataError
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.tiering.controller.metadata.records import ProducerIdsRecord
from resnap.tiering.controller.producer_ids.allocation import MAX_PRODUCER_ID, ProducerIdAllocation, ProducerIdsBlock
from resnap.tiering.controller.producer_ids.broker_ids import (
    ZooKeeperProducerIds,
    block_json,
    block_to_write_back,
    must_write_back,
    read_block_json,
    records_to_migrate,
    take_block,
)
from tests.cases import each


class Znode:
    """One znode in memory."""

    def __init__(self, data: bytes | None = None) -> None:
        self.data, self.version = data, 0

    def read(self) -> tuple[bytes | None, int]:
        return self.data, self.version

    def write(self, data: bytes, version: int) -> bool:
        if version != self.version:
            return False
        self.data, self.version = data, version + 1
        return True


class ContestedZnode(Znode):
    """A znode that another broker writes between the first read and the write."""

    def write(self, data: bytes, version: int) -> bool:
        if self.version == 0:
            super().write(block_json(ProducerIdsBlock(broker_id=9, first=0)), 0)
        return super().write(data, version)


def test_get_producer_id_zk() -> None:
    node = Znode()
    first, second = ZooKeeperProducerIds(node, 0), ZooKeeperProducerIds(node, 1)
    assert [first.generate() for _ in range(1000)] == list(range(1000))
    assert [second.generate() for _ in range(1000)] == list(range(1000, 2000))
    assert (first.generate(), second.generate()) == (2000, 3000)


def test_threads_of_a_broker_share_its_block_and_waste_none() -> None:
    class SlowZnode(Znode):
        def read(self) -> tuple[bytes | None, int]:
            found = super().read()
            time.sleep(0.01)
            return found

    ids = ZooKeeperProducerIds(SlowZnode(), 0)
    with ThreadPoolExecutor(8) as threads:
        given = list(threads.map(lambda _: ids.generate(), range(3_000)))
    assert sorted(given) == list(range(3_000))


def test_exceed_producer_id_limit_zk() -> None:
    node = Znode(block_json(ProducerIdsBlock(broker_id=0, first=MAX_PRODUCER_ID - 1000)))
    with pytest.raises(RefusedError) as refused:
        ZooKeeperProducerIds(node, 0)
    assert refused.value.error is KafkaError.UNKNOWN_SERVER_ERROR


def test_the_last_block_may_end_at_the_very_last_id() -> None:
    node = Znode(block_json(ProducerIdsBlock(broker_id=0, first=MAX_PRODUCER_ID - 1999)))
    assert take_block(node, 1).last == MAX_PRODUCER_ID


def test_who_loses_the_race_takes_the_block_after() -> None:
    assert take_block(ContestedZnode(), 1).first == 1000


def test_the_bytes_are_those_of_kafka() -> None:
    data = block_json(ProducerIdsBlock(broker_id=3, first=8000))
    assert json.loads(data) == {"version": 1, "broker": 3, "block_start": "8000", "block_end": "8999"}
    assert read_block_json(data) == ProducerIdsBlock(broker_id=3, first=8000)


@each(
    "data",
    [
        b"{", b"[]", b"7", b"\xff", b'{"version":1,"broker":0,"block_start":0,"block_end":"9"}',
        b'{"version":1,"broker":"0","block_start":"0","block_end":"9"}', b'{"version":1,"broker":0,"block_start":"0"}',
        b'{"version":1,"broker":0,"block_start":"x","block_end":"9"}',
        b'{"version":1,"broker":0,"block_start":"0","block_end":1e999}',
        b'{"version":1,"broker":0,"block_start":"0","block_end":"9223372036854775808"}',
        b'{"version":1,"broker":0,"block_start":"0","block_end":"4294967296"}',
        b'{"version":1,"broker":0,"block_start":"-5","block_end":"9"}',
        b'{"version":1,"broker":0,"block_start":"1000","block_end":"5"}', pytest.param(b"[" * 100_000, id="deep"),
    ],
)  # fmt: skip
def test_what_kafka_would_not_have_written_is_reported(data: bytes) -> None:
    with pytest.raises(DataError, match="latest_producer_id_block"):
        read_block_json(data)


def test_read_migrate_and_write_producer_id() -> None:
    node = Znode()
    take_block(node, 2)
    (migrated,) = records_to_migrate(node.data)
    assert migrated == ProducerIdsRecord(broker_id=2, broker_epoch=-1, next_producer_id=1000)
    allocation = ProducerIdAllocation({1: 5})
    allocation.replay(migrated)
    for _ in range(5):
        allocation.replay(allocation.allocate(1, 5)[1])
    assert allocation.next_block.first == 6000
    node.data = block_to_write_back(6000)
    assert ZooKeeperProducerIds(node, 3).generate() == 7000


def test_nothing_in_the_znode_makes_no_record() -> None:
    assert records_to_migrate(None) == ()
    assert records_to_migrate(b"") == ()


def test_the_znode_is_written_back_where_it_differs_and_then_always() -> None:
    assert not must_write_back(None, -1)
    assert must_write_back(None, 0)
    assert not must_write_back(block_json(ProducerIdsBlock(broker_id=1, first=0)), 1000)
    assert must_write_back(block_to_write_back(1000), 1000)
