"""The commands of the quota, as a user calls them."""

from __future__ import annotations

import fcntl
import json
import pickle
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import RDD

from resnap.storage.disk import Disk
from resnap.tiering.controller.metadata.records import ClientQuotaRecord, EntityData
from resnap.tiering.controller.metadata.writer import open_metadata_log
from resnap.tiering.quota.user_quotas import QuotaFile
from tests.cases import mostly_slow
from tests.tiering.quota.logs import a_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
LOCAL = ("--engine", "local")
JSON = ("--output", "json")


@pytest.fixture
def state(tmp_path: Path) -> tuple[str, ...]:
    return ("--state-dir", str(tmp_path / "state"))


@pytest.fixture
def flooded(tmp_path: Path) -> Path:
    """An hour of three topics with five producers each, and of one with a new producer every two seconds."""
    data = tmp_path / "data"
    for number in range(3):
        ids = range(10 * number, 10 * number + 5)
        a_topic(data, f"calm{number}", ((START_MS + minute * MINUTE_MS, one) for minute in range(60) for one in ids))
    a_topic(data, "flood", sorted(
        [(START_MS + minute * MINUTE_MS, 90) for minute in range(60)]
        + [(START_MS + 2_000 * number, 1_000 + number) for number in range(1_800)]
    ))  # fmt: skip
    return data


def test_a_rate_is_set_described_and_deleted(command: Resnap, state: tuple[str, ...]) -> None:
    odd = 'CN=a, O="b" ~*'
    assert command("quota", "set", "5.5", "--user", odd, *state).code == 0
    assert command("quota", "set", 7, "--user-default", *state, *JSON).document["changed"] is True
    assert command("quota", "set", 7, "--user-default", *state, *JSON).document["changed"] is False
    rows = command("quota", "describe", *state, *JSON).document["quotas"]
    assert [(row["entity"], row["key"], row["value"]) for row in rows] == [
        ({"user": None}, "producer_ids_rate", 7.0), ({"user": odd}, "producer_ids_rate", 5.5),
    ]  # fmt: skip
    assert all(row["origin"].startswith("file /") for row in rows)
    assert len(command("quota", "describe", "--user", odd, *state, *JSON).document["quotas"]) == 1
    assert len(command("quota", "describe", "--user-default", *state, *JSON).document["quotas"]) == 1
    assert command("quota", "delete", "--user", odd, *state).code == 0
    gone = command("quota", "delete", "--user", odd, *state, *JSON)
    assert (gone.code, "not set" in gone.error["message"]) == (2, True)


def test_without_any_quota_no_user_is_limited(command: Resnap, state: tuple[str, ...]) -> None:
    assert "no principal is limited" in command("quota", "describe", *state).out
    assert command("quota", "describe", *JSON).document == {"quotas": []}


def test_a_user_without_a_quota_is_shown_what_counts_instead(command: Resnap, state: tuple[str, ...]) -> None:
    command("quota", "set", 1_234_567, "--user", "alice", *state)
    assert "'bob' has no quota, nor has the default user" in command("quota", "describe", "--user", "bob", *state).out
    assert "The default user has no quota" in command("quota", "describe", "--user-default", *state).out
    command("quota", "set", 7, "--user-default", *state)
    assert re.search(r"producer_ids_rate +1234567 ", command("quota", "describe", *state).out)
    assert "the default user's counts, producer_ids_rate=7" in command("quota", "describe", "--user", "bob", *state).out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("set", "0", "--user", "a"), "greater than 0"),
        (("set", "nan", "--user", "a"), "greater than 0"),
        (("set", "inf", "--user", "a"), "too large"),
        (("set", "5", "--user", "b\udcff"), "not UTF-8"),
        (("set", "5"), "no user is named"),
        (("set", "5", "--user", "a", "--user-default"), "exclude each other"),
        (("delete", "--user", ""), "it is empty"),
        (("simulate", "{data}", "--rate", "0"), "greater than 0"),
        (("simulate", "{data}"), "no rate is given"),
        (("simulate", "{data}", "--rate", "5", "--plot", "x.gif"), "ends in .png or .svg"),
        (("simulate", "{data}", "--rate", "5", "--plot", "nowhere/x.png"), "no file can be written"),
        (("simulate", "{data}", "--rate", "5", "--principal-map", "nowhere.csv"), "--principal-map"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: tuple[str, ...], says: str, command: Resnap, state: tuple[str, ...], flooded: Path
) -> None:
    engine = LOCAL if words[0] == "simulate" else ()
    ran = command("quota", *(word.format(data=flooded) for word in words), *engine, *state, *JSON)
    assert (ran.code, says in ran.error["message"]) == (2, True), ran.err


