"""Reads a store back: every object that a manifest names must be there, byte for byte, and hold what it should.

Objects that no manifest names are none of a reader's business: an upload may be under way.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from storage.crc32c import crc32c
from storage.errors import FormatError, ObjectNotFoundError, in_file
from storage.log.producer_snapshot import read_snapshot_array
from storage.remote.layouts.flat import MANIFEST_EXTENSION, parse_key
from storage.remote.manifest import ObjectKind, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage.remote.layouts.flat import FlatKey
    from storage.remote.manifest import Manifest, ManifestObject
    from storage.remote.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSegment:
    """What reading one shipped segment back showed."""

    manifest_key: str
    manifest: Manifest | None
    """None where it could not be read."""
    problems: tuple[str, ...]
    """Empty if all is well."""
    size_bytes: int = 0
    """Of the objects that were read."""


def verify_store(
    store: ObjectStore, *, expect: Callable[[int, int], None], progress: Callable[[int, int], None]
) -> Iterator[VerifiedSegment]:
    """Yield a word on every manifest in ``store``, by key.

    ``expect`` is told (segments, bytes) of all there is, ``progress`` of what is done.

    Raises:
        StoreError: the store itself failed.

    """
    manifests: list[FlatKey] = []
    size_bytes = 0
    for info in store.list():
        parsed = parse_key(info.key)
        if parsed is not None and parsed.extension == MANIFEST_EXTENSION:
            manifests.append(parsed)
        elif parsed is not None:
            size_bytes += info.size_bytes
    expect(len(manifests), size_bytes)
    first_at: dict[tuple[str, str, int, int], str] = {}
    for parsed in manifests:
        verified = _verify(store, parsed.key)
        first = first_at.setdefault((parsed.cluster, parsed.topic, parsed.partition, parsed.base_offset), parsed.key)
        if first != parsed.key:
            twice = f"{parsed.key}: the same segment has another manifest: {first}"
            verified = replace(verified, problems=(*verified.problems, twice))
        progress(1, verified.size_bytes)
        yield verified


def _verify(store: ObjectStore, key: str) -> VerifiedSegment:
    try:
        with in_file(key):
            manifest = read_manifest(store.get(key))
    except FormatError as error:
        return VerifiedSegment(manifest_key=key, manifest=None, problems=(str(error),))
    problems = [problem for entry in manifest.objects for problem in _object_problems(store, entry)]
    return VerifiedSegment(
        manifest_key=key,
        manifest=manifest,
        problems=tuple(problems),
        size_bytes=sum(entry.size_bytes for entry in manifest.objects),
    )


def _object_problems(store: ObjectStore, entry: ManifestObject) -> Iterator[str]:
    size_bytes, checksum, sha256 = 0, 0, hashlib.sha256()
    kept = bytearray()
    try:
        with store.open(entry.key) as chunks:
            for chunk in chunks:
                size_bytes += len(chunk)
                checksum = crc32c(chunk, checksum)
                sha256.update(chunk)
                if entry.kind is ObjectKind.SNAPSHOT:
                    kept += chunk
    except ObjectNotFoundError:
        yield f"{entry.key}: missing"
        return
    if size_bytes != entry.size_bytes:
        yield f"{entry.key}: expected {entry.size_bytes} bytes, found {size_bytes}"
    elif checksum != entry.crc32c or sha256.hexdigest() != entry.sha256:
        yield f"{entry.key}: other bytes than the manifest says: CRC-32C {entry.crc32c:08x}, found {checksum:08x}"
    elif entry.kind is ObjectKind.SNAPSHOT:
        yield from _snapshot_problems(entry.key, bytes(kept))


def _snapshot_problems(key: str, body: bytes) -> Iterator[str]:
    try:
        with in_file(key):
            read_snapshot_array(body)
    except FormatError as error:
        yield str(error)
