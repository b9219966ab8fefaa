from __future__ import annotations

import shutil
from base64 import b64decode
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from unittest.mock import create_autospec
from uuid import UUID

import pytest

from resnap.scheduler.job.wiring import scope_of
from resnap.scheduler.settings.settings import Settings
from resnap.storage.errors import ClusterError
from resnap.storage.layouts.local_tiered import object_key
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.names import TopicPartition
from resnap.storage.messages.wire import write_unsigned_varint, write_varint
from resnap.storage.sources.files import Sources
from resnap.storage.sources.log_dirs import open_source
from resnap.storage.stores.local import LocalObjectStore
from resnap.storage.words import instant
from resnap.tiering.cluster.client import Cluster
from resnap.tiering.cluster.facts import ClusterFacts, PartitionFacts, TopicFacts
from resnap.tiering.remote_log.comparison import FindingKind
from resnap.tiering.remote_log.records import METADATA_TOPIC, SegmentState, encode_record
from resnap.tiering.remote_status import read_status
from resnap.tiering.selection import Scope
from tests.tiering.remote_log.written_records import (
    PARTITION,
    append_records,
    copied,
    segment_id,
    started,
    updated,
    write_metadata_partition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.stores.protocol import ObjectInfo
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

JSON = ("--output", "json")
OLD = [*copied("a", 0, 9), *copied("b", 10, 19)]


@pytest.fixture
def tiered(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    return shutil.copytree(fixture_set("kafka-3.9.1-tiered").root, tmp_path / "tiered")


def kinds(document: dict[str, object]) -> dict[str, int]:
    summary: dict[str, list[dict[str, object]]] = document["summary"]  # type: ignore[assignment]
    return {str(finding["kind"]): int(str(finding["count"])) for finding in summary["findings"]}


def test_what_a_broker_tiered_is_all_there_and_nothing_is_amiss(command: Resnap, tiered: Path) -> None:
    ran = command("remote", "status", tiered / "data", "--store", (tiered / "remote").as_uri(), *JSON)
    assert (ran.code, ran.err) == (0, "")
    assert ran.document["summary"]["metadataPartitions"] == [0, 1, 2]
    assert kinds(ran.document) == {}
    spans = [(row["partition"], row["startOffset"], row["endOffset"]) for row in ran.document["partitions"]]
    assert spans == [(0, 0, 515), (1, 0, 534)]
    said = command("remote", "status", tiered / "data").out.splitlines()
    assert said[-1] == "Next: the same command with --store URL, which compares with the store, too."
    said = command("remote", "status", tiered / "data", "--store", (tiered / "remote").as_uri()).out.splitlines()
    assert said[-1] == "Next: nothing is left to do: brokers, disk and store agree."
    states = {segment["state"] for row in ran.document["partitions"] for segment in row["segments"]}
    assert states == {"COPY_SEGMENT_FINISHED"}


@pytest.mark.parametrize("name", ["plain", "zstd", "encrypted"])
def test_what_brokers_tiered_through_a_plugin_is_all_there_but_what_is_taken_away(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, name: str
) -> None:
    tiered = shutil.copytree(fixture_set(f"kafka-3.9.1-aiven-{name}").root, tmp_path / "tiered")
    asked = ("remote", "status", tiered / "data", "--store", (tiered / "remote").as_uri(), *JSON)
    ran = command(*asked)
    assert (ran.code, kinds(ran.document)) == (0, {})
    gone = min((tiered / "remote").rglob("*.indexes"))
    gone.unlink()
    ran = command(*asked)
    assert (ran.code, kinds(ran.document)) == (13, {"missing-objects": 1})
    assert f"{gone.stem[21:]} at {int(gone.name[:20])} lacks indexes" in ran.error["message"]


def test_missing_objects_and_unknown_objects_are_distinguished(command: Resnap, tiered: Path) -> None:
    folder = next((tiered / "remote" / "kafka-tiered-storage").glob("payments-0-*"))
    logs = sorted(folder.glob("*.log"))
    for extension in ("log", "snapshot"):
        shutil.copy(logs[0].with_suffix(f".{extension}"), folder / f"{7:020d}-AAAAAAAAQACAAAAAAAAAAQ.{extension}")
    logs[1].unlink()
    ran = command("remote", "status", tiered / "data", "--store", (tiered / "remote").as_uri(), *JSON)
    assert ran.code == 13
    assert kinds(ran.document) == {"missing-objects": 1, "unreferenced-objects": 1}
    assert "payments-0: missing-objects" in ran.error["message"]


@dataclass
class BusyStore(LocalObjectStore):
    """A folder that brokers go on with at the moment when it is listed."""

    folder: Path
    goes_on: Callable[[], None]

    def __post_init__(self) -> None:
        super().__init__(self.folder)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self.goes_on()
        return super().list(prefix)


def test_what_brokers_copy_and_delete_during_the_reading_is_not_a_problem(tmp_path: Path) -> None:
    data, remote, log = tmp_path / "data", tmp_path / "remote", write_metadata_partition(tmp_path / "data", OLD)

    def put(name: str, start: int) -> Path:
        place = TopicPartition(PARTITION.name, PARTITION.partition)
        of = UUID(bytes=b64decode(f"{segment_id(name).id}==", "-_"))
        for kind in set(ObjectKind) - {ObjectKind.TXN_INDEX}:
            path = remote / object_key(place, PARTITION.id, start, of, kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        return path.parent

    folder = put("a", 0)
    put("b", 10)

    def goes_on() -> None:
        deletes = [
            updated("a", SegmentState.DELETE_SEGMENT_STARTED),
            updated("a", SegmentState.DELETE_SEGMENT_FINISHED),
        ]
        append_records(log, [*copied("c", 20, 29), *deletes, started("d", 30, 39)], at=len(OLD))
        put("c", 20)
        put("d", 30)
        for path in folder.glob(f"{0:020d}-*"):
            path.unlink()

    def survey() -> list[LogDir]:
        return [open_source(str(data), Sources())]

    scope = scope_of(Settings(), [str(data)])
    status = read_status(survey, scope, BusyStore(remote, goes_on), now_ms=0, overdue_ms=1, warn=pytest.fail)
    (one,) = status.comparison.partitions
    assert (one.cache.start_offset, one.cache.end_offset, status.comparison.findings) == (10, 30, [])
    assert one.cache.copying is not None
    assert one.cache.copying.start_offset == 30


def test_a_leader_that_does_not_answer_is_named_once_and_not_asked_again(tmp_path: Path) -> None:
    leads, silent = PartitionFacts(partition=0, leader=1), PartitionFacts(partition=0, leader=2)
    tiered = TopicFacts(
        name=PARTITION.name, topic_id=PARTITION.id, settings={"remote.storage.enable": "true"}, partitions={0: silent}
    )
    metadata = TopicFacts(name=METADATA_TOPIC, topic_id=None, settings={}, partitions={0: leads})
    topics = {topic.name: topic for topic in (tiered, metadata)}
    cluster, said = create_autospec(Cluster, instance=True), list[str]()
    cluster.facts.return_value = ClusterFacts(cluster_id=None, topics=topics, silent={2: "no route"})
    cluster.read.side_effect = lambda *_: enumerate(map(encode_record, OLD))
    cluster.ask.side_effect = ClusterError("no route")
    cluster.timestamps.return_value = cluster.first_since.return_value = {}
    nothing = LocalObjectStore(tmp_path)
    status = read_status(list, Scope(sources=()), nothing, cluster, now_ms=0, overdue_ms=1, warn=said.append)
    assert {finding.kind for finding in status.comparison.findings} == {FindingKind.MISSING_OBJECTS}
    assert (cluster.read.call_count, cluster.ask.call_count) == (2, 0)
    assert said == ["whether segments that broker 2 leads wait to be copied is not known: no route"]


OBJECTS: Final = {"log": 678, "indexes": 76, "rsm-manifest": 687}
MAIN_PATH: Final = f"payments-{PARTITION.id}/0/{0:020d}-{segment_id('a').id}"


def custom_metadata_of_a_plugin(
    size: int = sum(OBJECTS.values()), prefix: str = "tiered/", key: str = MAIN_PATH
) -> bytes:
    """Custom metadata with all three fields."""
    fields = [write_varint(size), *(write_unsigned_varint(len(text) + 1) + text.encode() for text in (prefix, key))]
    return b"\3" + b"".join(bytes([tag, len(field)]) + field for tag, field in enumerate(fields))


def of_a_plugin(command: Resnap, root: Path, told: bytes, *, at: str = "tiered/", store: str = "") -> Ran:
    """Ask about a segment whose objects lie behind the key prefix ``at``, in a store that begins at ``store``."""
    finished = replace(updated("a", SegmentState.COPY_SEGMENT_FINISHED), custom_metadata=told)
    write_metadata_partition(root / "data", [started("a", 0, 9), finished])
    for suffix, size in OBJECTS.items():
        path = root / "remote" / f"{at}{MAIN_PATH}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    return command("remote", "status", root / "data", "--store", (root / "remote" / store).as_uri(), *JSON)


@pytest.mark.parametrize(("at", "store"), [("tiered/", ""), ("tiered/", "tiered"), ("mount/tiered/", "")])
def test_what_a_plugin_recorded_of_a_segment_is_shown_and_compared(
    command: Resnap, tmp_path: Path, at: str, store: str
) -> None:
    ran = of_a_plugin(command, tmp_path, custom_metadata_of_a_plugin(), at=at, store=store)
    assert (ran.code, kinds(ran.document)) == (0, {})
    ((shown,),) = ([segment["customMetadata"] for segment in row["segments"]] for row in ran.document["partitions"])
    assert shown == {
        "bytes": custom_metadata_of_a_plugin().hex(),
        "remoteSize": 1441,
        "objectPrefix": "tiered/",
        "objectKey": MAIN_PATH,
    }


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            custom_metadata_of_a_plugin(prefix="old/"),
            f"lies at tiered/{MAIN_PATH}, and its metadata say old/{MAIN_PATH}",
        ),
        (
            custom_metadata_of_a_plugin(prefix="tiered/odd-"),
            f"lies at tiered/{MAIN_PATH}, and its metadata say tiered/odd-{MAIN_PATH}",
        ),
        (custom_metadata_of_a_plugin(size=1440), "has 1441 bytes, and its metadata say 1440"),
        (b"\3\0\2", "has custom metadata that the plugin cannot read"),
    ],
)
def test_objects_other_than_a_plugin_recorded_are_harm(command: Resnap, tmp_path: Path, told: bytes, said: str) -> None:
    ran = of_a_plugin(command, tmp_path, told)
    assert (ran.code, kinds(ran.document)) == (13, {"contradicted": 1})
    assert f"{segment_id('a').id} at 0 {said}" in ran.error["message"]


