"""A seeded mix of producers, as a broker would have logged it.

Plain, idempotent and transactional producers take turns. Transactions are committed, aborted, time out, are fenced by a
new instance or hang; sequences wrap; epochs and producer ids change for the reasons for which they change in Kafka:

- a client ends its transaction at its own epoch, or at the next one with transactions v2 (KIP-890);
- the coordinator aborts what timed out, and what a new instance finds open, at the next epoch, which fences the old
  instance; the new one is given the epoch after that (KIP-360);
- a restarted idempotent producer is a new producer id, and so is one whose epochs are used up.

Equal workloads and seeds write equal bytes.

Source: ``TransactionCoordinator.handleInitProducerId`` and ``endTransaction``, ``TransactionMetadata``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, takewhile
from random import Random
from typing import TYPE_CHECKING, Final

from resnap.storage.log.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, wrap_sequence
from tests.logs.stored_frames import GZIP, LZ4, NONE, SNAPPY, ZSTD

if TYPE_CHECKING:
    from tests.logs.log_writer import PartitionWriter

DAY_MS: Final = 86_400_000
MAX_PRODUCER_EPOCH: Final = 2**15 - 1
ODD_TIMESTAMP_SHIFTS_MS: Final = (10 * DAY_MS, -3 * DAY_MS, -3650 * DAY_MS)
"""What clients with a wrong clock, and importers of old data, have sent to real brokers."""
BATCH_OVERHEAD_BYTES: Final = 61
RECORD_OVERHEAD_BYTES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What happens, and how often. A share is a probability between 0 and 1."""

    rounds: int = 1000
    """Turns; in each of them one producer writes one batch, and may end or lose its transaction."""
    start_ms: int = 1_700_000_000_000
    duration_ms: int = DAY_MS
    """The rounds are spread evenly over this time."""
    producers: int = 12
    """Idempotent and transactional ones at a time; restarts make further producer ids."""
    first_producer_id: int = 1000
    start_sequence: int = 0
    """First sequence of the producers that exist from the start; close to ``MAX_SEQUENCE`` makes them wrap."""
    transactional_share: float = 0.6
    """Share of the producers that are transactional."""
    lifespan: float = 1.0
    """Share of the rounds during which one producer is about; their lives begin one after the other."""
    skew: float = 0.0
    """Exponent of Zipf's law for how often each producer has its turn; 0 is all alike."""
    plain_share: float = 0.08
    """Share of the rounds that a producer without id takes."""
    end_share: float = 0.4
    """Share of the turns within a transaction that end it."""
    abort_share: float = 0.3
    """Share of the ending transactions that end in an abort."""
    empty_share: float = 0.02
    """Share of the transactions that end before they wrote anything here."""
    timeout_turns: int = 10
    """The coordinator aborts what is open for longer than its producer needs, on average, to have so many turns."""
    restart_share: float = 0.02
    """Share of a producer's turns that begin with a new instance."""
    zombie_share: float = 0.0
    """Share of the turns after a restart in which the old epoch writes once more: epochs go A, B, A."""
    hanging: int = 0
    """Transactions that never end, each of a producer of its own, begun in the last tenth of the rounds."""
    transactions_v2: bool = False
    """Whether every transaction that ends moves its producer to the next epoch."""
    coordinator_changes: int = 2
    """How often the coordinator moves, and its epoch rises."""
    leader_changes: int = 0
    """How often the partition's leader epoch rises."""
    max_records: int = 15
    """Per batch, drawn evenly from 1 on."""
    batch_bytes: int = 1200
    """Mean size of a batch, if it has room for its records."""
    compressions: tuple[int, ...] = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
    """Each producer draws one of them. The bytes are framed, but do not shrink."""
    log_append_time: bool = False
    odd_timestamp_share: float = 0.0
    """Share of the batches whose client has a wrong clock, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """What was written, in numbers."""

    data_batches: int
    markers: int
    producer_ids: int
    next_offset: int
    hanging: dict[int, int]
    """Producer id to first offset, of the transactions left open."""


def generate(writer: PartitionWriter, workload: Workload, *, seed: int) -> WorkloadResult:
    """Append ``workload`` to ``writer``, which stays open; what hangs is all that is left without a marker."""
    return _Run(writer, workload, seed).run()


class _Producer:
    """A client's memory."""

    __slots__ = ("compression", "epoch", "old_epoch", "producer_id", "sequence", "transactional")

    def __init__(self, producer_id: int, sequence: int, compression: int, *, transactional: bool) -> None:
        self.producer_id = producer_id
        self.epoch = 0
        self.old_epoch: int | None = None
        self.sequence = sequence
        self.compression = compression
        self.transactional = transactional


