"""The segments that brokers tier, as a store holds them, and whether they agree with brokers' metadata.

A plugin may return custom metadata to the broker: the key of a segment's objects, and their total size. The plugin then
reads the log and the indexes at that key, even if its key prefix has changed.

Custom metadata are tagged fields as in Kafka's protocol, ascending, at most 128 bytes by default. They are only read:
without them, the plugin finds a segment by its ids and its current key prefix.

Source: ``ObjectKeyFactory``, ``RemoteStorageManager``, ``SegmentCustomMetadataSerde`` of Aiven's
tiered-storage-for-apache-kafka, 1.0.0; ``TaggedFields`` of Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.messages.varint import read_varlong
from resnap.storage.messages.wire import Cursor, Text
from resnap.storage.sources.registry import READ_BY_BROKERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.storage.layouts.protocol import ReadByBrokers
    from resnap.storage.stores.protocol import ObjectInfo
    from resnap.tiering.remote_log.metadata_cache import RemoteSegment

_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetadata:
    """The fields of ``custom.metadata.fields.include``; missing ones are None."""

    remote_size: int | None = None
    """Bytes of the three objects."""
    object_prefix: str | None = None
    object_key: str | None = None
    """Without prefix and suffix."""


def read_custom_metadata(data: bytes) -> CustomMetadata:
    """Return the custom metadata in ``data``; unknown fields are skipped.

    Raises:
        FormatError: cut short, too long, or tags that do not ascend.

    """
    cursor = Cursor(data)
    found: dict[int, Any] = {}
    for _ in range(cursor.unsigned() if data else 0):
        tag, size = cursor.unsigned(), cursor.unsigned()
        if tag <= max(found, default=-1):
            raise cursor.wrong("custom metadata: tag", "one above those before it", tag)
        with cursor.exactly(size, f"custom metadata: field {tag}"):
            if tag == _REMOTE_SIZE:
                found[tag], cursor.position = read_varlong(data, cursor.position)
            elif tag in {_OBJECT_PREFIX, _OBJECT_KEY}:
                found[tag] = Text().read(cursor, 0)
            else:
                found[tag] = cursor.take(size, "custom metadata: field")
    if cursor.remaining:
        raise cursor.wrong("custom metadata", "their end", f"{cursor.remaining} bytes more")
    return CustomMetadata(
        remote_size=found.get(_REMOTE_SIZE),
        object_prefix=found.get(_OBJECT_PREFIX),
        object_key=found.get(_OBJECT_KEY),
    )


class SegmentPlace(NamedTuple):
    """A segment of a partition."""

    topic_id: str
    partition: int
    segment_id: str


@dataclass(slots=True)
class StoredSegment:
    """The objects of one segment in a store."""

    layout: ReadByBrokers
    objects: set[str] = field(default_factory=set)
    """What each of them is, in the layout's own words."""
    stems: set[str] = field(default_factory=set)
    """Their keys without suffixes, where they are announced to brokers; more than one where there are copies."""
    size_bytes: int = 0

    @property
    def lacks(self) -> list[str]:
        """The missing objects that brokers need."""
        return sorted(self.layout.needed_parts - self.objects)

    def contradiction(self, segment: RemoteSegment) -> str | None:
        """Return where the custom metadata of ``segment`` differ from the stored objects; None if nowhere.

        A store may be listed from above, or from within, the key prefix that brokers use.
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
    """Whether the keys are equal, apart from folders in front of one of them."""
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


def stored_segments(listed: Iterable[ObjectInfo]) -> dict[SegmentPlace, StoredSegment]:
    """Return the segments that the objects ``listed`` make, in layouts that brokers read."""
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
