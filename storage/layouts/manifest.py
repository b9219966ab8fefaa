"""Resnap's manifest: the one object that makes a shipped segment visible, and names all its other objects.

It is an uncompressed Avro object container file with one record and its schema (``manifest.avsc``), so that any Avro
reader can show it. Equal manifests give equal bytes. Avro has no checksum, so the file's metadata hold a CRC-32C of the
encoded record: a flipped bit in an offset must not go unnoticed.

Reading is strict. The schema must be one that Resnap has written, up to its comments: resolving arbitrary schemas would
let a damaged or hostile file decide how much memory its reader takes. A field that came later has a default, so that
any Avro reader resolves the older schema to the newer one and back.

A *claim* is a manifest written once more, with the same meaning and bytes that nobody has written before.
Whoever changes what a manifest names first writes a claim over it, on condition that it is as it was read, and at the
end the new manifest over the claim. So a request of a run that was stopped or killed, which reaches the store when
another run has taken over, finds another etag and is refused: a claim's bytes never come back, even where the etag of a
store depends on the bytes alone. A claim that comes late changes nothing for readers, and nothing needs to undo it.

A manifest of ours has 16 other bytes as its sync marker, which is what Avro lets a writer draw. One of Aiven's plugin,
JSON, has white space behind it, which every parser skips.
"""

from __future__ import annotations

import io
import json
import re
import secrets
from dataclasses import dataclass, fields
from enum import StrEnum
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import fastavro
from fastavro.schema import to_parsing_canonical_form

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError, add_hint, parser_says
from resnap.storage.log.checkpoints import LeaderEpoch
from resnap.storage.log.names import OffsetRange, TopicPartition, topic_name_problem
from resnap.storage.log.producer_snapshot import LeftOut
from resnap.storage.messages.wire import uuid_text
from resnap.storage.stores.protocol import is_safe_path
from resnap.storage.words import camel_case

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT_VERSION: Final = 1
TOMBSTONE: Final = b"deleted by resnap: this id is not used again\n"
"""The object in place of the manifest of a deleted segment; no manifest is as short."""
_SCHEMA_JSON: Final = json.loads(resources.files("resnap.storage.layouts").joinpath("manifest.avsc").read_text("utf-8"))
_SCHEMA: Final = json.loads(json.dumps(fastavro.parse_schema(_SCHEMA_JSON), sort_keys=True))
"""As fastavro parses it, which orders keys differently in each process."""
_ORIGIN: Final = fastavro.parse_schema(
    next(field["type"] for field in _SCHEMA_JSON["fields"] if field["name"] == "snapshotOrigin")
)
SYNC_MARKER: Final = b"io.resnap.v1.man"
"""Fixed, where Avro would draw 16 random bytes, because the same manifest shall give the same file."""
_CHECKSUM: Final = "resnap.crc32c"
TIER_AGAIN: Final = "delete the manifest, and tier the segment again"
_UPGRADE: Final = "it may come from a newer Resnap: use that version, or another prefix"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CRC_END: Final = 1 << 32
T = TypeVar("T")
_AVRO: Final = b"Obj\x01"
_BITS: Final = 128
_BLANKS: Final = str.maketrans("01", " \t")


