"""`resnap producer census`: producers by topic and age, memory, expiry, and clients that make an id per message."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, load_snapshot, store_snapshot_arrays
from resnap.storage.words import instant
from tests.logs.transaction_log import step, write_segment
from tests.tiering.quota.logs import a_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

NOW_MS = 1_750_000_000_000
HOUR_MS = 3_600_000
AT = ("--engine", "local", "--as-of", instant(NOW_MS))
JSON = ("--output", "json")


def topics(document: Any) -> dict[str, Any]:
    return {row["topic"]: row for row in document["topics"]}


def a_snapshot(data: Path, topic: str, ages_h: Iterable[float], **fields: object) -> Path:
    """Leave a log of one batch, and a snapshot at its end with a producer of each age."""
    a_topic(data, topic, [(NOW_MS - HOUR_MS, 1)])
    ages = np.array([*ages_h])
    entries = np.zeros(len(ages), ENTRY_DTYPE)
    entries["producer_id"] = np.arange(1, len(ages) + 1)
    entries["timestamp"] = NOW_MS - (ages * HOUR_MS).astype(np.int64)
    entries["coordinator_epoch"] = entries["current_txn_first_offset"] = -1
    entries["last_sequence"], entries["offset_delta"] = 9, 4
    for name, value in fields.items():
        entries[name] = value
    path = data / f"{topic}-0" / f"{1:020}.snapshot"
    store_snapshot_arrays(path, [entries], len(entries))
    return path


@pytest.mark.parametrize("name", ["kafka-2.7.2", "kafka-3.9.1-kraft", "kafka-4.4.0-kraft"])
def test_each_partition_has_as_many_producers_as_its_brokers_newest_snapshot_names(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], name: str
) -> None:
    data = fixture_set(name).data
    found = command("producer", "census", data, "--engine", "local", *JSON).document
    newest = {one.name: max(one.glob("*.snapshot")) for one in data.iterdir() if list(one.glob("*.snapshot"))}
    newest.pop("__cluster_metadata-0", None)
    counted = {
        f"{topic}-{row['partition']}": (row["producers"], row["openTransactions"], row["offset"])
        for topic, of_topic in topics(found).items()
        for row in of_topic["partitions"]
        if row["from"] == "snapshot"
    }
    entries = {partition: load_snapshot(path).values() for partition, path in newest.items()}
    assert counted == {
        partition: (len(theirs), sum(one.has_open_transaction for one in theirs), int(newest[partition].stem))
        for partition, theirs in entries.items()
    }
    total = sum(map(len, entries.values()))
    assert (found["summary"]["producers"], sum(found["summary"]["ages"].values())) == (total, total)


def test_a_topic_whose_producers_wrote_one_batch_each_stands_out(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    found = command("producer", "census", fixture_set("kafka-3.9.1-kraft").data, "--engine", "local", *JSON)
    flagged = {topic: row["oneBatch"] for topic, row in topics(found.document).items() if row["idPerMessage"]}
    assert flagged == {"meta-1": 1_050}
    said = command("producer", "census", fixture_set("kafka-3.9.1-kraft").data, "--engine", "local").out
    assert "meta-1: 1,050 of 1,050 producers wrote a single batch" in said


def test_a_partition_without_a_newest_snapshot_is_replayed_and_says_so(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    whole = fixture_set("kafka-2.7.2").data
    data.mkdir()
    moved = data / "orders-0"
    moved.mkdir()
    for path in (whole / "orders-0").iterdir():
        if path.suffix != ".snapshot":
            (moved / path.name).write_bytes(path.read_bytes())
    boundary = int(max(moved.glob("*.log")).stem)
    expected = load_snapshot(fixture_set("kafka-2.7.2").expected / "orders-0" / f"{boundary:020}.snapshot")
    at = ("--engine", "local", "--as-of", instant(max(one.timestamp for one in expected.values())))
    (row,) = topics(command("producer", "census", data, "--engine", "local", *at, *JSON).document)["orders"][
        "partitions"
    ]
    assert (row["from"], row["offset"], row["producers"]) == ("replay", boundary, len(expected))
    assert (row["reason"], row["unreadBytes"] > 0) == (f"there is no snapshot, and offset {boundary} has none", True)
    (moved / f"{boundary:020}.snapshot").write_bytes(b"\0" * 56)
    (row,) = topics(command("producer", "census", data, "--engine", "local", *at, *JSON).document)["orders"][
        "partitions"
    ]
    assert (row["from"], row["producers"]) == ("replay", len(expected))
    assert "producer snapshot version" in row["reason"]


def test_what_expires_when_is_exact_under_the_present_and_another_expiration(command: Resnap, tmp_path: Path) -> None:
    ages = [0, 0.5, 1, 1.5, 5.9, 6, 23.9, 24, 47, 200, 10_000]
    a_snapshot(tmp_path, "calm", ages)
    a_snapshot(tmp_path, "hanging", [200], current_txn_first_offset=0)
    odd_ms = 5_000_123
    ran = command(
        "producer", "census", tmp_path, *AT, "--producer-id-expiration-ms", 24 * HOUR_MS, "--under", odd_ms, *JSON
    )
    found, rows = ran.document["summary"], topics(ran.document)
    ahead_h = {"now": 0, "1h": 1, "6h": 6, "1d": 24, "7d": 168}
    for expires, limit_h in zip(found["expires"], (24, odd_ms / HOUR_MS), strict=True):
        assert expires["expired"] == {
            name: sum(age + ahead >= limit_h for age in ages) for name, ahead in ahead_h.items()
        }
        assert expires["neverExpire"] == 1
    assert rows["calm"]["ages"] == {"1h": 2, "6h": 3, "1d": 2, "2d": 2, "7d": 0, "30d": 1, "older": 1}
    assert (rows["calm"]["expired"], rows["calm"]["heapBytes"]) == (4, 7 * 264)
    assert (rows["hanging"]["openTransactions"], rows["hanging"]["heapBytes"]) == (1, 264)


def test_producers_are_counted_by_the_principals_of_a_file(command: Resnap, tmp_path: Path) -> None:
    a_snapshot(tmp_path, "shop", range(10))
    a_snapshot(tmp_path, "mail", range(5))
    owners = tmp_path / "owners.csv"
    owners.write_text("producerId,topic,principal\n1-3,shop,User:alice\n,shop,bob\n")
    ran = command(
        "producer", "census", tmp_path, *AT, "--topic", "shop", "--topic", "mail", "--principal-map", owners, *JSON
    )
    assert ran.document["summary"]["principals"] == {"bob": 7, "unmapped": 5, "alice": 3}
    assert topics(ran.document)["shop"]["principals"] == {"bob": 7, "alice": 3}


def test_transactional_ids_are_named_and_lead_to_principals_where_the_log_dir_has_them(
    command: Resnap, tmp_path: Path
) -> None:
    a_snapshot(tmp_path, "ledger", range(10), coordinator_epoch=3)
    a_snapshot(tmp_path, "audit", range(2), coordinator_epoch=0)
    records = [(0, "billing-1", step(1)), (1, "billing-2", step(2)), (2, "mail", step(7)), (3, "gone", step(99))]
    write_segment(tmp_path, 0, records)
    owners = tmp_path / "owners.csv"
    owners.write_text("producerId,topic,transactionalId,principal\n,,billing-*,alice\n7,,,bob\n99,audit,,carol\n")
    ran = command("producer", "census", tmp_path, *AT, "--principal-map", owners, *JSON)
    found = ran.document["summary"]
    assert found["transactionalIds"] == {"billing-1": 2, "billing-2": 2, "mail": 1}
    assert found["principals"] == {"alice": 4, "bob": 1, "unmapped": 7}
    said = command("producer", "census", tmp_path, *AT).out
    assert "5 producers of 3 transactional ids, most of billing-1 2, billing-2 2, mail 1." in said


def test_times_after_now_are_said_and_counted_as_young(command: Resnap, tmp_path: Path) -> None:
    a_snapshot(tmp_path, "ahead", [-5, 1])
    told = command("producer", "census", tmp_path, *AT).out
    assert "1 producer with a time after 2025-" in told
    assert told.splitlines()[1] == "producers expire after  7 days (assumed)"


def test_what_was_shipped_is_counted_in_its_store(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data, store = fixture_set("kafka-2.7.2").data, (tmp_path / "store").as_uri()
    assert command("tier", data, "--to", store, "--topic", "orders", "--engine", "local", "--full").code == 0
    (row,) = topics(command("producer", "census", store, "--engine", "local", *JSON).document)["orders"]["partitions"]
    boundary = max(int(one.stem) for one in (data / "orders-0").glob("*.log"))
    expected = load_snapshot(fixture_set("kafka-2.7.2").expected / "orders-0" / f"{boundary:020}.snapshot")
    assert (row["from"], row["offset"], row["producers"]) == ("snapshot", boundary, len(expected))


def test_a_snapshot_that_nothing_can_replace_is_an_error_and_the_rest_is_counted(
    command: Resnap, tmp_path: Path
) -> None:
    a_snapshot(tmp_path, "good", [1, 2])
    a_snapshot(tmp_path, "bad", [1]).write_bytes(b"broken")
    ran = command("producer", "census", tmp_path, *AT, *JSON)
    assert (ran.code, "producer snapshot header cut short" in ran.err) == (3, True)
    assert Counter({topic: row["producers"] for topic, row in topics(ran.document).items()}) == Counter(good=2)


def test_a_picture_is_drawn_and_a_census_is_of_one_moment(command: Resnap, tmp_path: Path) -> None:
    a_snapshot(tmp_path, "good", [1, 30])
    picture = tmp_path / "ages.svg"
    assert command("producer", "census", tmp_path, *AT, "--under", HOUR_MS, "--plot", picture).code == 0
    assert "<svg" in picture.read_text()
    assert command("producer", "census", tmp_path, "--as-of", "roll").code == 2
