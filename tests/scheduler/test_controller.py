from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from resnap.storage.log.record import write_data_batch
from resnap.storage.messages.wire import ZERO_UUID
from resnap.tiering.controller.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    RegisterBrokerRecord,
    ZkMigrationStateRecord,
)
from resnap.tiering.controller.metadata.writer import open_metadata_log
from tests.scheduler.installed import copied
from tests.tiering.controller.metadata.metadata_dump import dumped_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

KRAFT = "kafka-3.9.1-kraft"
START = 1_700_000_000_000


@pytest.fixture
def kraft(fixture_set: Callable[[str], FixtureSet]) -> FixtureSet:
    return fixture_set(KRAFT)


def test_the_image_in_json_is_what_kafkas_own_tool_shows(command: Resnap, kraft: FixtureSet) -> None:
    ran = command("controller", "image", kraft.data, "--output", "json")
    assert ran.code == 0
    image = json.loads(ran.out)
    payloads = [record.payload for record in dumped_records((kraft.root / "metadata-dump.txt").read_text())]
    topic_ids = {one["data"]["name"]: one["data"]["topicId"] for one in payloads if one["type"] == "TOPIC_RECORD"}
    shown = {topic["topic"]: topic["topicId"] for topic in image["topics"]}
    assert shown.items() < topic_ids.items()
    assert {topic["name"] for topic in image["deletedTopics"]} == topic_ids.keys() - shown.keys()
    assert (image["metadataVersion"], image["nextProducerId"]) == ("3.9-IV0", 2000)
    assert [transaction["outcome"] for transaction in image["transactions"]] == ["ended"]
    assert {"resourceType": "broker", "resourceName": "", "values": {"producer.id.expiration.ms": "43200000"}} in image[
        "configs"
    ]


def test_the_image_as_a_table_has_the_topics_and_what_they_come_to(command: Resnap, kraft: FixtureSet) -> None:
    ran = command("controller", "image", kraft.data)
    assert ran.code == 0
    assert "payments             YMc4MP1-R6O2oJbmBbBiPg           2          14" in ran.out
    assert "6 topics, 1 deleted; 1 broker;" in ran.out
    assert "Producer ids below 2,000 were allocated, in 2 blocks." in ran.out


def test_the_blocks_are_listed_with_the_brokers_that_got_them(command: Resnap, kraft: FixtureSet) -> None:
    ran = command("controller", "producer-ids", kraft.data / "__cluster_metadata-0", "--output", "json")
    answer = json.loads(ran.out)
    spans = [(block["firstProducerId"], block["lastProducerId"], block["brokerId"]) for block in answer["blocks"]]
    assert spans == [(0, 999, 1), (1000, 1999, 1)]
    assert answer["summary"] == {"nextProducerId": 2000, "notes": []}


def test_the_settings_are_listed_with_their_origin(command: Resnap, kraft: FixtureSet, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("producer.id.expiration.ms=5000\nproducer.id.expiration.check.interval.ms=70\n")
    ran = command("controller", "config", kraft.data, "--server-properties", properties, "--output", "json")
    rows = {setting["name"]: setting for setting in json.loads(ran.out)["settings"]}
    expiration = rows["producer.id.expiration.ms"]
    assert (expiration["value"], expiration["level"]) == (43_200_000, "dynamic-default")
    assert expiration["overruled"] == ["server-properties=5000"]
    interval = rows["producer.id.expiration.check.interval.ms"]
    assert (interval["value"], interval["level"]) == (70, "server-properties")


def test_an_audit_of_a_sound_log_dir_finds_nothing(command: Resnap, kraft: FixtureSet) -> None:
    ran = command("controller", "audit", kraft.data)
    assert (ran.code, ran.err) == (0, "")
    assert "Each of 1,073 producer ids in 36 snapshots and segments is in exactly one allocated block." in ran.out


def test_an_audit_against_another_clusters_metadata_log_ends_with_13(
    command: Resnap, kraft: FixtureSet, tmp_path: Path
) -> None:
    metadata = tmp_path / "__cluster_metadata-0"
    shutil.copytree(kraft.data / metadata.name, metadata)
    log = metadata / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:7433])  # below the second block, at offset 104
    for checkpoint in metadata.glob("*.checkpoint"):
        checkpoint.unlink()
    ran = command("controller", "audit", kraft.data, "--metadata-log", metadata, "--output", "json")
    assert ran.code == 13
    answer = json.loads(ran.out)
    assert answer["summary"]["findings"] == len(answer["findings"]) > 0
    assert {finding["fault"] for finding in answer["findings"]} == {"unallocated"}
    assert all(finding["producerId"] >= 1000 and finding["carriers"][0]["file"] for finding in answer["findings"])
    shown = command("controller", "audit", kraft.data, "--metadata-log", metadata)
    assert "unallocated" in shown.out
    assert "are not in exactly one allocated block." in shown.out


