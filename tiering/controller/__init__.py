"""The controller's side of producer ids, on real metadata logs: allocation, expiration and transactions.

These are the public names. Each is loaded when it is first used: every command reads settings from the metadata log,
and few need transactions or a log that they write to.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from resnap.tiering.controller.expiration import BrokerExpiration, expiration_history, expiration_of
    from resnap.tiering.controller.metadata.batches import MetadataBatch, TornTail
    from resnap.tiering.controller.metadata.folding import load_image
    from resnap.tiering.controller.metadata.image import ConfigResource, MetadataImage, ProducerIdBlock, ResourceType
    from resnap.tiering.controller.metadata.log_files import list_metadata_log, read_metadata_log
    from resnap.tiering.controller.metadata.records import (
        ConfigRecord,
        ProducerIdsRecord,
        RegisterBrokerRecord,
        TopicRecord,
        UnknownRecord,
    )
    from resnap.tiering.controller.metadata.writer import MetadataLogWriter, open_metadata_log
    from resnap.tiering.controller.producer_ids.allocation import (
        AllocateProducerIdsRequest,
        AllocateProducerIdsResponse,
        DurableAllocation,
        InitProducerIdRequest,
        InitProducerIdResponse,
        ProducerIdAllocation,
        ProducerIdsBlock,
        answer_allocate,
        open_allocation,
        read_body,
        write_body,
    )
    from resnap.tiering.controller.producer_ids.broker_ids import (
        BrokerProducerIds,
        ZooKeeperProducerIds,
        asks_the_controller,
    )
    from resnap.tiering.controller.transactions.client_errors import (
        CoordinatorRequest,
        ProduceSituation,
        Reaction,
        on_coordinator_error,
        on_produce_error,
    )
    from resnap.tiering.controller.transactions.client_sequences import ClientSequences
    from resnap.tiering.controller.transactions.coordinator import PendingAppend, TransactionCoordinator
    from resnap.tiering.controller.transactions.state_log import TransactionStates, read_transaction_states

__all__ = [
    "AllocateProducerIdsRequest",
    "AllocateProducerIdsResponse",
    "BrokerExpiration",
    "BrokerProducerIds",
    "ClientSequences",
    "ConfigRecord",
    "ConfigResource",
    "CoordinatorRequest",
    "DurableAllocation",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "MetadataBatch",
    "MetadataImage",
    "MetadataLogWriter",
    "PendingAppend",
    "ProduceSituation",
    "ProducerIdAllocation",
    "ProducerIdBlock",
    "ProducerIdsBlock",
    "ProducerIdsRecord",
    "Reaction",
    "RegisterBrokerRecord",
    "ResourceType",
    "TopicRecord",
    "TornTail",
    "TransactionCoordinator",
    "TransactionStates",
    "UnknownRecord",
    "ZooKeeperProducerIds",
    "answer_allocate",
    "asks_the_controller",
    "expiration_history",
    "expiration_of",
    "list_metadata_log",
    "load_image",
    "on_coordinator_error",
    "on_produce_error",
    "open_allocation",
    "open_metadata_log",
    "read_body",
    "read_metadata_log",
    "read_transaction_states",
    "write_body",
]

_MODULES: Final = (
    "metadata.folding", "metadata.image", "metadata.records", "metadata.batches", "metadata.log_files",
    "metadata.writer", "expiration", "producer_ids.allocation",
    "producer_ids.broker_ids", "transactions.client_errors",
    "transactions.client_sequences", "transactions.coordinator", "transactions.state_log",
)  # fmt: skip
"""The modules that are searched for the names, in this order."""


def __getattr__(name: str) -> object:
    """Return a public name from the module that has it."""
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"{__name__}.{module}")
            if hasattr(found, name):
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
