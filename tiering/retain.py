"""Applies retention to the shipped segments of a store: which segments it deletes, and in which order.

The rules are Kafka's own: from the oldest on, a segment is deleted while its largest timestamp is older than the given
time, or while the segments above it have as many bytes as may be kept; the first segment that stays ends the deletion.

A segment's manifest is deleted first, then its objects, then the next segment. So wherever a run ends, no manifest
names a missing object, and the remaining segments are a chain without a gap; objects without a manifest are orphans. A
tombstone replaces the manifest: nothing is written under that id again, so a deletion may take effect at any later
time. If replicas have shipped overlapping segments, the rules apply to the chain that readers use.

Source: ``UnifiedLog.deleteRetentionMsBreachedSegments`` and ``deleteRetentionSizeBreachedSegments``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import (
    ConfigurationError,
    FormatError,
    LockedError,
    ObjectNotFoundError,
    ResnapError,
    StoreError,
    UsageError,
    VerificationError,
    in_file,
)
from resnap.storage.layouts.lineage import chain_of
from resnap.storage.layouts.manifest import TOMBSTONE
from resnap.storage.sources.registry import SHIPPED, brokers_layout
from resnap.storage.stores.probe import store_clock_ms
from resnap.storage.words import human_duration
from resnap.tiering.selection import nothing_in
from resnap.tiering.shipping.lease import lease_name, lease_on
from resnap.tiering.shipping.notes import RetentionNote, retained_key, retained_topics, write_retained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.replay.watching import Progress
    from resnap.storage.layouts.segments import Listing, StoredManifest
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.sources.log_dirs import TieredPart
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.selection import Scope

_HIDDEN: Final = (
    "run again; if the object was not shipped just now, the store's listings are incomplete, and a deletion based on "
    "them would leave a gap: `resnap doctor URL` tests the store"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What to keep of each partition; None for no limit."""

    age_ms: int | None = None
    log_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRetention:
    """The segments of one partition that retention deletes."""

    cluster_id: str | None
    topic_partition: TopicPartition
    topic_id: str | None
    """None where it was not known when its segments were shipped, and they are of no other topic."""
    beyond: tuple[StoredManifest, ...]
    """In the order of deletion: first what is beside the chain, then from the oldest on."""
    kept: int
    """Segments that stay."""

    @property
    def size_bytes(self) -> int:
        """Size of all objects that are deleted."""
        return sum(manifest.size_bytes for manifest in self.beyond)

    @property
    def new_start_offset(self) -> int | None:
        """The start of the remaining chain; None if nothing is deleted."""
        return self.beyond[-1].facts.next_base_offset if self.beyond else None


def retain(
    part: TieredPart,
    scope: Scope,
    limits: Limits,
    now_ms: int,
    report: Callable[[PartitionRetention], None],
    *,
    deleting: Progress | None,
) -> list[ResnapError]:
    """Report what is beyond the limits, of each partition, and return what went wrong; without ``deleting`` all stays.

    Nothing is deleted of a partition with a manifest that cannot be read, or at which another run is at work; nor of
    any from where the store fails on: an uploader that finds no manifest writes the very objects that are being
    deleted.

    Raises:
        UsageError: nothing was shipped there, or it is for brokers to delete.
        ConfigurationError: by the store's clock what is too old may not be.
        StoreError: the store failed before anything was deleted.

    """
    faults: list[ResnapError] = []
    found = retention_of(_sound_manifests(part, scope, faults), limits, now_ms)
    if deleting is None:
        for partition in found:
            report(partition)
        return faults
    if limits.age_ms is not None and any(partition.beyond for partition in found):
        _check_clock(part.store, now_ms)
    deleting.expect(sum(len(partition.beyond) for partition in found), sum(partition.size_bytes for partition in found))
    has_failed = False
    for partition in found:
        gone: list[StoredManifest] = []
        if partition.beyond and not has_failed:
            try:
                _delete(part.store, partition, now_ms, gone, deleting)
            except (LockedError, StoreError) as error:
                faults.append(error)
                has_failed = isinstance(error, StoreError)
        report(replace(partition, beyond=tuple(gone), kept=partition.kept + len(partition.beyond) - len(gone)))
    return faults


