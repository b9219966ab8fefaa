"""What ``resnap install`` refuses or leaves: brokers, log dirs, snapshots and arguments that do not fit."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from resnap.tiering.installing.staging_area import read_fingerprint
from tests.scheduler.files import bases, file_at, flip, lost_boundaries
from tests.scheduler.installed import (
    INSTALLED,
    SET,
    copied,
    delete_oldest,
    look,
    lose_all_snapshots,
    outcomes,
    regenerate,
)
from tests.storage.log.test_log_dir_lock import another_holding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

JSON = ("--output", "json")


def test_a_place_for_the_undo_that_cannot_be_written_is_named_before_a_broker_is_stopped(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    """As where another user has staged; root, who writes everywhere, meets a file in the place of the directory."""
    closed = staged.parent / "closed"
    closed.write_bytes(b"")
    undo = ("--undo-dir", closed / "undo")
    tried = command("install", staged, broker_log, *undo, "--dry-run")
    assert f"nothing could be installed now: {closed / 'undo'}: {closed} is not a directory" in tried.err
    ran = command("install", staged, broker_log, *undo)
    assert (ran.code, ran.out) == (2, "")
    assert "give another place" in ran.err
    assert "run as the user that the broker runs as" not in ran.err


def test_a_log_dir_in_use_is_left_alone(command: Resnap, broker_log: Path, staged: Path) -> None:
    with another_holding(broker_log / ".lock") as process_id:
        before = look(broker_log.parent)
        ran = command("install", staged, broker_log, *JSON)
        assert (ran.code, ran.out, ran.error["type"]) == (14, "", "LogDirInUseError")
        assert str(process_id) in ran.error["message"]
        assert "stop the broker" in ran.error["hint"]
        assert look(broker_log.parent) == before


def test_after_an_unclean_shutdown_the_error_says_how_to_stop_the_broker(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    (broker_log / ".kafka_cleanshutdown").unlink()
    before = look(broker_log.parent)
    ran = command("install", staged, broker_log)
    assert (ran.code, ran.out) == (1, "")
    assert "start the broker, so that it recovers its logs, and stop it once more" in ran.err
    assert look(broker_log.parent) == before


def test_a_valid_snapshot_with_entries_is_never_replaced(command: Resnap, broker_log: Path, staged: Path) -> None:
    first, second, *_ = lost_boundaries(broker_log / "payments-0")
    path = file_at(broker_log / "payments-0", second, "snapshot")
    path.write_bytes(file_at(staged / "payments-0", first, "snapshot").read_bytes())
    before = look(broker_log)
    ran = command("install", staged, broker_log, "--replace", "corrupt", "--replace", "false-empty", *JSON)
    assert ran.code == 3
    assert outcomes(ran.document, "payments-0")[second] == "not-asked"
    assert look(broker_log)[f"payments-0/{path.name}"] == before[f"payments-0/{path.name}"]


def test_where_batches_are_missing_no_valid_snapshot_is_called_wrong_or_replaced(
    command: Resnap, broker_log: Path, tmp_path: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    partition, rules = broker_log / "payments-0", ("--engine", "local", "--producer-id-expiration-ms", 10**12)
    shutil.copytree(fixture_set(SET).expected / "payments-0", partition, dirs_exist_ok=True)
    file_at(partition, bases(partition)[3], "log").write_bytes(b"")  # as a crash leaves what was never synced
    verified = command("verify", partition, "--as-of", "roll", *rules, *JSON)
    assert (verified.code, "is empty" in verified.error["message"]) == (1, True), verified.err
    assert {row["verdict"] for row in verified.document["boundaries"]} == {"proven", "unproven"}
    made = command(
        "regenerate", partition, "--boundaries", "all", "--into", tmp_path / "out", "--as-of", "roll", *rules
    )
    assert "batches are missing" in made.err
    assert "--replace" not in made.out
    for asked in ((), ("--replace", "false-partial")):
        ran = command("install", tmp_path / "out", partition, *asked, "--dry-run", *JSON)
        assert set(outcomes(ran.document, "payments-0").values()) <= {"already-there", "good-file-there"}


def test_a_snapshot_whose_segments_have_changed_is_stale_and_the_others_are_installed(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    partition = broker_log / "payments-1"
    offsets = bases(partition)
    flip(file_at(partition, offsets[2], "log"), 20)
    ran = command("install", staged, broker_log, *JSON)
    assert (ran.code, ran.error["type"], ran.error["exitCode"]) == (3, "StalePlanError", 15)
    assert f"segment {offsets[2]}, which it depends on, has changed" in ran.error["message"]
    assert "resnap regenerate" in ran.error["hint"]
    found = outcomes(ran.document, "payments-1")
    assert {offset for offset, outcome in found.items() if outcome == "stale"} == set(offsets[3:]) & found.keys()
    assert {offset for offset, outcome in found.items() if outcome == "installed"} == set(offsets[1:3])
    alone = command("install", staged, broker_log, "--topic", "payments")
    assert alone.code == 15


def test_what_a_broker_deleted_is_not_needed_and_makes_nothing_stale(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    partition = broker_log / "payments-0"
    offsets = bases(partition)
    delete_oldest(partition, 2)
    ran = command("install", staged, broker_log, *JSON)
    assert ran.code == 0
    found = outcomes(ran.document, "payments-0")
    assert [found[offset] for offset in offsets[1:4]] == ["below-log-start", "below-log-start", "installed"]
    assert not file_at(partition, offsets[2], "snapshot").exists()


def test_below_the_log_start_of_the_checkpoint_nothing_is_installed(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    third = bases(broker_log / "payments-0")[2]
    (broker_log / "log-start-offset-checkpoint").write_text(f"0\n1\npayments 0 {third}\n")
    found = outcomes(command("install", staged, broker_log, *JSON).document, "payments-0")
    assert [found[offset] for offset in sorted(found)][:3] == ["below-log-start", "below-log-start", "installed"]


def test_a_log_that_was_cut_off_has_no_place_for_what_stood_above(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    partition = broker_log / "payments-0"
    offsets = bases(partition)
    for offset in offsets[3:]:
        for path in partition.glob(f"{offset:020d}.*"):
            path.unlink()
    ran = command("install", staged, broker_log, *JSON)
    assert ran.code == 3
    assert f"{offsets[3]} is no longer the base of a segment" in ran.error["message"]
    found = outcomes(ran.document, "payments-0")
    assert [found[offset] for offset in offsets[1:4]] == ["installed", "installed", "stale"]


def test_what_was_refused_is_to_be_made_again_before_the_broker_starts(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    partition = broker_log / "payments-0"
    for path in partition.glob(f"{bases(partition)[3]:020d}.*"):
        path.unlink()
    ran = command("install", staged, broker_log)
    assert ran.code == 3
    assert "Next: rebuild what was refused" in ran.out
    assert "start the broker" not in ran.out


def test_what_was_made_from_another_log_is_stale(
    command: Resnap, staged: Path, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    other = copied(fixture_set("kafka-2.7.2-nine-days").data, tmp_path / "other")
    before = look(other)
    ran = command("install", staged, other, "--topic", "payments")
    assert ran.code == 15
    assert look(other) == before


def test_what_was_made_from_the_log_dir_of_another_broker_may_be_why_nothing_fits(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], staged: Path, tmp_path: Path
) -> None:
    other = copied(fixture_set("kafka-2.7.2").data, tmp_path / "other")
    ran = command("install", staged, other, "--dry-run", *JSON)
    assert (ran.code, ran.document["summary"]["installed"]) == (15, 0)
    assert "`resnap regenerate LOG_DIR --into STAGED`" in ran.error["hint"]
    assert "from the log dir of another broker" in ran.error["hint"]


def test_without_a_fingerprint_nothing_is_installed(command: Resnap, broker_log: Path, staged: Path) -> None:
    for path in staged.glob("*/fingerprint.json"):
        path.unlink()
    before = look(broker_log)
    ran = command("install", staged, broker_log, *JSON)
    assert (ran.code, ran.document["summary"]["refused"]) == (15, INSTALLED)
    assert set(outcomes(ran.document, "payments-0").values()) == {"no-fingerprint"}
    (staged / "payments-0" / "fingerprint.json").write_text("{")
    assert command("install", staged, broker_log).code == 15
    assert look(broker_log) == before


def test_a_staged_file_that_is_not_what_was_made_is_not_installed(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    first, second, *_ = lost_boundaries(broker_log / "payments-0")
    flip(file_at(staged / "payments-0", first, "snapshot"), 12)
    shutil.copy(file_at(staged / "payments-1", lost_boundaries(broker_log / "payments-1")[0], "snapshot"),
                file_at(staged / "payments-0", second, "snapshot"))  # fmt: skip
    ran = command("install", staged, broker_log, *JSON)
    assert (ran.code, ran.error["exitCode"]) == (3, 13)
    found = outcomes(ran.document, "payments-0")
    assert (found[first], found[second]) == ("staged-damaged", "staged-damaged")
    assert not file_at(broker_log / "payments-0", first, "snapshot").exists()


def test_a_staged_file_that_is_gone_is_named_and_the_others_are_installed(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    first, *_ = lost_boundaries(broker_log / "payments-0")
    lost = len(lost_boundaries(broker_log / "payments-1"))
    gone = file_at(staged / "payments-0", first, "snapshot")
    gone.unlink()
    for path in (staged / "payments-1").glob("*.snapshot"):
        path.unlink()
    tried = command("install", staged, broker_log, "--dry-run", *JSON)
    ran = command("install", staged, broker_log, *JSON)
    assert (tried.code, ran.code, ran.error["exitCode"]) == (3, 3, 13)
    assert outcomes(ran.document, "payments-0")[first] == "staged-damaged"
    assert set(outcomes(ran.document, "payments-1").values()) == {"staged-damaged"}
    summary = ran.document["summary"]
    assert (summary["refused"], summary["installed"]) == (lost + 1, INSTALLED - lost - 1)
    assert (f"{gone.name} is gone" in ran.err, "`resnap regenerate` again" in ran.err) == (True, True)
    regenerate(broker_log, staged)
    assert command("install", staged, broker_log).code == 0
    assert (lost_boundaries(broker_log / "payments-0"), lost_boundaries(broker_log / "payments-1")) == ([], [])


@pytest.mark.parametrize(("kind", "told"), [
    ("future", "a broker moves the partition"), ("delete", "was deleted, or moved"), ("stray", "has set the partition"),
])  # fmt: skip
def test_of_a_partition_that_is_set_aside_here_it_is_said_why_nothing_is_installed(
    command: Resnap, broker_log: Path, staged: Path, kind: str, told: str
) -> None:
    aside = broker_log / f"dash-ed.topic_1-0.{'0' * 32}-{kind}"
    (broker_log / "dash-ed.topic_1-0").rename(aside)
    before = look(aside)
    for words in (("--dry-run",), (), ("--topic", "dash*")):
        ran = command("install", staged, broker_log, *words)
        assert ran.code == (2 if "--topic" in words else 0), ran.err
        [line] = [line for line in ran.err.splitlines() if aside.name in line]
        assert f": only {aside.name} is there: " in line
        assert told in line
    assert look(aside) == before


@pytest.mark.parametrize("name", ["00000000000000000000.log.swap", "00000000000000000000.index.cleaned"])
def test_a_directory_in_the_middle_of_a_change_is_left_alone(
    command: Resnap, broker_log: Path, staged: Path, name: str
) -> None:
    (broker_log / "payments-0" / name).touch()
    ran = command("install", staged, broker_log, *JSON)
    assert (ran.code, ran.error["exitCode"]) == (3, 1)
    assert set(outcomes(ran.document, "payments-0").values()) == {"directory-busy"}
    assert "start the broker and stop it once" in ran.error["hint"]


def test_where_an_index_is_missing_a_broker_would_delete_what_is_installed(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    file_at(broker_log / "payments-0", 0, "index").unlink()
    ran = command("install", staged, broker_log, *JSON)
    assert ran.code == 3
    assert set(outcomes(ran.document, "payments-0").values()) == {"index-missing"}


@pytest.mark.parametrize("number", [-2, 2])
def test_where_an_index_is_missing_what_is_below_is_installed(
    command: Resnap, broker_log: Path, staged: Path, number: int
) -> None:
    partition = broker_log / "payments-0"
    base, lost = bases(partition)[number], set(lost_boundaries(partition))
    file_at(partition, base, "index").unlink()
    dry, ran = command("install", staged, broker_log, "--dry-run", *JSON), command("install", staged, broker_log, *JSON)
    above = {offset for offset in lost if offset > base}
    expected = {offset: "index-missing" if offset in above else "installed" for offset in lost}
    for one in dry, ran:
        found = outcomes(one.document, "payments-0")
        assert (one.code, {offset: found[offset] for offset in lost}) == (3 if above else 0, expected)
    assert set(lost_boundaries(partition)) == above
    assert lost != above


def test_a_snapshot_that_lacks_a_producer_is_not_put_below_a_segment_that_the_broker_recovers(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    partition = broker_log / "payments-0"
    first, *_ = lost_boundaries(partition)
    told = staged / "payments-0" / "fingerprint.json"
    print_ = read_fingerprint(told.read_bytes()).at(first)
    assert print_ is not None
    told.write_text(told.read_text().replace(f'"{print_.sha256}", 0]', f'"{print_.sha256}", 2]'))
    dry = command("install", staged, broker_log, "--dry-run", *JSON)
    assert outcomes(dry.document, "payments-0")[first] == "installed", "the broker loads a newer one"
    file_at(partition, first, "index").unlink()
    dry = command("install", staged, broker_log, "--dry-run", *JSON)
    assert outcomes(dry.document, "payments-0")[first] == "tail-incomplete", "this one would be the newest"


@pytest.mark.parametrize("is_running", [True, False])
def test_a_dry_run_says_what_prevents_it_now_where_it_names_the_next_step(
    command: Resnap, broker_log: Path, staged: Path, *, is_running: bool
) -> None:
    if not is_running:
        (broker_log / ".kafka_cleanshutdown").unlink()
    with another_holding(broker_log / ".lock") if is_running else nullcontext():
        people = command("install", staged, broker_log, "--dry-run", "--quiet")
        programs = command("install", staged, broker_log, "--dry-run", *JSON)
    expected = "stop the broker (kafka-server-stop.sh)" if is_running else "start the broker, so that it recovers"
    [said] = [line for line in people.out.splitlines() if line.startswith("Next: ")]
    assert said.startswith(f"Next: {expected}")
    assert expected in programs.document["notNow"]


def test_a_directory_in_the_place_of_a_snapshot_is_found_before_anything_is_changed(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    partition = broker_log / "payments-0"
    place = file_at(partition, lost_boundaries(partition)[0], "snapshot")
    place.mkdir()
    before = look(broker_log)
    for words in (("--dry-run",), ()):
        ran = command("install", staged, broker_log, *words, *JSON)
        assert (ran.code, ran.error["hint"]) == (1, "move it to a place outside the log dir")
        assert f"{place} is a directory" in ran.error["message"]
    assert look(broker_log) == before


def test_a_directory_without_any_snapshot_gets_none_unless_its_tail_is_covered(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    partition = broker_log / "payments-0"
    last = bases(partition)[-1]
    lose_all_snapshots(partition)
    ran = command("install", staged, broker_log, *JSON)
    assert (ran.code, set(outcomes(ran.document, "payments-0").values())) == (3, {"tail-uncovered"})
    assert bases(partition, "snapshot") == []
    regenerate(broker_log, staged, "--topic", "payments")
    ran = command("install", staged, broker_log, *JSON)
    assert ran.code == 0
    assert bases(partition, "snapshot")[-1] == last


def test_a_snapshot_that_lacks_a_producer_never_becomes_the_newest(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    partition = broker_log / "payments-0"
    offsets = bases(partition)
    for path in partition.glob("*.snapshot"):
        if int(path.stem) > offsets[-3]:
            path.unlink()
    regenerate(broker_log, staged, "--topic", "payments")
    told = staged / "payments-0" / "fingerprint.json"
    last = read_fingerprint(told.read_bytes()).at(offsets[-1])
    assert last is not None
    told.write_text(told.read_text().replace(f'"{last.sha256}", 0]', f'"{last.sha256}", 2]'))
    ran = command("install", staged, broker_log, *JSON)
    found = outcomes(ran.document, "payments-0")
    assert (found[offsets[-1]], found[offsets[-2]]) == ("tail-incomplete", "installed")
    assert ran.code == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "STAGED and LOG_DIR"),
        (("{staged}",), "STAGED and LOG_DIR"),
        (("{staged}", "{log}", "--replace", "good"), "expected corrupt or false-empty"),
        (("{staged}", "{log}", "--undo", "x"), "--undo takes no other argument"),
        (("--undo", "{staged}/nothing"), "there is no such file"),
        (("{staged}/nothing", "{log}"), "is not a directory"),
        (("{log}/orders-0", "{log}"), "is inside the log dir"),
        (("{staged}", "{staged}"), "neither a Kafka log dir nor"),
        (("{staged}", "{log}/nothing"), "does not exist"),
        (("{staged}", "{log}", "--topic", "no-such"), "has no snapshot of any selected topic"),
    ],
)
def test_invalid_arguments_are_a_usage_error(
    command: Resnap, broker_log: Path, staged: Path, arguments: tuple[str, ...], says: str
) -> None:
    before = look(broker_log)
    ran = command("install", *(argument.format(staged=staged, log=broker_log) for argument in arguments))
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert "hint: " in ran.err
    assert look(broker_log) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root has what others cannot get at")
def test_root_installs_nothing_where_others_may_write(command: Resnap, broker_log: Path, staged: Path) -> None:
    """Another user who may write there could have planted links that lead root elsewhere."""
    os.chown(broker_log, 1234, 2345)
    before = look(broker_log)
    for dry_run in ((), ("--dry-run",)):
        ran = command("install", staged, broker_log, *dry_run, "--output", "json")
        assert "root does not work" in ran.err
        assert "setpriv --reuid 1234 --regid" in ran.err
        assert look(broker_log) == before
    assert command("install", staged, broker_log).code == 1
