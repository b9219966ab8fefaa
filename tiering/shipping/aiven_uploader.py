"""Shipping into the layout ``aiven``: what the plugin would have written, in its order.

Log, indexes, manifest: the manifest makes the segment whole, and was read back as strictly as a broker will. Brokers do
not see it before their own metadata name it. The id of a segment comes from everything its objects come from, down to
the sizes of its chunks, and of an encrypted one from what was drawn for it: two runs never write other bytes under one
key, and a key is never written by a broker, whose ids are drawn. Before the manifest an object of ours says where the
snapshot comes from, which the plugin never asks for.

Source: ``KafkaRemoteStorageManager.copyLogSegmentData`` of the plugin; ``RemoteLogManager.copyLogSegment``.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.crc32c import crc32c
from resnap.storage.disk import unread_error
from resnap.storage.errors import (
    ConfigurationError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    VerificationError,
)
from resnap.storage.layouts.aiven.body import (
    AivenForm,
    LogBody,
    StoredLog,
    is_compressed_already,
    plain_chunks,
    stored_log,
)
from resnap.storage.layouts.aiven.chunks import INT_MAX, ListedSizes
from resnap.storage.layouts.aiven.encryption import new_cipher
from resnap.storage.layouts.aiven.keys import (
    INDEXES,
    LOG,
    MANIFEST,
    object_key,
    parse_key,
    segment_id,
    segment_prefix,
)
from resnap.storage.layouts.aiven.manifest import (
    AivenManifest,
    Encryption,
    IndexRange,
    IndexRanges,
    write_manifest,
)
from resnap.storage.layouts.aiven.metadata import SegmentMetadata
from resnap.storage.layouts.aiven.origin import origin_key, write_origin
from resnap.storage.layouts.aiven.pieces import stored_piece
from resnap.storage.layouts.manifest import ObjectKind
from resnap.tiering.shipping.shipped import AivenManifests, ShippedSegment
from resnap.tiering.shipping.uploader import ShippedMeanwhileError, TopicIdUnknownError, check_length

if TYPE_CHECKING:
    from resnap.storage.layouts.aiven.encryption import SegmentCipher
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.stores.protocol import BodyOpener, ObjectStore
    from resnap.tiering.shipping.delivery import Delivery
    from resnap.tiering.shipping.segment_bundle import BundlePart, SegmentBundle
    from resnap.tiering.shipping.uploader import Provenance

_INDEXES = (
    ("offset", ObjectKind.INDEX),
    ("timestamp", ObjectKind.TIME_INDEX),
    ("producer_snapshot", ObjectKind.SNAPSHOT),
    ("leader_epoch", ObjectKind.LEADER_EPOCH_CHECKPOINT),
    ("transaction", ObjectKind.TXN_INDEX),
)
"""In the order in which they are stored."""
_UNKNOWN_BROKER = -1


class _Contents(NamedTuple):
    """What the objects of a segment will hold."""

    log: StoredLog
    indexes: bytes
    ranges: dict[str, IndexRange | None]
    encryption: Encryption | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A segment whose objects are in the store, but for its manifest."""

    keys: dict[str, str]
    """By suffix."""
    sizes: dict[str, int]
    """Likewise, of the two objects that are there."""
    body: bytes
    """Of the manifest."""
    form: AivenForm
    provenance: Provenance
    bundle: SegmentBundle
    origin: SnapshotOrigin


