"""Object keys of the layout ``flat``; each key says what its object is.

    <cluster id>/<topic>/<topic id>/<partition>/<base offset, 20 digits>-<segment id>.<extension>

relative to the prefix of the store. An unknown id is ``none``. Names are written unchanged; bytes that not every store
supports are written ``=XX`` (hex), and a name of over 200 bytes is shortened and followed by ``=sha256-<64 hex
digits>`` of the whole name. Different names give different parts, so different segments never share a key.

The segment id is derived from the content: every run ships the same bytes under a key, however often.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5

from resnap.storage.layouts.manifest import TOMBSTONE, ObjectKind
from resnap.storage.layouts.segment_key import SegmentKey, parsed_key
from resnap.storage.log.names import OFFSET_DIGITS
from resnap.storage.stores.protocol import MAX_KEY_PART_BYTES, UNKNOWN, key_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resnap.storage.stores.protocol import ObjectInfo

SEGMENT_ID_NAMESPACE: Final = UUID("9347e368-7f13-48b2-a80e-cd487a8de498")
"""Namespace of the UUIDv5 that segment ids are; drawn once, and must never change."""
MANIFEST_EXTENSION: Final = "manifest"
EXTENSIONS: Final = frozenset({*ObjectKind, MANIFEST_EXTENSION})
_PART: Final = r"(?:[A-Za-z0-9._-]|=[0-9A-F]{2})+(?:=sha256-[0-9a-f]{64})?"
_KEY = re.compile(
    rf"(?P<cluster>{_PART})/(?P<topic>{_PART})/(?P<topic_id>{_PART})/(?P<partition>0|[1-9][0-9]{{0,9}})"
    rf"/(?P<base_offset>[0-9]{{{OFFSET_DIGITS}}})"
    r"-(?P<segment_id>[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
    rf"\.(?P<suffix>{'|'.join(sorted(EXTENSIONS))})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatKey(SegmentKey):
    """An object key of this layout, taken apart.

    Cluster, topic and topic id are as the key has them (``key_part``): the whole of a long name is in the manifest.
    """

    cluster: str

    @property
    def key(self) -> str:
        """The key itself."""
        return f"{self.folder}{self.base_offset:0{OFFSET_DIGITS}d}-{self.segment_id}.{self.suffix}"

    @property
    def folder(self) -> str:
        """The prefix of this key and of the keys beside it."""
        return f"{self.cluster}/{self.topic}/{self.topic_id}/{self.partition}/"


def segment_ids(
    *,
    cluster_id: str | None,
    topic: str,
    topic_id: str | None,
    partition: int,
    base_offset: int,
    next_base_offset: int,
    digests: Mapping[str, str],
) -> Iterator[UUID]:
    """Yield the ids of a segment, UUIDv5s of its identity and of every byte of it: what was deleted gets the next one.

    Args:
        cluster_id: None if unknown, as in the key.
        topic: counts because the id of the topic may be unknown.
        topic_id: in Kafka's base64 form; None if unknown.
        partition: its number.
        base_offset: first offset.
        next_base_offset: first offset of the segment after it.
        digests: SHA-256 in hex of every object, by kind, in any order. The snapshot's is that of the canonical form, by
            producer id, which is also the form to ship.
    """
    identity = [cluster_id, topic, topic_id, partition, base_offset, next_base_offset, sorted(digests.items())]
    for incarnation in count():
        numbered = [*identity, incarnation] if incarnation else identity
        yield uuid5(SEGMENT_ID_NAMESPACE, json.dumps(numbered, separators=(",", ":")))


def object_key(
    *,
    cluster_id: str | None,
    topic: str,
    topic_id: str | None,
    partition: int,
    base_offset: int,
    segment_id: UUID,
    extension: str,
) -> str:
    """Return the key of one object of a segment; ``extension`` is an ``ObjectKind`` or ``MANIFEST_EXTENSION``."""
    return FlatKey(
        cluster=key_part(cluster_id),
        topic=key_part(topic),
        topic_id=key_part(topic_id),
        partition=partition,
        base_offset=base_offset,
        segment_id=str(segment_id),
        suffix=extension,
    ).key


def topic_prefix(cluster_id: str | None, topic: str) -> str:
    """Return the prefix of all keys of a topic, with any topic id that it was shipped under.

    A listing holds all objects of the topic; manifests are those whose ``parse_key`` has ``MANIFEST_EXTENSION``.
    """
    return f"{key_part(cluster_id)}/{key_part(topic)}/"


def folders(cluster_id: str | None, topic: str, topic_id: str | None, partition: int) -> list[str]:
    """Return the prefixes of all keys of a partition: its own, and that from before its topic's id was known."""
    ids = dict.fromkeys((key_part(topic_id), UNKNOWN))
    return [f"{topic_prefix(cluster_id, topic)}{topic_id}/{partition}/" for topic_id in ids]


def parse_key(key: str) -> FlatKey | None:
    """Return the parts of a key that this layout could have made, None for any other key."""
    found = parsed_key(FlatKey, _KEY.fullmatch(key))
    if found is None:
        return None
    parts = found.cluster, found.topic, found.topic_id
    return None if any(len(part) > MAX_KEY_PART_BYTES or part in {".", ".."} for part in parts) else found


def is_tombstone(info: ObjectInfo) -> bool:
    """Whether a tombstone has replaced the manifest of a segment; its size alone shows it."""
    return info.size_bytes == len(TOMBSTONE) and info.key.endswith(f".{MANIFEST_EXTENSION}")


def segment_of_manifest(info: ObjectInfo) -> FlatKey | None:
    """Return which segment the manifest ``info`` belongs to; None for any other object, and for a tombstone."""
    place = parse_key(info.key)
    return place if place and place.suffix == MANIFEST_EXTENSION and not is_tombstone(info) else None
