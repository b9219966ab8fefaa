"""The record types that a KRaft controller writes, up to Kafka 4.4: names, fields and versions.

A new version only adds fields, so one class covers all versions of a type, with defaults for fields that older ones
lack. Kafka's own values -1 and -2 for "none" are kept.

Source: ``metadata/src/main/resources/common/metadata`` of Kafka 3.9 and 4.1, the generated classes of 4.4; KIP-631,
KIP-730, KIP-778, KIP-835, KIP-841, KIP-858, KIP-866, KIP-868, KIP-919, KIP-966, KIP-1066.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, TypeVar, dataclass_transform

from resnap.storage.messages.schema import (
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Since,
    String,
    Tag,
    UInt16,
    Uuid,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_Record = TypeVar("_Record", bound="MetadataRecord")

NO_LEADER: Final = -1
NO_LEADER_CHANGE: Final = -2
NO_BROKER: Final = -1
NO_BROKER_EPOCH: Final = -1
PRODUCER_ID_BLOCK_SIZE: Final = 1_000
"""Size of every block that a controller gives. Source: ``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``."""


class MetadataRecord:
    """A record that a controller writes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordType:
    """One type of record; its versions are 0 to ``newest_version``."""

    api_key: int
    message: type[MetadataRecord]
    newest_version: int

    @property
    def name(self) -> str:
        """Its name in Kafka's own tools."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.message.__name__).upper()


TYPES_BY_KEY: Final[dict[int, RecordType]] = {}
"""6, 13 and 16 were never used."""
TYPES_BY_MESSAGE: Final[dict[type, RecordType]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _record(*, api_key: int, newest_version: int = 0) -> Callable[[type[_Record]], type[_Record]]:
    """Make a class a frozen dataclass, and the type of record of ``api_key``."""

    def made(declared: type[_Record]) -> type[_Record]:
        message = dataclass(frozen=True, slots=True, kw_only=True)(declared)
        known = RecordType(api_key=api_key, message=message, newest_version=newest_version)
        TYPES_BY_KEY[api_key] = TYPES_BY_MESSAGE[message] = known
        return message

    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address of a broker or controller."""

    name: String
    host: String
    port: UInt16
    security_protocol: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeature:
    """The versions of a feature that a broker or controller supports."""

    name: String
    min_supported_version: Int16
    max_supported_version: Int16


@_record(api_key=0, newest_version=4)
class RegisterBrokerRecord(MetadataRecord):
    """A broker has started, under an epoch of its own: the offset of this record."""

    broker_id: Int32
    is_migrating_zk_broker: Annotated[Bool, Since(2)] = False
    incarnation_id: Uuid
    broker_epoch: Int64
    end_points: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...]
    rack: String | None
    fenced: Bool = True
    in_controlled_shutdown: Annotated[Bool, Since(1)] = False
    log_dirs: Annotated[tuple[Uuid, ...], Since(3), Tag(0)] = ()
    cordoned_log_dirs: Annotated[tuple[Uuid, ...] | None, Since(4), Tag(1)] = None


@_record(api_key=1)
class UnregisterBrokerRecord(MetadataRecord):
    """A broker was removed from the cluster."""

    broker_id: Int32
    broker_epoch: Int64


@_record(api_key=2)
class TopicRecord(MetadataRecord):
    """A topic was created."""

    name: String
    topic_id: Uuid


@_record(api_key=3, newest_version=2)
class PartitionRecord(MetadataRecord):
    """A partition, whole."""

    partition_id: Int32 = -1
    topic_id: Uuid
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...] = ()
    adding_replicas: tuple[Int32, ...] = ()
    leader: Int32 = NO_LEADER
    leader_recovery_state: Annotated[Int8, Tag(0)] = 0
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[tuple[Uuid, ...], Since(1)] = ()
    eligible_leader_replicas: Annotated[tuple[Int32, ...] | None, Since(2), Tag(1)] = None
    last_known_elr: Annotated[tuple[Int32, ...] | None, Since(2), Tag(2)] = None


@_record(api_key=4)
class ConfigRecord(MetadataRecord):
    """A setting of a broker (4) or topic (2) was set, or, by a null, removed."""

    resource_type: Int8
    resource_name: String
    name: String
    value: String | None


@_record(api_key=5, newest_version=2)
class PartitionChangeRecord(MetadataRecord):
    """The changed fields of a partition; null means unchanged."""

    partition_id: Int32 = -1
    topic_id: Uuid
    isr: Annotated[tuple[Int32, ...] | None, Tag(0)] = None
    leader: Annotated[Int32, Tag(1)] = NO_LEADER_CHANGE
    replicas: Annotated[tuple[Int32, ...] | None, Tag(2)] = None
    removing_replicas: Annotated[tuple[Int32, ...] | None, Tag(3)] = None
    adding_replicas: Annotated[tuple[Int32, ...] | None, Tag(4)] = None
    leader_recovery_state: Annotated[Int8, Tag(5)] = -1
    directories: Annotated[tuple[Uuid, ...] | None, Since(1), Tag(8)] = None
    eligible_leader_replicas: Annotated[tuple[Int32, ...] | None, Since(2), Tag(6)] = None
    last_known_elr: Annotated[tuple[Int32, ...] | None, Since(2), Tag(7)] = None


