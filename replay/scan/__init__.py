"""Scans segments into summaries of producers: header by header, in parallel, in splits."""

from typing import Final

HEADER_READ_BYTES: Final = 128 << 10
"""Mean batch size from which headers are read one by one: about what a disk streams in the time of one small read."""
SPLIT_BYTES: Final = 1 << 30
"""The size that segments mostly have: they are cut only to keep more slots busy."""
LEAST_PART_BYTES: Final = 64 << 20
"""Below this a task costs more than it saves."""
PRODUCERS_PER_TASK: Final = 250_000
"""Some 50 MB of summaries."""
