"""What a broker would answer to appends, waits, restarts and truncations of one partition."""

from __future__ import annotations

import pytest

from resnap.replay.leader.append_validation import rules_of
from resnap.replay.producer_state import Expiry
from resnap.storage.kafka_errors import KafkaError
from tests.cases import each
from tests.replay.simulated_partition import SimulatedPartition, Verdict

LONG = Expiry(1_000_000, 1_000)


def of_release(release: str = "3.9", expiry: Expiry = LONG, **keys: bool) -> SimulatedPartition:
    major, minor = map(int, release.split("."))
    return SimulatedPartition(rules_of((major, minor)), expiry, now_ms=0, **keys)


def said(verdict: Verdict) -> str:
    return verdict.error.name if verdict.error else verdict.verdict


def test_a_producer_counts_by_itself_unless_a_step_says_otherwise() -> None:
    partition = of_release()
    verdicts = partition.append(7, records=3), partition.append(7, records=2), partition.append(7, sequence=5)
    assert [said(one) for one in (*verdicts, partition.append(7))] == ["accepted"] * 4
    assert partition.manager.producers[7].entry.last_sequence == 6


def test_what_is_refused_does_not_count() -> None:
    partition = of_release()
    assert [said(partition.append(7, sequence=sequence)) for sequence in (None, 9, None)] == [
        "accepted", "OUT_OF_ORDER_SEQUENCE_NUMBER", "accepted",
    ]  # fmt: skip


def test_the_periodic_check_runs_when_it_is_due_and_not_before() -> None:
    partition = of_release(expiry=Expiry(1_000, 600))
    partition.append(7)
    assert [partition.wait(500).detail for _ in range(4)] == [
        "no check was due", "nothing expired", "expired: 7", "nothing expired",
    ]  # fmt: skip


def test_a_changed_expiration_counts_from_the_next_check_on() -> None:
    partition = of_release(expiry=Expiry(100_000, 1_000))
    partition.append(7)
    partition.set_expiration(100)
    assert [partition.wait(ms).detail for ms in (999, 1)] == ["no check was due", "expired: 7"]


def test_after_a_restart_only_the_last_batch_is_recognised() -> None:
    partition = of_release()
    verdicts = partition.append(7), partition.append(7), partition.restart()
    assert [said(one) for one in (*verdicts, partition.append(7, sequence=1), partition.append(7, sequence=0))] == [
        "accepted", "accepted", "done", "duplicate", "OUT_OF_ORDER_SEQUENCE_NUMBER",
    ]  # fmt: skip


def test_an_unclean_stop_forgets_nothing_that_is_in_the_log() -> None:
    partition = of_release()
    partition.append(7)
    partition.roll()
    partition.append(7)
    assert partition.restart(clean=False).detail == "loaded the snapshot at 1; batches replayed: 1"
    assert said(partition.append(7)) == "accepted"


@each(("clean", "verdict"), [(True, "accepted"), (False, "OUT_OF_ORDER_SEQUENCE_NUMBER")])
def test_without_snapshots_producers_are_unknown_after_an_orderly_stop_alone(clean: bool, verdict: str) -> None:
    partition = of_release()
    partition.append(7)
    assert said(partition.restart(clean=clean, keep_snapshots=False)) == "done"
    assert said(partition.append(7, sequence=40)) == verdict


def test_deleted_records_leave_their_producer_known() -> None:
    partition = of_release()
    partition.append(7)
    assert partition.delete_records(1).detail == "producers that are still known: 1"
    assert partition.append(7, sequence=40).error is KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_truncation_takes_the_sequence_back() -> None:
    partition = of_release()
    partition.append(7)
    partition.append(7)
    partition.truncate(1)
    assert said(partition.append(7, sequence=1)) == "accepted"


@each(("batches", "end", "sequence"), [(1, 2, 0), (2, 4, 3)])
def test_truncation_within_a_batch_takes_all_of_it_and_the_log_ends_there(
    batches: int, end: int, sequence: int
) -> None:
    """As ``LocalLog.truncateTo``: the end is the offset that was asked for, whatever batch it is in."""
    partition = of_release()
    for _ in range(batches):
        partition.append(7, records=3)
    partition.truncate(end)
    assert partition.append(7, sequence=sequence).detail == f"offsets {end} to {end}"


@each(
    ("release", "verification", "verdict"),
    [("3.5", True, "accepted"), ("3.6", True, "INVALID_TXN_STATE"), ("3.6", False, "accepted")],
)
def test_a_transaction_that_its_coordinator_knows_nothing_of_is_refused_from_3_6_on(
    release: str, verification: bool, verdict: str
) -> None:
    partition = of_release(release, verification=verification)
    assert said(partition.append(7, transactional=True, verified=False)) == verdict


