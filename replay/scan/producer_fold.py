"""The plain path of a scan: makes producer events of batch headers, and builds summaries of them event by event.

Batch headers become producer events, as columns: one row per data batch or marker of a producer. The rows of a block
are what ``producer_state`` calls events. The compiled scan (``kernel_scan``) must equal this one; where compiled header
reading does not work, a whole split is scanned here, block by block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from resnap.replay.kernel import fold as kernel
from resnap.replay.kernel.summary import EVENT_DTYPE, NONE, SUMMARY_DTYPE
from resnap.replay.scan.header_scan import control_record, last_sequences, read_blocks
from resnap.replay.scan.splits import Piece
from resnap.storage.errors import FormatError, in_file
from resnap.storage.log.record import ABORT, COMMIT
from resnap.storage.log.record_batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.kernel.summary import Array
    from resnap.replay.scan.header_scan import Block, ScanFacts, SegmentRange
    from resnap.replay.scan.splits import Split
    from resnap.storage.readers import RangeReader

ROWS_AT_FIRST: Final = 1024
CLOCKS_AT_FIRST: Final = 64
_CACHE_LINE_BYTES: Final = 64


class FoldArrays:
    """The arrays that compiled code writes summaries into (``replay.kernel.fold``), and their growth."""

    def __init__(self, certain_silence_ms: int) -> None:
        self.state = np.zeros(1, dtype=kernel.FOLD_DTYPE)
        self.state["clock_ms"] = NONE
        self.at = int(self.state.ctypes.data)
        """Address of the record that machine code works on."""
        self.state["certain_silence_ms"] = certain_silence_ms
        self._rows = new_rows(ROWS_AT_FIRST)
        self._clocks = np.zeros(CLOCKS_AT_FIRST, dtype=kernel.CLOCK_DTYPE)
        self._hold()

    @property
    def clock_ms(self) -> int:
        """Newest server clock; -1 if there is none."""
        return int(self.state["clock_ms"][0])

    def __len__(self) -> int:
        return int(self.state["rows"][0])

    def make_room(self, rows: int = 1) -> None:
        """Make room for so many rows, and a clock."""
        count, room = len(self), len(self._rows)
        while room < count + rows:
            room *= 4  # each time all rows are entered again; memory counts only once it is written to
        if room > len(self._rows):
            larger = new_rows(room)
            _words(larger)[:count] = _words(self._rows)[:count]
            self._rows = larger
            self._hold()
        if int(self.state["clocks"][0]) == len(self._clocks):
            self._clocks = np.concatenate((self._clocks, np.zeros_like(self._clocks)))
            self._point_at("clock", self._clocks)

    def clear(self) -> None:
        """Forget all rows and clocks, and keep the memory: new memory costs more than what is written to it."""
        self.state["rows"] = self.state["clocks"] = self.state["events"] = 0
        self.state["clock_ms"] = NONE
        self._slots.view(np.int64).fill(kernel.FREE)

    def _hold(self) -> None:
        """Give compiled code the addresses of the arrays, and enter the rows again."""
        self._slots = np.full(2 * len(self._rows), kernel.FREE, dtype=np.int64).view(kernel.SLOT_DTYPE)
        self._point_at("row", self._rows)
        self._point_at("slot", self._slots)
        self._point_at("clock", self._clocks)
        kernel.enter_rows(self.at)

    def _point_at(self, name: str, array: Array) -> None:
        self.state[f"{name}s_at"] = array.ctypes.data
        self.state[f"{name}_room"] = len(array)


class ProducerFold(FoldArrays):
    """The summary of a run of events, which must come in offset order."""

    def append(self, events: Array) -> None:
        """Append ``events`` (``EVENT_DTYPE``)."""
        events = np.ascontiguousarray(events)
        while len(events):
            done = kernel.append_events(events.ctypes.data, len(events), self.at)
            events = events[done:]
            if len(events):
                self.make_room()

    def finish(self, trailing_ms: int = NONE) -> Piece:
        """Return the summary, with the newest clock after the last event; what is appended then begins a new one."""
        kernel.settle_clocks(self.at, trailing_ms)
        rows = self._rows[: len(self)]
        # Indexing by an array is several times slower than ``take``, and so is sorting a column where it is.
        in_order = _words(rows).take(order_of(np.ascontiguousarray(rows["producer_id"])), axis=0)
        piece = Piece(in_order.view(SUMMARY_DTYPE).reshape(-1), max(self.clock_ms, trailing_ms))
        self.clear()
        return piece


def order_of(producer_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return what ``argsort(kind="stable")`` does, by 16 bits at a time, which takes a sixth of it.

    Producer ids are close together, so that two times are usual.
    """
    if not len(producer_ids):
        return np.zeros(0, np.int64)
    above = producer_ids.astype(np.uint64) - producer_ids.min().astype(np.uint64)  # modulo 2^64
    order: npt.NDArray[np.int64] = above.astype(np.uint16).argsort(kind="stable")
    for shift in range(16, int(above.max()).bit_length(), 16):
        order = order[(above >> np.uint64(shift)).astype(np.uint16)[order].argsort(kind="stable")]
    return order


def _words(rows: Array) -> npt.NDArray[np.int64]:
    """Return ``rows`` as words, one row per line, which copy ten times as fast as fields."""
    return rows.view(np.int64).reshape(len(rows), SUMMARY_DTYPE.itemsize // 8)


def new_rows(count: int) -> Array:
    """Return zeroed rows, aligned to cache lines; each row takes two."""
    memory = np.zeros(count * SUMMARY_DTYPE.itemsize + _CACHE_LINE_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE_BYTES
    return memory[start : start + count * SUMMARY_DTYPE.itemsize].view(SUMMARY_DTYPE)


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
        facts.server_clock_ms = int(readings[-1])
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


def plain_pieces(
    reader: RangeReader, split: Split, certain_silence_ms: int, facts: ScanFacts, most_producers: int
) -> Iterator[Piece]:
    """Yield the summary of ``split`` in pieces, each of some more than ``most_producers`` at most.

    If the high watermark divides the split, there is at least one piece below it and one above. ``facts`` are filled
    in.

    Raises:
        FormatError: damage, with file and position; pieces that were yielded before must be discarded.

    """
    fold, is_above = ProducerFold(certain_silence_ms), False
    for events in scan(reader, split.range, facts):
        lower, upper = divide(events, None if is_above else split.high_watermark)
        fold.append(lower)
        if len(upper):
            yield fold.finish()
            is_above = True
            fold.append(upper)
        if len(fold) >= most_producers:
            yield fold.finish()._replace(above=is_above)
    if split.high_watermark is not None and not is_above:
        yield fold.finish()
        is_above = True
    yield fold.finish(facts.clock_since_event_ms)._replace(above=is_above)


def divide(events: Array, high_watermark: int | None) -> tuple[Array, Array]:
    """Return the events that begin below the high watermark, and the other events."""
    if high_watermark is None:
        return events, events[:0]
    at = int(np.searchsorted(events["offset"], high_watermark))
    return events[:at], events[at:]