def test_custom_metadata_of_another_plugin_are_left_alone(command: Resnap, tmp_path: Path) -> None:
    finished = replace(updated("a", SegmentState.COPY_SEGMENT_FINISHED), custom_metadata=b"anything")
    write_metadata_partition(tmp_path / "data", [started("a", 0, 9), finished])
    ran = command("remote", "status", tmp_path / "data", *JSON)
    assert (ran.code, kinds(ran.document)) == (0, {})
    assert [segment["customMetadata"] for segment in ran.document["partitions"][0]["segments"]] == [
        {"bytes": b"anything".hex()}
    ]


def test_orphans_cost_room_and_do_no_harm(command: Resnap, tmp_path: Path) -> None:
    write_metadata_partition(tmp_path / "data", [started("x", 0, 9), started("y", 0, 9), *copied("a", 0, 9)])
    ran = command("remote", "status", tmp_path / "data")
    assert ran.code == 0
    assert "payments-0  [0, 10)         1  100 B        2         0  -" in ran.out
    assert "orphans: payments-0: 2 (200 B): copying began and was never finished" in ran.out
    assert ran.out.splitlines()[-1].startswith("Next: nothing stops tiering; `resnap gc URL` shows")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([*copied("a", 0, 9), *copied("b", 15, 29)], "gap"),
        ([*copied("a", 0, 9), b"\1\0\0"], "poison"),
    ],
)
def test_what_loses_records_or_stops_tiering_is_an_error(
    command: Resnap, tmp_path: Path, values: list[object], kind: str
) -> None:
    write_metadata_partition(tmp_path / "data", values)  # type: ignore[arg-type]
    ran = command("remote", "status", tmp_path / "data", *JSON)
    assert (ran.code, kinds(ran.document)) == (13, {kind: 1})
    said = command("remote", "status", tmp_path / "data").out.splitlines()[-1]
    assert said == "Next: the same command again, once what the errors name is repaired, as their hints say."


