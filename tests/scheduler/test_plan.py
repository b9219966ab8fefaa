"""What ``resnap plan`` shows, what it keeps, and when a kept plan is refused."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from typing import TYPE_CHECKING, Final

import pytest

from resnap.replay.spark.header_rows import read_header_rows
from resnap.replay.spark.source import find_segments
from resnap.storage.log.producer_snapshot import read_snapshot, snapshot_bytes
from resnap.storage.words import instant
from tests.scheduler.files import BALLAST, EMPTY_SNAPSHOT, bases, file_at, fill, lost_boundaries, tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.usefixtures("producers_stay")

LOCAL = ("--engine", "local")


@pytest.fixture
def saved(command: Resnap, broker_log: Path, tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    assert command("plan", broker_log, "--as-of", "roll", "--save", file).code == 0
    return file


def test_each_missing_boundary_is_planned_once(command: Resnap, broker_log: Path) -> None:
    answer = command("plan", broker_log, "--output", "json").document
    rows = {f"{row['topic']}-{row['partition']}": row for row in answer["partitions"]}
    assert "compacted-0" not in rows
    for place, row in rows.items():
        assert [boundary["offset"] for boundary in row["boundaries"]] == lost_boundaries(broker_log / place)
        assert row["snapshots"] == len(row["boundaries"])
    assert answer["summary"]["snapshots"] == sum(row["snapshots"] for row in rows.values())
    assert answer["summary"]["segmentsToRead"] == sum(row["read"]["segments"] for row in rows.values())
    assert answer["summary"]["bytesToRead"] == sum(row["read"]["bytes"] for row in rows.values())


def test_the_next_commands_select_and_replay_what_was_planned(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    rules = ("--as-of", "roll", "--producer-id-expiration-ms", "86400000", "--full", "--s3-region", "eu-north-1")
    flags = (*rules, "--topic", "payments", "--boundaries", "all")
    planned = command("plan", broker_log, *flags, "--output", "json").document
    scanned = command("scan", broker_log, "--topic", "payments", *rules).out
    for printed, verb in ((command("plan", broker_log, *flags).out, "regenerate"), (scanned, "plan")):
        following = printed.splitlines()[-1].partition(f"`resnap {verb} ")[2].partition("`")[0]
        typed = shlex.split(following.replace("--into DIR", f"--into {tmp_path / 'out'} --dry-run"))
        document = command(verb, *typed, "--output", "json").document
        again = document.get("summary", document)
        wanted = "missing" if verb == "plan" else "all"
        expected = command(
            "plan", broker_log, *rules, "--topic", "payments", "--boundaries", wanted, "--output", "json"
        )
        assert again["snapshots"] == expected.document["summary"]["snapshots"] > 0
        assert again["bytesToRead"] == expected.document["summary"]["bytesToRead"]
    assert (planned["asOf"], planned["producerIdExpirationMs"]) == ("roll", 86_400_000)


def test_compacted_partitions_are_reported_as_skipped(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    for arguments in (["plan"], ["regenerate", "--into", tmp_path / "out", *LOCAL], ["verify", *LOCAL]):
        ran = command(*arguments, broker_log / "compacted-0")
        assert ran.code == 0
        assert "note: never: 1 compacted partition, which Kafka does not tier" in ran.err


def test_all_boundaries_are_those_of_all_closed_segments(command: Resnap, broker_log: Path) -> None:
    answer = command("plan", broker_log, "--boundaries", "all", "--output", "json").document
    for row in answer["partitions"]:
        expected = bases(broker_log / f"{row['topic']}-{row['partition']}")[1:]
        assert [boundary["offset"] for boundary in row["boundaries"]] == expected


def test_a_short_window_reads_less_than_the_whole(command: Resnap, fixture_set: Callable[[str], FixtureSet]) -> None:
    data = fixture_set("kafka-2.7.2-nine-days").data
    newest_ms = max(path.stat().st_mtime_ns for path in data.rglob("*.log")) // 1_000_000
    as_of = ["--as-of", instant(newest_ms), "--producer-id-expiration-ms", "172800000", "--output", "json"]
    window = command("plan", data, *as_of).document["summary"]
    whole = command("plan", data, "--full", *as_of).document["summary"]
    assert window["snapshots"] == whole["snapshots"]
    assert 0 < window["bytesToRead"] < whole["bytesToRead"] / 2


def test_planning_writes_nothing_and_says_so(command: Resnap, broker_log: Path) -> None:
    before = tree(broker_log.parent)
    ran = command("plan", broker_log)
    assert ran.code == 0
    last, following = ran.out.splitlines()[-2:]
    assert last.endswith("Nothing was written.")
    assert following == f"Next: `resnap regenerate {broker_log} --into DIR`, or `resnap tier {broker_log} --to URL`."
    assert tree(broker_log.parent) == before
    of_one = command("plan", broker_log, "--partition", "payments-0", "--as-of", "roll").out.splitlines()[-1]
    how = f"{broker_log} --partition payments-0 --as-of roll"
    assert of_one == f"Next: `resnap regenerate {how} --into DIR`, or `resnap tier {how} --to URL`."


def test_the_next_commands_have_the_flags_that_decide_what_is_made(command: Resnap, broker_log: Path) -> None:
    rules = ("--producer-id-expiration-ms", "172800000", "--as-of", "2026-01-31T12:00:00+00:00", "--full")
    how = f"{broker_log} {' '.join(rules)}"
    planned = command("plan", broker_log, "--boundaries", "all", *rules).out.splitlines()[-1]
    assert planned == (f"Next: `resnap regenerate {how} --boundaries all --into DIR`, or `resnap tier {how} --to URL`.")
    scanned = command("scan", broker_log, *rules).out.splitlines()[-1]
    assert scanned.endswith(f"then `resnap regenerate {how} --into DIR`.")
    checked = command("check", broker_log, "--topic", "payments", "--transaction-max-timeout-ms", "60000").out
    assert f"`resnap regenerate {broker_log} --topic payments --transaction-max-timeout-ms 60000 --into DIR`" in checked


def test_a_kept_plan_gives_what_the_sources_would_give(
    command: Resnap, broker_log: Path, saved: Path, tmp_path: Path
) -> None:
    direct, planned = tmp_path / "direct", tmp_path / "planned"
    assert command("regenerate", broker_log, "--as-of", "roll", "--into", direct, *LOCAL).code == 0
    carried_out = command("regenerate", "--plan", saved, "--into", planned, *LOCAL)
    assert (carried_out.code, "compacted" in carried_out.err) == (0, False), "which is not in the plan"
    made = {path: digest for path, (_, _, digest) in tree(planned).items()}
    assert made == {path: digest for path, (_, _, digest) in tree(direct).items()}
    assert sum(path.endswith(".snapshot") for path in made) == 31


def test_a_kept_plan_holds_although_the_broker_appends(
    command: Resnap, broker_log: Path, saved: Path, tmp_path: Path
) -> None:
    active = file_at(broker_log / "orders-0", bases(broker_log / "orders-0")[-1], "log")
    with active.open("ab") as file:
        file.write(bytes(61))
    file_at(broker_log / "orders-0", bases(broker_log / "orders-0")[1], "snapshot").write_bytes(EMPTY_SNAPSHOT)
    assert command("regenerate", "--plan", saved, "--into", tmp_path / "out", *LOCAL).code == 0


def test_a_kept_plan_holds_wherever_it_is_carried_out_from(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    relative = f"../{broker_log.name}"
    assert command("plan", relative, "--save", "plan.json").code == 0
    (command.directory / "plan.json").rename(tmp_path / "plan.json")
    command.directory.rename(tmp_path / "elsewhere")
    command.directory.mkdir()
    assert command("regenerate", "--plan", tmp_path / "plan.json", "--into", "out", *LOCAL).code == 0


def test_a_kept_plan_for_a_moment_that_has_yet_to_come_is_refused(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "plan.json"
    assert command("plan", broker_log, "--save", saved).code == 0
    plan = json.loads(saved.read_text())
    plan["rules"]["as_of"]["now_ms"] += 10 * 86_400_000
    saved.write_text(json.dumps(plan))
    for to in (("regenerate", "--into", tmp_path / "out"), ("tier", "--to", f"file://{tmp_path}/store")):
        ran = command(*to, "--plan", saved, *LOCAL)
        assert (ran.code, "which is in the future" in ran.err) == (15, True), ran.err
    assert not (tmp_path / "out").exists()


def _roll(partition: Path) -> None:
    file_at(partition, bases(partition)[-1] + 1000, "log").touch()


def _delete_oldest(partition: Path) -> None:
    file_at(partition, bases(partition)[0], "log").unlink()


def _grow_closed(partition: Path) -> None:
    with file_at(partition, bases(partition)[0], "log").open("ab") as file:
        file.write(b"\0")


def _touch_closed(partition: Path) -> None:
    os.utime(file_at(partition, bases(partition)[0], "log"), (1, 1))


def _replace_closed(partition: Path) -> None:
    path = file_at(partition, bases(partition)[0], "log")
    other = path.with_suffix(".copy")
    shutil.copy2(path, other)
    other.replace(path)


@pytest.mark.parametrize("change", [_roll, _delete_oldest, _grow_closed, _touch_closed, _replace_closed, shutil.rmtree])
def test_a_plan_whose_segments_changed_is_refused(
    command: Resnap, broker_log: Path, saved: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    change(broker_log / "payments-1")
    for arguments in (
        ["regenerate", "--plan", saved, "--into", tmp_path / "out", *LOCAL],
        ["tier", "--plan", saved, "--to", f"file://{tmp_path}/store", *LOCAL],
    ):
        ran = command(*arguments)
        assert (ran.code, ran.out) == (15, "")
        assert "payments-1" in ran.err
        assert "make a new plan" in ran.err
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "store").exists()


def test_of_a_stale_plan_another_topic_may_still_be_carried_out(
    command: Resnap, broker_log: Path, saved: Path, tmp_path: Path
) -> None:
    shutil.rmtree(broker_log / "payments-1")
    ran = command("regenerate", "--plan", saved, "--topic", "legacy", "--into", tmp_path / "out", *LOCAL)
    assert ran.code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"legacy-0"}


@pytest.mark.parametrize("arguments", [["regenerate", "--into", "out"], ["tier", "--to", "memory://x"]])
def test_either_sources_or_a_plan(command: Resnap, broker_log: Path, saved: Path, arguments: list[str]) -> None:
    for ran in (command(*arguments, broker_log, "--plan", saved), command(*arguments)):
        assert (ran.code, ran.out) == (2, "")
        assert "hint: " in ran.err


WRONG_NUMBERS: Final[tuple[dict[str, object], ...]] = (
    {"partition": True}, {"partition": 0.0}, {"partition": "0"}, {"boundaries": [10.0]},
)  # fmt: skip


def test_a_file_that_is_not_a_plan_is_reported_as_such(command: Resnap, saved: Path, tmp_path: Path) -> None:
    good = json.loads(saved.read_text())
    first = good["partitions"][0]
    broken = [
        *((text, "") for text in ("", "{", "[]", "null", "{}", saved.read_text()[:-30], "[" * 100_000, "9" * 5_000)),
        ('{"version": Infinity}', ""), (json.dumps({**good, "version": 99}), "version of the saved plan"),
        *((json.dumps({**good, "partitions": [first | wrong]}), "expected int") for wrong in WRONG_NUMBERS),
        (json.dumps({**good, "partitions": good["partitions"] * 2}), "twice"),
        (json.dumps({**good, "partitions": [{"topic": "payments"}]}), ""),
        (f"{saved.read_text()}x", f"at byte {len(saved.read_text())}: expected"),
        (json.dumps({**good, "sources": 7}), ""), (json.dumps({**good, "rules": {}}), ""),
    ]  # fmt: skip
    for number, (text, why) in enumerate(broken):
        path = tmp_path / f"plan-{number}"
        path.write_text(text)
        ran = command("regenerate", "--plan", path, "--into", tmp_path / "out", *LOCAL)
        assert (ran.code, ran.out) == (1, ""), text
        assert str(path) in ran.err
        assert why in ran.err, ran.err
        assert "this is a bug" not in ran.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [None, b"\xff\xfe\0"])
def test_a_plan_that_cannot_be_read_is_not_a_bug(command: Resnap, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "plan"
    if content is not None:
        path.write_bytes(content)
    ran = command("regenerate", "--plan", path, "--into", tmp_path / "out")
    assert ran.code in {1, 2}
    assert str(path) in ran.err
    assert "this is a bug" not in ran.err


@pytest.mark.parametrize("place", ["nowhere/plan.json", "."])
def test_a_plan_that_cannot_be_kept_is_an_error_and_leaves_nothing(
    command: Resnap, broker_log: Path, place: str
) -> None:
    ran = command("plan", broker_log, "--save", place)
    assert ran.code == 1
    assert "the plan cannot be written" in ran.err
    assert "hint: free some space" in ran.err
    assert list(command.directory.parent.glob("*.tmp")) == list(command.directory.iterdir()) == []


def test_a_full_disk_keeps_the_plan_that_was_there(command: Resnap, broker_log: Path, tiny_disk: Path) -> None:
    (tiny_disk / "plan.json").write_text("old")
    fill(tiny_disk)
    ran = command("plan", broker_log, "--save", tiny_disk / "plan.json")
    assert ran.code == 1
    assert "No space left" in ran.err
    assert (tiny_disk / "plan.json").read_text() == "old"
    assert {path.name for path in tiny_disk.iterdir()} == {"plan.json", BALLAST}


def test_proving_judges_what_is_there_and_writes_nothing(command: Resnap, broker_log: Path) -> None:
    partition = broker_log / "payments-0"
    inside = [offset for offset in bases(partition, "snapshot") if offset in bases(partition)]
    first, second = file_at(partition, inside[0], "snapshot"), file_at(partition, inside[1], "snapshot")
    first.write_bytes(EMPTY_SNAPSHOT)
    second.write_bytes(_without_first_entry(second.read_bytes()))
    before = tree(broker_log)
    arguments = ["plan", partition, "--prove", "--as-of", "roll", "--full", *LOCAL, "--output", "json"]
    answer = command(*arguments)
    assert answer.code == 0
    verdicts = {row["offset"]: row.get("verdict") for row in answer.document["boundaries"]}
    assert verdicts.pop(inside[0]) == "false-empty"
    assert verdicts.pop(inside[1]) == "false-partial"
    assert {verdicts.pop(offset) for offset in inside[2:]} == {"proven"}
    assert set(verdicts) == set(lost_boundaries(partition))
    assert set(verdicts.values()) == {None}
    assert tree(broker_log) == before


def test_where_nothing_is_wrong_and_some_is_missing_the_next_step_makes_that(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    partition = broker_log / "payments-0"
    told = command("plan", partition, "--prove", "--as-of", "roll", "--full", *LOCAL).out
    advised = told.partition("Next: `resnap ")[2].partition("`")[0].replace("DIR", str(tmp_path / "made"))
    assert "that a replay contradicts" not in told
    assert command(*shlex.split(advised), *LOCAL).code == 0
    made = bases(tmp_path / "made" / "payments-0", "snapshot")
    assert made == sorted(lost_boundaries(partition))


def _without_first_entry(snapshot: bytes) -> bytes:
    entries = list(read_snapshot(snapshot).values())
    return snapshot_bytes(entries[1:])


def _as_an_older_broker(partition: Path, offset: int, *, before_1_0: bool) -> tuple[bytes, set[object]]:
    """Return the snapshot as a broker before 2.4.1, or before 1.0, wrote it, and whose entries are others by that."""
    rows = [row for log in find_segments([partition]) for batch in read_header_rows(log) for row in batch.to_pylist()]
    entries, changed = [], set[object]()
    for entry in read_snapshot(file_at(partition, offset, "snapshot").read_bytes()).values():
        mine = [row for row in rows if row["producerId"] == entry.producer_id and row["lastOffset"] < offset]
        data = [row for row in mine if not row["isControl"]]
        if mine[-1]["isControl"]:
            of_data = data[-1]["maxTimestamp"] if entry.last_offset >= 0 else -1
            older = entry._replace(timestamp=of_data)
            if before_1_0:
                older = entry._replace(last_offset=mine[-1]["lastOffset"], offset_delta=0)
            changed |= {entry.producer_id} if older != entry else set()
            entry = older  # noqa: PLW2901
        entries.append(entry)
    return snapshot_bytes(entries), changed


@pytest.mark.parametrize("before_1_0", [False, True])
def test_snapshots_of_brokers_before_2_4_1_are_called_so(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, before_1_0: bool
) -> None:
    partition = shutil.copytree(fixture_set("kafka-2.7.2").data / "payments-0", tmp_path / "payments-0")
    offset = bases(partition)[-1]
    body, changed = _as_an_older_broker(partition, offset, before_1_0=before_1_0)
    assert changed
    file_at(partition, offset, "snapshot").write_bytes(body)
    prove = ("plan", partition, "--prove", "--as-of", "roll", *LOCAL)
    [row] = [one for one in command(*prove, "--output", "json").document["boundaries"] if one["offset"] == offset]
    assert row["verdict"] == "different"
    assert set(row["byOlderRules"]) == set(row["different"]) == changed
    verify = ("verify", partition, "--as-of", "roll", *LOCAL)
    for one in (prove, verify):
        ran = command(*one)
        assert (ran.code, "before 2.4.1 (KAFKA-9144)" in ran.out) == (0, True), ran.err
    entries = read_snapshot(body)
    wrong = {changed_id: entries[changed_id]._replace(last_sequence=1) for changed_id in sorted(changed)[:1]}
    file_at(partition, offset, "snapshot").write_bytes(snapshot_bytes((entries | wrong).values()))
    assert command(*verify).code == 13


def test_people_read_times_and_spans_as_dates_and_days(command: Resnap, broker_log: Path) -> None:
    flags = ("--topic", "payments", "--producer-id-expiration-ms", "604800000")
    first, second = command("plan", broker_log, *flags, "--as-of", "2026-01-02T03:04:05Z").out.splitlines()[:2]
    assert first.split() == ["as", "of", "2026-01-02T03:04:05Z"]
    assert second.split("  ")[-1].strip() == "7 days (flag --producer-id-expiration-ms)"
