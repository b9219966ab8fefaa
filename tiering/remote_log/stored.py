"""What a store holds of the segments that brokers tier, by segment; and whether it agrees with brokers' metadata.

A plugin may hand custom metadata to the broker: where a segment's objects lie, and how long they are together. The
plugin then reads the log and the indexes at that key, whatever its key prefix is by now.

Source: ``ObjectKeyFactory``, ``RemoteStorageManager`` of Aiven's tiered-storage-for-apache-kafka, 1.0.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.sources.registry import READ_BY_BROKERS
from resnap.tiering.remote_log.custom_metadata import read_custom_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.storage.layouts.protocol import ReadByBrokers
    from resnap.storage.stores.protocol import ObjectInfo
    from resnap.tiering.remote_log.metadata_cache import RemoteSegment


class SegmentPlace(NamedTuple):
    """Which segment of which partition."""

    topic_id: str
    partition: int
    segment_id: str


@dataclass(slots=True)
class StoredSegment:
    """What a store holds of one segment."""

    layout: ReadByBrokers
    objects: set[str] = field(default_factory=set)
    """What each of them is, in the layout's own words."""
    stems: set[str] = field(default_factory=set)
    """Their keys without suffixes, where they are announced to brokers; more than one where there are copies."""
    size_bytes: int = 0

    @property
    def lacks(self) -> list[str]:
        """What is missing that brokers need."""
        return sorted(self.layout.needed_parts - self.objects)

    def contradiction(self, segment: RemoteSegment) -> str | None:
        """Return in what the custom metadata of ``segment`` differ from what is stored; None, if in nothing.

        A store may be looked at from above, or from within the key prefix that brokers use.
        """
        if not self.stems or segment.custom_metadata is None:
            return None
        try:
            custom = read_custom_metadata(segment.custom_metadata)
        except FormatError as error:
            return f"has custom metadata that the plugin cannot read: {error}"
        stem = f"{custom.object_prefix or ''}{custom.object_key or ''}"
        if custom.object_key is not None and not any(_is_within(stem, there) for there in self.stems):
            return f"lies at {min(self.stems)}, and its metadata say {stem}"
        is_whole = len(self.stems) == 1 and not self.lacks
        if is_whole and custom.remote_size not in {None, self.size_bytes}:
            return f"has {self.size_bytes} bytes, and its metadata say {custom.remote_size}"
        return None


def _is_within(one: str, other: str) -> bool:
    """Whether the keys are the same, but for folders that stand before one of them."""
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


def stored_segments(listed: Iterable[ObjectInfo]) -> dict[SegmentPlace, StoredSegment]:
    """Return what the objects ``listed`` hold in a layout that brokers read; others do not count."""
    found: dict[SegmentPlace, StoredSegment] = {}
    for info in listed:
        parsed = ((layout, layout.brokers_object(info.key)) for layout in READ_BY_BROKERS)
        layout, one = next((pair for pair in parsed if pair[1] is not None), (None, None))
        if layout is None or one is None:
            continue
        place = SegmentPlace(one.topic_id, one.partition, one.segment_id)
        stored = found.setdefault(place, StoredSegment(layout))
        stored.objects.add(one.part)
        stored.stems |= {one.stem} if one.stem is not None else set()
        stored.size_bytes += info.size_bytes
    return found
