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
from resnap.storage.stores.protocol import WireStore, length_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.storage.layouts.segments import NewObject, ShippedSegment
    from resnap.tiering.shipping.delivery import Delivery
    from resnap.tiering.shipping.segment_copy import CopiedSegment


def publish(delivery: Delivery, copied: CopiedSegment) -> ShippedSegment:
    """Publish a segment whose objects are stored, if it is unchanged and no other run has shipped it.

    Another run may ship the same segment: that was checked before the first object, and is checked again, unless the
    lease keeps others away. If both pass at the same instant there are two correct manifests; readers use the one made
    last. A deletion puts a tombstone to the key of the manifest first, which then is not free.

    Raises:
        ShippedMeanwhileError, SegmentChangedError, VerificationError, StoreError: as ``upload`` does.
        DeletedMeanwhileError: the objects that ``upload`` wrote were deleted.

    """
    store, layout, objects = delivery.store, copied.layout, copied.objects
    copied.order.check_unchanged()
    for torn in layout.check_missing(copied.segment, store, objects.manifest_key):
        store.put(torn, TOMBSTONE)
    for gone in _not_there(delivery, objects.files):
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
    return layout.read_manifest(key, body)


def _not_there(delivery: Delivery, objects: Sequence[NewObject]) -> Iterator[str]:
    """Yield the keys of ``objects`` that are missing, or of another length; where they are together, one listing does.

    Of a directory it would read the names of the whole partition.
    """
    store, left = delivery.store, {new.key: new.size_bytes for new in objects}
    first, *others = {key.rpartition(".")[0] for key in left}
    if isinstance(store, WireStore) and not others:
        for info in store.list(f"{first}."):
            if left.get(info.key) == info.size_bytes:
                del left[info.key]
            if not left:
                return
    lengths = delivery.each(lambda key: length_of(store, key), list(left))
    yield from (key for key, length in zip(left, lengths, strict=True) if length != left[key])
