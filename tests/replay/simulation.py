"""A broker's partition over days, as Hypothesis draws it: what producers, coordinator and time would really do.

A transaction lasts at most ``transaction.max.timeout.ms``; then the coordinator aborts it, a little later. The
exception is a transaction that hangs: its coordinator has forgotten it, its producer is gone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from hypothesis import strategies as st

from resnap.replay.producer_state import Expiry, ProducerStates
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import ProducerEntry, snapshot_bytes
from tests.logs.log_writer import PartitionWriter
from tests.replay.specification import events_of
from tests.strategies import DataEvent, MarkerEvent, PlainEvent, encode_event

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from resnap.storage.log.partition_dir import PartitionDir
    from tests.strategies import Event

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
START_MS: Final = 1_700_000_000_000
TIMEOUT_MS: Final = 15 * MINUTE_MS
ABORT_DELAY_MS: Final = 4 * MINUTE_MS
EXPIRY: Final = Expiry(3 * HOUR_MS, 10 * MINUTE_MS)
TRANSACTIONAL: Final = (1, 2, 3, 4)
BUMPING: Final = 4
"""This producer speaks transactions version 2: each of its markers bumps the epoch."""
IDEMPOTENT: Final = (5, 6)


class Move(NamedTuple):
    """One thing that happens, so many minutes after the one before."""

    kind: str
    producer_id: int
    minutes: int
    records: int


moves: Final = st.lists(
    st.builds(
        Move,
        kind=st.sampled_from(
            ("data",) * 9 + ("commit", "commit", "commit", "abort", "hang", "restart", "plain") + ("roll",) * 4
        ),
        producer_id=st.sampled_from(TRANSACTIONAL + TRANSACTIONAL + IDEMPOTENT),
        minutes=st.sampled_from((0, 0, 0, 1, 1, 1, 2, 2, 3, 5, 8, 12, 20, 100)),
        records=st.integers(1, 3),
    ),
    min_size=40,
    max_size=90,
)


@dataclass(slots=True)
class _Producer:
    epoch: int = 0
    sequence: int = 0
    began_ms: int | None = None
    """When its open transaction began."""
    gone: bool = False


@dataclass(slots=True)
class Simulation:
    """A partition in the making."""

    now_ms: int = START_MS
    segments: list[list[Event]] = field(default_factory=lambda: [[]])
    _producers: dict[int, _Producer] = field(
        default_factory=lambda: {pid: _Producer() for pid in TRANSACTIONAL + IDEMPOTENT}
    )

    def play(self, drawn: Sequence[Move]) -> Simulation:
        """Let ``drawn`` happen, and the coordinator do its part; return itself."""
        for move in drawn:
            self._pass(move.minutes * MINUTE_MS)
            self._do(move)
        return self

    def finish(self) -> Simulation:
        """Let the coordinator end what it still knows of; return itself."""
        self._pass(TIMEOUT_MS + ABORT_DELAY_MS)
        return self

    def _pass(self, elapsed_ms: int) -> None:
        until_ms = self.now_ms + elapsed_ms
        overdue = [
            (producer.began_ms + TIMEOUT_MS + ABORT_DELAY_MS, pid)
            for pid, producer in self._producers.items()
            if producer.began_ms is not None and not producer.gone
        ]
        for due_ms, pid in sorted(overdue):
            if due_ms <= until_ms:
                self.now_ms = due_ms
                self._end(pid, commit=False, bump=True)
        self.now_ms = until_ms

    def _do(self, move: Move) -> None:
        producer = self._producers[move.producer_id]
        match move.kind:
            case "plain":
                self._append(PlainEvent(records=move.records, timestamp=self.now_ms))
            case "roll":
                if self.segments[-1]:
                    self.segments.append([])
            case _ if producer.gone:
                return
            case "data":
                self._write(move.producer_id, producer, move.records)
            case "hang":
                producer.gone = producer.began_ms is not None
            case "restart":
                self._restart(move.producer_id, producer)
            case _ if producer.began_ms is not None:
                self._end(move.producer_id, commit=move.kind == "commit", bump=move.producer_id == BUMPING)

    def _write(self, pid: int, producer: _Producer, records: int) -> None:
        transactional = pid in TRANSACTIONAL
        self._append(
            DataEvent(
                producer_id=pid, producer_epoch=producer.epoch, base_sequence=producer.sequence, records=records,
                timestamp=self.now_ms, transactional=transactional,
            )
        )  # fmt: skip
        producer.sequence += records
        if transactional and producer.began_ms is None:
            producer.began_ms = self.now_ms

    def _restart(self, pid: int, producer: _Producer) -> None:
        if producer.began_ms is not None:
            self._end(pid, commit=False, bump=True)
        elif pid in TRANSACTIONAL:
            producer.epoch, producer.sequence = producer.epoch + 1, 0

    def _end(self, pid: int, *, commit: bool, bump: bool) -> None:
        producer = self._producers[pid]
        if bump:
            producer.epoch, producer.sequence = producer.epoch + 1, 0
        producer.began_ms = None
        self._append(
            MarkerEvent(
                producer_id=pid, producer_epoch=producer.epoch, coordinator_epoch=pid, timestamp=self.now_ms,
                commit=commit,
            )
        )  # fmt: skip

    def _append(self, event: Event) -> None:
        self.segments[-1].append(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A simulated partition on disk, and what the specification says of it."""

    partition: PartitionDir
    end_offset: int
    states: dict[int, dict[int, ProducerEntry]]
    """Entries at each boundary, whatever their age, by boundary and producer id."""
    times: dict[int, list[tuple[int, int]]]
    """(offset, timestamp) of each event, by producer id."""
    ends: dict[tuple[int, int], bool]
    """(producer id, first offset) of each transaction that has a marker -> whether it was committed."""


def write(simulation: Simulation, log_dir: Path, *, tail_snapshots: bool = True) -> Written:
    """Write the partition as a broker leaves it, with snapshots at its last two bases and its end."""
    segments = [events for events in simulation.segments if events]
    states = ProducerStates(EXPIRY)
    seen: dict[int, dict[int, ProducerEntry]] = {}
    times: dict[int, list[tuple[int, int]]] = {}
    ends: dict[tuple[int, int], bool] = {}
    with PartitionWriter(log_dir / "payments-0") as writer:
        for number, events in enumerate(segments):
            if number:
                seen[writer.roll()] = dict(states.entries)
            for event in events:
                offset = writer.next_offset
                data = encode_event(event, offset)
                if isinstance(event, MarkerEvent):
                    began = states.entries[event.producer_id].current_txn_first_offset
                    ends[event.producer_id, began] = event.commit
                states.append(events_of(data))
                if isinstance(event, (DataEvent, MarkerEvent)):
                    times.setdefault(event.producer_id, []).append((offset, event.timestamp))
                writer.append_batch(data)
        end_offset = writer.next_offset
        if tail_snapshots:
            for offset, entries in [*[*seen.items()][-2:], (end_offset, states.entries)]:
                writer.write_snapshot(offset, snapshot_bytes(entries.values()))
    bases = [0, *seen]
    for base, events in zip(bases, segments, strict=False):
        stamp = events[-1].timestamp * 1_000_000
        os.utime(log_dir / "payments-0" / segment_name(base, "log"), ns=(stamp, stamp))
    partition = load_partition_dir(log_dir / "payments-0")
    return Written(partition=partition, end_offset=end_offset, states=seen, times=times, ends=ends)
