"""What producers do about errors: rows of Kafka's ``TransactionManagerTest`` and ``SenderTest`` about epochs."""

from __future__ import annotations

import pytest

from resnap.storage.kafka_errors import KafkaError
from resnap.tiering.controller.transactions.client_errors import (
    BatchOutcome,
    ClientState,
    CoordinatorRequest,
    ProduceSituation,
    Reaction,
    after_unresolved,
    on_coordinator_error,
    on_produce_error,
)
from tests.cases import each

FAIL, RETRY = BatchOutcome.FAIL, BatchOutcome.RETRY
FATAL, ABORTABLE = ClientState.FATAL, ClientState.ABORTABLE
Request = CoordinatorRequest
AGAIN = Reaction(batch=RETRY)
BUMPED_AND_AGAIN = Reaction(batch=RETRY, bumps_epoch=True)
ABORTS = Reaction(batch=FAIL, state=ABORTABLE, bumps_epoch=True)


def idempotent(code: int, **situation: object) -> Reaction:
    return on_produce_error(KafkaError(code), ProduceSituation(**situation))  # type: ignore[arg-type]


def transactional(code: int, **situation: object) -> Reaction:
    return idempotent(code, transactional=True, **situation)


def asked(request: CoordinatorRequest, code: int, **situation: object) -> Reaction:
    return on_coordinator_error(request, KafkaError(code), **situation)  # type: ignore[arg-type]


def is_fenced(request: CoordinatorRequest, code: int) -> bool:
    return asked(request, code) == Reaction(batch=FAIL, state=FATAL)


# -- SenderTest


def test_epoch_bump_on_out_of_order_sequence_for_next_batch() -> None:
    assert idempotent(45) == BUMPED_AND_AGAIN


def test_idempotence_with_multiple_inflights_retried_in_order() -> None:
    assert idempotent(45, follows_last_acked=False) == AGAIN
    assert transactional(45, follows_last_acked=False) == AGAIN


def test_epoch_bump_on_out_of_order_sequence_for_next_batch_when_batch_in_flight_fails() -> None:
    assert idempotent(45, was_renumbered=True) == AGAIN


def test_expiry_of_first_batch_should_cause_epoch_bump_if_future_batches_fail() -> None:
    assert idempotent(45, has_unresolved=True, starts_at_unresolved=True) == BUMPED_AND_AGAIN
    assert idempotent(45, has_unresolved=True) == AGAIN


def test_expiry_of_first_batch_should_not_cause_unresolved_sequences_if_future_batches_succeed() -> None:
    assert after_unresolved(transactional=False, can_bump=True, all_acked=True) == Reaction(batch=FAIL)


def test_expiry_of_all_sent_batches_should_cause_unresolved_sequences() -> None:
    reaction = after_unresolved(transactional=False, can_bump=True, all_acked=False)
    assert reaction == Reaction(batch=FAIL, bumps_epoch=True)


def test_unresolved_sequences_are_not_fatal() -> None:
    assert after_unresolved(transactional=True, can_bump=True, all_acked=False) == ABORTS
    assert after_unresolved(transactional=True, can_bump=False, all_acked=False).state is FATAL


def test_expiry_of_unsent_batches_should_not_cause_unresolved_sequences() -> None:
    assert idempotent(7, in_time=False, answered=False) == Reaction(batch=FAIL)


def test_idempotence_with_multiple_inflights_where_first_fails_fatally() -> None:
    assert idempotent(10) == Reaction(batch=FAIL, bumps_epoch=True)


def test_idempotent_split_batch_and_send() -> None:
    assert idempotent(10, records=2) == transactional(10, records=2) == Reaction(batch=BatchOutcome.SPLIT)


def test_correct_handling_of_duplicate_sequence_error() -> None:
    assert idempotent(46) == transactional(46) == Reaction(batch=BatchOutcome.SUCCEED)


def test_transactional_unknown_producer_handling_when_retention_limit_reached() -> None:
    reached = {"log_start_offset": 10, "last_acked_offset": 5}
    assert transactional(59, **reached) == Reaction(batch=BatchOutcome.RENUMBER)


def test_idempotent_unknown_producer_handling_when_retention_limit_reached() -> None:
    assert idempotent(59, log_start_offset=10, last_acked_offset=5) == BUMPED_AND_AGAIN


