"""Blocks given away for good: whatever kills the controller, no id goes to two brokers."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.errors import DataError, LogDirError, LogDirInUseError
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.storage.messages.wire import ZERO_UUID
from resnap.tiering.controller.metadata.folding import load_image
from resnap.tiering.controller.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from resnap.tiering.controller.metadata.writer import MetadataLogWriter, open_metadata_log
from resnap.tiering.controller.producer_ids.allocation import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    answer_allocate,
    open_allocation,
    read_body,
    write_body,
)
from resnap.tiering.controller.producer_ids.broker_ids import BrokerProducerIds
from resnap.tiering.quota import token_bucket
from resnap.tiering.quota.token_bucket import RequestThrottle
from tests.tiering.controller.producer_ids.lives import EPOCH, NOW, START, give_away_for_ever, open_in_vain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

    from resnap.tiering.controller.metadata.records import MetadataRecord

LIVES_PER_LOG: Final = 100
PATIENCE_S: Final = 300


def registration(broker_id: int, epoch: int = EPOCH) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id, incarnation_id=ZERO_UUID, broker_epoch=epoch, end_points=(), features=(), rack=None
    )


def given_away(next_producer_id: int) -> ProducerIdsRecord:
    return ProducerIdsRecord(broker_id=1, broker_epoch=EPOCH, next_producer_id=next_producer_id)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return new_log(tmp_path, "0")


def new_log(root: Path, name: str) -> Path:
    """Return a metadata log in which brokers 1 and 2 are registered."""
    directory = root / name / "__cluster_metadata-0"
    with open_metadata_log(directory, leader_id=1, timestamp=NOW) as writer:
        writer.append([registration(1), registration(2)], NOW)
    return directory


def test_blocks_go_on_where_the_last_run_ended(log: Path) -> None:
    for expected in (0, 2000):
        with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
            assert [allocation.allocate(broker, EPOCH, NOW).first for broker in (1, 2)] == [expected, expected + 1000]


def test_who_is_not_registered_gets_nothing_and_nothing_is_written(log: Path) -> None:
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        size = sum(path.stat().st_size for path in log.glob("*.log"))
        with pytest.raises(RefusedError) as refused:
            allocation.allocate(1, EPOCH + 1, NOW)
        assert refused.value.error is KafkaError.STALE_BROKER_EPOCH
        assert sum(path.stat().st_size for path in log.glob("*.log")) == size


def test_one_controller_at_a_time(log: Path, context: ForkServerContext) -> None:
    with open_allocation(log, leader_id=1, timestamp=NOW):
        process = context.Process(target=open_in_vain, args=(log,))
        process.start()
        process.join(PATIENCE_S)
        assert process.exitcode == LogDirInUseError.exit_code


def test_a_block_is_not_given_away_where_the_append_failed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(LogDirError):
            allocation.allocate(1, EPOCH, NOW)
        monkeypatch.undo()
        with pytest.raises(LogDirError, match="earlier append"):
            allocation.allocate(1, EPOCH, NOW)
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        # The record had reached the file: no broker got the block, and none will.
        assert allocation.allocate(1, EPOCH, NOW).first == 1000


@pytest.mark.parametrize(
    ("ended", "first"), [([AbortTransactionRecord()], 0), ([EndTransactionRecord()], 5000), ([], 0)]
)
def test_records_of_a_transaction_count_where_it_ended(
    log: Path, ended: list[AbortTransactionRecord | EndTransactionRecord], first: int
) -> None:
    with open_metadata_log(log, leader_id=1, timestamp=NOW) as writer:
        writer.append([BeginTransactionRecord(), given_away(5000), *ended], NOW)
    for expected in (first, first + 1000):
        with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
            assert allocation.allocate(1, EPOCH, NOW).first == expected


def test_a_broker_that_left_gets_nothing(log: Path) -> None:
    with open_metadata_log(log, leader_id=1, timestamp=NOW) as writer:
        writer.append([UnregisterBrokerRecord(broker_id=1, broker_epoch=EPOCH)], NOW)
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        with pytest.raises(RefusedError):
            allocation.allocate(1, EPOCH, NOW)
        assert allocation.allocate(2, EPOCH, NOW).first == 0


def test_a_log_that_gives_ids_away_twice_is_not_gone_on_with(log: Path) -> None:
    with open_metadata_log(log, leader_id=1, timestamp=NOW) as writer:
        writer.append([given_away(2000), given_away(1000)], NOW)
    with pytest.raises(DataError, match="went up to 2000"), open_allocation(log, leader_id=1, timestamp=NOW):
        pass


def test_unique_producer_ids(log: Path) -> None:
    """Three brokers give out 1,001 ids each, which takes two blocks of each."""
    brokers = [BrokerProducerIds(number) for number in (1, 2, 1)]
    ids = []
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        for broker in brokers * 1001:
            generated = broker.generate(0)
            while generated.producer_id is None or generated.wants_block:
                if generated.wants_block:
                    request = AllocateProducerIdsRequest(broker_id=broker.broker_id, broker_epoch=EPOCH)
                    answer = answer_allocate(request, lambda who, epoch: allocation.allocate(who, epoch, NOW))
                    broker.on_response(read_body(AllocateProducerIdsResponse, write_body(answer)), 0)
                if generated.producer_id is not None:
                    break
                generated = broker.generate(0)
            ids.append(generated.producer_id)
    assert len(set(ids)) == len(ids) == 3003


def test_a_broker_is_registered_for_good_and_asks_under_its_epoch(tmp_path: Path) -> None:
    log = tmp_path / "__cluster_metadata-0"
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        epoch = allocation.register_broker(7, ZERO_UUID, NOW)
        assert allocation.register_broker(7, ZERO_UUID, NOW) == epoch
        assert allocation.allocate(7, epoch, NOW).first == 0
        with pytest.raises(ValueError, match="a broker id of -1"):
            allocation.register_broker(-1, ZERO_UUID, NOW)
    assert load_image(log).brokers[7].epoch == epoch
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        assert allocation.register_broker(7, ZERO_UUID, NOW) == epoch
        later = allocation.register_broker(7, "UKQXDdQN8qtNI_fjesdrSw", NOW)
        assert later > epoch
        with pytest.raises(RefusedError) as raised:
            allocation.allocate(7, epoch, NOW)
        assert raised.value.error is KafkaError.STALE_BROKER_EPOCH
        assert allocation.allocate(7, later, NOW).first == 1000


def test_a_caller_that_asks_too_often_is_throttled(tmp_path: Path) -> None:
    throttle = RequestThrottle(2.0, burst_s=3)
    with open_allocation(tmp_path / "__cluster_metadata-0", leader_id=1, timestamp=NOW) as allocation:
        request = AllocateProducerIdsRequest(broker_id=7, broker_epoch=allocation.register_broker(7, ZERO_UUID, NOW))

        def answer(now_ms: int, caller: str = "7", **how: bool) -> AllocateProducerIdsResponse:
            allocate = partial(allocation.allocate, timestamp=NOW)
            return answer_allocate(request, allocate, throttle=partial(throttle, caller, now_ms), **how)

        assert [answer(0).throttle_time_ms for _ in range(8)] == [0] * 6 + [500, 1000]
        assert answer(0, caller="8").throttle_time_ms == 0
        assert answer(0, is_active=False).throttle_time_ms == 0
        assert answer(0, is_authorized=False).throttle_time_ms == 1500
        assert answer(60_000).throttle_time_ms == 0


def test_callers_do_not_fill_the_memory_of_a_throttle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_bucket, "MOST_CALLERS", 3)
    throttle = RequestThrottle(1.0, burst_s=1)
    for caller in range(10):
        assert throttle(str(caller), 0) == 0
    assert throttle("9", 0) == 1000
    assert len(throttle._buckets) == 3


@pytest.mark.parametrize(("rate", "burst_s"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_a_throttle_needs_a_rate_and_a_burst(rate: float, burst_s: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        RequestThrottle(rate, burst_s=burst_s)


# -- kills


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    """Where processes start in milliseconds, from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "tests.tiering.controller.producer_ids.lives"])
    return context


