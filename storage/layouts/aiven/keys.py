"""Object keys of the layout ``aiven``, as Aiven's RemoteStorageManager plugin makes them.

    <key prefix><topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>.<suffix>

Three objects make a segment: ``log`` (in chunks, each of which may be compressed and encrypted), ``indexes`` (all of
them, one after the other) and ``rsm-manifest``, which is written last. Ids are Kafka's: 16 bytes in URL-safe base64, 22
characters that may be dashes. A key prefix is put before the topic as it is, without a slash of its own.

Source: ``ObjectKeyFactory`` of Aiven's tiered-storage-for-apache-kafka, 1.0.0.

The origin of a snapshot that Resnap shipped is an object of its own, beside the leases:

    <key prefix, up to its last slash>.resnap/origin/<topic>-<topic id>/<partition>/<base offset>-<segment id>.json

The plugin's manifest has no field for it, and brokers never read this object (its form: ``write_origin``). It is
written before the manifest, so that every segment that Resnap shipped has one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5

from resnap.storage.log.names import MAX_OFFSET, MAX_PARTITION, OFFSET_DIGITS
from resnap.storage.messages.wire import uuid_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resnap.storage.log.names import TopicPartition

LOG: Final = "log"
INDEXES: Final = "indexes"
MANIFEST: Final = "rsm-manifest"
SEGMENT_ID_NAMESPACE: Final = UUID("9e73fb0f-3c97-461d-a12d-c3045cc48ddb")
"""Namespace of the UUIDv5 that our segment ids are; drawn once, and must never change."""
TOPIC_PART: Final = re.compile(r"[A-Za-z0-9._-]*")
"""What a topic, and the end of a key prefix in front of it, may consist of."""
_ID: Final = r"[A-Za-z0-9_-]{22}"
_KEY = re.compile(
    rf"(?P<prefix>(?:.*/)?)(?P<topic>[A-Za-z0-9._-]{{1,249}})-(?P<topic_id>{_ID})/(?P<partition>0|[1-9][0-9]{{0,9}})"
    rf"/(?P<base_offset>[0-9]{{{OFFSET_DIGITS}}})-(?P<segment_id>{_ID})\.(?P<suffix>{LOG}|{INDEXES}|{MANIFEST})"
)
ORIGINS: Final = ".resnap/origin/"
_EXTENSION: Final = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenKey:
    """An object key of this layout, taken apart."""

    prefix: str = ""
    """What is before the topic, up to the last slash: a prefix without one looks like part of the topic."""
    topic: str
    topic_id: str
    partition: int
    base_offset: int
    segment_id: str
    suffix: str

    @property
    def key(self) -> str:
        """The key itself."""
        return self.beside(self.suffix)

    def beside(self, suffix: str) -> str:
        """Return the key of the object with ``suffix`` of the same segment."""
        return f"{self.folder}{self.base_offset:0{OFFSET_DIGITS}d}-{self.segment_id}.{suffix}"

    @property
    def folder(self) -> str:
        """The prefix that all keys of the partition share."""
        return f"{self.prefix}{self.topic}-{self.topic_id}/{self.partition}/"


def parse_key(key: str) -> AivenKey | None:
    """Return the parts of a key that the plugin could have made, None for any other key."""
    match = _KEY.fullmatch(key)
    if not match:
        return None
    partition, base_offset = int(match["partition"]), int(match["base_offset"])
    if partition > MAX_PARTITION or base_offset > MAX_OFFSET:
        return None
    return AivenKey(
        prefix=match["prefix"],
        topic=match["topic"],
        topic_id=match["topic_id"],
        partition=partition,
        base_offset=base_offset,
        segment_id=match["segment_id"],
        suffix=match["suffix"],
    )


def place_of(key: str) -> AivenKey:
    """Return the parts of ``key``, which is known to be one of this layout."""
    found = parse_key(key)
    if found is None:
        raise AssertionError(f"{key} is not a key of a manifest")
    return found


def object_key(
    topic_partition: TopicPartition, topic_id: str, base_offset: int, segment_id: str, suffix: str, *, prefix: str = ""
) -> str:
    """Return the key of one object of a segment; ids are in Kafka's base64 form."""
    return AivenKey(
        prefix=prefix,
        topic=topic_partition.topic,
        topic_id=topic_id,
        partition=topic_partition.partition,
        base_offset=base_offset,
        segment_id=segment_id,
        suffix=suffix,
    ).key


def segment_id(identity: Mapping[str, object]) -> str:
    """Return the id of a segment, derived from ``identity``: everything that its objects are made from.

    Equal identities give equal ids; as with Kafka's own random ones, none begins with a dash.
    """
    for attempt in count():
        name = json.dumps([attempt, identity], separators=(",", ":"), sort_keys=True)
        text = uuid_text(uuid5(SEGMENT_ID_NAMESPACE, name).bytes)
        if not text.startswith("-"):
            return text
    raise AssertionError("count() has no end")


def origin_key(key: str) -> str:
    """Return the key of the origin of the segment that has an object at ``key``."""
    place = place_of(key)
    return f"{place.prefix}{ORIGINS}{place.beside(_EXTENSION).removeprefix(place.prefix)}"


def place_of_origin(key: str) -> AivenKey | None:
    """Return the place of the segment whose origin is at ``key``; None for any other key."""
    prefix, folder, rest = key.partition(ORIGINS)
    stem, _, extension = rest.rpartition(".")
    if not folder or extension != _EXTENSION or (prefix and not prefix.endswith("/")):
        return None
    place = parse_key(f"{prefix}{stem}.{MANIFEST}")
    return place if place is not None and origin_key(place.key) == key else None
