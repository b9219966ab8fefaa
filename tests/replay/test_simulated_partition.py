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


def test_after_a_restart_only_the_last_batch_is_recognised() -> None:
    partition = of_release()
    verdicts = partition.append(7), partition.append(7), partition.restart()
    assert [said(one) for one in (*verdicts, partition.append(7, sequence=1), partition.append(7, sequence=0))] == [
        "accepted", "accepted", "done", "duplicate", "OUT_OF_ORDER_SEQUENCE_NUMBER",
    ]  # fmt: skip


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
