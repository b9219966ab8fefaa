"""Shipping one segment in any layout: its objects first, each made sure of, the manifest last.

**No manifest, no segment.** A crash at any point leaves objects that nothing names, and what a manifest names is never
overwritten. A segment that has a manifest is done, whatever T is now: listing the topic shows it, before anything is
replayed.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resnap.storage.crc32c import crc32c
from resnap.storage.disk import unread_error
from resnap.storage.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    VerificationError,
)
from resnap.storage.layouts.manifest import TOMBSTONE
from resnap.storage.layouts.segments import NewSegment, length_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.layouts.protocol import Layout
    from resnap.storage.layouts.segments import Provenance, SegmentObjects, ShippedSegment
    from resnap.tiering.shipping.delivery import Delivery
    from resnap.tiering.shipping.segment_bundle import SegmentBundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """A segment whose objects are in the store, and which nothing names yet."""

    layout: Layout
    segment: NewSegment
    objects: SegmentObjects
    bundle: SegmentBundle


def upload(
    delivery: Delivery,
    layout: Layout,
    provenance: Provenance,
    bundle: SegmentBundle,
    origin: SnapshotOrigin,
    *,
    created_at_ms: int,
) -> Uploaded:
    """Put the objects of one segment into the store; several segments may be on their way at once.

    Raises:
        ShippedMeanwhileError: the segment has got a manifest from another run, or from a broker.
        SegmentChangedError: the segment changed meanwhile; what was written is left for a later run.
        VerificationError: an object came back different from what was written.
        TopicIdUnknownError, TopicNameTooLongError, ConfigurationError: the layout has no place for it.
        StoreError: the store refused or failed.

    """
    segment = NewSegment(
        provenance=provenance,
        path=bundle.segment.path,
        base_offset=bundle.segment.base_offset,
        next_base_offset=bundle.next_base_offset,
        last_offset=bundle.last_offset,
        max_timestamp_ms=bundle.max_timestamp_ms,
        leader_epochs=bundle.leader_epochs,
        files=bundle.files,
        origin=origin,
        created_at_ms=created_at_ms,
    )
    with _blaming_the_segment(bundle):
        objects = layout.objects_of(segment, delivery.store)
    layout.check_missing(segment, delivery.store, objects.manifest_key)
    with _blaming_the_segment(bundle):
        delivery.each(delivery.deliver, objects.files)
    return Uploaded(layout=layout, segment=segment, objects=objects, bundle=bundle)


def publish(delivery: Delivery, uploaded: Uploaded) -> ShippedSegment:
    """Make a segment visible that was uploaded, if it is still what it was, and nobody else has shipped it.

    Another run may be at work on the same segment: it was asked for before the first object, and is again. Should both
    pass at the same instant there are two manifests, each of them true; readers take the one made last.

    Raises:
        ShippedMeanwhileError, SegmentChangedError, VerificationError, StoreError: as ``upload`` does.
        DeletedMeanwhileError: what ``upload`` wrote was deleted.

    """
    store, layout, objects = delivery.store, uploaded.layout, uploaded.objects
    uploaded.bundle.check_unchanged()
    for torn in layout.check_missing(uploaded.segment, store, objects.manifest_key):
        store.put(torn, TOMBSTONE)
    lengths = delivery.each(lambda one: length_of(store, one.key), objects.files)
    for one, length in zip(objects.files, lengths, strict=True):
        if length != one.size_bytes:
            raise VerificationError(f"{one.key}: gone or changed after it was verified", hint="run again")
    for one in objects.beside:
        delivery.deliver(one)
    key, body = objects.manifest_key, objects.manifest
    try:
        store.put(key, body, if_absent=True)
    except ObjectExistsError:
        # Another run, or our own attempt whose answer was lost: the key comes from the content.
        layout.check_same(key, store.get(key), body)
    else:
        delivery.verify(key, size_bytes=len(body), checksum=crc32c(body))
    return layout.read_manifest(key, body)


@contextmanager
def _blaming_the_segment(bundle: SegmentBundle) -> Iterator[None]:
    """Report what goes wrong as a change of the segment, if that is what it comes from."""
    try:
        yield
    except OSError as error:
        bundle.check_unchanged()
        raise unread_error(bundle.segment.path, error, hint="check the disk") from error
    except (VerificationError, ObjectNotFoundError, ObjectChangedError):
        # The body was not what it had been a moment ago: say so, if it is the segment that changed.
        bundle.check_unchanged()
        raise