def test_a_user_may_be_named_as_a_principal(
    command: Resnap, state: tuple[str, ...], flooded: Path, tmp_path: Path
) -> None:
    assert command("quota", "set", 5, "--user", "User:alice", *state, *JSON).document["user"] == "alice"
    for name in ("alice", "User:alice"):
        [row] = command("quota", "describe", "--user", name, *state, *JSON).document["quotas"]
        assert row["value"] == 5.0
    mapped = tmp_path / "map.csv"
    mapped.write_text("producerId,topic,principal\n1000-1999,,User:alice\n,,alice\n")
    for verb in (("simulate", *state), ("advise",)):
        ran = command("quota", *verb, flooded, *LOCAL, "--principal-map", mapped, *JSON)
        assert [row["principal"] for row in ran.document["principals"]] == ["alice"]
    command("quota", "delete", "--user", "User:alice", *state)
    assert command("quota", "describe", *state, *JSON).document["quotas"] == []


def test_without_a_state_directory_nothing_can_be_set(command: Resnap) -> None:
    ran = command("quota", "set", 5, "--user", "a", *JSON)
    assert (ran.code, "--state-dir" in ran.error["hint"]) == (2, True)


def test_the_quotas_of_a_cluster_are_shown_with_their_origin(
    command: Resnap, state: tuple[str, ...], tmp_path: Path
) -> None:
    entity = (EntityData(entity_type="user", entity_name="alice"),)
    with open_metadata_log(tmp_path / "cluster" / "__cluster_metadata-0", leader_id=1, timestamp=5) as log:
        log.append([ClientQuotaRecord(entity=entity, key="producer_ids_rate", value=3.0, remove=False)], timestamp=6)
    command("quota", "set", 5, "--user", "alice", *state)
    shown = command("quota", "describe", "--metadata-log", tmp_path / "cluster", *state, *JSON).document["quotas"]
    assert [(row["value"], row["origin"].split()[0]) for row in shown] == [(5.0, "file"), (3.0, "metadata")]
    assert shown[1]["origin"].endswith("at offset 1")


