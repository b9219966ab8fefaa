"""Copies one segment into a store: chooses its snapshot, checks its files, writes and verifies its objects.

The same function runs in a thread of this process and in a task on an executor. Its input and output are plain values,
so that both can be sent. The segment is not visible yet: ``publication`` does that, in one process for all segments of
a partition. Keys depend on the content, so a repeated copy does no harm.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resnap.storage.disk import unread_error
from resnap.storage.errors import ObjectChangedError, ObjectNotFoundError, VerificationError
from resnap.storage.threads import made_once
from resnap.storage.throttle import Throttle
from resnap.tiering.shipping.delivery import Delivery
from resnap.tiering.shipping.segment_bundle import new_segment
from resnap.tiering.shipping.snapshot_choice import choose_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from resnap.replay.window import ReplayRules
    from resnap.storage.layouts.protocol import Layout
    from resnap.storage.layouts.segments import NewSegment, SegmentObjects
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.shipping.aborted_transactions import SegmentTransactions
    from resnap.tiering.shipping.delivery import Verification
    from resnap.tiering.shipping.segment_bundle import CopyOrder
    from resnap.tiering.shipping.segment_indexes import SegmentIndexes


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSegment:
    """A segment whose objects are stored, but not named by a manifest yet; without the bodies of its files."""

    layout: Layout
    order: CopyOrder
    segment: NewSegment
    objects: SegmentObjects
    size_bytes: int
    """Of its files."""
    aborted: tuple[AbortedTxn, ...]
    """The entries of its transaction index."""
    transactions: SegmentTransactions
    """What its batches say of them."""
    warnings: tuple[str, ...] = ()
    """What the copying process has found out about the store, if that is another one."""


def copy_segment(
    order: CopyOrder, delivery: Delivery, *, layout: Layout, staged: ObjectStore, rules: ReplayRules
) -> CopiedSegment:
    """Read a segment and write its objects.

    Args:
        order: the segment to copy.
        delivery: writes objects.
        layout: gives their keys.
        staged: the sink of the replay's snapshots.
        rules: of the replay, recorded in the manifest.

    Raises:
        ShippedMeanwhileError: the segment has got a manifest from another run, or from a broker.
        SegmentChangedError, LeaderEpochsWrongError, IndexUnusableError: it cannot be shipped now.
        FormatError, LogDirError: the segment is damaged, or cannot be read.
        VerificationError, TopicIdUnknownError, TopicNameTooLongError, ConfigurationError, StoreError: as ``upload``.

    """
    delivery.check_going_on()
    chosen = choose_snapshot(
        order.provenance.topic_partition,
        order.rebuilt,
        rules,
        staged,
        order.sources,
        as_found=layout.keeps_snapshots_as_found,
    )
    return upload(delivery, layout, order, *new_segment(order, chosen))


def upload(
    delivery: Delivery, layout: Layout, order: CopyOrder, segment: NewSegment, indexes: SegmentIndexes
) -> CopiedSegment:
    """Put the objects of one segment into the store; several segments may be uploaded at once.

    Raises:
        ShippedMeanwhileError: the segment has got a manifest from another run, or from a broker.
        SegmentChangedError: the segment changed during the copy; the written objects are left for a later run.
        VerificationError: an object differs when read back.
        TopicIdUnknownError, TopicNameTooLongError, ConfigurationError: the layout has no key for it.
        StoreError: the store refused or failed.

    """
    with _blaming_the_segment(order):
        objects = layout.objects_of(segment, delivery.store)
    layout.check_missing(segment, delivery.store, objects.manifest_key)
    with _blaming_the_segment(order):
        delivery.each(delivery.deliver, objects.files)
    return CopiedSegment(
        layout=layout,
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
def _blaming_the_segment(order: CopyOrder) -> Iterator[None]:
    """Report an error as a change of the segment, if that is its cause."""
    try:
        yield
    except OSError as error:
        order.check_unchanged()
        raise unread_error(order.segment.path, error, hint="check the disk") from error
    except (VerificationError, ObjectNotFoundError, ObjectChangedError):
        # The body has changed since it was read: report that if the segment has changed.
        order.check_unchanged()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """Copies an order on an executor, with all arguments of ``copy_segment`` opened there."""

    store_url: str
    staged_url: str
    layout: Layout
    rules: ReplayRules
    sources: Sources
    verification: Verification
    parallel: int
    """Objects of one segment at once."""
    bytes_per_s: int | None
    """What one process may send and read back."""

    def __call__(self, order: CopyOrder) -> CopiedSegment:
        """Return the copied segment."""
        delivery, said = _delivery(self.store_url, self.sources, self.verification, self.parallel, self.bytes_per_s)
        staged = self.sources.store(self.staged_url)
        copied = copy_segment(order, delivery, layout=self.layout, staged=staged, rules=self.rules)
        return replace(copied, warnings=tuple(said))


@made_once(maxsize=4)
def _delivery(
    store_url: str, sources: Sources, verification: Verification, parallel: int, bytes_per_s: int | None
) -> tuple[Delivery, list[str]]:
    """Return the delivery to a store, and what it has reported so far.

    There is one for each process, which tests the store's checks once.
    """
    said: list[str] = []
    delivery = Delivery(
        store=sources.store(store_url),
        verification=verification,
        parallel=parallel,
        throttle=Throttle(bytes_per_s=bytes_per_s),
        complain=said.append,
    )
    return delivery, said
