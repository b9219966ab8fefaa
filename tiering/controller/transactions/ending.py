"""Which ends of a transaction a coordinator accepts: before transactions v2, and with them (KIP-890).

With v2 the epoch goes up with every end, so that the same request sent again carries the epoch before; where the epochs
are used up, the end brings a new producer id. A transaction without partitions can be aborted, and not committed.

Source: ``TransactionCoordinator.endTransactionWithTV1`` and ``endTransaction``, as in 4.1.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.storage.log.record_batch import NO_PRODUCER_ID
from resnap.tiering.controller.transactions.metadata import MAX_EPOCH, PREPARED, TransactionMetadata, TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.tiering.controller.transactions.metadata import Transition

LAST_GIVEN_EPOCH: Final = MAX_EPOCH - 1
_OF_COMMIT: Final = {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}
_OF_ABORT: Final = {TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT}
_COMPLETE: Final = {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}


def end_v1(
    metadata: TransactionMetadata, producer_id: int, epoch: int, now_ms: int, *, commit: bool
) -> Transition | None:
    """Return what to write; None where it has ended so already.

    Raises:
        RefusedError: as the coordinator answers.

    """
    check_producer(metadata, producer_id, epoch)
    check_not_pending(metadata)
    if metadata.state is TransactionState.ONGOING:
        return metadata.prepare_end(commit=commit, now_ms=now_ms)
    _check_same_end(metadata, commit=commit)
    return None


def end_v2(
    metadata: TransactionMetadata, producer_id: int, epoch: int, now_ms: int, *, commit: bool, draw: Callable[[], int]
) -> Transition | None:
    """Return what to write, with the next epoch, or the next producer id that ``draw`` gives; None as ``end_v1``.

    Raises:
        RefusedError: as the coordinator answers, or as ``draw`` does.

    """
    check_not_pending(metadata)
    is_rotated = metadata.previous_producer_id == producer_id and metadata.producer_epoch == 0
    over_rotation = is_rotated and epoch == LAST_GIVEN_EPOCH
    again = metadata.producer_epoch == epoch + 1
    if metadata.producer_id != producer_id and not over_rotation:
        raise RefusedError(KafkaError.INVALID_PRODUCER_ID_MAPPING, f"the producer id is {metadata.producer_id}")
    is_retry = again if metadata.state in PREPARED else metadata.state in _COMPLETE and (again or over_rotation)
    may_be_current = metadata.state not in PREPARED
    if not is_retry and not (may_be_current and epoch == metadata.producer_epoch):
        raise RefusedError(KafkaError.PRODUCER_FENCED, f"the epoch is {metadata.producer_epoch}, not {epoch}")
    if is_retry:
        _check_same_end(metadata, commit=commit)
        return None
    if metadata.state is not TransactionState.ONGOING and commit:
        raise RefusedError(KafkaError.INVALID_TXN_STATE, "there is nothing to commit")
    next_id = draw() if metadata.is_exhausted else NO_PRODUCER_ID
    return metadata.prepare_end(commit=commit, now_ms=now_ms, client_v2=True, next_producer_id=next_id)


def check_producer(metadata: TransactionMetadata, producer_id: int, epoch: int) -> None:
    """Refuse another producer id or epoch than the current one."""
    if metadata.producer_id != producer_id:
        raise RefusedError(KafkaError.INVALID_PRODUCER_ID_MAPPING, f"the producer id is {metadata.producer_id}")
    if metadata.producer_epoch != epoch:
        raise RefusedError(KafkaError.PRODUCER_FENCED, f"the epoch is {metadata.producer_epoch}, not {epoch}")


def check_not_pending(metadata: TransactionMetadata) -> None:
    """Ask to come back while a step is being written."""
    if metadata.pending is not None:
        raise RefusedError(KafkaError.CONCURRENT_TRANSACTIONS, "the step before it is being written")


def check_not_ending(metadata: TransactionMetadata) -> None:
    """Ask to come back while a decided transaction gets its markers."""
    if metadata.state in PREPARED:
        raise RefusedError(KafkaError.CONCURRENT_TRANSACTIONS, "the transaction is ending")


def _check_same_end(metadata: TransactionMetadata, *, commit: bool) -> None:
    """Refuse to end otherwise what is decided, and ask to come back where it is not over."""
    if metadata.state not in (_OF_COMMIT if commit else _OF_ABORT):
        raise RefusedError(KafkaError.INVALID_TXN_STATE, f"the transaction is {metadata.state.kafka_name}")
    check_not_ending(metadata)
