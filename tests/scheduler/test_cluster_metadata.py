from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.job.wiring import scope_of
from resnap.scheduler.settings.loading import load_settings
from resnap.storage.log.names import TopicPartition
from resnap.tiering.controller.metadata.cluster import ClusterMetadata
from resnap.tiering.controller.metadata.records import ConfigRecord, ZkMigrationStateRecord
from resnap.tiering.controller.metadata.writer import open_metadata_log
from resnap.tiering.judging.inventory import Compaction, CompactionOrigin
from resnap.tiering.selection import Scope, select

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap


@pytest.fixture
def data(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    return shutil.copytree(fixture_set("kafka-3.9.1-kraft").data, tmp_path / "data")


def set_policy(data: Path, topic: str, policy: str | None) -> None:
    configure(data, topic, "cleanup.policy", policy)


def configure(data: Path, topic: str, name: str, value: str | None) -> None:
    record = ConfigRecord(resource_type=2, resource_name=topic, name=name, value=value)
    with open_metadata_log(data / "__cluster_metadata-0", leader_id=1, timestamp=1_795_225_690_000) as log:
        log.append([record], timestamp=1_795_225_690_001)


@pytest.mark.parametrize(
    ("policy", "compaction"),
    [("compact", Compaction.COMPACTED), ("compact,delete", Compaction.COMPACTED), ("delete", Compaction.NOT_COMPACTED)],
)
def test_a_topics_own_policy_says_whether_it_is_compacted(policy: str, compaction: Compaction, data: Path) -> None:
    set_policy(data, "payments", policy)
    found = {str(one.topic_partition): one.inventory for one in select(Scope(sources=(str(data),))).partitions}
    for name in ("payments-0", "payments-1"):
        assert (found[name].compaction, found[name].compaction_origin) == (
            compaction,
            CompactionOrigin.TOPIC_CONFIGURATION,
        )
    assert found["meta-0-0"].compaction_origin is not CompactionOrigin.TOPIC_CONFIGURATION


def test_a_migrated_brokers_partitions_are_stray_once_its_cluster_cannot_return_to_zookeeper(
    command: Resnap, data: Path
) -> None:
    meta = data / "meta.properties"
    of_kraft = meta.read_text()
    of_zookeeper = re.sub("version=.*", "version=0", of_kraft.replace("node.id", "broker.id"))
    unknown = f"version: 0\ntopic_id: {'x' * 21}A\n"
    (data / "payments-1" / "partition.metadata").write_text(unknown)

    def is_stray() -> bool:
        (row,) = command("scan", data, "--partition", "payments-1", "--output", "json").document["partitions"]
        return (row["blocking"] or {}).get("reason") == "stray"

    for text, wanted in (
        (of_kraft, True), (of_zookeeper, True), (re.sub("directory.id=.*", "", of_zookeeper), False),
    ):  # fmt: skip
        meta.write_text(text)
        assert is_stray() == wanted, text
    meta.write_text(of_zookeeper)
    for state, wanted in ((2, False), (1, False), (3, True)):
        with open_metadata_log(data / "__cluster_metadata-0", leader_id=1, timestamp=1_795_225_690_000) as log:
            log.append([ZkMigrationStateRecord(zk_migration_state=state)], timestamp=1_795_225_690_001)
        assert is_stray() == wanted, state


def test_a_policy_that_was_removed_says_nothing(data: Path) -> None:
    set_policy(data, "payments", "compact")
    set_policy(data, "payments", None)
    assert "cleanup.policy" not in ClusterMetadata(data).topic_settings().get("payments", {})


def test_a_topics_own_size_limit_meets_the_fault_that_counts_the_local_log_twice(command: Resnap, data: Path) -> None:
    size = sum(path.stat().st_size for path in (data / "payments-0").glob("*.log"))
    asked = ("--partition", "payments-0", "--output", "json")
    for limit, at_risk in ((2 * size - 7, 7), (2 * size, None)):
        configure(data, "payments", "retention.bytes", str(limit))
        (topic,) = command("check", data, *asked).document["topics"]
        (scanned,) = command("scan", data, *asked).document["partitions"]
        found = [[one["reason"], one["detail"]] for one in topic["warnings"]]
        by_scan = [[one["fault"], one["detail"]] for one in scanned["knownFaults"]]
        assert [one for one in by_scan if one[0] != "segment-without-snapshot"] == found
        assert [name for name, _ in found] == (["local-log-counted-twice"] if at_risk else [])
        assert all(f"retention.bytes is {limit}, and {at_risk} bytes are at risk" in said for _, said in found)

    for path in (data / "payments-0").glob(f"{0:020d}.*"):
        path.unlink()
    (data / "log-start-offset-checkpoint").write_text("0\n1\npayments 0 0\n")
    (topic,) = command("check", data, *asked).document["topics"]
    assert topic["warnings"][0]["detail"].endswith(f"retention.bytes is {2 * size}"), "what is remote is not counted"


def test_faults_that_a_partition_may_meet_are_not_checked_where_no_release_is_known(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    def found(*version: str) -> dict[str, list[str] | None]:
        ran = command("scan", fixture_set("kafka-2.7.2").data, *version, "--output", "json")
        rows = {f"{row['topic']}-{row['partition']}": row["knownFaults"] for row in ran.document["partitions"]}
        return {name: None if faults is None else [one["fault"] for one in faults] for name, faults in rows.items()}

    unknown, known = found(), found("--kafka-version", "3.9.1")
    assert (unknown["payments-0"], unknown["orders-0"]) == (None, [])
    assert (known["payments-0"], known["orders-0"]) == (["segment-without-snapshot"], [])


def test_lost_topic_ids_are_read_from_the_cluster_metadata(
    data: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    before = fixture_set("kafka-3.9.1-kraft").data
    for path in data.glob("*/partition.metadata"):
        path.unlink()
    ids = [
        [partition.inventory.partition.topic_id for partition in select(Scope(sources=(str(place),))).partitions]
        for place in (before, data)
    ]
    assert ids[0] == ids[1]
    assert None not in ids[1]


def test_an_unusable_metadata_log_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    assert ClusterMetadata(tmp_path).image() is None
    assert ClusterMetadata(tmp_path).topic_settings() == {}
    assert ClusterMetadata(None).image() is None


def test_a_scan_says_that_a_compacted_topic_is_one(command: Resnap, data: Path) -> None:
    set_policy(data, "payments", "compact")
    ran = command("scan", data, "--topic", "payments", "--output", "json")
    assert [partition["compaction"] for partition in json.loads(ran.out)["partitions"]] == ["compacted"] * 2


def test_what_was_read_for_the_settings_is_not_read_again_for_the_topics(data: Path) -> None:
    set_policy(data, "payments", "compact")
    settings = load_settings({}, environment={}, directory=data, places=[str(data)])
    for path in (data / "__cluster_metadata-0").iterdir():
        path.unlink()
    scope = scope_of(settings, [str(data)])
    origins = [select(scope).find(TopicPartition("payments", 0)).inventory.compaction_origin for _ in range(2)]
    assert origins[0] is CompactionOrigin.TOPIC_CONFIGURATION
    assert origins[1] is not CompactionOrigin.TOPIC_CONFIGURATION
