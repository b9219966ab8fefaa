"""A log dir and the remote part of its partitions, read as one log."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.remote_log.records import RemoteLogSegmentId, TopicIdPartition, metadata_partition
from tests.fixture_sets import AIVEN
from tests.scheduler.shipped import entries, files_of
from tests.tiering.remote_log.written_records import append_records, started
from tests.tiering.replicas import Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resnap.storage.stores.protocol import ObjectInfo
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

    Sets = Callable[[str], FixtureSet]

PLAIN: Final = "kafka-3.9.1-aiven-plain"
ROLL: Final = ("--as-of", "roll", "--engine", "local", "-q")
PARTITION: Final = ("--partition", "payments-0")


def key_of(fixture: FixtureSet) -> list[str]:
    private = fixture.root / "keys" / "private.pem"
    return ["--encryption-private-key", f"key1={private}"] if private.exists() else []


def bases(partition: Path) -> list[int]:
    return sorted(int(path.stem) for path in partition.glob("*.log"))


def without_segments_below(log_dir: Path, copy: Path, offset: int) -> Path:
    """Return a copy of ``log_dir`` in which local retention has taken what lies below ``offset`` of payments-0."""
    shutil.copytree(log_dir, copy)
    for path in (copy / "payments-0").iterdir():
        if path.stem.isdigit() and int(path.stem) < offset:
            path.unlink()
    return copy


@pytest.fixture
def tiered(fixture_set: Sets, tmp_path: Path) -> tuple[FixtureSet, Path, str]:
    """A set, its log dir without the segments that are only in remote storage, and the URL of that."""
    fixture = fixture_set(PLAIN)
    first = bases(fixture.data / "payments-0")[2]
    local = without_segments_below(fixture.data, tmp_path / "data", first)
    return fixture, local, f"{fixture.remote.as_uri()}/tiered"


@pytest.mark.parametrize("name", AIVEN)
def test_snapshots_of_a_log_dir_are_made_of_what_was_tiered_as_if_the_whole_log_were_there(
    name: str, command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set(name)
    first = bases(fixture.data / "payments-0")[2]
    local = without_segments_below(fixture.data, tmp_path / "data", first)
    how = ("--boundaries", "all", *PARTITION, *ROLL)
    whole = command("regenerate", fixture.data, "--into", tmp_path / "whole", *how)
    joined = command(
        "regenerate", local, "--remote", fixture.remote.as_uri(), "--key-prefix", "tiered/", "--into",
        tmp_path / "joined", *how, *key_of(fixture),
    )  # fmt: skip
    assert (whole.code, joined.code) == (0, 0), joined.err
    made, expected = (files_of(tmp_path / place / "payments-0") for place in ("joined", "whole"))
    log_end = max((local / "payments-0").glob("*.snapshot"))
    assert entries(made.pop(log_end.name)) == entries(log_end.read_bytes())
    assert made.keys() == {one for one in expected if not one[:20].isdigit() or int(one[:20]) >= first}
    for one in made:
        assert one == "fingerprint.json" or made[one] == expected[one], one


def scanned(command: Resnap, log_dir: Path, *arguments: object) -> dict[str, Any]:
    ran = command("scan", log_dir, *PARTITION, *arguments, "--output", "json")
    assert ran.code == 0, ran.err
    row: dict[str, Any] = ran.document["partitions"][0]
    return row


def test_a_scan_counts_both_parts_and_what_may_be_shipped_of_the_log_dir_alone(
    command: Resnap, tiered: tuple[FixtureSet, Path, str]
) -> None:
    fixture, local, remote = tiered
    both, alone = scanned(command, local, "--remote", remote), scanned(command, local)
    whole = scanned(command, fixture.data)
    assert both["segments"] == whole["segments"] == alone["segments"] + 2
    assert both["boundaries"] == whole["boundaries"]
    assert both["brokerStops"] == alone["brokerStops"]


def test_tier_ships_what_lies_in_the_log_dir_and_nothing_that_is_remote(
    command: Resnap, tiered: tuple[FixtureSet, Path, str], tmp_path: Path
) -> None:
    _, local, remote = tiered
    ran = command("tier", local, "--remote", remote, "--to", (tmp_path / "store").as_uri(), *PARTITION, *ROLL,
                  "--output", "json")  # fmt: skip
    assert ran.code == 0, ran.err
    shipped = [one["baseOffset"] for one in ran.document["partitions"][0]["shipped"]]
    assert shipped == bases(local / "payments-0")[:-1]


def test_a_key_prefix_of_the_remote_part_says_nothing_of_where_segments_are_shipped(
    command: Resnap, tiered: tuple[FixtureSet, Path, str], tmp_path: Path
) -> None:
    fixture, local, _ = tiered
    ran = command("tier", local, "--remote", fixture.remote.as_uri(), "--key-prefix", "tiered/", "--to",
                  (tmp_path / "store").as_uri(), *PARTITION, *ROLL, "--output", "json")  # fmt: skip
    assert ran.code == 0, ran.err
    shipped = [one["baseOffset"] for one in ran.document["partitions"][0]["shipped"]]
    assert shipped == bases(local / "payments-0")[:-1]
    assert not (tmp_path / "store" / "tiered").exists()


def test_snapshots_beside_the_segments_are_proven_by_what_lies_below_them_in_remote_storage(
    command: Resnap, tiered: tuple[FixtureSet, Path, str]
) -> None:
    _, local, remote = tiered
    ran = command("verify", local, "--remote", remote, *PARTITION, *ROLL, "--output", "json")
    assert ran.code == 0, ran.err
    rows = ran.document["boundaries"]
    assert {row["verdict"] for row in rows} == {"proven"}
    assert {row["knownFromOffset"] for row in rows} == {0}
    assert [row["offset"] for row in rows] == bases(local / "payments-0")


def test_an_entry_is_explained_by_batches_that_are_remote(
    command: Resnap, tiered: tuple[FixtureSet, Path, str]
) -> None:
    fixture, local, remote = tiered
    offset = bases(local / "payments-0")[1]
    ran = command("explain", local, "payments-0", offset, "--remote", remote, "--output", "json")
    whole = command("explain", fixture.data, "payments-0", offset, "--output", "json")
    assert ran.code == whole.code == 0, ran.err
    assert ran.document["batches"] == whole.document["batches"]
    assert any(batch["baseOffset"] < bases(local / "payments-0")[0] for batch in ran.document["batches"])


def refused(ran: Ran) -> str:
    assert ran.code not in {0, 4}, ran.out
    return ran.err


def test_what_does_not_join_is_named_and_not_read_as_a_healthy_log(
    command: Resnap, tiered: tuple[FixtureSet, Path, str], tmp_path: Path
) -> None:
    fixture, local, remote = tiered
    shutil.copytree(fixture.remote, tmp_path / "short")
    for path in (tmp_path / "short").rglob("*/0/*"):
        if not path.name.startswith("00000000000000000000"):
            path.unlink()
    short = refused(command("scan", local, *PARTITION, "--remote", f"{(tmp_path / 'short').as_uri()}/tiered"))
    assert "the offsets between are missing" in short
    assert str(local / "payments-0") in short

    other = tmp_path / "other"
    shutil.copytree(local, other)
    metadata = other / "payments-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAQ\n")
    assert "AAAAAAAAQACAAAAAAAAAAQ" in refused(command("scan", other, *PARTITION, "--remote", remote))

    changed = tmp_path / "changed"
    shutil.copytree(local, changed)
    log = min((changed / "payments-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[17] ^= 1  # in the checksum of the first batch
    log.write_bytes(data)
    text = refused(command("scan", changed, *PARTITION, "--remote", remote))
    assert "different batches at offset" in text
    assert str(changed) in text
    assert remote in text

    nothing = (tmp_path / "nothing").as_uri()
    assert nothing.removeprefix("file://") in refused(command("scan", local, *PARTITION, "--remote", nothing))


def merged(log_dir: Path, copy: Path) -> Path:
    """Return a copy of ``log_dir`` as of a replica that rolled payments-0 once where the other one rolled twice."""
    shutil.copytree(log_dir, copy)
    first, second, *_ = (copy / "payments-0" / f"{base:020}.log" for base in bases(copy / "payments-0"))
    for path in (*first.parent.glob(f"{first.stem}.*"), *first.parent.glob(f"{second.stem}.*")):
        if path.suffix not in {".log", ".txnindex"}:
            path.unlink()
    for suffix in (".log", ".txnindex"):
        whole = first.with_suffix(suffix).read_bytes() + second.with_suffix(suffix).read_bytes()
        first.with_suffix(suffix).write_bytes(whole)
        second.with_suffix(suffix).unlink()
    return copy


def test_a_remote_segment_counts_up_to_where_the_log_dir_begins(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    data = fixture_set(PLAIN).data
    replica, store = merged(data, tmp_path / "replica"), (tmp_path / "store").as_uri()
    shipped = command("tier", replica, "--to", store, *PARTITION, *ROLL)
    assert shipped.code == 0, shipped.err
    local = without_segments_below(data, tmp_path / "local", bases(data / "payments-0")[1])
    made = {}
    for name, arguments in (("joined", (local, "--remote", store)), ("whole", (data,))):
        ran = command("regenerate", *arguments, "--into", tmp_path / name, "--boundaries", "all", *PARTITION, *ROLL)
        assert ran.code == 0, ran.err
        made[name] = files_of(tmp_path / name / "payments-0")
    log_end = max((local / "payments-0").glob("*.snapshot"))
    assert made["joined"].keys() == made["whole"].keys() | {log_end.name}
    for one in made["whole"].keys() - {"fingerprint.json"}:
        assert made["joined"][one] == made["whole"][one], one


def test_without_the_key_of_encrypted_segments_nothing_is_taken_for_known(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set("kafka-3.9.1-aiven-encrypted")
    local = without_segments_below(fixture.data, tmp_path / "data", bases(fixture.data / "payments-0")[1])
    ran = command("plan", local, "--remote", f"{fixture.remote.as_uri()}/tiered", *PARTITION, "-q")
    assert ran.code == 3, ran.err
    assert "key1" in ran.err


def test_a_replay_begins_where_the_window_does_in_remote_segments(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    data = fixture_set("kafka-2.7.2-nine-days").data
    how = ("--producer-id-expiration-ms", 172_800_000, *PARTITION, *ROLL)
    assert command("tier", data, "--to", (tmp_path / "store").as_uri(), *how).code == 0
    local = without_segments_below(data, tmp_path / "local", bases(data / "payments-0")[-5])
    ran = command("plan", local, "--remote", (tmp_path / "store").as_uri(), "--boundaries", "all", "--output", "json",
                  *how[:-3], "-q")  # fmt: skip
    assert ran.code == 0, ran.err
    (row,) = ran.document["partitions"]
    (read,) = row["runs"]
    assert 0 < read["baseOffset"] < bases(local / "payments-0")[0]


def test_a_store_of_another_cluster_is_refused_and_what_is_whole_in_the_log_dir_needs_no_store(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    data = fixture_set(PLAIN).data
    assert command("tier", data, "--to", (tmp_path / "store").as_uri(), *PARTITION, *ROLL).code == 0
    local = without_segments_below(data, tmp_path / "local", bases(data / "payments-0")[1])
    meta = local / "meta.properties"
    text = meta.read_text()
    (line,) = (one for one in text.splitlines() if one.startswith("cluster.id="))
    meta.write_text(text.replace(line, "cluster.id=BBBBBBBBQACAAAAAAAAAAQ"))
    text = refused(command("scan", local, "--remote", (tmp_path / "store").as_uri()))
    assert line.removeprefix("cluster.id=") in text
    assert "BBBBBBBBQACAAAAAAAAAAQ" in text
    other = command("scan", data, "--partition", "payments-1", "--remote", (tmp_path / "store").as_uri())
    assert other.code == 0, other.err


def test_a_place_where_nothing_was_tiered_is_distinguished_from_a_log_dir(
    command: Resnap, tiered: tuple[FixtureSet, Path, str], tmp_path: Path
) -> None:
    fixture, local, remote = tiered
    (tmp_path / "empty").mkdir()
    for ran in (
        command("scan", local, "--remote", (tmp_path / "empty").as_uri()),
        command("scan", local, "--remote", fixture.remote.as_uri()),  # without --key-prefix
        command("restore", (tmp_path / "empty").as_uri(), "--into", tmp_path / "restored"),
    ):
        text = refused(ran)
        assert "holds no tiered segment" in text
        assert "prefix that brokers tier to" in text
        assert "--key-prefix" in text
    text = refused(command("check", remote))
    assert "holds tiered segments, and is not a log dir" in text
    assert f"`resnap verify {remote}`" in text


def without_segments_of_both(data: Path, copy: Path) -> Path:
    """Return a copy of ``data`` in which retention has taken the first two local segments of both partitions."""
    shutil.copytree(data, copy)
    for partition in (copy / "payments-0", copy / "payments-1"):
        for base in bases(partition)[:2]:
            for path in partition.glob(f"{base:020}.*"):
                path.unlink()
    return copy


def test_what_brokers_have_not_finished_or_deleted_does_not_count_where_their_metadata_say_so(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set("kafka-3.9.1-tiered")
    local = without_segments_of_both(fixture.data, tmp_path / "data")
    remote = shutil.copytree(fixture.remote, tmp_path / "remote")
    asked = ("scan", local, *PARTITION, "--remote", remote.as_uri(), "--output", "json")
    whole = command(*asked)
    assert whole.code == 0, whole.err
    # A copy that a broker began at the offsets of another one, and never finished: what lies of it is cut off.
    (first,) = remote.rglob(f"payments-0-*/{0:020}-*.log")
    segment, topic_id = first.stem[21:], first.parent.name.removeprefix("payments-0-")
    unfinished = RemoteLogSegmentId(
        topic_id_partition=TopicIdPartition(name="payments", id=topic_id, partition=0), id="BBBBBBBBQACAAAAAAAAAAQ"
    )
    for path in first.parent.glob(f"{0:020}-{segment}.*"):
        copy = path.with_name(path.name.replace(segment, unfinished.id).replace(f"{0:020}", f"{3:020}"))
        copy.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert command(*asked).code != 0, "a listing takes it for a segment"
    number = metadata_partition(unfinished.topic_id_partition, 3)
    (log,) = (local / f"__remote_log_metadata-{number}").glob("*.log")
    append_records(log, [replace(started("x", 3, 9), remote_log_segment_id=unfinished)], at=1000)
    told = command(*asked)
    assert (told.code, told.document) == (0, whole.document), told.err

    for path in first.parent.glob("*"):
        path.unlink()
    ran = command(*asked)
    assert ran.code not in {0, 4}
    assert f"brokers know the segments {segment}" in ran.err


def test_snapshots_missing_below_what_brokers_have_tiered_block_nothing_where_their_metadata_are_there(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set("kafka-3.9.1-tiered")
    local = shutil.copytree(fixture.data, tmp_path / "data")
    for offset in (130, 262):
        (local / "payments-0" / f"{offset:020}.snapshot").unlink()
    asked, store = (local, "--topic", "payments", "--output", "json"), ("--remote", fixture.remote.as_uri())
    for more in ((), store):
        assert command("check", *asked, *more).code == 0
        rows = command("scan", *asked, *more).document["partitions"]
        assert [row["brokerStops"] for row in rows] == [None, None]
    for path in local.glob("__remote_log_metadata-*"):  # another broker has that part
        shutil.rmtree(path)
    [alone], [beside] = (command("check", *asked, *more).document["topics"] for more in ((), store))
    hints = [row["blockers"][0]["hint"] for row in (alone, beside)]
    assert (
        hints[1] == f"{hints[0]}; segments in {store[1]} that brokers know stop nothing; --bootstrap-server shows which"
    )


def test_metadata_that_cannot_be_read_are_named_and_the_store_counts_as_it_is_listed(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set("kafka-3.9.1-tiered")
    local = without_segments_of_both(fixture.data, tmp_path / "data")
    asked = ("scan", local, "--topic", "payments", "--remote", fixture.remote.as_uri(), "--output", "json")
    whole = command(*asked)
    log = max(local.glob("__remote_log_metadata-*/*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    ran = command(*asked)
    assert (ran.code, ran.document["partitions"]) == (3, whole.document["partitions"])
    assert str(log) in ran.err


def test_a_store_is_listed_once_for_all_log_dirs(
    command: Resnap, fixture_set: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = fixture_set("kafka-3.9.1-tiered")
    local = without_segments_of_both(fixture.data, tmp_path / "data")
    other = tmp_path / "other"
    other.mkdir()
    (local / "payments-1").rename(other / "payments-1")
    for path in local.iterdir():
        if path.is_file():
            shutil.copy(path, other)
    listings: list[str] = []
    plain = LocalObjectStore.list

    def counted(self: LocalObjectStore, prefix: str = "") -> Iterator[ObjectInfo]:
        listings.append(prefix)
        return plain(self, prefix)

    monkeypatch.setattr(LocalObjectStore, "list", counted)
    asked = ("--remote", fixture.remote.as_uri(), "--topic", "payments", "--output", "json")
    one = command("scan", local, *asked)
    once = len(listings)
    both = command("scan", local, other, *asked)
    assert (one.code, both.code) == (0, 0), both.err
    assert [row["partition"] for row in both.document["partitions"]] == [0, 1]
    assert len(listings) == 2 * once


ONE_LOG: Final = {
    "the same": ({}, {}),
    "the remote part has another end, which was lost": ({}, {"elections": (7, 15)}),
    "the remote part has other batches from where the log dir begins, which were lost": (
        {"elections": (7,)}, {"elections": (7, 12), "producer_id": 8}),
}  # fmt: skip
NOT_ONE_LOG: Final = {
    "other batches under the same leader epochs": ({"producer_id": 8}, {}, "have different batches at offset 12"),
    "below, batches of a later leader epoch": ({"elections": (7, 9)}, {}, "is of leader epoch 2, a later one"),
    "the same, where nothing overlaps": (
        {"elections": (7, 9), "cuts": (6, 12)}, {}, "is of leader epoch 2, a later one"),
    "a gap": ({"cuts": (6, 9)}, {}, "what file://"),
}  # fmt: skip


def parts(root: Path, remote: dict[str, Any], local: dict[str, Any]) -> tuple[object, ...]:
    """Ship one replica, and return the command that explains another one, of the offsets from 12 on, with it."""
    Replica(root / "other", **{"cuts": (6, 12, 18), **remote}).ship(LocalObjectStore(root / "store"))
    data = Replica(root / "own", cuts=(18,), start=12, **local).data
    (data / "log-start-offset-checkpoint").write_text("0\n1\npayments 0 0\n")
    return "explain", data, "payments-0", 24, "--remote", (root / "store").as_uri(), "--output", "json"


@pytest.mark.parametrize(("remote", "local"), ONE_LOG.values(), ids=ONE_LOG)
def test_where_both_parts_have_an_offset_leader_epochs_decide_for_the_log_dir(
    command: Resnap, tmp_path: Path, remote: dict[str, Any], local: dict[str, Any]
) -> None:
    ran = command(*parts(tmp_path, remote, local))
    assert ran.code == 0, ran.err
    last = {row["producerId"]: row["lastOffset"] for row in ran.document["batches"] if row["role"] == "last-batch"}
    assert last == ({7: 11, 8: 23} if "producer_id" in local else {7: 23})
    assert sum(row["batches"] for row in ran.document["batches"] if row["role"] == "last-batch") == 24


@pytest.mark.parametrize(("remote", "local", "said"), NOT_ONE_LOG.values(), ids=NOT_ONE_LOG)
def test_parts_of_which_leader_epochs_say_no_more_are_refused_by_the_names_of_both(
    command: Resnap, tmp_path: Path, remote: dict[str, Any], local: dict[str, Any], said: str
) -> None:
    ran = command(*parts(tmp_path, remote, local))
    assert ran.code == 13, ran.err
    assert said in ran.error["message"]
    assert str(tmp_path / "own/data/payments-0") in ran.error["message"]
    assert (tmp_path / "store").as_uri() in ran.error["message"]
