"""Reads a store back, in any layout: each manifest, and each object that it names.

If manifests have digests, each object must match its digest, and the transaction index the batches. Correct digests
prove that a store has kept what was shipped, not that this was correct. Each object is read once, as one stream: the
batch headers of a log are parsed while its digests are computed. If manifests have none, the stored objects are checked
against each other (``content_verification``). Objects that nothing names are ignored: an upload may be in progress. All
manifests are read, because the chains that they make are judged, too; objects only of the selected ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from resnap.replay.scan.header_scan import SegmentRange
from resnap.storage.errors import FormatError, ObjectNotFoundError, StoreAccessError, in_file
from resnap.storage.layouts.lineage import is_one_lineage
from resnap.storage.layouts.local_tiered import BrokersFolders
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.indexes import read_transaction_index
from resnap.storage.log.partition_dir import Segment
from resnap.storage.log.producer_snapshot import read_snapshot_array
from resnap.storage.sources.files import PLAIN
from resnap.storage.stores.ranged_reader import FIRST_BYTES
from resnap.tiering.shipping.aborted_transactions import Findings
from resnap.tiering.shipping.segment_indexes import IndexUnusableError, TransactionHistory
from resnap.tiering.shipping.segment_pass import DigestingReader, transactions_in
from resnap.tiering.verifying.content_verification import (
    PartitionSeen,
    SegmentContent,
    judge,
    not_readable,
    read_content,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.layouts.manifest import ManifestFacts, ManifestObject
    from resnap.storage.layouts.segments import Listing, StoredManifest
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.shipping.aborted_transactions import SegmentTransactions

_BLOCK_BYTES: Final = 1 << 20
"""A scan of headers reads back no further than this from its last position."""


@dataclass(slots=True, kw_only=True)
class ObjectContents:
    """The facts from a segment's objects; a plain value, so that executors can read them."""

    base_offset: int
    next_base_offset: int
    problems: tuple[str, ...] = ()
    transactions: SegmentTransactions | None = None
    """What the batches say of transactions; None where the log is damaged."""
    aborted: tuple[AbortedTxn, ...] | None = ()
    """The entries of the transaction index, which there need not be; None where it is damaged."""

    def read_log(self, reader: DigestingReader) -> None:
        """Read the batches of a log; a replay reports damage in them."""
        segment = SegmentRange(
            locator=reader.locator, base_offset=self.base_offset, next_base_offset=self.next_base_offset
        )
        try:
            self.transactions = transactions_in(reader, segment)
        except FormatError:
            self.transactions = None

    def read_small(self, entry: ManifestObject, body: bytes) -> Iterator[str]:
        """Read a small object with correct digests, and yield what is wrong with its format."""
        try:
            with in_file(entry.key):
                if entry.kind is ObjectKind.SNAPSHOT:
                    read_snapshot_array(body, self.next_base_offset)
                elif entry.kind is ObjectKind.TXN_INDEX:
                    self.aborted = None
                    self.aborted = tuple(read_transaction_index(body))
        except FormatError as error:
            yield str(error)


class ChunkReader:
    """A ``RangeReader`` of an object that arrives in chunks; chunks far below the last position read are dropped."""

    def __init__(self, entry: ManifestObject, chunks: Iterator[bytes], check_wanted: Callable[[], None]) -> None:
        self.locator, self.size_bytes = entry.key, entry.size_bytes
        self._chunks, self._check_wanted = chunks, check_wanted
        self._kept, self._kept_from = bytearray(), 0

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        below = position - _BLOCK_BYTES - self._kept_from
        if below > _BLOCK_BYTES:
            del self._kept[:below]
            self._kept_from += below
        while self._kept_from + len(self._kept) < position + length:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._check_wanted()
            self._kept += chunk
        if position < self._kept_from:
            raise AssertionError(f"{self.locator}: byte {position} is no longer kept")
        start = position - self._kept_from
        return bytes(memoryview(self._kept)[start : start + length])


Contents: TypeAlias = SegmentContent | ObjectContents
"""What was read of files that have no digests, or of objects that have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSegment:
    """The result of reading one shipped segment back, in any layout."""

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
    """Whether brokers' retention, which does not know manifests, has deleted it; ``manifest`` is None then."""
    was_read: bool = True
    """Whether its objects were read; else its manifest alone."""
    remedy: str = ""
    """What its layout says to do about ``problems``."""


