"""The protocol of all layouts, so that no caller needs to know which layout a store has.

A segment becomes several objects; one of them, its manifest, makes it visible and is written last. A layout knows the
keys of all of them, which stored segments conflict with a new one, and how a manifest is read. The content of a store
is listed and read back as a log dir.

``Tiered`` reads what Resnap or brokers have tiered, and shows it segment by segment (``Listing``); a ``Layout`` ships,
too. A plain copy of a log dir (``mirror``) is only read. Settings of a single layout are arguments of its constructor
(``registry``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resnap.storage.encryption import KeyRing
    from resnap.storage.layouts.manifest import ObjectKind, SnapshotOrigin
    from resnap.storage.layouts.segment_key import SegmentKey
    from resnap.storage.layouts.segments import (
        Deletion,
        Listing,
        ManifestRecords,
        NewSegment,
        Rewritten,
        SegmentIdentity,
        SegmentNeeds,
        SegmentObjects,
        ShippedSegment,
        StoredManifest,
        Unnamed,
    )
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


class Tiered(Protocol):
    """Reads what was tiered to a store, by Resnap or by brokers."""

    folders: ClassVar[int]
    """Number of folders between the root of the layout and its segments; a source may name some of them."""
    is_plain_copy: ClassVar[bool]
    """Whether the store is a copy of a log dir, so that a local directory of it is an ordinary log dir."""
    remedy_when_verified: ClassVar[str]
    """What to do about a segment that verification finds damaged."""
    has_digests: ClassVar[bool]
    """Whether manifests have digests of all objects; else objects can only be compared with each other."""
    needed_parts: ClassVar[frozenset[str]]
    """The objects without which brokers cannot read a segment; none where they read nothing."""
    visible_by: ClassVar[str]
    """The object by which readers that know no metadata take a segment of brokers for complete."""

    def is_key(self, key: str) -> bool:
        """Whether ``key`` is one that the layout could have made."""
        ...

    def log_dir(
        self,
        store: ObjectStore,
        listed: Iterable[ObjectInfo],
        topics: Callable[[TopicPartition], bool] | None,
        *,
        within: str = "",
        topic_ids: Mapping[str, str] | None = None,
    ) -> LogDir:
        """Return the log dir that ``listed``, the objects of ``store`` in its folders ``within``, make.

        Only the partitions that ``topics`` selects; of several topics of one name the one whose id is in ``topic_ids``.
        A partition that cannot be read as one log becomes a problem.

        Raises:
            UsageError: segments of several clusters.
            StoreError: the store failed.

        """
        ...

    @property
    def name(self) -> str:
        """The name of the layout in settings and messages."""
        ...

    def log_key(
        self, topic_partition: TopicPartition, topic_id: str, base_offset: int, remote_id: str, *, key_prefix: str
    ) -> str:
        """Return the key at which brokers read the log of a segment, with their ``key_prefix`` if there is one."""
        ...

    def misplacement(self, found: StoredManifest, *, key_prefix: str) -> str | None:
        """Return why brokers would not find the segment of a manifest; None if they would."""
        ...

    def listing(self, store: ObjectStore, wants: Callable[[str], bool], within: str = "") -> Listing:
        """Return the segments in ``store`` of the topics that ``wants`` selects by name, perhaps asked more than once.

        Of a part of the store, the folders ``within``, all that belongs to its topic counts, wherever it is.

        Raises:
            StoreError: the store failed.

        """
        ...

    def manifest_records(self, store: ObjectStore, partition: PartitionDir) -> ManifestRecords:
        """Return what manifests record of ``partition``, one of ``log_dir`` of ``store``, beyond the log dir.

        Raises:
            FormatError: one of them is damaged.
            StoreError: the store failed.

        """
        ...

    def replacements(
        self,
        read: Callable[[str], bytes],
        manifest_key: str,
        parts: Mapping[ObjectKind, bytes],
        origin: SnapshotOrigin | None,
        key_ring: KeyRing,
    ) -> Rewritten:
        """Return the objects with which ``parts`` replace those of a segment; ``read`` reads stored objects.

        ``origin`` is where a new snapshot comes from. A new transaction index has no bytes where nothing was aborted.
        If the layout stores the parts in more than one object, a reader with the existing manifest finds the old parts
        until the last object is written.

        Raises:
            FormatError: the manifest is damaged.
            ConfigurationError: the segment is encrypted, and its key is not at hand.
            StoreError: an object cannot be read.

        """
        ...

    def brokers_object(self, key: str) -> SegmentKey | None:
        """Return which segment an object belongs to; None if brokers do not read it in this layout."""
        ...


class Layout(Tiered, Protocol):
    """Ships segments, finds them again and reads them back; a store may also hold the remains of killed runs."""

    may_overlap: ClassVar[bool]
    """Whether readers can handle overlapping segments."""
    keeps_snapshots_as_found: ClassVar[bool]
    """Whether a broker's own snapshot keeps its entry order; else equal states are equal objects."""
    needs: ClassVar[SegmentNeeds]
    """What shipping takes."""
    remedy: ClassVar[str]
    """What to do about a damaged segment that conflicts with a new one."""

    @property
    def key_prefix(self) -> str:
        """The prefix of all keys of brokers."""
        ...

    def objects_of(self, segment: NewSegment, store: ObjectStore) -> SegmentObjects:
        """Return the objects of ``segment`` in ``store``; some layouts read its log for that.

        Raises:
            TopicIdUnknownError, TopicNameTooLongError, ConfigurationError: it has no place in the layout.
            VerificationError: the log is not what it was.
            OSError: it cannot be read.
            StoreError: the store failed.

        """
        ...

    def check_missing(self, segment: NewSegment, store: ObjectStore, manifest_key: str) -> list[str]:
        """Check that no other run has shipped ``segment``; return its manifests that name missing objects.

        Raises:
            ShippedMeanwhileError: one has.
            DeletedMeanwhileError: ``manifest_key``, which it is to have, was given up by a deletion.
            VerificationError: the manifest there names something else: it was repaired.
            StoreError: the store failed.

        """
        ...

    def check_same(self, key: str, found: bytes, meant: bytes) -> None:
        """Check that the manifest ``found`` at ``key`` names the same objects as ``meant``.

        Raises:
            DeletedMeanwhileError: it is a tombstone.
            VerificationError: it names something else, or is none.

        """
        ...

    def key_prefixes(self, cluster_id: str | None, topic: str, only: tuple[str, int] | None) -> list[str]:
        """Return the prefixes of all keys of a topic, with any topic id; other topics' keys may have them, too.

        ``only`` is the topic id and the number of a partition: of its keys alone, with that id and without any.
        """
        ...

    def segment_of_manifest(self, info: ObjectInfo, topic: str) -> SegmentIdentity | None:
        """Return which segment a manifest below ``topic``'s prefix belongs to; None for other objects."""
        ...

    def read_manifest(self, key: str, data: bytes) -> ShippedSegment:
        """Return the segment that the manifest ``data`` at ``key`` makes visible.

        Raises:
            FormatError: the manifest is damaged.

        """
        ...

    def unnamed_objects(self, store: ObjectStore, listed: Sequence[ObjectInfo]) -> Unnamed:
        """Return the objects in ``listed`` that have keys of this layout, and that no manifest names.

        Raises:
            StoreError: the store failed.

        """
        ...

    def deletion_of(self, key: str) -> Deletion | None:
        """Return how an unnamed object is deleted; None if it does not belong to this layout."""
        ...

    def is_tombstone(self, info: ObjectInfo) -> bool:
        """Whether the object records that a segment was deleted."""
        ...
