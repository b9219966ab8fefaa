"""Which block comes next: a test for each that Kafka's ``ProducerIdControlManagerTest`` has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import DataError
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.tiering.controller.metadata.records import ProducerIdsRecord
from resnap.tiering.controller.producer_ids.allocation import (
    EMPTY,
    MAX_PRODUCER_ID,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    ClaimedBlock,
    ProducerIdAllocation,
    ProducerIdsBlock,
    answer_allocate,
)

EPOCHS = dict.fromkeys(range(4), 100)


def record(next_producer_id: int, broker_id: int = 1) -> ProducerIdsRecord:
    return ProducerIdsRecord(broker_id=broker_id, broker_epoch=100, next_producer_id=next_producer_id)


@pytest.fixture
def allocation() -> ProducerIdAllocation:
    return ProducerIdAllocation(EPOCHS)


def test_initial_result(allocation: ProducerIdAllocation) -> None:
    block, written = allocation.allocate(1, 100)
    assert block == ProducerIdsBlock(broker_id=1, first=0, size=1000)
    assert written == record(1000)
    assert allocation.next_block is EMPTY


def test_monotonic(allocation: ProducerIdAllocation) -> None:
    allocation.replay(record(42))
    assert allocation.allocate(1, 100)[0].first == 42
    for backwards in (40, 42):
        with pytest.raises(DataError, match="went up to 42"):
            allocation.replay(record(backwards))
    assert allocation.allocate(1, 100)[0].first == 42
    allocation.replay(record(50))
    assert allocation.allocate(1, 100)[0].first == 50


@pytest.mark.parametrize(("broker_id", "epoch"), [(99, 100), (1, 99), (99, -1)])
def test_unknown_broker_or_epoch(allocation: ProducerIdAllocation, broker_id: int, epoch: int) -> None:
    with pytest.raises(RefusedError) as refused:
        allocation.allocate(broker_id, epoch)
    assert refused.value.error is KafkaError.STALE_BROKER_EPOCH


def test_max_value(allocation: ProducerIdAllocation) -> None:
    allocation.replay(record(MAX_PRODUCER_ID - 1000))
    assert allocation.allocate(1, 100)[0].last == MAX_PRODUCER_ID - 1
    allocation.replay(record(MAX_PRODUCER_ID - 1))
    with pytest.raises(RefusedError) as refused:
        allocation.allocate(1, 100)
    assert refused.value.error is KafkaError.UNKNOWN_SERVER_ERROR


def test_generate_producer_ids(allocation: ProducerIdAllocation) -> None:
    for number in range(100):
        allocation.replay(allocation.allocate(number % 4, 100)[1])
    assert allocation.next_block == ProducerIdsBlock(broker_id=3, first=100_000, size=1000)


def test_a_first_record_may_say_anything(allocation: ProducerIdAllocation) -> None:
    allocation.replay(record(0))
    assert allocation.allocate(1, 100)[0].first == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5_000)), max_size=30))
def test_a_snapshot_says_where_to_go_on_and_not_who_asked(steps: list[tuple[int, int]]) -> None:
    allocation = ProducerIdAllocation(EPOCHS)
    for broker_id, gap in steps:
        if gap % 2:
            allocation.replay(record(allocation.next_block.first + gap, broker_id))
        else:
            allocation.replay(allocation.allocate(broker_id, 100)[1])
    restored = ProducerIdAllocation(EPOCHS)
    for written in allocation.snapshot():
        assert (written.broker_id, written.broker_epoch) == (-1, -1)
        restored.replay(written)
    assert restored.next_block.first == allocation.next_block.first
    assert len(allocation.snapshot()) == bool(steps)


def test_snapshot_iterator(allocation: ProducerIdAllocation) -> None:
    assert allocation.snapshot() == ()
    for _ in range(3):
        allocation.replay(allocation.allocate(1, 100)[1])
    assert [written.next_producer_id for written in allocation.snapshot()] == [3000]


# -- ProducerIdsBlockTest


def test_empty_block() -> None:
    assert (EMPTY.last, EMPTY.next_first, EMPTY.size) == (-1, 0, 0)
    assert ClaimedBlock(EMPTY).claim() is None


def test_dynamic_block() -> None:
    block = ProducerIdsBlock(broker_id=7, first=3000, size=1309)
    assert (block.first, block.last, block.next_first, block.size) == (3000, 4308, 4309, 1309)


def test_claim_next_id() -> None:
    claimed = ClaimedBlock(ProducerIdsBlock(broker_id=0, first=1, size=1))
    assert [claimed.claim(), claimed.claim()] == [1, None]


# -- AllocateProducerIdsRequestTest, ControllerApisTest

REQUEST = AllocateProducerIdsRequest(broker_id=1, broker_epoch=100)


def answered(allocation: ProducerIdAllocation, **who: bool) -> AllocateProducerIdsResponse:
    return answer_allocate(REQUEST, lambda broker_id, epoch: allocation.allocate(broker_id, epoch)[0], **who)


def test_allocate_producers_id_sent_to_controller(allocation: ProducerIdAllocation) -> None:
    response = answered(allocation)
    assert (response.error_code, response.producer_id_len) == (KafkaError.NONE, 1000)
    assert response.producer_id_start >= 0


def test_allocate_producers_id_sent_to_non_controller(allocation: ProducerIdAllocation) -> None:
    response = answered(allocation, is_active=False)
    assert response == AllocateProducerIdsResponse(error_code=KafkaError.NOT_CONTROLLER)


def test_unauthorized_handle_allocate_producer_ids(allocation: ProducerIdAllocation) -> None:
    response = answered(allocation, is_authorized=False, is_active=False)
    assert response.error_code is KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_a_refusal_is_an_answer_without_a_block() -> None:
    response = answered(ProducerIdAllocation({}))
    assert response == AllocateProducerIdsResponse(error_code=KafkaError.STALE_BROKER_EPOCH)


def test_allocate_producer_ids_returns_not_controller() -> None:
    def allocate(_broker_id: int, _epoch: int) -> ProducerIdsBlock:
        raise RefusedError(KafkaError.NOT_CONTROLLER, "another one leads meanwhile")

    assert answer_allocate(REQUEST, allocate) == AllocateProducerIdsResponse(error_code=KafkaError.NOT_CONTROLLER)
