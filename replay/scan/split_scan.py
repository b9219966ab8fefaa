"""Scans one split: reads a range of a segment, and returns the summary of its producers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from resnap.replay.scan.header_scan import ScanFacts
from resnap.replay.scan.splits import PartStart, Piece, Split, SplitSummary, read_state
from resnap.storage.errors import FormatError, LogDirError, ResnapError, StoreError
from resnap.storage.stores.urls import is_store_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.scan.splits import Anchor, Reading
    from resnap.storage.readers import RangeReader


@dataclass(slots=True)
class SplitScan:
    """A scan in progress, for callers that handle one piece before they take the next.

    Damage and unreadable files are part of the result, not exceptions.
    """

    split: Split
    certain_silence_ms: int
    reading: Reading
    start: PartStart | None = None
    is_empty: bool = False
    """Whether it is known that no batch begins in the split."""
    facts: ScanFacts = field(default_factory=ScanFacts)
    error: ResnapError | None = None

    def pieces(self) -> Iterator[Piece]:
        """Read the split, and yield its summary piece by piece."""
        if self.is_empty:
            return
        try:
            if self.split.anchor is not None:
                yield self._cached_piece(self.split.anchor)
                return
            limits = self.split.range
            with self.reading.sources.open(limits.locator, end=limits.end) as reader:
                yield from _pieces(reader, self.split, self.certain_silence_ms, self.facts, self.reading)
        except (FormatError, LogDirError, StoreError) as caught:
            self.error = (self._change() if isinstance(caught, FormatError) else None) or caught

    def _change(self) -> ResnapError | None:
        """Return an error if the segment of a log dir is not the one that was planned: what was read is no damage."""
        limits = self.split.range
        if not self.split.segment_bytes or is_store_url(limits.locator):
            return None
        try:
            size_bytes = self.reading.sources.facts(limits.locator).size_bytes
        except LogDirError as gone:
            return gone
        has_grown = limits.next_base_offset is None and size_bytes > self.split.segment_bytes
        if size_bytes == self.split.segment_bytes or has_grown:
            return None
        return LogDirError(
            f"{limits.locator}: changed since the log directory was listed",
            hint="the broker has compacted it, or cut the log; run again",
        )

    def summary(self, pieces: tuple[Piece, ...]) -> SplitSummary:
        """Return the result, with ``pieces`` once all were read; without them, if something stopped the scan."""
        return SplitSummary(
            segment_index=self.split.segment_index,
            part=self.split.part,
            facts=self.facts,
            pieces=pieces if self.error is None else (),
            ends_segment=self.split.ends_segment,
            error=self.error,
            start=self.start,
        )

    def _cached_piece(self, anchor: Anchor) -> Piece:
        """Return the state that an earlier replay cached, as the summary of everything below the split."""
        self.facts.server_clock_ms = anchor.last_clock_ms
        self.facts.oldest_server_clock_ms = anchor.oldest_clock_ms
        self.facts.lacks_records = anchor.lacks_records
        rows = np.concatenate([read_state(state) for state in anchor.states])
        return Piece(rows[np.argsort(rows["producer_id"], kind="stable")], anchor.clock_ms)


def _pieces(
    reader: RangeReader, split: Split, certain_silence_ms: int, facts: ScanFacts, reading: Reading
) -> Iterator[Piece]:
    if not reading.kernel or why_no_kernel() is not None:
        from resnap.replay.scan.producer_fold import plain_pieces  # noqa: PLC0415 - loads numba, where it is

        return plain_pieces(reader, split, certain_silence_ms, facts, reading.producers_per_task)
    from resnap.replay.scan.kernel_scan import kernel_pieces  # noqa: PLC0415 - loads numba

    return kernel_pieces(reader, split, certain_silence_ms, facts, reading)


@cache
def why_no_kernel() -> str | None:
    """Return why scans run without machine code in this process, None if they use it; loads numba."""
    try:
        import_module("resnap.replay.scan.kernel_scan")
    except (ImportError, OSError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def first_scan_compiles(reading: Reading) -> bool:
    """Return whether the first scan compiles the machine code that it uses, as in a fresh installation."""
    if not reading.kernel or why_no_kernel() is not None:
        return False
    from resnap.replay.kernel.code_cache import is_empty  # noqa: PLC0415 - loads numba

    return is_empty()
