"""The controller's side of producer id allocation: the next block, and which requests get it (KIP-730).

State changes only by records: ``allocate`` returns the record that allocates the next block, and only ``replay`` of
that record applies it. The embedding program makes the record durable in between, or replays it at once and responds
when the record has committed, as a quorum does.

``DurableAllocation`` writes each block to a metadata log before it is returned. A kill between the append and the
response wastes a block. No kill allocates one twice, because the next run begins from the log. The log has Kafka's
format, and is held under the lock of its log dir.

KIP-730 requires a limit on block requests, and that an authorization error stops the broker. Kafka implements neither
as written: the general request quota delays the responses, and a broker only logs an error and retries. Here the
program provides the delay, and ``broker_ids`` reports which error must stop the broker.

The bodies of ``AllocateProducerIds`` (key 67) and ``InitProducerId`` (key 22) are read and written in all versions; the
caller handles headers. An unknown error code is damage: its meaning could only be guessed.

Source: ``ProducerIdsBlock``, ``ProducerIdControlManager`` and ``ProducerIdsImage``, as in 3.9;
``ControllerApis.handleAllocateProducerIdsRequest``, ``KafkaController.allocateProducerIds``;
``AllocateProducerIdsRequest.json``, ``InitProducerIdRequest.json`` and their responses; KIP-730, KIP-360.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypeAlias, TypeVar

from resnap.storage.errors import DataError, FormatError
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.storage.messages.schema import Int16, Int32, Int64, Since, String, read_whole, write_message
from resnap.storage.messages.wire import Cursor
from resnap.tiering.controller.metadata.folding import load_image
from resnap.tiering.controller.metadata.image import TransactionOutcome
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    NO_BROKER_EPOCH,
    PRODUCER_ID_BLOCK_SIZE,
    AbortTransactionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)
from resnap.tiering.controller.metadata.writer import MetadataLogWriter, open_metadata_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from resnap.tiering.controller.metadata.image import MetadataImage

MAX_PRODUCER_ID: Final = 2**63 - 1
INIT_PRODUCER_ID: Final = 22
INIT_PRODUCER_ID_VERSIONS: Final = range(6)
"""2.4 has 0 to 2, 2.5 adds 3 (an expected id and epoch), 2.7 adds 4 (PRODUCER_FENCED), 3.8 adds 5 (KIP-890)."""
_FENCED_SINCE: Final = 4
_CODE_BYTES: Final = 2


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


class DurableAllocation:
    """Allocates blocks, for one thread at a time; ``open_allocation`` makes one.

    Attributes:
        broker_epochs: epoch of each registered broker, as the log has it; ``register_broker`` adds to them.

    """

    def __init__(self, writer: MetadataLogWriter, image: MetadataImage) -> None:
        """Continue from ``image``; DataError if it allocates ids twice."""
        self.broker_epochs = {broker.broker_id: broker.epoch for broker in image.brokers.values()}
        self._incarnations = {broker.broker_id: broker.incarnation_id for broker in image.brokers.values()}
        self._writer = writer
        self._one_at_a_time = threading.Lock()
        self._allocation = ProducerIdAllocation(self.broker_epochs)
        for block in image.producer_id_blocks:
            self._allocation.replay(
                ProducerIdsRecord(
                    broker_id=NO_BROKER if block.broker_id is None else block.broker_id,
                    next_producer_id=block.next_producer_id,
                )
            )

    def register_broker(self, broker_id: int, incarnation_id: str, timestamp: int) -> int:
        """Register a broker and return its epoch, the offset of its record; on return it is durable.

        A registered incarnation keeps its epoch, so a broker may repeat its request; another incarnation replaces it,
        and requests of the old one are refused from then on. The caller must know that the old one has ended: Kafka
        refuses a second one as long as the first sends heartbeats.

        Args:
            broker_id: of the broker.
            incarnation_id: a UUID in Kafka's base64 form, new at each start of the broker.
            timestamp: of the record, milliseconds.

        Raises:
            LogDirError: the write failed; nothing is registered until the log is opened again.
            ValueError: ``broker_id`` is negative.

        Source: ``ClusterControlManager.registerBroker``.
        """
        if broker_id < 0:
            raise ValueError(f"a broker id of {broker_id}: it must be from 0 on")
        with self._one_at_a_time:
            if self._incarnations.get(broker_id) == incarnation_id:
                return self.broker_epochs[broker_id]
            epoch = self._writer.end_offset
            record = RegisterBrokerRecord(
                broker_id=broker_id, incarnation_id=incarnation_id, broker_epoch=epoch, end_points=(), features=(),
                rack=None,
            )  # fmt: skip
            self._writer.append([record], timestamp)
            self.broker_epochs[broker_id], self._incarnations[broker_id] = epoch, incarnation_id
        return epoch

    def allocate(self, broker_id: int, broker_epoch: int, timestamp: int) -> ProducerIdsBlock:
        """Allocate the next block to a broker; on return it is durable.

        Args:
            broker_id: of the broker that asks.
            broker_epoch: under which it is registered.
            timestamp: of the record, milliseconds.

        Raises:
            RefusedError: as ``ProducerIdAllocation.allocate``; nothing was written.
            LogDirError: the write failed; nothing is allocated until the log is opened again.

        """
        with self._one_at_a_time:
            block, record = self._allocation.allocate(broker_id, broker_epoch)
            # Before the append: an interruption may leave a block unused, but never gives one block to two brokers.
            self._allocation.replay(record)
            self._writer.append([record], timestamp)
        return block


@contextmanager
def open_allocation(directory: Path, *, leader_id: int, timestamp: int) -> Iterator[DurableAllocation]:
    """Open the metadata log at ``directory``, read the allocated blocks, and continue after them.

    Args:
        directory: the log, ``__cluster_metadata-0`` of a log dir.
        leader_id: node id of the leader that appends.
        timestamp: of the beginning of its leader epoch, milliseconds.

    Raises:
        As ``open_metadata_log`` and ``load_image``; DataError where the log gives ids away twice.

    """
    with open_metadata_log(directory, leader_id=leader_id, timestamp=timestamp) as writer:
        image = load_image(directory).relying_on(ProducerIdsRecord)
        if any(transaction.outcome is TransactionOutcome.OPEN for transaction in image.transactions):
            # Every new leader does this: otherwise the next append would become part of it.
            writer.append([AbortTransactionRecord(reason="its controller has gone")], timestamp)
        yield DurableAllocation(writer, image)


class _ErrorCode:
    """Reads and writes an error code."""

    def read(self, cursor: Cursor, version: int) -> object:  # noqa: ARG002 - the same in all versions
        """Return the error that comes next."""
        code = int.from_bytes(cursor.take(_CODE_BYTES, "error code"), "big", signed=True)
        try:
            return KafkaError(code)
        except ValueError:
            raise FormatError("error code", position=cursor.position, expected="one of those that are known",
                              found=code, hint="the broker is newer than this library") from None  # fmt: skip

    def write(self, value: object, version: int) -> bytes:  # noqa: ARG002
        """Return the bytes of an error."""
        if not isinstance(value, KafkaError):
            raise TypeError(f"{value!r} is not a KafkaError")
        return value.to_bytes(_CODE_BYTES, "big", signed=True)


ErrorCode: TypeAlias = Annotated[KafkaError, _ErrorCode()]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """A broker's request for a block."""

    versions: ClassVar[range] = range(1)
    broker_id: Int32
    broker_epoch: Int64 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """A block, or an error and no block."""

    versions: ClassVar[range] = range(1)
    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = KafkaError.NONE
    producer_id_start: Int64 = 0
    """First id of the block."""
    producer_id_len: Int32 = 0
    """How many ids there are in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    """A producer's request for an id, or for the next epoch of its id."""

    versions: ClassVar[range] = INIT_PRODUCER_ID_VERSIONS
    flexible_since: ClassVar[int] = 2
    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Since(3)] = -1
    """The id it has; -1 for none."""
    producer_epoch: Annotated[Int16, Since(3)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    """An id and an epoch, or an error."""

    versions: ClassVar[range] = INIT_PRODUCER_ID_VERSIONS
    flexible_since: ClassVar[int] = 2
    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = KafkaError.NONE
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1


_Body = TypeVar(
    "_Body", AllocateProducerIdsRequest, AllocateProducerIdsResponse, InitProducerIdRequest, InitProducerIdResponse
)


def write_body(message: _Body, version: int = 0) -> bytes:
    """Return the body of a request or response of ``version``, with an error that such clients know.

    Raises:
        ValueError: no such version, or a field that it does not have: below 3 no request expects a producer id.

    """
    _check_version(type(message), version)
    if isinstance(message, InitProducerIdResponse):
        message = replace(message, error_code=error_for_version(message.error_code, version))
    return write_message(message, version)


def read_body(message: type[_Body], body: bytes, version: int = 0) -> _Body:
    """Return the request or response of ``version``; FormatError for an invalid body, ValueError for its version."""
    _check_version(message, version)
    return read_whole(message, Cursor(body), version)


def error_for_version(error: KafkaError, version: int) -> KafkaError:
    """Return ``error`` as a client of this request version knows it: before 4, fencing was INVALID_PRODUCER_EPOCH."""
    if version < _FENCED_SINCE and error is KafkaError.PRODUCER_FENCED:
        return KafkaError.INVALID_PRODUCER_EPOCH
    return error


def _check_version(message: type[_Body], version: int) -> None:
    if version not in message.versions:
        raise ValueError(f"{message.__name__} has no version {version}")
