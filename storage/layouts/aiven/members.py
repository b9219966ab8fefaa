"""The objects of a segment in the layout ``aiven``: their keys, and the files of a log dir in them.

Each file has a locator of its own: ``<URL of the .log object without its suffix>#.log``, and ``#.index``,
``#.timeindex``, ``#.txnindex``, ``#.snapshot`` and ``#.leader-epoch-checkpoint``. A segment is read chunk by chunk:
whole chunks are fetched, and at most two are kept, whatever the size of the segment.

Object keys of the layout ``aiven``, as Aiven's RemoteStorageManager plugin makes them.

    <key prefix><topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>.<suffix>

Three objects make a segment: ``log`` (in chunks, each of which may be compressed and encrypted), ``indexes`` (all of
them, one after the other) and ``rsm-manifest``, which is written last. Ids are Kafka's: 16 bytes in URL-safe base64, 22
characters that may be dashes. A key prefix is put before the topic as it is, without a slash of its own.

Source: ``ObjectKeyFactory`` of Aiven's tiered-storage-for-apache-kafka, 1.0.0.

The origin of a snapshot that Resnap shipped is an object of its own, beside the leases:

    <key prefix, up to its last slash>.resnap/origin/<topic>-<topic id>/<partition>/<base offset>-<segment id>.json

The plugin's manifest has no field for it, and brokers never read this object (its form: ``write_origin``). It is
written before the manifest, so that every segment that Resnap shipped has one.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID, uuid5

from resnap.storage.encryption import OVERHEAD_BYTES
from resnap.storage.errors import FormatError, in_file
from resnap.storage.layouts.aiven.manifest import INDEX_NAMES
from resnap.storage.layouts.aiven.pieces import original_piece
from resnap.storage.layouts.segment_key import SegmentKey, parsed_key
from resnap.storage.log.names import OFFSET_DIGITS
from resnap.storage.messages.wire import uuid_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resnap.storage.encryption import KeyRing, SegmentCipher
    from resnap.storage.layouts.aiven.manifest import AivenManifest, IndexRange
    from resnap.storage.layouts.aiven.pieces import Chunk
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.readers import RangeReader

LOG: Final = "log"
INDEXES: Final = "indexes"
MANIFEST: Final = "rsm-manifest"
SEGMENT_ID_NAMESPACE: Final = UUID("9e73fb0f-3c97-461d-a12d-c3045cc48ddb")
"""Namespace of the UUIDv5 that our segment ids are; drawn once, and must never change."""
TOPIC_PART: Final = re.compile(r"[A-Za-z0-9._-]*")
"""What a topic, and the end of a key prefix in front of it, may consist of."""
_ID: Final = r"[A-Za-z0-9_-]{22}"
_KEY = re.compile(
    rf"(?P<prefix>(?:.*/)?)(?P<topic>[A-Za-z0-9._-]{{1,249}})-(?P<topic_id>{_ID})/(?P<partition>0|[1-9][0-9]{{0,9}})"
    rf"/(?P<base_offset>[0-9]{{{OFFSET_DIGITS}}})-(?P<segment_id>{_ID})\.(?P<suffix>{LOG}|{INDEXES}|{MANIFEST})"
)
ORIGINS: Final = ".resnap/origin/"
_EXTENSION: Final = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenKey(SegmentKey):
    """An object key of this layout, taken apart."""

    prefix: str = ""
    """What is before the topic, up to the last slash: a prefix without one looks like part of the topic."""

    @property
    def key(self) -> str:
        """The key itself."""
        return self.beside(self.suffix)

    def beside(self, suffix: str) -> str:
        """Return the key of the object with ``suffix`` of the same segment."""
        return f"{self.stem}.{suffix}"

    @property
    def stem(self) -> str:
        """The key without suffix."""
        return f"{self.folder}{self.base_offset:0{OFFSET_DIGITS}d}-{self.segment_id}"

    @property
    def folder(self) -> str:
        """The prefix that all keys of the partition share."""
        return f"{self.prefix}{self.topic}-{self.topic_id}/{self.partition}/"


def parse_key(key: str) -> AivenKey | None:
    """Return the parts of a key that the plugin could have made, None for any other key."""
    return parsed_key(AivenKey, _KEY.fullmatch(key))


def parse_own_key(key: str) -> AivenKey:
    """Return the parts of ``key``, which must be a key of this layout."""
    found = parse_key(key)
    if found is None:
        raise AssertionError(f"{key} is not a key of a manifest")
    return found


def object_key(
    topic_partition: TopicPartition, topic_id: str, base_offset: int, segment_id: str, suffix: str, *, prefix: str = ""
) -> str:
    """Return the key of one object of a segment; ids are in Kafka's base64 form."""
    return AivenKey(
        prefix=prefix,
        topic=topic_partition.topic,
        topic_id=topic_id,
        partition=topic_partition.partition,
        base_offset=base_offset,
        segment_id=segment_id,
        suffix=suffix,
    ).key


