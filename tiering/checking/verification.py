"""Reads a store back, whatever its layout: what makes a segment visible, and each object that it names.

Where manifests have digests, each object must be what its digest says. Where they have none, what is stored is compared
with itself (``content_verification``). Objects that nothing names are not of a reader's concern: an upload may be under
way. All manifests are read, since what they say together (``chains``) is judged, too; the objects only of those that
are asked for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError, ObjectNotFoundError, in_file
from resnap.storage.layouts.lineage import is_one_lineage
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.producer_snapshot import read_snapshot_array
from resnap.storage.sources.files import PLAIN
from resnap.tiering.checking.content_verification import Findings, PartitionSeen, findings_of
from resnap.tiering.shipping.transaction_history import TransactionHistory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.layouts.manifest import ManifestObject
    from resnap.storage.layouts.protocol import Listing
    from resnap.storage.layouts.segments import ManifestFacts, StoredManifest
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSegment:
    """What reading one shipped segment back showed, whatever its layout."""

    manifest_key: str
    manifest: ManifestFacts | None
    """None where it could not be read."""
    problems: tuple[str, ...]
    """Empty if all is well."""
    undecided: tuple[str, ...] = ()
    """What may be wrong or right, since what it depends on was not read."""
    size_bytes: int = 0
    """Size of the objects that were read."""
    objects_read: int = 0
    is_retained_away: bool = False
    """Whether the retention of brokers, who know nothing of manifests, has taken it; ``manifest`` is None then."""
    was_read: bool = True
    """Whether its objects were read; else its manifest alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReader:
    """Verifies the segments of a store one after the other."""

    store: ObjectStore
    listing: Listing
    sources: Sources = PLAIN
    """Which open what was encrypted, too."""
    first_at: dict[tuple[str, int], tuple[str, StoredManifest]] = field(default_factory=dict)
    """The first manifest of each segment that was met, by the folder it belongs into and base offset."""
    seen: dict[str, PartitionSeen] = field(default_factory=dict)
    """What was seen of each partition, by its folder, where there are no digests."""

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment:
        """Return what the manifest at ``key`` is worth, and the objects that it names if they are to be read.

        Keys are to come in ascending order.

        Raises:
            ConfigurationError: the segment is encrypted, and its key is not at hand.
            StoreError: the store itself failed.

        """
        try:
            with in_file(key):
                found = self.listing.read(key)
        except FormatError as error:
            return VerifiedSegment(manifest_key=key, manifest=None, problems=(str(error),))
        except ObjectNotFoundError as error:
            gone = f"{error}: it was there when the store was listed"
            return VerifiedSegment(manifest_key=key, manifest=None, problems=(gone,))
        can_be_read = bool(found.objects or found.files or found.missing)
        findings = self._findings(key, found, reads_objects=reads_objects)
        if findings.problems and self.listing.is_retained_away(found):
            return VerifiedSegment(manifest_key=key, manifest=None, problems=(), is_retained_away=True)
        twice = tuple(self._contradictions(key, found))
        was_read = reads_objects and can_be_read
        return VerifiedSegment(
            manifest_key=key,
            manifest=found.facts,
            problems=(*findings.problems, *found.problems, *twice),
            undecided=findings.undecided,
            size_bytes=found.size_bytes if was_read else 0,
            objects_read=len(found.objects) if was_read else 0,
            was_read=was_read,
        )

    def _findings(self, key: str, found: StoredManifest, *, reads_objects: bool) -> Findings:
        """Return what is wrong with the objects of a segment; what those above it need of it is kept in any case."""
        files, findings = found.files, Findings(found.missing, ())
        if files is not None:
            seen = self.seen.setdefault(
                self.listing.folder(key), PartitionSeen(TransactionHistory(sources=self.sources))
            )
            if reads_objects:
                findings = findings_of(files, seen, self.sources)
            if files.snapshot is not None:
                seen.transactions.snapshots[found.facts.next_base_offset] = files.snapshot
        elif found.objects and reads_objects:
            problems = (problem for entry in found.objects for problem in _object_problems(self.store, entry))
            findings = Findings(tuple(problems), ())
        return findings if reads_objects else Findings((), ())

    def _contradictions(self, key: str, found: StoredManifest) -> Iterator[str]:
        """Yield what an earlier manifest of the same segment has that is of another log."""
        first_key, first = self.first_at.setdefault((self.listing.folder(key), found.facts.base_offset), (key, found))
        if not _may_stand_together(first, found):
            yield f"{key}: the same segment has another manifest, of another log: {first_key}"


def _may_stand_together(first: StoredManifest, other: StoredManifest) -> bool:
    """Whether both describe the same log: two runs at the same instant may leave two manifests, and both are true.

    So may two replicas, which end the segment at other offsets. Where no digests say, nothing does.
    """
    if not first.objects or not other.objects:
        return True
    if first.facts.next_base_offset != other.facts.next_base_offset:
        return is_one_lineage(first.facts, other.facts)
    return _log_digest(first) == _log_digest(other)


def _log_digest(manifest: StoredManifest) -> str | None:
    return next((one.sha256 for one in manifest.objects if one.kind is ObjectKind.LOG), None)


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
