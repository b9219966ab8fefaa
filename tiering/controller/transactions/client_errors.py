"""A Java producer's reaction to an error: the client's side of KIP-360, as two functions.

``on_produce_error`` handles a batch, ``on_coordinator_error`` a request of a transactional (or, for ``InitProducerId``,
idempotent) producer to its coordinator. An idempotent producer bumps its epoch itself, and continues. A transactional
one becomes *abortable*: the application aborts, and the producer gets its next epoch from the coordinator, if that
supports it (``InitProducerId`` version 3, Kafka 2.5). A producer with a *fatal* error can only be closed.

Source: ``TransactionManager`` and ``Sender`` in Kafka's clients module, 2.5 to 4.1; the releases in which the behaviour
changed were found by running producers of each release against every error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from resnap.storage.kafka_errors import KafkaError

FENCED_IS_ITS_OWN_ERROR: Final = (2, 7)
"""Since then there is PRODUCER_FENCED, and a stale epoch in a produce response is abortable."""
ALL_RETRIABLES: Final = (3, 3, 2)
"""Since then requests to coordinators are tried again after any retriable error, which CONCURRENT_TRANSACTIONS is."""
ALL_RETRIABLES_OF_OFFSETS: Final = (3, 8)
"""Since then ``TxnOffsetCommit``, too."""
AUTHORIZATION_IS_RECOVERABLE: Final = (3, 6)
ABORTABLE_ERROR: Final = (3, 8)
LOST_MAPPING_IS_FATAL: Final = (4, 0)
"""Since then INVALID_PRODUCER_ID_MAPPING ends a producer, whichever request it answers."""
_FATAL_FOR_A_BATCH: Final = {
    KafkaError.PRODUCER_FENCED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
}
_GAPS: Final = {KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.UNKNOWN_PRODUCER_ID}
_FENCED: Final = {KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
_MAPPING_LOST: Final = {KafkaError.UNKNOWN_PRODUCER_ID, KafkaError.INVALID_PRODUCER_ID_MAPPING}
_COORDINATOR_MOVED: Final = {KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR}
_UNAUTHORIZED: Final = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}


class BatchOutcome(Enum):
    """The outcome of the batch, or of the request."""

    RETRY = "sent again as it is"
    SPLIT = "split, and both halves sent"
    RENUMBER = "sent again, numbered from 0 in the same epoch"
    SUCCEED = "taken as written, without an offset"
    FAIL = "failed"
    FIND_COORDINATOR = "sent again to the coordinator that is looked for"


class ClientState(Enum):
    """The state of the producer after the error."""

    UNCHANGED = "goes on"
    ABORTABLE = "must abort its transaction"
    UNINITIALIZED = "asks for a producer id again"
    FATAL = "can only be closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """A producer's reaction to an error."""

    batch: BatchOutcome
    state: ClientState = ClientState.UNCHANGED
    bumps_epoch: bool = False
    """An idempotent producer at once, by itself; a transactional one asks its coordinator, after it has aborted."""

    def __str__(self) -> str:
        """Return one line for people."""
        bump = ", with its next epoch" if self.bumps_epoch else ""
        return f"batch {self.batch.value}; producer {self.state.value}{bump}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceSituation:
    """What a producer's reaction to a failed batch depends on, besides the error."""

    transactional: bool = False
    release: tuple[int, ...] = (3, 9)
    """Release of the client: major, minor, and patch if that matters (3.3.2)."""
    has_retries: bool = True
    """Whether ``retries`` are left."""
    in_time: bool = True
    """Whether ``delivery.timeout.ms`` has not ended."""
    answered: bool = True
    """Whether a broker said so; False where the batch expired in the client."""
    records: int = 1
    """In the batch."""
    follows_last_acked: bool = True
    """Whether its first sequence is the one after the last that was acknowledged."""
    was_renumbered: bool = False
    """Whether an epoch bump has given the batch another sequence since it was sent."""
    has_unresolved: bool = False
    """Whether an earlier batch of the partition expired unanswered, so that it is not known whether it was written."""
    starts_at_unresolved: bool = False
    """Whether the batch comes right after such ones."""
    log_start_offset: int = -1
    """As the response has it, for UNKNOWN_PRODUCER_ID; -1 where it does not say."""
    last_acked_offset: int = -1
    can_bump: bool = True
    """Transactional: whether the coordinator gives epochs (``InitProducerId`` 3)."""
    transactions_v2: bool = False
    """Transactional: whether the cluster has ``transaction.version`` 2, so that each end brings the next epoch."""
    is_ending: bool = False
    """Transactional: whether a commit or an abort is under way."""
    is_aborting: bool = False


