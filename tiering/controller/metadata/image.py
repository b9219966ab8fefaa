"""The image of a metadata log as frozen values: brokers, topics, settings, and producer id blocks.

It keeps what Kafka's own image forgets, as far as the log has it: deleted topics, every block of producer ids, every
change to a broker's settings, and how metadata transactions ended.

Source: ``MetadataImage`` and its parts in Kafka's metadata module.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from resnap.storage.errors import MetadataLogError, MetadataVersionError
from resnap.storage.kafka_release import Release
from resnap.tiering.controller.metadata.records import TYPES_BY_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resnap.tiering.controller.metadata.records import (
        AccessControlEntryRecord,
        Endpoint,
        SupportedFeature,
        UserScramCredentialRecord,
    )

METADATA_VERSION: Final = "metadata.version"
METADATA_VERSIONS: Final[Mapping[int, str]] = dict(
    enumerate(
        (
            *("3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0", "3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0", "3.5-IV0"),
            *("3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3"),
            *("3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1"),
            *("4.2-IV0", "4.2-IV1", "4.3-IV0", "4.4-IV0", "4.4-IV1", "4.4-IV2", "4.5-IV0"),
        ),
        start=1,
    )
)
"""Names of the levels of ``metadata.version`` whose records are all known here. Source: ``MetadataVersion`` of 4.4."""


def metadata_version_name(level: int) -> str:
    """Return Kafka's name of a ``metadata.version`` level, or its number if the level is newer."""
    return METADATA_VERSIONS.get(level, str(level))


def release_of_level(level: int | None) -> Release | None:
    """Return the line of the broker whose newest supported ``metadata.version`` is ``level``; None if not known."""
    name = METADATA_VERSIONS.get(level) if level is not None else None
    if name is None:
        return None
    major, minor = name.partition("-")[0].split(".")
    return Release(int(major), int(minor))


class ResourceType(IntEnum):
    """The type of resource that a setting belongs to. Source: ``ConfigResource.Type``."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True, order=True)
class ConfigResource:
    """A resource with settings of its own; a broker without a name is the dynamic default of all brokers."""

    type: int
    """A ``ResourceType``, or what a later version adds."""
    name: str


ALL_BROKERS: Final = ConfigResource(ResourceType.BROKER, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One change to a setting of a broker, or of the default of all brokers."""

    resource: ConfigResource
    name: str
    value: str | None
    """None where it was taken away."""
    offset: int | None
    """None where it is known from a checkpoint."""
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker's registration."""

    broker_id: int
    epoch: int
    incarnation_id: str
    endpoints: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    is_migrating_zk_broker: bool
    log_dirs: tuple[str, ...]
    cordoned_log_dirs: tuple[str, ...] = ()
    """Log dirs that take no new replicas, from 4.3 on."""

    @property
    def newest_metadata_version(self) -> int | None:
        """The newest ``metadata.version`` that it supports, which shows its release; None if unknown."""
        levels = (feature.max_supported_version for feature in self.features if feature.name == METADATA_VERSION)
        return next(levels, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A controller's registration, from 3.7 on."""

    controller_id: int
    incarnation_id: str
    endpoints: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...]
    zk_migration_ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition as it is now."""

    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    leader: int
    """-1 for none."""
    leader_recovery_state: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[str, ...]
    eligible_leader_replicas: tuple[int, ...]
    last_known_elr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic and its partitions, by number."""

    name: str
    topic_id: str
    partitions: tuple[Partition, ...]
    created_offset: int | None
    """None where it is known from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """A topic whose deletion is in the log."""

    name: str
    topic_id: str
    offset: int
    timestamp: int


class BlockSource(StrEnum):
    """How a block of producer ids is known."""

    ALLOCATED = "allocated"
    """From the record of the allocation: which broker got it, and when."""
    CHECKPOINT = "checkpoint"
    """From a checkpoint, which only records where the next block begins: it covers all blocks before it."""
    MIGRATION = "migration"
    """From the migration from ZooKeeper, which records only the last block: it represents all earlier ones, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    """The producer ids in [``first_producer_id``, ``next_producer_id``), and their owner."""

    first_producer_id: int
    next_producer_id: int
    broker_id: int | None
    """None if it is from a checkpoint; after a migration, the owner of its last part."""
    broker_epoch: int | None
    source: BlockSource
    offset: int | None
    """Offset of the record; None in a checkpoint."""
    timestamp: int
    """When the record was appended, milliseconds; of a checkpoint, when the last record it covers was."""


