"""The steps of a transactional id: a test for each that Kafka's ``TransactionMetadataTest`` has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.tiering.controller.transactions.metadata import TransactionMetadata, TransactionState
from tests.cases import each
from tests.tiering.controller.transactions.coordinators import PARTITIONS

State = TransactionState
PID = 23423
LAST, FENCING = 32_766, 32_767
NOW = 1_000


def metadata(state: State = State.EMPTY, *, epoch: int = 735, last: int = -1, start: int = -1) -> TransactionMetadata:
    partitions = PARTITIONS if state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT) else frozenset()
    return TransactionMetadata(
        transactional_id="txn", producer_id=PID, producer_epoch=epoch, last_producer_epoch=last, timeout_ms=30_000,
        state=state, partitions=partitions, start_ms=start, update_ms=NOW,
    )  # fmt: skip


def incremented(known: TransactionMetadata, expected: int | None = None, now: int = NOW) -> TransactionMetadata:
    step = known.prepare_increment(30_000, expected, now)
    known.complete(step)
    return step


def refused(code: KafkaError, call: object) -> None:
    with pytest.raises(RefusedError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.error is code


def illegal(call: object) -> None:
    refused(KafkaError.UNKNOWN_SERVER_ERROR, call)


def epochs(known: TransactionMetadata) -> tuple[int, int, int]:
    return known.producer_id, known.producer_epoch, known.last_producer_epoch


def test_initialize_epoch() -> None:
    known = metadata(epoch=-1)
    incremented(known)
    assert epochs(known) == (PID, 0, -1)


def test_normal_epoch_bump() -> None:
    known = metadata()
    incremented(known)
    assert epochs(known) == (PID, 736, -1)


def test_bump_epoch_not_allowed_if_epochs_exhausted() -> None:
    known = metadata(epoch=LAST)
    for expected in (None, LAST, LAST - 1):
        illegal(lambda expected=expected: known.prepare_increment(30_000, expected, NOW))
    assert known.pending is None


def test_tolerate_update_time_shift_during_epoch_bump() -> None:
    known = metadata(start=1)
    step = known.prepare_increment(30_000, 735, NOW - 1)
    known.complete(step, keep_previous=True)
    assert (epochs(known), known.update_ms, known.start_ms) == ((PID, 736, 735), NOW - 1, 1)


def test_tolerate_update_time_reset_during_producer_id_rotation() -> None:
    known = metadata(epoch=LAST)
    known.complete(known.prepare_rotation(PID + 1, 30_000, NOW - 1, remember_epoch=True))
    assert (epochs(known), known.update_ms) == ((PID + 1, 0, LAST), NOW - 1)


def test_tolerate_time_shift_during_add_partitions() -> None:
    known = metadata()
    known.complete(known.prepare_partitions(PARTITIONS, NOW - 1))
    assert (known.state, known.start_ms, known.update_ms) == (State.ONGOING, NOW - 1, NOW - 1)
    known.complete(known.prepare_partitions(PARTITIONS, NOW - 2))
    assert (known.start_ms, known.update_ms) == (NOW - 1, NOW - 2)


def decides_earlier_than_what_came_before(state: State, *, commit: bool) -> None:
    known = metadata(State.ONGOING, start=1)
    known.complete(known.prepare_end(commit=commit, now_ms=NOW - 1))
    assert (known.state, epochs(known), known.start_ms, known.update_ms) == (state, (PID, 735, -1), 1, NOW - 1)


def test_tolerate_time_shift_during_prepare_commit() -> None:
    decides_earlier_than_what_came_before(State.PREPARE_COMMIT, commit=True)


def test_tolerate_time_shift_during_prepare_abort() -> None:
    decides_earlier_than_what_came_before(State.PREPARE_ABORT, commit=False)


def ends_earlier_than_its_decision(prepared: State, completed: State) -> None:
    known = metadata(prepared, start=1)
    known.complete(known.prepare_complete(NOW - 1))
    assert (known.state, known.update_ms, known.partitions) == (completed, NOW - 1, frozenset())


def test_tolerate_time_shift_during_complete_commit() -> None:
    ends_earlier_than_its_decision(State.PREPARE_COMMIT, State.COMPLETE_COMMIT)


def test_tolerate_time_shift_during_complete_abort() -> None:
    ends_earlier_than_its_decision(State.PREPARE_ABORT, State.COMPLETE_ABORT)


def test_fence_producer_after_epochs_exhausted() -> None:
    known = metadata(State.ONGOING, epoch=LAST)
    step = known.prepare_fence()
    assert (step.producer_epoch, step.last_producer_epoch, known.pending) == (FENCING, -1, State.PREPARE_EPOCH_FENCE)
    assert (step.partitions, step.timeout_ms, step.update_ms) == (PARTITIONS, 30_000, NOW)


def test_fence_producer_not_allowed_if_it_would_overflow() -> None:
    illegal(metadata(State.ONGOING, epoch=FENCING).prepare_fence)


def test_rotate_producer_id() -> None:
    known = metadata()
    known.complete(known.prepare_rotation(PID + 1, 30_000, NOW, remember_epoch=True))
    assert epochs(known) == (PID + 1, 0, 735)
    assert known.previous_producer_id == PID


def cannot_rotate(state: State) -> None:
    illegal(lambda: metadata(state).prepare_rotation(PID + 1, 30_000, NOW, remember_epoch=False))


def test_rotate_producer_id_in_ongoing_state() -> None:
    cannot_rotate(State.ONGOING)


def test_rotate_producer_id_in_prepare_abort_state() -> None:
    cannot_rotate(State.PREPARE_ABORT)


def test_rotate_producer_id_in_prepare_commit_state() -> None:
    cannot_rotate(State.PREPARE_COMMIT)


def test_attempted_epoch_bump_with_newly_created_metadata() -> None:
    known = metadata(epoch=-1)
    incremented(known, 735)
    assert epochs(known) == (PID, 0, -1)


def test_epoch_bump_with_current_epoch_provided() -> None:
    known = metadata()
    incremented(known, 735)
    assert epochs(known) == (PID, 736, 735)


def test_attempted_epoch_bump_with_last_epoch() -> None:
    known = metadata(last=734)
    incremented(known, 734)
    assert epochs(known) == (PID, 735, 734)


def test_attempted_epoch_bump_with_fenced_epoch() -> None:
    refused(KafkaError.PRODUCER_FENCED, lambda: metadata(last=734).prepare_increment(30_000, 733, NOW))


def test_epoch_bump_on_end_txn() -> None:
    known = metadata(State.ONGOING, start=1)
    known.complete(known.prepare_end(commit=True, now_ms=NOW, client_v2=True))
    assert epochs(known) == (PID, 736, 735)
    known.complete(known.prepare_complete(NOW))
    assert epochs(known) == (PID, 736, 735)


def test_epoch_bump_on_end_txn_overflow() -> None:
    known = metadata(State.ONGOING, epoch=LAST, start=1)
    known.complete(known.prepare_end(commit=True, now_ms=NOW, client_v2=True, next_producer_id=PID + 1))
    assert (epochs(known), known.next_producer_id) == ((PID, FENCING, LAST), PID + 1)
    known.complete(known.prepare_complete(NOW))
    assert (epochs(known), known.previous_producer_id, known.next_producer_id) == ((PID + 1, 0, LAST), PID, -1)


def test_transaction_state_id_and_name_mapping() -> None:
    assert {state.value: state.kafka_name for state in State} == {
        0: "Empty", 1: "Ongoing", 2: "PrepareCommit", 3: "PrepareAbort", 4: "CompleteCommit", 5: "CompleteAbort",
        6: "Dead", 7: "PrepareEpochFence",
    }  # fmt: skip


def test_all_transaction_states_are_mapped() -> None:
    assert [State(number) for number in range(8)] == list(State)
    with pytest.raises(ValueError, match="8"):
        State(8)


def test_one_step_at_a_time() -> None:
    known = metadata()
    known.prepare_increment(30_000, None, NOW)
    illegal(lambda: known.prepare_increment(30_000, None, NOW))


@each("state", State)
def test_steps_begin_where_kafka_lets_them(state: State) -> None:
    done = {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}
    steps = {
        State.ONGOING: (lambda known: known.prepare_partitions(PARTITIONS, NOW), done | {State.ONGOING}),
        State.PREPARE_COMMIT: (lambda known: known.prepare_end(commit=True, now_ms=NOW), {State.ONGOING}),
        State.PREPARE_ABORT: (
            lambda known: known.prepare_end(commit=False, now_ms=NOW), {State.ONGOING, State.PREPARE_EPOCH_FENCE}
        ),
        State.PREPARE_EPOCH_FENCE: (lambda known: known.prepare_fence(), {State.ONGOING}),
        State.DEAD: (lambda known: known.prepare_dead(), done),
        State.EMPTY: (lambda known: known.prepare_increment(1, None, NOW), done),
    }  # fmt: skip
    for target, (step, beginnings) in steps.items():
        known = metadata(state)
        if state in beginnings:
            assert step(known).state is target
            assert known.pending is target
        else:
            illegal(lambda step=step, known=known: step(known))
            assert known.pending is None


def test_an_id_without_an_epoch_can_expire_but_not_begin() -> None:
    assert metadata(epoch=-1).prepare_dead().producer_epoch == -1
    illegal(lambda: metadata(epoch=-1).prepare_partitions(PARTITIONS, NOW))
    illegal(lambda: metadata().prepare_rotation(-1, 1, NOW, remember_epoch=False))


def test_what_was_not_prepared_cannot_be_completed() -> None:
    known = metadata()
    step = known.prepare_increment(30_000, None, NOW)
    for other in (
        replace(step, state=State.ONGOING), replace(step, producer_epoch=740), replace(step, partitions=PARTITIONS),
        replace(step, start_ms=5),
    ):  # fmt: skip
        illegal(lambda other=other: known.complete(other))
    known.complete(step)
    illegal(lambda: known.complete(step))
    fenced = metadata(State.ONGOING)
    fence = fenced.prepare_fence()
    illegal(lambda: fenced.complete(fence))
