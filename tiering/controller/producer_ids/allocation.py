"""The controller's side of producer id allocation: the next block, and which requests get it (KIP-730).

State changes only by records: ``allocate`` returns the record that allocates the next block, and only ``replay`` of
that record applies it. The embedding program makes the record durable in between (``durable_allocation``), or replays
it at once and responds when the record has committed, as a quorum does.

KIP-730 requires a limit on block requests, and that an authorization error stops the broker. Kafka implements neither
as written: the general request quota delays the responses, and a broker only logs an error and retries. Here the
program provides the delay, and ``broker_ids`` reports which error must stop the broker.

Source: ``ProducerIdsBlock``, ``ProducerIdControlManager`` and ``ProducerIdsImage``, as in 3.9;
``ControllerApis.handleAllocateProducerIdsRequest``, ``KafkaController.allocateProducerIds``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from resnap.storage.errors import DataError
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    NO_BROKER_EPOCH,
    PRODUCER_ID_BLOCK_SIZE,
    ProducerIdsRecord,
)
from resnap.tiering.controller.producer_ids.requests import AllocateProducerIdsRequest, AllocateProducerIdsResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_PRODUCER_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsBlock:
    """``size`` ids from ``first`` on, which a controller allocates to one broker at once."""

    broker_id: int
    first: int
    size: int = PRODUCER_ID_BLOCK_SIZE

    @property
    def last(self) -> int:
        """The last id, inclusive; -1 if the block is empty."""
        return self.first + self.size - 1

    @property
    def next_first(self) -> int:
        """First id of the block that follows."""
        return self.first + self.size


EMPTY: Final = ProducerIdsBlock(broker_id=NO_BROKER, first=0, size=0)


class ClaimedBlock:
    """A block from which each id is taken once. Not thread-safe: the caller must lock."""

    def __init__(self, block: ProducerIdsBlock) -> None:
        self.block = block
        self._next = block.first

    def claim(self) -> int | None:
        """Take the next id; None when all are taken."""
        if self._next > self.block.last:
            return None
        self._next += 1
        return self._next - 1


class ProducerIdAllocation:
    """The producer ids that were allocated so far.

    Attributes:
        next_block: the next block; its broker is the last one that requested a block. ``EMPTY`` before any record.

    """

    def __init__(self, broker_epochs: Mapping[int, int]) -> None:
        """Begin without allocated ids.

        Args:
            broker_epochs: epoch of each registered broker, fenced ones too; referenced, not copied.

        """
        self.next_block = EMPTY
        self._broker_epochs = broker_epochs

    def allocate(self, broker_id: int, broker_epoch: int) -> tuple[ProducerIdsBlock, ProducerIdsRecord]:
        """Return the next block for a broker, and its record; the block is the broker's once that is durable.

        Raises:
            RefusedError: STALE_BROKER_EPOCH if the broker is not registered under this epoch, and UNKNOWN_SERVER_ERROR
                if no ids are left.

        """
        registered = self._broker_epochs.get(broker_id)
        if registered != broker_epoch:
            known = "is not registered" if registered is None else f"is registered under epoch {registered}"
            raise RefusedError(
                KafkaError.STALE_BROKER_EPOCH, f"broker {broker_id} with epoch {broker_epoch} {known}",
                hint="the broker registers first, and sends the epoch that it was given",
            )  # fmt: skip
        first = self.next_block.first
        if first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
            why = f"no producer ids are left: the next block would begin at {first}"
            raise RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, why)
        block = ProducerIdsBlock(broker_id=broker_id, first=first)
        record = ProducerIdsRecord(broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=block.next_first)
        return block, record

    def replay(self, record: ProducerIdsRecord) -> None:
        """Apply a record of the log; gaps are allowed, and so is any first record.

        Raises:
            DataError: it goes back, or repeats: two brokers would get the same ids.

        """
        if self.next_block is not EMPTY and record.next_producer_id <= self.next_block.first:
            raise DataError(
                f"a record allocates producer ids up to {record.next_producer_id}, but the one before it went up to"
                f" {self.next_block.first}",
                hint="the log is not one that a controller wrote",
            )
        self.next_block = ProducerIdsBlock(broker_id=record.broker_id, first=record.next_producer_id)

    def snapshot(self) -> tuple[ProducerIdsRecord, ...]:
        """Return the equivalent records of a checkpoint, which do not name the broker."""
        if self.next_block is EMPTY:
            return ()
        first = self.next_block.first
        return (ProducerIdsRecord(broker_id=NO_BROKER, broker_epoch=NO_BROKER_EPOCH, next_producer_id=first),)


Allocate: TypeAlias = Callable[[int, int], ProducerIdsBlock]
"""Broker id and epoch in, a block out, or a ``RefusedError``: ``DurableAllocation.allocate`` at some time."""


def answer_allocate(
    request: AllocateProducerIdsRequest,
    allocate: Allocate,
    *,
    is_authorized: bool = True,
    is_active: bool = True,
    throttle: Callable[[], int] = lambda: 0,
) -> AllocateProducerIdsResponse:
    """Return the response of a KRaft controller.

    Args:
        request: from a broker, or from a client that claims to be one.
        allocate: allocates blocks.
        is_authorized: whether the caller has CLUSTER_ACTION on the cluster; checked first.
        is_active: whether this controller leads, and is not waiting for a migration to begin.
        throttle: counts the request, and returns how long to mute the connection; as in Kafka, all errors but that of
            authorization are exempt. ``tiering.quota.RequestThrottle`` is one.

    Raises:
        What ``allocate`` raises beside RefusedError, such as LogDirError: the controller must resign then.

    """
    if not is_authorized:
        return AllocateProducerIdsResponse(
            error_code=KafkaError.CLUSTER_AUTHORIZATION_FAILED, throttle_time_ms=throttle()
        )
    if not is_active:
        return AllocateProducerIdsResponse(error_code=KafkaError.NOT_CONTROLLER)
    try:
        block = allocate(request.broker_id, request.broker_epoch)
    except RefusedError as error:
        return AllocateProducerIdsResponse(error_code=error.error)
    return AllocateProducerIdsResponse(
        producer_id_start=block.first, producer_id_len=block.size, throttle_time_ms=throttle()
    )
