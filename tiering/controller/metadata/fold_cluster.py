"""Folds records about brokers, controllers, features, settings, quotas and producer id blocks into the image.

A record allocates one block of 1,000 producer ids, identified by the first id above it. A controller never goes back,
and leaves no gap. A log that violates this is not refused, because brokers use its image; the violation is recorded,
and the block is kept as allocated, so that an audit finds ids that two brokers have, or none.

Source: ``ClusterDelta``, ``FeaturesDelta``, ``ConfigurationsDelta``, ``ClientQuotasDelta``; ``ProducerIdsDelta``,
``ProducerIdsImage``, ``ProducerIdControlManager``, ``ZkMigrationClient``; KIP-730.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from resnap.tiering.controller.metadata.image import (
    BlockSource,
    Broker,
    ConfigChange,
    ConfigResource,
    Controller,
    Note,
    ProducerIdBlock,
    ResourceType,
)
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    NO_BROKER_EPOCH,
    PRODUCER_ID_BLOCK_SIZE,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    Endpoint,
    FeatureLevelRecord,
    FenceBrokerRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    SupportedFeature,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    ZkMigrationStateRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from resnap.tiering.controller.metadata.fold_state import FoldState, Place

_Named = TypeVar("_Named", Endpoint, SupportedFeature)
_CHANGE: Final = {-1: False, 0: None, 1: True}
"""What a flag becomes; None: it stays."""


def register_broker(state: FoldState, record: RegisterBrokerRecord, place: Place) -> None:  # noqa: ARG001
    """Apply a broker's registration, replacing an older one of the same id."""
    state.brokers[record.broker_id] = Broker(
        broker_id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation_id=record.incarnation_id,
        endpoints=_by_name(record.end_points),
        features=_by_name(record.features),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        is_migrating_zk_broker=record.is_migrating_zk_broker,
        log_dirs=record.log_dirs,
        cordoned_log_dirs=record.cordoned_log_dirs or (),
    )


def unregister_broker(state: FoldState, record: UnregisterBrokerRecord, place: Place) -> None:  # noqa: ARG001
    """Apply the removal of a broker, which may be unknown."""
    state.brokers.pop(record.broker_id, None)


def change_registration(state: FoldState, record: BrokerRegistrationChangeRecord, place: Place) -> None:
    """Apply a change to a registration; unchanged fields are 0, or empty."""
    if record.fenced not in _CHANGE or record.in_controlled_shutdown not in _CHANGE:
        raise place.wrong(
            f"fenced {record.fenced}, in controlled shutdown {record.in_controlled_shutdown}: not -1 to 1"
        )
    _change_broker(
        state,
        record.broker_id,
        record.broker_epoch,
        place,
        fenced=_CHANGE[record.fenced],
        in_controlled_shutdown=_CHANGE[record.in_controlled_shutdown],
        log_dirs=record.log_dirs or None,
        cordoned_log_dirs=record.cordoned_log_dirs,
    )


def fence_broker(state: FoldState, record: FenceBrokerRecord, place: Place) -> None:
    """Fence a broker; before 3.3-IV2."""
    _change_broker(state, record.id, record.epoch, place, fenced=True)


def unfence_broker(state: FoldState, record: UnfenceBrokerRecord, place: Place) -> None:
    """Unfence a broker; before 3.3-IV2."""
    _change_broker(state, record.id, record.epoch, place, fenced=False)


def register_controller(state: FoldState, record: RegisterControllerRecord, place: Place) -> None:  # noqa: ARG001
    """Apply a controller's registration, replacing an older one of the same id."""
    state.controllers[record.controller_id] = Controller(
        controller_id=record.controller_id,
        incarnation_id=record.incarnation_id,
        endpoints=_by_name(record.end_points),
        features=_by_name(record.features),
        zk_migration_ready=record.zk_migration_ready,
    )


def unregister_controller(state: FoldState, record: UnregisterControllerRecord, place: Place) -> None:  # noqa: ARG001
    """Apply the removal of a controller, which may be unknown."""
    state.controllers.pop(record.controller_id, None)


def set_feature(state: FoldState, record: FeatureLevelRecord, place: Place) -> None:  # noqa: ARG001
    """Set the level of a feature; 0 removes it."""
    state.features.pop(record.name, None)
    if record.feature_level:
        state.features[record.name] = record.feature_level


def set_migration_state(state: FoldState, record: ZkMigrationStateRecord, place: Place) -> None:  # noqa: ARG001
    """Set the state of the migration from ZooKeeper; 0 is none."""
    state.zk_migration_state = record.zk_migration_state