def test_a_log_that_begins_above_what_is_remote_has_a_hole(command: Resnap, tiered: Path) -> None:
    for path in (tiered / "data").glob("__remote_log_metadata-*"):
        shutil.rmtree(path)
    partition_id = (tiered / "data" / "payments-0" / "partition.metadata").read_text().split()[-1]
    assert partition_id == PARTITION.id
    for path in (tiered / "data" / "payments-0").glob("*"):
        if path.stem.isdigit() and int(path.stem) < 386:
            path.unlink()
    write_metadata_partition(tiered / "data", copied("a", 0, 129))
    ran = command("remote", "status", tiered / "data", *JSON)
    assert (ran.code, kinds(ran.document)) == (13, {"not-copied": 1, "hole": 1})
    assert "remote segments end at 130, and the log on this disk begins at 386" in ran.error["message"]


def without_last_record(log: Path) -> None:
    """Cut the last batch off a segment of the metadata topic."""
    data, position, last = log.read_bytes(), 0, 0
    while position < len(data):
        last, position = position, position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    log.write_bytes(data[:last])


def test_a_copy_that_began_and_never_ended_is_named_with_its_broker_and_fails_beyond_an_age(
    command: Resnap, tiered: Path
) -> None:
    without_last_record(tiered / "data" / "__remote_log_metadata-1" / f"{0:020d}.log")
    asked = ("remote", "status", tiered / "data", "--store", (tiered / "remote").as_uri())
    ran = command(*asked, *JSON)
    assert (ran.code, kinds(ran.document)) == (13, {"not-copied": 1})
    (row,) = (partition for partition in ran.document["partitions"] if partition["waiting"] is not None)
    assert (row["partition"], row["endOffset"], row["waiting"]["offset"]) == (1, 393, 393)
    assert (row["waiting"]["segments"], row["waiting"]["isEstimate"]) == (1, False)
    assert row["waiting"]["bytes"] == (tiered / "data" / "payments-1" / f"{393:020d}.log").stat().st_size
    (copy,) = (segment for segment in row["segments"] if segment["state"] == "COPY_SEGMENT_STARTED")
    said = f"broker {copy['brokerId']} began to copy [393, 534) at "
    assert said in ran.error["message"]
    assert f"as {row['copying']}, and has not finished" in ran.error["message"]
    assert row["waiting"]["since"] <= instant(copy["eventTimestampMs"])
    printed = command(*asked)
    assert (printed.code, said in printed.out) == (13, True)
    ran = command(*asked, "--copy-overdue-after", "365000d", *JSON)
    assert (ran.code, kinds(ran.document)) == (0, {})
    assert [partition["waiting"] is not None for partition in ran.document["partitions"]] == [False, True]
    assert "wait to be copied, and none for too long" in command(*asked, "--copy-overdue-after", "365000d").out


