"""Reads and writes the manifest of the layout ``aiven``: JSON on one line, fields in the plugin's order.

If a broker cannot read a manifest, the segment is lost to it, and it retries at full speed. So reading is as strict as
the plugin's own, and a little stricter, and nothing is written before it was read back. The field
``remoteLogSegmentMetadata``, which the plugin writes and never reads, may hold any JSON.

Source: ``SegmentManifestV1`` and related classes, as Jackson writes and reads them.

``remoteLogSegmentMetadata`` holds what the broker knew when copying began.

Source: ``KafkaTypeSerdeModule`` of the plugin.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resnap.storage.encryption import OVERHEAD_BYTES, WrappedKey
from resnap.storage.errors import FormatError
from resnap.storage.json_values import INT_MAX, Fields, excerpt, parse_json_object, typed
from resnap.storage.layouts.aiven.pieces import (
    MAX_CHUNKS,
    MAX_SIZES_BYTES,
    ChunkIndex,
    FixedSizes,
    ListedSizes,
    chunk_count,
    compress,
    decode_sizes,
    decompress,
    encode_sizes,
    frame_content_size,
)
from resnap.storage.log.checkpoints import LeaderEpoch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_MANIFEST_BYTES: Final = 32 << 20
"""The longest list of chunk sizes that may be read is well below this."""
_VERSION: Final = "1"
_FIXED: Final = ("originalChunkSize", "originalFileSize", "transformedChunkSize", "finalTransformedChunkSize")
_VARIABLE: Final = ("originalChunkSize", "originalFileSize", "transformedChunks")
_SEGMENT: Final = "remoteLogSegmentMetadata"
_LONG_END: Final = 1 << 63
INDEX_NAMES: Final = {
    "index": "offset",
    "timeindex": "timestamp",
    "snapshot": "producerSnapshot",
    "leader-epoch-checkpoint": "leaderEpoch",
    "txnindex": "transaction",
}
"""What a manifest calls an index, by its suffix in a log dir; in the order in which they are stored."""


class IndexRange(NamedTuple):
    """Where an index is, as stored, in the ``.indexes`` object."""

    position: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenManifest:
    """The content of the manifest of one segment."""

    chunks: ChunkIndex
    indexes: Mapping[str, IndexRange | None]
    """Indexes by the manifest's names, in its order; empty ones have size 0. Only that of transactions may be None."""
    compression: bool
    encryption: WrappedKey | None
    segment: SegmentMetadata | None
    """None where it does not say."""

    @property
    def is_plain(self) -> bool:
        """Whether the ``.log`` object is the unchanged segment."""
        return not self.compression and self.encryption is None

    @property
    def indexes_end(self) -> int:
        """The least size of the ``.indexes`` object, in bytes."""
        return max(part.position + part.size for part in self.indexes.values() if part is not None)


def write_manifest(manifest: AivenManifest) -> bytes:
    """Return ``manifest`` as the plugin would write it, after reading it back.

    Raises:
        ValueError: it contradicts itself, and reading would refuse it.

    """
    body = json.dumps(_document(manifest), separators=(",", ":"), ensure_ascii=False).encode()
    try:
        found = read_manifest(body)
    except FormatError as error:
        raise ValueError(f"a manifest that could not be read: {error}") from error
    if found != manifest:
        raise ValueError("a manifest that differs after writing and reading")
    return body


def read_manifest(data: bytes) -> AivenManifest:
    """Return the manifest that ``data`` holds.

    Raises:
        FormatError: it is not JSON, or the plugin could not read it.

    """
    document = Fields("manifest", parse_json_object("manifest", data, limit=MAX_MANIFEST_BYTES))
    names = ("version", "chunkIndex", "segmentIndexes", "compression")
    document.check_names(names, optional=("encryption", _SEGMENT))
    version = document.values["version"]
    if version not in (_VERSION, 1) or isinstance(version, bool):
        raise document.wrong("version", f'"{_VERSION}"')
    is_compressed = document.values["compression"]
    if not isinstance(is_compressed, bool):
        raise document.wrong("compression", "true or false")
    encryption = _encryption(document)
    manifest = AivenManifest(
        chunks=_chunk_index(document.inner("chunkIndex")),
        indexes=_indexes(document.inner("segmentIndexes")),
        compression=is_compressed,
        encryption=encryption,
        segment=parse_segment_metadata(document.values.get(_SEGMENT)),
    )
    for what, expected, found in _contradictions(manifest):
        raise FormatError(f"{document.name}: {what}", position=0, expected=expected, found=found)
    return manifest


