"""``resnap restore`` for a new cluster: what comes into which log dir, and into the metadata that it begins with."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.replay.watching import Progress
from resnap.scheduler.cli import run
from resnap.storage.sources.files import Sources
from resnap.tiering.controller.metadata.log_files import read_checkpoint
from resnap.tiering.controller.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from resnap.tiering.controller.metadata.writer import open_metadata_log
from resnap.tiering.restore import RestoreOrder, RestoreWork, restore
from resnap.tiering.restoring.new_cluster import Assignment
from resnap.tiering.selection import Scope
from tests.logs.metadata_checkpoint import checkpoint_bytes
from tests.scheduler.failing_disk import Killed, killed_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

SET: Final = "kafka-3.9.1-kraft"
CLUSTER: Final = "BBBBBBBBQBCBBBBBBBBBBQ"
JSON: Final = ("--output", "json")
NOT_KNOWN: Final = ("payments: its settings are not known", "payments: how many partitions it had is not known")
FORMAT: Final = (
    FeatureLevelRecord(name="metadata.version", feature_level=21),
    FeatureLevelRecord(name="group.version", feature_level=1),
)
ELIGIBLE: Final = FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)
FORMS: Final = ("bootstrap.checkpoint", f"__cluster_metadata-0/{0:020d}-{0:010d}.checkpoint")
"""Before 4.4, and since."""


@pytest.fixture(scope="module")
def store(fixture_set: Callable[[str], FixtureSet], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was shipped beside a metadata log."""
    root = tmp_path_factory.mktemp("shipped") / "store"
    arguments = ["tier", str(fixture_set(SET).data), "--topic", "payments", "--to", root.as_uri(), "--as-of", "roll"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RESNAP_STATE_DIR", "none")
        assert run([*arguments, "--engine", "local", "--quiet", *JSON]) == 0
    return root


def formatted(path: Path, node: int = 1, form: str = FORMS[0]) -> Path:
    """Make what ``kafka-storage.sh format`` makes."""
    path.mkdir()
    (path / "meta.properties").write_text(f"version=1\nnode.id={node}\ncluster.id={CLUSTER}\n")
    (path / form).parent.mkdir(exist_ok=True)
    features = FORMAT if form == FORMS[0] else (*FORMAT, ELIGIBLE)
    (path / form).write_bytes(checkpoint_bytes(features, epoch=0, timestamp=1_700_000_000_000))
    return path


def records(log_dir: Path, kind: type | None = None, form: str = FORMS[0]) -> list[Any]:
    """Return the records that the cluster begins with, but for control records."""
    found = [record.message for batch in read_checkpoint(log_dir / form) if not batch.header.is_control
             for record in batch.records]  # fmt: skip
    return [one for one in found if kind is None or isinstance(one, kind)]


def topic_id(fixture_set: Callable[[str], FixtureSet]) -> str:
    return (fixture_set(SET).data / "payments-0" / "partition.metadata").read_text().split("topic_id: ")[1]


@pytest.mark.parametrize("form", FORMS)
def test_topics_settings_and_producer_ids_come_into_the_bootstrap_metadata(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], store: Path, tmp_path: Path, form: str
) -> None:
    data = formatted(tmp_path / "data", form=form)
    before = (data / form).read_bytes()
    arguments = ("restore", store.as_uri(), "--into", data, "--new-cluster", data, *JSON)
    planned = command(*arguments, "--dry-run")
    assert (planned.code, (data / form).read_bytes()) == (0, before), planned.err
    ran = command(*arguments)
    assert ran.code == 0, ran.err
    assert (data / form).read_bytes().startswith(before[: before.index(b"group.version")])
    (topic,) = records(data, TopicRecord, form)
    assert (topic.name, topic.topic_id) == ("payments", topic_id(fixture_set))
    partitions = records(data, PartitionRecord, form)
    in_sync, eligible = ((1,), None) if form == FORMS[0] else ((), (1,))
    assert [(one.partition_id, one.replicas, one.isr, one.leader, one.last_known_elr) for one in partitions] == [
        (number, (1,), in_sync, -1, eligible) for number in (0, 1)
    ]
    assert {partition.leader_epoch for partition in partitions} == {1000}
    assert {record.name: record.value for record in records(data, ConfigRecord, form)} == {
        "index.interval.bytes": "1024",
        "segment.bytes": "16384",
    }
    (ids,) = records(data, ProducerIdsRecord, form)
    assert ids.next_producer_id == ran.document["summary"]["newCluster"]["nextProducerId"] > 1_000_000
    written = (data / form).read_bytes()
    again = command(*arguments)
    assert (again.code, again.document["summary"]["alreadyThere"], (data / form).read_bytes()) == (0, 2, written)


