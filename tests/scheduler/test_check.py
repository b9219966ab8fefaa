"""What ``resnap check`` says of logs that real brokers wrote; that brokers do so is seen in ``tests/kafka``."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resnap.replay.evidence import segment_spans
from resnap.scheduler.verbs.scan import facts_in
from resnap.storage.errors import StoreAccessError
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import ProducerEntry, snapshot_bytes
from resnap.storage.sources.files import PLAIN
from resnap.tiering import check
from resnap.tiering.controller.transactions.metadata import TransactionState as Step
from resnap.tiering.judging.broker_blockers import broker_blockers
from resnap.tiering.judging.inventory import take_inventory
from resnap.tiering.judging.readiness import Verdict, day_of, judge, judge_partition
from tests.cases import each
from tests.kafka.brokers import free_port
from tests.logs.transaction_log import step, write_segment
from tests.scheduler.files import bases, file_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

SETS = ("kafka-2.7.2", "kafka-2.7.2-killed", "kafka-2.7.2-then-3.9.1", "kafka-3.9.1-kraft")
TURNED_ON = (
    "Next: turn tiering on:\n  kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics"
    " --add-config remote.storage.enable=true --entity-name {}\n"
)
TIERING = (
    "remote.log.storage.system.enable=true\nremote.log.storage.manager.class.name=a.Plugin\n"
    "remote.log.metadata.manager.listener.name=PLAINTEXT\n"
)


@pytest.mark.parametrize("name", SETS)
def test_the_verdict_of_a_topic_follows_from_those_of_its_partitions_and_is_the_same_in_scan(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], name: str
) -> None:
    data = fixture_set(name).data
    scanned = command("scan", data, "--output", "json").document["partitions"]
    ran = command("check", data, "--output", "json")
    wanted: dict[str, list[str]] = {}
    stops: dict[str, set[str]] = {}
    for row in scanned:
        answer = judge(facts_in(row), ())
        assert row["verdict"] == answer.verdict
        wanted.setdefault(row["topic"], []).append(answer.verdict.value)
        stops.setdefault(row["topic"], set()).update({answer.reason} if answer.reason else set())
    rows = {row["topic"]: row for row in ran.document["topics"]}
    assert rows.keys() == {topic for topic in wanted if not topic.startswith("__")}
    for topic, row in rows.items():
        [verdict] = {"never"} & set(wanted[topic]) or {"blocked"} & set(wanted[topic]) or {"ready"}
        assert row["verdict"] == verdict
        assert row["verdicts"] == {one: wanted[topic].count(one) for one in sorted(set(wanted[topic]))}
        assert stops[topic] <= {blocker["reason"] for blocker in row["blockers"]}
        assert all({"partition", "reason", "detail", "hint"} <= blocker.keys() for blocker in row["blockers"])
        assert row["tierableBytes"] + row["blockedBytes"] >= row["freeableBytes"]
    summary = ran.document["summary"]
    verdicts = [row["verdict"] for row in rows.values()]
    assert {one.value: summary[one] for one in Verdict} == {one.value: verdicts.count(one) for one in Verdict}
    assert (ran.code, summary["verdict"]) == ((4, "blocked") if "blocked" in verdicts else (0, "ready"))


def test_what_is_not_given_is_named_and_changes_no_verdict(command: Resnap, ready_log: Path, tmp_path: Path) -> None:
    ran = command("check", ready_log, "--output", "json")
    [row] = ran.document["topics"]
    assert (ran.code, row["verdict"], row["blockers"]) == (0, "ready", [])
    assert {"broker-settings", "topic-settings"} <= set(row["notChecked"])
    properties = tmp_path / "server.properties"
    properties.write_text(TIERING)
    ran = command("check", ready_log, "--server-properties", properties, "--output", "json")
    [row] = ran.document["topics"]
    assert (ran.code, row["verdict"]) == (0, "ready")
    assert "broker-settings" not in row["notChecked"]
    assert row["tierableBytes"] == row["freeableBytes"] > 0


@each(
    ("lines", "reason", "named"),
    [
        ("log.retention.ms=-1\n", "tiering-disabled", "remote.log.storage.system.enable"),
        (TIERING.replace("true", "false"), "tiering-disabled", "remote.log.storage.system.enable"),
        (TIERING.replace("a.Plugin", ""), "plugin-not-set", "remote.log.storage.manager.class.name"),
    ],
)
def test_a_broker_that_is_set_to_tier_nothing_blocks_every_topic(
    command: Resnap, ready_log: Path, *, lines: str, reason: str, named: str
) -> None:
    properties = ready_log.parent / "server.properties"
    properties.write_text(lines)
    ran = command("check", ready_log, "--server-properties", properties, "--output", "json")
    [row] = ran.document["topics"]
    [blocker] = row["blockers"]
    assert (ran.code, row["verdict"], row["tierableBytes"]) == (4, "blocked", 0)
    assert (blocker["partition"], blocker["reason"]) == (None, reason)
    assert named in blocker["detail"]
    assert blocker["hint"]


def test_what_could_not_be_read_is_unknown_and_what_is_blocked_stays_blocked(
    command: Resnap, ready_log: Path, broker_log: Path
) -> None:
    (ready_log / "payments-0" / "partition.metadata").write_text("nonsense")
    ran = command("check", ready_log, "--output", "json")
    [row] = ran.document["topics"]
    assert (ran.code, row["verdict"], row["blockers"]) == (3, "unknown", [])
    assert "partition.metadata" in row["unknown"][0]
    said = command("check", ready_log)
    assert "partition.metadata" in f"{said.out}{said.err}"
    nobody = f"127.0.0.1:{free_port()}"
    ran = command("check", broker_log, "--bootstrap-server", nobody, "--output", "json")
    rows = {row["topic"]: row["verdict"] for row in ran.document["topics"]}
    assert (ran.code, rows["payments"], rows["orders"]) == (4, "blocked", "unknown")
    assert nobody in ran.error["message"]
    assert command("check", broker_log, "--topic", "orders", "--bootstrap-server", nobody).code == 3
    said = command("check", broker_log, "--bootstrap-server", nobody).out
    assert (said.count("not known: "), "--bootstrap-server HOST:PORT checks" in said) == (1, False)


def test_server_properties_of_another_node_are_named(command: Resnap, ready_log: Path) -> None:
    properties = ready_log.with_name("server.properties")
    properties.write_text(f"node.id=77\n{TIERING}")
    ran = command("check", ready_log, "--server-properties", properties)
    assert (ran.code, f"{properties} is of node 77, the log dirs are of" in ran.err) == (0, True)


def test_a_transaction_that_others_have_outlived_hangs(
    command: Resnap, ready_log: Path, opened: Callable[[], list[str]]
) -> None:
    partition = ready_log / "payments-0"
    third = bases(partition)[2]

    def entry(producer_id: int, timestamp: int, first_offset: int) -> ProducerEntry:
        return ProducerEntry(
            producer_id=producer_id, producer_epoch=0, last_sequence=0, last_offset=third, offset_delta=0,
            timestamp=timestamp, coordinator_epoch=-1, current_txn_first_offset=first_offset,
        )  # fmt: skip

    newest = file_at(partition, max(bases(partition, "snapshot")), "snapshot")
    for later_ms, reasons in ((900_001, ["above-last-stable-offset"]), (900_000, [])):
        newest.write_bytes(snapshot_bytes([entry(1, 1_000, third), entry(2, 1_000 + later_ms, -1)]))
        [row] = command("check", ready_log, "--output", "json").document["topics"]
        assert [one["reason"] for one in row["blockers"]] == reasons
    # The check of what hangs reads them once, and once more for brokers' metadata; that of the other once.
    assert opened().count(str(ready_log / "replication-offset-checkpoint")) == 2 + 1
    newest.write_bytes(snapshot_bytes([entry(1, 1_000, third), entry(2, 61_000, -1)]))
    [row] = command("check", ready_log, "--transaction-max-timeout-ms", "1000", "--output", "json").document["topics"]
    [blocker] = row["blockers"]
    assert blocker["baseOffset"] == third
    assert 0 < row["tierableBytes"] < row["freeableBytes"]
    states = [step(1, one, TopicPartition("payments", 0)) for one in (Step.ONGOING, Step.PREPARE_COMMIT)]
    steps = enumerate([*states, step(1, Step.COMPLETE_COMMIT)])
    write_segment(ready_log, 0, [(at, "ledger", one) for at, one in steps])
    said = command("check", ready_log, "--topic", "payments", "--transaction-max-timeout-ms", "1000").out
    assert "its coordinator has committed it, and its marker is missing here" in said
    assert ("Do not abort it" in said, " abort --topic" in said) == (True, False)


def test_a_replica_that_looks_as_if_it_had_lost_its_state_is_blocked(command: Resnap, ready_log: Path) -> None:
    partition = ready_log / "payments-0"
    first, second, *_ = bases(partition)
    for path in partition.glob(f"{first:020d}.*"):
        path.unlink()
    file_at(partition, second, "snapshot").write_bytes(snapshot_bytes([]))
    (ready_log / "log-start-offset-checkpoint").write_text("0\n1\npayments 0 0\n")
    ran = command("check", ready_log, "--output", "json")
    [row] = ran.document["topics"]
    [blocker] = row["blockers"]
    assert (ran.code, row["verdict"], blocker["reason"]) == (4, "blocked", "lost-producer-state")
    assert "keep it from leading" in blocker["hint"]
    told = command("check", ready_log).out
    assert "lost-producer-state: payments-0: " in told
    assert "remote.storage.enable" not in told
    scanned = command("scan", ready_log, "--exit-code", "--output", "json")
    [seen] = scanned.document["partitions"]
    assert (scanned.code, seen["lost"]) == (4, 0)
    answer = judge(facts_in(seen), ())
    assert (answer.verdict, answer.reason, answer.next_step) == (
        "blocked", "lost-producer-state", blocker["hint"],
    )  # fmt: skip


def test_a_table_names_the_blockers_what_was_not_checked_and_the_next_command(
    command: Resnap, broker_log: Path, ready_log: Path
) -> None:
    ran = command("check", broker_log)
    assert ran.out.splitlines()[0].split()[:2] == ["TOPIC", "VERDICT"]
    order = [line.split()[0] for line in ran.out.splitlines()[1:6]]
    assert order == ["dash-ed.topic_1", "legacy", "payments", "orders", "compacted"], "the worst first"
    assert "missing-snapshot: " in ran.out
    assert "Not checked: broker-settings" in ran.out
    assert "1 of 5 topics can be turned on now: orders.\n3 blocked: dash-ed.topic_1, legacy, payments.\n1" in ran.out
    assert f"Then: `resnap regenerate {broker_log} --into DIR`, stop the broker" in ran.out
    assert f"(start a killed one first), then `resnap install DIR {broker_log}`." in ran.out
    file_at(broker_log / "payments-0", bases(broker_log / "payments-0")[0], "log").unlink()
    broken = command("check", broker_log).out
    assert "Then: payments-0: take the partition from the log dir of another replica." in broken
    assert "`resnap regenerate /" not in broken, "a log that has lost records is not to be tiered"
    assert TURNED_ON.format("payments") in command("check", ready_log).out


def test_what_is_in_remote_storage_already_is_not_to_be_turned_on(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    tiered = fixture_set("kafka-3.9.1-tiered")
    remote = ("--remote", tiered.remote.as_uri())
    ran = command("check", tiered.data, *remote)
    assert (ran.code, "kafka-configs.sh" in ran.out, "\nNext: `resnap check " in ran.out) == (0, False, True), ran.out
    assert f"{tiered.remote.as_uri()} holds segments of payments already" in ran.out
    assert TURNED_ON.format("payments") in command("check", tiered.data).out


def test_no_segment_is_read_but_for_its_first_and_last_headers(
    command: Resnap, broker_log: Path, opened: Callable[[], list[str]]
) -> None:
    assert command("check", broker_log).code == 4
    logs = Counter(Path(path).parent for path in opened() if path.endswith(".log"))
    del logs[broker_log / "legacy-0"]
    assert logs
    for partition, number in logs.items():
        assert (partition, number) == (partition, len(bases(partition)) - 1), "each closed one once"


def test_what_is_above_the_high_watermark_blocks_too_since_it_will_pass(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = shutil.copytree(fixture_set("kafka-2.7.2").data, tmp_path / "data")
    wanted = command("check", data, "--topic", "payments", "--output", "json").document["topics"]
    assert wanted[0]["verdict"] == "blocked"
    flags = ("--partition", "payments-0", "--high-watermark", "5")
    assert command("check", data, *flags, "--output", "json").code == 4
    (data / "replication-offset-checkpoint").write_text("0\n1\npayments 0 0\n")
    ran = command("check", data, "--topic", "payments", "--output", "json")
    [row] = ran.document["topics"]
    assert (ran.code, row["verdict"], row["tierableBytes"]) == (4, "blocked", wanted[0]["tierableBytes"])


def test_what_no_broker_ever_tiers_is_not_counted_as_what_could_be_freed(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    data = fixture_set("kafka-2.7.2").data
    [row] = command("check", data, "--topic", "legacy", "--output", "json").document["topics"]
    epochs_from = int((data / "legacy-0" / "leader-epoch-checkpoint").read_text().split()[-1])
    closed = sorted((data / "legacy-0").glob("*.log"))[:-1]
    assert row["blockedBytes"] == sum(path.stat().st_size for path in closed)
    assert row["freeableBytes"] == sum(path.stat().st_size for path in closed if int(path.stem) >= epochs_from) > 0


def test_nothing_is_to_be_rebuilt_for_a_topic_that_was_written_before_0_11_alone(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    partition = shutil.copytree(fixture_set("kafka-2.7.2").data / "legacy-0", tmp_path / "data" / "legacy-0")
    epochs_from = int((partition / "leader-epoch-checkpoint").read_text().split()[-1])
    straddling = max(base for base in bases(partition) if base < epochs_from)
    for base in (base for base in bases(partition) if base >= straddling):
        for path in partition.glob(f"{base:020d}.*"):
            path.unlink()
    (partition / "leader-epoch-checkpoint").write_text("0\n0\n")
    ran = command("check", partition.parent, "--output", "json")
    [row] = ran.document["topics"]
    [blocker] = row["blockers"]
    assert (ran.code, blocker["reason"], blocker["unblockedBy"]) == (4, "leader-epochs-unknown", "retention")
    assert "Next: legacy-0: no broker can tier" in command("check", partition.parent).out


def test_an_unknown_high_watermark_is_not_checked_and_blocks_nothing(command: Resnap, ready_log: Path) -> None:
    (ready_log / "replication-offset-checkpoint").unlink()
    file_at(ready_log / "payments-0", bases(ready_log / "payments-0")[1], "snapshot").unlink()
    ran = command("check", ready_log, "--output", "json")
    [row] = ran.document["topics"]
    assert (ran.code, {blocker["reason"] for blocker in row["blockers"]}) == (4, {"missing-snapshot"})
    assert (row["verdicts"], "high-watermark" in row["notChecked"]) == ({"blocked": 1}, True)
    shipped = command("tier", ready_log, "--to", (ready_log.parent / "store").as_uri(), "--engine", "local")
    assert "Nothing to ship: no segment is eligible." in shipped.out
    assert "  -> give --high-watermark" in shipped.out


def test_a_check_that_was_cut_short_calls_nothing_ready(
    command: Resnap, ready_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ready_log / "payments-0", ready_log / "zebra-0")
    (ready_log / "zebra-0" / "partition.metadata").unlink(missing_ok=True)
    judged = check._checked_topic

    def until_zebra(name: str, *rest: Any) -> Any:
        if name == "zebra":
            raise StoreAccessError("the store has gone")
        return judged(name, *rest)

    monkeypatch.setattr(check, "_checked_topic", until_zebra)
    ran = command("check", ready_log)
    assert "Not known: the run ended before every topic was checked." in ran.out
    assert "kafka-configs.sh" not in ran.out
    assert "\nNext: repair what could not be read" in ran.out


def test_topics_that_brokers_never_tier_change_no_exit_code_and_are_listed_where_named(
    command: Resnap, ready_log: Path
) -> None:
    shutil.copytree(ready_log / "payments-0", ready_log / "__remote_log_metadata-0")
    (ready_log / "__remote_log_metadata-0" / "partition.metadata").unlink(missing_ok=True)
    assert [row["topic"] for row in command("check", ready_log, "--output", "json").document["topics"]] == ["payments"]
    alone = command("check", ready_log / "__remote_log_metadata-0")
    assert (alone.code, "There is no topic that Kafka tiers.\n" in alone.out) == (0, True)
    ran = command("check", ready_log, "--topic", "__*", "--output", "json")
    [row] = ran.document["topics"]
    [blocker] = row["blockers"]
    assert (ran.code, row["topic"], row["verdicts"]) == (0, "__remote_log_metadata", {"never": 1})
    assert (blocker["reason"], row["freeableBytes"]) == ("internal-topic", 0)


def test_a_metadata_log_that_is_named_must_be_there_and_one_that_is_found_is_not_passed_over_in_silence(
    command: Resnap, ready_log: Path
) -> None:
    """A topic that it calls compacted, and that was not compacted yet, would be ready."""
    ran = command("check", ready_log, "--metadata-log", ready_log / "mistyped")
    assert (ran.code, ran.out) == (2, "")
    assert f"{ready_log / 'mistyped'}: no such directory" in ran.err
    (ready_log / "__cluster_metadata-0").mkdir()
    (ready_log / "__cluster_metadata-0" / f"{0:020d}.log").write_bytes(b"\1" * 100)
    ran = command("check", ready_log)
    assert "the metadata log is not used" in ran.err


def test_where_all_that_is_possible_is_done_the_ready_topics_are_named_and_the_exit_code_is_0(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    staged = tmp_path / "staged"
    assert command("regenerate", broker_log, "--into", staged, "--engine", "local").code == 0
    assert command("install", staged, broker_log).code == 0
    ran = command("check", broker_log)
    assert ran.code == 4, "of legacy"
    assert "3 of 5 topics can be turned on now: dash-ed.topic_1, orders, payments.\n1 blocked: legacy.\n" in ran.out
    assert "Next: turn tiering on:\n  for topic in dash-ed.topic_1 orders payments; do kafka-configs.sh " in ran.out
    assert "Then: legacy-0: no broker can tier what was written before 0.11" in ran.out
    ran = command("check", broker_log, "--exclude-topic", "leg*", "--output", "json")
    assert (ran.code, {row["topic"]: row["verdict"] for row in ran.document["topics"]}) == (
        0, {"compacted": "never", "dash-ed.topic_1": "ready", "orders": "ready", "payments": "ready"},
    )  # fmt: skip
    ran = command("check", broker_log, "--topic", "compacted")
    assert (ran.code, "Next: nothing is left to do: Kafka tiers none of these topics." in ran.out) == (0, True)


def test_what_only_retention_helps_is_blocked_until_the_day_after_which_it_has_deleted_that(
    fixture_set: Callable[[str], FixtureSet],
) -> None:
    log_dir = load_log_dir(fixture_set("kafka-2.7.2").data)
    [legacy] = [one for one in take_inventory(log_dir).partitions if one.partition.topic_partition.topic == "legacy"]
    old = [one for one in segment_spans(legacy.partition) if one.base_offset < legacy.leader_epochs.unknown_below]
    last_ms = max(one.largest_timestamp_ms or one.mtime_ms for one in old)
    for retention_ms, until_ms, says in (
        (86_400_000, last_ms + 86_400_000, f"retention deletes it on {day_of(last_ms + 86_400_000)}"),
        (-1, None, "retention.ms is -1"),
        (None, None, "--bootstrap-server or --metadata-log shows when"),
    ):
        judged = judge_partition(
            legacy, PLAIN, now_ms=0, transaction_max_timeout_ms=900_000, expiration_ms=1, retention_ms=retention_ms
        )
        answer = judge(judged.facts, ())
        assert (answer.verdict, answer.unblocked_by, answer.until_ms) == ("blocked", "retention", until_ms)
        assert says in answer.next_step


def test_segments_that_brokers_have_tiered_already_block_nothing(broker_log: Path) -> None:
    [payments] = [
        partition
        for partition in take_inventory(load_log_dir(broker_log)).partitions
        if str(partition.partition.topic_partition) == "payments-0"
    ]
    missing = [boundary.offset for boundary in payments.boundaries if not boundary.state.is_usable]
    for remote_end_offset, stop in ((None, missing[0]), (missing[0], missing[1]), (missing[-1], None)):
        found = broker_blockers(payments, remote_end_offset=remote_end_offset).stop
        assert (None if found is None else found.next_base_offset) == stop


@pytest.mark.parametrize("flags", [(), ("--topic", "compacted"), ("--topic", "orders"), ("--topic", "legacy")])
def test_there_is_always_a_next_step(command: Resnap, broker_log: Path, flags: tuple[str, ...]) -> None:
    assert "\nNext: " in command("check", broker_log, *flags).out
    (broker_log / "orders-0" / "partition.metadata").write_text("nonsense")
    assert "\nNext: " in command("check", broker_log, *flags).out


@pytest.mark.parametrize(
    "verb", ["check", "scan", "replicas", "announce", "plan", "regenerate", "tier", "restore", "doctor", "fleet status"]
)
def test_commands_that_judge_by_the_brokers_release_take_it(command: Resnap, ready_log: Path, verb: str) -> None:
    """Their messages ask for --kafka-version."""
    assert "--kafka-version" in command(*verb.split(), "--help").out
    if verb == "check":
        for given, why in (
            ((), "the brokers' release is not known; give --kafka-version"),
            (("--kafka-version", "4.4.0"), None),
            (
                ("--kafka-version", "2.8.2.tiered"),
                "it is not known which release 2.8.2.tiered is built from: expected a release such as 3.9.1",
            ),
        ):
            ran = command(verb, ready_log, *given, "--output", "json")
            (topic,) = ran.document["topics"]
            assert (ran.code, "known-faults" in topic["notChecked"]) == (0, why is not None)
            sentence = f"Kafka's known faults are not checked: {why}."
            assert (sentence in command(verb, ready_log, *given).out) == (why is not None)
    needs = {"announce": ["d"], "regenerate": ["--into", "d"], "tier": ["--to", "file:///d"], "restore": ["file:///d"]}
    refused = command(*verb.split(), *needs.get(verb, []), "--kafka-version", "mine")
    assert refused.code == 2
    assert "expected a release such as 3.9.1" in refused.err


def test_a_release_without_tiered_storage_blocks_every_topic(command: Resnap, ready_log: Path) -> None:
    for release, code in (("2.7.2", 4), ("3.5.2", 4), ("3.6.0", 0)):
        ran = command("check", ready_log, "--kafka-version", release, "--output", "json")
        (topic,) = ran.document["topics"]
        reasons = ["release-without-tiering"] if code else []
        assert (ran.code, [one["reason"] for one in topic["blockers"]]) == (code, reasons)
        assert (topic["tierableBytes"] == 0) == bool(code)


def test_a_broker_with_several_log_dirs_meets_the_fault_of_moves_wherever_the_topic_lies(
    command: Resnap, ready_log: Path
) -> None:
    """Its settings, or log dirs that were given beside, show them, also if one of them has all partitions."""

    def warnings(*more: object) -> list[str]:
        ran = command("check", ready_log, *more, "--kafka-version", "4.4.0", "--output", "json")
        (topic,) = ran.document["topics"]
        assert ran.code == 0
        return [one["reason"] for one in topic["warnings"]]

    assert warnings() == []
    properties = ready_log.with_name("server.properties")
    properties.write_text(f"{TIERING}log.dirs={ready_log}, /other\n")
    assert warnings("--server-properties", properties) == ["state-lost-by-disk-move"]
    beside = ready_log.with_name("beside")
    shutil.copytree(ready_log / "payments-0", beside / "others-0")
    shutil.copy2(ready_log / "meta.properties", beside)
    assert warnings(beside, "--topic", "payments") == ["state-lost-by-disk-move"]


@pytest.mark.parametrize(("verb", "code"), [("check", 4), ("scan", 0)])
def test_no_file_of_a_partition_is_read_more_than_twice(
    command: Resnap, verb: str, code: int, broker_log: Path, opened: Callable[[], list[str]]
) -> None:
    ran = command(verb, broker_log, "--output", "json")
    often = Counter(path for path in opened() if Path(path).parent.parent == broker_log)
    assert (ran.code, max(often.values())) == (code, 2), often.most_common(3)


def test_the_next_step_names_no_topic_that_kafka_never_tiers(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={broker_log}\n")
    ran = command("check", broker_log, "--server-properties", properties, "--topic", "compacted", "--topic", "orders")
    assert "tiering-disabled: orders: remote.log.storage.system.enable is not set" in ran.out
    assert ran.out.splitlines()[-1].startswith("Next: orders: set remote.log.storage.system.enable=true")