def _document(manifest: AivenManifest) -> dict[str, Any]:
    """Return the JSON document of ``manifest``, its fields in the plugin's order."""
    document: dict[str, Any] = {
        "version": _VERSION,
        "chunkIndex": _chunk_index_record(manifest.chunks),
        "segmentIndexes": {name: None if part is None else part._asdict() for name, part in manifest.indexes.items()},
        "compression": manifest.compression,
    }
    if manifest.encryption is not None:
        key = manifest.encryption
        document["encryption"] = {"dataKey": f"{key.key_id}:{_base64(key.wrapped)}", "aad": _base64(key.aad)}
    document[_SEGMENT] = None if manifest.segment is None else segment_record(manifest.segment)
    return document


def _chunk_index_record(index: ChunkIndex) -> dict[str, Any]:
    head = {"originalChunkSize": index.chunk_size, "originalFileSize": index.file_size}
    if isinstance(index.stored, ListedSizes):
        sizes = _base64(compress(encode_sizes(index.stored.sizes)))
        return {"type": "variable", **head, "transformedChunks": sizes}
    fixed = index.stored
    return {"type": "fixed", **head, "transformedChunkSize": fixed.whole, "finalTransformedChunkSize": fixed.last}


def _chunk_index(fields: Fields) -> ChunkIndex:
    """Return the chunk index; its sizes must be positive, and one for each chunk."""
    kind = fields.values.get("type")
    if kind not in ("fixed", "variable"):
        raise FormatError(f"{fields.name}: type", position=0, expected="fixed or variable", found=excerpt(kind))
    fields.check_names(("type", *(_FIXED if kind == "fixed" else _VARIABLE)))
    chunk_size, file_size = fields.integer("originalChunkSize", 1), fields.integer("originalFileSize")
    count = chunk_count(chunk_size, file_size)
    if count > MAX_CHUNKS:
        raise FormatError(f"{fields.name}: chunks", position=0, expected=f"{MAX_CHUNKS} at most", found=count)
    if kind == "variable":
        stored: FixedSizes | ListedSizes = ListedSizes(_transformed_chunks(fields))
    else:
        whole, last = fields.integer("transformedChunkSize"), fields.integer("finalTransformedChunkSize")
        stored = FixedSizes(count, whole, last)
    if len(stored) != count:
        raise FormatError(f"{fields.name}: chunks", position=0, expected=count, found=len(stored))
    index = ChunkIndex(chunk_size, file_size, stored)
    if index.stored_size > INT_MAX:
        raise FormatError(f"{fields.name}: bytes in all", position=0, expected=f"{INT_MAX} at most",
                          found=index.stored_size)  # fmt: skip
    return index


def _transformed_chunks(fields: Fields) -> tuple[int, ...]:
    frame = fields.binary("transformedChunks")
    size = frame_content_size(frame)
    if size > MAX_SIZES_BYTES:
        raise FormatError(f"{fields.name}: transformedChunks", position=0, expected=f"{MAX_SIZES_BYTES} bytes at most",
                          found=size)  # fmt: skip
    return decode_sizes(decompress(frame, size))


def _indexes(fields: Fields) -> dict[str, IndexRange | None]:
    names = tuple(INDEX_NAMES.values())
    fields.check_names(names)
    there = (name for name in names if name != INDEX_NAMES["txnindex"] or fields.values[name] is not None)
    return dict.fromkeys(names) | {name: _range(fields.inner(name)) for name in there}


def _range(fields: Fields) -> IndexRange:
    fields.check_names(("position", "size"))
    return IndexRange(fields.integer("position"), fields.integer("size"))