MOST_AHEAD_MS: Final = 3_600_000
"""A clock that is wrong by more than this is refused: what it deletes is lost."""


def _check_clock(store: ObjectStore, now_ms: int) -> None:
    ahead_ms = now_ms - store_clock_ms(store)
    if ahead_ms > MOST_AHEAD_MS:
        raise ConfigurationError(
            f"this machine's clock is {human_duration(ahead_ms / 1000)} ahead of that of {store.url}; nothing is"
            " deleted",
            hint="set the clock, and run again",
        )


def _delete(
    store: ObjectStore, one: PartitionRetention, now_ms: int, gone: list[StoredManifest], progress: Progress
) -> None:
    """Delete what is beyond retention of one partition under its lease, and add to ``gone`` what is deleted."""

    def done(deleted: StoredManifest) -> None:
        gone.append(deleted)
        progress.advance(1, deleted.size_bytes)

    name = lease_name(one.cluster_id, one.topic_partition)
    with lease_on(store, name, verb="retain", now_ms=now_ms) as lease:
        lease.hold()
        _note(store, one)
        delete_beyond(store, one, done, lease.hold)


def _note(store: ObjectStore, one: PartitionRetention) -> None:
    """Note first where the log starts then: nothing of it is shipped again, wherever the deletion is ended."""
    last = one.beyond[-1]
    left = RetentionNote(
        log_start_offset=last.facts.next_base_offset,
        last_base_offset=last.facts.base_offset,
        last_log_bytes=last.facts.log_bytes,
    )
    key = retained_key(one.cluster_id, one.topic_partition, one.topic_id)
    write_retained(store, key, left)


def _sound_manifests(part: TieredPart, scope: Scope, faults: list[ResnapError]) -> list[StoredManifest]:
    """Return the manifests in scope, but for those of partitions where one is broken or was not listed."""
    if not part.layout.has_digests:
        raise _for_brokers(part.store, part.layout.name)
    listing = part.layout.listing(part.store, scope.wants, part.within)
    manifests: list[StoredManifest] = []
    broken: set[str] = set()
    for key in listing.manifests:
        try:
            with in_file(key):
                found = listing.read(key)
        except (FormatError, ObjectNotFoundError) as error:
            hint = "see `resnap verify URL`; nothing of this partition is deleted until it is repaired"
            faults.append(VerificationError(str(error), hint=hint))
            broken.add(listing.folder(key))
        else:
            if scope.wants(found.facts.topic):
                manifests.append(found)
    for key in _hidden(part.store, listing):
        faults.append(VerificationError(f"{key}: exists, but was not listed", hint=_HIDDEN))
        broken.add(listing.folder(key))
    if not manifests and not broken and not any(map(scope.wants, retained_topics(part.store))):
        if scope.topics:
            raise nothing_in(replace(scope, sources=(f"{part.store.url}/{part.within}".rstrip("/"),)))
        raise UsageError(f"{part.store.url} holds no shipped segment", hint="give what `resnap tier --to` was given")
    of_brokers = (brokers_layout(entry.key) for manifest in manifests for entry in manifest.objects)
    read = next(filter(None, of_brokers), None)
    if read is not None:
        raise _for_brokers(part.store, read.name)
    return [manifest for manifest in manifests if listing.folder(manifest.key) not in broken]


def _hidden(store: ObjectStore, listing: Listing) -> Iterator[str]:
    """Yield the keys of manifests that exist, although the store did not list them beside their objects."""
    for key in sorted(listing.sizes.keys() - listing.manifests.keys()):
        with suppress(ObjectNotFoundError):
            found = store.head(key)
            if not any(layout.is_tombstone(found) for layout in SHIPPED):
                yield key


def _for_brokers(store: ObjectStore, layout: str) -> UsageError:
    return UsageError(
        f"{store.url} is in the layout {layout}: brokers delete what they know of by the topic's own"
        " retention, and would still request what is deleted",
        hint="set retention.ms or retention.bytes of the topic; `resnap remote status LOG_DIR --store` shows what"
        " brokers do not know of (unreferenced-objects)",
    )


