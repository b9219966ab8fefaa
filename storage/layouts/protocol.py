"""What a layout of a store answers, so that nothing above has to ask which one it is.

A segment becomes objects; one of them, its manifest, makes it visible and is written last. A layout knows the keys of
all of them, what stands in the way of a segment, and how a manifest is read. What lies in a store is listed and read
back as a log dir.

``Stored`` is the reading half. A plain copy of a log dir has no other; shipping needs a ``Layout``. Settings of
one layout alone are arguments of its constructor (``registry``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resnap.storage.encryption import KeyRing
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.layouts.segments import (
        BrokersObject,
        Deletion,
        NewSegment,
        Place,
        Rewritten,
        RightParts,
        SegmentObjects,
        ShippedSegment,
        StoredManifest,
        Unnamed,
        Vouched,
    )
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.survey import Incomplete, LogDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


class Listing(Protocol):
    """The segments of a store, or of a part of it, as one listing shows them."""

    @property
    def manifests(self) -> Mapping[str, ObjectInfo]:
        """What makes each segment visible, by key, ascending."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of the objects beside each manifest, by its key."""
        ...

    @property
    def incomplete(self) -> Sequence[Incomplete]:
        """Segments that lack an object which brokers need, by its key.

        A copy or a deletion that did not end leaves that, and so does a loss: no manifest says which.
        """
        ...

    def folder(self, key: str) -> str:
        """Return the folder of the partition that the segment belongs to whose manifest is at ``key``."""
        ...

    def source(self, key: str) -> tuple[str, str]:
        """Return where a source begins that has the segment: a folder without a slash; and its topic id as in keys."""
        ...

    def read(self, key: str) -> StoredManifest:
        """Return what the manifest at ``key`` says.

        Raises:
            FormatError: it is damaged.
            ObjectNotFoundError: it has gone.
            StoreError: the store failed.

        """
        ...

    def is_retained_away(self, manifest: StoredManifest) -> bool:
        """Whether retention of brokers, who know nothing of the manifest, has taken its objects.

        Raises:
            StoreError: the store failed.

        """
        ...


class Stored(Protocol):
    """How what lies in a store is read back as a log."""

    @property
    def folders(self) -> int:
        """How many folders lie between the root of the layout and its segments; a source may name some of them."""
        ...

    @property
    def is_plain_copy(self) -> bool:
        """Whether it is a log dir as it is, so that a local directory of it is one like any other."""
        ...

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
        """Return what ``listed``, the objects of ``store`` that lie in the folders ``within`` of it, hold as a log dir.

        Of its partitions only those that ``topics`` wants; of several topics of one name the one whose id is among
        ``topic_ids``. A partition that cannot be read as one log becomes a problem.

        Raises:
            UsageError: segments of several clusters.
            StoreError: the store failed.

        """
        ...


class Tiered(Stored, Protocol):
    """What was tiered to a store, by Resnap or by brokers."""

    @property
    def name(self) -> str:
        """What users call the layout."""
        ...

    @property
    def remedy_when_verified(self) -> str:
        """What to do about a segment of which verification says that it is damaged."""
        ...

    @property
    def tells_digests(self) -> bool:
        """Whether manifests have digests of all objects; else these can only be compared with themselves."""
        ...

    def log_key(
        self, topic_partition: TopicPartition, topic_id: str, base_offset: int, remote_id: str, *, key_prefix: str
    ) -> str:
        """Return where brokers look for the log of a segment, with their ``key_prefix`` if keys have one."""
        ...

    def misplaced(self, key: str, found: StoredManifest, *, key_prefix: str) -> str | None:
        """Return why brokers would not find the segment of the manifest at ``key``; None if they would."""
        ...

    def listing(self, store: ObjectStore, wants: Callable[[str], bool], within: str = "") -> Listing:
        """Return the segments in ``store`` of the topics that ``wants`` asks for, which it may do again by their names.

        Of a part of the store, the folders ``within``, all that belongs to its topic counts, wherever it lies.

        Raises:
            StoreError: the store failed.

        """
        ...

    def vouched(self, store: ObjectStore, partition: PartitionDir) -> Vouched:
        """Return what the manifests of ``partition``, one of ``log_dir`` of ``store``, say beyond that.

        Raises:
            FormatError: one of them is damaged.
            StoreError: the store failed.

        """
        ...

    def rewritten(self, read: Callable[[str], bytes], manifest_key: str, parts: RightParts, keys: KeyRing) -> Rewritten:
        """Return the objects by which ``parts`` take the place of those of a segment; ``read`` gives what is stored.

        A reader of the segment by the manifest that is there finds the old parts until the last object is written,
        where the layout has more than one object for all of them.

        Raises:
            FormatError: the manifest is damaged.
            ConfigurationError: the segment is encrypted, and its key is not at hand.
            StoreError: an object cannot be read.

        """
        ...


