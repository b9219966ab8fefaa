"""Decodes the types of the transaction markers in a whole block at once, with numpy.

All brokers so far write markers in one form, in which only offset, time, producer and coordinator differ. The type of a
batch in that form is known without parsing it; ``control_record`` parses all other control batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.storage.crc32c import crc32c
from resnap.storage.log.record import ABORT, COMMIT, RECORDS_COUNT_POSITION, write_marker_batch
from resnap.storage.log.record_batch import ATTRIBUTES_POSITION, CRC_POSITION, HEADER, LOG_OVERHEAD, MAGIC_POSITION

if TYPE_CHECKING:
    import numpy.typing as npt

UNUSUAL: Final = -1
"""In place of a type: ``read_control_record`` is to decide."""

_USUAL: Final = np.frombuffer(
    write_marker_batch(offset=0, producer_id=0, producer_epoch=0, coordinator_epoch=0, timestamp=0, commit=True),
    dtype=np.uint8,
)
_TYPE_POSITION: Final = HEADER.size + 8
_COORDINATOR_EPOCH_POSITION: Final = HEADER.size + 12
_SAME: Final = np.isin(
    np.arange(len(_USUAL)),
    [
        *range(LOG_OVERHEAD - 4, LOG_OVERHEAD),
        MAGIC_POSITION,
        *range(ATTRIBUTES_POSITION, ATTRIBUTES_POSITION + 2),
        *range(RECORDS_COUNT_POSITION, _TYPE_POSITION),
        *range(_TYPE_POSITION + 1, _COORDINATOR_EPOCH_POSITION),
        len(_USUAL) - 1,
    ],
)
"""Where all of them have the same bytes: length, magic, attributes, count, and the record but for type and epoch."""


def bytes_at(block: memoryview, positions: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.void]:
    """Return the ``size`` bytes at each of the ``positions`` in ``block``, as elements of an array."""
    every: npt.NDArray[np.void] = np.ndarray((max(len(block) - size + 1, 0),), f"V{size}", block, strides=(1,))
    return every[positions]


def usual_marker_types(block: memoryview, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return ``ABORT`` or ``COMMIT`` for each control batch that starts in ``block`` at ``positions``, or ``UNUSUAL``.

    A batch is usual if it is complete, has the form that ``write_marker_batch`` gives it, and a correct checksum.
    """
    types = np.full(len(positions), UNUSUAL, dtype=np.int64)
    whole = np.flatnonzero(positions <= len(block) - len(_USUAL))
    rows = bytes_at(block, positions[whole], len(_USUAL)).view(np.uint8).reshape(-1, len(_USUAL))
    found = rows[:, _TYPE_POSITION]
    is_usual = ~((rows != _USUAL) & _SAME).any(axis=1) & ((found == ABORT) | (found == COMMIT))
    carried = np.ascontiguousarray(rows[:, CRC_POSITION:ATTRIBUTES_POSITION]).view(">u4")[:, 0]
    for i in np.flatnonzero(is_usual).tolist():
        if carried[i] == crc32c(rows[i, ATTRIBUTES_POSITION:].data):
            types[whole[i]] = found[i]
    return types