@dataclass(slots=True, kw_only=True)
class StoreReader:
    """Verifies the segments of a store; they may be read in parallel, and are judged one after the other."""

    store: ObjectStore
    listing: Listing
    sources: Sources = PLAIN
    """Which open what was encrypted, too."""
    read_elsewhere: Callable[[StoredManifest], Contents] | None = None
    """Reads the objects of a segment in another process; None to read them in the calling thread."""
    first_at: dict[tuple[str, int], StoredManifest] = field(default_factory=dict)
    """The first manifest of each segment that was met, by the folder it belongs into and base offset."""
    logs: set[str] = field(default_factory=set)
    """Keys of the logs that manifests name."""
    seen: dict[str, PartitionSeen] = field(default_factory=dict)
    """What was seen of each partition, by its folder."""
    _brokers: BrokersFolders = field(init=False)

    def __post_init__(self) -> None:
        """Begin to collect what brokers deleted on their own."""
        self._brokers = BrokersFolders(self.store)

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment:
        """Read and judge the manifest at ``key``; raises as ``read`` does, with keys in the order of ``judge``."""
        return self.judge(key, *self.read(key, reads_objects=reads_objects), was_read=reads_objects)

    def read(
        self, key: str, *, reads_objects: bool, check_wanted: Callable[[], None] = lambda: None
    ) -> tuple[StoredManifest | str, Contents | None]:
        """Return the manifest at ``key``, or why it cannot be read, and what its objects hold if they are wanted.

        It may be called from any thread. ``check_wanted`` is called regularly, and raises to stop.

        Raises:
            ConfigurationError: the segment is encrypted, and its key is not at hand.
            StoreError: the store itself failed.

        """
        try:
            with in_file(key):
                found = self.listing.read(key)
        except FormatError as error:
            return str(error), None
        except StoreAccessError as error:
            return not_readable(key, error), None
        except ObjectNotFoundError as error:
            return f"{error}: it was there when the store was listed", None
        if not reads_objects or not (found.objects or found.files):
            return found, None
        here = partial(read_stored, store=self.store, sources=self.sources, check_wanted=check_wanted)
        return found, (self.read_elsewhere or here)(found)

    def judge(
        self, key: str, found: StoredManifest | str, content: Contents | None, *, was_read: bool
    ) -> VerifiedSegment:
        """Return the result for the manifest at ``key``, given what ``read`` has returned; keys must ascend.

        ``was_read`` is whether its objects were selected.

        Raises:
            StoreError: the store itself failed.

        """
        if isinstance(found, str):
            return VerifiedSegment(manifest_key=key, manifest=None, problems=(found,))
        self.logs.update(part.key for part in found.objects if part.kind is ObjectKind.LOG)
        findings = self._findings(found, content, found.missing if was_read else ())
        named = [part.key for part in found.objects]
        if findings.problems and self._brokers.have_lost(found.facts.base_offset, named):
            return VerifiedSegment(manifest_key=key, manifest=None, problems=(), is_retained_away=True)
        twice = tuple(self._contradictions(found))
        was_read = was_read and bool(found.objects or found.files or found.missing)
        return VerifiedSegment(
            manifest_key=key,
            manifest=found.facts,
            problems=(*findings.problems, *found.problems, *twice),
            undecided=findings.undecided,
            size_bytes=found.size_bytes if was_read else 0,
            objects_read=len(found.objects) if was_read else 0,
            was_read=was_read,
        )

    def _findings(self, found: StoredManifest, content: Contents | None, missing: tuple[str, ...]) -> Findings:
        """Return what is wrong with a segment's objects, and keep what the segments above it need."""
        findings = Findings(missing, ())
        folder = self.listing.folder(found.key)
        seen = self.seen.setdefault(folder, PartitionSeen(TransactionHistory(sources=self.sources)))
        snapshot: str | None = f"{self.store.url}/{found.facts.snapshot_key}"
        if found.files is not None:
            snapshot = found.files.snapshot
            if isinstance(content, SegmentContent):
                findings = judge(found.files, content, seen)
        elif isinstance(content, ObjectContents):
            findings = judge_objects(found, content, seen, self.store.url)
        if snapshot is not None:
            seen.transactions.snapshots[found.facts.next_base_offset] = snapshot
        return findings

    def _contradictions(self, found: StoredManifest) -> Iterator[str]:
        """Yield where an earlier manifest of the same segment is of another log."""
        first = self.first_at.setdefault((self.listing.folder(found.key), found.facts.base_offset), found)
        if not _may_stand_together(first, found):
            yield f"{found.key}: the same segment has another manifest, of another log: {first.key}"