def segment_id(identity: Mapping[str, object]) -> str:
    """Return the id of a segment, derived from ``identity``: everything that its objects are made from.

    Equal identities give equal ids; as with Kafka's own random ones, none begins with a dash.
    """
    for attempt in count():
        name = json.dumps([attempt, identity], separators=(",", ":"), sort_keys=True)
        text = uuid_text(uuid5(SEGMENT_ID_NAMESPACE, name).bytes)
        if not text.startswith("-"):
            return text
    raise AssertionError("count() has no end")


def origin_key(key: str) -> str:
    """Return the key of the origin of the segment that has an object at ``key``."""
    place = parse_own_key(key)
    return f"{place.prefix}{ORIGINS}{place.beside(_EXTENSION).removeprefix(place.prefix)}"


def segment_key_of_origin(key: str) -> AivenKey | None:
    """Return the place of the segment whose origin is at ``key``; None for any other key."""
    prefix, folder, rest = key.partition(ORIGINS)
    stem, _, extension = rest.rpartition(".")
    if not folder or extension != _EXTENSION or (prefix and not prefix.endswith("/")):
        return None
    place = parse_key(f"{prefix}{stem}.{MANIFEST}")
    return place if place is not None and origin_key(place.key) == key else None


LOG_FILE: Final = "log"
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


@dataclass(frozen=True, slots=True)
class SegmentDecoder:
    """Decodes the stored pieces of a segment."""

    manifest: AivenManifest
    cipher: SegmentCipher | None
    """None where nothing is encrypted."""

    @classmethod
    def of(cls, manifest: AivenManifest, keys: KeyRing) -> SegmentDecoder:
        """Return the segment of ``manifest``, with the cipher that decrypts it.

        Raises:
            ConfigurationError: it is encrypted, and its private key is missing or is another one.

        """
        encryption = manifest.encryption
        return cls(manifest, None if encryption is None else keys.cipher(encryption))

    def index_range(self, suffix: str) -> IndexRange | None:
        """Return where the index ``suffix`` is in the ``.indexes`` object; None if there is none."""
        return self.manifest.indexes[INDEX_NAMES[suffix]]

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

    def open_log(self, stored: RangeReader, locator: str) -> RangeReader:
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
    part = manifest.indexes[INDEX_NAMES[suffix]]
    if part is None:
        return None
    return part.size - OVERHEAD_BYTES if manifest.encryption is not None and part.size else part.size


class ChunkedReader:
    """Reads a segment of compressed or encrypted chunks by position; for one thread only."""

    def __init__(self, segment: SegmentDecoder, stored: RangeReader, locator: str) -> None:
        self.locator = locator
        self.size_bytes = segment.manifest.chunks.file_size
        self._segment, self._stored = segment, stored
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        """Chunks by their position, the one used last at the end."""

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
