"""One transactional id in its coordinator: its state, its transitions, and which ends of a transaction it accepts.

A step has two halves. ``prepare_*`` returns what must be written to ``__transaction_state``, and marks it as pending;
``complete`` applies it once that is durable. In between nothing else can begin. An ``IllegalStateException`` of Kafka
is UNKNOWN_SERVER_ERROR here, as clients see it.

The epoch 32,767 only ever fences: a producer gets at most 32,766, and then a new id.

With transactions v2 (KIP-890) every end bumps the epoch, so that a repeated request has the previous epoch; if the
epochs are exhausted, the end allocates a new producer id. A transaction without partitions can be aborted, but not
committed.

Source: ``TransactionMetadata`` and ``TransactionState``, as in 3.9.1 and 4.1.1;
``TransactionCoordinator.endTransactionWithTV1`` and ``endTransaction``, as in 4.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.storage.log.record_batch import MAX_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.log.names import TopicPartition

LAST_GIVEN_EPOCH: Final = MAX_EPOCH - 1


class TransactionState(IntEnum):
    """The states, with their numbers in ``__transaction_state``."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """The name in Kafka's tools."""
        return "".join(word.capitalize() for word in self.name.split("_"))


DONE: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
"""No transaction is open, nor about to end."""
PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
_FROM: Final = {
    TransactionState.EMPTY: DONE,
    TransactionState.ONGOING: DONE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE}),
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: DONE,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
}  # fmt: skip
"""The states from which each may be reached; with transactions v2 an abort also from ``DONE``."""


def is_epoch_exhausted(epoch: int) -> bool:
    """Return whether the next epoch is the one that only fences."""
    return epoch >= LAST_GIVEN_EPOCH


