"""Finds remote segments that brokers deleted although the topic's retention kept them, by their own metadata.

Up to 4.3 a leader that has copied nothing since its election counts the local log twice (KAFKA-20732), and up to 3.8.0
copies that failed count, too (KAFKA-17062). The metadata have every deletion with its time, and the size of all
segments; what was local only at that moment was copied later, or is not copied yet and is not counted here. Retention
is taken as it is set now. Records deleted on request look the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resnap.tiering.remote_log.metadata_cache import Deletion, RemoteLogMetadataCache


def deleted_within_retention(
    deletions: tuple[Deletion, ...], cache: RemoteLogMetadataCache, settings: Mapping[str, str]
) -> Iterator[Deletion]:
    """Yield the deletions that neither size nor time called for, of a topic with ``retention.bytes``."""
    limit, keeps_ms = int(settings.get("retention.bytes", "-1")), int(settings.get("retention.ms", "-1"))
    if limit < 0 or cache.delete_state is not None:
        return
    later = [one for one in cache.segments if one.id in cache.readable_ids]
    later += [one.segment for one in deletions]
    for one in deletions:
        local_only = sum(
            each.size_bytes
            for each in later
            if each.begun_at > one.last_begun_at and each.max_timestamp_ms <= one.at_ms
        )
        has_expired = 0 <= keeps_ms <= one.at_ms - one.segment.max_timestamp_ms
        if not has_expired and one.remote_bytes + local_only <= limit:
            yield one
