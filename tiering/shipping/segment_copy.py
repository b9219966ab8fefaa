"""Copies one segment into a store: chooses its snapshot, checks its files, writes and verifies its objects.

The same functions run in a thread of this process and in a task on an executor. What they take and give are plain
values, which can be sent. Keys depend on the content, so a repeated copy does no harm.

The segment is not visible until ``publish`` has written its manifest, last of all, in one process for all segments of a
partition. **No manifest, no segment.** A crash at any point leaves objects that nothing names, and objects that a
manifest names are never overwritten. A segment with a manifest is done, whatever T is now: listing the topic shows it,
before anything is replayed.

The snapshot is the broker's own if no replay contradicts it, else the rebuilt one. The broker's own may know producers
whose records were deleted, so if it is right it is the better one. It is shipped in canonical order, by producer id, so
that equal states are equal objects.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from resnap.replay.comparison import SOUND, SnapshotVerdict
from resnap.replay.plan import Coverage
from resnap.replay.staging import digest_of, snapshot_key
from resnap.storage.crc32c import crc32c
from resnap.storage.disk import unread_error
from resnap.storage.errors import (
    LogDirError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    VerificationError,
)
from resnap.storage.layouts.manifest import TOMBSTONE, SnapshotHow, SnapshotOrigin
from resnap.storage.log.producer_snapshot import read_snapshot, snapshot_bytes
from resnap.storage.sources.files import PLAIN
from resnap.storage.sources.registry import layout_named
from resnap.storage.threads import made_once
from resnap.storage.throttle import Throttle
from resnap.tiering.shipping.delivery import Delivery
from resnap.tiering.shipping.segment_bundle import ChosenSnapshot, new_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from resnap.replay.results import BoundaryResult
    from resnap.replay.window import ReplayRules
    from resnap.storage.layouts.protocol import Layout
    from resnap.storage.layouts.segments import NewSegment, SegmentObjects
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.shipping.aborted_transactions import SegmentTransactions
    from resnap.tiering.shipping.delivery import Verification
    from resnap.tiering.shipping.segment_bundle import CopyOrder
    from resnap.tiering.shipping.segment_indexes import SegmentIndexes


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSegment:
    """A segment whose objects are stored, but not named by a manifest yet; without the bodies of its files."""

    order: CopyOrder
    segment: NewSegment
    objects: SegmentObjects
    size_bytes: int
    """The size of its files."""
    aborted: tuple[AbortedTxn, ...]
    """The entries of its transaction index."""
    transactions: SegmentTransactions
    """What its batches say of them."""
    warnings: tuple[str, ...] = ()
    """What the copying process has found out about the store, if that is another one."""


def choose_snapshot(
    topic_partition: TopicPartition,
    result: BoundaryResult,
    rules: ReplayRules,
    staged: ObjectStore,
    sources: Sources = PLAIN,
    *,
    as_found: bool = False,
) -> ChosenSnapshot:
    """Return the snapshot for the boundary of ``result``, which was rebuilt.

    With ``as_found`` the broker's own keeps its entry order, as the broker itself would ship it. A live broker may have
    deleted or replaced its own since the comparison; the rebuilt one is then as good.

    Raises:
        VerificationError: what is staged is not what was written there.
        StoreError: it cannot be read.

    """
    own = _own_snapshot(result, sources)
    if own is None or result.comparison is None:
        return rebuilt_snapshot(topic_partition, result, rules, staged)
    entries = read_snapshot(own)
    is_proven = result.coverage is Coverage.WINDOW and result.comparison.verdict is SnapshotVerdict.PROVEN
    how = SnapshotHow.PROVEN if is_proven else SnapshotHow.KEPT
    body = own if as_found else snapshot_bytes(entries.values())
    return ChosenSnapshot(body=body, origin=_origin(result, rules, how, len(entries)))


def rebuilt_snapshot(
    topic_partition: TopicPartition, result: BoundaryResult, rules: ReplayRules, staged: ObjectStore
) -> ChosenSnapshot:
    """Return the replay's snapshot for the boundary of ``result``; raises as ``choose_snapshot`` does."""
    key = snapshot_key(topic_partition, result.offset)
    body = staged.get(key)
    if digest_of(body) != result.digest:
        raise VerificationError(f"{staged.url}/{key}: not what the replay wrote there", hint="run again")
    how = SnapshotHow.REGENERATED if result.coverage is Coverage.WINDOW else SnapshotHow.BEYOND_WINDOW
    return ChosenSnapshot(body=body, origin=_origin(result, rules, how, result.entries))


def _own_snapshot(result: BoundaryResult, sources: Sources) -> bytes | None:
    """Return the broker's own snapshot if the replay contradicts none of its entries and the file is unchanged."""
    path, comparison = result.boundary.existing, result.comparison
    if path is None or comparison is None or comparison.verdict not in SOUND:
        return None
    try:
        data = sources.read(path)
    except (LogDirError, ObjectNotFoundError):
        return None
    return data if hashlib.sha256(data).hexdigest() == comparison.sha256 else None


def _origin(result: BoundaryResult, rules: ReplayRules, how: SnapshotHow, entries: int) -> SnapshotOrigin:
    return SnapshotOrigin(
        how=how,
        as_of=str(rules.as_of),
        as_of_ms=result.as_of_ms,
        window_start_offset=result.window_start_offset,
        producer_id_expiration_ms=rules.expiry.expiration_ms,
        check_interval_ms=rules.expiry.check_interval_ms,
        entries_count=entries,
        known_from_offset=result.known_from_offset,
        left_out=result.left_out,
    )


