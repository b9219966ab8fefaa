"""``resnap explain``: the batches it names make the entry that the broker wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from resnap.scheduler.verbs.explain import transaction_text
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import ProducerEntry, load_snapshot
from resnap.storage.words import instant
from resnap.tiering.controller.transactions.metadata import TransactionState
from resnap.tiering.controller.transactions.open_transaction import OpenTransaction
from resnap.tiering.controller.transactions.state_log import read_transaction_states
from tests.logs.log_writer import PartitionWriter
from tests.logs.transaction_log import NOW_MS, step, write_segment
from tests.scheduler.files import bases, file_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.tiering.controller.transactions.state_log import TransactionLogValue
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap


@pytest.mark.parametrize("partition", ["payments-0", "payments-1", "orders-0", "dash-ed.topic_1-0"])
def test_the_batches_in_their_roles_make_the_brokers_entries(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], partition: str
) -> None:
    fixture = fixture_set("kafka-2.7.2-then-3.9.1")
    offset = bases(fixture.data / partition)[-2]
    ran = command("explain", fixture.data, partition, offset, "--output", "json")
    assert ran.code == 0
    roles: dict[int, dict[str, Any]] = {}
    for row in ran.document["batches"]:
        roles.setdefault(row["producerId"], {})[row["role"]] = row
    entries = load_snapshot(file_at(fixture.expected / partition, offset, "snapshot"))
    assert roles.keys() == entries.keys()
    assert ran.document["summary"] == {"producers": len(entries)}
    for pid, entry in entries.items():
        batch, marker = roles[pid].get("last-batch"), roles[pid].get("last-marker")
        opened = roles[pid].get("transaction-start")
        assert ((batch["lastSequence"], batch["lastOffset"]) if batch else (-1, -1)) == entry[2:4]
        assert (opened["baseOffset"] if opened else -1) == entry.current_txn_first_offset
        assert (marker["coordinatorEpoch"] if marker else -1) == entry.coordinator_epoch
        last = max((one for one in (batch, marker) if one), key=lambda one: one["lastOffset"])
        assert (last["producerEpoch"], last["timestamp"]) == (entry.producer_epoch, entry.timestamp)


def test_an_unknown_partition_is_answered_with_those_of_its_topic_first(command: Resnap, broker_log: Path) -> None:
    ran = command("explain", broker_log, "payments-7", 0)
    assert ran.code == 2
    assert "hint: partitions there: payments-0, payments-1, compacted-0, " in ran.err
    assert ran.err.endswith(" and 1 more\n")


def test_people_see_times_and_programs_milliseconds(command: Resnap, broker_log: Path) -> None:
    rows = command("explain", broker_log, "payments-0", 985, "--output", "json").document["batches"]
    said = command("explain", broker_log, "payments-0", 985).out
    for row in rows:
        assert isinstance(row["timestamp"], int)
        assert str(row["timestamp"]) not in said
        assert instant(row["timestamp"]) in said


def test_one_producer_may_be_asked_for(command: Resnap, broker_log: Path) -> None:
    every = command("explain", broker_log, "payments-0", 985, "--output", "json").document["batches"]
    pid = every[0]["producerId"]
    one = command("explain", broker_log, "payments-0", 985, "--producer-id", pid, "--output", "json").document
    assert one["batches"] == [row for row in every if row["producerId"] == pid]
    nobody = command("explain", broker_log, "payments-0", 985, "--producer-id", 10**9, "--output", "json")
    assert (nobody.code, nobody.document) == (0, {"batches": [], "summary": {"producers": 0}})
    said = command("explain", broker_log, "payments-0", 985, "--producer-id", 10**9).out
    assert "Producer 1000000000 has no batch below offset 985 in the existing segments of payments-0" in said


def test_only_what_lies_below_the_offset_counts(command: Resnap, broker_log: Path) -> None:
    for offset in (0, 1, 500):
        rows = command("explain", broker_log / "payments-0", "payments-0", offset, "--output", "json").document
        assert all(row["baseOffset"] < offset for row in rows["batches"])
        assert bool(rows["batches"]) == (offset > 1) or offset == 1


def test_an_offset_above_the_log_end_is_refused(command: Resnap, broker_log: Path) -> None:
    above = command("explain", broker_log, "payments-0", 10**9)
    assert (above.code, above.out, "payments-0 ends at offset " in above.err) == (2, "", True)
    end = int(above.err.partition("ends at offset ")[2].partition(":")[0])
    assert f"give an offset up to {end}" in above.err
    assert command("explain", broker_log, "payments-0", end + 1).code == 2
    at_end = command("explain", broker_log, "payments-0", end)
    assert (at_end.code, at_end.err) == (0, "")


@pytest.mark.parametrize(
    ("partition", "offset", "said"),
    [
        ("payments-7", "1", "partitions there: "),
        ("payments", "1", "is not a partition"),
        ("payments-0", "-1", "offset"),
        ("payments-0", "many", "offset"),
        ("paymentz-0", "1", "paymentz-0 is not in"),
    ],
)
def test_an_invalid_partition_or_offset_is_a_usage_error(
    command: Resnap, broker_log: Path, partition: str, offset: str, said: str
) -> None:
    ran = command("explain", broker_log, partition, "--", offset)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err.lower() or said in ran.err
    assert "hint: " in ran.err


def test_damage_is_reported_with_file_and_position(command: Resnap, broker_log: Path) -> None:
    path = file_at(broker_log / "payments-0", 0, "log")
    path.write_bytes(path.read_bytes()[:100] + bytes(20))
    ran = command("explain", broker_log, "payments-0", 985)
    assert ran.code == 1
    assert str(path) in ran.err
    assert "at byte" in ran.err


def test_a_transaction_that_stays_open_has_its_holder_and_the_command_that_ends_it(
    command: Resnap, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with PartitionWriter(data / "payments-0") as log:
        for producer_id in (1, 2, 3, 4):
            log.append_data(timestamps=NOW_MS, producer_id=producer_id, producer_epoch=0, base_sequence=0,
                            transactional=True)  # fmt: skip
        log.append_marker(timestamp=NOW_MS, producer_id=4, producer_epoch=0, coordinator_epoch=0, commit=True)
    payments, other = TopicPartition("payments", 0), TopicPartition("payments", 1)
    going_on = step(1, TransactionState.ONGOING, payments)
    write_segment(data, 0, [(0, "ledger", going_on), (1, "audit", step(2, TransactionState.ONGOING, other))])
    explain = ("explain", data, "payments-0", 4)
    rows = [row for row in command(*explain, "--output", "json").document["batches"] if "openTransaction" in row]
    found = {row["openTransaction"]["producerId"]: row["openTransaction"] for row in rows}
    assert {number: (one["transactionalId"], one["hanging"]) for number, one in found.items()} == {
        1: ("ledger", False), 2: ("audit", True), 3: (None, None),
    }  # fmt: skip
    abort = "kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic payments --partition 0 --start-offset"
    assert [found[number]["abortCommand"] for number in (1, 2, 3)] == [None, f"{abort} 1", None]
    said = command(*explain).out
    assert "transactional id 'ledger' holds it, and is Ongoing since 2023-11-14T22:13:20.000Z; its coordinator" in said
    assert "It hangs, and was not committed: transactional id 'audit', which held it, is Ongoing" in said
    assert "describe --transactional-id audit still shows Ongoing in epoch 0, end it: " in said
    assert "has this producer; --bootstrap-server gets it from the cluster. Find out before any abort: " in said
    assert f"Only if it was not committed, and no replica has its marker, end it: {abort} 2" in said

    path = write_segment(data, 0, [(0, "ledger", going_on)])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    damaged = command(*explain)
    assert (damaged.code, "who holds transactions is not known" in damaged.err) == (0, True)


def test_an_abort_is_advised_only_where_the_coordinator_has_not_committed(command: Resnap, tmp_path: Path) -> None:
    data, payments = tmp_path / "data", TopicPartition("payments", 0)
    begun, ended, done = TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT

    def committed(producer_id: int, at_ms: int, **more: int) -> list[TransactionLogValue]:
        at = {"transaction_last_update_timestamp_ms": at_ms, "transaction_start_timestamp_ms": at_ms}
        last = step(producer_id, done, **(at | more))
        return [step(producer_id, begun, payments, **at), step(producer_id, ended, payments, **(at | more)), last]

    v2 = {"producer_epoch": 1, "client_transaction_version": 2}
    aborted = step(5, TransactionState.PREPARE_ABORT, payments), step(5, TransactionState.COMPLETE_ABORT)
    whole = [
        *committed(1, NOW_MS),
        *committed(2, NOW_MS),
        *committed(3, NOW_MS), *committed(3, NOW_MS + 9),
        *committed(4, NOW_MS, **v2),
        step(5, begun, payments), *aborted,
        *committed(6, NOW_MS), step(6, begun, payments, producer_epoch=1),
        step(7, begun, payments), step(7, ended, payments),
        *committed(8, NOW_MS), *committed(8, NOW_MS + 9),
        *committed(9, NOW_MS), None,
    ]  # fmt: skip
    write_segment(data, 0, [(at, "9" if one is None else f"{one.producer_id}", one) for at, one in enumerate(whole)])
    compacted = step(11, done), step(12, TransactionState.EMPTY)
    write_segment(data, 5, [(at, f"{one.producer_id}", one) for at, one in enumerate(compacted, 5)], number=1)
    markers = {2: [NOW_MS + 1], 3: [NOW_MS + 1], 8: [NOW_MS + 1, NOW_MS + 1]}
    with PartitionWriter(data / "payments-0") as log:
        for producer_id in range(1, 13):
            for sequence, at_ms in enumerate([*markers.get(producer_id, []), None]):
                log.append_data(timestamps=NOW_MS, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
                                transactional=True)  # fmt: skip
                if at_ms is not None:
                    log.append_marker(timestamp=at_ms, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0,
                                      commit=True)  # fmt: skip
    end = 12 + 2 * sum(map(len, markers.values()))
    ran = command("explain", data, "payments-0", end, "--output", "json")
    found = {row["producerId"]: row["openTransaction"] for row in ran.document["batches"] if "openTransaction" in row}
    assert {producer_id: one["ending"] for producer_id, one in found.items()} == {
        1: "committed",
        2: "hanging",  # what came late, after the marker
        3: "committed",
        4: "committed",
        5: "hanging",
        6: "committed",
        7: "going-on",
        8: "unknown",  # one marker was written twice, perhaps
        9: "unknown",  # its coordinator has forgotten it
        10: "unknown",
        11: "unknown",  # compacted: which partitions were in it is not known
        12: "hanging",  # no transaction of this epoch has ended
    }
    assert {producer_id for producer_id, one in found.items() if one["abortCommand"]} == {2, 5, 12}
    said = {line.partition(" (epoch")[0]: line for line in command("explain", data, "payments-0", end).out.splitlines()}
    for producer_id in (1, 3, 4, 6):
        line = said[f"payments-0: producer {producer_id}"]
        assert ("marker is missing here" in line, " abort --topic" in line) == (True, False)


def test_commands_about_transactions_can_be_pasted_whatever_the_id_and_the_connection(
    command: Resnap, tmp_path: Path
) -> None:
    data, payments = tmp_path / "data", TopicPartition("payments", 0)
    ids = {1: "a b; $(date)", 2: "it's"}
    with PartitionWriter(data / "payments-0") as log:
        for producer_id in ids:
            log.append_data(timestamps=NOW_MS, producer_id=producer_id, producer_epoch=0, base_sequence=0,
                            transactional=True)  # fmt: skip
    other = TopicPartition("payments", 1)
    done = step(2, TransactionState.PREPARE_COMMIT, payments), step(2, TransactionState.COMPLETE_COMMIT)
    write_segment(data, 0, [(0, ids[1], step(1, TransactionState.ONGOING, other)), (1, ids[2], done[0]),
                            (2, ids[2], done[1])])  # fmt: skip
    said = command("explain", data, "payments-0", 2).out.splitlines()
    hanging, committed = (one for one in said if "transaction open" in one)
    tool = "kafka-transactions.sh --bootstrap-server HOST:PORT"
    assert f"If {tool} describe --transactional-id 'a b; $(date)' still shows" in hanging
    assert "unless `resnap replicas` names it as one that lost state" in committed
    assert "run `resnap replicas` before it may lead" in committed

    states = read_transaction_states([data], steps_of=ids)
    entry = ProducerEntry(
        producer_id=1, producer_epoch=0, last_sequence=0, last_offset=0, offset_delta=0, timestamp=NOW_MS,
        coordinator_epoch=0, current_txn_first_offset=0,
    )  # fmt: skip
    told = transaction_text(
        OpenTransaction.of_entry(payments, entry, states),
        ("--bootstrap-server", "b:9093", "--command-config", "client properties"),
    )
    assert (
        told.count("kafka-transactions.sh")
        == told.count("kafka-transactions.sh --bootstrap-server b:9093 --command-config 'client properties' ")
        == 2
    )
