"""Verifies objects that have digests, and the transaction index of their segment against its batches.

Correct digests prove that a store has kept what was shipped, not that this was correct. Each object is read once, as
one stream: the batch headers of a log are parsed while its digests are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.replay.scan.header_scan import SegmentRange
from resnap.storage.errors import FormatError, in_file
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.indexes import read_transaction_index
from resnap.storage.log.partition_dir import Segment
from resnap.storage.log.producer_snapshot import read_snapshot_array
from resnap.tiering.shipping.segment_indexes import IndexUnusableError
from resnap.tiering.shipping.segment_pass import transactions_in
from resnap.tiering.verifying.content_verification import Findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.layouts.manifest import ManifestObject
    from resnap.storage.layouts.segments import StoredManifest
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.tiering.shipping.aborted_transactions import SegmentTransactions
    from resnap.tiering.shipping.log_digest import DigestingReader
    from resnap.tiering.verifying.content_verification import PartitionSeen

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