def _without_defaults(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the schema without the fields that came later: those with a default."""
    if isinstance(schema, dict):
        return {name: _without_defaults(value) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_without_defaults(part) for part in schema if not (isinstance(part, dict) and "default" in part)]
    return schema


_READABLE: Final = {
    to_parsing_canonical_form(schema): fastavro.parse_schema(schema)
    for schema in (_SCHEMA_JSON, _without_defaults(_SCHEMA_JSON))
}
"""Every schema that Resnap has written, by its canonical form."""


class ObjectKind(StrEnum):
    """The kind of a segment's object; the value is its file extension."""

    LOG = "log"
    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


class SnapshotHow(StrEnum):
    """How the producer snapshot of a segment was obtained."""

    KEPT = "kept"
    """The broker's own, as found; unproven."""
    PROVEN = "proven"
    """The broker's own, and equal to a replay."""
    REGENERATED = "regenerated"
    """Rebuilt by replay."""
    BEYOND_WINDOW = "beyond-window"
    """Rebuilt for a boundary older than the window: transactions that were committed later may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestObject:
    """One object of the segment: its key, size and digests."""

    kind: ObjectKind
    key: str
    """Relative to the prefix that the store was opened at."""
    size_bytes: int
    sha256: str
    """64 lower-case hex digits."""
    crc32c: int
    """Unsigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOrigin:
    """The source of the producer snapshot, and the rules and the log that it depends on."""

    how: SnapshotHow
    as_of: str
    """``now``, ``roll`` or a time in ISO 8601, as requested."""
    as_of_ms: int | None
    """T: the time at which producers were judged expired or not."""
    window_start_offset: int | None
    """First offset that was replayed; None if nothing was."""
    producer_id_expiration_ms: int
    check_interval_ms: int
    entries_count: int
    """Producers in the snapshot."""
    left_out: tuple[LeftOut, ...] = ()
    known_from_offset: int | None = None
    """First offset of the log that the snapshot was made from, or that --max-reach-back let it be read from; None in
    manifests of earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFacts:
    """The facts of a segment [base offset, next base offset) in a manifest of any layout."""

    cluster_id: str | None
    """None if unknown."""
    topic: str
    topic_id: str | None
    """In Kafka's base64 form; None if unknown."""
    partition: int
    base_offset: int
    next_base_offset: int
    leader_epochs: tuple[LeaderEpoch, ...]
    """The leader epochs of this segment only."""
    snapshot_origin: SnapshotOrigin | None
    """The origin of its snapshot; None if not recorded, as for segments that brokers wrote."""
    snapshot_key: str
    """The end of its snapshot's locator, below the URL of the store."""
    max_timestamp_ms: int | None
    """The largest timestamp of its records; None or -1 if unknown, or if there is none."""
    log_bytes: int
    """Size of its log as brokers count it, before compression and encryption."""
    broker_id: int | None
    """The broker whose log it comes from; None if unknown."""
    remote_id: str
    """The segment id in Kafka's base64 form."""
    made: tuple[int, str]
    """Time in milliseconds, and segment id; of several with the same offsets the last one is read."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that it is of."""
        return TopicPartition(self.topic, self.partition)

    @property
    def offsets(self) -> OffsetRange:
        """Its offsets."""
        return OffsetRange(self.base_offset, self.next_base_offset)

    @property
    def log_id(self) -> tuple[str, TopicPartition, str]:
        """Cluster, partition and topic id, which together are one log; empty where they are unknown."""
        return self.cluster_id or "", self.topic_partition, self.topic_id or ""

    @property
    def newest_ms(self) -> int:
        """Largest timestamp of a record; the time at which it was made, if no record has one."""
        largest, (made_ms, _) = self.max_timestamp_ms, self.made
        return made_ms if largest is None or largest < 0 else largest

    def values(self) -> dict[str, Any]:
        """Return the facts by name."""
        return {field.name: getattr(self, field.name) for field in fields(ManifestFacts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All facts of one shipped segment [``base_offset``, ``next_base_offset``)."""

    format_version: int = FORMAT_VERSION
    resnap_version: str
    cluster_id: str | None
    broker_id: int | None
    log_directory: str
    topic: str
    topic_id: str | None
    partition: int
    base_offset: int
    next_base_offset: int
    """The snapshot is the producers' state before this offset."""
    last_offset: int
    """Last offset of the last batch, inclusive; ``base_offset - 1`` if there is none. Kafka calls it ``endOffset``."""
    max_timestamp_ms: int | None
    segment_id: UUID
    leader_epochs: tuple[LeaderEpoch, ...]
    objects: tuple[ManifestObject, ...]
    snapshot_origin: SnapshotOrigin
    created_at_ms: int
    compaction_assumption: str | None = None
    """Why the topic was taken as not compacted, where nothing proved it."""

    @property
    def facts(self) -> ManifestFacts:
        """The facts that manifests of all layouts have."""
        return ManifestFacts(
            cluster_id=self.cluster_id,
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            base_offset=self.base_offset,
            next_base_offset=self.next_base_offset,
            leader_epochs=self.leader_epochs,
            snapshot_origin=self.snapshot_origin,
            snapshot_key=next(entry.key for entry in self.objects if entry.kind is ObjectKind.SNAPSHOT),
            max_timestamp_ms=self.max_timestamp_ms,
            log_bytes=self.log.size_bytes,
            broker_id=self.broker_id,
            remote_id=uuid_text(self.segment_id.bytes),
            made=(self.created_at_ms, str(self.segment_id)),
        )

    @property
    def log(self) -> ManifestObject:
        """The segment's log, which every manifest names."""
        return next(entry for entry in self.objects if entry.kind is ObjectKind.LOG)

    def object(self, kind: ObjectKind) -> ManifestObject | None:
        """Return the object of ``kind``, None if the segment has none."""
        return next((entry for entry in self.objects if entry.kind is kind), None)


def write_manifest(manifest: Manifest) -> bytes:
    """Return the file that holds ``manifest``; equal manifests give equal bytes.

    Raises:
        ValueError: it contradicts itself, and reading would refuse it.

    """
    for what, expected, found in _problems(manifest):
        raise ValueError(f"manifest {what}: expected {expected}, found {found}")
    record = manifest_record(manifest)
    stream = io.BytesIO()
    metadata = {_CHECKSUM: f"{_record_checksum(record, _SCHEMA):08x}"}
    fastavro.writer(stream, _SCHEMA, [record], sync_marker=SYNC_MARKER, metadata=metadata)
    return stream.getvalue()


@add_hint(TIER_AGAIN)
def read_manifest(data: bytes) -> Manifest:
    """Return the manifest that ``data`` holds.

    Raises:
        FormatError: a tombstone, not an Avro file, another schema, not exactly one record, a wrong checksum, a newer
            format version, or values that contradict each other; ``position`` is that of the file's header or of the
            record.

    """
    if data == TOMBSTONE:
        raise FormatError("manifest", position=0, expected="a segment", found="a tombstone: the segment was deleted",
                          hint="run again: listings skip tombstones")  # fmt: skip
    record, position = _read_record(data)
    if record["formatVersion"] != FORMAT_VERSION:
        raise FormatError("manifest format version", position=position, expected=FORMAT_VERSION,
                          found=record["formatVersion"], hint=_UPGRADE)  # fmt: skip
    try:
        manifest = _from_record(record)
    except ValueError as error:
        raise FormatError(f"manifest value: {error}", position=position) from error
    for what, expected, found in _problems(manifest):
        raise FormatError(f"manifest {what}", position=position, expected=expected, found=found)
    return manifest


def manifest_record(manifest: Manifest) -> dict[str, Any]:
    """Return ``manifest`` as plain values under the file's field names: what ``inspect`` shows."""
    return _record(manifest) | {
        "segmentId": str(manifest.segment_id),
        "leaderEpochs": [{"epoch": entry.epoch, "startOffset": entry.start_offset} for entry in manifest.leader_epochs],
        "objects": [_record(entry) | {"kind": entry.kind.value} for entry in manifest.objects],
        "snapshotOrigin": origin_record(manifest.snapshot_origin),
    }


def origin_record(origin: SnapshotOrigin) -> dict[str, Any]:
    """Return ``origin`` as plain values in the same way."""
    left_out = [{"producerId": producer_id, "reason": reason} for producer_id, reason in origin.left_out]
    return _record(origin) | {"how": origin.how.value, "leftOut": left_out}


def origin_from(record: Mapping[str, Any]) -> SnapshotOrigin:
    """Return the snapshot origin in ``record``, in the form of ``origin_record``.

    Raises:
        ValueError: a field is missing, or has an unknown value.

    """
    if not fastavro.validate({"knownFromOffset": None, **record}, _ORIGIN, raise_errors=False, strict=True):
        raise ValueError("a field is missing, or of another type than it has in a manifest")
    return _origin(record)


def _read_record(data: bytes) -> tuple[dict[str, Any], int]:
    """Return the one record of the file and the position of its block."""
    stream = io.BytesIO(data)
    # Here and below: whatever the library's parser raises, the bytes are bad.
    try:
        blocks = fastavro.block_reader(stream)
        schema, codec = to_parsing_canonical_form(blocks.writer_schema), blocks.codec
    except Exception as error:
        raise FormatError("manifest header", position=0, expected="an Avro object container file",
                          found=f"other bytes ({parser_says(error)})") from error  # fmt: skip
    if schema not in _READABLE or codec != "null":
        raise FormatError("manifest schema", position=0, expected=f"{_SCHEMA['name']}, uncompressed",
                          found=f"another schema, codec {codec}", hint=_UPGRADE)  # fmt: skip
    try:
        found = [(block, record) for block in blocks for record in block]
    except Exception as error:
        raise FormatError("manifest record", position=stream.tell(), expected="a whole record",
                          found=f"other bytes ({parser_says(error)})") from error  # fmt: skip
    if len(found) != 1 or found[0][0].offset + found[0][0].size != len(data):
        raise FormatError("manifest file", position=stream.tell(), expected="one record and nothing else",
                          found=f"{len(found)} in {len(data)} bytes")  # fmt: skip
    block, record = found[0]
    carried, computed = blocks.metadata.get(_CHECKSUM), f"{_record_checksum(record, _READABLE[schema]):08x}"
    if carried != computed:
        raise FormatError("manifest checksum (CRC-32C)", position=block.offset, expected=carried, found=computed)
    return record, block.offset


def _record_checksum(record: Mapping[str, Any], schema: Any) -> int:  # noqa: ANN401 - as fastavro parses it
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return crc32c(stream.getvalue())


def _from_record(record: Mapping[str, Any]) -> Manifest:
    """Build the values; an unknown kind, or an id that is not a UUID in our form, is a ``ValueError``."""
    segment_id = UUID(record["segmentId"])
    if str(segment_id) != record["segmentId"]:
        raise ValueError(f"segment id {record['segmentId']!r} is not in canonical form")
    return _build(
        Manifest,
        record,
        segment_id=segment_id,
        leader_epochs=tuple(LeaderEpoch(entry["epoch"], entry["startOffset"]) for entry in record["leaderEpochs"]),
        objects=tuple(_build(ManifestObject, entry, kind=ObjectKind(entry["kind"])) for entry in record["objects"]),
        snapshot_origin=_origin(record["snapshotOrigin"]),
    )


def _origin(record: Mapping[str, Any]) -> SnapshotOrigin:
    return _build(
        SnapshotOrigin,
        record,
        how=SnapshotHow(record["how"]),
        left_out=tuple(LeftOut(entry["producerId"], entry["reason"]) for entry in record["leftOut"]),
        known_from_offset=record.get("knownFromOffset"),
    )


def _problems(manifest: Manifest) -> Iterator[tuple[str, str, object]]:
    """Yield what is invalid in a manifest of ours, what is expected and what was found, the most serious first."""
    base, end = manifest.base_offset, manifest.next_base_offset
    if manifest.format_version != FORMAT_VERSION:
        yield "format version", str(FORMAT_VERSION), manifest.format_version
    if not (0 <= base < end and base - 1 <= manifest.last_offset < end):
        yield "offsets", "0 <= base <= last + 1 <= next base", (base, manifest.last_offset, end)
    if manifest.partition < 0:
        yield "partition", "0 or more", manifest.partition
    topic_problem = topic_name_problem(manifest.topic)
    if topic_problem:
        yield "topic", topic_problem, manifest.topic
    epochs = manifest.leader_epochs
    if any(a.epoch >= b.epoch or a.start_offset >= b.start_offset for a, b in pairwise(epochs)):
        yield "leader epochs", "ascending epochs and offsets", epochs
    kinds = [entry.kind for entry in manifest.objects]
    if len(set(kinds)) != len(kinds) or not {ObjectKind.LOG, ObjectKind.SNAPSHOT} <= set(kinds):
        yield "objects", "each kind once, log and snapshot among them", ", ".join(kinds) or "none"
    if len({entry.key for entry in manifest.objects}) != len(kinds):
        yield "objects", "a key for each", [entry.key for entry in manifest.objects]
    for entry in manifest.objects:
        yield from _object_problems(entry)


def _object_problems(entry: ManifestObject) -> Iterator[tuple[str, str, object]]:
    if not is_safe_path(entry.key):
        yield "object key", "a path below the prefix", repr(entry.key)
    if entry.size_bytes < 0:
        yield "object size", "0 bytes or more", entry.size_bytes
    if not _SHA256.fullmatch(entry.sha256):
        yield "object SHA-256", "64 lower-case hex digits", repr(entry.sha256)
    if not 0 <= entry.crc32c < _CRC_END:
        yield "object CRC-32C", "an unsigned number of 32 bits", entry.crc32c


def _record(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any of the dataclasses above
    return {camel_case(field.name): getattr(value, field.name) for field in fields(value)}


def _build(cls: type[T], record: Mapping[str, Any], **converted: object) -> T:
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    plain = {name: record[camel_case(name)] for name in names if name not in converted}
    return cls(**plain, **converted)


def claim_of(manifest: bytes) -> bytes:
    """Return a claim of ``manifest``, another one with each call."""
    plain = without_claim(manifest)
    if plain.startswith(_AVRO):
        return plain.replace(SYNC_MARKER, secrets.token_bytes(len(SYNC_MARKER)))
    return plain + random_blanks()


def without_claim(manifest: bytes) -> bytes:
    """Return the manifest that ``manifest`` is, or is a claim of."""
    if manifest.startswith(_AVRO):
        return manifest.replace(manifest[-len(SYNC_MARKER) :], SYNC_MARKER)
    is_claim = len(manifest) > _BITS and not manifest[-_BITS:].strip(b" \t")
    return manifest[:-_BITS] if is_claim else manifest


def random_blanks() -> bytes:
    """Return white space that has not been written before."""
    return f"{secrets.randbits(_BITS):0{_BITS}b}".translate(_BLANKS).encode()


def is_manifest(body: bytes) -> bool:
    """Whether ``body`` can be read as a manifest; what else is there is damage."""
    try:
        if body.startswith(_AVRO):
            read_manifest(body)
        else:
            json.loads(body)
    except (ValueError, RecursionError, FormatError):
        return False
    return True