def retention_of(manifests: Iterable[StoredManifest], limits: Limits, now_ms: int) -> list[PartitionRetention]:
    """Return what is beyond ``limits`` at ``now_ms``, by cluster and partition; each topic id separately."""
    found: dict[tuple[str, TopicPartition, str], list[StoredManifest]] = {}
    for manifest in manifests:
        found.setdefault(manifest.facts.log_id, []).append(manifest)
    return [_retention(found[log_id], limits, now_ms) for log_id in sorted(found)]


def _retention(shipped: Iterable[StoredManifest], limits: Limits, now_ms: int) -> PartitionRetention:
    """Apply the limits to the chain that readers use; segments beside it are deleted with those they depend on.

    Those are deleted first, downwards: so wherever the run ends, every remaining segment can be reached from the first
    one.
    """
    ordered = sorted(shipped, key=lambda one: (one.facts.base_offset, one.facts.next_base_offset, one.key))
    made = sorted((manifest.facts for manifest in ordered), key=attrgetter("made"))
    links = {id(manifest) for manifest in chain_of(made)}
    chain = [manifest for manifest in ordered if id(manifest.facts) in links]
    gone = chain[: max(_beyond_age(chain, limits.age_ms, now_ms), _beyond_size(chain, limits.log_bytes))]
    kept = {id(manifest.facts) for manifest in chain[len(gone) :]}
    strays = _not_led_to(ordered, kept, links) if gone else []
    first = ordered[0].facts
    return PartitionRetention(
        cluster_id=first.cluster_id,
        topic_partition=first.topic_partition,
        topic_id=first.topic_id,
        beyond=(*strays, *gone),
        kept=len(ordered) - len(gone) - len(strays),
    )


def _not_led_to(ordered: Sequence[StoredManifest], kept: set[int], links: set[int]) -> list[StoredManifest]:
    """Return the segments outside the chain that neither begin nor end where a kept one does; downwards.

    Offsets that the chain does not have are always kept.
    """
    chain_end = max(manifest.facts.next_base_offset for manifest in ordered if id(manifest.facts) in links)
    led_to: set[int] = set()
    strays = []
    for manifest in ordered:
        base, end = manifest.facts.base_offset, manifest.facts.next_base_offset
        if id(manifest.facts) in kept or (id(manifest.facts) not in links and base in led_to):
            led_to |= {base, end}
        elif id(manifest.facts) not in links and end <= chain_end:
            strays.append(manifest)
    return strays[::-1]


def _beyond_age(ordered: Sequence[StoredManifest], age_ms: int | None, now_ms: int) -> int:
    if age_ms is None:
        return 0
    within = (index for index, manifest in enumerate(ordered) if now_ms - manifest.facts.newest_ms <= age_ms)
    return next(within, len(ordered))


def _beyond_size(ordered: Sequence[StoredManifest], log_bytes: int | None) -> int:
    if log_bytes is None:
        return 0
    spare, count = sum(manifest.facts.log_bytes for manifest in ordered) - log_bytes, 0
    while count < len(ordered) and spare >= ordered[count].facts.log_bytes:
        spare -= ordered[count].facts.log_bytes
        count += 1
    return count


def delete_beyond(
    store: ObjectStore,
    retention: PartitionRetention,
    done: Callable[[StoredManifest], None],
    hold_lease: Callable[[], None] = lambda: None,
) -> None:
    """Delete what is beyond retention, segment by segment; ``done`` is called for each deleted one.

    ``hold_lease`` is called before each step, and raises if another run is, or may be, at work on the partition.

    Raises:
        LockedError: another run is at work.
        StoreError: the store failed; earlier segments are deleted, and no manifest names a missing object.

    """
    for manifest in retention.beyond:
        hold_lease()
        store.put(manifest.key, TOMBSTONE)
        stem, _, _ = manifest.key.rpartition(".")
        for entry in manifest.objects:
            if entry.key == f"{stem}.{entry.kind}":  # whatever a manifest may name: what is another's stays
                hold_lease()
                store.delete(entry.key)
        done(manifest)