def test_unknown_producer_error_should_be_retried_when_log_start_offset_is_unknown() -> None:
    assert idempotent(59) == transactional(59) == AGAIN


def test_unknown_producer_error_should_be_retried_for_future_batches_when_first_fails() -> None:
    assert idempotent(59, log_start_offset=10, was_renumbered=True) == AGAIN


def test_should_raise_out_of_order_sequence_exception_to_user_if_log_was_not_truncated() -> None:
    assert idempotent(59, log_start_offset=10, last_acked_offset=10) == BUMPED_AND_AGAIN
    assert transactional(59, log_start_offset=10, last_acked_offset=10) == ABORTS


@pytest.mark.parametrize("code", [31, 35, 53, 90])
def test_errors_of_a_batch_that_are_fatal(code: int) -> None:
    assert idempotent(code) == transactional(code) == Reaction(batch=FAIL, state=FATAL)


def test_invalid_txn_state_is_an_abortable_error() -> None:
    assert transactional(48) == ABORTS
    assert idempotent(48) == Reaction(batch=FAIL, bumps_epoch=True)


def test_transaction_abortable_exception_is_an_abortable_error() -> None:
    assert transactional(120) == ABORTS
    assert idempotent(120) == Reaction(batch=FAIL, bumps_epoch=True)


def test_cluster_authorization_exception_in_produce_request() -> None:
    assert idempotent(31) == transactional(31) == Reaction(batch=FAIL, state=FATAL)


def test_unsupported_version_in_produce_request() -> None:
    assert idempotent(35) == transactional(35) == Reaction(batch=FAIL, state=FATAL)


def test_cluster_authorization_exception_in_init_producer_id_request() -> None:
    assert asked(Request.INIT_PRODUCER_ID, 31) == Reaction(batch=FAIL, state=ClientState.UNINITIALIZED)
    assert asked(Request.INIT_PRODUCER_ID, 31, release=(3, 5)).state is FATAL


# -- TransactionManagerTest


def test_invalid_producer_epoch_from_produce() -> None:
    assert transactional(47) == ABORTS
    assert idempotent(47) == Reaction(batch=FAIL, bumps_epoch=True)
    assert transactional(47, release=(2, 6)).state is FATAL


@pytest.mark.parametrize("code", [29, 45])
def test_an_abort_brings_the_next_epoch_where_the_coordinator_gives_one(code: int) -> None:
    assert transactional(code) == ABORTS
    assert transactional(code, can_bump=False) == Reaction(batch=FAIL, state=ABORTABLE)


def test_bump_transactional_epoch_on_timeout() -> None:
    assert transactional(7, in_time=False, answered=False) == ABORTS


def test_disallow_commit_on_produce_failure() -> None:
    assert transactional(45, is_ending=True) == Reaction(batch=FAIL, state=ABORTABLE)


def test_abortable_error_while_abort_in_progress() -> None:
    assert transactional(45, is_ending=True, is_aborting=True) == Reaction(batch=FAIL)


@each("code", [2, 3, 6, 7, 13, 19, 20, 56])
def test_retriable_errors_of_a_batch_are_retried_until_retries_are_used_up(code: int) -> None:
    assert idempotent(code) == transactional(code) == AGAIN
    assert idempotent(code, has_retries=False) == Reaction(batch=FAIL)
    assert transactional(code, has_retries=False) == ABORTS


@each("code", [3, 7, 14, 51])
@each("request_", [Request.INIT_PRODUCER_ID, Request.ADD_PARTITIONS, Request.END_TXN])
def test_retriable_errors(code: int, request_: Request) -> None:
    assert on_coordinator_error(request_, KafkaError(code)) == AGAIN


@pytest.mark.parametrize(("code", "fatal"), [(7, True), (3, True), (14, False), (51, False)])
def test_before_3_4_only_two_errors_of_init_producer_id_were_retried(code: int, fatal: bool) -> None:
    reaction = on_coordinator_error(Request.INIT_PRODUCER_ID, KafkaError(code), release=(3, 2))
    assert reaction == (Reaction(batch=FAIL, state=FATAL) if fatal else AGAIN)


