"""Publishes a copied segment: writes its manifest last, after checking that it is still valid.

**No manifest, no segment.** A crash at any point leaves objects that nothing names, and objects that a manifest names
are never overwritten. A segment with a manifest is done, whatever T is now: listing the topic shows it, before anything
is replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import ObjectExistsError, VerificationError
from resnap.storage.layouts.manifest import TOMBSTONE
from resnap.storage.stores.protocol import length_of

if TYPE_CHECKING:
    from resnap.storage.layouts.segments import ShippedSegment
    from resnap.tiering.shipping.delivery import Delivery
    from resnap.tiering.shipping.segment_copy import CopiedSegment


def publish(delivery: Delivery, copied: CopiedSegment) -> ShippedSegment:
    """Publish a segment whose objects are stored, if it is unchanged and no other run has shipped it.

    Another run may ship the same segment: that was checked before the first object, and is checked again. If both pass
    at the same instant there are two correct manifests; readers use the one made last.

    Raises:
        ShippedMeanwhileError, SegmentChangedError, VerificationError, StoreError: as ``upload`` does.
        DeletedMeanwhileError: the objects that ``upload`` wrote were deleted.

    """
    store, layout, objects = delivery.store, copied.layout, copied.objects
    copied.listed.check_unchanged()
    for torn in layout.check_missing(copied.segment, store, objects.manifest_key):
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
        # Another run, or our own attempt whose response was lost: the key is derived from the content.
        layout.check_same(key, store.get(key), body)
    else:
        delivery.verify(key, size_bytes=len(body), checksum=crc32c(body))
    return layout.read_manifest(key, body)
