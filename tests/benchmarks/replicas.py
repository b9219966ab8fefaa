"""All replicas of a large cluster compared: 200 brokers, 100,000 partitions, three replicas each.

The answers are made as they are asked for, of fresh values, so that comparing costs what it costs with real ones;
decoding is measured apart, of one answer.
"""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka.protocol.admin.transactions import DescribeProducersResponse as Response

from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.live_replicas import (
    PARTITIONS_A_REQUEST,
    BrokerTimes,
    ReplicaCheck,
)
from resnap.tiering.cluster.replica_comparison import (
    ActiveProducer,
    DeletedRecords,
    PartitionReplicas,
    ReplicaProducers,
    ReplicaState,
    describe_producers,
)
from tests.benchmarks.tables import Table, amount, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.benchmarks.options import Options

NAME = "replicas"
BROKERS, PARTITIONS, REPLICAS, PRODUCERS = 200, 100_000, 3, 20
NOW_MS = 1_700_000_000_000


@dataclass(slots=True, kw_only=True)
class Simulated:
    """A cluster in which every ``loses``-th partition has a replica without half of its producers; 0 for none."""

    partition_count: int
    loses: int
    now_s: float = 0.0
    requests: int = 0

    def partitions(self, topics: frozenset[str] | None = None) -> Sequence[PartitionReplicas]:
        numbers = range(self.partition_count)
        return [self._place(number) for number in numbers if topics is None or _topic(number) in topics]

    def producers(self, broker_id: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ReplicaProducers]:
        self.requests += 1
        return {one: ReplicaProducers(producers=self._known(broker_id, one.partition)) for one in partitions}

    def deleted(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, DeletedRecords]:
        return dict.fromkeys(partitions, DeletedRecords())

    def times(self) -> BrokerTimes:
        return BrokerTimes(lag_ms=30_000, expiration_ms=86_400_000)

    def pause(self, for_s: float) -> None:
        self.now_s += for_s

    def _place(self, number: int) -> PartitionReplicas:
        held = tuple((number + step) % BROKERS for step in range(REPLICAS))
        return PartitionReplicas(TopicPartition(_topic(number), number), held[0], 1, held, held)

    def _known(self, broker_id: int, number: int) -> tuple[ActiveProducer, ...]:
        has_lost = self.loses and number % self.loses == 0 and broker_id == (number + 1) % BROKERS
        return tuple(
            ActiveProducer(number * PRODUCERS + one, 0, 7, NOW_MS, -1, None)
            for one in range(PRODUCERS // 2 if has_lost else PRODUCERS)
        )


def _topic(number: int) -> str:
    return f"topic-{number // 100}"


def run(options: Options) -> Iterator[Table]:
    """Compare all replicas of a cluster in order, and of one that has lost state here and there."""
    partitions = PARTITIONS // 100 if options.quick else PARTITIONS
    table = Table(
        f"{partitions:,} partitions of {REPLICAS} replicas on {BROKERS} brokers, {PRODUCERS} producers each",
        ["lost", "found", "requests", "time", "memory of answers at most", "decoding besides"],
    )
    for loses in (0, 1_000, 100):
        cluster = Simulated(partition_count=partitions, loses=loses)
        begun_s = time.process_time()
        found = _check(cluster)
        took_s = time.process_time() - begun_s
        tracemalloc.start()
        _check(Simulated(partition_count=min(partitions, 5_000), loses=loses))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        lost = -(-partitions // loses) if loses else 0
        assert found == lost
        each_s = _decoding_s()
        table.add(f"{lost:,}", f"{found:,}", f"{cluster.requests:,}", seconds(took_s), amount(peak),
                  seconds(each_s * partitions * REPLICAS / PARTITIONS_A_REQUEST))  # fmt: skip
    yield table


def _check(cluster: Simulated) -> int:
    """Return how many replicas lost state."""
    check = ReplicaCheck(
        brokers=cluster,
        now_ms=lambda: NOW_MS,
        monotonic_s=lambda: cluster.now_s,
        pause=cluster.pause,
        check=lambda: None,
    )
    return sum(finding.state is ReplicaState.LOST for finding in check.findings())


def _decoding_s() -> float:
    """Return how long one answer takes from its bytes to values."""
    producer = Response.TopicResponse.PartitionResponse.ProducerState
    partition = Response.TopicResponse.PartitionResponse
    producers = [
        producer(producer_id=one, producer_epoch=0, last_sequence=7, last_timestamp=NOW_MS, coordinator_epoch=-1,
                 current_txn_start_offset=-1)
        for one in range(PRODUCERS)
    ]  # fmt: skip
    answer = Response(
        version=0,
        throttle_time_ms=0,
        topics=[
            Response.TopicResponse(
                name="topic-1",
                partitions=[
                    partition(partition_index=one, error_code=0, error_message=None, active_producers=producers)
                    for one in range(PARTITIONS_A_REQUEST)
                ],
            )
        ],
    )
    cluster: Any = _Decoding(bytes(answer.encode(version=0)))
    asked = [TopicPartition("topic-1", one) for one in range(PARTITIONS_A_REQUEST)]
    begun_s = time.process_time()
    for _ in range(_DECODED):
        assert len(describe_producers(cluster, 1, asked)) == PARTITIONS_A_REQUEST
    return (time.process_time() - begun_s) / _DECODED


@dataclass(frozen=True, slots=True)
class _Decoding:
    """Answers every request with the same bytes."""

    data: bytes

    def ask(self, *_: object) -> Any:
        return Response.decode(self.data, version=0)


_DECODED = 10
