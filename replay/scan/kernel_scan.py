"""Scans a split by machine code, at the speed of memory; ``producer_fold`` gives the same result without it.

The compiled loop (``replay.kernel.hop``) runs until something needs Python: more room, the high watermark, or an
unusual batch. The plain path accepts that batch or raises an error, and the loop continues after it. So errors have one
source, and rare cases are written once, in readable code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay.kernel import hop
from resnap.replay.kernel.machine import HAS_CRC32C
from resnap.replay.scan.header_scan import begin, finish, next_block
from resnap.replay.scan.producer_fold import ProducerFold, divide, events_of, plain_pieces
from resnap.storage.errors import FormatError, in_file
from resnap.storage.readers import FileReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.kernel.summary import Array
    from resnap.replay.scan.header_scan import ScanFacts
    from resnap.replay.scan.splits import Piece, Reading, Split
    from resnap.storage.readers import RangeReader

BLOCK_BYTES: Final = 256 << 10
"""Read at once from a file: small enough to stay in the processor's second-level cache."""
STREAM_BLOCK_BYTES: Final = 1 << 20
"""Read at once from a source without a file descriptor."""
CACHED_FROM_BYTES: Final = 4 << 10
"""Mean batch size from which it is cheaper to read headers out of the page cache than to copy everything."""
LEADER_EPOCHS_AT_ONCE: Final = 64


def kernel_pieces(
    reader: RangeReader, split: Split, certain_silence_ms: int, facts: ScanFacts, reading: Reading
) -> Iterator[Piece]:
    """Yield the summary of ``split`` in pieces, as ``plain_pieces`` does.

    Raises:
        FormatError: damage, with file and position.

    """
    if split.range.verify_crc and not HAS_CRC32C:
        yield from plain_pieces(reader, split, certain_silence_ms, facts, reading.producers_per_task)
        return
    with in_file(split.range.locator):
        yield from _KernelScan(reader, split, certain_silence_ms, facts, reading).run()


