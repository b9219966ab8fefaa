"""Retention of shipped segments: which segments it deletes, and in which order.

The rules are Kafka's own: from the oldest on, a segment is deleted while its largest timestamp is older than the given
time, or while the segments above it have as many bytes as may be kept; the first segment that stays ends the deletion.

A segment's manifest is deleted first, then its objects, then the next segment. So wherever a run ends, no manifest
names a missing object, and the remaining segments are a chain without a gap; objects without a manifest are orphans. A
tombstone replaces the manifest: nothing is written under that id again, so a deletion may take effect at any later
time. If replicas have shipped overlapping segments, the rules apply to the chain that readers use.

Source: ``UnifiedLog.deleteRetentionMsBreachedSegments`` and ``deleteRetentionSizeBreachedSegments``.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from resnap.storage.layouts.lineage import chain_of
from resnap.storage.layouts.manifest import TOMBSTONE
from resnap.storage.log.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resnap.storage.layouts.manifest import ManifestFacts
    from resnap.storage.layouts.segments import StoredManifest
    from resnap.storage.stores.protocol import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What to keep of each partition; None for no limit."""

    age_ms: int | None = None
    log_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedManifest:
    """A manifest and its key."""

    key: str
    stored: StoredManifest

    @property
    def manifest(self) -> ManifestFacts:
        """The content of the manifest."""
        return self.stored.facts

    @property
    def newest_ms(self) -> int:
        """Largest timestamp of a record; the shipping time, if no record has one."""
        largest, (made_ms, _) = self.manifest.max_timestamp_ms, self.manifest.made
        return made_ms if largest is None or largest < 0 else largest


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRetention:
    """The segments of one partition that retention deletes."""

    cluster_id: str | None
    topic_partition: TopicPartition
    topic_id: str | None
    """None where it was not known when its segments were shipped, and they are of no other topic."""
    beyond: tuple[ShippedManifest, ...]
    """In the order of deletion: first what lies beside the chain, then from the oldest on."""
    kept: int
    """Segments that stay."""

    @property
    def size_bytes(self) -> int:
        """Size of all objects that are deleted."""
        return sum(one.stored.size_bytes for one in self.beyond)

    @property
    def new_start_offset(self) -> int | None:
        """The start of the remaining chain; None if nothing is deleted."""
        return self.beyond[-1].manifest.next_base_offset if self.beyond else None


def retention_of(manifests: Mapping[str, StoredManifest], limits: Limits, now_ms: int) -> list[PartitionRetention]:
    """Return what is beyond ``limits`` at ``now_ms``, by cluster and partition; each topic id separately."""
    found: dict[tuple[str, TopicPartition, str], list[ShippedManifest]] = {}
    for key, stored in manifests.items():
        manifest = stored.facts
        name = TopicPartition(manifest.topic, manifest.partition)
        place = manifest.cluster_id or "", name, manifest.topic_id or ""
        found.setdefault(place, []).append(ShippedManifest(key=key, stored=stored))
    return [_retention(found[place], limits, now_ms) for place in sorted(found)]


def _retention(shipped: Iterable[ShippedManifest], limits: Limits, now_ms: int) -> PartitionRetention:
    """Apply the limits to the chain that readers use; segments beside it are deleted with those they depend on.

    Those are deleted first, downwards: so wherever the run ends, every remaining segment can be reached from the first
    one.
    """
    ordered = sorted(shipped, key=lambda one: (one.manifest.base_offset, one.manifest.next_base_offset, one.key))
    made = sorted((one.manifest for one in ordered), key=attrgetter("made"))
    links = {id(one) for one in chain_of(made)}
    chain = [one for one in ordered if id(one.manifest) in links]
    gone = chain[: max(_beyond_age(chain, limits.age_ms, now_ms), _beyond_size(chain, limits.log_bytes))]
    kept = {id(one.manifest) for one in chain[len(gone) :]}
    strays = _not_led_to(ordered, kept, links) if gone else []
    first = ordered[0].manifest
    return PartitionRetention(
        cluster_id=first.cluster_id,
        topic_partition=TopicPartition(first.topic, first.partition),
        topic_id=first.topic_id,
        beyond=(*strays, *gone),
        kept=len(ordered) - len(gone) - len(strays),
    )


def _not_led_to(ordered: Sequence[ShippedManifest], kept: set[int], links: set[int]) -> list[ShippedManifest]:
    """Return the segments outside the chain that neither begin nor end where a kept one does; downwards.

    Offsets that the chain does not have are always kept.
    """
    chain_end = max(one.manifest.next_base_offset for one in ordered if id(one.manifest) in links)
    led_to: set[int] = set()
    strays = []
    for one in ordered:
        base, end = one.manifest.base_offset, one.manifest.next_base_offset
        if id(one.manifest) in kept or (id(one.manifest) not in links and base in led_to):
            led_to |= {base, end}
        elif id(one.manifest) not in links and end <= chain_end:
            strays.append(one)
    return strays[::-1]


def _beyond_age(ordered: Sequence[ShippedManifest], age_ms: int | None, now_ms: int) -> int:
    if age_ms is None:
        return 0
    within = (index for index, one in enumerate(ordered) if now_ms - one.newest_ms <= age_ms)
    return next(within, len(ordered))


def _beyond_size(ordered: Sequence[ShippedManifest], log_bytes: int | None) -> int:
    if log_bytes is None:
        return 0
    spare, count = sum(one.manifest.log_bytes for one in ordered) - log_bytes, 0
    while count < len(ordered) and spare >= ordered[count].manifest.log_bytes:
        spare -= ordered[count].manifest.log_bytes
        count += 1
    return count


def delete_beyond(
    store: ObjectStore,
    retention: PartitionRetention,
    done: Callable[[ShippedManifest], None],
    hold_lease: Callable[[], None] = lambda: None,
) -> None:
    """Delete what is beyond retention, segment by segment; ``done`` is called for each deleted one.

    ``hold_lease`` is called before each step, and raises if another run is, or may be, at work on the partition.

    Raises:
        LockedError: another run is at work.
        StoreError: the store failed; earlier segments are deleted, and no manifest names a missing object.

    """
    for one in retention.beyond:
        hold_lease()
        store.put(one.key, TOMBSTONE)
        stem, _, _ = one.key.rpartition(".")
        for entry in one.stored.objects:
            if entry.key == f"{stem}.{entry.kind}":  # whatever a manifest may name: what is another's stays
                hold_lease()
                store.delete(entry.key)
        done(one)