class TransactionOutcome(StrEnum):
    """How a metadata transaction ended."""

    ENDED = "ended"
    ABORTED = "aborted"
    OPEN = "open"
    """Its records do not count, as yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTransaction:
    """Records that take effect together or not at all."""

    name: str | None
    begin_offset: int
    end_offset: int | None
    """Offset of the record that ended it."""
    records: int
    outcome: TransactionOutcome
    reason: str | None
    """Why it was aborted, where that was written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A record that was skipped, or that a controller would not write."""

    offset: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRecords:
    """Records of one type and version that were skipped."""

    api_key: int
    kind: str
    """Type and version, as far as they are known, and why they were skipped."""
    records: int
    first: str
    """Where the first one is."""

    def __str__(self) -> str:
        return (
            f"1 record {self.kind}, was skipped"
            if self.records == 1
            else f"{self.records} records {self.kind}, were skipped"
        )


PRE_MIGRATION: Final = 2
MIGRATING: Final = frozenset({1, PRE_MIGRATION})
"""``zk_migration_state`` while a cluster may return to ZooKeeper. Source: ``ZkMigrationState``, as from 3.5 on."""
BEFORE_MIGRATION: Final = (
    "the migration from ZooKeeper waits for brokers: topics, settings and ids are in ZooKeeper alone"
)
QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types and names, such as ``(("user", "a"), ("client-id", None))``; a name of None is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """The whole image, as of ``offset``."""

    offset: int
    """Offset of the last record."""
    leader_epoch: int
    timestamp: int
    """Timestamp of the last record, milliseconds."""
    features: Mapping[str, int]
    zk_migration_state: int | None
    brokers: Mapping[int, Broker]
    controllers: Mapping[int, Controller]
    topics: Mapping[str, Topic]
    deleted_topics: tuple[DeletedTopic, ...]
    configs: Mapping[ConfigResource, Mapping[str, str]]
    broker_config_changes: tuple[ConfigChange, ...]
    quotas: Mapping[QuotaEntity, Mapping[str, float]]
    access_control_entries: tuple[AccessControlEntryRecord, ...]
    """Access control entries by id."""
    scram_credentials: tuple[UserScramCredentialRecord, ...]
    """Credentials by user and mechanism."""
    producer_id_blocks: tuple[ProducerIdBlock, ...]
    """In the order in which they were given."""
    next_producer_id: int | None
    """First id of the next block; None where no block was ever given."""
    transactions: tuple[MetadataTransaction, ...]
    left_aside: Mapping[str, int]
    """How many records of each type were read and not folded: delegation tokens."""
    skipped: tuple[SkippedRecords, ...]
    """Skipped records by type and version. Kafka never gives a known one another meaning, so all else holds."""
    notes: tuple[Note, ...]

    @property
    def metadata_version(self) -> int | None:
        """The cluster's ``metadata.version``; None before 3.3, which did not record it."""
        return self.features.get(METADATA_VERSION)

    def relying_on(self, *messages: type) -> MetadataImage:
        """Return this image, for a query that depends on records of the types ``messages``.

        Raises:
            MetadataVersionError: records of one of these types were skipped.
            MetadataLogError: the migration from ZooKeeper has yet to write them.

        """
        if messages and self.zk_migration_state == PRE_MIGRATION:
            raise MetadataLogError(
                BEFORE_MIGRATION,
                hint="ask the running cluster (--bootstrap-server, `resnap export-cluster`), or give flags or files",
            )
        asked = {TYPES_BY_MESSAGE[message].api_key for message in messages}
        for skipped in self.skipped:
            if skipped.api_key in asked:
                raise MetadataVersionError(
                    f"{skipped.first}: {skipped}, and the answer depends on them",
                    hint="a newer release of Resnap may know them; until then give their values with flags or files",
                )
        return self

    def topic_ids(self) -> dict[str, str]:
        """Return the topic ids by name."""
        return {name: topic.topic_id for name, topic in self.topics.items()}
