"""``Reading``: how segments are opened and read; options that affect time and cost, never the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from resnap.storage.sources.files import Sources

HEADER_READ_BYTES: Final = 128 << 10
"""Mean batch size from which headers are read one by one: about what a disk streams in the time of one small read."""
SPLIT_BYTES: Final = 1 << 30
"""The size that segments mostly have: they are cut only to keep more slots busy."""
LEAST_PART_BYTES: Final = 64 << 20
"""Below this a task costs more than it saves."""
PRODUCERS_PER_TASK: Final = 250_000
"""Some 50 MB of summaries."""


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
