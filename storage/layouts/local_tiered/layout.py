"""The layout ``local-tiered``: objects where Kafka's reference implementation reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from resnap.storage.layouts.local_tiered.keys import object_key, parse_key
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.protocol import BrokersObject, check_key_length, known_topic_id

if TYPE_CHECKING:
    from uuid import UUID

    from resnap.storage.layouts.protocol import NewSegment


@dataclass(frozen=True, slots=True)
class LocalTiered:
    """Segments as brokers tier them, without a manifest."""

    name: str = "local-tiered"

    @property
    def needed_parts(self) -> frozenset[str]:
        """All but the transaction index."""
        return frozenset(ObjectKind) - {ObjectKind.TXN_INDEX}

    def brokers_object(self, key: str) -> BrokersObject | None:
        """Return of which segment an object is, at whatever depth it is seen from."""
        found = parse_key(key)
        if found is None:
            return None
        return BrokersObject(
            found.topic_id, found.partition, found.base_offset, found.segment_id, part=found.kind, stem=None
        )


def key_for_brokers(segment: NewSegment, segment_id: UUID, kind: ObjectKind) -> str:
    """Return the key at which a broker looks for an object of ``segment``.

    Raises:
        TopicIdUnknownError, TopicNameTooLongError: it has no place there.

    """
    topic_id = known_topic_id(segment)
    key = object_key(segment.provenance.topic_partition, topic_id, segment.base_offset, segment_id, kind)
    check_key_length(key, segment)
    return key