def _by_name(parts: tuple[_Named, ...]) -> tuple[_Named, ...]:
    """Sort entries by name, since a log and a checkpoint order them differently."""
    return tuple(sorted(parts, key=lambda part: part.name))


def _change_broker(state: FoldState, broker_id: int, epoch: int, place: Place, **changed: Any) -> None:  # noqa: ANN401
    broker = state.brokers.get(broker_id)
    if broker is None or broker.epoch != epoch:
        now = "not registered" if broker is None else f"registered under epoch {broker.epoch}"
        raise place.wrong(f"the registration of broker {broker_id}, epoch {epoch}, changes, but it is {now}")
    state.brokers[broker_id] = replace(
        broker, **{name: value for name, value in changed.items() if value is not None}
    )  # fmt: skip


def set_config(state: FoldState, record: ConfigRecord, place: Place) -> None:
    """Set a setting, or remove it if the value is null; a resource without settings is removed."""
    resource = ConfigResource(record.resource_type, record.resource_name)
    if record.value is None:
        state.configs[resource].pop(record.name, None)
        if not state.configs[resource]:
            del state.configs[resource]
    else:
        state.configs[resource][record.name] = record.value
    if resource.type == ResourceType.BROKER:
        state.broker_config_changes.append(
            ConfigChange(
                resource=resource,
                name=record.name,
                value=record.value,
                offset=place.offset,
                timestamp=place.timestamp,
            )
        )


def set_quota(state: FoldState, record: ClientQuotaRecord, place: Place) -> None:  # noqa: ARG001
    """Set or remove a quota; an entity without quotas is removed."""
    entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
    if record.remove:
        state.quotas[entity].pop(record.key, None)
        if not state.quotas[entity]:
            del state.quotas[entity]
    else:
        state.quotas[entity][record.key] = record.value


def give_block(state: FoldState, record: ProducerIdsRecord, place: Place) -> None:
    """Record that a block was allocated to a broker; or that all ids so far were, to brokers that are unknown now."""
    source = _source(record, place)
    above = state.next_producer_id or 0
    allocated = source is BlockSource.ALLOCATED
    first = (
        max(record.next_producer_id - PRODUCER_ID_BLOCK_SIZE, 0) if allocated else min(above, record.next_producer_id)
    )
    if allocated and first != above:
        _note_order(state, record, place, above)
    known = source is not BlockSource.CHECKPOINT and record.broker_id != NO_BROKER
    state.producer_id_blocks.append(
        ProducerIdBlock(
            first_producer_id=first,
            next_producer_id=record.next_producer_id,
            broker_id=record.broker_id if known else None,
            broker_epoch=record.broker_epoch if known and record.broker_epoch != NO_BROKER_EPOCH else None,
            source=source,
            offset=place.offset,
            timestamp=place.timestamp,
        )
    )
    state.next_producer_id = record.next_producer_id


def _source(record: ProducerIdsRecord, place: Place) -> BlockSource:
    # Until 3.3 a checkpoint's record names a broker, the last one or 0, as if it were a request's.
    if place.offset is None or record.broker_id == NO_BROKER:
        return BlockSource.CHECKPOINT
    return BlockSource.MIGRATION if record.broker_epoch == NO_BROKER_EPOCH else BlockSource.ALLOCATED


def _note_order(state: FoldState, record: ProducerIdsRecord, place: Place, above: int) -> None:
    first = record.next_producer_id - PRODUCER_ID_BLOCK_SIZE
    skipped = f"ids from {above} to {first} were allocated to no broker"
    what = skipped if first > above else f"ids below {above} were allocated before"
    text = f"the block of producer ids below {record.next_producer_id} does not begin at {above}: {what}"
    state.notes.append(Note(offset=place.offset, text=text))


HANDLERS: Final[dict[type, Callable[[FoldState, Any, Place], None]]] = {
    RegisterBrokerRecord: register_broker,
    UnregisterBrokerRecord: unregister_broker,
    BrokerRegistrationChangeRecord: change_registration,
    FenceBrokerRecord: fence_broker,
    UnfenceBrokerRecord: unfence_broker,
    RegisterControllerRecord: register_controller,
    UnregisterControllerRecord: unregister_controller,
    FeatureLevelRecord: set_feature,
    ZkMigrationStateRecord: set_migration_state,
    ConfigRecord: set_config,
    ClientQuotaRecord: set_quota,
    ProducerIdsRecord: give_block,
}
