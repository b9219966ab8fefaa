"""Sequences and epochs of batches in flight: the histories of Kafka's ``TransactionManagerTest`` and ``SenderTest``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.record_batch import MAX_SEQUENCE, NO_SEQUENCE
from resnap.tiering.controller.transactions.client_errors import BatchOutcome, ClientState, CoordinatorRequest
from resnap.tiering.controller.transactions.client_sequences import NO_PRODUCERS, ClientSequences

if TYPE_CHECKING:
    from resnap.tiering.controller.transactions.client_sequences import ClientBatch, PartitionSequences

TP0, TP1 = TopicPartition("payments", 0), TopicPartition("payments", 1)
ID: Final = 13_131
TOO_LARGE, OUT_OF_ORDER, UNKNOWN = KafkaError(10), KafkaError(45), KafkaError(59)
NOT_LEADER, TIMED_OUT, UNAUTHORIZED = KafkaError(6), KafkaError(7), KafkaError(29)
END_TXN, INIT_PRODUCER_ID = CoordinatorRequest.END_TXN, CoordinatorRequest.INIT_PRODUCER_ID


class Client(ClientSequences):
    """With what tests say often."""

    def send(self, partition: TopicPartition = TP0, records: int = 1) -> ClientBatch:
        """Send a new batch, which must not wait."""
        batch = self.add(partition, records)
        assert self.next_batch(partition) is batch
        return batch

    def of(self, partition: TopicPartition = TP0) -> PartitionSequences:
        return self.partitions[partition]

    def numbers(self, partition: TopicPartition = TP0) -> tuple[int, int, int]:
        """Epoch, next sequence and last acknowledged sequence of a partition."""
        known = self.of(partition)
        return known.producer[1], known.next_sequence, known.last_acked_sequence

    def is_retried(self, batch: ClientBatch, error: KafkaError, *, log_start_offset: int = -1) -> bool:
        return self.refused(batch, error, log_start_offset=log_start_offset).batch is BatchOutcome.RETRY


def idempotent(epoch: int = 0, **settings: int) -> Client:
    client = Client(**settings)  # type: ignore[arg-type]
    client.got_producer(ID, epoch)
    return client


def transactional(epoch: int = 1, *, init_producer_id: int = 3) -> Client:
    client = Client(transactional=True)
    client.found_coordinator(init_producer_id)
    client.got_producer(ID, epoch)
    client.added_to_transaction()
    return client


def numbered(batch: ClientBatch) -> tuple[int, int]:
    return batch.producer[1], batch.sequence


# -- TransactionManagerTest


def test_default_sequence_number() -> None:
    client = idempotent()
    client.send(records=3)
    assert client.of().next_sequence == 3


def test_sequence_number_overflow() -> None:
    client = idempotent()
    client.send(records=MAX_SEQUENCE)
    client.send(records=100)
    assert client.of().next_sequence == 99
    client.send(records=MAX_SEQUENCE)
    assert client.of().next_sequence == 98


def test_bump_epoch_and_reset_sequence_numbers_after_unknown_producer_id() -> None:
    client = idempotent(epoch=1)
    first, *others = [client.send() for _ in range(5)]
    client.acknowledged(first, base_offset=500)
    assert client.is_retried(others[0], UNKNOWN, log_start_offset=600)
    client.step()
    assert [numbered(batch) for batch in others] == [(2, 0), (2, 1), (2, 2), (2, 3)]
    assert client.numbers() == (2, 4, -1)
    assert others[0].was_renumbered
    assert client.next_batch(TP0) is others[0]
    assert not others[0].was_renumbered


def test_batch_failure_after_producer_reset() -> None:
    client = idempotent(epoch=32_767)
    for partition in (TP0, TP1):
        client.acknowledged(client.send(partition))
    failed, healthy = client.send(TP0), client.send(TP1)
    assert client.is_retried(failed, UNKNOWN, log_start_offset=400)
    assert client.step(), "a producer id must be asked for"
    assert (client.of(TP0).next_sequence, failed.sequence, failed.producer) == (1, 0, NO_PRODUCERS)
    assert (client.of(TP1).next_sequence, healthy.sequence, healthy.producer) == (2, 1, (ID, 32_767))


def test_batch_completed_after_producer_reset() -> None:
    client = idempotent(epoch=32_767)
    first, other, second = client.send(TP0), client.send(TP1), client.send(TP0)
    client.refused(other, OUT_OF_ORDER)
    client.step()
    client.got_producer(ID + 1, 0)
    client.acknowledged(first, base_offset=500)
    assert client.numbers() == (32_767, 2, 0)
    assert client.of().first_in_flight is second
    client.acknowledged(second, base_offset=501)
    third = client.send(TP0)
    assert (third.producer, third.sequence) == ((ID + 1, 0), 0)
    assert client.of().last_acked_sequence == -1


def test_duplicate_sequence_after_producer_reset() -> None:
    client = idempotent()
    first = client.send()
    client.refused(first, TIMED_OUT)
    assert client.next_batch(TP0) is first
    client.expired(first)
    client.step()
    assert (client.producer, client.of().next_sequence) == ((ID, 1), 0)
    second = client.send()
    assert numbered(second) == (1, 0)
    client.refused(first, TIMED_OUT)  # the answer to what expired long ago
    assert client.of().in_flight == [second]
    assert client.is_retried(second, TIMED_OUT)
    assert client.of().in_flight == [second]


def test_producer_id_reset() -> None:
    client = idempotent(epoch=32_767)
    for partition in (TP0, TP1):
        for _ in range(3):
            client.acknowledged(client.send(partition))
    refused = client.send(TP0)
    client.refused(refused, OUT_OF_ORDER)
    client.step()
    assert client.producer == NO_PRODUCERS
    client.acknowledged(refused)
    assert client.of(TP0).next_sequence == 1
    assert client.of(TP1).next_sequence == 3


def test_bump_epoch_after_timeout_without_pending_inflight_requests() -> None:
    client = idempotent(epoch=5)
    client.acknowledged(client.send())
    client.acknowledged(client.send())
    last = client.send()
    client.refused(last, TIMED_OUT)
    client.expired(last)
    client.step()
    assert client.producer == (ID, 6)
    assert client.of().next_sequence == 0
    assert client.of().unresolved is None


def expired_before_others() -> tuple[Client, ClientBatch, ClientBatch]:
    """A batch that was sent expires while two others are in flight."""
    client = idempotent(epoch=5)
    first, *others = [client.send() for _ in range(3)]
    client.refused(first, TIMED_OUT)
    client.expired(first)
    client.step()
    assert client.of().unresolved == 1
    assert client.producer == (ID, 5)
    return client, *others


def test_no_producer_id_reset_after_last_in_flight_batch_succeeds() -> None:
    client, second, third = expired_before_others()
    client.acknowledged(second, base_offset=500)
    client.step()
    assert client.of().unresolved == 1
    client.acknowledged(third, base_offset=501)
    client.step()
    assert client.of().unresolved is None
    assert client.producer == (ID, 5)
    assert client.of().next_sequence == 3


def test_epoch_bump_after_last_inflight_batch_fails() -> None:
    client, second, third = expired_before_others()
    client.acknowledged(second, base_offset=500)
    client.refused(third, TIMED_OUT)
    client.expired(third)
    client.step()
    assert client.of().unresolved is None
    assert client.producer == (ID, 6)
    assert client.of().next_sequence == 0


def test_no_failed_batch_handling_when_txn_manager_is_in_fatal_error() -> None:
    client = idempotent()
    first, second = client.send(), client.send()
    client.refused(first, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    assert client.state is ClientState.FATAL
    client.refused(second, OUT_OF_ORDER)
    client.expired(second)
    assert not client.needs_bump
    client.step()
    assert client.producer == (ID, 0)


def bumped_beside_a_healthy_partition() -> tuple[Client, ClientBatch]:
    """One partition gets its batches numbered again; the other one has a batch in flight, and another one waiting."""
    client = idempotent(epoch=1)
    first, second, third = (client.send(TP0) for _ in range(3))
    healthy_first, healthy_second = client.send(TP1), client.send(TP1)
    client.acknowledged(first, base_offset=500)
    client.acknowledged(healthy_first, base_offset=500)
    assert client.is_retried(second, UNKNOWN, log_start_offset=500)
    client.step()
    assert [numbered(batch) for batch in (second, third)] == [(2, 0), (2, 1)]
    assert (numbered(healthy_second), healthy_second.was_renumbered) == ((1, 1), False)
    client.add(TP1)
    assert client.next_batch(TP1) is None, "it waits for what is in flight under the epoch before"
    return client, healthy_second


def test_healthy_partition_retries_during_epoch_bump() -> None:
    client, healthy = bumped_beside_a_healthy_partition()
    assert client.is_retried(healthy, NOT_LEADER)
    assert client.next_batch(TP1) is healthy
    assert numbered(healthy) == (1, 1)
    assert client.next_batch(TP1) is None
    client.acknowledged(healthy, base_offset=501)
    waiting = client.next_batch(TP1)
    assert waiting is not None
    assert numbered(waiting) == (2, 0)
    client.acknowledged(waiting, base_offset=502)
    assert client.numbers(TP1) == (2, 1, 0)


def test_failed_inflight_batch_after_epoch_bump() -> None:
    client, healthy = bumped_beside_a_healthy_partition()
    client.refused(healthy, UNAUTHORIZED)
    waiting = client.next_batch(TP1)
    assert waiting is not None
    assert numbered(waiting) == (2, 0)
    assert client.of(TP1).in_flight == [waiting]


def test_abort_transaction_and_reuse_sequence_number_on_error() -> None:
    client = transactional(init_producer_id=1)
    client.acknowledged(client.send())
    client.acknowledged(client.send())
    client.refused(client.send(), UNAUTHORIZED)
    assert client.state is ClientState.ABORTABLE
    assert client.abort() == (END_TXN,)
    client.ended()
    assert client.of().next_sequence == 2
    assert client.producer == (ID, 1)


def test_abort_transaction_and_reset_sequence_number_on_unknown_producer_id() -> None:
    client = transactional(init_producer_id=1)
    client.acknowledged(client.send(TP1), base_offset=0)
    client.acknowledged(client.send(TP0), base_offset=0)
    client.acknowledged(client.send(TP0), base_offset=1)
    client.refused(client.send(TP0), UNKNOWN, log_start_offset=0)
    assert client.abort() == (END_TXN,)
    client.ended()
    assert (client.of(TP0).next_sequence, client.of(TP1).next_sequence) == (0, 1)


def aborts_with_the_next_epoch(client: Client) -> None:
    """Abort, and see that the next transaction begins at sequence 0 under the next epoch."""
    assert client.state is ClientState.ABORTABLE
    assert client.abort() == (END_TXN, INIT_PRODUCER_ID)
    client.ended()
    client.got_producer(ID, 2)
    assert numbered(client.send()) == (2, 0)
    assert not client.needs_bump


def test_bump_transactional_epoch_on_abortable_error() -> None:
    client = transactional()
    client.acknowledged(client.send())
    client.refused(client.send(), UNAUTHORIZED)
    aborts_with_the_next_epoch(client)


def test_bump_transactional_epoch_on_unknown_producer_id_error() -> None:
    client = transactional()
    client.acknowledged(client.send(), base_offset=0)
    client.refused(client.send(), UNKNOWN, log_start_offset=0)
    aborts_with_the_next_epoch(client)


def test_bump_transactional_epoch_on_timeout() -> None:
    client = transactional()
    client.acknowledged(client.send())
    client.expired(client.send())
    aborts_with_the_next_epoch(client)


def test_can_bump_epoch_during_coordinator_disconnect() -> None:
    client = transactional(init_producer_id=3)
    client.refused(client.send(), UNAUTHORIZED)  # no response of a coordinator arrives meanwhile
    assert client.needs_bump
    other = transactional(init_producer_id=3)
    other.found_coordinator(1)
    other.refused(other.send(), UNAUTHORIZED)
    assert not other.needs_bump


def test_transition_to_fatal_error_when_retried_batch_is_expired() -> None:
    client = transactional(init_producer_id=1)
    batch = client.send()
    client.refused(batch, NOT_LEADER)
    client.expired(batch)
    assert client.state is ClientState.ABORTABLE
    client.step()
    assert client.state is ClientState.FATAL


def test_transition_to_abortable_error_on_batch_expiry() -> None:
    client = transactional()
    client.expired(client.add(TP0))
    client.step()
    assert client.state is ClientState.ABORTABLE


def test_transition_to_abortable_error_on_multiple_batch_expiry() -> None:
    client = transactional()
    batches = [client.add(TP0), client.add(TP1)]
    for batch in batches:
        client.expired(batch)
    client.step()
    assert client.state is ClientState.ABORTABLE
    assert [batch.error for batch in batches] == [TIMED_OUT, TIMED_OUT]


def test_drop_commit_on_batch_expiry() -> None:
    client = transactional()
    batch = client.add(TP0)
    assert client.commit() == (END_TXN,)
    client.expired(batch)
    assert client.state is ClientState.ABORTABLE
    assert client.abort() == (END_TXN,), "an error of a commit brings no next epoch"
    client.ended()
    assert client.state is ClientState.UNCHANGED


def test_disallow_commit_on_produce_failure() -> None:
    client = transactional()
    batch = client.send()
    client.commit()
    client.refused(batch, OUT_OF_ORDER)
    assert client.state is ClientState.ABORTABLE
    client.abort()
    client.ended()
    assert client.state is ClientState.UNCHANGED


def test_allow_abort_on_produce_failure() -> None:
    client = transactional()
    client.refused(client.send(), OUT_OF_ORDER)
    aborts_with_the_next_epoch(client)


def test_abortable_error_while_abort_in_progress() -> None:
    client = transactional()
    batch = client.send()
    client.abort()
    client.refused(batch, OUT_OF_ORDER)
    assert client.state is ClientState.UNCHANGED
    assert not client.needs_bump


def test_an_expired_batch_stays_expired_though_its_acknowledgement_counts() -> None:
    client = idempotent()
    batch = client.send()
    client.expired(batch)
    client.acknowledged(batch, base_offset=7)
    assert (batch.is_done, batch.error) == (True, TIMED_OUT)
    assert client.numbers() == (0, 1, 0)


def test_an_aborting_transaction_need_not_abort_once_more_for_what_becomes_known_meanwhile() -> None:
    client = transactional()
    batch = client.send()
    client.commit()
    client.refused(batch, NOT_LEADER)
    client.expired(batch)
    assert client.state is ClientState.ABORTABLE
    client.abort()
    client.step()  # it shows that it is unknown whether the batch was written
    assert client.state is ClientState.UNCHANGED
    client.coordinator_refused(END_TXN, KafkaError.TRANSACTION_ABORTABLE)
    assert client.state is ClientState.UNCHANGED
    client.coordinator_refused(END_TXN, KafkaError.PRODUCER_FENCED)
    assert client.state is ClientState.FATAL


def test_what_was_sent_is_sent_again_in_a_transaction_that_must_abort_and_the_rest_fails() -> None:
    client = transactional()
    first, second = client.send(), client.send()
    unsent = client.add(TP0)
    client.refused(first, UNAUTHORIZED)
    assert client.state is ClientState.ABORTABLE
    for _ in range(2):  # before the application aborts, and while it does
        assert client.is_retried(second, NOT_LEADER)
        assert client.next_batch(TP0) is second
        assert client.next_batch(TP0) is None
        client.abort()
    assert (unsent.is_done, unsent.error) == (True, KafkaError.UNKNOWN_SERVER_ERROR)
    client.acknowledged(second)
    assert client.of().queue == client.of().in_flight == []


def test_a_batch_is_sent_again_after_the_sequence_of_its_partition_was_restarted() -> None:
    client = transactional()
    client.acknowledged(client.send(), base_offset=0)
    first, second = client.send(), client.send()
    client.refused(first, UNKNOWN, log_start_offset=0)
    assert client.is_retried(second, NOT_LEADER)
    assert client.next_batch(TP0) is second


def test_bump_transactional_epoch_on_recoverable_add_partition_request_error() -> None:
    client = Client(transactional=True)
    client.got_producer(ID, 1)
    client.coordinator_refused(CoordinatorRequest.ADD_PARTITIONS, KafkaError.INVALID_PRODUCER_ID_MAPPING)
    assert client.state is ClientState.ABORTABLE
    assert client.abort() == (INIT_PRODUCER_ID,), "nothing was added, so that nothing need end"


def test_bump_transactional_epoch_on_recoverable_add_offsets_request_error() -> None:
    client = transactional()
    client.coordinator_refused(CoordinatorRequest.ADD_OFFSETS, KafkaError.INVALID_PRODUCER_ID_MAPPING)
    aborts_with_the_next_epoch(client)


# -- SenderTest


def test_init_producer_id_request() -> None:
    client = Client()
    client.add(TP0)
    assert client.step(), "a producer id must be asked for"
    assert client.next_batch(TP0) is None
    client.got_producer(ID, 0)
    assert client.producer == (ID, 0)
    assert client.next_batch(TP0) is not None


def test_idempotence_with_multiple_inflights() -> None:
    client = idempotent()
    batches = [client.send(), client.send()]
    for sequence, batch in enumerate(batches):
        client.acknowledged(batch, base_offset=sequence)
        assert client.of().last_acked_sequence == sequence
    assert client.of().in_flight == []


def test_idempotence_with_multiple_inflights_retried_in_order() -> None:
    client = idempotent()
    first, second, third = client.send(), client.send(), client.send()
    assert client.is_retried(first, NOT_LEADER)
    fourth = client.add(TP0)
    assert client.is_retried(second, OUT_OF_ORDER)
    assert client.is_retried(third, OUT_OF_ORDER)
    assert client.producer == (ID, 0)
    for batch in (first, second):
        assert client.next_batch(TP0) is batch
        assert client.next_batch(TP0) is None, "while batches are sent again, one is on its way"
        client.acknowledged(batch)
    assert client.next_batch(TP0) is third
    assert client.next_batch(TP0) is fourth


def test_idempotence_with_multiple_inflights_where_first_fails_fatally_and_sequence_of_future_batches_is_adjusted() -> (
    None
):
    client = idempotent()
    first, second = client.send(), client.send()
    client.refused(first, TOO_LARGE)
    assert first.is_done
    client.step()
    assert client.producer == (ID, 1)
    assert client.is_retried(second, OUT_OF_ORDER)
    assert client.next_batch(TP0) is second
    assert numbered(second) == (1, 0)
    client.acknowledged(second)
    assert client.numbers() == (1, 1, 0)


def test_epoch_bump_on_out_of_order_sequence_for_next_batch() -> None:
    client = idempotent()
    first, second = client.send(records=2), client.send()
    client.acknowledged(first)
    assert client.is_retried(second, OUT_OF_ORDER)
    client.step()
    assert client.next_batch(TP0) is second
    assert (numbered(second), client.numbers()) == ((1, 0), (1, 1, -1))


def with_a_bump_in_the_first_partition(client: Client) -> ClientBatch:
    """A batch of the first partition is refused as out of order, and goes out again in the next epoch."""
    for partition in (TP0, TP1):
        client.acknowledged(client.send(partition))
    refused = client.send(TP0)
    assert client.is_retried(refused, OUT_OF_ORDER)
    return refused


def test_epoch_bump_on_out_of_order_sequence_for_next_batch_when_there_is_no_batch_in_flight() -> None:
    client = idempotent()
    refused = with_a_bump_in_the_first_partition(client)
    client.step()
    assert client.next_batch(TP0) is refused
    assert client.numbers(TP0) == (1, 1, -1)
    assert client.numbers(TP1) == (0, 1, 0), "it goes on under the next epoch when it is used again"
    client.send(TP1)
    assert client.numbers(TP1) == (1, 1, -1)


def test_epoch_bump_on_out_of_order_sequence_for_next_batch_when_batch_in_flight_fails() -> None:
    client = idempotent(retries=1)
    refused = with_a_bump_in_the_first_partition(client)
    healthy = client.send(TP1)
    client.step()
    assert client.next_batch(TP0) is refused
    assert client.is_retried(healthy, NOT_LEADER)
    assert client.next_batch(TP1) is healthy
    assert client.numbers(TP1) == (0, 2, 0)
    client.acknowledged(refused)
    client.refused(healthy, NOT_LEADER)
    assert healthy.is_done
    client.step()
    assert client.producer == (ID, 1), "what has used up its retries is no reason for another epoch"
    assert numbered(client.send(TP1)) == (1, 0)
    assert client.numbers(TP1) == (1, 1, -1)


def test_correct_handling_of_out_of_order_responses() -> None:
    client = idempotent()
    first, second = client.send(), client.send()
    assert client.is_retried(second, OUT_OF_ORDER)
    assert client.is_retried(first, NOT_LEADER)
    assert [batch.sequence for batch in client.of().queue] == [0, 1]
    assert client.next_batch(TP0) is first
    assert client.next_batch(TP0) is None
    client.acknowledged(first)
    assert client.next_batch(TP0) is second


def test_correct_handling_of_out_of_order_responses_when_second_succeeds() -> None:
    client = idempotent()
    first, second = client.send(), client.send()
    client.acknowledged(second, base_offset=1_000)
    assert client.of().last_acked_sequence == 1
    assert client.is_retried(first, TIMED_OUT)
    assert client.next_batch(TP0) is first
    client.acknowledged(first, base_offset=999)
    assert (client.of().last_acked_sequence, client.of().last_acked_offset) == (1, 1_000)


def test_expiry_of_unsent_batches_should_not_cause_unresolved_sequences() -> None:
    client = idempotent()
    client.expired(client.add(TP0))
    assert client.of().unresolved is None


def expired_beside_a_second() -> tuple[Client, ClientBatch, ClientBatch]:
    """A batch that was sent expires; a second one was sent after it, a third is queued."""
    client = idempotent()
    first, second = client.send(), client.send()
    client.refused(first, TIMED_OUT)
    client.expired(first)
    return client, second, client.add(TP0)


def test_expiry_of_first_batch_should_not_cause_unresolved_sequences_if_future_batches_succeed() -> None:
    client, second, third = expired_beside_a_second()
    client.acknowledged(second, base_offset=1)
    assert client.next_batch(TP0) is None
    client.step()
    assert client.of().unresolved is None
    assert client.next_batch(TP0) is third
    assert numbered(third) == (0, 2)


def test_expiry_of_first_batch_should_cause_epoch_bump_if_future_batches_fail() -> None:
    client, second, _ = expired_beside_a_second()
    assert client.is_retried(second, OUT_OF_ORDER)
    client.step()
    assert (client.producer, client.of().next_sequence, client.of().unresolved) == ((ID, 1), 1, None)
    assert numbered(second) == (1, 0)


def test_unresolved_sequences_are_not_fatal() -> None:
    client = transactional()
    first, second = client.send(), client.send()
    client.refused(first, NOT_LEADER)
    client.expired(first)
    client.refused(second, OUT_OF_ORDER)
    client.expired(second)
    client.step()
    assert client.state is ClientState.ABORTABLE
    assert client.needs_bump


def test_expiry_of_all_sent_batches_should_cause_unresolved_sequences() -> None:
    client = idempotent()
    batch = client.send()
    client.refused(batch, NOT_LEADER)
    client.expired(batch)
    assert client.of().unresolved == 1
    client.step()
    assert client.of().unresolved is None
    assert client.producer == (ID, 1)


def test_reset_of_producer_state_should_allow_queued_batches_to_drain() -> None:
    client = idempotent(epoch=32_767)
    failed, healthy = client.send(TP0), client.send(TP1)
    assert client.is_retried(healthy, NOT_LEADER)
    assert client.is_retried(failed, OUT_OF_ORDER)
    assert client.step()
    assert client.next_batch(TP1) is None, "nothing is sent without a producer id"
    client.got_producer(ID + 1, 0)
    assert client.next_batch(TP1) is healthy
    client.acknowledged(healthy, base_offset=10)
    assert client.of(TP1).next_sequence == 1


@pytest.mark.parametrize("error", [OUT_OF_ORDER, NOT_LEADER])
def test_close_with_producer_id_reset(error: KafkaError) -> None:
    client = idempotent(epoch=32_767)
    failed, healthy = client.send(TP0), client.send(TP1)
    client.refused(failed, OUT_OF_ORDER)
    client.refused(healthy, error)
    if client.step():
        client.got_producer(ID + 1, 0)
    for partition, batch in ((TP0, failed), (TP1, healthy)):
        assert client.next_batch(partition) is batch
        client.acknowledged(batch)
    assert not any(known.queue or known.in_flight for known in client.partitions.values())


def test_force_close_with_producer_id_reset() -> None:
    client = idempotent(epoch=32_767)
    failed = client.send(TP0)
    client.refused(failed, OUT_OF_ORDER)
    client.step()
    client.expired(failed)  # as a close that does not wait lets everything end
    assert failed.is_done
    assert client.of().queue == client.of().in_flight == []


def test_retry_when_producer_id_changes() -> None:
    client = idempotent(epoch=32_767)
    batch = client.send()
    assert client.is_retried(batch, KafkaError.NETWORK_EXCEPTION)
    client.needs_bump = True
    client.step()
    client.got_producer(ID + 1, 0)
    assert client.next_batch(TP0) is batch
    assert (batch.producer, batch.sequence) == ((ID, 32_767), 0)


def test_batches_drained_with_old_producer_id_should_succeed_on_subsequent_retry() -> None:
    client = idempotent()
    failed, healthy = client.send(TP0), client.send(TP1)
    assert client.is_retried(healthy, NOT_LEADER)
    assert client.is_retried(failed, OUT_OF_ORDER)
    client.step()
    for _ in range(2):
        assert client.next_batch(TP1) is healthy
        assert numbered(healthy) == (0, 0)
        assert client.is_retried(healthy, NOT_LEADER)
    assert client.next_batch(TP1) is healthy
    client.acknowledged(healthy)
    assert client.numbers(TP1) == (0, 1, 0)


def test_correct_handling_of_duplicate_sequence_error() -> None:
    client = idempotent()
    first, second = client.send(), client.send()
    client.acknowledged(second, base_offset=1_000)
    assert client.refused(first, KafkaError.DUPLICATE_SEQUENCE_NUMBER).batch is BatchOutcome.SUCCEED
    assert (first.is_done, first.error) == (True, KafkaError.NONE)
    assert (client.of().last_acked_sequence, client.of().last_acked_offset) == (1, 1_000)


def test_transactional_unknown_producer_handling_when_retention_limit_reached() -> None:
    client = transactional()
    client.acknowledged(client.send(), base_offset=1_000)
    second = client.send()
    assert client.refused(second, UNKNOWN, log_start_offset=1_010).batch is BatchOutcome.RENUMBER
    assert client.next_batch(TP0) is second
    assert (numbered(second), client.numbers()) == ((1, 0), (1, 1, -1))
    client.acknowledged(second, base_offset=1_011)
    assert client.of().last_acked_offset == 1_011


def test_idempotent_unknown_producer_handling_when_retention_limit_reached() -> None:
    client = idempotent()
    client.acknowledged(client.send(), base_offset=1_000)
    second = client.send()
    assert client.is_retried(second, UNKNOWN, log_start_offset=1_010)
    client.step()
    assert client.next_batch(TP0) is second
    assert (numbered(second), client.numbers()) == ((1, 0), (1, 1, -1))


def test_unknown_producer_error_should_be_retried_when_log_start_offset_is_unknown() -> None:
    client = idempotent()
    client.acknowledged(client.send(), base_offset=1_000)
    second = client.send()
    assert client.is_retried(second, UNKNOWN)
    client.step()
    assert client.next_batch(TP0) is second
    assert numbered(second) == (0, 1)


def test_unknown_producer_error_should_be_retried_for_future_batches_when_first_fails() -> None:
    client = idempotent()
    client.acknowledged(client.send(), base_offset=1_000)
    second, third = client.send(), client.send()
    assert client.is_retried(second, UNKNOWN, log_start_offset=1_010)
    client.step()
    assert client.is_retried(third, UNKNOWN, log_start_offset=1_010)
    client.step()
    assert client.producer == (ID, 1), "one bump for both"
    assert [numbered(batch) for batch in (second, third)] == [(1, 0), (1, 1)]
    for batch in (second, third):
        assert client.next_batch(TP0) is batch
        client.acknowledged(batch)


def test_should_raise_out_of_order_sequence_exception_to_user_if_log_was_not_truncated() -> None:
    client = idempotent()
    client.acknowledged(client.send(), base_offset=1_000)
    second = client.send()
    assert client.is_retried(second, UNKNOWN, log_start_offset=10)
    client.step()
    assert (client.producer, second.is_done) == ((ID, 1), False)


def test_sequence_number_increment() -> None:
    client = idempotent()
    batch = client.send()
    assert (batch.producer, batch.sequence, client.of().next_sequence) == ((ID, 0), 0, 1)
    client.acknowledged(batch)
    assert client.of().last_acked_sequence == 0


def test_bump_epoch_when_out_of_order_sequence_received() -> None:
    client = idempotent()
    batch = client.send()
    assert client.is_retried(batch, OUT_OF_ORDER)
    client.step()
    assert (client.producer, batch.is_done, numbered(batch)) == ((ID, 1), False, (1, 0))


def test_receive_failed_batch_twice_with_transactions() -> None:
    client = transactional()
    batch = client.send()
    client.expired(batch)
    client.refused(batch, KafkaError.INVALID_TXN_STATE)
    assert client.state is ClientState.ABORTABLE
    aborts_with_the_next_epoch(client)


def split_keeps_sequences(client: Client) -> None:
    """See that the halves of a batch that is too large keep its sequences."""
    batch = client.send(records=2)
    assert client.refused(batch, TOO_LARGE).batch is BatchOutcome.SPLIT
    halves = []
    for _ in range(2):
        half = client.next_batch(TP0)
        assert half is not None
        halves.append(half)
        client.acknowledged(half)
    assert [(half.sequence, half.records, half.attempts) for half in halves] == [(0, 1, 0), (1, 1, 0)]
    assert (client.of().next_sequence, client.of().last_acked_sequence) == (2, 1)


def test_idempotent_split_batch_and_send() -> None:
    split_keeps_sequences(idempotent())


def test_transactional_split_batch_and_send() -> None:
    split_keeps_sequences(transactional())


# -- what those do not ask


def test_what_failed_leaves_its_sequences_to_what_follows() -> None:
    client = transactional()
    first, second = client.send(records=3), client.send(records=2)
    client.refused(first, UNAUTHORIZED)
    assert (second.sequence, client.of().next_sequence) == (0, 2)


def test_a_batch_that_was_never_sent_has_no_sequence() -> None:
    client = Client()
    assert client.add(TP0).sequence == NO_SEQUENCE
