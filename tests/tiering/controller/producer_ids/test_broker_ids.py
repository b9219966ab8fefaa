"""A broker gives out ids from blocks that it fetches ahead: the rules of Kafka's ``ProducerIdManagerTest``."""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest

from resnap.storage.kafka_errors import KafkaError
from resnap.tiering.controller.producer_ids.allocation import MAX_PRODUCER_ID, AllocateProducerIdsResponse
from resnap.tiering.controller.producer_ids.broker_ids import (
    RETRY_BACKOFF_MS,
    BrokerProducerIds,
    Generated,
    asks_the_controller,
)

NOTHING = KafkaError.COORDINATOR_LOAD_IN_PROGRESS


class Broker:
    """A broker whose controller answers at once, with the errors that wait first, then with block after block."""

    def __init__(self, size: int, *, first: int = 0, errors: tuple[KafkaError, ...] = ()) -> None:
        self.ids = BrokerProducerIds(0)
        self.now = 0
        self.sent = 0
        self._first, self._size, self._errors = first, size, deque(errors)
        self._lock = Lock()

    def generate(self) -> Generated:
        generated = self.ids.generate(self.now)
        if generated.wants_block:
            self.answer()
        return generated

    def answer(self) -> None:
        with self._lock:
            self.sent += 1
            error = self._errors.popleft() if self._errors else KafkaError.NONE
            if error:
                self.ids.on_response(AllocateProducerIdsResponse(error_code=error), self.now)
            else:
                response = AllocateProducerIdsResponse(producer_id_start=self._first, producer_id_len=self._size)
                if self.ids.on_response(response, self.now):
                    self._first += self._size


@pytest.mark.parametrize("size", [1, 2, 10, 100])
def test_concurrent_generate_pid_requests(size: int) -> None:
    broker = Broker(size)
    ids: list[int] = []

    def take() -> None:
        while len(ids) < size * 3:
            generated = broker.generate()
            if generated.producer_id is None:
                assert generated.error is NOTHING
            else:
                ids.append(generated.producer_id)

    with ThreadPoolExecutor(5) as pool:
        for future in [pool.submit(take) for _ in range(5)]:
            future.result()
    assert max(Counter(ids).values()) == 1
    assert set(ids) == set(range(len(ids)))


@pytest.mark.parametrize("error", [KafkaError.UNKNOWN_SERVER_ERROR, KafkaError.INVALID_REQUEST])
def test_unrecoverable_errors(error: KafkaError) -> None:
    broker = Broker(1, errors=(KafkaError.NONE, error))
    assert broker.generate().error is NOTHING
    assert broker.generate().producer_id == 0
    assert broker.generate().error is NOTHING
    broker.now += RETRY_BACKOFF_MS
    assert broker.generate().error is NOTHING
    assert broker.generate().producer_id == 1


@pytest.mark.parametrize(("first", "size"), [(-1, 10), (0, -1), (MAX_PRODUCER_ID - 1, 10)])
def test_invalid_ranges(first: int, size: int) -> None:
    broker = Broker(size, first=first)
    assert broker.generate().error is NOTHING
    assert broker.sent == 1
    assert broker.generate().error is NOTHING


def test_retry_backoff() -> None:
    broker = Broker(1, errors=(KafkaError.UNKNOWN_SERVER_ERROR,))
    assert broker.generate().error is NOTHING
    broker.now += RETRY_BACKOFF_MS - 1
    assert broker.generate().error is NOTHING
    assert broker.sent == 1
    broker.now += 1
    assert broker.generate().error is NOTHING
    assert broker.sent == 2
    assert broker.generate().producer_id == 0


def test_the_next_block_is_asked_for_with_the_901st_id_and_once() -> None:
    broker = Broker(1000)
    broker.generate()
    wanted = [number for number in range(1000) if broker.ids.generate(0).wants_block]
    assert wanted == [900]


def test_a_block_that_fails_to_come_ahead_is_asked_for_again_only_when_none_is_left() -> None:
    broker = Broker(10)
    broker.generate()
    wanted = []
    for number in range(10):
        if broker.ids.generate(0).wants_block:
            wanted.append(number)
            broker.ids.on_timeout()
    assert wanted == [9]
    assert broker.ids.generate(0).wants_block


def test_there_is_one_request_at_a_time_and_none_follows_before_its_block_is_in_use() -> None:
    ids = BrokerProducerIds(0)
    assert [ids.generate(0).wants_block for _ in range(3)] == [True, False, False]
    assert ids.on_response(AllocateProducerIdsResponse(producer_id_start=0, producer_id_len=1), 0)
    generated = ids.generate(0)
    assert (generated.producer_id, generated.wants_block) == (0, True)


def test_after_a_time_out_the_next_request_goes_out_at_once() -> None:
    ids = BrokerProducerIds(0)
    ids.generate(0)
    ids.on_timeout()
    assert ids.generate(60_000).wants_block


def test_an_authorization_error_says_that_the_broker_is_to_end_until_the_controller_lets_it_in() -> None:
    ids, refused = BrokerProducerIds(0), KafkaError.CLUSTER_AUTHORIZATION_FAILED
    told = []
    for error in (KafkaError.STALE_BROKER_EPOCH, refused, KafkaError.NONE):
        ids.generate(0)
        ids.on_response(AllocateProducerIdsResponse(error_code=error, producer_id_len=1000), 0)
        told.append(ids.is_unauthorized)
    assert told == [False, True, False]


def test_a_block_that_begins_with_an_id_in_use_is_refused() -> None:
    ids = BrokerProducerIds(0)
    ids.generate(0)
    ids.on_response(AllocateProducerIdsResponse(producer_id_start=1000, producer_id_len=1000), 0)
    ids.generate(0)
    for first in (0, 1998, 1999):
        assert not ids.on_response(AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=1000), 0)
    assert ids.on_response(AllocateProducerIdsResponse(producer_id_start=2000, producer_id_len=1000), 0)


def test_empty_blocks_give_no_id_and_do_not_hang() -> None:
    broker = Broker(0)
    assert [broker.generate().error for _ in range(5)] == [NOTHING] * 5


@pytest.mark.parametrize("size", [1, 2, 10])
def test_contiguous_ids(size: int) -> None:
    broker = Broker(size)
    ids = [generated.producer_id for _ in range(size * 5) if (generated := broker.generate()).producer_id is not None]
    assert ids == list(range(len(ids)))
    assert len(ids) > size * 2


def test_rpc_producer_id_manager_throws_concurrent_transactions() -> None:
    ids = BrokerProducerIds(0)
    assert ids.generate(0).wants_block
    ids.on_timeout()
    assert ids.generate(60_000).error is NOTHING


@pytest.mark.parametrize(
    ("protocol", "asks"), [("2.8", False), ("2.8-IV1", False), ("0.10.2-IV0", False), ("3.0-IV0", True), ("3.9", True)]
)
def test_brokers_with_zookeeper_ask_the_controller_from_3_0_iv0_on(protocol: str, asks: bool) -> None:
    assert asks_the_controller(protocol) == asks


def test_an_invalid_protocol_version_is_refused() -> None:
    with pytest.raises(ValueError, match="found 'newest'"):
        asks_the_controller("newest")
