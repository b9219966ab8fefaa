"""What a coordinator answers: a test for each about producer ids that Kafka's ``TransactionCoordinatorTest`` has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.tiering.controller.producer_ids.allocation import InitProducerIdRequest
from resnap.tiering.controller.transactions.coordinator import PendingAppend, TransactionCoordinator, error_of_append
from resnap.tiering.controller.transactions.metadata import TransactionState
from resnap.tiering.controller.transactions.state_log import read_transaction_states
from tests.cases import each
from tests.logs.transaction_log import step, write_segment
from tests.tiering.controller.transactions.coordinators import (
    AGAIN,
    FENCED,
    ID,
    PID,
    TIMEOUT_MS,
    Coordinated,
    error,
    given,
)

if TYPE_CHECKING:
    from pathlib import Path

State = TransactionState
LAST = 32_766


@pytest.fixture
def ours() -> Coordinated:
    return Coordinated()


def test_should_return_invalid_request_when_transactional_id_is_empty(ours: Coordinated) -> None:
    assert ours.init(name="") == error(KafkaError.INVALID_REQUEST)


def test_should_accept_init_pid_and_return_next_pid_when_transactional_id_is_null() -> None:
    ours = Coordinated(first_producer_id=0)
    assert [ours.init(name=None) for _ in range(2)] == [given(0, 0), given(1, 0)]
    assert ours.init(5, 7, name=None, timeout_ms=-1) == given(2, 0)


def test_should_init_pid_with_epoch_zero_for_new_transactional_id(ours: Coordinated) -> None:
    assert ours.init() == given(PID, 0)


def test_should_generate_new_producer_id_if_no_state_and_producer_id_and_epoch_provided(ours: Coordinated) -> None:
    assert ours.init(4711, 6) == given(PID, 0)


def test_should_generate_new_producer_id_if_epochs_exhausted(ours: Coordinated) -> None:
    ours.known(epoch=LAST)
    assert ours.init() == given(PID + 1, 0)


def test_should_respond_with_not_coordinator_on_init_pid_when_not_coordinator(ours: Coordinated) -> None:
    ours.available = KafkaError.NOT_COORDINATOR
    assert ours.init() == error(KafkaError.NOT_COORDINATOR)


def test_should_respond_with_coordinator_load_in_progress_on_init_pid_when_coordinator_loading(
    ours: Coordinated,
) -> None:
    ours.available = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    assert ours.init() == error(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


def gets_the_next_epoch_and_the_new_timeout(ours: Coordinated, state: State) -> None:
    ours.known(state, epoch=4)
    ours.now += 10
    assert ours.init(timeout_ms=777) == given(PID, 5)
    metadata = ours.metadata
    assert (metadata.state, metadata.timeout_ms, metadata.update_ms) == (State.EMPTY, 777, ours.now)
    assert metadata.last_producer_epoch == -1


def test_should_increment_epoch_and_update_metadata_on_handle_init_pid_when_existing_empty_transaction(
    ours: Coordinated,
) -> None:
    gets_the_next_epoch_and_the_new_timeout(ours, State.EMPTY)


def test_should_increment_epoch_and_update_metadata_on_handle_init_pid_when_existing_complete_transaction(
    ours: Coordinated,
) -> None:
    gets_the_next_epoch_and_the_new_timeout(ours, State.COMPLETE_ABORT)


def test_should_increment_epoch_and_update_metadata_on_handle_init_pid_when_existing_complete_commit_transaction(
    ours: Coordinated,
) -> None:
    gets_the_next_epoch_and_the_new_timeout(ours, State.COMPLETE_COMMIT)


def test_should_wait_for_commit_to_complete_on_handle_init_pid_and_existing_transaction_in_prepare_commit_state(
    ours: Coordinated,
) -> None:
    ours.known(State.PREPARE_COMMIT)
    assert ours.init() == error(AGAIN)


def test_should_wait_for_commit_to_complete_on_handle_init_pid_and_existing_transaction_in_prepare_abort_state(
    ours: Coordinated,
) -> None:
    ours.known(State.PREPARE_ABORT)
    assert ours.init() == error(AGAIN)


def test_should_abort_transaction_on_handle_init_pid_when_existing_transaction_in_ongoing_state(
    ours: Coordinated,
) -> None:
    ours.known(State.ONGOING, last=3)
    asked = ours.asked()
    assert isinstance(asked, PendingAppend)
    written = asked.transition
    assert (written.state, written.producer_epoch, written.last_producer_epoch) == (State.PREPARE_ABORT, 1, -1)
    assert ours.settle(asked) == error(AGAIN)
    assert ours.init() == error(AGAIN)
    ours.write_markers()
    assert ours.init() == given(PID, 2)


def test_should_fail_to_abort_transaction_on_handle_init_pid_when_producer_epoch_is_smaller(ours: Coordinated) -> None:
    ours.known(State.ONGOING, epoch=1)
    assert ours.end(PID, 0, commit=False) == error(FENCED)


def test_should_not_repeatedly_bump_epoch_due_to_init_pid_during_ongoing_txn_if_append_to_log_fails(
    ours: Coordinated,
) -> None:
    metadata = ours.known(State.ONGOING)
    for _ in range(2):
        assert ours.failing(KafkaError.NOT_ENOUGH_REPLICAS) == error(KafkaError.COORDINATOR_NOT_AVAILABLE)
        assert (metadata.producer_epoch, metadata.has_failed_epoch_fence, metadata.pending) == (1, True, None)
    assert ours.init() == error(AGAIN)
    ours.write_markers()
    assert (metadata.producer_epoch, metadata.has_failed_epoch_fence) == (1, False)


def test_should_use_last_epoch_to_fence_when_epochs_are_exhausted(ours: Coordinated) -> None:
    metadata = ours.known(State.ONGOING, epoch=LAST)
    assert ours.init() == error(AGAIN)
    assert metadata.producer_epoch == 32_767
    ours.write_markers()
    assert ours.init() == given(PID + 1, 0)


def test_init_producer_id_with_no_last_producer_data(ours: Coordinated) -> None:
    ours.known(epoch=1)
    assert ours.init(PID, 0) == error(FENCED)


def test_fence_producer_when_mapping_exists_with_different_producer_id(ours: Coordinated) -> None:
    ours.known(epoch=0)
    assert ours.init(PID + 9, 0) == error(FENCED)


def test_init_producer_id_with_current_epoch_provided(ours: Coordinated) -> None:
    ours.known(epoch=10)
    assert [ours.init(PID, 10) for _ in range(2)] == [given(PID, 11)] * 2
    assert ours.metadata.last_producer_epoch == 10


def test_init_producer_id_stale_current_epoch_provided(ours: Coordinated) -> None:
    ours.known(epoch=10)
    assert ours.init() == given(PID, 11)
    assert ours.init(PID, 10) == error(FENCED)


def test_retry_init_producer_id_after_producer_id_rotation(ours: Coordinated) -> None:
    ours.known(epoch=LAST)
    assert [ours.init(PID, LAST) for _ in range(2)] == [given(PID + 1, 0)] * 2


def test_init_producer_id_with_invalid_epoch_after_producer_id_rotation(ours: Coordinated) -> None:
    ours.known(epoch=LAST)
    ours.init(PID, LAST)
    assert ours.init(PID, LAST - 1) == error(FENCED)


def test_an_unexpected_rotation_is_not_repeated(ours: Coordinated) -> None:
    ours.known(epoch=LAST)
    ours.init()
    assert ours.init(PID, LAST) == error(FENCED)


def test_exhausted_epochs_and_another_expected_one_are_a_server_error(ours: Coordinated) -> None:
    ours.known(epoch=LAST, last=LAST - 1)
    assert ours.init(PID, LAST - 1) == error(KafkaError.UNKNOWN_SERVER_ERROR)


@pytest.mark.parametrize("state", [State.DEAD, State.PREPARE_EPOCH_FENCE])
def test_invalid_states_are_a_server_error(ours: Coordinated, state: State) -> None:
    ours.known(state)
    assert ours.init() == error(KafkaError.UNKNOWN_SERVER_ERROR)


def test_should_abort_expired_transactions_in_ongoing_state_and_bump_epoch(ours: Coordinated) -> None:
    metadata = ours.known(State.ONGOING)
    ours.now += TIMEOUT_MS
    assert ours.coordinator.abort_timed_out(ours.now) == []
    (aborted,) = ours.coordinator.abort_timed_out(ours.now + 1)
    ours.settle(aborted)
    assert (metadata.state, metadata.producer_epoch) == (State.PREPARE_ABORT, 1)


def test_should_not_accept_smaller_epoch_during_transaction_expiration(ours: Coordinated) -> None:
    ours.known(State.ONGOING)
    for aborted in ours.coordinator.abort_timed_out(ours.now + TIMEOUT_MS + 1):
        ours.settle(aborted)
    assert ours.end(PID, 0, commit=False) == error(FENCED)


def test_should_not_abort_expired_transactions_that_have_a_pending_state_transition(ours: Coordinated) -> None:
    ours.known(State.ONGOING, pending=State.PREPARE_COMMIT)
    assert ours.coordinator.abort_timed_out(ours.now + TIMEOUT_MS + 1) == []


def test_should_not_bump_epoch_when_aborting_expired_transaction_if_append_to_log_fails(ours: Coordinated) -> None:
    metadata = ours.known(State.ONGOING)
    for _ in range(2):
        (aborted,) = ours.coordinator.abort_timed_out(ours.now + TIMEOUT_MS + 1)
        ours.settle(aborted, KafkaError.NOT_ENOUGH_REPLICAS)
    assert (metadata.state, metadata.producer_epoch, metadata.has_failed_epoch_fence) == (State.ONGOING, 1, True)


def test_should_not_bump_epoch_with_pending_transaction(ours: Coordinated) -> None:
    metadata = ours.known(State.ONGOING, pending=State.PREPARE_COMMIT)
    assert ours.init() == error(AGAIN)
    assert metadata.producer_epoch == 0


def test_should_return_invalid_epoch_on_end_txn_when_epoch_is_larger(ours: Coordinated) -> None:
    ours.known(State.ONGOING)
    assert ours.end(PID, 1) == error(FENCED)


def test_should_return_invalid_epoch_on_end_txn_when_epoch_is_smaller(ours: Coordinated) -> None:
    ours.known(State.ONGOING, epoch=1)
    assert ours.end(PID, 0) == error(FENCED)


@pytest.mark.parametrize("commit", [True, False])
def test_should_reply_with_producer_fenced_on_end_txn_when_epoch_is_not_same_as_transaction(
    ours: Coordinated, commit: bool
) -> None:
    ours.known(State.ONGOING)
    assert ours.end(PID, 1, commit=commit) == error(FENCED)


def test_should_reply_with_invalid_pid_mapping_on_end_txn_when_txn_id_doesnt_exist(ours: Coordinated) -> None:
    assert ours.end(PID, 0) == error(KafkaError.INVALID_PRODUCER_ID_MAPPING)


def test_should_reply_with_invalid_pid_mapping_on_end_txn_when_pid_dosent_match_mapped(ours: Coordinated) -> None:
    ours.known(State.ONGOING)
    assert ours.end(PID + 1, 0) == error(KafkaError.INVALID_PRODUCER_ID_MAPPING)


def test_should_respond_with_producer_fenced_on_add_partitions_when_epochs_are_different(ours: Coordinated) -> None:
    ours.known(epoch=3)
    assert ours.begin(PID, 2) == error(FENCED)


def test_reject_init_producer_id_when_id_but_not_epoch_provided(ours: Coordinated) -> None:
    assert ours.init(PID, -1) == error(KafkaError.INVALID_REQUEST)


def test_reject_init_producer_id_when_epoch_but_not_id_provided(ours: Coordinated) -> None:
    assert ours.init(-1, 0) == error(KafkaError.INVALID_REQUEST)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_is_refused(ours: Coordinated, timeout_ms: int) -> None:
    assert ours.init(timeout_ms=timeout_ms) == error(KafkaError.INVALID_TRANSACTION_TIMEOUT)


def test_a_cluster_may_allow_other_timeouts() -> None:
    coordinator = TransactionCoordinator(lambda: 7, max_timeout_ms=1_200_000)

    def init(timeout_ms: int) -> object:
        return coordinator.init_producer_id(
            InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=timeout_ms), now_ms=0
        )

    assert init(1_200_001) == error(KafkaError.INVALID_TRANSACTION_TIMEOUT)
    assert isinstance(init(1_200_000), PendingAppend)


def test_without_producer_ids_clients_get_the_reason() -> None:
    def none_yet() -> int:
        raise RefusedError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "no block yet")

    coordinator = TransactionCoordinator(none_yet)
    for name in (None, ID):
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1)
        assert coordinator.init_producer_id(request, 0) == error(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    assert coordinator.transactions == {}


def test_a_whole_transaction_and_the_next(ours: Coordinated) -> None:
    assert ours.init() == given(PID, 0)
    for commit in (True, False):
        assert ours.begin(PID, 0) == given(PID, 0)
        assert ours.begin(PID, 0) == given(PID, 0)
        assert ours.end(PID, 0, commit=commit) == given(PID, 0)
        assert ours.begin(PID, 0) == error(AGAIN)
        assert ours.end(PID, 0, commit=commit) == error(AGAIN)
        ours.write_markers()
        assert ours.end(PID, 0, commit=commit) == given(PID, 0)
        assert ours.end(PID, 0, commit=not commit) == error(KafkaError.INVALID_TXN_STATE)
    assert ours.metadata.partitions == frozenset()


def test_a_failover_forgets_the_epoch_before_so_that_a_retry_is_fenced(ours: Coordinated) -> None:
    ours.known(epoch=10)
    assert ours.init(PID, 10) == given(PID, 11)
    ours.metadata.last_producer_epoch = -1  # it is never written to the log
    assert ours.init(PID, 10) == error(FENCED)


def test_idle_transactional_ids_expire_apart_from_producer_ids(ours: Coordinated) -> None:
    ours.known(State.COMPLETE_COMMIT)
    assert ours.coordinator.expired(ours.now + 99, 100) == []
    assert ours.coordinator.expired(ours.now + 100, 100) == [ID]
    ours.known(State.ONGOING)
    assert ours.coordinator.expired(ours.now + 100, 100) == []


def test_transaction_after_transaction_id_expires_but_producer_id_remains(ours: Coordinated) -> None:
    assert ours.init() == given(PID, 0)
    for name in ours.coordinator.expired(ours.now + 5_000, 5_000):
        del ours.coordinator.transactions[name]
    assert ours.begin(PID, 0) == error(KafkaError.INVALID_PRODUCER_ID_MAPPING)
    assert ours.init(PID, 0) == given(PID + 1, 0)


def test_bump_transactional_epoch_after_invalid_producer_id_mapping(ours: Coordinated) -> None:
    assert ours.init() == given(PID, 0)
    for name in ours.coordinator.expired(ours.now + 5_000, 5_000):
        del ours.coordinator.transactions[name]
    assert ours.begin(PID, 0) == error(KafkaError.INVALID_PRODUCER_ID_MAPPING)
    recovered = ours.init(PID, 0)  # what a producer asks after it has aborted
    assert recovered == given(PID + 1, 0)
    assert ours.begin(PID + 1, 0) == given(PID + 1, 0)


@each(
    ("written", "heard"),
    [(3, 15), (19, 15), (20, 15), (7, 15), (6, 16), (56, 16), (10, -1), (18, -1), (14, 14)],
)
def test_errors_of_the_log_are_reported_as_those_of_a_coordinator(written: int, heard: int) -> None:
    assert error_of_append(KafkaError(written)).value == heard


def test_what_was_written_for_an_id_that_is_gone_counts_for_nothing(ours: Coordinated) -> None:
    asked = ours.asked()
    ours.coordinator.transactions.clear()
    assert ours.settle(asked) == error(KafkaError.NOT_COORDINATOR)


# -- transactions v2


@pytest.fixture
def v2() -> Coordinated:
    return Coordinated(v2=True)


def test_with_v2_each_end_brings_the_next_epoch(v2: Coordinated) -> None:
    assert v2.init() == given(PID, 0)
    for epoch in range(3):
        assert v2.begin(PID, epoch, client_v2=True) == given(PID, epoch)
        assert v2.end(PID, epoch, client_v2=True) == given(PID, epoch + 1)
        assert v2.end(PID, epoch, client_v2=True) == error(AGAIN)
        v2.write_markers()
        assert v2.end(PID, epoch, client_v2=True) == given(PID, epoch + 1)


def test_with_v2_the_last_epoch_brings_a_new_producer_id(v2: Coordinated) -> None:
    v2.known(State.ONGOING, epoch=LAST)
    assert v2.end(PID, LAST, client_v2=True) == given(PID + 1, 0)
    assert (v2.metadata.producer_id, v2.metadata.producer_epoch) == (PID, 32_767)
    v2.write_markers()
    assert (v2.metadata.producer_id, v2.metadata.producer_epoch) == (PID + 1, 0)


def test_with_v2_the_next_producer_id_waits_until_the_markers_are_written(v2: Coordinated, tmp_path: Path) -> None:
    v2.known(State.ONGOING, epoch=LAST)
    assert v2.end(PID, LAST, client_v2=True) == given(PID + 1, 0)

    def waits() -> bool:
        answers = [
            v2.begin(PID + 1, 0, client_v2=True), v2.init(PID + 1, 0), v2.end(PID + 1, 0, client_v2=True),
            v2.end(PID, LAST, client_v2=True),
        ]  # fmt: skip
        return answers == [error(AGAIN)] * len(answers)

    assert waits()
    complete = v2.coordinator.markers_written(ID, v2.now)
    assert waits()
    assert v2.settle(complete, KafkaError.NOT_ENOUGH_REPLICAS) == error(KafkaError.COORDINATOR_NOT_AVAILABLE)
    assert waits()
    written = step(
        PID, State.PREPARE_COMMIT, producer_epoch=32_767, next_producer_id=PID + 1, client_transaction_version=2
    )
    write_segment(tmp_path, 0, [(0, ID, written)])
    v2.coordinator.transactions = dict(read_transaction_states([tmp_path]).transactions)  # after a failover
    assert waits()
    v2.write_markers()
    assert v2.begin(PID + 1, 0, client_v2=True) == given(PID + 1, 0)


def test_with_v2_a_fence_in_the_last_epoch_brings_a_new_producer_id_too(v2: Coordinated) -> None:
    v2.known(State.ONGOING, epoch=LAST)
    assert v2.init() == error(AGAIN)
    assert (v2.metadata.producer_epoch, v2.metadata.next_producer_id) == (32_767, PID + 1)
    v2.write_markers()
    assert (v2.metadata.producer_id, v2.metadata.producer_epoch) == (PID + 1, 0)
    v2.begin(PID + 1, 0, client_v2=True)
    assert v2.end(PID + 1, 0, client_v2=True) == given(PID + 1, 1)


def test_a_transaction_that_cannot_be_fenced_for_want_of_a_producer_id_is_left_for_the_next_time() -> None:
    def nothing() -> int:
        raise RefusedError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "no block has come yet")

    v2 = Coordinated(v2=True)
    metadata = v2.known(State.ONGOING, epoch=LAST)
    late = v2.now + TIMEOUT_MS + 1
    empty = TransactionCoordinator(nothing, transactions_v2=True)
    empty.transactions = v2.coordinator.transactions
    assert empty.abort_timed_out(late) == []
    assert (metadata.pending, metadata.producer_epoch) == (None, LAST)
    assert len(v2.coordinator.abort_timed_out(late)) == 1


def test_should_return_ok_on_end_txn_v2_if_end_txn_v2_retry_epoch_overflow(v2: Coordinated) -> None:
    v2.known(State.ONGOING, epoch=LAST)
    v2.end(PID, LAST, client_v2=True)
    v2.write_markers()
    assert v2.end(PID, LAST, client_v2=True) == given(PID + 1, 0)
    assert v2.end(PID, LAST, commit=False, client_v2=True) == error(KafkaError.INVALID_TXN_STATE)


def test_should_return_invalid_txn_request_on_end_txn_v2_if_not_end_txn_v2_retry(v2: Coordinated) -> None:
    v2.known(State.COMPLETE_COMMIT, epoch=5)
    assert v2.end(PID, 5, client_v2=True) == error(KafkaError.INVALID_TXN_STATE)
    assert v2.end(PID, 3, client_v2=True) == error(FENCED)
    assert v2.end(PID + 7, 5, client_v2=True) == error(KafkaError.INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_with_v2_a_transaction_without_partitions_can_be_aborted_and_not_committed(
    v2: Coordinated, state: State
) -> None:
    v2.known(state, epoch=5)
    assert v2.end(PID, 5, client_v2=True) == error(KafkaError.INVALID_TXN_STATE)
    assert v2.end(PID, 5, commit=False, client_v2=True) == given(PID, 6)
    v2.write_markers()
    assert v2.metadata.state is State.COMPLETE_ABORT


def test_with_v2_a_fence_raises_the_epoch_by_one_alone(v2: Coordinated) -> None:
    v2.known(State.ONGOING, epoch=5)
    assert v2.init() == error(AGAIN)
    assert v2.metadata.producer_epoch == 6
    v2.write_markers()
    assert v2.init() == given(PID, 7)


def test_with_v2_a_fence_that_could_not_be_written_is_tried_again_under_the_same_epoch(v2: Coordinated) -> None:
    v2.known(State.ONGOING, epoch=5)
    assert v2.failing(KafkaError.NOT_ENOUGH_REPLICAS) == error(KafkaError.COORDINATOR_NOT_AVAILABLE)
    assert v2.metadata.producer_epoch == 5
    assert v2.init() == error(AGAIN)
    assert v2.metadata.producer_epoch == 6


def test_should_return_when_transaction_version_downgraded(v2: Coordinated) -> None:
    v2.known(State.ONGOING, epoch=5)
    assert v2.end(PID, 5, client_v2=False) == given(PID, 5)
    v2.write_markers()
    assert v2.end(PID, 5, client_v2=False) == given(PID, 5)


def test_should_return_correctly_when_transaction_version_upgraded(v2: Coordinated) -> None:
    v2.known(State.COMPLETE_COMMIT, epoch=5)
    assert v2.begin(PID, 5, client_v2=True) == given(PID, 5)
    assert v2.end(PID, 5, client_v2=True) == given(PID, 6)


def test_a_cluster_without_v2_knows_nothing_of_it(ours: Coordinated) -> None:
    ours.known(State.ONGOING, epoch=5)
    assert ours.end(PID, 5, client_v2=True) == given(PID, 5)
