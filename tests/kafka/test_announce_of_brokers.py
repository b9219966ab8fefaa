"""What brokers themselves had tiered is known to them again after the topic with its metadata was lost."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.tiering.cluster.client import Cluster
from resnap.tiering.remote_log.records import METADATA_TOPIC, RemoteLogSegmentMetadataRecord, decode_record
from tests.kafka.aiven_plugin import KEY_ID, PREFIX, aiven_tiering, plugin
from tests.kafka.brokers import SMALL, Broker, eventually, tiering
from tests.kafka.runbook import Operator
from tests.kafka.story import LOST_METADATA, TOPIC
from tests.scheduler.files import bases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

JSON: Final = ("--output", "json")
PAUSED: Final = ("remote.log.copy.disable=true", "local.retention.bytes=-2", "local.retention.ms=-2")


@pytest.fixture(params=["LocalTieredStorage", pytest.param("Aiven", marks=pytest.mark.heavy)])
def brokers_remote(
    request: pytest.FixtureRequest,
    release: Callable[[str], Release],
    fixture_set: Callable[[str], FixtureSet],
    tmp_path: Path,
    version: str,
) -> tuple[dict[str, object], list[str]]:
    """Return the properties of a broker that tiers by a RemoteStorageManager, and how its store is read."""
    remote, keys = tmp_path / "remote", fixture_set("kafka-3.9.1-aiven-encrypted").root / "keys"
    remote.mkdir()
    if request.param != "Aiven":
        return tiering(remote), []
    (tmp_path / "plugin").mkdir()
    flags = ["--key-prefix", PREFIX, "--encryption-private-key", f"{KEY_ID}={keys / 'private.pem'}"]
    return aiven_tiering(remote, plugin(release(version), tmp_path / "plugin"), keys), flags


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.4.0", marks=pytest.mark.heavy)])
def test_a_broker_that_lost_its_metadata_topic_serves_what_it_had_tiered_and_goes_on(
    command: Resnap,
    release: Callable[[str], Release],
    brokers_remote: tuple[dict[str, object], list[str]],
    tmp_path: Path,
    version: str,
) -> None:
    (data, remote), (tiers, flags) = (tmp_path / "data", tmp_path / "remote"), brokers_remote
    broker = Broker(release(version), [data], tiers)
    there = ("--bootstrap-server", broker.address)
    operator = Operator(
        tmp_path,
        {"announce file:///var/lib/remote": shlex.join(["announce", remote.as_uri(), *flags]),
         "/var/lib/kafka/data": data, "/var/lib/remote": remote, "localhost:9092": broker.address},
        {"kafka-configs.sh": lambda line: broker.drive("configure", TOPIC, *line.split("--add-config ")[1].split(","))},
    )  # fmt: skip

    def known() -> list[Any]:
        return command("remote", "status", *there, "--store", remote.as_uri(), *JSON).document["partitions"]

    with broker.running():
        local = ("remote.storage.enable=true", "local.retention.ms=-2", "local.retention.bytes=1000")
        broker.drive("create", TOPIC, 1, *SMALL[version], *local)
        broker.drive("append", TOPIC, 0, 40)
        before = broker.drive("read", TOPIC, 0)
        closed_end = bases(data / f"{TOPIC}-0")[-1]
        eventually(lambda: bases(data / f"{TOPIC}-0")[0] >= closed_end, "not all is tiered, and gone from the disk")
        (as_it_was,) = known()
        broker.drive("configure", TOPIC, *PAUSED)
    for lost in data.glob("__remote_log_metadata-*"):
        shutil.rmtree(lost)

    announce = ("announce", remote.as_uri(), *flags, *there)
    with broker.running():
        assert [partition["readable"] for partition in known()] == [0]
        silent = command(*announce, "--publish")
        assert (silent.code, "--brokers" in silent.err) == (2, True)
        operator.follow(LOST_METADATA)
        (would_be,) = command(*announce, "--brokers", *JSON).document["partitions"]
        assert (would_be["startOffset"], would_be["endOffset"], would_be["stop"]) == (0, closed_end, None)
        operator.follow(LOST_METADATA, 1)
        eventually(lambda: broker.drive("read", TOPIC, 0) == before, "the broker does not serve what it had tiered")
        broker.drive("append", TOPIC, 0, 30)
        goal = bases(data / f"{TOPIC}-0")[-1]
        eventually(lambda: known()[0]["endOffset"] >= goal, "the broker does not go on by itself")
        now = known()[0]["segments"]
        assert {_facts(segment) for segment in now} > {_facts(segment) for segment in as_it_was["segments"]}
        again = command(*announce, "--brokers", *JSON).document
        assert again["summary"]["segments"] == 0

        broker.drive("configure", TOPIC, *PAUSED)
        whole = broker.drive("read", TOPIC, 0)
        (all_known,) = known()
        left = _forget_the_first_two(broker, all_known["metadataPartition"])
    with broker.running():
        assert known()[0]["startOffset"] == left
        filled = command(*announce, "--brokers", "--publish", *JSON)
        assert (filled.code, filled.document["summary"]["segments"]) == (0, 2), filled.err
        assert {_facts(segment) for segment in known()[0]["segments"]} == {_facts(one) for one in all_known["segments"]}
        eventually(lambda: broker.drive("read", TOPIC, 0) == whole, "the broker does not serve what was filled in")
    findings = command("remote", "status", data, "--store", remote.as_uri(), *JSON).document["summary"]["findings"]
    assert [finding for finding in findings if finding["harmful"]] == []


def _facts(segment: dict[str, Any]) -> tuple[object, ...]:
    """Return what consumers and retention go by."""
    keys = ("id", "startOffset", "endOffset", "readable", "segmentSizeInBytes", "maxTimestampMs")
    return (*map(segment.get, keys), *segment["segmentLeaderEpochs"].items())


def _forget_the_first_two(broker: Broker, partition: int) -> int:
    """Delete the records of the first two segments, as retention of the topic does; return where the third begins."""
    with Cluster(broker.address, {}) as cluster:
        records = [(offset, decode_record(value)) for offset, value in cluster.read(METADATA_TOPIC, partition)]
    begun = [
        (offset, record.start_offset)
        for offset, record in records
        if isinstance(record, RemoteLogSegmentMetadataRecord)
    ]
    offset, start = begun[2]
    broker.drive("delete", METADATA_TOPIC, partition, offset)
    return start
