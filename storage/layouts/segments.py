"""The values that layouts exchange with their callers: segments to ship, their objects, and facts of manifests.

Where a manifest has no field for the origin of a snapshot, an object records it (``write_origin``): JSON with a CRC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError, LockedError, LogDirError, StoreError, add_hint
from resnap.storage.json_values import checked_json, parse_json_object
from resnap.storage.layouts.manifest import ManifestFacts, ObjectKind, SnapshotOrigin, origin_from, origin_record
from resnap.storage.stores.protocol import MAX_KEY_PART_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from resnap.storage.disk import FileDigest
    from resnap.storage.layouts.manifest import ManifestObject
    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.log_dir import Incomplete
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.stores.protocol import BodyOpener, ObjectInfo

MAX_ORIGIN_BYTES: Final = 64 << 20
"""Millions of excluded producers."""
_VERSION: Final = 1
_ORIGIN: Final = "origin of a snapshot"
_HINT: Final = "only Resnap reads it: delete it, and give the rules that the segment was shipped under"


class TopicIdUnknownError(LogDirError):
    """The layout needs the topic's id for its keys, and it is unknown."""


class TopicNameTooLongError(LogDirError):
    """The layout has the topic's full name in its keys, and not every store supports keys that long."""


class ShippedMeanwhileError(StoreError):
    """Another run has shipped the segment since this one listed it; no manifest names this run's objects."""


class DeletedMeanwhileError(LockedError):
    """Retention or garbage collection has deleted what this run wrote; its id is never used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """One file of a segment that is to be shipped."""

    kind: ObjectKind
    open_body: BodyOpener
    size_bytes: int
    crc32c: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The source of the segments of one partition, recorded in every manifest."""

    cluster_id: str | None
    broker_id: int | None
    log_directory: str
    topic_partition: TopicPartition
    topic_id: str | None
    compaction_assumption: str | None
    resnap_version: str
    apart: frozenset[str] = frozenset()
    """Manifests shipped without a topic id that are known to belong to another topic of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSegment:
    """A closed segment that is to be shipped, with everything that its objects are made from."""

    provenance: Provenance
    path: str
    """The locator of its log, for messages."""
    base_offset: int
    next_base_offset: int
    last_offset: int
    """The last offset of the last batch, inclusive; ``base_offset - 1`` if there is none."""
    max_timestamp_ms: int
    leader_epochs: tuple[LeaderEpoch, ...]
    """The leader epochs of the segment alone, clamped to it."""
    files: tuple[SegmentFile, ...]
    """The log first."""
    origin: SnapshotOrigin
    """Where its producer snapshot comes from."""
    created_at_ms: int
    beside: tuple[ObjectInfo, ...] | None = None
    """Manifests and tombstones that the store has for its base offset, as listed under the lease; None to list them."""


class NewObject(NamedTuple):
    """An object that is to be written."""

    key: str
    open_body: BodyOpener
    size_bytes: int
    crc32c: int
    sha256: str | None = None
    """Where it is known; it only saves work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentObjects:
    """The objects of a segment, in the order in which they are written."""

    files: tuple[NewObject, ...]
    """Side by side."""
    beside: tuple[NewObject, ...] = ()
    """Written when all of those exist: the record about the segment that no broker reads."""
    manifest_key: str
    manifest: bytes
    """Last of all: it makes the segment visible."""


class SegmentIdentity(NamedTuple):
    """The segment that a manifest belongs to, by its key."""

    partition: int
    base_offset: int
    topic_id: str | None
    """None where it was not known when the segment was shipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedSegment(ManifestFacts):
    """A segment that the store holds, by its manifest."""

    manifest_key: str
    log_key: str
    objects: tuple[tuple[str, int], ...]
    """Key and length of each."""
    is_replaceable: bool
    """Whether only Resnap knows its objects, so that it is shipped again where one of them is gone or cut off."""
    origin_key: str | None = None
    """The key of the object with the origin of its snapshot, where the manifest has no field for it."""


class SegmentFiles(NamedTuple):
    """The locators of a segment's files."""

    segment: Segment
    snapshot: str | None
    """None where there is none, for a reason that is known."""
    leader_epochs: str
    said: ManifestFacts | None = None
    """What its manifest says, where the leader epochs are those up to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredManifest:
    """A manifest that could be read, with the digests or sizes to verify its segment."""

    key: str
    facts: ManifestFacts
    size_bytes: int
    """The size of the objects that are read to verify it."""
    objects: tuple[ManifestObject, ...] = ()
    """What each of them must be, by digests; empty where the manifest has none."""
    files: SegmentFiles | None = None
    """Where there are no digests: what is compared with itself, if it is all there."""
    missing: tuple[str, ...] = ()
    """What is wrong with its objects by their names and sizes alone."""
    problems: tuple[str, ...] = ()
    """What is wrong with its metadata."""


class SegmentNeeds(NamedTuple):
    """What shipping takes in a layout, for an estimate of the requests."""

    objects: int
    """How many objects a segment has, without its manifest, and without a transaction index of its own."""
    has_transaction_index: bool
    """Whether aborted transactions take a further object."""
    is_log_known: bool
    """Whether the digests of a log's object are known before it is sent, so that a longer one goes in one request."""
    lists: int
    """The most listings for a segment: those on their way at once share one."""
    partition_lists: int
    """The listings for a partition: what it holds, twice in each of its folders, and its lease."""


