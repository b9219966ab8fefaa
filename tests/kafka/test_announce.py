"""Segments that Resnap alone shipped, announced to stock brokers, which serve them and go on from where they end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from storage.messages.wire import uuid_text
from tests.kafka.brokers import SMALL, Broker, eventually, tiering
from tests.kafka.runbook import Operator
from tests.kafka.story import ANNOUNCE, TOPIC
from tests.scheduler.files import bases

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

JSON: Final = ("--output", "json")
PUBLISH: Final = 1
"""The later block of the section."""


@pytest.mark.parametrize("version", ["3.9.1", "4.1.1"])
def test_a_stock_broker_serves_and_goes_on_from_what_resnap_alone_has_shipped(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    data, remote = tmp_path / "data", tmp_path / "remote"
    partition = data / f"{TOPIC}-0"
    remote.mkdir()
    broker = Broker(release(version), [data], tiering(remote))
    operator = Operator(
        tmp_path,
        {"/var/lib/kafka/data": data, "/var/lib/remote": remote, "localhost:9092": Path(broker.address)},
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
    believed_in = {one["id"] for one in standing["partitions"][0]["segments"] if one["readable"]}
    assert len(ours) == len(closed)
    assert ours < believed_in
    assert [one for one in standing["summary"]["findings"] if one["harmful"]] == []
    assert broker.complaints() == []