def carry_out(
    order: CopyOrder, delivery: Delivery, layout: Layout, staged: ObjectStore, rules: ReplayRules
) -> CopiedSegment:
    """Choose the snapshot of a segment, its own or one in ``staged``, the sink of the replay; read and copy it all.

    Raises as ``choose_snapshot``, ``new_segment`` and ``copy_segment`` do.
    """
    as_found, partition = layout.keeps_snapshots_as_found, order.provenance.topic_partition
    snapshot = choose_snapshot(partition, order.rebuilt, rules, staged, order.sources, as_found=as_found)
    return copy_segment(delivery, layout, order, *new_segment(order, snapshot))


def copy_segment(
    delivery: Delivery, layout: Layout, order: CopyOrder, segment: NewSegment, indexes: SegmentIndexes
) -> CopiedSegment:
    """Put the objects of one segment into the store; several segments may be copied at once.

    Raises:
        ShippedMeanwhileError: the segment has got a manifest from another run, or from a broker.
        SegmentChangedError: the segment changed during the copy; the written objects are left for a later run.
        VerificationError: an object differs when read back.
        TopicIdUnknownError, TopicNameTooLongError, ConfigurationError: the layout has no key for it.
        StoreError: the store refused or failed.

    """
    with _as_change_of_segment(order):
        objects = layout.objects_of(segment, delivery.store)
    layout.check_missing(segment, delivery.store, objects.manifest_key)
    with _as_change_of_segment(order):
        for new in objects.files:
            delivery.deliver(new)
    return CopiedSegment(
        order=order,
        segment=replace(segment, files=()),
        objects=replace(objects, files=tuple(file._replace(open_body=_copied_already) for file in objects.files)),
        size_bytes=sum(file.size_bytes for file in segment.files),
        aborted=indexes.aborted,
        transactions=indexes.seen.transactions,
    )


def _copied_already() -> BinaryIO:
    raise AssertionError("the object is in the store already")


@contextmanager
def _as_change_of_segment(order: CopyOrder) -> Iterator[None]:
    """Report an error as a change of the segment, if that is its cause."""
    try:
        yield
    except OSError as error:
        order.check_unchanged()
        raise unread_error(order.segment.path, error) from error
    except (VerificationError, ObjectNotFoundError, ObjectChangedError):
        # The body has changed since it was read: report that if the segment has changed.
        order.check_unchanged()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploading:
    """Settings for uploading objects."""

    parallel: int = 1
    """Partitions, and segments of all of them together, at once."""
    is_parallel_asked: bool = True
    """Whether it was given; else executors of other machines have as many segments as they have room for."""
    bytes_per_s: int | None = None
    verification: Verification = "auto"
    layout: Layout = field(default_factory=partial(layout_named, "flat"))
    """How the keys and manifests of the store are made."""

    def delivery(self, store: ObjectStore, warn: Callable[[str], None]) -> Delivery:
        """Return a delivery to ``store`` under these settings."""
        throttle = Throttle(bytes_per_s=self.bytes_per_s)
        return Delivery(store=store, verification=self.verification, throttle=throttle, warn=warn)


def copy_on_executor(
    order: CopyOrder, *, store_url: str, staged_url: str, uploading: Uploading, rules: ReplayRules, sources: Sources
) -> CopiedSegment:
    """Copy a segment on an executor, with the stores opened there; the limit of ``uploading`` is of one process."""
    delivery, said = _delivery(store_url, sources, uploading)
    copied = carry_out(order, delivery, uploading.layout, sources.store(staged_url), rules)
    return replace(copied, warnings=tuple(said))


@made_once(maxsize=4)
def _delivery(store_url: str, sources: Sources, uploading: Uploading) -> tuple[Delivery, list[str]]:
    """Return the delivery to a store, and what it has reported so far.

    There is one for each process, which tests the store's checks once.
    """
    said: list[str] = []
    return uploading.delivery(sources.store(store_url), said.append), said


def publish(delivery: Delivery, layout: Layout, copied: CopiedSegment) -> None:
    """Publish a segment whose objects are stored, if it is unchanged and no other run has shipped it.

    Another run may ship the same segment: that was checked before the first object, and is checked again, unless the
    lease keeps others away. If both pass at the same instant there are two correct manifests; readers use the one made
    last. A deletion puts a tombstone to the key of the manifest first, which then is not free.

    Raises:
        ShippedMeanwhileError, SegmentChangedError, VerificationError, StoreError: as ``copy_segment`` does.
        DeletedMeanwhileError: its objects were deleted.

    """
    store, objects = delivery.store, copied.objects
    copied.order.check_unchanged()
    for torn in layout.check_missing(copied.segment, store, objects.manifest_key):
        store.put(torn, TOMBSTONE)
    for gone in delivery.missing(objects.files):
        raise VerificationError(f"{gone}: gone or changed after it was verified", hint="run again")
    for new in objects.beside:
        delivery.deliver(new)
    key, body = objects.manifest_key, objects.manifest
    try:
        store.put(key, body, if_absent=True)
    except ObjectExistsError:
        # Another run, or our own attempt whose response was lost: the key is derived from the content.
        layout.check_same(key, store.get(key), body)
    else:
        delivery.verify(key, size_bytes=len(body), checksum=crc32c(body))
