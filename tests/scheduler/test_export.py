"""``resnap export``: what of a cluster comes into a store besides records, and what does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from resnap.scheduler.job.contract import verb_of
from resnap.scheduler.verbs import export
from resnap.storage.log.names import TopicPartition
from resnap.tiering.controller.metadata.records import ConfigRecord
from tests.scheduler.exported import (
    BROKER,
    CLUSTER,
    CREDENTIAL,
    ENTRY,
    PASSWORD,
    QUOTA,
    RETENTION,
    SECRET,
    node,
    topic,
    with_metadata,
    with_offsets,
)

if TYPE_CHECKING:
    from pathlib import Path

    from resnap.tiering.controller.metadata.records import MetadataRecord
    from tests.scheduler.conftest import Resnap

JSON: Final = ("--output", "json")
ID: Final = "j4HddtbpRpaN2jZcdru3GQ"
FIRST: Final = TopicPartition("payments", 0)
OFFSETS: Final = {"billing": {FIRST: 7}, "audit": {FIRST: 3}}


def whole(tmp_path: Path, *more: MetadataRecord) -> Path:
    records = [*topic("payments", ID, 2), RETENTION, BROKER, PASSWORD, QUOTA, ENTRY, CREDENTIAL, *more]
    return with_offsets(with_metadata(node(tmp_path / "data"), records), OFFSETS)


def documents(store: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(store.glob(".resnap/cluster/*/*.json"))]


def test_offsets_and_metadata_of_a_node_come_into_one_object(command: Resnap, tmp_path: Path) -> None:
    data, store = whole(tmp_path), tmp_path / "store"
    planned = command("export", data, "--to", store.as_uri(), "--dry-run", *JSON)
    assert (planned.code, store.exists()) == (0, False)
    ran = command("export", data, "--to", store.as_uri(), *JSON)
    assert ran.code == 0, ran.err
    (document,) = documents(store)
    assert (document["clusterId"], document["nodeId"]) == (CLUSTER, 1)
    assert document["offsets"] == [
        {"partition": 0, "endOffset": 2, "groups": {
            "audit": [["payments", 0, 3, -1, ""]], "billing": [["payments", 0, 7, -1, ""]],
        }, "shareGroups": []},
    ]  # fmt: skip
    metadata = document["metadata"]
    assert metadata["topics"] == {"payments": {"topicId": ID, "partitions": 2}}
    assert metadata["configs"] == [
        {"type": 2, "name": "payments", "values": {"retention.ms": "-1"}},
        {"type": 4, "name": "", "values": {"log.cleaner.threads": "2"}},
    ]
    assert metadata["quotas"] == [{"entity": [["user", "alice"]], "values": {"producer_byte_rate": 1e6}}]
    assert [entry["principal"] for entry in metadata["accessControlEntries"]] == ["User:alice"]
    summary = ran.document
    assert {name: summary[name] for name in ("groups", "offsets", "topics", "configs", "quotas")} == {
        "groups": 2, "offsets": 2, "topics": 1, "configs": 2, "quotas": 1,
    }  # fmt: skip


def test_share_groups_are_named_as_left_out(command: Resnap, tmp_path: Path) -> None:
    data, store = with_offsets(whole(tmp_path), {}, 3, share_groups=("sharers", "runners")), tmp_path / "store"
    ran = command("export", data, "--to", store.as_uri())
    assert (ran.code, "Left out: the offsets of 2 share groups (runners, sharers)." in ran.out) == (0, True), ran.out
    assert "2 committed offsets of 2 groups" in ran.out
    ran = command("export", data, "--to", store.as_uri(), *JSON)
    assert ran.document["shareGroups"] == ["runners", "sharers"]
    assert [document["offsets"][1]["shareGroups"] for document in documents(store)] == [["runners", "sharers"]] * 2
    other = command("export", with_offsets(node(tmp_path / "other", 2), OFFSETS), "--to", store.as_uri())
    assert (other.code, "share group" in other.out + other.err) == (0, False)


def test_passwords_and_credentials_come_only_where_they_are_asked_for(command: Resnap, tmp_path: Path) -> None:
    names = ("ssl.keystore.key", "listener.name.plain.plain.sasl.jaas.config", "rsm.config.s3.access.key")
    more = [ConfigRecord(resource_type=4, resource_name="", name=name, value=SECRET) for name in names]
    data, store = whole(tmp_path, *more), tmp_path / "store"
    ran = command("export", data, "--to", store.as_uri())
    (document,) = documents(store)
    assert SECRET not in json.dumps(document)
    assert (document["metadata"]["scramCredentials"], document["metadata"]["secretsLeftOut"]) == ([], 5)
    assert "--credentials" in ran.out
    assert command("export", data, "--to", store.as_uri(), "--credentials", "--keep", "1").code == 0
    (document,) = documents(store)
    assert SECRET in json.dumps(document)
    (credential,) = document["metadata"]["scramCredentials"]
    assert (credential["name"], credential["storedKey"]) == ("alice", "c3RvcmVk")


def test_a_cluster_without_a_metadata_log_has_its_offsets_exported(command: Resnap, tmp_path: Path) -> None:
    data, store = with_offsets(node(tmp_path / "data"), OFFSETS), tmp_path / "store"
    ran = command("export", data, "--to", store.as_uri())
    assert (ran.code, "there is no metadata log" in ran.err) == (0, True)
    (document,) = documents(store)
    assert (document["metadata"], len(document["offsets"][0]["groups"])) == (None, 2)


def test_of_a_damaged_partition_nothing_is_exported_and_older_objects_stay(command: Resnap, tmp_path: Path) -> None:
    data, store = whole(tmp_path), tmp_path / "store"
    with_offsets(data, {"other": {FIRST: 1}}, number=4)
    assert command("export", data, "--to", store.as_uri()).code == 0
    log = data / "__consumer_offsets-4" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\7")
    ran = command("export", data, "--to", store.as_uri(), "--keep", "1")
    assert (ran.code, "checksum" in ran.err, str(log) in ran.err) == (3, True, True), ran.err
    older, newer = documents(store)
    assert [partition["partition"] for partition in older["offsets"]] == [0, 4]
    assert [partition["partition"] for partition in newer["offsets"]] == [0]


def test_log_dirs_of_several_nodes_are_refused(command: Resnap, tmp_path: Path) -> None:
    one, two = node(tmp_path / "one"), node(tmp_path / "two", 2)
    ran = command("export", one, two, "--to", (tmp_path / "store").as_uri())
    assert (ran.code, "the log dirs of one node" in ran.err) == (2, True)
    assert command("export", "s3://bucket/data", "--to", (tmp_path / "store").as_uri()).code == 2


def test_a_store_without_such_a_url_is_named_before_anything_is_read_or_asked(command: Resnap, tmp_path: Path) -> None:
    cluster = ("--bootstrap-server", "127.0.0.1:1")
    of_cluster = ("export-cluster", *cluster)
    for asked in (("export", tmp_path / "absent"), of_cluster, (*of_cluster, "--dry-run")):
        ran = command(*asked, "--to", "s3:/bucket")
        assert (ran.code, "did you mean s3://bucket?" in ran.err) == (2, True), ran.err
    ran = command(*of_cluster, "--to", (tmp_path / "store").as_uri())
    assert (ran.code, "cannot connect to 127.0.0.1" in ran.err) == (16, True), ran.err
    assert not (tmp_path / "store").exists()


def test_a_schedule_does_what_the_command_of_its_name_does() -> None:
    assert (verb_of("export"), verb_of("export-cluster")) == (export.VERB, export.CLUSTER_VERB)


def test_people_read_no_names_of_fields_and_that_no_offsets_were_there(command: Resnap, tmp_path: Path) -> None:
    data = with_metadata(node(tmp_path / "data"), [*topic("payments", ID, 2)])
    ran = command("export", data, "--to", (tmp_path / "store").as_uri())
    assert (ran.code, "no partition of __consumer_offsets is there" in ran.err) == (0, True), ran.err
    assert ran.out.startswith("0 committed offsets of 0 groups, ")
    with_groups = command("export", whole(tmp_path / "other"), "--to", (tmp_path / "store").as_uri())
    assert "no partition of __consumer_offsets" not in with_groups.err
