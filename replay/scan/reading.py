"""``Reading``: how segments are opened and read; options that affect time and cost, never the result."""

from __future__ import annotations

from dataclasses import dataclass, field

from resnap.replay.scan import HEADER_READ_BYTES, LEAST_PART_BYTES, PRODUCERS_PER_TASK, SPLIT_BYTES
from resnap.storage.sources.files import Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Options for reading segments; a plain value, so that it can be sent to executors."""

    sources: Sources = field(default_factory=Sources)
    kernel: bool = True
    """Scan by machine code, where that can be made."""
    header_read_bytes: int = HEADER_READ_BYTES
    split_bytes: int = SPLIT_BYTES
    """Segments larger than this are cut into parts of about this size, where several are scanned at once."""
    least_part_bytes: int = LEAST_PART_BYTES
    """No segment is cut into parts smaller than this."""
    threads: int = 1
    """Segments, or parts of them, scanned at once by the engine without Spark."""
    producers_per_task: int = PRODUCERS_PER_TASK
    """A run with more producers is combined by several tasks, each with its range of hashes."""
