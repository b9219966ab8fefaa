"""The state of a compiled scan in its range of a segment, and the reasons why it returns."""

from __future__ import annotations

from typing import Final

import numpy as np

from resnap.replay.kernel.machine import record_at

SCAN_DTYPE: Final = np.dtype(
    [
        # an iovec, for the system
        ("iovec_base", "i8"), ("iovec_length", "i8"),
        # the stretch: bytes, offsets, and the offset before which to stop
        ("start", "i8"), ("end", "i8"), ("next_base_offset", "i8"), ("stop_offset", "i8"), ("verify_crc", "i8"),
        # how to read it
        ("descriptor", "i8"), ("cached_from", "i8"), ("header_from", "i8"), ("mean_bytes", "i8"),
        # what has been seen (``ScanFacts``)
        ("position", "i8"), ("end_offset", "i8"), ("batches", "i8"), ("bytes_read", "i8"), ("lacks_records", "i8"),
        ("max_timestamp_ms", "i8"), ("server_clock_ms", "i8"), ("oldest_server_clock_ms", "i8"),
        ("clock_since_event_ms", "i8"), ("leader_epoch", "i8"), ("leader_epochs", "i8"),
        # where the leader epochs are noted, and how many fit in; who sets this keeps them alive
        ("leader_epochs_at", "i8"), ("leader_epoch_room", "i8"),
    ]
)  # fmt: skip
"""One record, which begins with what ``preadv2`` takes. ``cached_from`` and ``header_from`` are mean sizes of batches
from which headers are read one by one, as far as they are cached and in any case. ``leader_epoch`` is the newest,
``leader_epochs`` how many were noted."""

LEADER_EPOCH_DTYPE: Final = np.dtype([("epoch", "i8"), ("first_offset", "i8")])
scan_at = record_at(SCAN_DTYPE)
leader_epoch_at = record_at(LEADER_EPOCH_DTYPE)

TAKEN: Final = -1
"""There is no objection."""
END: Final = 0
"""The end of the stretch."""
MORE: Final = 1
"""The batch at ``position`` is not in the block, as far as it must be seen."""
ODD: Final = 2
"""The batch at ``position`` is for the plain path."""
FULL: Final = 3
"""There is no room for another event or leader epoch."""
STOPPED: Final = 4
"""The batch at ``position`` begins at the stop offset or above."""
PAUSED: Final = 5
"""Enough has been done without Python, which may want to handle a signal."""
FAILED: Final = 6
"""The system refused to read."""
LEGACY: Final = 7
"""At ``position`` is a message of magic 0 or 1, or zeros."""

NEVER: Final = np.iinfo(np.int64).max
"""A size, offset or clock that none reaches."""
