"""Segments that Resnap alone shipped, announced to stock brokers, which serve them and go on from where they end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from resnap.storage.errors import ClusterError
from resnap.storage.messages.wire import uuid_text
from resnap.tiering.cluster.client import Cluster
from resnap.tiering.remote_log.records import METADATA_TOPIC
from tests.kafka.brokers import SMALL, Broker, eventually, tiering
from tests.kafka.runbook import Operator
from tests.kafka.story import ANNOUNCE, ANNOUNCE_COPIES, TOPIC
from tests.scheduler.files import bases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

OLDER: Final = [pytest.param(version, marks=pytest.mark.heavy) for version in ("3.6.2", "3.8.1", "3.9.1", "4.1.1")]
JSON: Final = ("--output", "json")
PUBLISH: Final = 1
"""The later block of either section."""
DONE: Final = 2
ROUNDS_OF_RETENTION_S: Final = 6
"""A broker of these tests deletes twice a second, and leaves no trace where it has nothing to delete."""


@pytest.mark.parametrize("version", [*OLDER, "4.4.0"])
def test_a_stock_broker_serves_and_goes_on_from_what_resnap_alone_has_shipped(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    data, remote = tmp_path / "data", tmp_path / "remote"
    partition = data / f"{TOPIC}-0"
    remote.mkdir()
    broker = Broker(release(version), [data], tiering(remote))
    operator = Operator(
        tmp_path,
        {"/var/lib/kafka/data": data, "/var/lib/remote": remote, "localhost:9092": broker.address},
        {"kafka-configs.sh": lambda line: broker.drive("configure", TOPIC, *line.split("--add-config ")[1].split(","))},
    )

    def status() -> Any:
        ran = command("remote", "status", data, "--store", remote.as_uri(), *JSON)
        assert ran.code == 0, ran.err
        return ran.document

    with broker.running():
        broker.drive("create", TOPIC, 1, *SMALL[version])
        broker.drive("append", TOPIC, 0, 40)
        before = broker.drive("read", TOPIC, 0)
        *closed, closed_end = bases(partition)
        (scanned,) = command("scan", partition, "--bootstrap-server", broker.address, *JSON).document["partitions"]
        told = dict(map(str.split, before.splitlines()))
        assert (scanned["live"]["leader"], scanned["highWatermark"]) == (1, int(told["end"]))
        assert scanned["live"]["remoteStorageEnable"] is False
        operator.follow(ANNOUNCE)
        assert status()["partitions"] == []  # a dry run
        operator.follow(ANNOUNCE, PUBLISH)
        operator.follow(ANNOUNCE, DONE)
        (believed,) = status()["partitions"]
        assert (believed["startOffset"], believed["readable"] >= len(closed)) == (0, True)
        broker.drive("configure", TOPIC, "local.retention.ms=-2", "local.retention.bytes=1000")  # its bytes are few
        eventually(lambda: bases(partition)[0] >= closed_end, "local copies stay")
        assert broker.drive("read", TOPIC, 0) == before

        broker.drive("append", TOPIC, 0, 30)
        goal = bases(partition)[-1]
        assert goal > closed_end
        eventually(lambda: status()["partitions"][0]["endOffset"] >= goal, "the broker does not go on by itself")
        asked = ("remote", "status", "--bootstrap-server", broker.address, "--store", remote.as_uri(), *JSON)
        (by_cluster,), (by_files,) = command(*asked).document["partitions"], status()["partitions"]
        assert by_cluster == by_files | {"localStartOffset": None}
        again = command("announce", remote.as_uri(), "--bootstrap-server", broker.address, *JSON)
        assert (again.code, again.document["summary"]["below"]) == (0, len(closed))
    with broker.running():
        after = broker.drive("read", TOPIC, 0)
    assert int(after.split()[3]) > int(before.split()[3])
    standing = status()
    ours = {uuid_text(UUID(path.stem[21:]).bytes) for path in remote.rglob("*.manifest")}
    believed_in = {segment["id"] for segment in standing["partitions"][0]["segments"] if segment["readable"]}
    assert len(ours) == len(closed)
    assert ours < believed_in
    assert [finding for finding in standing["summary"]["findings"] if finding["harmful"]] == []
    assert broker.complaints() == []


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.4.0", marks=pytest.mark.heavy)])
def test_nothing_within_a_size_limit_is_deleted_when_the_words_of_announce_are_followed(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    data, remote = tmp_path / "data", tmp_path / "remote"
    remote.mkdir()
    broker = Broker(release(version), [data], tiering(remote))
    announce = ("announce", remote.as_uri(), "--bootstrap-server", broker.address)

    def typed(line: str) -> None:
        assert f"kafka-configs.sh --bootstrap-server {broker.address} --alter" in line
        broker.drive("configure", TOPIC, *line.split("--add-config ")[1].split(","))

    with broker.running():
        broker.drive("create", TOPIC, 1, *SMALL[version])
        broker.drive("append", TOPIC, 0, 40)
        before = broker.drive("read", TOPIC, 0)
        first, *_ = segments = bases(data / f"{TOPIC}-0")
        size = sum(path.stat().st_size for path in (data / f"{TOPIC}-0").glob("*.log"))
        limit = size * 3 // 2  # above what there is, and below what a leader counts that has copied nothing
        broker.drive("configure", TOPIC, "remote.storage.enable=true", "remote.log.copy.disable=true")
        broker.drive("configure", TOPIC, f"retention.bytes={limit}")
        tier = ("tier", data, "--topic", TOPIC, "--to", remote.as_uri(), "--layout", "local-tiered")
        assert command(*tier, "--bootstrap-server", broker.address, "--engine", "local").code == 0
        (asked,) = command(*announce, *JSON).document["partitions"]
        if version == "4.4.0":
            assert asked["stop"] is None
        else:
            refused = command(*announce, "--publish", *JSON)
            assert (refused.code, refused.document["summary"]["segments"]) == (2, 0), refused.err
            assert asked["stop"]["hurdle"] == "retention-at-risk"
            take_away, put_back = asked["stop"]["hint"].split("`")[1::4]
            typed(take_away)
        published = command(*announce, "--publish")
        assert published.code == 0, published.err
        assert ("Not done yet in 1 partition" in published.out) is (version != "4.4.0")
        if version != "4.4.0":
            waiting = command(*announce)
            assert (waiting.code, "keep retention.bytes at -1" in waiting.err) == (3, True)
        time.sleep(ROUNDS_OF_RETENTION_S)
        assert bases(data / f"{TOPIC}-0") == segments
        broker.drive("configure", TOPIC, "remote.log.copy.disable=false")
        eventually(lambda: command(*announce).code == 0, "the leader does not count what was announced")
        if version != "4.4.0":
            typed(put_back)
        time.sleep(ROUNDS_OF_RETENTION_S)
        assert broker.drive("read", TOPIC, 0) == before
        (known,) = command(
            "remote", "status", "--bootstrap-server", broker.address, "--store", remote.as_uri(), *JSON
        ).document["partitions"]
        assert known["startOffset"] == first
        assert "retention size" not in broker.printed()


@pytest.mark.heavy
def test_what_a_broker_deletes_within_a_size_limit_is_found_in_its_metadata(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    data, remote = tmp_path / "data", tmp_path / "remote"
    remote.mkdir()
    broker = Broker(release("3.9.1"), [data], tiering(remote))
    there = ("--bootstrap-server", broker.address)
    with broker.running():
        broker.drive("create", TOPIC, 1, *SMALL["3.9.1"], "remote.storage.enable=true", "remote.log.copy.disable=true")
        broker.drive("append", TOPIC, 0, 40)
        size = sum(path.stat().st_size for path in (data / f"{TOPIC}-0").glob("*.log"))
        tier = ("tier", data, "--topic", TOPIC, "--to", remote.as_uri(), "--layout", "local-tiered")
        assert command(*tier, *there, "--engine", "local").code == 0
        assert command("announce", remote.as_uri(), *there, "--publish").code == 0
        broker.drive("configure", TOPIC, f"retention.bytes={size * 3 // 2}")  # too early: the leader has copied nothing
        eventually(lambda: "retention size" in broker.printed(), "the broker deletes nothing")

        def found() -> list[Any]:
            ran = command("remote", "status", *there, *JSON)
            return [one for one in ran.document["summary"]["findings"] if one["kind"] == "deleted-within-retention"]

        eventually(found, "the deletion is not found")
        (finding,) = found()
        assert (finding["place"], finding["bytes"] > 0) == (f"{TOPIC}-0", True)


def test_what_was_shipped_for_the_plugin_is_announced_from_its_prefix_and_only_with_its_key(
    command: Resnap, release: Callable[[str], Release], fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data, remote, bucket = tmp_path / "data", tmp_path / "remote", tmp_path / "bucket"
    keys = fixture_set("kafka-3.9.1-aiven-encrypted").root / "keys"
    remote.mkdir()
    bucket.mkdir()
    broker = Broker(release("3.9.1"), [data], tiering(remote))
    prefix, private = ("--key-prefix", "tiered/"), ("--encryption-private-key", f"key1={keys / 'private.pem'}")
    operator = Operator(
        tmp_path,
        {
            "/var/lib/kafka/data": data,
            "s3://bucket": bucket.as_uri(),
            "/etc/kafka/public.pem": keys / "public.pem",
            "/etc/kafka/private.pem": keys / "private.pem",
            "localhost:9092": broker.address,
        },
        {"kafka-configs.sh": lambda line: broker.drive("configure", TOPIC, *line.split("--add-config ")[1].split(","))},
    )
    with broker.running():
        broker.drive("create", TOPIC, 1, *SMALL["3.9.1"])
        broker.drive("append", TOPIC, 0, 40)
        closed_end = bases(data / f"{TOPIC}-0")[-1]
        operator.follow(ANNOUNCE_COPIES)
        there = ("--bootstrap-server", broker.address, *JSON)
        announce = ("announce", bucket.as_uri(), *there)

        (without_prefix,) = command(*announce).document["partitions"]
        assert without_prefix["stop"]["hurdle"] == "other-layout"
        without_key = command(*announce, *prefix, "--publish")
        assert (without_key.code, "--encryption-private-key" in without_key.err) == (10, True)
        for policy, told in (("compact", True), ("delete", False)):  # KIP-1266
            broker.drive("configure", METADATA_TOPIC, f"cleanup.policy={policy}")
            eventually(lambda told=told: ("is compacted" in command(*announce, *prefix).err) == told, policy)
        first = min(bucket.rglob("*.log"))
        body = first.read_bytes()
        first.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
        damaged = command(*announce, *prefix, *private, "--publish")
        assert (damaged.code != 0, first.name in damaged.err) == (True, True)
        first.write_bytes(body)
        status = ("remote", "status", "--store", bucket.as_uri(), *there)
        (waiting,) = command(*status).document["partitions"]
        assert (waiting["readable"], waiting["endOffset"]) == (0, None), "nothing was announced so far"

        operator.follow(ANNOUNCE_COPIES, PUBLISH)
        (believed,) = command(*status).document["partitions"]
        ours = {path.stem[21:] for path in bucket.rglob("*.rsm-manifest")}
        assert {segment["id"] for segment in believed["segments"] if segment["readable"]} == ours
        assert believed["endOffset"] == closed_end
        assert command(*status).document["summary"]["findings"] == []
        (again,) = command(*announce, *prefix, *private, "--publish").document["partitions"]
        assert (again["segments"], again["below"], again["stop"]) == (0, len(ours), None)
    assert broker.complaints() == []


def test_a_broker_that_dies_while_it_is_read_is_not_waited_for(
    release: Callable[[str], Release], tmp_path: Path
) -> None:
    broker = Broker(release("4.4.0"), [tmp_path / "data"])
    with broker.running():
        broker.drive("create", TOPIC, 1, *SMALL["4.4.0"])
        broker.drive("append", TOPIC, 0, 80)  # a fetch ends where a segment does
        with Cluster(broker.address, {}, patience_ms=3_000) as cluster:
            told = cluster.read(TOPIC, 0)
            assert next(told)[0] == 0
            broker.kill()
            with pytest.raises(ClusterError, match=f"cannot read {TOPIC}-0: TimeoutError: no record arrived for 3 s"):
                list(told)
