"""What ``resnap restore`` makes is opened and served by a real broker; what a killed one leaves, a broker removes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from resnap.replay.watching import Progress
from resnap.storage.sources.files import Sources
from resnap.tiering.restore import RestoreOrder, RestoreWork, restore
from resnap.tiering.selection import Scope
from tests.kafka.brokers import Broker, eventually
from tests.scheduler.failing_disk import Killed, killed_at
from tests.scheduler.files import bases
from tests.scheduler.installed import copied

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

PARTITIONS: Final = ("payments-0", "payments-1")
JSON: Final = ("--output", "json")
ABORT: Final = Path(__file__).parent / "Abort.java"


@pytest.fixture
def data(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    return copied(fixture_set("kafka-3.9.1-kraft").data, tmp_path / "data")


def test_a_broker_serves_what_was_restored_and_goes_on_with_it(
    command: Resnap, release: Callable[[str], Release], data: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    to = ("tier", data, "--topic", "payments", "--to", store.as_uri(), "--as-of", "roll", "--engine", "local")
    assert command(*to).code == 0
    broker = Broker(release("3.9.1"), [data])
    for name in PARTITIONS:
        shutil.rmtree(data / name)
    order = RestoreOrder(scope=Scope(sources=(store.as_uri(),)), log_dirs=(data,))
    with pytest.raises(Killed):
        restore(order, RestoreWork(sources=Sources(), progress=Progress(), disk=killed_at(60)), lambda _: None)
    assert list(data.glob("*-delete"))
    with broker.running():
        eventually(lambda: not list(data.glob("*-delete")), "the broker does not remove what was in the making")
    for name in PARTITIONS:
        shutil.rmtree(data / name)  # the broker has created them again, empty
    ran = command("restore", store.as_uri(), "--into", data, *JSON)
    assert ran.code == 0, ran.err
    ends = {f"{row['topic']}-{row['partition']}": row["endOffset"] for row in ran.document["partitions"]}
    since = len(broker.printed())
    snapshots = {name: bases(data / name, "snapshot") for name in PARTITIONS}
    with broker.running():
        first = {name: broker.drive("read", "payments", number) for number, name in enumerate(PARTITIONS)}
        assert all(first.values())
        broker.drive("append", "payments", 0, 20)
    assert broker.complaints(since) == []
    for name in PARTITIONS:
        assert set(snapshots[name]) <= set(bases(data / name, "snapshot"))
    assert max(bases(data / "payments-0", "snapshot")) > ends["payments-0"]
    assert command(*to).code == 0
    assert command("verify", "--store", store.as_uri(), "--engine", "local").code == 0


def test_a_broker_serves_what_comes_back_from_the_layout_of_a_plugin(
    command: Resnap, release: Callable[[str], Release], data: Path, tmp_path: Path
) -> None:
    store, broker = tmp_path / "store", Broker(release("3.9.1"), [data])
    form = ("--layout", "aiven", "--key-prefix", "tiered/", "--chunk-size", 4096, "--chunk-compression", "zstd")
    to = ("--to", store.as_uri(), *form, "--as-of", "roll", "--engine", "local")
    assert command("tier", data, "--topic", "payments", *to).code == 0
    for name in PARTITIONS:
        shutil.rmtree(data / name)
    assert command("restore", f"{store.as_uri()}/tiered", "--into", data).code == 0
    held = {path: path.read_bytes() for name in PARTITIONS for path in (data / name).glob("*.log")}
    with broker.running():
        for number in range(len(PARTITIONS)):
            said = dict(line.split() for line in broker.drive("read", "payments", number).splitlines())
            assert said["start"] == "0"
            assert int(said["records"]) > 0
    assert broker.complaints() == []
    assert all(path.read_bytes().startswith(log) for path, log in held.items())  # none was cut


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.1.1", marks=pytest.mark.heavy), "4.4.0"])
def test_without_a_topic_id_a_broker_sets_a_partition_aside_and_with_it_serves_what_was_restored(
    command: Resnap, release: Callable[[str], Release], fixture_set: Callable[[str], FixtureSet], tmp_path: Path,
    version: str,
) -> None:  # fmt: skip
    fixture, store = fixture_set(f"kafka-{version}-kraft").data, tmp_path / "store"
    unnamed, data = copied(fixture, tmp_path / "unnamed"), copied(fixture, tmp_path / "data")
    topic_id = (data / "payments-0" / "partition.metadata").read_text().split("topic_id: ")[1]
    for name in PARTITIONS:
        (unnamed / name / "partition.metadata").unlink()
        shutil.rmtree(data / name)
    metadata = shutil.move(unnamed / "__cluster_metadata-0", tmp_path / "metadata")
    properties = unnamed / "meta.properties"
    kraft = properties.read_text()  # shipped as by a broker with ZooKeeper, to which the directory is no stray
    plain = (line for line in kraft.splitlines() if not line.startswith("directory.id"))  # which a migration adds
    properties.write_text("\n".join(plain).replace("version=1", "version=0").replace("node.id", "broker.id"))
    to = ("tier", unnamed, "--topic", "payments", "--to", store.as_uri(), "--as-of", "roll", "--engine", "local")
    assert command(*to).code == 0
    assert command("restore", store.as_uri(), "--into", data).code == 2
    assert command("restore", store.as_uri(), "--into", data, "--topic-id", f"payments={topic_id}").code == 0
    with Broker(release(version), [data]).running() as broker:
        assert all(broker.drive("read", "payments", number) for number in range(len(PARTITIONS)))
    assert not list(data.glob("*-stray"))
    shutil.move(metadata, unnamed / "__cluster_metadata-0")
    properties.write_text(kraft)
    with Broker(release(version), [unnamed]).running():
        eventually(lambda: list(unnamed.glob("payments-0.*-stray")), "the broker takes a directory without an id")


def test_removed_records_stay_removed_and_what_is_open_at_the_end_is_ended_by_the_command_that_is_named(
    command: Resnap, release: Callable[[str], Release], data: Path, tmp_path: Path
) -> None:
    store, broker = tmp_path / "store", Broker(release("3.9.1"), [data])
    start = bases(data / "payments-1")[1] + 10
    with broker.running():
        broker.drive("delete", "payments", 1, start)
    tier = ("tier", data, "--topic", "payments", "--to", store.as_uri(), "--as-of", "roll", "--engine", "local")
    assert command(*tier).code == 0
    for name in PARTITIONS:
        shutil.rmtree(data / name)
    (data / "log-start-offset-checkpoint").unlink()  # the disk is a new one
    ran = command("restore", store.as_uri(), "--into", data, *JSON)
    row = next(row for row in ran.document["partitions"] if row["partition"] == 1)
    assert (ran.code, row["logStartOffset"]) == (0, start), ran.err
    (hanging,) = row["openTransactions"]
    assert hanging["firstOffset"] < row["endOffset"]
    (named,) = re.findall(r"kafka-transactions\.sh (\S+ \S+ abort .*?) \(", ran.err)
    named = named.replace("HOST:PORT", broker.address)
    with broker.running():
        before = _said(broker, 1)
        assert (before["start"], before["end"]) == (str(start), str(hanging["firstOffset"]))
        broker.release.run(ABORT, *named.split())
        broker.drive("decide", "payments", 1)
        assert int(_said(broker, 1)["end"]) > row["endOffset"]
    assert broker.complaints() == []


def _said(broker: Broker, partition: int) -> dict[str, str]:
    """Return what a consumer of ``payments`` that reads committed records alone finds."""
    said = broker.drive("read", "payments", partition).splitlines()
    return dict(line.split() for line in said)
