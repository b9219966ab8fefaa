"""``resnap tier``: all that is eligible is shipped, nothing else, once, and each byte of it is right."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from resnap.scheduler.cli.failures import INTERRUPTED
from resnap.scheduler.verbs import tier as verb
from resnap.storage.layouts.segments import ShippedSegment
from resnap.tiering import tier as steps
from resnap.tiering.planner import Planner
from resnap.tiering.shipping.shipped import ShippedTopic
from tests.cases import mostly_slow
from tests.scheduler.files import bases, tree
from tests.scheduler.shipped import Range, check_content, check_store, eligible, files_of, manifests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.tiering.planner import Planned
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Ran, Resnap

LOCAL = ("--engine", "local")
ROLL = ("--as-of", "roll", *LOCAL)
UPGRADED = "kafka-2.7.2-then-3.9.1"
LIBRARY = """
import sys
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.stores.urls import open_store
from resnap.tiering.engine import Engine
from resnap.tiering.planner import Planner
from resnap.tiering.selection import Scope
from resnap.tiering.tier import TieredPartition, TierWork, tier

now_ms = 2_000_000_000_000
planner = Planner(ReplayRules(as_of=AsOf(now_ms=now_ms, roll=True)), Engine())
work = TierWork(planner=planner, store=open_store(sys.argv[2]), now_ms=lambda: now_ms)
rows = []
tier(Scope(sources=(sys.argv[1],)), work, rows.append)
print(*(one.base_offset for row in rows if isinstance(row, TieredPartition) for one in row.shipment.shipped))
sys.exit(any(name.startswith("resnap.scheduler") for name in sys.modules))
"""
OLD_T = ("--as-of", "2020-02-02T02:02:02Z", *LOCAL)


def test_as_a_library_it_ships_a_brokers_log_and_loads_nothing_of_the_program(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    fixture, store = fixture_set(UPGRADED), tmp_path / "store"
    call = [sys.executable, "-c", LIBRARY, str(fixture.data), store.as_uri()]
    told = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    wanted = eligible(fixture.data)
    assert sorted(map(int, told)) == sorted(one.base_offset for one in wanted)
    assert check_store(files_of(store)) == wanted
    check_content(files_of(store), fixture.data, fixture.expected)


@pytest.mark.parametrize(
    ("name", "expiration_ms"),
    mostly_slow(
        [
            (UPGRADED, None),
            ("kafka-2.7.2", None),
            ("kafka-2.7.2-killed", None),
            ("kafka-2.7.2-nine-days", 172_800_000),
            ("kafka-2.7.2-no-producers", None),
            ("kafka-3.9.1-kraft", None),
            ("kafka-4.1.1-kraft", None),
            ("kafka-4.4.0-kraft", None),
        ],
        (UPGRADED, None),
        ("kafka-2.7.2-nine-days", 172_800_000),
        ("kafka-2.7.2-no-producers", None),
        ("kafka-4.4.0-kraft", None),
    ),
)
def test_each_eligible_segment_is_in_the_store_with_the_brokers_own_state(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, name: str, expiration_ms: int | None
) -> None:
    fixture = fixture_set(name)
    before = tree(fixture.data)
    flags = () if expiration_ms is None else ("--producer-id-expiration-ms", expiration_ms)
    store = tmp_path / "store"
    ran = command("tier", fixture.data, "--to", store.as_uri(), *ROLL, *flags, "--output", "json")
    assert ran.code == 0
    objects = files_of(store)
    assert [one for row in _partitions(ran) for one in row["shipped"]] == [
        {
            "baseOffset": one["baseOffset"],
            "nextBaseOffset": one["nextBaseOffset"],
            "bytes": sum(entry["sizeBytes"] for entry in one["objects"]),
            "snapshot": one["snapshotOrigin"]["how"],
            "entries": one["snapshotOrigin"]["entriesCount"],
            "manifest": key,
        }
        for key, one in sorted(manifests(objects).items())
    ]
    shipped = eligible(fixture.data)
    assert shipped
    assert check_store(objects) == shipped
    check_content(objects, fixture.data, fixture.expected)
    assert ran.document["summary"]["shipped"] == len(shipped)
    assert tree(fixture.data) == before
    assert command("verify", "--store", store.as_uri(), "--engine", "local").code == 0


@pytest.mark.slow
@pytest.mark.s3
def test_a_bucket_gets_the_same_objects_as_a_directory(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, bucket: Bucket
) -> None:
    fixture = fixture_set(UPGRADED)
    to = ("--to", f"{bucket.url}/some/prefix", *bucket.flags)
    ran = command("tier", fixture.data, *to, *ROLL, **bucket.variables)
    assert ran.code == 0
    objects = {key.removeprefix("some/prefix/"): body for key, body in bucket.objects().items()}
    assert check_store(objects) == eligible(fixture.data)
    check_content(objects, fixture.data, fixture.expected)
    assert command("tier", fixture.data, "--to", (tmp_path / "store").as_uri(), *ROLL).code == 0
    assert files_of(tmp_path / "store").keys() == objects.keys()
    verified = command(
        "verify", "--store", f"{bucket.url}/some/prefix", "--engine", "local", *bucket.flags, **bucket.variables
    )
    assert verified.code == 0
    before = bucket.versions()
    again = command("tier", fixture.data, *to, *OLD_T, **bucket.variables)
    assert again.code == 0
    assert "Nothing to ship: 27 segments are there already." in again.out
    assert bucket.versions() == before


def test_a_second_run_with_another_time_writes_nothing_and_says_so(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    to = ("--to", (tmp_path / "store").as_uri())
    assert command("tier", broker_log, *to, *ROLL).code == 0
    before = tree(tmp_path / "store")
    for as_of in (ROLL, OLD_T, ("--as-of", "now", *LOCAL), ("--producer-id-expiration-ms", "1000", "--full", *LOCAL)):
        ran = command("tier", broker_log, *to, *as_of)
        assert ran.code == 0
        assert "Nothing to ship: 27 segments are there already." in ran.out
        assert tree(tmp_path / "store") == before


def test_what_was_rolled_since_is_shipped_by_the_next_run_and_nothing_twice(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    partition, store = broker_log / "orders-0", tmp_path / "store"
    first_end = bases(partition)[1]
    arguments = ("tier", partition, "--to", store.as_uri(), *ROLL, "--output", "json")
    assert command(*arguments, "--high-watermark", first_end).document["summary"]["shipped"] == 1
    before = tree(store)
    assert check_store(files_of(store)) == {Range("orders", 0, 0, first_end)}
    ran = command(*arguments)
    assert (ran.document["summary"]["shipped"], ran.document["summary"]["already"]) == (1, 1)
    now = tree(store)
    assert {path: now[path] for path in before if before[path][2] != "folder"} == {
        path: look for path, look in before.items() if look[2] != "folder"
    }


def test_a_topic_recreated_under_an_old_name_is_shipped_as_another(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    arguments = ("tier", broker_log, "--topic", "orders", "--to", (tmp_path / "store").as_uri(), *ROLL)
    assert command(*arguments).code == 0
    metadata = broker_log / "orders-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw\n")
    ran = command(*arguments, "--output", "json")
    assert (ran.document["summary"]["shipped"], ran.document["summary"]["already"]) == (2, 0)


@pytest.mark.parametrize("damage", ["no id", "unknown id"])
def test_a_stray_directory_is_refused_as_check_calls_it_and_the_others_are_shipped(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], writable_copy: Any, tmp_path: Path, damage: str
) -> None:
    log_dir, store = writable_copy(fixture_set("kafka-3.9.1-kraft").data), tmp_path / "store"
    path = log_dir / "payments-0" / "partition.metadata"
    if damage == "no id":
        path.unlink()
    else:
        path.write_text("version: 0\ntopic_id: AbCdEfGhQACAAAAAAAAAAQ")
    ran = command("tier", log_dir, "--topic", "payments", "--to", store.as_uri(), *ROLL, "--output", "json")
    rows = {row["partition"]: row for row in _partitions(ran)}
    assert (rows[0]["blocking"]["reason"], rows[0]["shipped"]) == ("stray", [])
    assert rows[1]["shipped"] != []
    assert {one.partition for one in check_store(files_of(store))} == {1}


def test_each_stop_is_reported_with_its_reason_and_what_to_do(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    arguments = ("tier", broker_log, "--to", (tmp_path / "store").as_uri(), *ROLL)
    rows = {f"{row['topic']}-{row['partition']}": row for row in _partitions(command(*arguments, "--output", "json"))}
    assert rows["payments-0"]["blocking"]["reason"] == "above-last-stable-offset"
    assert rows["payments-0"]["lastStableOffset"] == 947
    assert rows["compacted-0"]["blocking"]["reason"] == "compacted"
    assert rows["legacy-0"]["blocking"]["reason"] == "leader-epochs-unknown"
    assert rows["orders-0"]["blocking"] is None
    for row in rows.values():
        assert all(refused["hint"] and refused["detail"] for refused in row["refused"])
        segments = bases(broker_log / f"{row['topic']}-{row['partition']}")
        told = [one["baseOffset"] for one in (*row["shipped"], *row["refused"])]
        assert sorted(told) == segments
    again = command(*arguments)
    assert "above-last-stable-offset: payments-0: " in again.out
    assert "  -> run again when the transaction has ended" in again.out
    stops = [line.split("  ")[-1].strip() for line in again.out.splitlines() if line.startswith("legacy-0 ")]
    assert stops == ["leader-epochs-unknown at 0"], "the sentence is below the table"
    assert again.out.splitlines()[-1].startswith("Next: `resnap verify ")


def test_where_what_stops_it_is_named_check_which_may_call_it_ready_is_not_advised(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data, url = fixture_set("kafka-2.7.2").data, tmp_path.as_uri()
    ran = command("tier", data, "--to", url, "--topic", "orders", "--layout", "aiven", *LOCAL)
    assert (ran.code, "topic-id-unknown: orders-0: " in ran.out) == (0, True), ran.out
    assert ran.out.endswith("\nNext: do what each -> line says, then run the same command again.\n")


def test_without_a_high_watermark_nothing_is_shipped_until_it_is_given(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    (broker_log / "replication-offset-checkpoint").unlink()
    arguments = ("tier", broker_log / "orders-0", "--to", (tmp_path / "store").as_uri(), *ROLL)
    ran = command(*arguments)
    assert "hw-unknown" in ran.out
    assert "--high-watermark" in ran.out
    assert files_of(tmp_path / "store") == {}
    assert command(*arguments, "--high-watermark", 10**6).code == 0
    assert len(manifests(files_of(tmp_path / "store"))) == 2
    many = command("tier", broker_log, "--to", (tmp_path / "store").as_uri(), *ROLL, "--high-watermark", "7")
    assert (many.code, many.out) == (2, "")


def test_a_high_watermark_above_the_known_one_is_named_and_never_goes_beyond_the_log_end(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    partition, checkpoint = broker_log / "orders-0", broker_log / "replication-offset-checkpoint"
    known = int(checkpoint.read_text().split("orders 0 ")[1].split()[0])
    low = bases(partition)[1]
    checkpoint.write_text(checkpoint.read_text().replace(f"orders 0 {known}", f"orders 0 {low}"))
    tier = ("tier", partition, "--to", (tmp_path / "store").as_uri(), *ROLL, "--high-watermark")
    said = {"known": f"above the known one, {low}", "end": f"above the log end offset, {known}"}
    regenerate = ("regenerate", partition, "--into", tmp_path / "made", *ROLL, "--high-watermark")
    others = ((verb, partition, "--high-watermark") for verb in ("scan", "check", "plan"))
    for words in (*others, regenerate, tier):
        for given, shown in ((low, []), (known, ["known"]), (known + 1, ["known", "end"])):
            ran = command(*words, given, *(["--dry-run"] if words is tier else []))
            assert [what for what, warning in said.items() if warning in ran.err] == shown, (words, ran.err)
    ran = command(*tier, known + 1, "--output", "json")
    (row,) = _partitions(ran)
    assert (row["lastStableOffset"], len(row["shipped"])) == (known, 2)


def test_a_dry_run_writes_nothing_and_ends_in_totals(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    arguments = ("tier", broker_log, "--to", (tmp_path / "store").as_uri(), *ROLL, "--dry-run")
    before = tree(tmp_path)
    ran = command(*arguments)
    assert ran.code == 0
    *topics, others, last, following = ran.out.splitlines()
    shipped = {line.split()[0]: line.split(maxsplit=1)[1] for line in topics}
    assert shipped.keys() == {"payments", "dash-ed.topic_1", "orders", "legacy"}
    assert others == "Not shown: 1 topic of which nothing is left to ship.", "compacted"
    assert all(text.split()[-1] in {"B", "KiB"} for text in shipped.values())
    assert last.endswith("Nothing was written.")
    assert following == "Next: the same command without --dry-run."
    scanned = command("scan", broker_log, "--output", "json").document["partitions"]
    stops = {one[key]["reason"] for one in scanned for key in ("brokerStops", "blocking") if one[key]}
    warned = [line.split(": ")[1] for line in ran.err.splitlines() if line.startswith("warning: ")]
    assert sorted(warned) == sorted(stops - {"missing-snapshot"}) == ["compacted", "leader-epochs-unknown"]
    partitions = [path for path in broker_log.iterdir() if path.is_dir() and path.name != "compacted-0"]
    old = sum(base < 330 for base in bases(broker_log / "legacy-0"))  # where its first leader epoch begins
    assert f"up to {sum(len(bases(path)) - 1 for path in partitions) - old} segments" in ran.out
    assert command(*arguments, "--output", "json").document["dryRun"] is True
    assert tree(tmp_path) == before


def test_a_dry_run_of_what_is_there_already_has_nothing_to_ship(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    store = (tmp_path / "store").as_uri()
    arguments = ("tier", broker_log, "--topic", "orders", "--to", store, *ROLL)
    assert command(*arguments).code == 0
    told = command(*arguments, "--dry-run").out
    nothing, then = told.splitlines()[-2:]
    assert nothing == f"Nothing to ship: no segment is eligible that is not in {store} already."
    assert then.startswith("Next: `resnap verify ")


def test_what_a_store_has_of_a_topic_is_not_held_while_others_are_planned(
    command: Resnap, broker_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics: list[weakref.ref[ShippedTopic]] = []
    alive: list[int] = []
    segments: list[int] = []

    class Watched(ShippedTopic):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            gc.collect()  # a listing that has failed may refer to itself, as Python 3.13 keeps its frames
            alive.append(sum(one() is not None for one in topics))
            topics.append(weakref.ref(self))

    def counted(*_: object) -> list[Planned]:
        gc.collect()
        segments.append(sum(type(one) is ShippedSegment for one in gc.get_objects()))
        return []

    arguments = ("tier", broker_log, "--to", (tmp_path / "store").as_uri(), *ROLL)
    assert command(*arguments, "--topic", "orders").code == 0
    monkeypatch.setattr(steps, "ShippedTopic", Watched)
    monkeypatch.setattr(verb, "plans_of", counted)
    counted()
    assert command(*arguments, "--dry-run").code == 0
    assert len(topics) > 2
    assert max(alive) == 1, "the one before"
    assert segments[1:] == segments[:1]


def test_a_store_that_fails_is_not_said_to_have_all(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    (tmp_path / ".resnap").touch()
    ran = command("tier", broker_log, "--to", tmp_path.as_uri(), *ROLL)
    assert ran.code == 12
    assert "Nothing was shipped: 0 segments are there already." in ran.out.splitlines()
    assert "Nothing to ship" not in ran.out


def test_a_run_that_is_interrupted_does_not_say_that_nothing_is_left(
    command: Resnap, broker_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planner, "replay", Mock(side_effect=KeyboardInterrupt))
    ran = command("tier", broker_log, "--to", tmp_path.as_uri(), *ROLL)
    assert ran.code == INTERRUPTED
    assert "Nothing to ship" not in ran.out


def test_a_store_inside_the_log_dir_is_refused(command: Resnap, broker_log: Path) -> None:
    before = tree(broker_log)
    for flags in ((), ("--dry-run",)):
        ran = command("tier", broker_log, "--to", f"file://{broker_log}/store", *ROLL, *flags)
        assert (ran.code, ran.out) == (2, "")
        assert "inside the log dir" in ran.err
    assert tree(broker_log) == before


def test_nothing_is_left_where_snapshots_waited(
    command: Resnap, broker_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(waiting))
    assert command("tier", broker_log, "--to", (tmp_path / "store").as_uri(), *ROLL).code == 0
    assert list(waiting.iterdir()) == []


def test_an_object_that_was_cut_off_is_shipped_again_with_what_else_is_missing(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    arguments = ("tier", broker_log, "--topic", "orders", "--topic", "dash*", "--to", store.as_uri(), *ROLL)
    assert command(*arguments).code == 0
    orders = min(store.rglob("*/orders/*/0/*.log"))
    orders.write_bytes(orders.read_bytes()[:-1])
    for path in min(store.rglob("*/dash-ed.topic_1/*/0/*.manifest")).parent.iterdir():
        path.unlink()
    assert command("verify", "--store", store.as_uri(), "--engine", "local").code == 13
    ran = command(*arguments, "--output", "json")
    assert (ran.code, ran.document["summary"]["shipped"]) == (0, 1 + 8)
    assert len(list(store.rglob("*/dash-ed.topic_1/*/0/*.manifest"))) == 8
    assert command("verify", "--store", store.as_uri(), "--engine", "local").code == 0


def test_output_is_data_on_standard_output_alone(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    def arguments(name: str) -> tuple[object, ...]:
        return ("tier", broker_log, "--to", (tmp_path / name).as_uri(), *ROLL, "--quiet")

    document, lines, table = (
        command(*arguments("json"), "--output", "json"),
        command(*arguments("ndjson"), "--output", "ndjson"),
        command(*arguments("table")),
    )
    assert document.err == lines.err == table.err == ""
    rows = [json.loads(line) for line in lines.out.splitlines()]
    assert rows[:-1] == [{"type": "partition", **row} for row in document.document["partitions"]]
    assert rows[-1] == {"type": "summary", **document.document["summary"]}
    assert "27 segments shipped" in table.out


@pytest.mark.slow
@pytest.mark.spark
def test_spark_ships_what_the_local_engine_ships(
    resnap: Resnap, command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    fixture = fixture_set(UPGRADED)
    store, waiting = tmp_path / "store", tmp_path / "waiting"
    waiting.mkdir()
    ran = subprocess.run(
        [sys.executable, "-m", "resnap", "tier", str(fixture.data), "--to", store.as_uri(), "--as-of", "roll"],
        env=resnap.environment({"PYTHONWARNINGS": "default", "TMPDIR": str(waiting)}) | _java_home(),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "27 segments shipped" in ran.stdout
    objects = files_of(store)
    assert check_store(objects) == eligible(fixture.data)
    check_content(objects, fixture.data, fixture.expected)
    assert command("tier", fixture.data, "--to", (tmp_path / "local").as_uri(), *ROLL).code == 0
    local = files_of(tmp_path / "local")
    assert objects.keys() == local.keys()
    assert list(waiting.glob("resnap*")) == []


def _java_home() -> dict[str, str]:
    return {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}


def _partitions(ran: Ran) -> list[dict[str, Any]]:
    document: dict[str, list[dict[str, Any]]] = ran.document
    return document["partitions"]
