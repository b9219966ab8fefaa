"""Histories of producers as Hypothesis draws them, and their bytes.

A history is a list of events without offsets; these come about when it is written. Draws are small moves, which a walk
over the producers turns into events that hang together: sequences go on, epochs mostly rise, transactions are open or
not. So most of what is drawn could have happened, and what Hypothesis shrinks stays readable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from hypothesis import strategies as st

from resnap.storage.log.record import write_marker_batch
from resnap.storage.log.record_batch import MAX_SEQUENCE, NO_TIMESTAMP, wrap_sequence
from tests.logs.batch_builder import write_data_batch, write_emptied_batch, write_message_set
from tests.logs.stored_frames import GZIP, NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.logs.log_writer import PartitionWriter

START_MS: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000
VALUE: Final = b"v"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEvent:
    """A data batch of an idempotent or transactional producer."""

    producer_id: int
    producer_epoch: int = 0
    base_sequence: int = 0
    records: int = 1
    timestamp: int = START_MS
    transactional: bool = False
    append_time: bool = False
    """Whether ``timestamp`` is the broker's (LogAppendTime)."""
    emptied: bool = False
    """Whether compaction has taken its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerEvent:
    """The end of a transaction."""

    producer_id: int
    producer_epoch: int = 0
    coordinator_epoch: int = 0
    timestamp: int = START_MS
    commit: bool = True
    records: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyControlEvent:
    """A marker whose record compaction has taken."""

    producer_id: int
    producer_epoch: int = 0
    timestamp: int = START_MS
    records: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainEvent:
    """A batch without producer id."""

    records: int = 1
    timestamp: int = START_MS
    append_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyEvent:
    """Messages of magic 0 or 1, in a wrapper if compressed."""

    magic: int = 1
    records: int = 1
    timestamp: int = START_MS
    compressed: bool = False


Event: TypeAlias = DataEvent | MarkerEvent | EmptyControlEvent | PlainEvent | LegacyEvent


def encode_event(event: Event, offset: int, leader_epoch: int = 0) -> bytes:
    """Return the bytes of ``event`` at ``offset``."""
    match event:
        case DataEvent(emptied=True):
            return write_emptied_batch(
                offset=offset, records=event.records, timestamp=event.timestamp, producer_id=event.producer_id,
                producer_epoch=event.producer_epoch, base_sequence=event.base_sequence,
                transactional=event.transactional, append_time=event.append_time, leader_epoch=leader_epoch,
            )  # fmt: skip
        case DataEvent():
            return write_data_batch(
                offset=offset, values=[VALUE] * event.records, timestamps=event.timestamp,
                producer_id=event.producer_id, producer_epoch=event.producer_epoch, base_sequence=event.base_sequence,
                transactional=event.transactional, append_time=event.timestamp if event.append_time else None,
                leader_epoch=leader_epoch,
            )  # fmt: skip
        case MarkerEvent():
            return write_marker_batch(
                offset=offset, producer_id=event.producer_id, producer_epoch=event.producer_epoch,
                coordinator_epoch=event.coordinator_epoch, timestamp=event.timestamp, commit=event.commit,
                leader_epoch=leader_epoch,
            )  # fmt: skip
        case EmptyControlEvent():
            return write_emptied_batch(
                offset=offset, records=1, timestamp=event.timestamp, producer_id=event.producer_id,
                producer_epoch=event.producer_epoch, transactional=True, control=True, leader_epoch=leader_epoch,
            )  # fmt: skip
        case PlainEvent():
            return write_data_batch(
                offset=offset, values=[VALUE] * event.records, timestamps=event.timestamp,
                append_time=event.timestamp if event.append_time else None, leader_epoch=leader_epoch,
            )  # fmt: skip
        case LegacyEvent():
            return write_message_set(
                offset=offset, magic=event.magic, values=[VALUE] * event.records, timestamp=event.timestamp,
                compression=GZIP if event.compressed else NONE,
            )  # fmt: skip


def encode_events(events: Iterable[Event], *, first_offset: int = 0, leader_epoch: int = 0) -> bytes:
    """Return one segment that holds ``events`` from ``first_offset`` on."""
    encoded, offset = [], first_offset
    for event in events:
        encoded.append(encode_event(event, offset, leader_epoch))
        offset += event.records
    return b"".join(encoded)


def write_events(writer: PartitionWriter, events: Iterable[Event]) -> list[int]:
    """Append ``events``; return the offset of the first record of each."""
    offsets = []
    for event in events:
        data = encode_event(event, writer.next_offset, writer.leader_epoch)
        if isinstance(event, LegacyEvent):
            stamp = event.timestamp if event.magic else NO_TIMESTAMP
            last_offset = writer.next_offset + event.records - 1
            offsets.append(writer.append_raw(data, last_offset=last_offset, max_timestamp=stamp))
        else:
            offsets.append(writer.append_batch(data))
    return offsets


def is_legal(events: Iterable[Event]) -> bool:
    """Return whether no producer writes non-transactional data within its open transaction, which Kafka refuses."""
    in_transaction = set()
    for event in events:
        match event:
            case DataEvent(transactional=True):
                in_transaction.add(event.producer_id)
            case DataEvent() if event.producer_id in in_transaction:
                return False
            case MarkerEvent():
                in_transaction.discard(event.producer_id)
    return True


@dataclass(frozen=True, slots=True)
class _Move:
    kind: str
    producer_id: int
    records: int
    advance_ms: int
    clock: str
    epoch_step: int
    sequence: str
    coordinator_epoch: int
    transactional: bool
    flag: bool
    """Commit or abort, append time or not, compressed or not."""


_KINDS = ("data",) * 8 + ("marker",) * 4 + ("emptied", "empty control", "plain", "legacy")
_ODD_CLOCKS = ("none", "far future", "long ago", "back", "zero")


def histories(
    *,
    legal: bool = True,
    producer_ids: Sequence[int] = (1, 2, 3),
    min_events: int = 0,
    max_events: int = 30,
    step_ms: int = 60_000,
    odd_timestamps: bool = True,
    epoch_returns: bool = True,
) -> st.SearchStrategy[list[Event]]:
    """Draw lists of events of a few producers.

    Args:
        legal: False lets non-transactional data stand within an open transaction, where it is drawn so.
        producer_ids: of the producers.
        min_events: at least so many.
        max_events: at most so many.
        step_ms: the clock moves on by up to this much before each event.
        odd_timestamps: whether there are timestamps -1 and 0, far ahead, long past and decreasing.
        epoch_returns: whether an older epoch may write again.

    """
    moves = st.builds(
        _Move,
        kind=st.sampled_from(_KINDS),
        producer_id=st.sampled_from(producer_ids),
        records=st.integers(1, 4),
        advance_ms=st.integers(0, step_ms),
        clock=st.sampled_from(("now",) * 6 + (_ODD_CLOCKS if odd_timestamps else ())),
        epoch_step=st.sampled_from((0, 0, 0, 0, 1, 2) + ((-1, -2) if epoch_returns else ())),
        sequence=st.sampled_from(("next", "next", "next", "zero", "wrap")),
        coordinator_epoch=st.integers(0, 3),
        transactional=st.booleans(),
        flag=st.booleans(),
    )
    return st.lists(moves, min_size=min_events, max_size=max_events).map(lambda drawn: _Walk(legal=legal).walk(drawn))


class _Walk:
    def __init__(self, *, legal: bool) -> None:
        self._legal = legal
        self._now_ms = START_MS
        self._epochs: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        self._in_transaction: set[int] = set()

    def walk(self, moves: Iterable[_Move]) -> list[Event]:
        return [self._event(move) for move in moves]

    def _event(self, move: _Move) -> Event:
        self._now_ms += move.advance_ms
        timestamp = self._timestamp(move.clock)
        append_time = move.flag and timestamp >= 0
        match move.kind:
            case "plain":
                return PlainEvent(records=move.records, timestamp=timestamp, append_time=append_time)
            case "legacy":
                return LegacyEvent(
                    magic=int(move.transactional), records=move.records, timestamp=timestamp, compressed=move.flag
                )
            case "marker":
                return self._marker(move, timestamp)
            case "empty control":
                epoch = self._epochs.get(move.producer_id, 0) + abs(move.epoch_step)
                return EmptyControlEvent(producer_id=move.producer_id, producer_epoch=epoch, timestamp=timestamp)
            case _:
                data = self._data(move, timestamp)
                return replace(data, emptied=move.kind == "emptied", append_time=append_time)

    def _marker(self, move: _Move, timestamp: int) -> MarkerEvent:
        self._in_transaction.discard(move.producer_id)
        return MarkerEvent(
            producer_id=move.producer_id, producer_epoch=self._move_epoch(move), commit=move.flag,
            coordinator_epoch=move.coordinator_epoch, timestamp=timestamp,
        )  # fmt: skip

    def _data(self, move: _Move, timestamp: int) -> DataEvent:
        transactional = move.transactional or (self._legal and move.producer_id in self._in_transaction)
        if transactional:
            self._in_transaction.add(move.producer_id)
        epoch = self._move_epoch(move)
        expected = self._sequences.get(move.producer_id, 0)
        sequence = {"next": expected, "zero": 0, "wrap": MAX_SEQUENCE - 1}[move.sequence]
        self._sequences[move.producer_id] = wrap_sequence(sequence + move.records)
        return DataEvent(
            producer_id=move.producer_id, producer_epoch=epoch, base_sequence=sequence, records=move.records,
            timestamp=timestamp, transactional=transactional,
        )  # fmt: skip

    def _move_epoch(self, move: _Move) -> int:
        before = self._epochs.get(move.producer_id, 0)
        epoch = self._epochs[move.producer_id] = max(0, before + move.epoch_step)
        if epoch != before:
            self._sequences[move.producer_id] = 0
        return epoch

    def _timestamp(self, clock: str) -> int:
        return {
            "now": self._now_ms, "none": NO_TIMESTAMP, "zero": 0, "back": self._now_ms - 3_600_000,
            "far future": self._now_ms + 10 * DAY_MS, "long ago": self._now_ms - 3650 * DAY_MS,
        }[clock]  # fmt: skip