@_record(api_key=7)
class FenceBrokerRecord(MetadataRecord):
    """A broker was fenced; later versions write ``BrokerRegistrationChangeRecord``."""

    id: Int32
    epoch: Int64


@_record(api_key=8)
class UnfenceBrokerRecord(MetadataRecord):
    """A broker was unfenced."""

    id: Int32
    epoch: Int64


@_record(api_key=9)
class RemoveTopicRecord(MetadataRecord):
    """A topic was deleted, with its partitions and configuration."""

    topic_id: Uuid


@_record(api_key=10)
class DelegationTokenRecord(MetadataRecord):
    """A delegation token, without its secret."""

    owner: String
    requester: String
    renewers: tuple[String, ...]
    issue_timestamp: Int64
    max_timestamp: Int64
    expiration_timestamp: Int64
    token_id: String


@_record(api_key=11)
class UserScramCredentialRecord(MetadataRecord):
    """The SCRAM credential of a user."""

    name: String
    mechanism: Int8
    salt: Bytes
    stored_key: Bytes
    server_key: Bytes
    iterations: Int32


@_record(api_key=12)
class FeatureLevelRecord(MetadataRecord):
    """The level of a feature, above all ``metadata.version``; 0 removes it."""

    name: String
    feature_level: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityData:
    """A part of what a quota is for; a name of null is the default of the type."""

    entity_type: String
    entity_name: String | None


@_record(api_key=14)
class ClientQuotaRecord(MetadataRecord):
    """A quota was set or removed."""

    entity: tuple[EntityData, ...]
    key: String
    value: Float64
    remove: Bool


@_record(api_key=15)
class ProducerIdsRecord(MetadataRecord):
    """A block of producer ids was allocated to a broker; ``next_producer_id`` is the first one above it."""

    broker_id: Int32
    broker_epoch: Int64 = NO_BROKER_EPOCH
    next_producer_id: Int64


@_record(api_key=17, newest_version=3)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """A registered broker was fenced (1) or unfenced (-1), began to shut down (1), or changed its log dirs.

    Cordoned log dirs get no new replicas; null means unchanged.
    """

    broker_id: Int32
    broker_epoch: Int64
    fenced: Annotated[Int8, Tag(0)] = 0
    in_controlled_shutdown: Annotated[Int8, Since(1), Tag(1)] = 0
    log_dirs: Annotated[tuple[Uuid, ...], Since(2), Tag(2)] = ()
    cordoned_log_dirs: Annotated[tuple[Uuid, ...] | None, Since(3), Tag(3)] = None


@_record(api_key=18)
class AccessControlEntryRecord(MetadataRecord):
    """An access control entry."""

    id: Uuid
    resource_type: Int8
    resource_name: String
    pattern_type: Int8
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@_record(api_key=19)
class RemoveAccessControlEntryRecord(MetadataRecord):
    """An access control entry was removed."""

    id: Uuid


@_record(api_key=20)
class NoOpRecord(MetadataRecord):
    """No change: it keeps the high watermark moving."""


@_record(api_key=21)
class ZkMigrationStateRecord(MetadataRecord):
    """The state of a migration from ZooKeeper."""

    zk_migration_state: Int8


@_record(api_key=22)
class RemoveUserScramCredentialRecord(MetadataRecord):
    """A credential was removed."""

    name: String
    mechanism: Int8


@_record(api_key=23)
class BeginTransactionRecord(MetadataRecord):
    """The following records take effect together, or not at all."""

    name: Annotated[String | None, Tag(0)] = None


@_record(api_key=24)
class EndTransactionRecord(MetadataRecord):
    """The records since the beginning of the transaction take effect."""


@_record(api_key=25)
class AbortTransactionRecord(MetadataRecord):
    """The records since the beginning of the transaction are discarded."""

    reason: Annotated[String | None, Tag(0)] = None


@_record(api_key=26)
class RemoveDelegationTokenRecord(MetadataRecord):
    """A delegation token was removed."""

    token_id: String


@_record(api_key=27)
class RegisterControllerRecord(MetadataRecord):
    """A controller has started."""

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: Bool
    end_points: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...]


@_record(api_key=28)
class ClearElrRecord(MetadataRecord):
    """The eligible leader replicas of a topic, or of all topics if the name is empty, are cleared."""

    topic_name: String


@_record(api_key=29)
class UnregisterControllerRecord(MetadataRecord):
    """A controller was removed from the cluster."""

    controller_id: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRecord:
    """A record of a type or version newer than this release; not parsed."""

    api_key: int
    version: int
    size_bytes: int
