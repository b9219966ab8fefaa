"""The decisions of a transaction coordinator: ``InitProducerId`` (KIP-360), and the ends of transactions.

It has only rules, writes nothing, and is not thread-safe. A method either returns the response at once, or a
``PendingAppend``, whose transition the caller writes to ``__transaction_state`` and reports with ``appended``, which
returns the response. After the decision to end a transaction is written, the caller writes its markers, and reports
with ``markers_written``.

``InitProducerId`` for a known transactional id: while a step is pending or a transaction is ending, the client must
retry; an open transaction is aborted first, under an epoch that fences the producer that opened it; otherwise the epoch
is bumped, or a new producer id is allocated if the epochs are exhausted. A repeated request gets the same response, as
long as the coordinator knows the previous epoch: a failover loses it.

Source: ``TransactionCoordinator`` and ``TransactionStateManager``, as in 3.9.1, 4.1.1 and 4.3.0.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.storage.log.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from resnap.tiering.controller.producer_ids.allocation import InitProducerIdResponse
from resnap.tiering.controller.transactions.metadata import (
    DONE,
    PREPARED,
    TransactionMetadata,
    TransactionState,
    check_not_ending,
    check_not_pending,
    check_producer,
    end_v1,
    end_v2,
    is_epoch_exhausted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.controller.producer_ids.allocation import InitProducerIdRequest

MAX_TIMEOUT_MS: Final = 900_000
"""Default of ``transaction.max.timeout.ms``."""
_NOT_AVAILABLE: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.REQUEST_TIMED_OUT,
}
_NOT_COORDINATOR: Final = {KafkaError.NOT_LEADER_OR_FOLLOWER, KafkaError.KAFKA_STORAGE_ERROR}
_TOO_LARGE: Final = {KafkaError.MESSAGE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAppend:
    """A step that takes effect once its transition is written."""

    transactional_id: str
    transition: TransactionMetadata
    is_epoch_fence: bool = False
    """No client requested this end of a transaction: it fences, and the client that caused it must retry."""


Answer: TypeAlias = InitProducerIdResponse
"""Producer id and epoch, or an error; for other requests than ``InitProducerId`` the id and epoch to continue with."""


def error_of_append(error: KafkaError) -> KafkaError:
    """Return the error that clients get when ``__transaction_state`` could not be written."""
    if error in _NOT_AVAILABLE:
        return KafkaError.COORDINATOR_NOT_AVAILABLE
    if error in _NOT_COORDINATOR:
        return KafkaError.NOT_COORDINATOR
    return KafkaError.UNKNOWN_SERVER_ERROR if error in _TOO_LARGE else error


class TransactionCoordinator:
    """The transactional ids of one coordinator.

    Attributes:
        transactions: the known transactions, by transactional id.

    """

    def __init__(
        self,
        draw_producer_id: Callable[[], int],
        *,
        availability: Callable[[str], KafkaError] = lambda _: KafkaError.NONE,
        transactions_v2: bool = False,
        max_timeout_ms: int = MAX_TIMEOUT_MS,
    ) -> None:
        """Begin with no transactional id.

        Args:
            draw_producer_id: returns a new producer id, or raises the RefusedError that clients get.
            availability: of the partition of a transactional id: NONE, COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR.
            transactions_v2: whether the cluster has ``transaction.version`` 2, which needs 4.0.
            max_timeout_ms: ``transaction.max.timeout.ms``; a longer timeout is INVALID_TRANSACTION_TIMEOUT.

        """
        self.transactions: dict[str, TransactionMetadata] = {}
        self._draw = draw_producer_id
        self._availability = availability
        self._v2 = transactions_v2
        self._max_timeout_ms = max_timeout_ms

    def init_producer_id(self, request: InitProducerIdRequest, now_ms: int) -> Answer | PendingAppend:
        """Handle a request; an expected id without an epoch, or the reverse, is INVALID_REQUEST."""
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            return Answer(error_code=KafkaError.INVALID_REQUEST)
        try:
            if request.transactional_id is None:
                return Answer(producer_id=self._draw(), producer_epoch=0)
            return self._init_transactional(request, request.transactional_id, now_ms)
        except RefusedError as error:
            return Answer(error_code=error.error)

    def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[TopicPartition], now_ms: int,
        *, client_v2: bool = False,
    ) -> Answer | PendingAppend:  # fmt: skip
        """Add partitions to the transaction of a producer, which begins with the first."""
        try:
            metadata = self._metadata_of(transactional_id)
            if self._v2:  # first, since the producer may have the next id, which takes effect after the markers
                check_not_pending(metadata)
            check_producer(metadata, producer_id, epoch)
            check_not_pending(metadata)
            check_not_ending(metadata)
            if metadata.state is TransactionState.ONGOING and partitions <= metadata.partitions:
                return self._current(metadata)
            transition = metadata.prepare_partitions(partitions, now_ms, client_v2=client_v2)
        except RefusedError as error:
            return Answer(error_code=error.error)
        return PendingAppend(transactional_id=transactional_id, transition=transition)

    def end_transaction(
        self, transactional_id: str, producer_id: int, epoch: int, now_ms: int, *, commit: bool, client_v2: bool = False
    ) -> Answer | PendingAppend:
        """End a producer's transaction; with transactions v2 the response has the next id and epoch."""
        try:
            metadata = self._metadata_of(transactional_id)
            if client_v2 and self._v2:
                transition = end_v2(metadata, producer_id, epoch, now_ms, commit=commit, draw=self._draw)
            else:
                transition = end_v1(metadata, producer_id, epoch, now_ms, commit=commit)
        except RefusedError as error:
            return Answer(error_code=error.error)
        if transition is None:
            return self._current(metadata)
        return PendingAppend(transactional_id=transactional_id, transition=transition)

    def abort_timed_out(self, now_ms: int) -> list[PendingAppend]:
        """Fence each producer whose transaction is open beyond its timeout; return what to write.

        A producer that cannot be fenced now, for lack of a producer id, is left for the next call.
        """
        late = [
            metadata for metadata in self.transactions.values()
            if metadata.state is TransactionState.ONGOING and metadata.pending is None
            and metadata.start_ms + metadata.timeout_ms < now_ms
        ]  # fmt: skip
        appends = []
        for metadata in late:
            with suppress(RefusedError):
                appends.append(self._fence(metadata, now_ms))
        return appends

    def expired(self, now_ms: int, expiration_ms: int) -> list[str]:
        """Return the idle transactional ids that were not used for ``transactional.id.expiration.ms``."""
        return [
            name for name, metadata in self.transactions.items()
            if metadata.pending is None and metadata.state in DONE and metadata.update_ms <= now_ms - expiration_ms
        ]  # fmt: skip

    def appended(self, append: PendingAppend, error: KafkaError = KafkaError.NONE) -> Answer:
        """Record that a transition was written, or why not; return the response."""
        metadata = self.transactions.get(append.transactional_id)
        if metadata is None:
            return Answer(error_code=KafkaError.NOT_COORDINATOR)
        if error is not KafkaError.NONE:
            metadata.pending = None
            metadata.has_failed_epoch_fence = metadata.has_failed_epoch_fence or append.is_epoch_fence
            return Answer(error_code=error_of_append(error))
        metadata.complete(append.transition, keep_previous=not self._v2)
        metadata.awaits_markers = metadata.state in PREPARED
        if append.is_epoch_fence:
            return Answer(error_code=KafkaError.CONCURRENT_TRANSACTIONS)
        if metadata.next_producer_id != NO_PRODUCER_ID:
            return Answer(producer_id=metadata.next_producer_id, producer_epoch=0)
        return self._current(metadata)

    def markers_written(self, transactional_id: str, now_ms: int) -> PendingAppend:
        """Record that all partitions of a decided transaction have its marker; return what to write."""
        metadata = self._metadata_of(transactional_id)
        return PendingAppend(transactional_id=transactional_id, transition=metadata.prepare_complete(now_ms))

    def _init_transactional(
        self, request: InitProducerIdRequest, transactional_id: str, now_ms: int
    ) -> Answer | PendingAppend:
        metadata = self._found_or_made(request, transactional_id, now_ms)
        check_not_pending(metadata)
        expects = request.producer_id != NO_PRODUCER_ID
        if expects and not self._may_expect(metadata, request):
            raise RefusedError(KafkaError.PRODUCER_FENCED, f"the producer id is {metadata.producer_id}")
        check_not_ending(metadata)
        if metadata.state is TransactionState.ONGOING:
            return self._fence(metadata, now_ms)
        if metadata.state not in DONE:
            raise RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, f"no producer is ever {metadata.state.kafka_name}")
        expected = request.producer_epoch if expects else None
        return PendingAppend(
            transactional_id=transactional_id,
            transition=self._next_epoch(metadata, request.transaction_timeout_ms, expected, now_ms),
        )

    def _found_or_made(self, request: InitProducerIdRequest, transactional_id: str, now_ms: int) -> TransactionMetadata:
        if not transactional_id:
            raise RefusedError(KafkaError.INVALID_REQUEST, "the transactional id is empty")
        if not 0 < request.transaction_timeout_ms <= self._max_timeout_ms:
            why = f"a transaction may take from 1 to {self._max_timeout_ms} ms"
            raise RefusedError(KafkaError.INVALID_TRANSACTION_TIMEOUT, why)
        self._check_available(transactional_id)
        if transactional_id not in self.transactions:
            self.transactions[transactional_id] = TransactionMetadata(
                transactional_id=transactional_id, producer_id=self._draw(),
                timeout_ms=request.transaction_timeout_ms, update_ms=now_ms,
            )  # fmt: skip
        return self.transactions[transactional_id]

    def _may_expect(self, metadata: TransactionMetadata, request: InitProducerIdRequest) -> bool:
        """Return whether the expected producer id can be right: only later steps check the epoch."""
        if metadata.producer_epoch == NO_PRODUCER_EPOCH or request.producer_id == metadata.producer_id:
            return True
        is_rotated = request.producer_id == metadata.previous_producer_id
        return is_rotated and is_epoch_exhausted(request.producer_epoch)

    def _next_epoch(
        self, metadata: TransactionMetadata, timeout_ms: int, expected: int | None, now_ms: int
    ) -> TransactionMetadata:
        if metadata.is_exhausted and expected in (None, metadata.producer_epoch):
            return metadata.prepare_rotation(self._draw(), timeout_ms, now_ms, remember_epoch=expected is not None)
        return metadata.prepare_increment(timeout_ms, expected, now_ms)

    def _fence(self, metadata: TransactionMetadata, now_ms: int) -> PendingAppend:
        """Abort an open transaction under the next epoch, so that the producer that opened it is fenced.

        Before 4.0 the epoch counts from here on, written or not; if it cannot be written, the next fence uses the same
        one again. With transactions v2 the abort itself bumps it, or, if the epochs are exhausted, allocates a new
        producer id: up to 4.2 the last epoch was used then, and no later transaction could be ended.

        Raises:
            RefusedError: no epoch is left, or no producer id to continue with; nothing has changed.

        """
        next_id = self._draw() if self._v2 and metadata.is_exhausted else NO_PRODUCER_ID
        fence = metadata.prepare_fence()
        metadata.pending = None
        if not self._v2:
            metadata.producer_epoch, metadata.last_producer_epoch = fence.producer_epoch, NO_PRODUCER_EPOCH
        transition = metadata.prepare_end(commit=False, now_ms=now_ms, client_v2=self._v2, next_producer_id=next_id)
        return PendingAppend(
            transactional_id=metadata.transactional_id, transition=transition, is_epoch_fence=True
        )  # fmt: skip

    def _check_available(self, transactional_id: str) -> None:
        error = self._availability(transactional_id)
        if error is not KafkaError.NONE:
            raise RefusedError(error, f"the partition of {transactional_id!r} is not here, or not yet")

    def _metadata_of(self, transactional_id: str) -> TransactionMetadata:
        if not transactional_id:
            raise RefusedError(KafkaError.INVALID_REQUEST, "the transactional id is empty")
        self._check_available(transactional_id)
        metadata = self.transactions.get(transactional_id)
        if metadata is None:
            raise RefusedError(KafkaError.INVALID_PRODUCER_ID_MAPPING, f"{transactional_id!r} is not known")
        return metadata

    def _current(self, metadata: TransactionMetadata) -> Answer:
        return Answer(producer_id=metadata.producer_id, producer_epoch=metadata.producer_epoch)