def _encryption(document: Fields) -> WrappedKey | None:
    if document.values.get("encryption") is None:
        return None
    fields = document.inner("encryption")
    fields.check_names(("dataKey", "aad"))
    text = fields.values["dataKey"]
    key_id, _, wrapped = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not key_id.strip() or not wrapped or ":" in wrapped:
        raise FormatError(f"{fields.name}: dataKey", position=0, expected="KEY ID:BASE64", found="something else")
    return WrappedKey(key_id, fields.binary("dataKey", wrapped), fields.binary("aad"))


def _contradictions(manifest: AivenManifest) -> Iterator[tuple[str, object, object]]:
    """Yield which stored sizes are impossible for the sizes that the manifest gives."""
    overhead = 0 if manifest.encryption is None else OVERHEAD_BYTES
    least = min((part.size for part in manifest.indexes.values() if part is not None and part.size), default=0)
    if overhead and 0 < least <= overhead:
        yield "size of an encrypted index", f"more than {overhead}", least
    if manifest.indexes_end > INT_MAX:
        yield "bytes of all indexes", f"{INT_MAX} at most", manifest.indexes_end
    yield from _chunk_contradictions(manifest, overhead)


def _chunk_contradictions(manifest: AivenManifest, overhead: int) -> Iterator[tuple[str, object, object]]:
    index, what = manifest.chunks, "size of a stored chunk"
    if isinstance(index.stored, ListedSizes) is not manifest.compression:
        yield "chunkIndex: type", "variable if and only if compressed", "the other"
    elif isinstance(index.stored, ListedSizes):
        least = min(index.stored.sizes, default=overhead + 1)
        if least <= overhead:
            yield what, f"more than {overhead}", least
    else:
        # If chunks are stored as they are, or encrypted, the sizes of the first and the last give those of all.
        for chunk in {index.chunk(number) for number in (0, len(index.stored) - 1)} if len(index.stored) else ():
            if chunk.stored_size != chunk.size + overhead:
                yield what, chunk.size + overhead, chunk.stored_size


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadata:
    """``RemoteLogSegmentMetadata``, when copying the segment began."""

    topic: str
    topic_id: str
    partition: int
    segment_id: str
    start_offset: int
    end_offset: int
    """Inclusive."""
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    leader_epochs: tuple[LeaderEpoch, ...]
    """The leader epochs of the segment alone."""


def segment_record(segment: SegmentMetadata) -> dict[str, Any]:
    """Return ``segment`` as a manifest records it, with the fields in the plugin's order."""
    return {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": segment.topic_id,
                "topicPartition": {"topic": segment.topic, "partition": segment.partition},
            },
            "id": segment.segment_id,
        },
        "startOffset": segment.start_offset,
        "endOffset": segment.end_offset,
        "maxTimestampMs": segment.max_timestamp_ms,
        "brokerId": segment.broker_id,
        "eventTimestampMs": segment.event_timestamp_ms,
        "segmentLeaderEpochs": {str(entry.epoch): entry.start_offset for entry in segment.leader_epochs},
    }


def parse_segment_metadata(values: object) -> SegmentMetadata | None:
    """Return the segment that ``values``, any JSON, describe; None if anything is not what the plugin writes."""
    try:
        return _segment_metadata(values)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _segment_metadata(values: Any) -> SegmentMetadata:  # noqa: ANN401 - any JSON value
    identity = values["remoteLogSegmentId"]
    place = identity["topicIdPartition"]
    topic_partition = place["topicPartition"]
    epochs = [LeaderEpoch(int(epoch), _long(start)) for epoch, start in values["segmentLeaderEpochs"].items()]
    return SegmentMetadata(
        topic=typed(str, topic_partition["topic"]),
        topic_id=typed(str, place["topicId"]),
        partition=_long(topic_partition["partition"]),
        segment_id=typed(str, identity["id"]),
        start_offset=_long(values["startOffset"]),
        end_offset=_long(values["endOffset"]),
        max_timestamp_ms=_long(values["maxTimestampMs"]),
        broker_id=_long(values["brokerId"]),
        event_timestamp_ms=_long(values["eventTimestampMs"]),
        leader_epochs=tuple(sorted(epochs)),
    )


def _long(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -_LONG_END <= value < _LONG_END:
        raise TypeError("not a Java long")
    return value
