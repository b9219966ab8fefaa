"""What ``resnap scan`` reports of logs that real brokers wrote, and of log dirs that are not as they should be."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.verbs.scan import facts_in
from resnap.tiering.judging.readiness import Verdict, judge
from tests.cases import mostly_slow
from tests.scheduler.files import EMPTY_SNAPSHOT, bases, file_at, lost_boundaries, tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

SETS = ("kafka-2.7.2", "kafka-2.7.2-killed", "kafka-2.7.2-nine-days", "kafka-2.7.2-then-3.9.1", "kafka-3.9.1-kraft")


@pytest.mark.parametrize("name", SETS)
def test_every_boundary_without_a_snapshot_is_found_and_no_other(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], name: str
) -> None:
    data = fixture_set(name).data
    partitions = {path.name: path for path in data.iterdir() if path.is_dir() and path.name != "__cluster_metadata-0"}
    answer = command("scan", data, "--output", "json").document
    rows = {f"{row['topic']}-{row['partition']}": row for row in answer["partitions"]}
    assert rows.keys() == partitions.keys()
    for place, row in rows.items():
        expected = lost_boundaries(partitions[place])
        assert [boundary["offset"] for boundary in row["lostBoundaries"]] == expected
        assert {boundary["state"] for boundary in row["lostBoundaries"]} <= {"missing"}
        assert (row["lost"], row["states"]["missing"]) == (len(expected), len(expected))
        assert row["segments"] == len(bases(partitions[place]))
        assert row["bytes"] == sum(path.stat().st_size for path in partitions[place].glob("*.log"))
    counted = [row for row in rows.values() if row["compaction"] != "compacted"]
    assert answer["summary"]["lost"] == sum(row["lost"] for row in counted)
    assert answer["summary"]["compacted"] == len(rows) - len(counted)


def test_the_first_stop_of_a_broker_is_the_first_boundary_without_a_snapshot(command: Resnap, broker_log: Path) -> None:
    ran = command("scan", broker_log, "--topic", "payments", "--output", "json")
    for row in ran.document["partitions"]:
        first = lost_boundaries(broker_log / f"payments-{row['partition']}")[0]
        assert row["brokerStops"]["reason"] == "missing-snapshot"
        assert row["brokerStops"]["nextBaseOffset"] == first
        assert row["brokerStops"]["hint"]


def test_costs_are_those_of_the_segments_that_a_plan_would_read(command: Resnap, broker_log: Path) -> None:
    [row] = command("scan", broker_log / "payments-0", "--output", "json").document["partitions"]
    [planned] = command("plan", broker_log / "payments-0", "--output", "json").document["partitions"]
    [by_roll] = command("plan", broker_log / "payments-0", "--as-of", "roll", "--output", "json").document["partitions"]
    assert row["replayNow"] == planned["read"]
    assert row["replayRoll"] == by_roll["read"]
    assert 0 < row["replayNow"]["bytes"] <= row["bytes"]


def test_nothing_is_opened_that_holds_records(
    command: Resnap, broker_log: Path, opened: Callable[[], list[str]]
) -> None:
    assert command("scan", broker_log).code == 0
    assert opened()
    logs = [path for path in opened() if path.endswith(".log")]
    assert {path.split("/")[-2] for path in logs} == {"legacy-0"}, (
        "only what the leader-epoch checkpoint does not cover"
    )
    assert len(logs) <= 6, "found by halving"


def _with_all_snapshots(fixture: FixtureSet, into: Path) -> Path:
    """Give the log dir of ``fixture`` every snapshot that its broker had, as `regenerate` and `install` would."""
    data = shutil.copytree(fixture.data, into)
    for path in fixture.expected.rglob("*.snapshot"):
        shutil.copyfile(path, data / path.relative_to(fixture.expected))
    return data


def test_a_broker_stops_where_messages_carry_no_leader_epoch_whatever_snapshots_there_are(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = _with_all_snapshots(fixture_set("kafka-2.7.2"), tmp_path / "data")
    [row] = command("scan", data / "legacy-0", "--output", "json").document["partitions"]
    assert row["lost"] == 0
    for key in ("brokerStops", "blocking"):
        assert (row[key]["reason"], row[key]["baseOffset"]) == ("leader-epochs-unknown", 0)
        assert "begins at offset 309" in row[key]["detail"]
        assert "retention will delete it" in row[key]["hint"]
    assert judge(facts_in(row), []).verdict is Verdict.BLOCKED
    assert "retention will delete it" in command("scan", data / "legacy-0").out
    tier = ("tier", data / "legacy-0", "--to", (tmp_path / "store").as_uri(), "--as-of", "roll", "--engine", "local")
    assert "would write up to 6 segments" in command(*tier, "--dry-run").out
    shipped = command(*tier, "--output", "json").document
    assert shipped["summary"]["shipped"] == 6
    assert shipped["partitions"][0]["blocking"]["reason"] == "leader-epochs-unknown"
    [orders] = command("scan", data / "orders-0", "--output", "json").document["partitions"]
    assert judge(facts_in(orders), []).verdict is Verdict.READY


def test_a_topic_that_was_once_compacted_is_reported_with_the_flag_that_says_so(
    command: Resnap, broker_log: Path
) -> None:
    [row] = command("scan", broker_log / "compacted-0", "--output", "json").document["partitions"]
    for refusal in (row["brokerStops"], row["blocking"]):
        assert "was compacted, and its current cleanup.policy is not known" in refusal["detail"]
        assert "--metadata-log" in refusal["hint"]
    assert "--metadata-log" in judge(facts_in(row), []).next_step
    assert judge(facts_in(row), []).verdict is Verdict.NEVER


@pytest.mark.parametrize("lost", ["missing", "emptied"])
def test_a_broker_stops_without_a_leader_epoch_checkpoint_and_tier_finds_the_epochs_in_the_batches(
    command: Resnap, broker_log: Path, tmp_path: Path, lost: str
) -> None:
    checkpoint = broker_log / "orders-0" / "leader-epoch-checkpoint"
    checkpoint.unlink() if lost == "missing" else checkpoint.write_bytes(b"0\n0\n")
    [row] = command("scan", broker_log / "orders-0", "--output", "json").document["partitions"]
    assert (row["brokerStops"]["reason"], row["blocking"]) == ("leader-epochs-unknown", None)
    assert judge(facts_in(row), []).verdict is Verdict.BLOCKED
    assert "resnap tier" in judge(facts_in(row), []).next_step
    tier = ("tier", broker_log / "orders-0", "--to", (tmp_path / "store").as_uri(), "--as-of", "roll", "--engine")
    assert command(*tier, "local", "--output", "json").document["summary"]["shipped"] == 2


def test_a_scan_changes_nothing(command: Resnap, broker_log: Path) -> None:
    before = tree(broker_log)
    command("scan", broker_log)
    assert tree(broker_log) == before


def test_missing_snapshots_end_with_4_only_on_request(command: Resnap, broker_log: Path) -> None:
    assert command("scan", broker_log).code == 0
    assert command("scan", broker_log, "--exit-code").code == 4
    assert command("scan", broker_log, "--exit-code", "--topic", "orders").code == 0
    file_at(broker_log / "orders-0", bases(broker_log / "orders-0")[1], "snapshot").unlink()
    assert command("scan", broker_log, "--exit-code", "--topic", "orders").code == 4
    assert command("scan", broker_log, "--exit-code", "--topic", "compacted").code == 0


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (b"", "zero-byte"),
        (EMPTY_SNAPSHOT[:9], "corrupt"),
        (EMPTY_SNAPSHOT + b"\0", "corrupt"),
        (b"\0\2" + EMPTY_SNAPSHOT[2:], "corrupt"),
        (EMPTY_SNAPSHOT[:-1] + b"\1", "corrupt"),
        (EMPTY_SNAPSHOT[:6] + b"\xff\xff\xff\xff", "corrupt"),
    ],
)
def test_useless_snapshots_are_lost_ones_with_what_is_wrong(
    command: Resnap, broker_log: Path, content: bytes, state: str
) -> None:
    partition = broker_log / "orders-0"
    offset = bases(partition)[1]
    file_at(partition, offset, "snapshot").write_bytes(content)
    ran = command("scan", partition, "--output", "json", "--exit-code")
    assert ran.code == 4
    [row] = ran.document["partitions"]
    [found] = row["lostBoundaries"]
    assert (found["offset"], found["state"]) == (offset, state)
    assert bool(found["detail"]) == (state == "corrupt")
    assert row["brokerStops"] is None
    assert [told["reason"] for told in row["brokerShipsUnread"]] == ["unusable-snapshot"]


def test_an_empty_snapshot_is_not_a_lost_one(command: Resnap, broker_log: Path) -> None:
    partition = broker_log / "orders-0"
    file_at(partition, bases(partition)[1], "snapshot").write_bytes(EMPTY_SNAPSHOT)
    [row] = command("scan", partition, "--output", "json").document["partitions"]
    assert (row["lost"], row["states"]["empty"]) == (0, 1)


def test_snapshots_at_no_segment_base_are_strays(command: Resnap, broker_log: Path) -> None:
    partition = broker_log / "payments-0"
    file_at(partition, 7, "snapshot").write_bytes(EMPTY_SNAPSHOT)
    [row] = command("scan", partition, "--output", "json").document["partitions"]
    log_end = {bases(partition, "snapshot")[-1]}
    assert set(row["strays"]) == set(bases(partition, "snapshot")) - set(bases(partition)) - log_end
    assert 7 in row["strays"]


def test_padded_indexes_of_a_killed_broker_change_nothing(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    data = fixture_set("kafka-2.7.2-killed").data
    assert max(path.stat().st_size for path in data.rglob("*.timeindex")) >= 10_000_000
    ran = command("scan", data, "--topic", "payments", "--output", "json")
    assert ran.code == 0
    assert [row["blocking"] for row in ran.document["partitions"]] == [None, None]


def test_the_metadata_log_is_not_a_partition_to_work_on(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    data = fixture_set("kafka-3.9.1-kraft").data
    assert (data / "__cluster_metadata-0").is_dir()
    assert "__cluster_metadata" not in command("scan", data).out
    ran = command("scan", data / "__cluster_metadata-0")
    assert (ran.code, ran.out) == (2, "")


def test_a_glob_that_no_topic_matches_is_a_usage_error(command: Resnap, broker_log: Path) -> None:
    ran = command("scan", broker_log, "--topic", "paymentz*")
    assert (ran.code, ran.out) == (2, "")
    assert "--topic" in ran.err
    assert "paymentz*" in ran.err


def test_several_globs_are_joined(command: Resnap, broker_log: Path) -> None:
    ran = command("scan", broker_log, "--topic", "pay*", "--topic", "o?ders", "--output", "json")
    assert {row["topic"] for row in ran.document["partitions"]} == {"payments", "orders"}


def test_a_source_that_is_not_a_log_dir_is_a_usage_error(command: Resnap, tmp_path: Path, broker_log: Path) -> None:
    (tmp_path / "empty").mkdir()
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    shutil.copy(broker_log / "meta.properties", fresh)
    file = broker_log / "meta.properties"
    for source in (tmp_path / "empty", fresh, tmp_path / "nowhere", file, "memory://nothing/there"):
        ran = command("scan", source)
        assert (ran.code, ran.out) == (2, ""), source
        assert str(source) in ran.err
        assert "hint: " in ran.err


def test_a_partition_in_two_sources_is_a_usage_error(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(broker_log / "orders-0", other / "orders-0")
    ran = command("scan", broker_log, other)
    assert (ran.code, ran.out) == (2, "")
    assert str(broker_log / "orders-0") in ran.err
    assert str(other / "orders-0") in ran.err
    assert command("scan", broker_log, other, "--topic", "payments").code == 0


def test_one_directory_given_twice_is_scanned_once(command: Resnap, broker_log: Path) -> None:
    once = command("scan", broker_log, "--output", "json").document
    twice = command("scan", broker_log, broker_log, broker_log / "orders-0", "--output", "json").document
    assert twice == once


@pytest.mark.parametrize("verb", ["scan", "plan", "producer census", "check", "verify", "regenerate", "tier"])
def test_a_topic_that_is_not_there_is_named_beside_one_that_is(
    command: Resnap, broker_log: Path, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "store").mkdir()
    places = {"regenerate": ("--into", tmp_path / "staged"), "tier": ("--to", (tmp_path / "store").as_uri())}
    asked = (*verb.split(), broker_log, "--topic", "orders", "--topic", "paymentz*", *places.get(verb, ()))
    ran = command(*asked, RESNAP_ENGINE="local")
    assert ran.err.count("paymentz*") == 1
    assert f"no topic in {broker_log} matches --topic paymentz*" in ran.err


def test_two_log_dirs_of_one_broker_are_seen_together(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (broker_log / "orders-0").rename(other / "orders-0")
    ran = command("scan", broker_log, other, "--output", "json")
    assert ran.code == 0
    assert "orders" in {row["topic"] for row in ran.document["partitions"]}


def test_json_and_lines_say_the_same_on_standard_output_alone(command: Resnap, broker_log: Path) -> None:
    document = command("scan", broker_log, "--output", "json")
    lines = command("scan", broker_log, "--output", "ndjson")
    rows = [json.loads(line) for line in lines.out.splitlines()]
    assert rows[:-1] == [{"type": "partition", **row} for row in document.document["partitions"]]
    assert rows[-1] == {"type": "summary", **document.document["summary"]}
    for err in (document.err, lines.err):
        assert [next(iter(json.loads(line))) for line in err.splitlines()] == ["note"]


@pytest.mark.parametrize("form", ["table", "json", "ndjson"])
def test_quiet_leaves_standard_error_empty(command: Resnap, broker_log: Path, form: str) -> None:
    ran = command("scan", broker_log, "--quiet", "--output", form)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out


@pytest.mark.slow
def test_no_color_is_heeded_on_a_terminal(resnap: Resnap, broker_log: Path) -> None:
    shown = _on_a_terminal(resnap, ["scan", str(broker_log)], {"NO_COLOR": "1", "TERM": "xterm-256color"})
    assert "payments-0" in shown
    assert "\x1b[3" not in shown
    assert "\x1b[9" not in shown


def test_a_reader_that_has_seen_enough_is_not_an_error(resnap: Resnap, tmp_path: Path) -> None:
    for number in range(600):
        folder = tmp_path / "data" / f"orders-{number}"
        folder.mkdir(parents=True)
        (folder / "00000000000000000000.log").touch()
    script = f"{sys.executable} -m resnap scan -q {tmp_path / 'data'} --output ndjson | head -n 1; exit $PIPESTATUS"
    ran = subprocess.run(
        ["bash", "-c", script], env=resnap.environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert json.loads(ran.stdout)["topic"] == "orders"
    assert ran.stderr == ""
    assert ran.returncode == 141


@pytest.mark.parametrize("arguments", mostly_slow([["--help"], ["version"]], ["--help"]))
def test_a_reader_that_has_gone_before_is_not_an_error(arguments: list[str], resnap: Resnap) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "resnap", *arguments]
    with os.fdopen(writer) as gone:
        ran = subprocess.run(
            command, env=resnap.environment(), stdout=gone, stderr=subprocess.PIPE, check=False, timeout=300
        )
    assert (ran.stderr, ran.returncode) == (b"", 141)


@pytest.mark.parametrize("closed", mostly_slow([">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"], ">&- 2>&-"))
def test_streams_that_the_caller_has_closed_are_not_an_error(resnap: Resnap, broker_log: Path, closed: str) -> None:
    command = f"{sys.executable} -m resnap scan {broker_log} --exit-code {closed}"
    assert subprocess.run(["bash", "-c", command], env=resnap.environment(), check=False, timeout=300).returncode == 4


def test_messages_that_find_no_room_stop_no_work(resnap: Resnap, broker_log: Path, tmp_path: Path) -> None:
    command = (
        f"{sys.executable} -m resnap regenerate {broker_log} --into {tmp_path / 'made'} --engine local 2> /dev/full"
    )
    ran = subprocess.run(
        ["bash", "-c", command], env=resnap.environment(), check=False, timeout=300, stdout=subprocess.PIPE, text=True
    )
    assert (ran.returncode, "snapshots rebuilt" in ran.stdout) == (0, True)
    assert list(tmp_path.glob("made/*/*.snapshot"))


@pytest.mark.parametrize("form", mostly_slow(["table", "json", "ndjson"], "json"))
def test_an_output_that_finds_no_room_is_an_error(resnap: Resnap, broker_log: Path, form: str) -> None:
    command = f"{sys.executable} -m resnap scan -q {broker_log} --output {form} > /dev/full"
    ran = subprocess.run(
        ["bash", "-c", command], env=resnap.environment(), check=False, timeout=300, capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert "No space left on device" in ran.stderr
    assert "this is a bug" not in ran.stderr


@pytest.mark.parametrize(
    "asked",
    mostly_slow(
        ["--help", "--version", "scan --help", "check {log}", "scan {log} --exit-code"], "--help", "check {log}"
    ),
)
def test_an_output_that_finds_no_room_never_ends_with_a_verdict(resnap: Resnap, broker_log: Path, asked: str) -> None:
    command = f"{sys.executable} -m resnap {asked.format(log=broker_log)} > /dev/full"
    ran = subprocess.run(
        ["bash", "-c", command], env=resnap.environment(), check=False, timeout=300, capture_output=True, text=True
    )
    assert (ran.returncode, "No space left on device" in ran.stderr, "bug" in ran.stderr) == (1, True, False), (
        ran.stderr
    )


def test_what_is_strange_in_a_log_dir_is_passed_over(command: Resnap, broker_log: Path) -> None:
    before = command("scan", broker_log).out
    (broker_log / os.fsdecode(b"\xff\xfe-0")).mkdir()
    (broker_log / "gone-0").symlink_to("/nowhere")
    os.mkfifo(broker_log / "orders-0" / "00000000000000000999.snapshot")
    os.mkfifo(broker_log / "fifo-0")
    ran = command("scan", broker_log)
    assert (ran.code, ran.out) == (0, before)


def test_a_directory_in_the_place_of_a_segment_is_a_problem_of_its_partition(command: Resnap, broker_log: Path) -> None:
    (broker_log / "orders-0" / "00000000000000000999.log").mkdir()
    ran = command("scan", broker_log)
    assert ran.code == 3
    assert "00000000000000000999.log" in ran.err
    assert "hint: " in ran.err
    assert "payments-0" in ran.out


def _on_a_terminal(resnap: Resnap, arguments: list[str], variables: dict[str, str]) -> str:
    """Run the command with a terminal of 200 columns as its standard output; return what was shown there."""
    ours, theirs = pty.openpty()
    environment = resnap.environment(variables | {"COLUMNS": "200"})
    with subprocess.Popen(
        [sys.executable, "-m", "resnap", *arguments], stdout=theirs, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:
            pass  # Linux's way of saying that the other end has closed
        assert process.wait(300) == 0
    os.close(ours)
    return shown.decode()


def test_many_partitions_are_summed_up_by_topic_the_most_missing_first(
    command: Resnap, broker_log: Path, regenerated: Path, tmp_path: Path
) -> None:
    data = tmp_path / "many"
    whole, short = broker_log / "payments-0", tmp_path / "short"
    kept = bases(whole)[:4]  # of the second the snapshot is lost
    shutil.copytree(whole, short, ignore=lambda _, names: {n for n in names if n[0] == "0" and int(n[:20]) not in kept})
    for offset in kept[2:]:
        shutil.copy2(file_at(regenerated / "payments-0", offset, "snapshot"), short)
    for number in range(51):
        shutil.copytree(short if number else whole, data / f"many-{number}")
    shutil.copytree(broker_log / "legacy-0", data / "legacy-0")
    rows = command("scan", data, "--output", "json").document["partitions"]
    ran = command("scan", data)
    shown = [line.split() for line in ran.out.splitlines() if line.startswith(("many", "legacy"))]
    assert [words[:2] for words in shown] == [["many-*", "(51)"], ["legacy-0", "19"]]
    assert int(shown[0][2]) == sum(row["segments"] for row in rows if row["topic"] == "many")
    assert "Summed up by topic: 52 partitions; `--output json` has each." in ran.out
    planned = command("plan", data).out
    assert [line.split()[:2] for line in planned.splitlines() if line.startswith(("many", "legacy"))] == [
        ["many-*", "(51)"],
        ["legacy-0", "16"],
    ]
    assert "Summed up by topic: 52 partitions" in planned
    (data / "replication-offset-checkpoint").write_text("0\n51\n" + "".join(f"many {n} 999\n" for n in range(51)))
    store, local = (tmp_path / "store").as_uri(), ("--engine", "local")
    for words, told in (
        (["regenerate", data, "--into", tmp_path / "made", *local], "many-* (51) 55 55 rebuilt"),
        (["verify", data, "--as-of", "roll", *local], "many-* (51) 105 105 rebuilt 8 to 21 105 window 105 proven"),
        (["tier", data, "--to", store, *local], "many-* (51) "),
        (["restore", store, "--into", tmp_path / "back", "--dry-run"], "many * (51) "),
    ):
        said = [" ".join(line.split()) for line in command(*words).out.splitlines()]
        assert said[1].startswith(told), said
        assert sum(line.startswith("many") for line in said) == 1
        assert any(line.startswith("Summed up by topic: 5") for line in said)


def test_many_topics_have_one_row_for_all_that_follow_the_first(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    data = tmp_path / "many"
    for number in range(53):
        shutil.copytree(broker_log / "orders-0", data / f"good-{number:02}-0", copy_function=os.link)
        shutil.copytree(broker_log / "payments-1", data / f"lost-{number:02}-0", copy_function=os.link)
    rows = [f"{name}-{number:02} 0 1395\n" for number in range(53) for name in ("good", "lost")]
    (data / "replication-offset-checkpoint").write_text(f"0\n{len(rows)}\n{''.join(rows)}")
    scanned, planned, checked = (command(verb, data).out.splitlines() for verb in ("scan", "plan", "check"))
    for said in (scanned, planned):
        assert sum(line.startswith("lost-") for line in said) == 50
        assert next(line.split()[:3] for line in said if " more topics" in line) == ["3", "more", "topics"]
    assert sum(line.startswith(("lost-", "good-")) for line in checked) == 50
    rest = next(" ".join(line.split()) for line in checked if " more topics " in line)
    assert rest.startswith("56 more topics 3 blocked, 53 ready 56 ")
    assert rest.endswith(" missing-snapshot (3)")
    assert "Not shown: 56 more topics; `--output json` has each." in checked
    made = command("regenerate", data, "--into", tmp_path / "made", "--engine", "local").out.splitlines()
    assert sum(line.startswith("lost-") for line in made) == 50
    assert next(" ".join(line.split()) for line in made if " more topics " in line).startswith("3 more topics 12 ")


def test_what_a_rebuild_unblocks_is_the_next_step_before_what_nothing_but_time_does(
    command: Resnap, broker_log: Path
) -> None:
    said = command("scan", broker_log, "--topic", "legacy", "--topic", "payments").out.splitlines()
    assert [line.split()[0] for line in said[1:3]] == ["legacy-0", "payments-0"]
    assert f"Next: `resnap plan {broker_log}" in said[-1]
    assert "retention will delete it" in command("scan", broker_log, "--topic", "legacy").out.splitlines()[-1]