def test_a_metadata_log_that_is_damaged_is_an_error_with_its_place(
    command: Resnap, state: tuple[str, ...], fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    source = next((fixture_set("kafka-4.1.1-kraft").data / "__cluster_metadata-0").glob("*.log"))
    damaged = tmp_path / "__cluster_metadata-0"
    damaged.mkdir()
    data = bytearray(source.read_bytes())
    data[len(data) // 2] ^= 0xFF
    (damaged / source.name).write_bytes(data)
    ran = command("quota", "describe", "--metadata-log", tmp_path, *state, *JSON)
    assert ran.code == 1
    assert source.name in ran.error["message"]


def principals(document: dict[str, list[dict[str, object]]]) -> dict[object, dict[str, object]]:
    return {row["principal"]: row for row in document["principals"]}


def test_the_one_that_floods_is_throttled_and_all_others_go_on(command: Resnap, flooded: Path) -> None:
    ran = command("quota", "simulate", flooded, "--rate", 50, *LOCAL, *JSON)
    assert ran.code == 0, ran.err
    found = principals(ran.document)
    assert set(found) == {"topic calm0", "topic calm1", "topic calm2", "topic flood"}
    for name in ("topic calm0", "topic calm1", "topic calm2"):
        assert (found[name]["charged"], found[name]["refusedUses"], found[name]["throttledMs"]) == (5, 0, 0)
    flood = found["topic flood"]
    assert flood["newIds"] == 1_801
    assert 551 <= int(str(flood["charged"])) <= 620
    assert int(str(flood["refusedIds"])) > 1_100
    assert ran.document["summary"]["throttledPrincipals"] == 1
    assert ran.document["summary"]["batches"] == 3 * 300 + 1_860


def test_a_map_assigns_ids_to_principals_and_set_rates_count(
    command: Resnap, flooded: Path, state: tuple[str, ...], tmp_path: Path
) -> None:
    mapped = tmp_path / "map.csv"
    mapped.write_text("producerId,topic,principal\n1000-2799,,User:rogue\n,calm*,User:calm\n")
    command("quota", "set", 10, "--user", "rogue", *state)
    ran = command("quota", "simulate", flooded, "--principal-map", mapped, *LOCAL, *JSON, *state)
    found = principals(ran.document)
    assert set(found) == {"rogue"}
    assert ran.document["summary"]["withoutRate"] == 2
    assert "2 of 3, 'calm' the first" in ran.err
    assert (found["rogue"]["rate"], found["rogue"]["newIds"]) == (10.0, 1_800)
    table = command("quota", "simulate", flooded, "--principal-map", mapped, "--rate", 10, *LOCAL)
    assert "1 of 3 principals would have been throttled" in table.out
    assert re.search(r"calm\s+10\s+15\s+15\s+0\s+0", table.out)


@pytest.mark.parametrize("profile", ["P-A", "P-B", "P-C", "P-L"])
def test_each_profile_gives_about_the_same_for_an_hour(profile: str, command: Resnap, flooded: Path) -> None:
    ran = command("quota", "simulate", flooded, "--rate", 50, "--profile", profile, *LOCAL, *JSON)
    assert 551 <= int(str(principals(ran.document)["topic flood"]["charged"])) <= 620


def test_the_advice_leaves_alone_whom_it_says_it_does(command: Resnap, flooded: Path) -> None:
    ran = command("quota", "advise", flooded, "--share", 0.75, *LOCAL, *JSON)
    assert ran.code == 0, ran.err
    assert {row["principal"]: row["untouched"] for row in ran.document["principals"]} == {
        "topic flood": False, "topic calm0": True, "topic calm1": True, "topic calm2": True,
    }  # fmt: skip
    table = command("quota", "advise", flooded, *LOCAL)
    assert re.search(r"Rate \S+ \(per hour\) does not throttle 4 of 4 principals", table.out)


def test_the_advice_names_brokers_that_would_delete_the_snapshots_that_its_rate_allows(
    command: Resnap, flooded: Path
) -> None:
    def said(expiration_ms: int, *more: object) -> tuple[int, float, str]:
        asked = ("quota", "advise", flooded, *LOCAL, *JSON, "--producer-id-expiration-ms", expiration_ms, *more)
        ran = command(*asked)
        assert ran.code == 0, ran.err
        return ran.document["mostProducers"], ran.document["rate"], ran.err

    hour_ms = 3_600_000
    most, rate, err = said(hour_ms)
    assert (most, "the snapshot" in err) == (int(12 * rate), False), "a full bucket, and what comes back in an hour"
    hours = int(1_000_001 / rate) + 1
    most, _, err = said(hours * hour_ms, "--kafka-version", "4.4.0")
    assert most > 1_000_000
    assert "would be deleted by a broker that loads it: 4.4.0 has this fault of Kafka's" in err
    assert "the release is not known" in said(hours * hour_ms)[2]
    assert (
        f"has {most:,} producers: brokers of 4.2.2 and 4.4.0 delete"
        in said(hours * hour_ms, "--kafka-version", "4.3.1")[2]
    )


def test_a_log_without_producers_has_nothing_to_advise(command: Resnap, tmp_path: Path) -> None:
    a_topic(tmp_path / "data", "plain", [(START_MS, -1)])
    ran = command("quota", "advise", tmp_path / "data", *LOCAL)
    assert (ran.code, "nothing to advise" in ran.out) == (0, True)
    assert command("quota", "simulate", tmp_path / "data", "--rate", 5, *LOCAL, *JSON).document["principals"] == []


def test_damage_is_reported_and_what_could_be_read_is_shown(command: Resnap, flooded: Path) -> None:
    path = flooded / "calm0-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[16] = 77
    path.write_bytes(data)
    ran = command("quota", "simulate", flooded, "--rate", 50, *LOCAL, *JSON)
    assert ran.code == 3
    assert str(path) in ran.error["message"]
    assert "topic calm1" in principals(ran.document)


@pytest.mark.parametrize(
    ("suffix", "magic"), mostly_slow([("png", b"\x89PNG"), ("svg", b"<?xml")], ("png", b"\x89PNG"))
)
def test_a_picture_is_drawn_the_same_each_time(
    suffix: str, magic: bytes, command: Resnap, flooded: Path, tmp_path: Path
) -> None:
    drawn = []
    for number in range(2):
        path = tmp_path / f"{number}.{suffix}"
        assert command("quota", "simulate", flooded, "--rate", 50, "--plot", path, *LOCAL).code == 0
        drawn.append(path.read_bytes())
    assert drawn[0].startswith(magic)
    assert drawn[0] == drawn[1]
    if suffix == "svg":
        assert b"topic flood" in drawn[0] or b"glyph" in drawn[0] or b"<path" in drawn[0]


def test_without_matplotlib_all_but_pictures_works(
    command: Resnap, flooded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = command("quota", "simulate", flooded, "--rate", 50, "--plot", tmp_path / "x.png", *LOCAL, *JSON)
    assert (ran.code, "'.[plot]'" in ran.error["hint"]) == (10, True)
    assert command("quota", "simulate", flooded, "--rate", 50, *LOCAL).code == 0


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_spark_finds_what_this_process_finds(command: Resnap, fixture_set: Callable[[str], FixtureSet]) -> None:
    data = fixture_set("kafka-3.9.1-kraft").data
    for verb in (("simulate", "--rate", 0.1), ("advise",)):
        found = [json.loads(command("quota", *verb, data, "--engine", one, *JSON).out) for one in ("spark", "local")]
        assert found[0] == found[1], verb
        assert len(found[0]["principals"]) > 1


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_what_reaches_the_driver_does_not_grow_with_the_uses_of_ids(
    command: Resnap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, collected = RDD.collect, list[int]()

    def count(rdd: RDD[Any]) -> list[Any]:
        found = collect(rdd)
        collected.append(len(pickle.dumps(found)))
        return found

    monkeypatch.setattr(RDD, "collect", count)
    reached = []
    for uses in (2_000, 40_000):
        data = tmp_path / str(uses)
        a_topic(data, "flood", [(START_MS + 1_000 * number, number) for number in range(uses)])
        for verb in (("simulate", "--rate", 50), ("advise",)):
            collected.clear()
            ran = command("quota", *verb, data, *JSON)
            assert (ran.code, json.loads(ran.out)["principals"][0]["newIds"]) == (0, uses), ran.err
            reached.append(sum(collected))
    assert max(reached) < 64 << 10, "a time and an id are 16 bytes: those of the larger log were 625 KiB"
    assert max(reached[2:]) < 2 * max(reached[:2])


def test_a_time_that_a_client_made_up_does_not_keep_a_picture_from_being_drawn(command: Resnap, tmp_path: Path) -> None:
    a_topic(tmp_path / "data", "far", [(START_MS, 1), (1 << 62, 2)])
    mapped, plot = tmp_path / "map.csv", tmp_path / "x.svg"
    mapped.write_text("producerId,topic,principal\n,,_$far\n", encoding="utf-8-sig")
    options = ("--rate", 5, "--principal-map", mapped, "--plot", plot)
    ran = command("quota", "simulate", tmp_path / "data", *options, *LOCAL)
    assert (ran.code, plot.read_bytes()[:5]) == (0, b"<?xml"), ran.err


def test_batches_without_a_known_time_are_reported(command: Resnap, tmp_path: Path) -> None:
    a_topic(tmp_path / "data", "plain", [(-1, 1), (-1, 2)])
    ran = command("quota", "advise", tmp_path / "data", *LOCAL)
    assert (ran.code, "without one before them, are skipped: 2" in ran.err) == (0, True)


def test_what_was_never_set_is_not_deleted_and_leaves_no_directory(command: Resnap, tmp_path: Path) -> None:
    refused = command("quota", "delete", "--user", "alice", "--state-dir", tmp_path / "nowhere")
    assert (refused.code, "is not set" in refused.err) == (2, True)
    assert not (tmp_path / "nowhere").exists()


def test_a_change_says_what_it_waits_for(tmp_path: Path) -> None:
    said = threading.Event()
    file = QuotaFile(tmp_path, Disk(), lambda _: said.set())
    with (tmp_path / "quotas.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        setting = threading.Thread(target=file.set_rate, args=("alice", 5.0))
        setting.start()
        assert said.wait(60)
        assert not file.path.exists()
    setting.join(60)
    assert file.load().rates(lambda _: None).of("alice") == 5.0
