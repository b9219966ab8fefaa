"""Replaces indexes of a segment in the layout ``aiven``: new ones are appended to the stored ``.indexes`` object.

A reader with the old manifest finds every byte where it says; a reader with the new one finds the new indexes. So no
reader sees a mixture, however long the plugin caches a manifest. Nothing else in the manifest changes, except that
``remoteLogSegmentMetadata``, which the plugin never reads, says whether the transaction index is empty.

Both objects are like no others: before the new indexes are random bytes, which nothing names, and before the manifest
is white space, which is random, too. So a late request that was to replace other ones is refused, even where the etag
of a store depends on the bytes alone.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.errors import FormatError, VerificationError
from resnap.storage.layouts.aiven.manifest import IndexRange, read_manifest
from resnap.storage.layouts.aiven.members import INDEX_NAMES, StoredSegment
from resnap.storage.layouts.aiven.pieces import stored_piece
from resnap.storage.layouts.claims import random_blanks
from resnap.storage.layouts.manifest import ObjectKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resnap.storage.encryption import KeyRing

_RANDOM_BYTES: Final = 16
_IS_EMPTY: Final = "txnIdxEmpty"
"""What brokers from 4.0 on say of the transaction index."""


def with_indexes(
    manifest: bytes, indexes: bytes, bodies: Mapping[ObjectKind, bytes], keys: KeyRing
) -> tuple[bytes, bytes]:
    """Return the indexes object and the manifest, with ``bodies`` replacing the indexes that differ.

    Raises:
        FormatError: the manifest is damaged, or the object lacks bytes that it names.
        ConfigurationError: the segment is encrypted, and its private key is missing.

    """
    found = read_manifest(manifest)
    if len(indexes) < found.indexes.end:
        raise FormatError("indexes", position=0, expected=f"{found.indexes.end} bytes or more", found=len(indexes))
    segment, stored = StoredSegment.of(found, keys), indexes
    cipher = segment.cipher
    new = {kind: body for kind, body in bodies.items() if _stored(segment, stored, kind) != body}
    if not new:
        return indexes, manifest
    indexes += secrets.token_bytes(_RANDOM_BYTES)
    document = json.loads(manifest)
    for kind, body in new.items():
        name = INDEX_NAMES[kind]
        # The place says what is repaired and where: no other piece of the segment was ever sealed there.
        place = f"repaired:{name}:{len(indexes)}"
        piece = stored_piece(body, place, is_compressed=False, cipher=cipher) if body else b""
        is_none = kind is ObjectKind.TXN_INDEX and not body
        document["segmentIndexes"][name] = None if is_none else IndexRange(len(indexes), len(piece))._asdict()
        indexes += piece
        _say_whether_empty(document.get("remoteLogSegmentMetadata"), kind, is_empty=is_none)
    written = random_blanks() + json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    _check(written, indexes, bodies, keys)
    return indexes, written


def _stored(segment: StoredSegment, indexes: bytes, kind: ObjectKind) -> bytes | None:
    """Return an index as it is stored, empty if there is none; None if it is damaged."""
    place = segment.index_range(kind)
    try:
        return b"" if place is None else segment.index(indexes[place.position : place.position + place.size], place)
    except FormatError:
        return None


def _say_whether_empty(metadata: Any, kind: ObjectKind, *, is_empty: bool) -> None:  # noqa: ANN401 - any JSON
    if kind is ObjectKind.TXN_INDEX and isinstance(metadata, dict) and _IS_EMPTY in metadata:
        metadata[_IS_EMPTY] = is_empty


def _check(manifest: bytes, indexes: bytes, bodies: Mapping[ObjectKind, bytes], keys: KeyRing) -> None:
    """Check that a reader of ``manifest`` finds ``bodies``: a segment whose manifest cannot be read is lost."""
    segment = StoredSegment.of(read_manifest(manifest), keys)
    for kind, body in bodies.items():
        if _stored(segment, indexes, kind) != body:
            raise VerificationError(f"the {INDEX_NAMES[kind]} that was stored is read as another one")