@pytest.mark.parametrize("request_", Request)
def test_coordinator_not_available(request_: Request) -> None:
    for code in (15, 16):
        assert on_coordinator_error(request_, KafkaError(code)).batch is BatchOutcome.FIND_COORDINATOR


def test_a_commit_of_offsets_that_timed_out_looks_for_its_coordinator() -> None:
    reaction = on_coordinator_error(Request.TXN_OFFSET_COMMIT, KafkaError.REQUEST_TIMED_OUT)
    assert reaction.batch is BatchOutcome.FIND_COORDINATOR


@each("request_", Request)
@each("code", [47, 90])
def test_producer_fenced_and_invalid_producer_epoch_are_fatal_in_every_request(request_: Request, code: int) -> None:
    assert on_coordinator_error(request_, KafkaError(code)).state is FATAL


@pytest.mark.parametrize("code", [49, 59])
@pytest.mark.parametrize("request_", [Request.ADD_PARTITIONS, Request.ADD_OFFSETS, Request.END_TXN])
def test_bump_transactional_epoch_on_recoverable_request_error(request_: Request, code: int) -> None:
    assert on_coordinator_error(request_, KafkaError(code)) == ABORTS
    assert on_coordinator_error(request_, KafkaError(code), can_bump=False).state is FATAL


@pytest.mark.parametrize("request_", [Request.INIT_PRODUCER_ID, Request.TXN_OFFSET_COMMIT])
def test_a_lost_mapping_is_fatal_where_it_is_not_expected(request_: Request) -> None:
    assert on_coordinator_error(request_, KafkaError.INVALID_PRODUCER_ID_MAPPING).state is FATAL


def test_transactional_id_authorization_failure_in_init_producer_id() -> None:
    for code in (31, 53):
        states = [
            on_coordinator_error(Request.INIT_PRODUCER_ID, KafkaError(code), release=release).state
            for release in ((3, 5), (3, 6))
        ]
        assert states == [FATAL, ClientState.UNINITIALIZED]
    for request in set(Request) - {Request.INIT_PRODUCER_ID}:
        assert on_coordinator_error(request, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED).state is FATAL


@pytest.mark.parametrize("request_", Request)
def test_transaction_abortable_exception(request_: Request) -> None:
    assert on_coordinator_error(request_, KafkaError.TRANSACTION_ABORTABLE) == Reaction(batch=FAIL, state=ABORTABLE)


@pytest.mark.parametrize("request_", Request)
def test_an_invalid_transaction_state_is_fatal(request_: Request) -> None:
    assert on_coordinator_error(request_, KafkaError.INVALID_TXN_STATE).state is FATAL


@each(
    ("request_", "code", "state"),
    [
        (Request.INIT_PRODUCER_ID, 35, FATAL),
        (Request.ADD_PARTITIONS, 29, ABORTABLE),
        (Request.ADD_PARTITIONS, 55, ABORTABLE),
        (Request.ADD_OFFSETS, 30, ABORTABLE),
        (Request.ADD_OFFSETS, 29, FATAL),
        (Request.END_TXN, 30, FATAL),
        (Request.TXN_OFFSET_COMMIT, 30, ABORTABLE),
        (Request.TXN_OFFSET_COMMIT, 25, ABORTABLE),
        (Request.TXN_OFFSET_COMMIT, 22, ABORTABLE),
        (Request.TXN_OFFSET_COMMIT, 82, ABORTABLE),
        (Request.TXN_OFFSET_COMMIT, 29, FATAL),
    ],
)
def test_other_errors_end_the_transaction_or_the_producer(request_: Request, code: int, state: ClientState) -> None:
    assert on_coordinator_error(request_, KafkaError(code)) == Reaction(batch=FAIL, state=state)


def test_a_reaction_can_be_read() -> None:
    assert str(ABORTS) == "batch failed; producer must abort its transaction, with its next epoch"


def test_producer_fenced_exception_in_init_producer_id() -> None:
    assert is_fenced(Request.INIT_PRODUCER_ID, 90)


def test_invalid_producer_epoch_convert_to_producer_fenced_in_init_producer_id() -> None:
    assert is_fenced(Request.INIT_PRODUCER_ID, 47)


def test_producer_fenced_in_add_partition_to_txn() -> None:
    assert is_fenced(Request.ADD_PARTITIONS, 90)


