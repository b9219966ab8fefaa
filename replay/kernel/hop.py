"""The scan, compiled: hops from header to header over a block, and from block to block over a file.

It does what ``header_scan``, ``producer_fold`` and ``fold.append_events`` do together, and stops before the first
unusual batch: the plain path accepts that one, or raises an error.

The mean size of recent batches (``SCAN_DTYPE.mean_bytes``) decides how a file is read: header by header if batches are
large; if they are smaller, header by header as long as these are in the page cache (``RWF_NOWAIT``), and else in
blocks, which also make the system read ahead. The file is never memory-mapped: a broker that truncates it would kill
this process.
"""

# ruff: noqa: PLR0917 - machine code knows no keyword-only arguments

from __future__ import annotations

from typing import Final

from resnap.replay.kernel.batch import HEADER_BYTES, check, check_crc, header_of, note, take_control, take_data
from resnap.replay.kernel.compiling import compiled, inlined
from resnap.replay.kernel.fold import record_of_fold
from resnap.replay.kernel.machine import RWF_NOWAIT, Record, pread, preadv2
from resnap.replay.kernel.stretch import END, FAILED, MORE, ODD, PAUSED, TAKEN, scan_at
from resnap.storage.log.record_batch import CONTROL

COST_AT_ONCE: Final = 4096
"""In reads of a header, of which a block counts as several."""
_COST_OF_BLOCK: Final = 16
_FIRST_BYTES: Final = 4096
"""The first read of a stretch, which says how large batches are: more would have the system read ahead in vain."""
_MARKER_BYTES: Final = 78
"""Size of a control batch as every coordinator writes it."""
_HEADER_READ_BYTES: Final = _MARKER_BYTES + HEADER_BYTES
"""Bytes read for a header: enough for a whole marker and the header after it, without another call."""
IN_BLOCKS: Final = 0
IF_CACHED: Final = 1
BY_HEADER: Final = 2


@compiled
def fold_block(address: int, length: int, at: int, stretch_at: int, fold_at: int) -> int:
    """Fold the batches in the block at ``address``, whose file position is ``at``; return why it stopped."""
    return _hop(address, 0, length, at, scan_at(stretch_at, 0), record_of_fold(fold_at, 0))


@compiled
def fold_file(address: int, room: int, stretch_at: int, fold_at: int) -> int:
    """Fold the batches of the file ``descriptor``, read to ``address``; return why it stopped."""
    state, fold = scan_at(stretch_at, 0), record_of_fold(fold_at, 0)
    way = _way(state)
    cost = 0
    while state.position < state.end:
        if cost > COST_AT_ONCE:
            return PAUSED
        position, batches = state.position, state.batches
        length = min(_length(state, way, room), state.end - position)
        if way == IF_CACHED:
            state.iovec_base, state.iovec_length = address, length
            got = preadv2(state.descriptor, stretch_at, 1, position, RWF_NOWAIT)
            if got < length:
                way = IN_BLOCKS
                continue
        else:
            got = pread(state.descriptor, address, length, position)
            if got < 0:
                return FAILED
        cost += _COST_OF_BLOCK if way == IN_BLOCKS else 1
        state.bytes_read += got
        reason = _hop(address, room, got, position, state, fold)
        passed = state.batches - batches
        if reason != MORE:
            return reason
        if not passed:
            return ODD
        _note_size(state, (state.position - position) // passed, way)
        way = _way(state)
    return END


@inlined
def _way(scan: Record) -> int:
    if scan.verify_crc or scan.mean_bytes < scan.cached_from:
        return IN_BLOCKS
    return IF_CACHED if scan.mean_bytes < scan.header_from else BY_HEADER


@inlined
def _length(scan: Record, way: int, room: int) -> int:
    if way != IN_BLOCKS:
        return min(room, _HEADER_READ_BYTES)
    return room if scan.mean_bytes else min(room, _FIRST_BYTES)


@inlined
def _note_size(scan: Record, mean_bytes: int, way: int) -> None:
    """Update the mean batch size by a block's mean, or by a single batch with a weight of one in eight."""
    scan.mean_bytes = mean_bytes if way == IN_BLOCKS else scan.mean_bytes + (mean_bytes - scan.mean_bytes) // 8


@inlined
def _hop(address: int, room: int, filled: int, at: int, scan: Record, fold: Record) -> int:
    """Fold the batches in the ``filled`` bytes at ``address``; more may be read there, up to ``room`` bytes."""
    position = scan.position - at
    while filled - position >= HEADER_BYTES:
        batch = address + position
        header = header_of(batch)
        reason = check(header, scan, fold)
        if reason != TAKEN:
            return reason
        is_whole = position + header.size <= filled
        if header.attributes & CONTROL:
            if not is_whole:
                if _read_again(scan, address, room, header.size) < header.size:
                    return MORE
                at, position, filled, batch = scan.position, 0, header.size, address
            reason = take_control(batch, header, scan, fold)
        else:
            if scan.verify_crc:
                reason = check_crc(batch, header.size, scan, address, room, filled - position)
                filled = filled if is_whole else 0
            if reason == TAKEN:
                reason = take_data(header, scan, fold)
        if reason != TAKEN:
            return reason
        note(header, scan)
        position += header.size
    return MORE


@inlined
def _read_again(scan: Record, address: int, room: int, size: int) -> int:
    """Read ``size`` bytes at the current position; return how many were read, none if that fails."""
    if scan.descriptor < 0 or size > room:
        return 0
    got: int = pread(scan.descriptor, address, size, scan.position)
    scan.bytes_read += max(got, 0)
    return got