@dataclass(slots=True, kw_only=True)
class TransactionMetadata:
    """The state of a transactional id, now or as a step will leave it. A new one has an id, but no epoch yet."""

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """Before the last bump; by it a request that comes again is recognised. Never written to the log."""
    previous_producer_id: int = NO_PRODUCER_ID
    """Before the last step; mostly the same id."""
    next_producer_id: int = NO_PRODUCER_ID
    """With transactions v2: the id that the end of a transaction brings, where the epochs are used up."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    update_ms: int = NO_TIMESTAMP
    client_v2: bool = False
    """Whether the client takes part in transactions v2."""
    pending: TransactionState | None = field(default=None, compare=False)
    """The state of the step that is being written."""
    awaits_markers: bool = field(default=False, compare=False)
    """The end is decided, and its markers are not all written: in Kafka the completion is pending then."""
    has_failed_epoch_fence: bool = field(default=False, compare=False)
    """A fence could not be written: the next one uses the same epoch again."""

    @property
    def is_exhausted(self) -> bool:
        """Whether this producer id has no epochs left."""
        return is_epoch_exhausted(self.producer_epoch)

    def prepare_increment(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> TransactionMetadata:
        """Bump the epoch, or return the same one for a repeated request.

        Raises:
            RefusedError: PRODUCER_FENCED if the expected epoch is neither this one nor the previous one;
                UNKNOWN_SERVER_ERROR if the epochs are exhausted, whatever is expected.

        """
        if self.is_exhausted:
            raise self._illegal("has no epochs left")
        if expected_epoch is None:
            epoch, last = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        elif self.producer_epoch in (NO_PRODUCER_EPOCH, expected_epoch):
            epoch, last = self.producer_epoch + 1, self.producer_epoch
        elif expected_epoch == self.last_producer_epoch:
            epoch, last = self.producer_epoch, self.last_producer_epoch
        else:
            known = f"epoch {self.producer_epoch}, before it {self.last_producer_epoch}"
            raise RefusedError(KafkaError.PRODUCER_FENCED, f"{self._who} has {known}, not {expected_epoch}")
        return self._prepare(
            TransactionState.EMPTY, producer_epoch=epoch, last_producer_epoch=last, timeout_ms=timeout_ms,
            partitions=frozenset(), start_ms=NO_TIMESTAMP, update_ms=now_ms,
        )  # fmt: skip

    def prepare_rotation(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, remember_epoch: bool
    ) -> TransactionMetadata:
        """Continue under a new producer id, from epoch 0."""
        if self.state in PREPARED or self.state is TransactionState.ONGOING:
            raise self._illegal("cannot change its producer id while a transaction is open")
        return self._prepare(
            TransactionState.EMPTY, producer_id=producer_id, producer_epoch=0, timeout_ms=timeout_ms,
            last_producer_epoch=self.producer_epoch if remember_epoch else NO_PRODUCER_EPOCH,
            partitions=frozenset(), start_ms=NO_TIMESTAMP, update_ms=now_ms,
        )  # fmt: skip

    def prepare_fence(self) -> TransactionMetadata:
        """Bump the epoch without a client, to fence the producer that opened the transaction."""
        if self.producer_epoch == MAX_EPOCH:
            raise self._illegal("cannot be fenced: no epoch is left")
        epoch = self.producer_epoch if self.has_failed_epoch_fence else self.producer_epoch + 1
        return self._prepare(
            TransactionState.PREPARE_EPOCH_FENCE, producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH
        )

    def prepare_partitions(
        self, added: frozenset[TopicPartition], now_ms: int, *, client_v2: bool = False
    ) -> TransactionMetadata:
        """Add partitions to the transaction, which begins with the first."""
        start_ms = now_ms if self.state in DONE else self.start_ms
        return self._prepare(
            TransactionState.ONGOING, partitions=self.partitions | added, start_ms=start_ms, update_ms=now_ms,
            client_v2=client_v2,
        )  # fmt: skip

    def prepare_end(
        self, *, commit: bool, now_ms: int, client_v2: bool = False, next_producer_id: int = NO_PRODUCER_ID
    ) -> TransactionMetadata:
        """Decide the transaction; with transactions v2 every end bumps the epoch, even one without partitions."""
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        bumped = {"producer_epoch": self.producer_epoch + 1, "last_producer_epoch": self.producer_epoch}
        return self._prepare(
            state, update_ms=now_ms, client_v2=client_v2, next_producer_id=next_producer_id,
            start_ms=now_ms if self.state in DONE else self.start_ms, **(bumped if client_v2 else {}),
        )  # fmt: skip

    def prepare_complete(self, now_ms: int) -> TransactionMetadata:
        """Close the transaction, whose markers are written; a newly drawn producer id takes effect here."""
        commits = self.state is TransactionState.PREPARE_COMMIT
        self.has_failed_epoch_fence = False
        rotates = self.client_v2 and self.next_producer_id != NO_PRODUCER_ID
        rotated = {"producer_id": self.next_producer_id, "producer_epoch": 0}
        return self._prepare(
            TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(), update_ms=now_ms, next_producer_id=NO_PRODUCER_ID, **(rotated if rotates else {}),
        )  # fmt: skip

    def prepare_dead(self) -> TransactionMetadata:
        """Expire the transactional id; once the tombstone is written it is dropped, without ``complete``."""
        return self._prepare(TransactionState.DEAD, partitions=frozenset())

    def complete(self, transition: TransactionMetadata, *, keep_previous: bool = False) -> None:
        """Apply a durable step; ``keep_previous`` is how releases before 4.0 treat the previous id.

        Raises:
            RefusedError: UNKNOWN_SERVER_ERROR if it is not the prepared one, or cannot follow.

        """
        if self.pending is None or self.pending is not transition.state or not self._can_follow(transition):
            raise self._illegal(f"cannot become {transition.state.kafka_name} now")
        if transition.state is TransactionState.EMPTY or not keep_previous:
            self.previous_producer_id = transition.previous_producer_id
        self.producer_id, self.next_producer_id = transition.producer_id, transition.next_producer_id
        self.producer_epoch = transition.producer_epoch
        self.last_producer_epoch = transition.last_producer_epoch
        self.timeout_ms, self.partitions = transition.timeout_ms, transition.partitions
        if transition.state is not TransactionState.EMPTY or not keep_previous:
            self.start_ms = transition.start_ms
        self.update_ms, self.client_v2 = transition.update_ms, transition.client_v2
        self.pending, self.state = None, transition.state

    def _prepare(self, state: TransactionState, **changed: object) -> TransactionMetadata:
        if self.pending is not None:
            raise self._illegal(f"is about to become {self.pending.kafka_name}")
        transition = replace(self, state=state, previous_producer_id=self.producer_id, **changed)  # type: ignore[arg-type]
        if transition.producer_id < 0:
            raise self._illegal(f"cannot have the producer id {transition.producer_id}")
        if transition.producer_epoch < 0 and state is not TransactionState.DEAD:
            raise self._illegal(f"cannot have the epoch {transition.producer_epoch}")
        empty_abort = state is TransactionState.PREPARE_ABORT and transition.client_v2 and self.state in DONE
        if self.state not in _FROM[state] and not empty_abort:
            raise self._illegal(f"cannot become {state.kafka_name}")
        self.pending = state
        return transition

    def _can_follow(self, transition: TransactionMetadata) -> bool:
        match transition.state:
            case TransactionState.PREPARE_EPOCH_FENCE | TransactionState.DEAD:
                return False
            case TransactionState.EMPTY:
                is_bump = transition.producer_epoch in (self.producer_epoch, self.producer_epoch + 1)
                is_rotation = transition.producer_epoch == 0 and transition.producer_id != self.producer_id
                return (is_bump or is_rotation) and not transition.partitions and transition.start_ms == NO_TIMESTAMP
        return self._is_known_epoch(transition) and transition.timeout_ms == self.timeout_ms

    def _is_known_epoch(self, transition: TransactionMetadata) -> bool:
        if transition.client_v2 and transition.state in PREPARED:
            return transition.last_producer_epoch == self.producer_epoch and transition.producer_id == self.producer_id
        if transition.producer_id != self.producer_id:
            return transition.client_v2 and transition.previous_producer_id == self.producer_id
        return transition.producer_epoch == self.producer_epoch

    @property
    def _who(self) -> str:
        return f"transactional id {self.transactional_id!r} (producer {self.producer_id})"

    def _illegal(self, why: str) -> RefusedError:
        return RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, f"{self._who} is {self.state.kafka_name} and {why}")


_OF_COMMIT: Final = {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}
_OF_ABORT: Final = {TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT}
_COMPLETE: Final = {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}


def end_v1(
    metadata: TransactionMetadata, producer_id: int, epoch: int, now_ms: int, *, commit: bool
) -> TransactionMetadata | None:
    """Return what to write; None if the transaction has already ended so.

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
) -> TransactionMetadata | None:
    """Return what to write, with the next epoch, or the next producer id from ``draw``; None as ``end_v1``.

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
    """Raise a retriable error while a step, or the markers of a decided transaction, are being written."""
    if metadata.pending is not None or metadata.awaits_markers:
        raise RefusedError(KafkaError.CONCURRENT_TRANSACTIONS, "the step before it is being written")


def check_not_ending(metadata: TransactionMetadata) -> None:
    """Raise a retriable error while a decided transaction gets its markers."""
    if metadata.state in PREPARED:
        raise RefusedError(KafkaError.CONCURRENT_TRANSACTIONS, "the transaction is ending")


def _check_same_end(metadata: TransactionMetadata, *, commit: bool) -> None:
    """Refuse the opposite end of a decided transaction, and a retry of the same end until it is complete."""
    if metadata.state not in (_OF_COMMIT if commit else _OF_ABORT):
        raise RefusedError(KafkaError.INVALID_TXN_STATE, f"the transaction is {metadata.state.kafka_name}")
    check_not_ending(metadata)