def on_produce_error(error: KafkaError, at: ProduceSituation) -> Reaction:
    """Return a producer's reaction to ``error`` in a produce response; NONE is no error."""
    if error is KafkaError.DUPLICATE_SEQUENCE_NUMBER:
        return Reaction(batch=BatchOutcome.SUCCEED)
    if error is KafkaError.MESSAGE_TOO_LARGE and at.records > 1:
        return Reaction(batch=BatchOutcome.SPLIT)
    if _ends_producer(_as_client_knows(error, at.release), at.release):
        return Reaction(batch=BatchOutcome.FAIL, state=ClientState.FATAL)
    if at.has_retries and at.in_time and (retried := _retry(error, at)):
        return retried
    return _failure(error, at)


def _as_client_knows(error: KafkaError, release: tuple[int, ...]) -> KafkaError:
    """Return the error as a client of ``release`` understands it; the error may be newer than the client."""
    is_younger = error is KafkaError.PRODUCER_FENCED and release < FENCED_IS_ITS_OWN_ERROR
    return KafkaError.UNKNOWN_SERVER_ERROR if is_younger else error


def _ends_producer(error: KafkaError, release: tuple[int, ...]) -> bool:
    match error:
        case KafkaError.INVALID_PRODUCER_EPOCH:
            return release < FENCED_IS_ITS_OWN_ERROR
        case KafkaError.INVALID_PRODUCER_ID_MAPPING:
            return release >= LOST_MAPPING_IS_FATAL
    return error in _FATAL_FOR_A_BATCH


def _is_retriable(error: KafkaError, release: tuple[int, ...]) -> bool:
    was_not = error is KafkaError.CONCURRENT_TRANSACTIONS and release < ALL_RETRIABLES
    return error.is_retriable and not was_not


def _retry(error: KafkaError, at: ProduceSituation) -> Reaction | None:
    """Return how the batch is sent again; None if it is not."""
    match error:
        case KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return _after_out_of_order(at)
        case KafkaError.UNKNOWN_PRODUCER_ID:
            return _after_unknown_producer(at)
    return Reaction(batch=BatchOutcome.RETRY) if _is_retriable(error, at.release) else None


def _after_out_of_order(at: ProduceSituation) -> Reaction | None:
    if not at.has_unresolved and (at.was_renumbered or not at.follows_last_acked):
        return Reaction(batch=BatchOutcome.RETRY)  # an earlier batch is on its way, and this one will fit then
    if at.transactional:
        return None
    return Reaction(batch=BatchOutcome.RETRY, bumps_epoch=not at.has_unresolved or at.starts_at_unresolved)


def _after_unknown_producer(at: ProduceSituation) -> Reaction | None:
    if at.log_start_offset == -1 or at.was_renumbered:
        return Reaction(batch=BatchOutcome.RETRY)
    if not at.transactional:
        return Reaction(batch=BatchOutcome.RETRY, bumps_epoch=True)
    if at.last_acked_offset < at.log_start_offset:
        return Reaction(batch=BatchOutcome.RENUMBER)  # retention deleted what it had written: not a loss
    return None


def _failure(error: KafkaError, at: ProduceSituation) -> Reaction:
    if not at.transactional:
        # With no retries left it is unknown whether an earlier attempt was written, so its sequence cannot be used
        # again; but these two errors say that there is a gap already.
        bumps = at.answered and (at.has_retries or error in _GAPS)
        return Reaction(batch=BatchOutcome.FAIL, bumps_epoch=bumps)
    if at.is_aborting:
        return Reaction(batch=BatchOutcome.FAIL)
    bumps = at.can_bump and not at.is_ending and not at.transactions_v2
    return Reaction(batch=BatchOutcome.FAIL, state=ClientState.ABORTABLE, bumps_epoch=bumps)


def after_unresolved(*, transactional: bool, can_bump: bool, all_acked: bool) -> Reaction:
    """Return a producer's reaction once nothing is in flight to a partition with a batch that expired unanswered.

    Args:
        transactional: whether the producer is transactional.
        can_bump: whether its coordinator supports epoch bumps.
        all_acked: whether the last acknowledged sequence shows that the expired batch was written.

    """
    if all_acked:
        return Reaction(batch=BatchOutcome.FAIL)
    if not transactional:
        return Reaction(batch=BatchOutcome.FAIL, bumps_epoch=True)
    state = ClientState.ABORTABLE if can_bump else ClientState.FATAL
    return Reaction(batch=BatchOutcome.FAIL, state=state, bumps_epoch=can_bump)


