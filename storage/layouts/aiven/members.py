"""The files of a segment in the layout ``aiven``, as a log dir would have them: in what pieces they are stored.

Each has a locator of its own: ``<URL of the .log object without its suffix>#.log``, and ``#.index``, ``#.timeindex``,
``#.txnindex``, ``#.snapshot`` and ``#.leader-epoch-checkpoint``. What is asked for of a segment is read chunk by chunk:
a whole chunk is fetched and kept, two at most, whatever the size of the segment.
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
"""What looks back over the edge of a chunk finds the one before it."""


class Member(NamedTuple):
    """One file of a segment."""

    stem: str
    """Locator of the segment's objects, without their suffixes."""
    suffix: str
    """As in a log dir, without the dot."""

    @property
    def locator(self) -> str:
        """What opens it."""
        return f"{self.stem}{MARK}{self.suffix}"


def member_of(locator: str) -> Member | None:
    """Return which file of a segment ``locator`` is; None for every other locator."""
    stem, mark, suffix = locator.rpartition(MARK)
    if not mark or (suffix != LOG_FILE and suffix not in INDEX_NAMES):
        return None
    return Member(stem, suffix) if stem_of(f"{stem}.log") == stem else None


def stem_of(locator: str) -> str | None:
    """Return what the locators of the objects of a segment begin with, if ``locator`` is one of them."""
    if parse_key("/".join(locator.split("/")[-KEY_PARTS:])) is None:
        return None
    return locator.rpartition(".")[0]


class _Reader(Protocol):
    """What stored bytes are read through: as ``storage.readers.RangeReader``."""

    @property
    def locator(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, position: int, length: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """How the pieces of a segment are turned into what they were made from."""

    manifest: AivenManifest
    cipher: SegmentCipher | None
    """None where nothing is encrypted."""

    @classmethod
    def of(cls, manifest: AivenManifest, keys: KeyRing) -> StoredSegment:
        """Return the segment of ``manifest``, with what opens it.

        Raises:
            ConfigurationError: it is encrypted, and the private key is not at hand, or another one.

        """
        encryption = manifest.encryption
        return cls(manifest, None if encryption is None else keys.cipher(encryption.data_key, encryption.aad))

    def index_range(self, suffix: str) -> IndexRange | None:
        """Return where the index ``suffix`` is stored in the ``.indexes`` object; None if the segment has none."""
        return self.manifest.indexes.named()[INDEX_NAMES[suffix]]

    def index_size(self, suffix: str) -> int | None:
        """Return the bytes of the index itself; None if the segment has none."""
        return index_size(self.manifest, suffix)

    def index(self, piece: bytes, place: IndexRange) -> bytes:
        """Return the index that is stored as ``piece`` at ``place``; an empty one is nothing, and not encrypted.

        Raises:
            FormatError: it is not what was stored, or not all of it.

        """
        if len(piece) != place.size:
            raise FormatError("index", position=place.position, expected=f"{place.size} bytes", found=len(piece))
        return original_piece(piece, None, is_compressed=False, cipher=self.cipher) if piece else b""

    def chunk(self, chunk: Chunk, piece: bytes) -> bytes:
        """Return the bytes of ``chunk``, which are stored as ``piece``.

        Raises:
            FormatError: they are not what was stored; ``position`` is that of the piece.

        """
        try:
            return original_piece(piece, chunk.size, is_compressed=self.manifest.compression, cipher=self.cipher)
        except FormatError as error:
            error.position += chunk.stored_position
            raise

    def open_log(self, stored: _Reader, locator: str) -> _Reader:
        """Return a reader of the segment by that of its ``.log`` object, ``stored``.

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
        """Return up to where the ``.log`` object is read, if nothing is wanted from ``end`` of the segment on."""
        chunks = self.manifest.chunks
        if end is None or not 0 < end < chunks.file_size:
            return None
        last = chunks.at(end - 1)
        return last.stored_position + last.stored_size


def index_size(manifest: AivenManifest, suffix: str) -> int | None:
    """Return the bytes of the index ``suffix``, before it was encrypted; None if the segment has none."""
    part = manifest.indexes.named()[INDEX_NAMES[suffix]]
    if part is None:
        return None
    return part.size - OVERHEAD_BYTES if manifest.encryption is not None and part.size else part.size


class ChunkedReader:
    """A segment in chunks that are compressed or encrypted, read by position; one thread may use it."""

    def __init__(self, segment: StoredSegment, stored: _Reader, locator: str) -> None:
        self.locator = locator
        self.size_bytes = segment.manifest.chunks.file_size
        self._segment, self._stored = segment, stored
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        """By the position of the chunk, the one used last at the end."""

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end.

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
