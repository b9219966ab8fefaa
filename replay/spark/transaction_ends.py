"""Whether the transactions of a segment were committed, as its markers and those of the segments after it say.

A transaction lasts from its first batch to the next marker of its producer; it is open if the log has no such marker.
Only what has begun and not ended in the segment is looked for in the segments after it, and only until all has ended.

Markers decide, and not transaction indexes: an index lists what a broker has served as aborted, and lacks transactions
if that broker had lost its producer state. A marker that a cleaner has emptied ends nothing: nothing of its transaction
is left.

Source: ``ProducerStateManager.updateProducers``; ``CompletedFetch.isBatchAborted`` in Kafka's clients module.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay.kernel.records import find_batches
from resnap.replay.scan.header_scan import LARGE_BLOCK_BYTES, ScanFacts, control_record, read_blocks
from resnap.storage.errors import FormatError, in_file
from resnap.storage.log.record import COMMIT, UNUSUAL, usual_marker_types
from resnap.storage.log.record_batch import CONTROL, TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from resnap.replay.kernel.summary import Array
    from resnap.replay.scan.header_scan import Block
    from resnap.replay.spark.header_rows import LogSegment
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources

_PLACE: Final = np.dtype([("producer_id", ">i8"), ("offset", ">i8")])
_PLACE_BYTES: Final = "S16"
"""The same as bytes, which ascend as the numbers do."""
_OPEN: Final = -1


class TransactionEnds:
    """Says of batches whether they are committed; reads ahead when the first transactional one comes."""

    def __init__(self, segment: LogSegment, sources: Sources, *, skips_damage: bool) -> None:
        self._segment = segment
        self._sources = sources
        self._skips_damage = skips_damage
        self._is_read = False
        self._places = np.zeros(0, dtype=_PLACE_BYTES)
        """The places of the markers, ascending."""
        self._ends = np.zeros(0, dtype=np.int64)
        """``COMMIT`` or ``ABORT``, of the same markers."""
        self.damage: list[FormatError] = []
        """What ended the search for markers: transactions that may end behind it count as open."""

    def committed(self, block: Block) -> npt.NDArray[np.int64]:
        """Return for each batch of the next ``block`` 1 if it is committed, 0 if it is aborted, -1 if neither yet.

        Raises:
            FormatError: damage below the last marker that is looked for.
            LogDirError, StoreError: a segment cannot be read.

        """
        headers, found = block.headers, np.full(len(block.headers), COMMIT)
        concerned = np.flatnonzero(_is_transactional(headers))
        if len(concerned):
            if not self._is_read:
                self._read_markers(block.at + int(block.positions[concerned[0]]))
            at = np.searchsorted(self._places, _places(headers[concerned]))
            ends = np.append(self._ends, _OPEN)[at]
            producer_ids = np.append(self._places.view(_PLACE)["producer_id"], -1)[at]
            found[concerned] = np.where(producer_ids == headers["producer_id"][concerned], ends, _OPEN)
        return found

    def _read_markers(self, start: int) -> None:
        """Read the markers from the position ``start`` of the segment on, and those of transactions open at its end."""
        waiting: set[int] = set()
        places, ends = [self._places], [self._ends]
        try:
            for reader, block, others in self._blocks(start, waiting):
                headers, controls, types = _transactional(reader, block, others)
                is_marker = types != _OPEN
                places.append(_places(headers[is_marker]))
                ends.append(types[is_marker])
                counts = is_marker | ~controls
                last = dict(zip(headers["producer_id"][counts].tolist(), is_marker[counts].tolist(), strict=True))
                waiting.difference_update(last)
                waiting.update(producer_id for producer_id, has_ended in last.items() if not has_ended)
        except FormatError as error:
            if not self._skips_damage:
                raise
            self.damage.append(error)
        every = np.concatenate(places)
        order = every.argsort()
        self._places, self._ends, self._is_read = every[order], np.concatenate(ends)[order], True

    def _blocks(self, start: int, waiting: set[int]) -> Iterator[tuple[RangeReader, Block, set[int] | None]]:
        """Yield the blocks of the segment, with None, and then those after it while producers are ``waiting``."""
        own, end = self._segment.range, self._segment.range.next_base_offset
        with self._sources.open(own.locator) as reader:
            for block in read_blocks(reader, replace(own, start=start), ScanFacts(), find_batches, LARGE_BLOCK_BYTES):
                yield reader, block, None
        for after in self._segment.log:
            if waiting and after.base_offset == end:
                end = after.next_base_offset
                with self._sources.open(after.locator) as reader:
                    for block in read_blocks(reader, after, ScanFacts(), find_batches):
                        yield reader, block, waiting
                        if not waiting:
                            return


def _transactional(
    reader: RangeReader, block: Block, only_ends_of: set[int] | None
) -> tuple[Array, npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return the headers of transactional batches, which are control batches, and the types of those that are markers.

    With ``only_ends_of`` these are the control batches of these producers alone.
    """
    headers = block.headers
    controls = (headers["attributes"] & CONTROL != 0) & (headers["producer_id"] >= 0)
    if only_ends_of is None:
        wanted = np.flatnonzero(controls | _is_transactional(headers))
    else:
        wanted = np.flatnonzero(controls & np.isin(headers["producer_id"], list(only_ends_of)))
    controls = controls[wanted]
    types = np.full(len(wanted), _OPEN)
    types[controls] = _marker_types(reader, block, wanted[controls])
    return headers[wanted], controls, types


def _marker_types(reader: RangeReader, block: Block, controls: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    types = usual_marker_types(block.data, block.positions[controls])
    for index in np.flatnonzero(types == UNUSUAL).tolist():
        with in_file(reader.locator):
            record = control_record(reader, block, int(controls[index]))
        types[index] = record.type if record is not None and record.is_marker else _OPEN
    return types


def _is_transactional(headers: Array) -> npt.NDArray[np.bool_]:
    """Return which are data batches of transactions."""
    attributes = headers["attributes"]
    found: npt.NDArray[np.bool_] = (attributes & TRANSACTIONAL != 0) & (attributes & CONTROL == 0)
    return found & (headers["producer_id"] >= 0)


def _places(headers: Array) -> npt.NDArray[np.bytes_]:
    places = np.empty(len(headers), dtype=_PLACE)
    places["producer_id"], places["offset"] = headers["producer_id"], headers["base_offset"]
    return places.view(_PLACE_BYTES)