def copy(
    delivery: Delivery,
    provenance: Provenance,
    bundle: SegmentBundle,
    origin: SnapshotOrigin,
    form: AivenForm,
    *,
    created_at_ms: int,
) -> Copied:
    """Put log and indexes of one segment into the store; several segments may be on their way at once.

    Raises:
        ShippedMeanwhileError: the segment has got a manifest from another run, or from a broker.
        SegmentChangedError: the segment changed meanwhile; what was written is left.
        TopicIdUnknownError: nothing tells the topic's id, which is part of the keys.
        TopicNameTooLongError: the topic's name is part of the keys, too.
        ConfigurationError: the plugin could not read the segment's end in chunks of this size.
        VerificationError: an object came back different from what was written.
        StoreError: the store refused or failed.

    """
    if provenance.topic_id is None:
        raise TopicIdUnknownError(f"{bundle.segment.path}: nothing tells the id of {provenance.topic_partition.topic}")
    place, base_offset = provenance.topic_partition, bundle.segment.base_offset
    check_length(segment_prefix(place, provenance.topic_id, base_offset, prefix=form.key_prefix), bundle)
    if bundle.segment.size_bytes + form.chunk_size > INT_MAX:
        raise ConfigurationError(
            f"{bundle.segment.path}: {bundle.segment.size_bytes} bytes and a chunk of {form.chunk_size} are more than"
            f" {INT_MAX}, beyond which the plugin reads wrong chunks",
            hint="give a smaller --chunk-size",
        )
    _check_still_missing(delivery.store, provenance, bundle, form)
    try:
        contents = _contents(bundle, form)
        manifest = _manifest(provenance, bundle, contents, created_at_ms)
        body = write_manifest(manifest)
        keys = {suffix: _key(provenance, bundle, form, manifest, suffix) for suffix in (LOG, INDEXES, MANIFEST)}
        _deliver(delivery, keys, contents)
    except OSError as error:
        bundle.check_unchanged()
        raise unread_error(bundle.segment.path, error, hint="check the disk") from error
    except (VerificationError, ObjectNotFoundError, ObjectChangedError):
        # The body was not what it had been a moment ago: say so, if it is the segment that changed.
        bundle.check_unchanged()
        raise
    sizes = {LOG: contents.log.size_bytes, INDEXES: len(contents.indexes)}
    return Copied(keys=keys, sizes=sizes, body=body, form=form, provenance=provenance, bundle=bundle, origin=origin)


def publish(delivery: Delivery, copied: Copied) -> ShippedSegment:
    """Write the manifest of a segment that was copied, if it is still what it was, and nobody else has shipped it.

    Raises:
        ShippedMeanwhileError, SegmentChangedError, VerificationError, StoreError: as ``copy`` does.

    """
    bundle, key, store = copied.bundle, copied.keys[MANIFEST], delivery.store
    bundle.check_unchanged()
    _check_still_missing(store, copied.provenance, bundle, copied.form)
    for suffix, size in copied.sizes.items():
        if _length(store, copied.keys[suffix]) != size:
            raise VerificationError(f"{copied.keys[suffix]}: gone or changed after it was verified", hint="run again")
    _tell_origin(delivery, key, copied.origin)
    try:
        store.put(key, copied.body, if_absent=True)
    except ObjectExistsError:
        # Our own attempt whose answer was lost, or a run that did the same: the key comes from the content.
        pass
    else:
        delivery.verify(key, size_bytes=len(copied.body), checksum=crc32c(copied.body))
    manifests = AivenManifests(copied.form.key_prefix, copied.provenance.topic_partition.topic)
    return manifests.read(key, store.get(key))


def _tell_origin(delivery: Delivery, manifest_key: str, origin: SnapshotOrigin) -> None:
    """Say where the snapshot comes from, for whoever reads the store by Resnap: the manifest has no room for it."""
    place = parse_key(manifest_key)
    if place is None:
        raise AssertionError(f"{manifest_key} is no key of a manifest")
    body = write_origin(origin)
    delivery.deliver(origin_key(place), lambda: io.BytesIO(body), size_bytes=len(body), checksum=crc32c(body))


def _check_still_missing(store: ObjectStore, provenance: Provenance, bundle: SegmentBundle, form: AivenForm) -> None:
    place, base_offset = provenance.topic_partition, bundle.segment.base_offset
    for info in store.list(segment_prefix(place, provenance.topic_id or "", base_offset, prefix=form.key_prefix)):
        parsed = parse_key(info.key.removeprefix(form.key_prefix))
        if parsed is not None and parsed.suffix == MANIFEST:
            raise ShippedMeanwhileError(f"{info.key}: another run, or a broker, has shipped the segment", key=info.key)


def _length(store: ObjectStore, key: str) -> int | None:
    try:
        return store.head(key).size_bytes
    except ObjectNotFoundError:
        return None


def _contents(bundle: SegmentBundle, form: AivenForm) -> _Contents:
    """Return what will be stored; of an encrypted segment no two calls give the same."""
    parts = {part.kind: part for part in bundle.parts}
    cipher, encryption = None, None
    if form.encryption_key is not None:
        cipher, wrapped = new_cipher(form.encryption_key)
        encryption = Encryption(data_key=wrapped, aad=cipher.aad)
    return _Contents(_stored_log(parts[ObjectKind.LOG], form, cipher), *_stored_indexes(parts, cipher), encryption)