def test_closed_segments_wait_whatever_the_cause_but_not_above_the_high_watermark(
    command: Resnap, tiered: Path
) -> None:
    for path in (tiered / "data").glob("__remote_log_metadata-*"):
        shutil.rmtree(path)
    write_metadata_partition(tiered / "data", copied("a", 0, 129))
    asked = ("remote", "status", tiered / "data", "--copy-overdue-after", "0s", *JSON)

    def waiting() -> list[int] | None:
        ran = command(*asked)
        (row,) = ran.document["partitions"]
        assert ran.code == (0 if row["waiting"] is None else 13), ran.err
        return row["waiting"] and [row["waiting"][name] for name in ("offset", "segments", "bytes")]

    closed = [tiered / "data" / "payments-0" / f"{start:020d}.log" for start in (130, 262, 386)]
    assert waiting() == [130, 3, sum(path.stat().st_size for path in closed)]
    checkpoint = tiered / "data" / "replication-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()
    checkpoint.write_text("".join("payments 0 300\n" if one.startswith("payments 0 ") else f"{one}\n" for one in lines))
    assert waiting() == [130, 1, closed[0].stat().st_size]
    (tiered / "data" / "log-start-offset-checkpoint").write_text("0\n1\npayments 0 262\n")
    assert waiting() is None


def test_an_unknown_topic_is_a_usage_error_and_not_a_success(command: Resnap, tmp_path: Path) -> None:
    write_metadata_partition(tmp_path / "data", OLD)
    assert command("remote", "status", tmp_path / "data", "--topic", "pay*").code == 0
    ran = command("remote", "status", tmp_path / "data", "--topic", "paymets")
    assert ran.code == 2
    assert "names no topic that matches --topic paymets" in ran.err


def test_another_store_is_reported_in_a_few_words(command: Resnap, tmp_path: Path) -> None:
    many = [one for name in "abcdefgh" for one in copied(name, 10 * ord(name), 10 * ord(name) + 9)]
    write_metadata_partition(tmp_path / "data", many)
    (tmp_path / "other").mkdir()
    ran = command("remote", "status", tmp_path / "data", "--store", (tmp_path / "other").as_uri(), *JSON)
    assert (ran.code, kinds(ran.document)) == (13, {"missing-objects": 8})
    assert ran.error["message"].count("lacks all") == 5
    assert ran.error["message"].endswith("; and 3 more")
    assert "check the URL; if it is right, bring them back" in ran.error["hint"]


def test_a_loss_in_the_right_store_is_not_called_a_wrong_url(command: Resnap, tiered: Path) -> None:
    remote = tiered / "remote" / "kafka-tiered-storage"
    for path in remote.glob("payments-0-*/*"):
        path.unlink()
    ran = command("remote", "status", tiered / "data", "--store", remote.as_uri(), *JSON)
    assert (ran.code, kinds(ran.document)) == (13, {"missing-objects": 4})
    assert ran.error["hint"].startswith("bring them back")


def test_a_log_dir_without_the_metadata_topic_is_a_usage_error(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    ran = command("remote", "status", fixture_set("kafka-3.9.1-kraft").data)
    assert ran.code == 2
    assert "no partition of __remote_log_metadata lies in" in ran.err