def test_a_damaged_snapshot_makes_the_audit_partial(command: Resnap, kraft: FixtureSet, tmp_path: Path) -> None:
    data = shutil.copytree(kraft.data, tmp_path / "data")
    next(data.glob("payments-0/*.snapshot")).write_bytes(b"\0" * 20)
    ran = command("controller", "audit", data)
    assert ran.code == 3
    assert "producer snapshot version" in ran.err
    assert "35 snapshots and segments is in exactly one allocated block." in ran.out


@pytest.mark.parametrize("what", ["image", "producer-ids", "config"])
def test_without_a_metadata_log_it_is_said_where_one_may_be(what: str, command: Resnap) -> None:
    ran = command("controller", what)
    assert ran.code == 2
    assert "there is no metadata log to read" in ran.err
    assert "--metadata-log DIR" in ran.err


def test_a_log_dir_of_zookeeper_times_cannot_be_audited_without_one(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    ran = command("controller", "audit", fixture_set("kafka-2.7.2-no-producers").data)
    assert ran.code == 2
    assert "there is no metadata log to read" in ran.err


def test_a_damaged_metadata_log_is_reported_with_file_and_position(
    command: Resnap, kraft: FixtureSet, tmp_path: Path
) -> None:
    metadata = shutil.copytree(kraft.data / "__cluster_metadata-0", tmp_path / "__cluster_metadata-0")
    log = metadata / f"{0:020d}.log"
    damaged = bytearray(log.read_bytes())
    damaged[300] ^= 1
    log.write_bytes(damaged)
    ran = command("controller", "image", metadata)
    assert ran.code == 1
    assert f"{log}: record batch checksum (CRC-32C) at byte 236" in ran.err


def test_a_plan_says_where_the_expiration_came_from(command: Resnap, kraft: FixtureSet) -> None:
    ran = command("plan", kraft.data, "--engine", "local", "--output", "json")
    plan = json.loads(ran.out)
    assert plan["producerIdExpirationMs"] == 43_200_000
    assert plan["producerIdExpirationFrom"] == f"metadata log {kraft.data}/__cluster_metadata-0: dynamic-default"
    given = command("plan", kraft.data, "--engine", "local", "--producer-id-expiration-ms", "5000", "--output", "json")
    assert json.loads(given.out)["producerIdExpirationFrom"] == "flag --producer-id-expiration-ms"
    assert "but the brokers use 43200000" in given.err


def _metadata_log(directory: Path, brokers: Iterable[int], *settings: tuple[str, str, str]) -> Path:
    """Write a log in which ``brokers`` are registered, and broker -> name -> value was set, in this order."""
    with open_metadata_log(directory / "__cluster_metadata-0", leader_id=1, timestamp=START) as log:
        log.append([FeatureLevelRecord(name="metadata.version", feature_level=21)], START)
        for broker_id in brokers:
            record = RegisterBrokerRecord(
                broker_id=broker_id, incarnation_id=ZERO_UUID, broker_epoch=broker_id, end_points=(), features=(),
                rack=None,
            )  # fmt: skip
            log.append([record], START)
        for broker, name, value in settings:
            log.append([ConfigRecord(resource_type=4, resource_name=broker, name=name, value=value)], START)
    return directory


@pytest.mark.parametrize("form", ["table", "json", "ndjson"])
@pytest.mark.parametrize("what", ["image", "config"])
def test_no_password_of_a_broker_is_shown(what: str, form: str, command: Resnap, tmp_path: Path) -> None:
    secrets = ("ssl.keystore.password", "ssl.keystore.key", "listener.name.a.plain.sasl.jaas.config")
    metadata = _metadata_log(tmp_path, [1], *(("1", name, "hunter2") for name in secrets), ("1", "num.io.threads", "9"))
    ran = command("controller", what, metadata, "--output", form)
    assert ran.code == 0
    assert "hunter2" not in ran.out + ran.err
    assert "num.io.threads" in ran.out or (what, form) == ("image", "table")


def test_server_properties_count_for_the_broker_that_they_name(command: Resnap, tmp_path: Path) -> None:
    metadata = _metadata_log(tmp_path, [1, 2], ("2", "producer.id.expiration.ms", "5000"))
    properties = tmp_path / "server.properties"
    properties.write_text("node.id=1\nproducer.id.expiration.ms=7000\n")
    answer = command("controller", "config", metadata, "--server-properties", properties, "--output", "json").document
    expirations = [setting for setting in answer["settings"] if setting["name"] == "producer.id.expiration.ms"]
    assert [(one["brokerId"], one["value"], one["overruled"]) for one in expirations] == [(1, 7000, []), (2, 5000, [])]
    properties.write_text("node.id=3000\nproducer.id.expiration.ms=7000\n")
    ran = command("controller", "config", metadata, "--server-properties", properties)
    assert "7000" not in ran.out
    assert "node 3000, which is not a broker here" in ran.out


def test_settings_of_unregistered_brokers_and_of_all_brokers_are_listed(command: Resnap, tmp_path: Path) -> None:
    default = _metadata_log(tmp_path / "default", [], ("", "producer.id.expiration.ms", "5000"))
    of_any = command("controller", "config", default, "--output", "json").document["settings"][0]
    assert (of_any["brokerId"], of_any["value"], of_any["level"]) == (None, 5000, "dynamic-default")
    own = _metadata_log(tmp_path / "own", [1], ("7", "producer.id.expiration.ms", "5000"))
    settings = command("controller", "config", own, "--output", "json").document["settings"]
    assert [one["value"] for one in settings if one["name"] == "producer.id.expiration.ms"] == [86_400_000, 5000]


def test_a_change_that_changes_nothing_on_the_broker_is_not_listed(command: Resnap, tmp_path: Path) -> None:
    metadata = _metadata_log(tmp_path, [1], ("1", "producer.id.expiration.ms", "7000"))
    properties = tmp_path / "server.properties"
    properties.write_text("node.id=1\nproducer.id.expiration.ms=7000\n")
    assert "since" in command("controller", "config", metadata).out
    assert "since" not in command("controller", "config", metadata, "--server-properties", properties).out


def test_an_audit_of_nothing_is_not_a_success(command: Resnap, kraft: FixtureSet) -> None:
    ran = command("controller", "audit", kraft.data, "--topic", "paymnets")
    assert ran.code == 2
    assert "matches --topic paymnets" in ran.err


@pytest.mark.parametrize("others", [(), ("*.index", "*.timeindex")])
def test_a_metadata_log_that_was_copied_without_its_log_is_no_false_alarm(
    command: Resnap, kraft: FixtureSet, tmp_path: Path, others: tuple[str, ...]
) -> None:
    data = shutil.copytree(kraft.data, tmp_path / "data")
    for pattern in ("*.log", *others):
        for path in (data / "__cluster_metadata-0").glob(pattern):
            path.unlink()
    ran = command("controller", "audit", data)
    assert ran.code == 1, ran.out
    assert f"{data}/__cluster_metadata-0 has " in ran.err
    assert ".log" in ran.err
    assert "give a whole copy" in ran.err


def test_before_a_migration_from_zookeeper_the_metadata_log_answers_nothing(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = copied(fixture_set("kafka-2.7.2").data, tmp_path / "data")
    _metadata_log(data, [1])
    with open_metadata_log(data / "__cluster_metadata-0", leader_id=1, timestamp=START) as log:
        log.append([ZkMigrationStateRecord(zk_migration_state=2)], timestamp=START)
    waits = "the migration from ZooKeeper waits for brokers"
    refused = [("controller", verb, data) for verb in ("producer-ids", "config", "audit")]
    refused.append(("export", data, "--to", (tmp_path / "store").as_uri()))
    for arguments in refused:
        ran = command(*arguments)
        assert (ran.code, waits in ran.err, "--bootstrap-server" in ran.err) == (1, True, True), arguments
    assert not (tmp_path / "store").exists()
    assert f"Note: {waits}" in command("controller", "image", data).out
    scanned = command("scan", data)
    assert (scanned.code, f"the metadata log is not used: {waits}" in scanned.err) == (0, True), scanned.err

    with open_metadata_log(data / "__cluster_metadata-0", leader_id=1, timestamp=START) as log:
        log.append([ZkMigrationStateRecord(zk_migration_state=1)], timestamp=START)
    for arguments, code in zip(refused, (0, 0, 13, 0), strict=True):
        assert command(*arguments).code == code, arguments


@pytest.mark.parametrize("verb", ["scan", "check"])
def test_the_log_dir_of_a_controller_is_called_that(
    verb: str, command: Resnap, kraft: FixtureSet, tmp_path: Path
) -> None:
    for name in ("__cluster_metadata-0", "meta.properties"):
        copy = shutil.copytree if (kraft.data / name).is_dir() else shutil.copy
        copy(kraft.data / name, tmp_path / name)
    ran = command(verb, tmp_path)
    assert ran.code == 2
    assert f"no partition of a topic in {tmp_path}, only the metadata log: it is a controller's" in ran.err


def test_an_audit_says_which_partition_it_could_not_read(command: Resnap, kraft: FixtureSet, tmp_path: Path) -> None:
    data = shutil.copytree(kraft.data, tmp_path / "data")
    (data / "payments-0" / "partition.metadata").write_text("garbage")
    ran = command("controller", "audit", data)
    assert ran.code == 3
    assert "payments-0/partition.metadata" in ran.err


def test_a_cluster_younger_than_this_release_is_read_and_what_is_skipped_is_named_once(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = copied(fixture_set("kafka-4.4.0-kraft").data, tmp_path / "data")
    with open_metadata_log(data / "__cluster_metadata-0", leader_id=1, timestamp=START) as log:
        log.append([FeatureLevelRecord(name="metadata.version", feature_level=99)], timestamp=START)
        after, epoch = log.end_offset, log.leader_epoch
    (file,) = (data / "__cluster_metadata-0").glob("*.log")
    values = [b"\x01" + bytes(kind) + b"whatever" for kind in ((45, 0), (45, 1), (45, 0), (45, 0), (4, 7))]
    with file.open("ab") as end:
        end.write(write_data_batch(offset=after, values=values, timestamps=START, leader_epoch=epoch))

    skipped = ["1 record of CONFIG_RECORD, version 7,", "4 records of type 45,"]
    for verb in ("image", "producer-ids", "audit"):
        told = command("controller", verb, data)
        assert [told.out.count(f"Note: {one} unknown to this release") for one in skipped] == [1, 1], verb
    assert command("scan", data, "--topic", "payments").code == 0
    described = command("quota", "describe", "--metadata-log", data, "--output", "json")
    assert "alice" in described.out
    refused = command("controller", "config", data, "--output", "json")
    assert (refused.code, refused.error["type"]) == (1, "MetadataVersionError")
    assert "CONFIG_RECORD, version 7" in refused.error["message"]
