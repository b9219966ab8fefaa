"""A coordinator whose log always takes what is written, and a clock that tests set."""

from __future__ import annotations

from itertools import count

from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.controller.producer_ids.allocation import InitProducerIdRequest, InitProducerIdResponse
from resnap.tiering.controller.transactions.coordinator import PendingAppend, TransactionCoordinator
from resnap.tiering.controller.transactions.metadata import TransactionMetadata, TransactionState

ID = "payments"
PID = 23
EPOCH = 0
TIMEOUT_MS = 60_000
PARTITIONS = frozenset({TopicPartition("topic", 0)})
FENCED = KafkaError.PRODUCER_FENCED
AGAIN = KafkaError.CONCURRENT_TRANSACTIONS


class Coordinated:
    """A coordinator that is driven step by step; ``init`` and the others write at once by default."""

    def __init__(self, *, v2: bool = False, first_producer_id: int = PID) -> None:
        self.now = 1_000_000
        self.available = KafkaError.NONE
        self._ids = count(first_producer_id)
        self.coordinator = TransactionCoordinator(
            lambda: next(self._ids), availability=lambda _: self.available, transactions_v2=v2
        )

    def known(
        self,
        state: TransactionState = TransactionState.EMPTY,
        *,
        epoch: int = EPOCH,
        last: int = -1,
        previous: int = -1,
        pending: TransactionState | None = None,
    ) -> TransactionMetadata:
        """Let the coordinator know a transactional id in a certain state."""
        is_open = state in (
            TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT,
        )  # fmt: skip
        metadata = TransactionMetadata(
            transactional_id=ID, producer_id=next(self._ids), producer_epoch=epoch, last_producer_epoch=last,
            previous_producer_id=previous, timeout_ms=TIMEOUT_MS, state=state,
            partitions=PARTITIONS if is_open else frozenset(), start_ms=self.now if is_open else -1,
            update_ms=self.now, pending=pending,
        )  # fmt: skip
        self.coordinator.transactions[ID] = metadata
        return metadata

    def asked(
        self, producer_id: int = -1, epoch: int = -1, *, timeout_ms: int = TIMEOUT_MS, name: str | None = ID
    ) -> InitProducerIdResponse | PendingAppend:
        request = InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=producer_id, producer_epoch=epoch
        )
        return self.coordinator.init_producer_id(request, self.now)

    def settle(
        self, step: InitProducerIdResponse | PendingAppend, error: KafkaError = KafkaError.NONE
    ) -> InitProducerIdResponse:
        return self.coordinator.appended(step, error) if isinstance(step, PendingAppend) else step

    def init(
        self, producer_id: int = -1, epoch: int = -1, *, timeout_ms: int = TIMEOUT_MS, name: str | None = ID
    ) -> InitProducerIdResponse:
        """Ask for an id, and write what is to be written."""
        return self.settle(self.asked(producer_id, epoch, timeout_ms=timeout_ms, name=name))

    def failing(self, error: KafkaError) -> InitProducerIdResponse:
        """Ask for an id, and fail to write."""
        return self.settle(self.asked(), error)

    def begin(self, producer_id: int, epoch: int, *, client_v2: bool = False) -> InitProducerIdResponse:
        return self.settle(
            self.coordinator.add_partitions(ID, producer_id, epoch, PARTITIONS, self.now, client_v2=client_v2)
        )

    def end(
        self, producer_id: int, epoch: int, *, commit: bool = True, client_v2: bool = False
    ) -> InitProducerIdResponse:
        return self.settle(
            self.coordinator.end_transaction(ID, producer_id, epoch, self.now, commit=commit, client_v2=client_v2)
        )

    def write_markers(self) -> None:
        self.settle(self.coordinator.markers_written(ID, self.now))

    @property
    def metadata(self) -> TransactionMetadata:
        return self.coordinator.transactions[ID]


def given(producer_id: int, epoch: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


def error(code: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code)