class CoordinatorRequest(Enum):
    """A request of a producer to its coordinators."""

    INIT_PRODUCER_ID = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    END_TXN = "EndTxn"
    TXN_OFFSET_COMMIT = "TxnOffsetCommit"


_ABORTABLE_ALONE: Final = {
    CoordinatorRequest.ADD_OFFSETS: {KafkaError.GROUP_AUTHORIZATION_FAILED},
    CoordinatorRequest.TXN_OFFSET_COMMIT: {
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.FENCED_INSTANCE_ID,
    },
}
_LOADING: Final = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
_BUSY: Final = _LOADING | {KafkaError.CONCURRENT_TRANSACTIONS}
_ONCE_RETRIED: Final = {
    CoordinatorRequest.INIT_PRODUCER_ID: _BUSY,
    CoordinatorRequest.ADD_PARTITIONS: _BUSY | {KafkaError.UNKNOWN_TOPIC_OR_PARTITION},
    CoordinatorRequest.ADD_OFFSETS: _BUSY,
    CoordinatorRequest.END_TXN: _BUSY,
    CoordinatorRequest.TXN_OFFSET_COMMIT: _LOADING | {KafkaError.UNKNOWN_TOPIC_OR_PARTITION},
}
"""What was tried again before all that is retriable was."""
_NEVER_ABORTABLE: Final = {CoordinatorRequest.INIT_PRODUCER_ID, CoordinatorRequest.TXN_OFFSET_COMMIT}


def on_coordinator_error(
    request: CoordinatorRequest,
    error: KafkaError,
    *,
    release: tuple[int, ...] = (3, 9),
    can_bump: bool = True,
    transactions_v2: bool = False,
) -> Reaction:
    """Return the reaction of a producer of ``release`` to ``error`` in the response to ``request``.

    ``can_bump`` says whether the coordinator bumps epochs on request (``InitProducerId`` 3), ``transactions_v2``
    whether each end of a transaction does; then partitions and offsets are not added by requests of their own.
    """
    error = _as_client_knows(error, release)
    if _is_sent_elsewhere(request, error):
        return Reaction(batch=BatchOutcome.FIND_COORDINATOR)
    if _is_retried(request, error, release):
        return Reaction(batch=BatchOutcome.RETRY)
    if _ends_producer(error, release) and error in _MAPPING_LOST:
        return Reaction(batch=BatchOutcome.FAIL, state=ClientState.FATAL)
    if error in _MAPPING_LOST and request not in _NEVER_ABORTABLE and (can_bump or transactions_v2):
        return Reaction(batch=BatchOutcome.FAIL, state=ClientState.ABORTABLE, bumps_epoch=not transactions_v2)
    return Reaction(batch=BatchOutcome.FAIL, state=_state_after(request, error, release))


def _is_sent_elsewhere(request: CoordinatorRequest, error: KafkaError) -> bool:
    timed_out = request is CoordinatorRequest.TXN_OFFSET_COMMIT and error is KafkaError.REQUEST_TIMED_OUT
    return timed_out or error in _COORDINATOR_MOVED


def _state_after(request: CoordinatorRequest, error: KafkaError, release: tuple[int, ...]) -> ClientState:
    if error in _FENCED:
        return ClientState.FATAL
    if error is KafkaError.TRANSACTION_ABORTABLE and release >= ABORTABLE_ERROR:
        return ClientState.ABORTABLE
    if error in _UNAUTHORIZED and request is CoordinatorRequest.INIT_PRODUCER_ID:
        return ClientState.UNINITIALIZED if release >= AUTHORIZATION_IS_RECOVERABLE else ClientState.FATAL
    return ClientState.ABORTABLE if _is_abortable(request, error) else ClientState.FATAL


def _is_retried(request: CoordinatorRequest, error: KafkaError, release: tuple[int, ...]) -> bool:
    is_of_offsets = request is CoordinatorRequest.TXN_OFFSET_COMMIT
    since = ALL_RETRIABLES_OF_OFFSETS if is_of_offsets else ALL_RETRIABLES
    return error.is_retriable if release >= since else error in _ONCE_RETRIED[request]


def _is_abortable(request: CoordinatorRequest, error: KafkaError) -> bool:
    if request is CoordinatorRequest.ADD_PARTITIONS:
        fatal = {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.INVALID_TXN_STATE}
        return error not in _MAPPING_LOST | fatal
    return error in _ABORTABLE_ALONE.get(request, ())