def _may_stand_together(first: StoredManifest, other: StoredManifest) -> bool:
    """Whether both describe the same log: two concurrent runs may leave two manifests, both correct.

    So may two replicas, which end the segment at other offsets. Without digests this cannot be decided.
    """
    if not first.objects or not other.objects:
        return True
    if first.facts.next_base_offset != other.facts.next_base_offset:
        return is_one_lineage(first.facts, other.facts)
    return _log_digest(first) == _log_digest(other)


def _log_digest(manifest: StoredManifest) -> str | None:
    return next((part.sha256 for part in manifest.objects if part.kind is ObjectKind.LOG), None)


def read_stored(
    found: StoredManifest, store: ObjectStore, sources: Sources, check_wanted: Callable[[], None] = lambda: None
) -> Contents:
    """Read the objects of a segment; ``check_wanted`` is called regularly, and raises to stop.

    Raises:
        ConfigurationError: the segment is encrypted, and its key is not at hand.
        StoreError: the store failed.

    """
    if found.files is not None:
        return read_content(found.files, sources, check_wanted)
    contents = ObjectContents(base_offset=found.facts.base_offset, next_base_offset=found.facts.next_base_offset)
    contents.problems = tuple(
        problem for entry in found.objects for problem in _object_problems(store, entry, check_wanted, contents)
    )
    return contents


def read_stored_at(store_url: str, sources: Sources, found: StoredManifest) -> Contents:
    """Return what ``read_stored`` reads in the store at ``store_url``, on an executor."""
    return read_stored(found, sources.store(store_url), sources)


def _object_problems(
    store: ObjectStore, entry: ManifestObject, check_wanted: Callable[[], None], contents: ObjectContents
) -> Iterator[str]:
    problem: str | None
    # A log is kept only if a replay would read it by one request anyway; nothing beyond the size is trusted.
    is_large_log = entry.kind is ObjectKind.LOG and entry.size_bytes > FIRST_BYTES
    end = None if is_large_log else entry.size_bytes + 1
    try:
        with store.open(entry.key, 0, end) as chunks:
            read = DigestingReader(ChunkReader(entry, chunks, check_wanted))
            body = b""
            if entry.kind is ObjectKind.LOG:
                contents.read_log(read)
            elif entry.kind in {ObjectKind.SNAPSHOT, ObjectKind.TXN_INDEX}:
                body = read.read(0, entry.size_bytes)
            read.finish()
    except ObjectNotFoundError:
        problem = f"{entry.key}: missing"
    except StoreAccessError as error:
        problem = not_readable(entry.key, error)
    else:
        problem = _by_digest(entry, read)
    if problem is None:
        yield from contents.read_small(entry, body)
        return
    yield problem
    if entry.kind is ObjectKind.LOG:
        contents.transactions = None
    elif entry.kind is ObjectKind.TXN_INDEX:
        contents.aborted = None


def _by_digest(entry: ManifestObject, read: DigestingReader) -> str | None:
    if read.digested_bytes != entry.size_bytes:
        found = "more" if read.digested_bytes > entry.size_bytes else read.digested_bytes
        return f"{entry.key}: expected {entry.size_bytes} bytes, found {found}"
    if read.crc32c != entry.crc32c or read.sha256 != entry.sha256:
        return f"{entry.key}: other bytes than the manifest says: CRC-32C {entry.crc32c:08x}, found {read.crc32c:08x}"
    return None


def judge_objects(found: StoredManifest, contents: ObjectContents, seen: PartitionSeen, store_url: str) -> Findings:
    """Return what is wrong with a segment's objects, also considering what was ``seen`` in those below.

    Raises:
        StoreError: the store failed.

    """
    keys = {entry.kind: f"{store_url}/{entry.key}" for entry in found.objects}
    if contents.transactions is None or contents.aborted is None or ObjectKind.LOG not in keys:
        return Findings(contents.problems, ())
    segment = Segment(
        base_offset=found.facts.base_offset,
        next_base_offset=found.facts.next_base_offset,
        path=keys[ObjectKind.LOG],
        size_bytes=found.facts.log_bytes,
        mtime_ns=0,
        inode=0,
        index_bytes=None,
        timeindex_bytes=None,
        txnindex_bytes=None,
        transaction_index=keys.get(ObjectKind.TXN_INDEX),
    )
    try:
        # Unknown transactions from below cause no doubt: the digest proves that the index is as shipped.
        seen.transactions.check(segment, contents.transactions, contents.aborted)
    except IndexUnusableError as error:
        return Findings((*contents.problems, str(error)), ())
    return Findings(contents.problems, ())