def _deliver(delivery: Delivery, keys: dict[str, str], contents: _Contents) -> None:
    log, indexes = contents.log, contents.indexes
    delivery.deliver(keys[LOG], log.open_body, size_bytes=log.size_bytes, checksum=log.crc32c)
    delivery.deliver(keys[INDEXES], lambda: io.BytesIO(indexes), size_bytes=len(indexes), checksum=crc32c(indexes))


def _stored_log(log: BundlePart, form: AivenForm, cipher: SegmentCipher | None) -> StoredLog:
    compresses = form.compression == "zstd" or (
        form.compression == "heuristic" and not is_compressed_already(log.open_body)
    )
    if compresses or cipher is not None:
        body = LogBody(open=log.open_body, size_bytes=log.size_bytes, crc32c=log.crc32c)
        return stored_log(body, form.chunk_size, is_compressed=compresses, cipher=cipher)
    chunks = plain_chunks(log.size_bytes, form.chunk_size)
    return StoredLog(chunks=chunks, open_body=log.open_body, size_bytes=log.size_bytes, crc32c=log.crc32c)


def _stored_indexes(
    parts: dict[ObjectKind, BundlePart], cipher: SegmentCipher | None
) -> tuple[bytes, dict[str, IndexRange | None]]:
    """Return the ``.indexes`` object, and where each index lies in it; an empty one takes no room."""
    stored, ranges = b"", dict[str, IndexRange | None]()
    for name, kind in _INDEXES:
        if kind not in parts:
            ranges[name] = None
            continue
        data = _content(parts[kind].open_body)
        piece = stored_piece(data, name, is_compressed=False, cipher=cipher) if data else b""
        ranges[name] = IndexRange(len(stored), len(piece))
        stored += piece
    return stored, ranges


def _content(open_body: BodyOpener) -> bytes:
    with open_body() as body:
        return body.read()


def _manifest(provenance: Provenance, bundle: SegmentBundle, contents: _Contents, created_at_ms: int) -> AivenManifest:
    return AivenManifest(
        chunks=contents.log.chunks,
        indexes=IndexRanges(**contents.ranges),  # type: ignore[arg-type] # only the transaction index may be missing
        compression=isinstance(contents.log.chunks.stored, ListedSizes),
        encryption=contents.encryption,
        segment=SegmentMetadata(
            topic=provenance.topic_partition.topic,
            topic_id=provenance.topic_id or "",
            partition=provenance.topic_partition.partition,
            segment_id=_segment_id(provenance, bundle, contents),
            start_offset=bundle.segment.base_offset,
            end_offset=bundle.next_base_offset - 1,
            max_timestamp_ms=bundle.max_timestamp_ms,
            broker_id=_UNKNOWN_BROKER if provenance.broker_id is None else provenance.broker_id,
            event_timestamp_ms=created_at_ms,
            leader_epochs=bundle.leader_epochs,
        ),
    )


def _segment_id(provenance: Provenance, bundle: SegmentBundle, contents: _Contents) -> str:
    """Return an id that no segment with other bytes in any of its objects has."""
    place, index, encryption = provenance.topic_partition, contents.log.chunks, contents.encryption
    return segment_id(
        {
            "cluster": provenance.cluster_id,
            "topic": [place.topic, provenance.topic_id, place.partition],
            "offsets": [bundle.segment.base_offset, bundle.next_base_offset],
            "digests": {part.kind: part.sha256 for part in bundle.parts},
            "chunks": [index.chunk_size, list(index.stored.sizes) if isinstance(index.stored, ListedSizes) else None],
            "log": contents.log.crc32c,
            "encryption": None if encryption is None else [encryption.data_key.wrapped.hex(), encryption.aad.hex()],
        }
    )


def _key(provenance: Provenance, bundle: SegmentBundle, form: AivenForm, manifest: AivenManifest, suffix: str) -> str:
    metadata = manifest.segment
    if metadata is None:
        raise AssertionError("every manifest we make tells of its segment")
    base_offset = bundle.segment.base_offset
    return object_key(
        provenance.topic_partition, metadata.topic_id, base_offset, metadata.segment_id, suffix, prefix=form.key_prefix
    )