class ManifestRecords(NamedTuple):
    """The facts of a partition in manifests, beyond those of a log dir."""

    leader_epochs: tuple[str, ...]
    """Locators of the checkpoints of all segments, in their order."""
    digests: Mapping[str, FileDigest]
    """The digests of its files, by locator; empty where no manifest has any."""
    passed_over: tuple[int, ...] = ()
    """Base offsets of segments that are beside the others, and that no manifest names."""


def folder_above(key: str) -> str:
    """Return the folder that holds the object at ``key``."""
    return key.rpartition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The segments of a store, or of a part of it, as one listing shows them."""

    manifests: Mapping[str, ObjectInfo]
    """The object that makes each segment visible, by key, ascending."""
    sizes: Mapping[str, int]
    """Sizes of the objects beside each manifest, by the manifest's key."""
    source: Callable[[str], tuple[str, str]]
    """Gives the root of the source that holds the segment, a folder without a slash; and its topic id in keys."""
    read: Callable[[str], StoredManifest]
    """Gives the content of the manifest at a key.

    Raises:
        FormatError: it is damaged.
        ObjectNotFoundError: it has gone.
        StoreError: the store failed.

    """
    folder: Callable[[str], str] = folder_above
    """Gives the folder of the partition whose segment has its manifest at a key."""
    incomplete: Sequence[Incomplete] = ()
    """Segments that lack an object which brokers need, by its key; none where what no manifest names is no segment.

    An unfinished copy or deletion leaves such a segment, and so does a loss: no manifest tells them apart.
    """


class Unnamed(NamedTuple):
    """Objects that no manifest names."""

    objects: tuple[ObjectInfo, ...]
    unreadable: tuple[FormatError, ...]
    """Manifests that cannot be read; nothing beside them is among the objects."""


class Deletion(NamedTuple):
    """How an object that no manifest names is deleted."""

    beside: tuple[str, ...]
    """Prefixes that hold all objects that may name it by now."""
    lease: str | None
    """The name of its partition's lease; None where no run can be at work on it."""
    manifest_key: str | None
    """Where a tombstone is written first; None where nothing could name it later."""


class Rewritten(NamedTuple):
    """The objects with which correct parts replace wrong ones."""

    writes: tuple[tuple[str, bytes], ...]
    """Keys and bodies, in the order in which they are written: what makes the new parts visible comes last."""
    replaced: tuple[str, ...] = ()
    """Keys of what nothing names any more then."""


def check_key_length(key: str, segment: NewSegment) -> None:
    """Refuse a key that is too long for some stores, because the topic's name is long.

    Raises:
        TopicNameTooLongError: the key is too long.

    """
    longest = max(key.split("/"), key=len)
    if len(longest) > MAX_KEY_PART_BYTES:
        raise TopicNameTooLongError(
            f"{segment.path}: its key would have a part of {len(longest)} bytes, and stores are sure to keep"
            f" {MAX_KEY_PART_BYTES}"
        )


def known_topic_id(segment: NewSegment) -> str:
    """Return the id of the topic of ``segment``, for a layout that has it in its keys.

    Raises:
        TopicIdUnknownError: it is unknown.

    """
    provenance = segment.provenance
    if provenance.topic_id is None:
        raise TopicIdUnknownError(f"{segment.path}: nothing says the id of {provenance.topic_partition.topic}")
    return provenance.topic_id


def write_origin(origin: SnapshotOrigin) -> bytes:
    """Return the object that records ``origin``."""
    return checked_json(_VERSION, "snapshotOrigin", origin_record(origin))


@add_hint(_HINT)
def read_origin(data: bytes) -> SnapshotOrigin:
    """Return the origin that ``data`` records.

    Raises:
        FormatError: it is damaged, or has a later version.

    """
    values = parse_json_object(_ORIGIN, data, limit=MAX_ORIGIN_BYTES)
    try:
        match values:
            case {"snapshotOrigin": dict(record)} if data == checked_json(_VERSION, "snapshotOrigin", record):
                return origin_from(record)
    except ValueError as error:
        raise FormatError(f"{_ORIGIN}: {error}", position=0) from error
    raise FormatError(_ORIGIN, position=0, expected=f"version {_VERSION}, and what its checksum covers",
                      found="something else")  # fmt: skip
