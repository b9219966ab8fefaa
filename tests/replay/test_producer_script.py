"""A script says what happens to one partition, and gets what a broker would answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from resnap.replay.leader.producer_script import Taken, run_script
from resnap.replay.leader.simulated_partition import SimulatedPartition
from resnap.replay.leader.validation_rules import RULES_2_5
from resnap.replay.producer_state import Expiry
from resnap.storage.errors import UsageError
from resnap.storage.kafka_errors import KafkaError
from tests.cases import each

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "expired-producer.jsonl"


def taken(*steps: dict[str, Any]) -> list[Taken]:
    return list(run_script(json.dumps(step) for step in steps))


def verdicts(*steps: dict[str, Any]) -> list[str]:
    return [one.verdict.error.name if one.verdict.error else one.verdict.verdict for one in taken(*steps)]


def append(**keys: object) -> dict[str, object]:
    return {"do": "append", "producerId": 7, **keys}


def test_the_verdicts_of_the_example_are_those_in_its_notes() -> None:
    steps = list(run_script(EXAMPLE.read_text(encoding="utf-8").splitlines()))
    assert {one.line: one.verdict.error.name for one in steps if one.verdict.error} == {
        7: "OUT_OF_ORDER_SEQUENCE_NUMBER",
        10: "OUT_OF_ORDER_SEQUENCE_NUMBER",
        13: "INVALID_PRODUCER_EPOCH",
        16: "INVALID_TXN_STATE",
        20: "TRANSACTION_COORDINATOR_FENCED",
    }
    assert [one.line for one in steps if one.verdict.verdict == "duplicate"] == [6]
    assert steps[-1].entry is not None
    assert steps[-1].entry.last_sequence == 99


def test_a_producer_counts_by_itself_unless_a_step_says_otherwise() -> None:
    steps = taken(append(records=3), append(records=2), append(sequence=5), append())
    assert [one.verdict.verdict for one in steps] == ["accepted"] * 4
    assert steps[-1].entry is not None
    assert steps[-1].entry.last_sequence == 6


def test_what_is_refused_does_not_count() -> None:
    assert verdicts(append(), append(sequence=9), append()) == [
        "accepted", "OUT_OF_ORDER_SEQUENCE_NUMBER", "accepted",
    ]  # fmt: skip


def test_the_periodic_check_runs_when_it_is_due_and_not_before() -> None:
    settings = {"do": "settings", "expirationMs": 1000, "checkIntervalMs": 600}
    waits = taken(settings, append(), *({"do": "wait", "ms": 500} for _ in range(4)))
    assert [one.verdict.detail for one in waits[1:]] == [
        "no check was due", "nothing expired", "expired: 7", "nothing expired",
    ]  # fmt: skip


def test_a_changed_expiration_counts_from_the_next_check_on() -> None:
    settings = {"do": "settings", "expirationMs": 100_000, "checkIntervalMs": 1000}
    steps = taken(settings, append(), {"do": "expiration", "expirationMs": 100}, {"do": "wait", "ms": 999},
                  {"do": "wait", "ms": 1})  # fmt: skip
    assert steps[-2].verdict.detail == "no check was due"
    assert steps[-1].verdict.detail == "expired: 7"


def test_after_an_unclean_stop_only_the_last_batch_is_recognised() -> None:
    restart = {"do": "restart", "clean": True}
    assert verdicts(append(), append(), restart, append(sequence=1), append(sequence=0)) == [
        "accepted", "accepted", "done", "duplicate", "OUT_OF_ORDER_SEQUENCE_NUMBER",
    ]  # fmt: skip


def test_an_unclean_stop_forgets_nothing_that_is_in_the_log() -> None:
    steps = taken(append(), {"do": "roll"}, append(), {"do": "restart", "clean": False}, append())
    assert steps[3].verdict.detail == "loaded the snapshot at 1; batches replayed: 1"
    assert steps[-1].verdict.verdict == "accepted"


def test_lost_snapshots_and_an_orderly_stop_make_every_producer_unknown() -> None:
    steps = taken(append(), {"do": "restart", "keepSnapshots": False}, append(sequence=40))
    assert steps[-1].verdict.verdict == "accepted"


def test_lost_snapshots_and_an_unclean_stop_make_the_broker_read_the_log() -> None:
    lost = {"do": "restart", "clean": False, "keepSnapshots": False}
    assert verdicts(append(), lost, append(sequence=40)) == ["accepted", "done", "OUT_OF_ORDER_SEQUENCE_NUMBER"]


def test_deleted_records_leave_their_producer_known() -> None:
    steps = taken(append(), {"do": "deleteRecords", "offset": 1}, append(sequence=40))
    assert steps[1].verdict.detail == "producers that are still known: 1"
    assert steps[-1].verdict.error is KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_truncation_takes_the_sequence_back() -> None:
    steps = taken(append(), append(), {"do": "truncate", "offset": 1}, append(sequence=1))
    assert steps[-1].verdict.verdict == "accepted"


def test_truncation_within_a_batch_takes_all_of_it_and_the_log_ends_there() -> None:
    """As ``LocalLog.truncateTo``: the end is the offset that was asked for, whatever batch it is in."""
    within_first, within_second = {"do": "truncate", "offset": 2}, {"do": "truncate", "offset": 4}
    for steps in (
        taken(append(records=3), within_first, append(sequence=0)),
        taken(append(records=3), append(records=3), within_second, append(sequence=3)),
    ):
        end = steps[-2].arguments["offset"]
        assert steps[-1].verdict.detail == f"offsets {end} to {end}"


def test_truncation_at_the_end_has_no_effect() -> None:
    steps = taken(append(records=3), {"do": "truncate", "offset": 3}, {"do": "roll"})
    assert "nothing to cut off" in steps[1].verdict.detail
    assert steps[2].verdict.detail == "snapshot at 3"


def test_a_clock_that_no_timestamp_can_hold_is_refused() -> None:
    half = {"do": "wait", "ms": 2**62 - 1}
    with pytest.raises(UsageError, match="no timestamp can be written"):
        taken(half, half, half)


def test_the_last_epoch_has_no_next_one_for_a_marker() -> None:
    settings = {"do": "settings", "kafka": "4.1"}
    with pytest.raises(UsageError, match="has used up its epochs"):
        taken(settings, append(epoch=32767, transactional=True), {"do": "end", "producerId": 7})


def test_a_transaction_that_its_coordinator_knows_nothing_of_is_refused_from_3_6_on() -> None:
    hidden = append(transactional=True, verified=False)
    assert verdicts({"do": "settings", "kafka": "3.5"}, hidden) == ["accepted"]
    assert verdicts({"do": "settings", "kafka": "3.6"}, hidden) == ["INVALID_TXN_STATE"]
    assert verdicts({"do": "settings", "kafka": "3.6", "verification": False}, hidden) == ["accepted"]


@pytest.mark.parametrize(("release", "epoch"), [("3.9", 0), ("4.1", 1)])
def test_from_4_0_on_the_end_of_a_transaction_brings_the_next_epoch(release: str, epoch: int) -> None:
    transaction = [append(transactional=True), {"do": "end", "producerId": 7}]
    steps = taken({"do": "settings", "kafka": release}, *transaction, *transaction)
    assert [one.verdict.verdict for one in steps] == ["accepted"] * 4
    assert steps[1].entry is not None
    assert steps[1].entry.producer_epoch == epoch


def test_from_4_0_on_a_late_batch_of_the_last_transaction_is_refused() -> None:
    late = append(epoch=0, sequence=1, transactional=True)
    steps = [{"do": "settings", "kafka": "4.1"}, append(transactional=True), {"do": "end", "producerId": 7}, late]
    assert verdicts(*steps)[-1] == "INVALID_PRODUCER_EPOCH"


@each(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[]", 'expected an object with the key "do"'),
        ('{"do": "jump"}', 'unknown step "jump"'),
        ('{"do": "append"}', 'append lacks "producerId"'),
        ('{"do": "append", "producerId": 7, "sequense": 1}', 'append has no key "sequense"'),
        ('{"do": "append", "producerId": -7}', "expected a whole number from 0"),
        ('{"do": "append", "producerId": true}', "expected a whole number"),
        ('{"do": "append", "producerId": 7, "transactional": 1}', "expected true or false"),
        ('{"do": "append", "producerId": 7, "origin": "mars"}', "expected one of client"),
        ('{"do": "expire", "now": 1}', "its keys are none"),
        ('{"do": "truncate", "offset": 5}', "offset 5 is not within 0 and 0"),
        ('{"do": "settings", "kafka": "2.4"}', "older than 2.5"),
        ('{"do": "settings", "kafka": "4.6"}', "the newest known release is 4.5"),
        pytest.param('{"do": "append", "producerId": ' + "[" * 100_000, "nested too deeply", id="deep"),
        ('{"do": "append", "producerId": 7, "producerId": 8}', 'the key "producerId" is given twice'),
        ('{"do": "settings", "kafka": "new"}', 'a release such as "3.9"'),
        ('{"do": "settings", "expirationMs": 0}', "expected a whole number from 1"),
    ],
)
def test_an_invalid_step_is_reported_with_its_line(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        list(run_script(["# first", "", line], "script.jsonl"))
    assert str(caught.value).startswith("script.jsonl, line 3: ")
    assert said in str(caught.value)


def test_settings_come_first() -> None:
    with pytest.raises(UsageError, match="settings are allowed only as the first step"):
        taken(append(), {"do": "settings", "kafka": "3.9"})


def test_a_producer_without_epochs_left_cannot_be_bumped() -> None:
    with pytest.raises(UsageError, match="has used up its epochs"):
        taken(append(epoch=32766), {"do": "bump", "producerId": 7})


def test_a_log_that_a_broker_cannot_load_is_reported() -> None:
    forgets = {"do": "restart", "keepSnapshots": False}
    reads = {"do": "restart", "clean": False, "keepSnapshots": False}
    steps = taken(append(transactional=True), forgets, append(), reads)
    assert steps[2].verdict.verdict == "accepted"
    assert (steps[3].verdict.verdict, steps[3].verdict.error) == ("refused", KafkaError.INVALID_TXN_STATE)
    assert "cannot load the log" in steps[3].verdict.detail


# -- what Kafka's own tests say of whole logs and of expiry


def of_four_segments() -> SimulatedPartition:
    """Segments that begin at 0, 1, 2 and 3, with a batch in each."""
    partition = SimulatedPartition(RULES_2_5, Expiry(1_000_000, 1_000), now_ms=0)
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
    steps = taken(append(), append(), append(), {"do": "truncate", "offset": 2}, append(sequence=2))
    assert steps[3].verdict.detail == "loaded no snapshot; batches replayed: 2"
    assert steps[-1].verdict.verdict == "accepted"


def test_producer_id_expiration_with_no_transactions() -> None:
    settings = {"do": "settings", "expirationMs": 10_000, "checkIntervalMs": 500}
    steps = taken(settings, append(), {"do": "wait", "ms": 10_000}, append())
    assert [one.entry is not None for one in steps] == [True, False, True]
    assert steps[1].verdict.detail == "expired: 7"


def test_transaction_after_producer_id_expires() -> None:
    transaction = [append(transactional=True), {"do": "end", "producerId": 7}]
    settings = {"do": "settings", "expirationMs": 10_000, "checkIntervalMs": 500}
    steps = taken(settings, *transaction, {"do": "wait", "ms": 10_000}, {"do": "bump", "producerId": 7}, *transaction)
    assert steps[2].verdict.detail == "expired: 7"
    assert [one.verdict.verdict for one in steps[-2:]] == ["accepted", "accepted"]
    assert steps[-1].entry is not None
    assert steps[-1].entry.producer_epoch == 1


def test_dynamic_producer_id_expiration_ms() -> None:
    settings = {"do": "settings", "expirationMs": 10_000, "checkIntervalMs": 500}
    raised, lowered = ({"do": "expiration", "expirationMs": ms} for ms in (100_000, 100))
    steps = taken(settings, append(), raised, {"do": "wait", "ms": 14_000}, lowered, {"do": "restart"})
    assert steps[2].verdict.detail == "nothing expired"
    assert steps[-1].verdict.detail.startswith("loaded the snapshot at 1")