def test_each_broker_gets_the_replicas_that_were_assigned_to_it(command: Resnap, store: Path, tmp_path: Path) -> None:
    one, two, other = (formatted(tmp_path / name, node) for name, node in (("one", 1), ("two", 2), ("other", 2)))
    controller = formatted(tmp_path / "controller", 3000)
    file = tmp_path / "assignment.json"
    chosen = [
        {"topic": "payments", "partition": 0, "replicas": [2, 1], "log_dirs": [str(other), "any"]},
        {"topic": "payments", "partition": 1, "replicas": [2, 7]},
    ]
    file.write_text(json.dumps({"version": 1, "partitions": chosen}))
    into = [word for path in (one, two, other) for word in ("--into", path)]
    assigned = ("--assignment", file)
    assert command("restore", store.as_uri(), *into, *assigned, "--new-cluster", one).code == 0
    assert command("restore", store.as_uri(), *assigned, "--new-cluster", controller).code == 0
    assert {path.name: sorted(found.name for found in path.glob("payments-*")) for path in (one, two, other)} == {
        "one": ["payments-0"], "two": ["payments-1"], "other": ["payments-0"],
    }  # fmt: skip
    assert records(one) == records(controller)
    assert [found.replicas for found in records(one, PartitionRecord)] == [(2, 1), (2, 7)]


def test_brokers_each_get_all_and_their_log_dirs_fill_up(command: Resnap, store: Path, tmp_path: Path) -> None:
    one, two, other = (formatted(tmp_path / name, node) for name, node in (("one", 1), ("two", 2), ("other", 2)))
    into = [word for path in (one, two, other) for word in ("--into", path)]
    ran = command("restore", store.as_uri(), *into, "--new-cluster", one, "--brokers", "1,2", *JSON)
    assert (ran.code, ran.document["summary"]["restored"]) == (0, 4), ran.err
    assert sorted(path.name for path in one.glob("payments-*")) == ["payments-0", "payments-1"]
    assert [len(list(path.glob("payments-*"))) for path in (two, other)] == [1, 1]
    assert [found.replicas for found in records(one, PartitionRecord)] == [(1, 2), (2, 1)]
    for name in ("payments-0", "payments-1"):
        held = [path / name for path in (one, two, other) if (path / name).exists()]
        contents = [{file.name: file.read_bytes() for file in path.iterdir()} for path in held]
        assert contents[0] == contents[1]