class _KernelScan:
    def __init__(
        self, reader: RangeReader, split: Split, certain_silence_ms: int, facts: ScanFacts, reading: Reading
    ) -> None:
        self._reader = reader
        self._split = split
        self._facts = facts
        self._fold = ProducerFold(certain_silence_ms)
        self._is_above = False
        self._most_producers = reading.producers_per_task
        self._state = _new_state(reader, split, reading)
        self._descriptor: int = self._state["descriptor"][0]
        self._block = np.empty(BLOCK_BYTES, dtype=np.uint8)
        self._seen_leader_epochs: list[tuple[int, int]] = []
        self._leader_epochs = np.zeros(LEADER_EPOCHS_AT_ONCE, dtype=hop.LEADER_EPOCH_DTYPE)
        self._state["leader_epochs_at"] = self._leader_epochs.ctypes.data
        self._state["leader_epoch_room"] = LEADER_EPOCHS_AT_ONCE
        begin(split.range, facts)
        self._load()

    def run(self) -> Iterator[Piece]:
        try:
            while (reason := self._go_on()) != hop.END:
                if reason == hop.FULL:
                    yield from self._make_room()
                elif reason == hop.STOPPED:
                    yield self._pass_high_watermark()
                elif reason == hop.FAILED:
                    self._reader.read(int(self._state["position"][0]), 1)  # raises what the system says
                elif reason in (hop.ODD, hop.LEGACY):
                    taken = self._take_plainly(whole_block=reason == hop.LEGACY)
                    if taken is None:
                        break
                    yield from taken
        finally:
            self._save()
        finish(self._split.range, self._facts)
        if self._split.high_watermark is not None and not self._is_above:
            yield self._pass_high_watermark()
        yield self._fold.finish(self._facts.clock_since_event_ms)._replace(above=self._is_above)

    def _make_room(self) -> Iterator[Piece]:
        """Emit the rows so far instead of growing without limit."""
        if len(self._fold) < self._most_producers:
            self._fold.make_room()
            return
        yield self._fold.finish()._replace(above=self._is_above)

    def _go_on(self) -> int:
        """Run the compiled loop; return why it stopped."""
        self._save()
        if self._descriptor >= 0:
            return int(hop.fold_file(self._block.ctypes.data, len(self._block), self._state.ctypes.data, self._fold.at))
        at, end = int(self._state["position"][0]), int(self._state["end"][0])
        if at >= end:
            return hop.END
        data = self._reader.read(at, min(STREAM_BLOCK_BYTES, end - at))
        self._state["bytes_read"] += len(data)
        block = np.frombuffer(data, dtype=np.uint8)
        reason = int(hop.fold_block(block.ctypes.data, len(data), at, self._state.ctypes.data, self._fold.at))
        is_stuck = reason == hop.MORE and self._state["position"][0] == at
        return hop.ODD if is_stuck else reason

    def _take_plainly(self, *, whole_block: bool) -> list[Piece] | None:
        """Read the next batch, or all of the next block, by the plain path; return None if there was none.

        If the high watermark was passed, return the piece below it.
        """
        self._save()
        try:
            block = next_block(self._reader, self._split.range, self._facts, most=None if whole_block else 1)
            events = None if block is None else events_of(self._reader, block, self._facts)
        except FormatError:
            if whole_block:
                return self._take_plainly(whole_block=False)
            raise
        self._load()
        if events is None:
            return None
        lower, upper = divide(events, None if self._is_above else self._split.high_watermark)
        self._fold.append(lower)
        if not len(upper):
            return []
        below = self._pass_high_watermark()
        self._fold.append(upper)
        return [below]

    def _pass_high_watermark(self) -> Piece:
        below = self._fold.finish()
        self._state["stop_offset"] = hop.NEVER
        self._is_above = True
        return below

    def _save(self) -> None:
        """Copy the compiled loop's state into the facts."""
        state, facts = self._state[0], self._facts
        for name in _SAME_IN_BOTH:
            setattr(facts, name, int(state[name]))
        facts.end_position = int(state["position"])
        facts.lacks_records = bool(state["lacks_records"])
        oldest_ms = int(state["oldest_server_clock_ms"])
        facts.oldest_server_clock_ms = None if facts.server_clock_ms < 0 else oldest_ms
        fresh = self._leader_epochs[: int(state["leader_epochs"])].tolist()
        self._seen_leader_epochs += fresh
        facts.leader_epochs = [*self._seen_leader_epochs]
        state["leader_epochs"] = 0

    def _load(self) -> None:
        """Copy the plain path's facts into the compiled loop's state."""
        state, facts = self._state[0], self._facts
        for name in _SAME_IN_BOTH:
            state[name] = getattr(facts, name)
        state["position"] = facts.end_position
        state["lacks_records"] = facts.lacks_records
        oldest_ms = facts.oldest_server_clock_ms
        state["oldest_server_clock_ms"] = hop.NEVER if oldest_ms is None else oldest_ms
        self._seen_leader_epochs = [*facts.leader_epochs]
        state["leader_epoch"] = facts.leader_epochs[-1][0] if facts.leader_epochs else -1


_SAME_IN_BOTH: Final = (
    "batches", "bytes_read", "end_offset", "max_timestamp_ms", "server_clock_ms", "clock_since_event_ms",
)  # fmt: skip


def _new_state(reader: RangeReader, split: Split, reading: Reading) -> Array:
    """Return an initial state record for the compiled loop."""
    limits = split.range
    made = np.zeros(1, dtype=hop.SCAN_DTYPE)
    made["start"] = limits.start
    made["end"] = reader.size_bytes if limits.end is None else limits.end
    made["next_base_offset"] = hop.NEVER if limits.next_base_offset is None else limits.next_base_offset
    made["stop_offset"] = hop.NEVER if split.high_watermark is None else split.high_watermark
    made["verify_crc"] = limits.verify_crc
    made["descriptor"] = reader.descriptor if isinstance(reader, FileReader) else -1
    made["header_from"] = reading.header_read_bytes
    made["cached_from"] = min(CACHED_FROM_BYTES, reading.header_read_bytes)
    return made
