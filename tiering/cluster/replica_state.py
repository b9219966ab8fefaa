"""What one replica of a partition has lost of the producer state that another replica has.

All replicas of a partition append the same batches, so their states differ only in what one of them

- has not fetched yet: the same difference must be there again once a replica that is in sync has fetched it;
- has expired earlier than the other: producers that expire by now are no loss;
- could not fetch, since retention had deleted it before the replica was made, or the cleaner had removed its markers.

Any other difference is a loss. Stock brokers from 3.6 on lose the state of what they do not read when a replica starts
from remote storage: they delete the snapshot that they have fetched.

Source: ``ProducerStateManager.isProducerExpired``, ``TierStateMachine.buildProducerSnapshotFile``, ``LogCleaner``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.tiering.cluster.producers import ActiveProducer

_SEQUENCES: Final = 1 << 31
"""Sequence numbers wrap around to 0."""
_MOST_SKEW_MS: Final = 60_000
"""How far the clocks of brokers may differ from each other, and from ours."""


class Loss(StrEnum):
    """What a replica lacks of a producer."""

    PRODUCER = "producer"
    """The producer itself: a batch sent again is appended again."""
    EPOCH = "epoch"
    """Its newest epoch: an instance that was fenced may write."""
    SEQUENCE = "sequence"
    """Its newest batches: one that is sent again is appended again, or its next one is refused."""
    COORDINATOR_EPOCH = "coordinator-epoch"
    """Who coordinates it: a marker of an older coordinator is accepted."""
    TRANSACTION = "transaction"
    """Its open transaction, or the beginning of it: records are served as committed if it is aborted."""


class LostProducer(NamedTuple):
    """A producer of which a replica lacks something."""

    known: ActiveProducer
    """As the other replica has it."""
    found: ActiveProducer | None
    """As the replica has it; None where it does not know it."""
    losses: tuple[Loss, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What states of a partition may differ in without a loss.

    Attributes:
        now_ms: when the states were asked for.
        expiration_ms: the shortest ``producer.id.expiration.ms`` of the replicas.
        deleted_below: offset below which records are gone for good, so that nobody could fetch them; 0 where a new
            replica gets what it needs from remote storage.
        is_compacted: whether the cleaner removes markers.

    """

    now_ms: int
    expiration_ms: int
    deleted_below: int = 0
    is_compacted: bool = False

    def expires(self, producer: ActiveProducer) -> bool:
        """Whether some replica may have expired ``producer`` by now; one with an open transaction does not expire."""
        if producer.current_transaction_start_offset is not None:
            return False
        skew_ms = min(_MOST_SKEW_MS, self.expiration_ms // 10)
        return self.now_ms - producer.last_timestamp >= self.expiration_ms - skew_ms

    def allows(self, loss: Loss, known: ActiveProducer) -> bool:
        """Whether ``loss`` has a cause that does no harm."""
        match loss:
            case Loss.EPOCH:
                return False
            case Loss.TRANSACTION:
                return (known.current_transaction_start_offset or 0) < self.deleted_below
            case Loss.COORDINATOR_EPOCH:
                return self.is_compacted or self.deleted_below > 0
            case _:
                return self.deleted_below > 0 or self.expires(known)


def lost_producers(
    before: Iterable[ActiveProducer],
    found: Iterable[ActiveProducer],
    after: Iterable[ActiveProducer],
    tolerance: Tolerance | None = None,
) -> Iterator[LostProducer]:
    """Yield what a replica lacks in ``found`` that another one has had since ``before`` it was asked.

    Args:
        before: what the other replica had said; the longer ago, the less of it can be missing for want of time.
        found: what the replica says.
        after: what the other replica says now.
        tolerance: what is no loss; without it every difference is one.

    """
    late, there = _by_id(after), _by_id(found)
    for then in before:
        now = late.get(then.producer_id)
        if now is None:
            continue  # it has expired meanwhile
        other = there.get(then.producer_id)
        losses = tuple(
            loss for loss in _losses(then, other, now) if tolerance is None or not tolerance.allows(loss, now)
        )
        if losses:
            yield LostProducer(known=now, found=other, losses=losses)


def _losses(then: ActiveProducer, other: ActiveProducer | None, now: ActiveProducer) -> Iterator[Loss]:
    """Yield what ``other`` lacks. Epochs only grow, so a lower one than ``then`` is too low whatever came since."""
    if other is None:
        yield Loss.PRODUCER
    elif other.producer_epoch < then.producer_epoch:
        yield Loss.EPOCH
    elif _has_not_moved(then, now) and _is_behind(other, then):
        yield Loss.SEQUENCE
    if other is not None and other.coordinator_epoch < then.coordinator_epoch:
        yield Loss.COORDINATOR_EPOCH
    begins = then.current_transaction_start_offset
    if begins is not None and begins == now.current_transaction_start_offset:
        known = None if other is None else other.current_transaction_start_offset
        if known is None or known > begins:
            yield Loss.TRANSACTION


def _has_not_moved(then: ActiveProducer, now: ActiveProducer) -> bool:
    return (then.producer_epoch, then.last_sequence) == (now.producer_epoch, now.last_sequence)


def _is_behind(other: ActiveProducer, known: ActiveProducer) -> bool:
    """Whether ``other`` has older batches of the same epoch; -1 stands for none."""
    if other.producer_epoch != known.producer_epoch or known.last_sequence < 0:
        return False
    ahead = (known.last_sequence - other.last_sequence) % _SEQUENCES
    return other.last_sequence < 0 or 0 < ahead < _SEQUENCES // 2


def _by_id(producers: Iterable[ActiveProducer]) -> dict[int, ActiveProducer]:
    return {one.producer_id: one for one in producers}