@each(("release", "epoch"), [("3.9", 0), ("4.1", 1)])
def test_from_4_0_on_the_end_of_a_transaction_brings_the_next_epoch(release: str, epoch: int) -> None:
    partition = of_release(release)
    partition.append(7, transactional=True)
    partition.end_transaction(7)
    assert partition.manager.producers[7].entry.producer_epoch == epoch
    assert [said(partition.append(7, transactional=True)), said(partition.end_transaction(7))] == ["accepted"] * 2


def test_from_4_0_on_a_late_batch_of_the_last_transaction_is_refused() -> None:
    partition = of_release("4.1")
    partition.append(7, transactional=True)
    partition.end_transaction(7)
    assert said(partition.append(7, epoch=0, sequence=1, transactional=True)) == "INVALID_PRODUCER_EPOCH"


def test_what_may_come_first_depends_on_the_release() -> None:
    refused = {
        release: tuple(
            said(of_release(release).append(7, sequence=17, transactional=transactional)) != "accepted"
            for transactional in (False, True)
        )
        for release in ("2.5", "3.9", "4.0", "4.1", "4.4", "4.5")
    }
    assert refused == dict.fromkeys(("2.5", "3.9", "4.0"), (False, False)) | {
        "4.1": (False, True), "4.4": (False, True), "4.5": (True, True),
    }  # fmt: skip


@each("release", ["3.9", "4.0", "4.1", "4.4"])
def test_a_stale_epoch_is_refused_before_its_transaction_is_found_unknown(release: str) -> None:
    partition = of_release(release)
    partition.append(1, records=3, transactional=True)
    partition.end_transaction(1, epoch=1)
    stale, unknown = (
        partition.append(1, epoch=epoch, sequence=sequence, transactional=True, verified=False)
        for epoch, sequence in ((0, 3), (1, 0))
    )
    assert (said(stale), said(unknown)) == ("INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE")


def test_a_log_that_a_broker_cannot_load_is_reported() -> None:
    partition = of_release()
    partition.append(7, transactional=True)
    partition.restart(keep_snapshots=False)
    assert said(partition.append(7)) == "accepted"
    verdict = partition.restart(clean=False, keep_snapshots=False)
    assert (verdict.verdict, verdict.error) == ("refused", KafkaError.INVALID_TXN_STATE)
    assert "cannot load the log" in verdict.detail


# -- what Kafka's own tests say of whole logs and of expiry


def of_four_segments() -> SimulatedPartition:
    """Segments that begin at 0, 1, 2 and 3, with a batch in each."""
    partition = of_release("2.5")
    for _ in range(3):
        partition.append(7)
        partition.roll()
    partition.append(7)
    return partition


@pytest.mark.parametrize(("clean", "snapshots"), [(True, [2, 3, 4]), (False, [1, 2, 3, 4])])
def test_initialization_of_producer_snapshots_upgrade_path(clean: bool, snapshots: list[int]) -> None:
    partition = of_four_segments()
    partition.restart(clean=clean, keep_snapshots=False)
    assert partition.manager.snapshots.offsets == snapshots
    is_known = partition.append(7, sequence=40).error is KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert is_known is not clean


def test_segments_below_the_start_of_the_log_get_no_snapshots() -> None:
    partition = of_four_segments()
    partition.delete_records(3)
    partition.restart(keep_snapshots=False)
    assert partition.manager.snapshots.offsets == [3, 4]


def test_producer_id_map_truncate_to_with_no_snapshots() -> None:
    partition = of_release()
    for _ in range(3):
        partition.append(7)
    assert partition.truncate(2).detail == "loaded no snapshot; batches replayed: 2"
    assert said(partition.append(7, sequence=2)) == "accepted"


def test_producer_id_expiration_with_no_transactions() -> None:
    partition = of_release(expiry=Expiry(10_000, 500))
    partition.append(7)
    assert 7 in partition.manager.producers
    assert partition.wait(10_000).detail == "expired: 7"
    assert not partition.manager.producers
    partition.append(7)
    assert 7 in partition.manager.producers


def test_transaction_after_producer_id_expires() -> None:
    partition = of_release(expiry=Expiry(10_000, 500))
    partition.append(7, transactional=True)
    partition.end_transaction(7)
    assert partition.wait(10_000).detail == "expired: 7"
    partition.bump(7)
    assert [said(partition.append(7, transactional=True)), said(partition.end_transaction(7))] == ["accepted"] * 2
    assert partition.manager.producers[7].entry.producer_epoch == 1


def test_dynamic_producer_id_expiration_ms() -> None:
    partition = of_release(expiry=Expiry(10_000, 500))
    partition.append(7)
    partition.set_expiration(100_000)
    assert partition.wait(14_000).detail == "nothing expired"
    partition.set_expiration(100)
    assert partition.restart().detail.startswith("loaded the snapshot at 1")
