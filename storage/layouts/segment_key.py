"""The key of an object of a segment, taken apart: what the keys of all layouts have.

A scan of stored segments needs no more of a layout than its keys, so this loads no manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from resnap.storage.log.names import MAX_OFFSET, MAX_PARTITION

if TYPE_CHECKING:
    import re


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKey:
    """The key of an object of a segment, taken apart."""

    topic: str
    """As the key has it."""
    topic_id: str
    partition: int
    base_offset: int
    segment_id: str
    """In the layout's own form; where brokers read it, in Kafka's base64 form."""
    suffix: str
    """What the object holds, in the layout's own words."""

    @property
    def stem(self) -> str | None:
        """The key without suffix, if it is announced to brokers; it may be under any prefix then."""
        return None


_K = TypeVar("_K", bound=SegmentKey)


def parsed_key(kind: type[_K], match: re.Match[str] | None, **instead: str) -> _K | None:
    """Return the key whose parts ``match`` names, or ``instead``; None where Kafka has no such numbers."""
    if match is None:
        return None
    parts: dict[str, Any] = match.groupdict() | instead
    parts["partition"], parts["base_offset"] = int(match["partition"]), int(match["base_offset"])
    return kind(**parts) if parts["partition"] <= MAX_PARTITION and parts["base_offset"] <= MAX_OFFSET else None
