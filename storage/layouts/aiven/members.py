"""The files of a segment in the layout ``aiven``, as a log dir would have them, and the stored pieces of each.

Each file has a locator of its own: ``<URL of the .log object without its suffix>#.log``, and ``#.index``,
``#.timeindex``, ``#.txnindex``, ``#.snapshot`` and ``#.leader-epoch-checkpoint``. A segment is read chunk by chunk:
whole chunks are fetched, and at most two are kept, whatever the size of the segment.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from resnap.storage.encryption import OVERHEAD_BYTES
from resnap.storage.errors import FormatError, in_file
from resnap.storage.layouts.aiven.keys import parse_key
from resnap.storage.layouts.aiven.pieces import original_piece

if TYPE_CHECKING:
    from resnap.storage.encryption import KeyRing, SegmentCipher
    from resnap.storage.layouts.aiven.chunks import Chunk
    from resnap.storage.layouts.aiven.manifest import AivenManifest, IndexRange

LOG_FILE: Final = "log"
INDEX_NAMES: Final = {
    "index": "offset",
    "timeindex": "timestamp",
    "snapshot": "producerSnapshot",
    "leader-epoch-checkpoint": "leaderEpoch",
    "txnindex": "transaction",
}
"""By suffix in a log dir: what a manifest calls it; in the order in which they are stored."""
MARK: Final = "#."
KEY_PARTS: Final = 3
"""Number of parts of a key without its prefix."""
_KEPT_CHUNKS: Final = 2
"""A read back over the edge of a chunk finds the previous one cached."""


class Member(NamedTuple):
    """One file of a segment."""

    stem: str
    """Locator of the segment's objects, without their suffixes."""
    suffix: str
    """As in a log dir, without the dot."""

    @property
    def locator(self) -> str:
        """The locator that opens it."""
        return f"{self.stem}{MARK}{self.suffix}"


def member_of(locator: str) -> Member | None:
    """Return which file of a segment ``locator`` names; None for any other locator."""
    stem, mark, suffix = locator.rpartition(MARK)
    if not mark or (suffix != LOG_FILE and suffix not in INDEX_NAMES):
        return None
    return Member(stem, suffix) if stem_of(f"{stem}.log") == stem else None


def stem_of(locator: str) -> str | None:
    """Return the common beginning of the locators of a segment's objects, if ``locator`` is one of them."""
    if parse_key("/".join(locator.split("/")[-KEY_PARTS:])) is None:
        return None
    return locator.rpartition(".")[0]


class _Reader(Protocol):
    """The reader of stored bytes: as ``storage.readers.RangeReader``."""

    @property
    def locator(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, position: int, length: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """Decodes the stored pieces of a segment."""

    manifest: AivenManifest
    cipher: SegmentCipher | None
    """None where nothing is encrypted."""

    @classmethod
    def of(cls, manifest: AivenManifest, keys: KeyRing) -> StoredSegment:
        """Return the segment of ``manifest``, with the cipher that decrypts it.

        Raises:
            ConfigurationError: it is encrypted, and its private key is missing or is another one.

        """
        encryption = manifest.encryption
        return cls(manifest, None if encryption is None else keys.cipher(encryption.data_key, encryption.aad))

    def index_range(self, suffix: str) -> IndexRange | None:
        """Return where the index ``suffix`` lies in the ``.indexes`` object; None if there is none."""
        return self.manifest.indexes.named()[INDEX_NAMES[suffix]]

    def index(self, piece: bytes, place: IndexRange) -> bytes:
        """Return the index that is stored as ``piece`` at ``place``; an empty one is not encrypted.

        Raises:
            FormatError: it is damaged or incomplete.

        """
        if len(piece) != place.size:
            raise FormatError("index", position=place.position, expected=f"{place.size} bytes", found=len(piece))
        return original_piece(piece, None, is_compressed=False, cipher=self.cipher) if piece else b""

    def chunk(self, chunk: Chunk, piece: bytes) -> bytes:
        """Return the original bytes of ``chunk``, which is stored as ``piece``.

        Raises:
            FormatError: the piece is damaged; ``position`` is that of the piece.

        """
        try:
            return original_piece(piece, chunk.size, is_compressed=self.manifest.compression, cipher=self.cipher)
        except FormatError as error:
            error.position += chunk.stored_position
            raise

    def open_log(self, stored: _Reader, locator: str) -> _Reader:
        """Return a reader of the segment, given ``stored``, a reader of its ``.log`` object.

        Raises:
            FormatError: the object is not as long as the manifest says.

        """
        chunks = self.manifest.chunks
        if stored.size_bytes != chunks.stored_size:
            with in_file(stored.locator):
                raise FormatError("chunks of a segment", position=0, expected=f"{chunks.stored_size} bytes",
                                  found=stored.size_bytes)  # fmt: skip
        return stored if self.manifest.is_plain else ChunkedReader(self, stored, locator)

    def stored_end(self, end: int | None) -> int | None:
        """Return how far the ``.log`` object is read if only the segment's bytes before ``end`` are wanted."""
        chunks = self.manifest.chunks
        if end is None or not 0 < end < chunks.file_size:
            return None
        last = chunks.at(end - 1)
        return last.stored_position + last.stored_size


def index_size(manifest: AivenManifest, suffix: str) -> int | None:
    """Return the size of the index ``suffix`` before encryption, in bytes; None if the segment has none."""
    part = manifest.indexes.named()[INDEX_NAMES[suffix]]
    if part is None:
        return None
    return part.size - OVERHEAD_BYTES if manifest.encryption is not None and part.size else part.size


class ChunkedReader:
    """Reads a segment of compressed or encrypted chunks by position; for one thread only."""

    def __init__(self, segment: StoredSegment, stored: _Reader, locator: str) -> None:
        self.locator = locator
        self.size_bytes = segment.manifest.chunks.file_size
        self._segment, self._stored = segment, stored
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        """By the position of the chunk, the one used last at the end."""

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only at the end.

        Raises:
            FormatError: a chunk is damaged.
            ObjectNotFoundError, ObjectChangedError: the object was deleted or replaced since it was opened.
            StoreError: the store failed.

        """
        end = min(position + length, self.size_bytes)
        pieces: list[memoryview] = []
        at = position
        while at < end:
            chunk = self._segment.manifest.chunks.at(at)
            data = memoryview(self._chunk(chunk))
            pieces.append(data[at - chunk.position : end - chunk.position])
            at = chunk.position + chunk.size
        return b"".join(pieces)

    def _chunk(self, chunk: Chunk) -> bytes:
        if chunk.position not in self._kept:
            while len(self._kept) >= _KEPT_CHUNKS:
                self._kept.popitem(last=False)
            piece = self._stored.read(chunk.stored_position, chunk.stored_size)
            with in_file(self._stored.locator):
                self._kept[chunk.position] = self._segment.chunk(chunk, piece)
        self._kept.move_to_end(chunk.position)
        return self._kept[chunk.position]