def test_invalid_producer_epoch_convert_to_producer_fenced_in_add_partition_to_txn() -> None:
    assert is_fenced(Request.ADD_PARTITIONS, 47)


def test_producer_fenced_in_add_off_sets_to_txn() -> None:
    assert is_fenced(Request.ADD_OFFSETS, 90)


def test_invalid_producer_epoch_convert_to_producer_fenced_in_add_off_sets_to_txn() -> None:
    assert is_fenced(Request.ADD_OFFSETS, 47)


def test_invalid_producer_epoch_convert_to_producer_fenced_in_end_txn() -> None:
    assert is_fenced(Request.END_TXN, 47)


def test_handling_of_producer_fenced_error_on_txn_offset_commit() -> None:
    assert is_fenced(Request.TXN_OFFSET_COMMIT, 90)


def test_handling_of_invalid_producer_epoch_error_on_txn_offset_commit() -> None:
    assert is_fenced(Request.TXN_OFFSET_COMMIT, 47)


def test_transaction_abortable_exception_in_init_producer_id() -> None:
    assert asked(Request.INIT_PRODUCER_ID, 120) == Reaction(batch=FAIL, state=ABORTABLE)


def test_unsupported_init_transactions() -> None:
    assert asked(Request.INIT_PRODUCER_ID, 35) == Reaction(batch=FAIL, state=FATAL)


def test_node_not_ready() -> None:
    assert asked(Request.INIT_PRODUCER_ID, 15).batch is BatchOutcome.FIND_COORDINATOR
    assert asked(Request.INIT_PRODUCER_ID, 16).batch is BatchOutcome.FIND_COORDINATOR


# -- what real producers showed


def test_no_right_to_the_cluster_ends_a_transaction_where_partitions_are_added_and_a_producer_elsewhere() -> None:
    assert asked(Request.ADD_PARTITIONS, 31).state is ABORTABLE
    assert asked(Request.ADD_OFFSETS, 31).state is FATAL


@pytest.mark.parametrize("request_", [Request.ADD_PARTITIONS, Request.ADD_OFFSETS, Request.END_TXN])
def test_from_4_0_on_a_lost_mapping_is_fatal_whichever_request_reports_it(request_: Request) -> None:
    assert asked(request_, 49, release=(4, 0)) == transactional(49, release=(4, 0)) == Reaction(batch=FAIL, state=FATAL)
    assert asked(request_, 59, release=(4, 0)) == ABORTS


def test_before_3_3_2_few_errors_of_coordinators_were_retried() -> None:
    said = {request: asked(request, 3, release=(3, 3, 1)).batch for request in Request}
    retried = {Request.ADD_PARTITIONS, Request.TXN_OFFSET_COMMIT}
    assert said == {request: RETRY if request in retried else FAIL for request in Request}
    assert transactional(51, release=(3, 3, 1)) == ABORTS
    assert transactional(51, release=(3, 3, 2)) == AGAIN


def test_before_3_8_few_errors_of_commits_of_offsets_were_retried() -> None:
    states = [asked(Request.TXN_OFFSET_COMMIT, 51, release=release).state for release in ((3, 7), (3, 8))]
    assert states == [FATAL, ClientState.UNCHANGED]


def test_clients_before_2_7_do_not_know_what_fenced_means() -> None:
    assert asked(Request.ADD_PARTITIONS, 90, release=(2, 6)).state is ABORTABLE
    assert transactional(90, release=(2, 6)) == ABORTS
    assert transactional(90, release=(2, 7)).state is FATAL


def test_a_gap_brings_the_next_epoch_though_retries_are_used_up() -> None:
    for code in (45, 59):
        assert idempotent(code, has_retries=False, log_start_offset=1).bumps_epoch
    assert not idempotent(29, has_retries=False).bumps_epoch


def test_with_transactions_v2_the_end_brings_the_next_epoch_without_a_request_for_it() -> None:
    assert transactional(29, transactions_v2=True) == Reaction(batch=FAIL, state=ABORTABLE)
    assert asked(Request.END_TXN, 59, can_bump=False, transactions_v2=True) == Reaction(batch=FAIL, state=ABORTABLE)
    assert asked(Request.END_TXN, 49, release=(4, 0), transactions_v2=True).state is FATAL