class Shipped(Tiered, Protocol):
    """What was shipped to a store, of which it may hold the remains of runs that were killed."""

    def unnamed(self, store: ObjectStore, listed: Sequence[ObjectInfo]) -> Unnamed:
        """Return which of the objects ``listed`` are of this layout, and named by nothing among them.

        Raises:
            StoreError: the store failed.

        """
        ...

    def deletion_of(self, key: str) -> Deletion | None:
        """Return how an object that nothing names is deleted; None if it is none of this layout."""
        ...

    def is_tombstone(self, info: ObjectInfo) -> bool:
        """Whether it says that a segment was deleted."""
        ...


class ReadByBrokers(Tiered, Protocol):
    """How what brokers tier is found by its keys, where nothing, or nothing of ours, names it."""

    @property
    def needed_parts(self) -> frozenset[str]:
        """The objects without which brokers cannot read a segment."""
        ...

    def brokers_object(self, key: str) -> BrokersObject | None:
        """Return of which segment an object is; None if it is not one that brokers read in this layout."""
        ...


class Layout(Shipped, Protocol):
    """How segments are shipped, found again and read back."""

    @property
    def key_prefix(self) -> str:
        """What all keys of brokers begin with."""
        ...

    @property
    def may_overlap(self) -> bool:
        """Whether readers find their way where segments overlap."""
        ...

    @property
    def keeps_snapshots_as_found(self) -> bool:
        """Whether the entries of a broker's own snapshot keep their order; else the same state is the same object."""
        ...

    @property
    def remedy(self) -> str:
        """What to do about a segment in the way that is damaged."""
        ...

    def objects_of(self, segment: NewSegment, store: ObjectStore) -> SegmentObjects:
        """Return the objects that ``segment`` becomes in ``store``; some layouts read its log for that.

        Raises:
            TopicIdUnknownError, TopicNameTooLongError, ConfigurationError: it has no place in the layout.
            VerificationError: the log is not what it was.
            OSError: it cannot be read.
            StoreError: the store failed.

        """
        ...

    def check_missing(self, segment: NewSegment, store: ObjectStore, manifest_key: str) -> list[str]:
        """Make sure that no other run has shipped ``segment``; return the manifests of it that name what is gone.

        Raises:
            ShippedMeanwhileError: one has.
            DeletedMeanwhileError: ``manifest_key``, which it is to have, was given up by a deletion.
            StoreError: the store failed.

        """
        ...

    def check_same(self, key: str, found: bytes, meant: bytes) -> None:
        """Make sure that the manifest ``found`` at ``key`` names what the one that is ``meant`` does.

        Raises:
            DeletedMeanwhileError: it is a tombstone.
            VerificationError: it names something else, or is none.

        """
        ...

    def topic_prefix(self, cluster_id: str | None, topic: str) -> str:
        """Return what all keys of a topic begin with, whatever its id was known to be; those of others may, too."""
        ...

    def partition_prefixes(self, cluster_id: str | None, topic_partition: TopicPartition, topic_id: str) -> list[str]:
        """Return what all keys of a partition begin with, whether the id of its topic was known or not."""
        ...

    def manifest_place(self, info: ObjectInfo, topic: str) -> Place | None:
        """Return of what a manifest, found below the prefix of ``topic``, is; None for other objects."""
        ...

    def read_manifest(self, key: str, data: bytes) -> ShippedSegment:
        """Return the segment that the manifest ``data`` at ``key`` makes visible.

        Raises:
            FormatError: the manifest is damaged.

        """
        ...

    def retained_away(self, store: ObjectStore) -> Callable[[ShippedSegment], bool]:
        """Return what decides whether retention of brokers, who know nothing of the manifest, has taken a segment.

        What is returned raises StoreError where the store fails.
        """
        ...

    def origin_of(self, segment: ShippedSegment, store: ObjectStore) -> SnapshotOrigin | None:
        """Return where the snapshot of ``segment`` comes from; None where nothing, or nothing readable, says so.

        Raises:
            StoreError: the store failed.

        """
        ...
