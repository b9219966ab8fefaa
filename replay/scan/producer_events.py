"""Turns batch headers into producer events, as columns: one row per data batch or marker of a producer.

The rows of a block are what ``producer_state`` calls events. This is the plain path of a scan; the compiled one
(``kernel_scan``) must equal it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from resnap.replay.kernel.summary import EVENT_DTYPE
from resnap.replay.scan.header_scan import control_record, last_sequences, read_blocks
from resnap.storage.errors import FormatError, in_file
from resnap.storage.log.control_record import ABORT, COMMIT
from resnap.storage.log.record_batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.kernel.summary import Array
    from resnap.replay.scan.header_scan import Block, ScanFacts, SegmentRange
    from resnap.storage.readers import RangeReader


def scan(reader: RangeReader, segment: SegmentRange, facts: ScanFacts) -> Iterator[Array]:
    """Yield the events of ``segment`` in offset order, block by block; ``facts`` is complete when the scan ends.

    Raises:
        FormatError: damage, with file and position; what came before it has been yielded.

    """
    with in_file(segment.locator):
        for block in read_blocks(reader, segment, facts):
            yield events_of(reader, block, facts)


def events_of(reader: RangeReader, block: Block, facts: ScanFacts) -> Array:
    """Return the events of ``block``, and record its server clocks in ``facts``.

    Raises:
        FormatError: a control batch is damaged.

    """
    headers = block.headers
    is_control = (headers["attributes"] & CONTROL) != 0
    events = _data_events(headers)
    events["clock_ms"] = np.where((headers["attributes"] & LOG_APPEND_TIME) != 0, headers["max_timestamp"], -1)
    keep = (headers["producer_id"] >= 0) & ~is_control
    # Batches without a producer change nothing here, but are checked too: a flipped bit may have hidden the producer.
    for i in np.flatnonzero(is_control):
        marker = _marker(reader, block, int(i))
        if marker is not None:
            events["coordinator_epoch"][i], events["timestamp"][i] = marker
            events["clock_ms"][i] = marker[1]
            keep[i] = True
    events["is_marker"] = is_control
    np.maximum(events["clock_ms"], -1, out=events["clock_ms"])
    return _with_clocks(events, keep, facts)


def _with_clocks(events: Array, keep: npt.NDArray[np.bool_], facts: ScanFacts) -> Array:
    """Return the events to ``keep``, each with the newest clock since the previous one, even from an earlier block."""
    clocks = np.append(events["clock_ms"], -1)
    clocks[0] = max(clocks[0], facts.clock_since_event_ms)
    _note_clocks(events["clock_ms"], facts)
    kept: Array = events[keep]
    ends = np.flatnonzero(keep) + 1
    newest = np.maximum.reduceat(clocks, np.concatenate(([0], ends)))
    kept["clock_ms"] = newest[:-1]
    facts.clock_since_event_ms = int(newest[-1])
    return kept


def _note_clocks(clock_ms: npt.NDArray[np.int64], facts: ScanFacts) -> None:
    readings = clock_ms[clock_ms >= 0]
    if len(readings):
        facts.server_clock_ms = max(facts.server_clock_ms, int(readings.max()))
        oldest = int(readings.min())
        known = facts.oldest_server_clock_ms
        facts.oldest_server_clock_ms = oldest if known is None else min(known, oldest)


def _data_events(headers: Array) -> Array:
    events = np.zeros(len(headers), dtype=EVENT_DTYPE)
    events["producer_id"] = headers["producer_id"]
    events["offset"] = headers["base_offset"]
    events["last_offset"] = headers["base_offset"] + headers["last_offset_delta"].astype(np.int64)
    events["timestamp"] = headers["max_timestamp"]
    events["producer_epoch"] = headers["producer_epoch"]
    events["base_sequence"] = headers["base_sequence"]
    events["last_sequence"] = last_sequences(headers)
    events["coordinator_epoch"] = -1
    events["is_transactional"] = (headers["attributes"] & TRANSACTIONAL) != 0
    return events


def _marker(reader: RangeReader, block: Block, index: int) -> tuple[int, int] | None:
    """Return (coordinator epoch, timestamp) of a marker; None for an emptied or a KRaft control batch."""
    record = control_record(reader, block, index)
    if record is None or block.headers["producer_id"][index] < 0:
        return None
    if record.type not in (ABORT, COMMIT):
        raise FormatError(
            "control record type of a producer", position=block.at + int(block.positions[index]),
            expected="0 (abort) or 1 (commit)", found=record.type,
        )  # fmt: skip
    return record.coordinator_epoch, record.timestamp
