"""Rebuilds missing Kafka producer snapshots on Spark, and ships segments with them to tiered storage.

The four packages lie at the top of the repository; in a checkout, links stand here for them, and the wheel has them
here. So an installation owns one import name, ``resnap``, and no package of another project can overwrite a part of it.

The names in ``__all__`` are the public API (docs/python.md). Each is loaded when it is first used, and nothing beside
it: neither Spark nor the service.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resnap.replay.leader.append_validation import AppendOrigin as AppendOrigin
    from resnap.replay.leader.known_snapshots import MemorySnapshots as MemorySnapshots
    from resnap.replay.leader.known_snapshots import SnapshotFiles as SnapshotFiles
    from resnap.replay.leader.producer_state_manager import ManagerSettings as ManagerSettings
    from resnap.replay.leader.producer_state_manager import ProducerStateManager as ProducerStateManager
    from resnap.replay.producer_state import DataBatch as DataBatch
    from resnap.replay.producer_state import Expiry as Expiry
    from resnap.replay.producer_state import Marker as Marker
    from resnap.replay.spark.session import spark_session as spark_session
    from resnap.replay.spark.source import register_kafka_log as register_kafka_log
    from resnap.storage.kafka_errors import RefusedError as RefusedError
    from resnap.storage.log.producer_snapshot import ProducerEntry as ProducerEntry
    from resnap.storage.log.producer_snapshot import load_snapshot as load_snapshot
    from resnap.storage.log.producer_snapshot import read_snapshot as read_snapshot
    from resnap.storage.log.producer_snapshot import store_snapshot as store_snapshot
    from resnap.tiering.controller.producer_ids.allocation import ProducerIdAllocation as ProducerIdAllocation
    from resnap.tiering.controller.producer_ids.broker_ids import BrokerProducerIds as BrokerProducerIds

_DEFINED_IN = {
    "AppendOrigin": "replay.leader.append_validation",
    "BrokerProducerIds": "tiering.controller.producer_ids.broker_ids",
    "DataBatch": "replay.producer_state",
    "Expiry": "replay.producer_state",
    "ManagerSettings": "replay.leader.producer_state_manager",
    "Marker": "replay.producer_state",
    "MemorySnapshots": "replay.leader.known_snapshots",
    "ProducerEntry": "storage.log.producer_snapshot",
    "ProducerIdAllocation": "tiering.controller.producer_ids.allocation",
    "ProducerStateManager": "replay.leader.producer_state_manager",
    "RefusedError": "storage.kafka_errors",
    "SnapshotFiles": "replay.leader.known_snapshots",
    "load_snapshot": "storage.log.producer_snapshot",
    "read_snapshot": "storage.log.producer_snapshot",
    "register_kafka_log": "replay.spark.source",
    "spark_session": "replay.spark.session",
    "store_snapshot": "storage.log.producer_snapshot",
}
__all__ = list(_DEFINED_IN)


def __getattr__(name: str) -> object:
    """Return a public name, loaded now."""
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'resnap' has no attribute {name!r}")
    return getattr(import_module(f"resnap.{_DEFINED_IN[name]}"), name)
