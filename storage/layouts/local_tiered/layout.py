"""The layout ``local-tiered``: objects where Kafka's reference implementation reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from resnap.storage.layouts.local_tiered.keys import ROOT, object_key, parse_key
from resnap.storage.layouts.local_tiered.log import NEEDED, tiered_log_dir
from resnap.storage.layouts.protocol import BrokersObject, check_key_length, known_topic_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from resnap.storage.layouts.manifest import ObjectKind
    from resnap.storage.layouts.protocol import NewSegment
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.survey import LogDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True)
class LocalTiered:
    """Segments as brokers tier them, without a manifest."""

    name: str = "local-tiered"
    folders: int = 2
    is_plain_copy: bool = False
    needed_parts: frozenset[str] = NEEDED
    """All but the transaction index."""

    def is_key(self, key: str) -> bool:
        """Whether ``key`` is of a segment, in the folder of brokers or seen from there."""
        return key.removeprefix(f"{ROOT}/").count("/") == 1 and parse_key(key) is not None

    def log_dir(
        self,
        store: ObjectStore,
        listed: Iterable[ObjectInfo],
        topics: Callable[[TopicPartition], bool] | None,
        *,
        within: str = "",  # noqa: ARG002 - a partition lies in one folder, which was listed
        topic_ids: Mapping[str, str] | None = None,
    ) -> LogDir:
        """Return the segments among ``listed`` that are whole, whoever wrote them."""
        return tiered_log_dir(store, listed, topics, topic_ids=topic_ids)

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