class _Run:
    def __init__(self, writer: PartitionWriter, workload: Workload, seed: int) -> None:
        self._writer = writer
        self._work = workload
        self._random = Random(seed)
        self._now_ms = workload.start_ms
        self._coordinator_epoch = 0
        self._next_producer_id = workload.first_producer_id
        self._data_batches = 0
        self._markers = 0
        self._producers: dict[int, _Producer] = {}
        self._open_since: dict[_Producer, int] = {}
        """Rounds in which transactions began, the oldest first."""
        self._living = max(1, round(workload.producers * workload.lifespan))
        weights = (1 / rank**workload.skew for rank in range(1, workload.producers + 1))
        self._cumulative_weights = list(accumulate(weights))
        self._ranks = range(workload.producers)

    def run(self) -> WorkloadResult:
        rounds = self._work.rounds
        hang_at = Counter(self._random.randrange(rounds * 9 // 10, rounds) for _ in range(self._work.hanging))
        for number in range(rounds):
            self._now_ms = self._work.start_ms + self._work.duration_ms * number // rounds
            self._maybe_change_leaders(number)
            self._time_out(number)
            self._turn(number)
            for _ in range(hang_at[number]):
                self._send(self._new_producer(transactional=True))
        for producer in list(self._open_since):
            self._end_transaction(producer, commit=True)
        return WorkloadResult(
            data_batches=self._data_batches,
            markers=self._markers,
            producer_ids=self._next_producer_id - self._work.first_producer_id,
            next_offset=self._writer.next_offset,
            hanging=dict(self._writer.open_transactions),
        )

    def _maybe_change_leaders(self, number: int) -> None:
        if _is_due(number, self._work.rounds, self._work.coordinator_changes):
            self._coordinator_epoch += 1
        if _is_due(number, self._work.rounds, self._work.leader_changes):
            self._writer.leader_epoch += 1

    def _turn(self, number: int) -> None:
        if not self._work.producers or self._chance(self._work.plain_share):
            self._send(None)
            return
        slot = self._pick(number)
        producer = self._producers.get(slot)
        if producer is None:
            share_before, share = slot * self._work.transactional_share, (slot + 1) * self._work.transactional_share
            producer = self._producers[slot] = self._new_producer(transactional=int(share) > int(share_before))
        elif self._chance(self._work.restart_share):
            self._restart(producer)
        elif producer.old_epoch is not None and self._chance(self._work.zombie_share):
            self._send_as_zombie(producer, producer.old_epoch)
        self._write(producer, number)

    def _pick(self, number: int) -> int:
        """Return which of the producers has its turn: one of those that live in this round."""
        (rank,) = self._random.choices(self._ranks, cum_weights=self._cumulative_weights)
        first = (self._work.producers - self._living) * number // self._work.rounds
        return int(first + rank % self._living)

    def _write(self, producer: _Producer, number: int) -> None:
        """Send a batch, within a transaction if the producer has them, which then may end."""
        ends = self._chance(self._work.end_share)
        if producer.transactional and producer not in self._open_since:
            self._open_since[producer] = number
            if self._chance(self._work.empty_share):
                self._end_transaction(producer, commit=not self._chance(self._work.abort_share))
                return
        self._send(producer)
        if producer.transactional and ends:
            self._end_transaction(producer, commit=not self._chance(self._work.abort_share))

    def _time_out(self, number: int) -> None:
        oldest_allowed = number - self._work.timeout_turns * self._living
        late = list(takewhile(lambda item: item[1] < oldest_allowed, self._open_since.items()))
        for producer, _ in late:
            self._abort_and_fence(producer)
            self._move_to_next_epoch(producer)

    def _end_transaction(self, producer: _Producer, *, commit: bool) -> None:
        """End it as its own client asked for."""
        if self._work.transactions_v2:
            producer.epoch, producer.sequence = producer.epoch + 1, 0
        self._mark(producer, commit=commit)
        if producer.epoch >= MAX_PRODUCER_EPOCH:
            self._take_new_producer_id(producer)

    def _restart(self, producer: _Producer) -> None:
        """Let a new instance take over from ``producer``."""
        old_epoch = producer.epoch
        if not producer.transactional:
            self._take_new_producer_id(producer)
            return
        if producer in self._open_since:
            self._abort_and_fence(producer)
        self._move_to_next_epoch(producer)
        producer.old_epoch = old_epoch if producer.epoch > old_epoch else None

    def _abort_and_fence(self, producer: _Producer) -> None:
        """Abort as the coordinator does by itself: at an epoch that no instance has."""
        producer.epoch += 1
        self._mark(producer, commit=False)

    def _move_to_next_epoch(self, producer: _Producer) -> None:
        # The coordinator keeps the last epoch in reserve, to fence with.
        if producer.epoch + 1 >= MAX_PRODUCER_EPOCH:
            self._take_new_producer_id(producer)
        else:
            producer.epoch += 1
            producer.sequence = 0

    def _new_producer(self, *, transactional: bool) -> _Producer:
        producer = _Producer(
            self._next_producer_id, self._work.start_sequence, self._random.choice(self._work.compressions),
            transactional=transactional,
        )  # fmt: skip
        self._next_producer_id += 1
        return producer

    def _take_new_producer_id(self, producer: _Producer) -> None:
        producer.producer_id, producer.epoch, producer.sequence = self._next_producer_id, 0, 0
        producer.old_epoch = None
        self._next_producer_id += 1

    def _send(self, producer: _Producer | None) -> None:
        records = self._random.randint(1, self._work.max_records)
        if producer is None:
            self._append(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, records, NONE, transactional=False)
            return
        self._append(
            producer.producer_id, producer.epoch, producer.sequence, records, producer.compression,
            transactional=producer.transactional,
        )  # fmt: skip
        producer.sequence = wrap_sequence(producer.sequence + records)

    def _send_as_zombie(self, producer: _Producer, epoch: int) -> None:
        self._append(
            producer.producer_id, epoch, 0, 1, producer.compression, transactional=producer in self._open_since
        )

    def _append(
        self, producer_id: int, epoch: int, base_sequence: int, records: int, compression: int, *, transactional: bool
    ) -> None:
        room = int(self._work.batch_bytes * self._random.uniform(0.5, 1.5)) - BATCH_OVERHEAD_BYTES
        self._writer.append_data(
            producer_id=producer_id, producer_epoch=epoch, base_sequence=base_sequence, records=records,
            timestamps=self._timestamps(records), transactional=transactional, compression=compression,
            payload_bytes=max(1, room // records - RECORD_OVERHEAD_BYTES),
            append_time=self._now_ms if self._work.log_append_time else None,
        )  # fmt: skip
        self._data_batches += 1

    def _timestamps(self, records: int) -> list[int]:
        """Return what the client's clock said, up to a few milliseconds before the broker's."""
        if self._chance(self._work.odd_timestamp_share):
            odd = (0, *(self._now_ms + shift for shift in ODD_TIMESTAMP_SHIFTS_MS))
            return [self._random.choice(odd)] * records
        first = self._now_ms - self._random.randrange(20)
        return [min(first + delta, self._now_ms) for delta in range(records)]

    def _mark(self, producer: _Producer, *, commit: bool) -> None:
        self._writer.append_marker(
            producer_id=producer.producer_id, producer_epoch=producer.epoch,
            coordinator_epoch=self._coordinator_epoch, timestamp=self._now_ms, commit=commit,
        )  # fmt: skip
        del self._open_since[producer]
        self._markers += 1

    def _chance(self, share: float) -> bool:
        return share > 0 and self._random.random() < share


def _is_due(number: int, rounds: int, times: int) -> bool:
    """Return whether one of ``times`` events, spread evenly, falls on this round; none falls on the first."""
    step = times + 1
    return number > 0 and number * step // rounds > (number - 1) * step // rounds
