"""The way from bytes to state that is easy to read: a batch at a time, by the codecs and ``producer_state`` alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resnap.replay.boundary_state import entries_of
from resnap.replay.kernel.summary import EVENT_DTYPE, NONE, empty
from resnap.replay.producer_state import DataBatch, Event, Marker, ServerTime
from resnap.replay.scan.producer_fold import ProducerFold
from resnap.replay.scan.producer_table import ProducerTable
from resnap.replay.scan.splits import Piece
from resnap.storage.log.message_set import read_legacy_message
from resnap.storage.log.producer_snapshot import ProducerEntry
from resnap.storage.log.record import read_control_record
from resnap.storage.log.record_batch import MAGIC_POSITION, MAGIC_V2, RecordBatchHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resnap.replay.kernel.summary import Array

NOTHING = Piece(empty(), -1)


def events_of(segment: bytes) -> Iterator[Event]:
    """Yield what the batches of ``segment`` mean to producers, in order."""
    position = 0
    while position < len(segment):
        if segment[position + MAGIC_POSITION] < MAGIC_V2:
            position += read_legacy_message(segment, position).size_bytes
            continue
        header = read_header(segment, position)
        event = _event(header, segment[position : position + header.size_bytes])
        if event is not None:
            yield event
        position += header.size_bytes


def _event(header: RecordBatchHeader, batch: bytes) -> Event | None:
    if header.is_control and header.has_producer:
        record = read_control_record(batch, header)
        if record is not None:
            return Marker(
                producer_id=header.producer_id, producer_epoch=header.producer_epoch, offset=header.base_offset,
                coordinator_epoch=record.coordinator_epoch, timestamp=record.timestamp, commit=record.type == 1,
            )  # fmt: skip
    elif header.has_producer:
        return DataBatch(
            producer_id=header.producer_id, producer_epoch=header.producer_epoch, base_sequence=header.base_sequence,
            last_sequence=header.last_sequence, base_offset=header.base_offset, last_offset=header.last_offset,
            timestamp=header.max_timestamp, transactional=header.is_transactional,
            append_time=header.is_log_append_time,
        )  # fmt: skip
    return ServerTime(header.max_timestamp) if header.is_log_append_time else None


def columns(events: Iterable[Event]) -> tuple[Array, int]:
    """Return ``events`` as ``EVENT_DTYPE``, and the newest server clock after the last of them."""
    rows, clock_ms = [], -1
    for event in events:
        match event:
            case ServerTime():
                clock_ms = max(clock_ms, event.timestamp)
            case Marker():
                rows.append((
                    event.producer_id, event.offset, event.offset, event.timestamp, event.producer_epoch, -1, -1,
                    event.coordinator_epoch, max(clock_ms, event.timestamp), True, True,
                ))  # fmt: skip
                clock_ms = -1
            case DataBatch():
                own_ms = event.timestamp if event.append_time else -1
                rows.append((
                    event.producer_id, event.base_offset, event.last_offset, event.timestamp, event.producer_epoch,
                    event.base_sequence, event.last_sequence, -1, max(clock_ms, own_ms), False, event.transactional,
                ))  # fmt: skip
                clock_ms = -1
    return np.array(rows, dtype=EVENT_DTYPE), clock_ms


def piece_of(events: Sequence[Event], certain_silence_ms: int) -> Piece:
    """Return the summary of ``events`` and their newest server clock."""
    rows, trailing_ms = columns(events)
    fold = ProducerFold(certain_silence_ms)
    fold.append(rows)
    return fold.finish(trailing_ms)


def join(left: Piece, right: Piece, certain_silence_ms: int) -> Piece:
    """Return the piece that is ``left`` followed by ``right``."""
    table = ProducerTable(certain_silence_ms)
    table.append(left)
    table.append(right)
    return Piece(table.rows(), table.clock_ms)


def entries_in(state: Array) -> dict[int, ProducerEntry]:
    """Return the entries of a summary that has nothing before it, by producer id."""
    return as_entries(entries_of(state))


def as_entries(entries: Array) -> dict[int, ProducerEntry]:
    """Return an array of ``producer_snapshot.ENTRY_DTYPE`` by producer id."""
    return {int(row["producer_id"]): ProducerEntry(*(int(value) for value in row)) for row in entries}


def illegal_in(state: Array) -> dict[int, int]:
    """Return the offset of each producer's first batch that Kafka would refuse."""
    rows = state[state["illegal_offset"] != NONE]
    return dict(zip(rows["producer_id"].tolist(), rows["illegal_offset"].tolist(), strict=True))