def test_what_is_not_known_of_a_topic_is_named_and_can_be_given(command: Resnap, store: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(store, tmp_path / "bare")
    shutil.rmtree(bare / ".resnap" / "topic")
    first, second = formatted(tmp_path / "first"), formatted(tmp_path / "second")
    ran = command("restore", bare.as_uri(), "--into", first, "--new-cluster", first)
    assert (ran.code, [one for one in NOT_KNOWN if one not in ran.err]) == (0, [])
    file = tmp_path / "topics.json"
    file.write_text(json.dumps({"payments": {"partitions": 3, "config": {"retention.ms": "-1"}}}))
    ran = command("restore", bare.as_uri(), "--into", second, "--new-cluster", second, "--topic-config", file)
    assert (ran.code, [one for one in NOT_KNOWN if one in ran.err]) == (0, [])
    assert "payments: nothing was shipped of partitions 2: they begin empty" in ran.err
    assert [(record.name, record.value) for record in records(second, ConfigRecord)] == [("retention.ms", "-1")]
    assert [record.partition_id for record in records(second, PartitionRecord)] == [0, 1, 2]


def test_a_damaged_note_of_a_topic_is_named_with_what_to_do(command: Resnap, store: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(store, tmp_path / "damaged")
    [note] = (damaged / ".resnap" / "topic" / "payments").iterdir()
    note.write_bytes(note.read_bytes().replace(b'"partitions": 2', b'"partitions": 3'))
    log_dir = formatted(tmp_path / "new")
    ran = command("restore", damaged.as_uri(), "--into", log_dir, "--new-cluster", log_dir)
    assert (ran.code, [one for one in NOT_KNOWN if one not in ran.err]) == (0, [])
    said = " ".join(ran.err.split())
    assert f"{note.as_uri()}: note 'topic' at byte 0: expected what its checksum covers, found something else" in said
    assert "give what the topic had with --topic-config FILE" in said


def test_an_incomplete_topic_is_skipped_until_the_store_is_complete(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    broken, data = shutil.copytree(store, tmp_path / "broken"), formatted(tmp_path / "data")
    log = sorted(broken.glob("*/payments/*/1/*.log"))[2]
    log.rename(tmp_path / "kept")
    arguments = ("restore", broken.as_uri(), "--into", data, "--new-cluster", data, *JSON)
    ran = command(*arguments)
    assert ran.code == 3, ran.err
    assert ran.document["summary"]["newCluster"]["leftOut"] == ["payments"]
    assert "payments: not given to the new cluster" in ran.err
    assert (sorted(path.name for path in data.glob("payments-*")), records(data, TopicRecord)) == (["payments-0"], [])
    (tmp_path / "kept").rename(log)
    ran = command(*arguments)
    assert (ran.code, ran.document["summary"]["restored"], ran.document["summary"]["alreadyThere"]) == (0, 1, 1)
    assert [record.name for record in records(data, TopicRecord)] == ["payments"]


@pytest.mark.parametrize("content", ["version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAABA", None])
def test_a_directory_of_another_topic_id_which_a_broker_would_set_aside_is_not_taken_for_restored(
    command: Resnap, store: Path, tmp_path: Path, content: str | None
) -> None:
    data = formatted(tmp_path / "data")
    bootstrap = data / FORMS[0]
    before = bootstrap.read_bytes()
    arguments = ("restore", store.as_uri(), "--into", data, "--new-cluster", data, *JSON)
    assert command(*arguments).code == 0
    bootstrap.write_bytes(before)
    named = data / "payments-0" / "partition.metadata"
    named.unlink() if content is None else named.write_text(content)
    ran = command(*arguments)
    assert ran.code == 1, ran.err
    assert f"{data}/payments-0 is there already, and holds another log or topic id" in ran.err
    assert records(data, TopicRecord) == []


@pytest.mark.parametrize("step", [5, 60, 130])
def test_what_a_kill_has_left_the_next_run_completes(command: Resnap, store: Path, tmp_path: Path, step: int) -> None:
    data, whole = formatted(tmp_path / "data"), formatted(tmp_path / "whole")
    request = RestoreOrder(
        scope=Scope(sources=(store.as_uri(),)), log_dirs=(data,), new_cluster=data, assignment=Assignment(brokers=(1,))
    )
    with pytest.raises(Killed):
        restore(request, RestoreWork(sources=Sources(), progress=Progress(), disk=killed_at(step)), lambda _: None)
    assert records(data) == list(FORMAT)
    for path in (data, whole):
        assert command("restore", store.as_uri(), "--into", path, "--new-cluster", path).code == 0
    assert records(data) == records(whole)
    assert {path.name for path in data.iterdir()} == {path.name for path in whole.iterdir()}


def test_a_destination_that_is_not_a_new_cluster_is_refused(command: Resnap, store: Path, tmp_path: Path) -> None:
    data, started, plain = (formatted(tmp_path / name) for name in ("data", "started", "plain"))
    (plain / "bootstrap.checkpoint").unlink()
    with open_metadata_log(started / "__cluster_metadata-0", leader_id=1, timestamp=1):
        pass
    (tmp_path / "empty").mkdir()
    into = ("restore", store.as_uri(), "--into", data, *JSON)
    for arguments, why in (
        ((*into, "--new-cluster", started), "was started already"),
        ((*into, "--new-cluster", plain), "holds no bootstrap metadata"),
        ((*into, "--brokers", "1,1"), "expected different node ids"),
        (("restore", store.as_uri(), "--new-cluster", data, *JSON), "no log dir to restore into"),
        (("restore", store.as_uri(), "--into", tmp_path / "empty", "--brokers", "1", *JSON), "not a formatted log dir"),
        ((*into, "--assignment", data / "meta.properties"), "no assignment of replicas"),
        ((*into, "--topic-config", data / "meta.properties"), "no settings of topics"),
    ):
        ran = command(*arguments)
        assert (ran.code, why in ran.error["message"]) == (2, True), (arguments, ran.err)
    assert not list(data.glob("payments-*"))


def test_a_cluster_whose_next_producer_id_lies_below_is_named(command: Resnap, store: Path, tmp_path: Path) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    for data, following in ((low, 2), (high, 9000)):
        data.mkdir()
        with open_metadata_log(data / "__cluster_metadata-0", leader_id=1, timestamp=1) as log:
            log.append([ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=following)], timestamp=2)
    said = {data.name: command("restore", store.as_uri(), "--into", data).err for data in (low, high)}
    assert "the next producer id of the cluster is 2, and what was restored has ids up to" in said["low"]
    assert "next producer id" not in said["high"]


@pytest.mark.parametrize(
    ("name", "within"), [("kafka-3.9.1-tiered", "kafka-tiered-storage"), ("kafka-3.9.1-aiven-zstd", "tiered")]
)
def test_what_brokers_tiered_themselves_begins_a_cluster(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, name: str, within: str
) -> None:
    remote, data = fixture_set(name).root / "remote" / within, formatted(tmp_path / "data")
    ran = command("restore", remote.as_uri(), "--into", data, "--new-cluster", data, "--engine", "local", *JSON)
    assert ran.code == 0, ran.err
    topics = {record.topic_id: record.name for record in records(data, TopicRecord)}
    there = {f"{topics[record.topic_id]}-{record.partition_id}" for record in records(data, PartitionRecord)}
    assert there == {path.name for path in data.glob("*-*") if (path / "partition.metadata").exists()} != set()
    for path in there:
        assert (data / path / "partition.metadata").read_text().split("topic_id: ")[1] in topics


def test_a_log_dir_may_be_spelled_otherwise_in_the_assignment(command: Resnap, store: Path, tmp_path: Path) -> None:
    data = formatted(tmp_path / "data")
    (tmp_path / "link").symlink_to(data)
    file = tmp_path / "assignment.json"
    chosen = [
        {"topic": "payments", "partition": number, "replicas": [1], "log_dirs": [spelled]}
        for number, spelled in enumerate((f"{data}/", str(tmp_path / "link")))
    ]
    file.write_text(json.dumps({"version": 1, "partitions": chosen}))
    ran = command("restore", store.as_uri(), "--into", data, "--new-cluster", data, "--assignment", file)
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in data.glob("payments-*")) == ["payments-0", "payments-1"]


def test_a_broker_that_would_begin_a_partition_without_its_log_is_refused(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    data, file = formatted(tmp_path / "data"), tmp_path / "assignment.json"
    before = (data / FORMS[0]).read_bytes()
    arguments = ("restore", store.as_uri(), "--into", data, "--new-cluster", data, *JSON)
    given = {"topic": "payments", "partition": 0, "replicas": [1], "log_dirs": [f"{data}x"]}
    other = {"topic": "payments", "partition": 1, "replicas": [1]}
    file.write_text(json.dumps({"version": 1, "partitions": [given, other]}))
    for assigned, why in (
        (("--assignment", file), f"payments-0: --assignment has it in {data}x of broker 1"),
        (("--brokers", "2,3"), f"{data} is of broker 1, which gets no replica of anything"),
    ):
        ran = command(*arguments, *assigned)
        assert (ran.code, why in ran.error["message"]) == (2, True), ran.err
    assert ([path.name for path in data.glob("payments-*")], (data / FORMS[0]).read_bytes()) == ([], before)


def test_partitions_that_begin_empty_without_replicas_are_refused_before_anything_is_copied(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    data = formatted(tmp_path / "data")
    before = (data / FORMS[0]).read_bytes()
    topics, file = tmp_path / "topics.json", tmp_path / "assignment.json"
    topics.write_text(json.dumps({"payments": {"partitions": 3}}))
    listed = [{"topic": "payments", "partition": number, "replicas": [1]} for number in (0, 1)]
    file.write_text(json.dumps({"version": 1, "partitions": listed}))
    arguments = ("restore", store.as_uri(), "--into", data, "--new-cluster", data, "--assignment", file)
    ran = command(*arguments, "--topic-config", topics, *JSON)
    assert (ran.code, "payments-2: --assignment does not list it" in ran.error["message"]) == (2, True), ran.err
    assert ([path.name for path in data.glob("payments-*")], (data / FORMS[0]).read_bytes()) == ([], before)
    assert command(*arguments).code == 0


@pytest.mark.parametrize("brokers", ["01,1", "1,99999999999", "²"])
def test_node_ids_that_no_cluster_can_have_are_refused(
    command: Resnap, store: Path, tmp_path: Path, brokers: str
) -> None:
    data = formatted(tmp_path / "data")
    ran = command("restore", store.as_uri(), "--into", data, "--new-cluster", data, "--brokers", brokers, *JSON)
    assert (ran.code, "expected different node ids" in ran.error["message"]) == (2, True), ran.err


@pytest.mark.parametrize(
    "entries",
    [
        [{"topic": "payments", "partition": 0, "replicas": [1.9]}],
        [{"topic": "payments", "partition": 0, "replicas": [True]}],
        [{"topic": "payments", "partition": 0, "replicas": [2**31]}],
        [{"topic": "payments", "partition": 0, "replicas": [1e400]}],
        [{"topic": "payments", "partition": 0.5, "replicas": [1]}],
        [
            {"topic": "payments", "partition": 0, "replicas": [1]},
            {"topic": "payments", "partition": 0, "replicas": [2]},
        ],
    ],
)
def test_an_assignment_that_kafka_would_not_take_is_refused(
    command: Resnap, store: Path, tmp_path: Path, entries: list[dict[str, Any]]
) -> None:
    data, file = formatted(tmp_path / "data"), tmp_path / "assignment.json"
    file.write_text(json.dumps({"version": 1, "partitions": entries}))
    ran = command("restore", store.as_uri(), "--into", data, "--new-cluster", data, "--assignment", file, *JSON)
    assert (ran.code, "no assignment of replicas" in ran.error["message"]) == (2, True), ran.err


def test_settings_of_topics_without_effect_are_named(command: Resnap, store: Path, tmp_path: Path) -> None:
    data, file = formatted(tmp_path / "data"), tmp_path / "topics.json"
    file.write_text(json.dumps({"paymnets": {"config": {"retention.ms": "-1"}}, "payments": {"partitions": 1}}))
    ran = command("restore", store.as_uri(), "--into", data, "--new-cluster", data, "--topic-config", file)
    assert ran.code == 0, ran.err
    assert "--topic-config names paymnets, of which nothing is restored" in ran.err
    assert "payments: it is said to have 1 partitions, and partition 1 was shipped: it gets 2" in ran.err
