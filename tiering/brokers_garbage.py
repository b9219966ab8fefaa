"""What brokers have left in a store: the objects of segments that their own metadata call dead.

A segment is dead if its copy began and never ended though a later one was begun, if its deletion began and never ended,
or if it was deleted. Brokers never read it again.

Only what the metadata call dead is garbage. What they do not name may be of another cluster, may have been shipped and
not been announced yet, or the retention of the metadata topic has deleted its records. What Resnap has shipped is left,
too: its manifests say what is kept.

A tombstone would keep no broker out, since brokers write without conditions. The age does: a segment is garbage if its
last record and all its objects are so old that no copy or deletion can still be in progress. Its state is read once
more directly before it is deleted.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from resnap.storage.errors import LockedError
from resnap.storage.sources.registry import brokers_layout
from resnap.storage.stores.probe import store_clock_ms
from resnap.tiering.garbage import Collected, delete_version, is_as_it_was
from resnap.tiering.remote_log.records import SegmentState, TopicIdPartition, is_ours
from resnap.tiering.shipping.lease import lease_name, lease_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore
    from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadata, RemoteLogMetadataCache

ReadMetadata: TypeAlias = "Callable[[Iterable[TopicIdPartition] | None], RemoteLogMetadata]"
"""Reads what the running cluster's metadata topic says now, of the given partitions or of all."""


class Death(StrEnum):
    """Why brokers will not read a segment again."""

    COPY_NEVER_ENDED = "copy never ended"
    DELETION_NEVER_ENDED = "deletion never ended"
    DELETED = "deleted, and still there"


class DeadSegment(NamedTuple):
    """A dead segment with objects in the store."""

    partition: TopicIdPartition
    segment_id: str
    death: Death
    objects: tuple[ObjectInfo, ...]
    """In the order of their deletion: what makes the segment visible goes first."""


class BrokersGarbage(NamedTuple):
    """What may be deleted."""

    segments: tuple[DeadSegment, ...]
    """The segments by partition."""
    listed: int
    """All objects of segments in layouts that brokers read."""
    younger: int
    """Objects of dead segments that are not old enough."""


def find_brokers_garbage(store: ObjectStore, read: ReadMetadata, *, older_than_ms: int) -> BrokersGarbage:
    """Return what brokers have left in ``store`` and is at least ``older_than_ms`` old, by the store's own clock.

    Raises:
        UsageError: the cluster has no metadata topic.
        ClusterError, StoreError: either failed.

    """
    listed: dict[tuple[str, int, str], list[ObjectInfo]] = defaultdict(list)
    for info in store.list():
        layout = brokers_layout(info.key)
        one = None if layout is None else layout.brokers_object(info.key)
        if layout is not None and one is not None:
            objects = listed[one.topic_id, one.partition, one.segment_id]
            objects.insert(0 if one.suffix == layout.visible_by else len(objects), info)
    if not listed:  # a mistyped path is not made, as asking for the store's clock would
        return BrokersGarbage((), listed=0, younger=0)
    before_ms, younger, found = store_clock_ms(store) - older_than_ms, 0, []
    # The metadata are read after the listing, so that they know every segment in it.
    for cache in read(None).partitions:
        partition = cache.partition
        for segment_id, (death, since_ms) in _dead(cache).items():
            objects = listed.get((partition.id, partition.partition, segment_id), [])
            if objects and max(since_ms, *(info.modified_ms for info in objects)) > before_ms:
                younger += len(objects)
            elif objects:
                found.append(DeadSegment(partition, segment_id, death, tuple(objects)))
    return BrokersGarbage(tuple(found), sum(map(len, listed.values())), younger)


def collect_brokers_garbage(
    store: ObjectStore, garbage: BrokersGarbage, read: ReadMetadata, *, now_ms: int, is_conditional: bool = False
) -> Iterator[Collected]:
    """Delete ``garbage``, partition by partition, each under its lease and after reading its metadata again.

    If it ``is_conditional``, the store keeps conditions on the version that is deleted.

    Raises:
        ClusterError, StoreError: either failed.

    """
    segments: dict[TopicIdPartition, list[DeadSegment]] = defaultdict(list)
    for segment in garbage.segments:
        segments[segment.partition].append(segment)
    for partition, dead in segments.items():
        try:
            with lease_on(store, lease_name(None, partition.topic_partition), verb="gc", now_ms=now_ms) as lease:
                for info in _still_dead(partition, dead, read):
                    lease.hold()
                    if is_as_it_was(store, info):
                        yield from delete_version(store, info, is_conditional=is_conditional)
        except LockedError as error:
            yield Collected(key=dead[0].objects[0].key, size_bytes=0, problem=error)


def _still_dead(
    partition: TopicIdPartition, segments: Sequence[DeadSegment], read: ReadMetadata
) -> Iterator[ObjectInfo]:
    """Yield the objects of those of ``segments`` that the metadata still call dead."""
    now = [cache for cache in read([partition]).partitions if cache.partition == partition]
    dead = {segment_id for cache in now for segment_id in _dead(cache)}
    for segment in segments:
        if segment.segment_id in dead:
            yield from segment.objects


def _dead(cache: RemoteLogMetadataCache) -> dict[str, tuple[Death, int]]:
    """Return the dead segments that brokers copied, by id: why, and the time of the last record."""
    deleting = (segment for segment in cache.segments if segment.state is SegmentState.DELETE_SEGMENT_STARTED)
    found = {segment_id: (Death.DELETED, at_ms) for segment_id, at_ms in cache.deleted.items()}
    found |= {orphan.id: (Death.COPY_NEVER_ENDED, orphan.event_timestamp_ms) for orphan in cache.orphans}
    found |= {segment.id: (Death.DELETION_NEVER_ENDED, segment.event_timestamp_ms) for segment in deleting}
    return {segment_id: segment for segment_id, segment in found.items() if not is_ours(segment_id)}