def _killed_life(context: ForkServerContext, log: Path, chance: random.Random) -> Iterator[int]:
    """Run a controller, kill it at some instant, and yield the first id of each block that it sent."""
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=give_away_for_ever, args=(log, writing))
    process.start()
    writing.close()
    heard = b""
    for _ in range(chance.randrange(4)):
        heard += os.read(reading.fileno(), 4096)
    time.sleep(chance.random() * 0.004)
    process.kill()
    process.join(PATIENCE_S)
    while part := os.read(reading.fileno(), 4096):
        heard += part
    reading.close()
    yield from (first for (first,) in START.iter_unpack(heard))


def kill_often(context: ForkServerContext, root: Path, kills: int) -> int:
    """Return how many blocks were sent, none of them twice."""
    chance = random.Random(kills)
    blocks = 0
    for start in range(0, kills, LIVES_PER_LOG):
        log = new_log(root, str(start))
        told = [
            first
            for _ in range(min(LIVES_PER_LOG, kills - start))
            for first in _killed_life(context, log, chance)
        ]  # fmt: skip
        assert told == sorted(set(told)), "a block was given away twice"
        assert all(first % 1000 == 0 for first in told)
        with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
            assert allocation.allocate(1, EPOCH, NOW).first > max(told, default=-1)
        blocks += len(told)
    return blocks


def test_25_kills_give_no_id_away_twice(context: ForkServerContext, tmp_path: Path) -> None:
    assert kill_often(context, tmp_path, 25) > 0


@pytest.mark.heavy
def test_1000_kills_give_no_id_away_twice(context: ForkServerContext, tmp_path: Path) -> None:
    assert kill_often(context, tmp_path, 1000) > 0


def test_two_controllers_of_one_process_do_not_give_away_the_same_ids(log: Path) -> None:
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        with pytest.raises(LogDirInUseError), open_allocation(log, leader_id=2, timestamp=NOW):
            pass
        assert allocation.allocate(1, EPOCH, NOW).first == 0
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        assert allocation.allocate(1, EPOCH, NOW).first == 1000


def test_threads_are_served_one_after_the_other(log: Path) -> None:
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation, ThreadPoolExecutor(4) as threads:
        blocks = list(threads.map(lambda _: allocation.allocate(1, EPOCH, NOW), range(40)))
    assert sorted(block.first for block in blocks) == list(range(0, 40_000, 1000))


def test_an_interruption_after_the_append_gives_no_block_away_twice(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = MetadataLogWriter.append

    def interrupted(writer: MetadataLogWriter, records: Sequence[MetadataRecord], timestamp: int) -> int:
        append(writer, records, timestamp)
        raise KeyboardInterrupt

    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        monkeypatch.setattr(MetadataLogWriter, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            allocation.allocate(1, EPOCH, NOW)
        monkeypatch.undo()
        assert allocation.allocate(1, EPOCH, NOW).first == 1000
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        assert allocation.allocate(1, EPOCH, NOW).first == 2000
