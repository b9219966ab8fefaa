"""The mergeable summary: the effect of a run of batches on each producer, independent of the state before it.

The state of one producer after a run of batches is a function of the state before it, and that function has a small
closed form, one row of ``SUMMARY_DTYPE``:

- the last data batch since the epoch last changed; or "inherit", while every batch so far had one epoch and none had
  data (a marker of another epoch than the inherited one clears the inherited batch);
- the coordinator epoch of the last marker, or "inherit";
- the open transaction: "closed, and reopened at X or not" once a marker was seen, else "inherit, else X";
- what happened first (for rebirth at a seam, and to know whether history before the run is needed);
- where non-transactional data met an open transaction, or would meet an inherited one.

Such functions compose (``kernel.combine``), and composition is associative, so splits are summarised in parallel in any
order and one ordered pass over summaries gives the state at *every* segment boundary. A state is itself a summary: that
of the log so far. Empty runs are empty arrays, the neutral element.

Rebirth (see ``producer_state``) touches the coordinator epoch alone. It is decided between a marker and the data that
directly follows it: inside a run if it has both, else at the seam. For the seam a row holds how its last event ended,
the newest server clock since then, and the newest one up to its first event.

Arrays are sorted by producer id, each id at most once. ``producer_state.ProducerStates`` is the oracle.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.void]
"""A structured array; the dtype is named where it matters."""
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

NONE: Final = -1
"""No offset, no epoch, no timestamp: as Kafka writes it."""
SUMMARY_DTYPE: Final = np.dtype(
    [
        # what every batch changes: one cache line
        ("producer_id", "i8"),
        ("last_offset", "i8"),
        ("timestamp", "i8"),
        ("clock_since_ms", "i8"),
        ("txn_first_offset", "i8"),
        ("last_sequence", "i4"),
        ("offset_delta", "i4"),
        ("coordinator_epoch", "i4"),
        ("epoch", "i2"),
        ("one_epoch", "?"),
        ("has_data", "?"),
        ("coordinator_known", "?"),
        ("last_is_marker", "?"),
        ("closed", "?"),
        # the first event of the run
        ("first_is_marker", "?"),
        ("first_is_transactional", "?"),
        ("first_offset", "i8"),
        ("first_timestamp", "i8"),
        ("first_clock_ms", "i8"),
        ("first_marker_offset", "i8"),
        ("first_data_offset", "i8"),
        ("first_sequence", "i4"),
        ("first_epoch", "i2"),
        # what Kafka refuses
        ("illegal_if_open", "i8"),
        ("illegal_offset", "i8"),
    ],
    align=True,
)
"""One row per producer. ``first_clock_ms``: newest server clock up to the first event; ``clock_since_ms``: newest one
after the last event; -1 for none. ``closed``: a marker was seen. ``has_data``: since the epoch last changed.
``txn_first_offset``: first transactional data since the last marker, or since the start. ``illegal_if_open``: first
non-transactional data that is illegal if the run began inside a transaction; ``illegal_offset``: the first that is
illegal in any case."""

EVENT_DTYPE: Final = np.dtype(
    [
        ("producer_id", "i8"),
        ("offset", "i8"),
        ("last_offset", "i8"),
        ("timestamp", "i8"),
        ("producer_epoch", "i2"),
        ("base_sequence", "i4"),
        ("last_sequence", "i4"),
        ("coordinator_epoch", "i4"),
        ("clock_ms", "i8"),
        ("is_marker", "?"),
        ("is_transactional", "?"),
    ]
)
"""One data batch or marker of a producer. ``coordinator_epoch`` is meaningful for markers alone. ``clock_ms`` is the
newest server clock (marker timestamp, LogAppendTime) among the batches after the event before this one, up to and
including this one; -1 if they have none."""


def empty() -> Array:
    """Return the summary of no batches at all."""
    return np.zeros(0, dtype=SUMMARY_DTYPE)
