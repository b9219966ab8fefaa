"""How records change configurations and client quotas.

Source: ``ConfigurationsDelta``, ``ClientQuotasDelta``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.tiering.controller.metadata.image import ConfigChange, ConfigResource, ResourceType
from resnap.tiering.controller.metadata.records import ClientQuotaRecord, ConfigRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from resnap.tiering.controller.metadata.fold_state import FoldState, Place


def set_config(state: FoldState, record: ConfigRecord, place: Place) -> None:
    """A null takes the setting away; what has no setting left is not there."""
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
    """What has no quota left is not there."""
    entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
    if record.remove:
        state.quotas[entity].pop(record.key, None)
        if not state.quotas[entity]:
            del state.quotas[entity]
    else:
        state.quotas[entity][record.key] = record.value


HANDLERS: Final[dict[type, Callable[[FoldState, Any, Place], None]]] = {
    ConfigRecord: set_config,
    ClientQuotaRecord: set_quota,
}
