"""The demonstration: that it does what it prints, and that it would report anything wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from shutil import copytree
from typing import TYPE_CHECKING

import pytest

import resnap.scheduler.verbs.demo.acts as demonstration
from resnap.replay.watching import Progress
from resnap.scheduler import cli
from resnap.scheduler.job.wiring import engine_of
from resnap.scheduler.settings.settings import Settings
from resnap.scheduler.verbs.demo.acts import Demo, Tiered, rules_at, workplace
from resnap.scheduler.verbs.demo.log import DAY_MS, LASTING_MS, lose_snapshots, write_demo_log
from resnap.scheduler.verbs.demo.proof import Outcome, Proof, prove
from resnap.storage.errors import LogDirError, UsageError
from resnap.storage.log.producer_snapshot import load_snapshot, snapshot_bytes
from resnap.storage.stores.urls import open_store
from resnap.tiering.judging.refusal import Reason
from resnap.tiering.planner import Planner
from resnap.tiering.selection import Scope
from resnap.tiering.store_check import store_check
from resnap.tiering.verifying.verification_journal import VerificationJournal
from tests.clocks import FixedClock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from resnap.scheduler.verbs.demo.log import DemoPartition
    from resnap.scheduler.verbs.demo.proof import BoundaryProof
    from tests.scheduler.conftest import Resnap

NOW_MS = 1_700_000_000_000


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def snapshot_of(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020d}.snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The demonstration after its last act."""

    demo: Demo
    partitions: tuple[DemoPartition, ...]
    before: dict[str, bytes]
    """The log dir with all its snapshots."""
    tiered: Tiered
    proof: Proof
    again: Tiered

    def prove(self, *, lost: Path | None = None, partitions: Sequence[DemoPartition] | None = None) -> Proof:
        store = open_store(self.demo.store_url)
        check = store_check(self.demo.planner, store, Scope(sources=(store.url,)), VerificationJournal())
        segments = check.segments(Progress())
        return prove(partitions or self.partitions, lost or self.demo.lost, segments, store, at_ms=NOW_MS)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    clock = FixedClock(NOW_MS)
    planner = Planner(rules_at(NOW_MS), engine_of(Settings(engine="local")))
    demo = Demo(root=tmp_path_factory.mktemp("demo"), planner=planner, clock=clock)
    partitions = demo.write(seed=1)
    before = contents(demo.log_dir)
    demo.lose(partitions)
    tiered = demo.tier(replaying=Progress(), shipping=Progress())
    proof = demo.prove(partitions, Progress())
    clock.advance(LASTING_MS)
    return Played(
        demo=demo, partitions=partitions, before=before, tiered=tiered, proof=proof,
        again=demo.tier_again(clock.now_ms()),
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 2, 99])
def test_every_seed_makes_a_log_of_25_to_30_segments_in_which_a_transaction_hangs(tmp_path: Path, seed: int) -> None:
    orders, committed, hanging = write_demo_log(tmp_path, seed=seed, now_ms=NOW_MS)
    assert 25 <= sum(len(partition.bases) for partition in (orders, committed, hanging)) <= 30
    assert orders.markers == 0
    assert committed.markers > 100
    assert committed.last_stable_offset == committed.log_end_offset
    assert hanging.last_stable_offset < hanging.boundaries[-1]
    assert list((committed.directory).glob("*.txnindex")), "aborted transactions leave an index"


def test_equal_seeds_and_times_write_equal_bytes_and_other_seeds_others(tmp_path: Path) -> None:
    for name, seed in (("one", 5), ("other", 5), ("third", 6)):
        write_demo_log(tmp_path / name, seed=seed, now_ms=NOW_MS)
    one, other, third = (contents(tmp_path / name) for name in ("one", "other", "third"))
    assert one == other
    assert one != third


def test_snapshots_stand_at_every_segment_end_and_are_lost_but_for_the_last_two_bases_and_the_log_end(
    played: Played,
) -> None:
    for partition in played.partitions:
        ends = [*partition.boundaries, partition.log_end_offset]
        name = str(partition.topic_partition)
        had = sorted(int(path[-29:-9]) for path in played.before if path.startswith(name) and path.endswith("snapshot"))
        left = sorted(int(path.stem) for path in partition.directory.glob("*.snapshot"))
        aside = sorted(int(path.stem) for path in (played.demo.lost / name).iterdir())
        assert had == ends
        assert left == ends[-3:]
        assert aside == ends[:-3] == list(partition.lost)


def test_the_broker_forgets_a_silent_producer_only_when_it_has_expired(played: Played) -> None:
    orders = played.partitions[0]
    lost = [load_snapshot(snapshot_of(played.demo.lost / "orders-0", offset)) for offset in orders.lost]
    assert lost[0][900].timestamp == NOW_MS - 8 * DAY_MS
    assert 900 not in load_snapshot(snapshot_of(orders.directory, orders.boundaries[-1]))
    assert sum(boundary.expired for boundary in played.proof.boundaries) == sum(900 in entries for entries in lost)


def test_scan_finds_where_a_broker_stops(tmp_path: Path) -> None:
    planner = Planner(rules_at(NOW_MS), engine_of(Settings(engine="local")))
    demo = Demo(root=tmp_path, planner=planner)
    partitions = demo.write(seed=1)
    *sound, hanging = [scanned.blockers.stop for scanned in demo.scan()]
    assert sound == [None, None]
    assert hanging is not None
    assert hanging.reason is Reason.ABOVE_LAST_STABLE_OFFSET
    demo.lose(partitions)
    for partition, scanned in zip(partitions, demo.scan(), strict=True):
        assert scanned.blockers.stop is not None
        assert f"offset {partition.boundaries[0]}: " in scanned.blockers.stop.detail
        assert "NullPointerException" in scanned.blockers.stop.detail


def test_every_lost_snapshot_comes_back_and_the_segments_above_the_open_transaction_wait(played: Played) -> None:
    assert played.proof.problems == ()
    assert len(played.proof.equal) == sum(len(partition.lost) for partition in played.partitions)
    waiting = [boundary.offset for boundary in played.proof.boundaries if boundary.outcome is Outcome.WAITING]
    hanging = played.partitions[2]
    assert waiting == [offset for offset in hanging.boundaries if offset > hanging.last_stable_offset] != []
    assert sum(boundary.entries for boundary in played.proof.equal) > 100


def test_a_second_run_ships_nothing_though_its_time_is_another(played: Played) -> None:
    assert played.again.shipped == ()
    assert played.again.already == len(played.tiered.shipped) == len(played.proof.segments)


@pytest.mark.parametrize("field", ["last_sequence", "coordinator_epoch", "current_txn_first_offset", "timestamp"])
def test_a_snapshot_that_differs_in_one_field_of_one_entry_is_found(played: Played, tmp_path: Path, field: str) -> None:
    copytree(played.demo.lost, tmp_path / "lost")
    partition = played.partitions[1]
    path = snapshot_of(tmp_path / "lost" / "payments-0", partition.lost[2])
    entries = load_snapshot(path)
    changed = min(entries)
    entries[changed] = entries[changed]._replace(**{field: getattr(entries[changed], field) + 1})
    path.write_bytes(snapshot_bytes(entries.values()))
    proof = played.prove(lost=tmp_path / "lost")
    wrong = [boundary for boundary in proof.boundaries if boundary.outcome is Outcome.DIFFERENT]
    assert [(boundary.offset, boundary.different) for boundary in wrong] == [(partition.lost[2], (changed,))]
    [problem] = proof.problems
    assert problem.startswith(f"payments-0: the snapshot at {partition.lost[2]} differs")
    assert len(proof.equal) == len(proof.regenerated) - 1


@pytest.mark.parametrize("missing_from", ["store", "log"])
def test_an_entry_too_few_or_too_many_is_a_difference(played: Played, tmp_path: Path, missing_from: str) -> None:
    copytree(played.demo.lost, tmp_path / "lost")
    path = snapshot_of(tmp_path / "lost" / "payments-1", played.partitions[2].lost[0])
    entries = load_snapshot(path)
    first = min(entries)
    if missing_from == "store":
        entries[7] = entries[first]._replace(producer_id=7)
    else:
        del entries[first]
    path.write_bytes(snapshot_bytes(entries.values()))
    [problem] = played.prove(lost=tmp_path / "lost").problems
    assert problem.endswith("for 1 producer: " + ("7" if missing_from == "store" else str(first)))


def test_a_segment_above_or_below_the_last_stable_offset_must_be_where_it_belongs(played: Played) -> None:
    orders, committed, hanging = played.partitions

    def outcomes(partition: DemoPartition) -> list[Outcome]:
        boundaries: tuple[BoundaryProof, ...] = played.prove(partitions=[partition]).boundaries
        return [boundary.outcome for boundary in boundaries]

    ended = replace(hanging, last_stable_offset=hanging.log_end_offset)
    assert outcomes(ended).count(Outcome.ABSENT) == outcomes(hanging).count(Outcome.WAITING)
    assert "is not in the store" in played.prove(partitions=[ended]).problems[0]
    hangs_early = replace(committed, last_stable_offset=committed.boundaries[0])
    assert outcomes(hangs_early) == [Outcome.EQUAL] + [Outcome.TOO_EARLY] * (len(committed.boundaries) - 1)
    assert outcomes(orders) == [Outcome.EQUAL] * len(orders.boundaries)


def test_a_temporary_workplace_is_removed_unless_it_is_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with workplace(None, keep=False) as root:
        (root / "file").touch()
        assert root.parent == tmp_path
    assert list(tmp_path.iterdir()) == []
    with workplace(None, keep=True) as root:
        (root / "file").touch()
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, LogDirError("full")])
def test_an_error_or_interrupt_leaves_no_temporary_workplace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keep: bool, error: BaseException
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail() -> None:
        with workplace(None, keep=keep) as root:
            (root / "file").touch()
            raise error

    with pytest.raises((KeyboardInterrupt, LogDirError)):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_given_workplace_is_made_and_stays_but_must_be_empty(tmp_path: Path) -> None:
    wanted = tmp_path / "not" / "there"
    with workplace(wanted, keep=False) as root:
        (root / "file").touch()
    assert (wanted / "file").exists()
    for taken in (wanted, wanted / "file", wanted / "file" / "below"):
        with pytest.raises(UsageError) as refused, workplace(taken, keep=False):
            pytest.fail("a directory with something in it was taken")
        assert str(taken) in str(refused.value)
        assert refused.value.hint


def test_the_command_explains_each_step_and_ends_with_what_to_do_next(resnap: Resnap) -> None:
    ran = resnap("demo", "--engine", "local", "--dir", "here", "--seed", 3)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert [line[:2] for line in lines if line[:1].isdigit() and line[1:2] == "."] == [
        "1.",
        "2.",
        "3.",
        "4.",
        "5.",
        "6.",
    ]
    assert any("NullPointerException" in line for line in lines)
    assert any(line.split() == ["payments-0", ".......##", "#########"] for line in lines)
    assert "19 of 19 regenerated snapshots equal the lost ones" in ran.out
    assert lines[-1].startswith("Next: `resnap scan ")
    assert sorted(path.name for path in (resnap.directory / "here").iterdir()) == ["log", "lost", "store"]
    assert "replay: 28/28 segments" in ran.err
    scan = resnap("scan", "here/log", "--exit-code")
    assert scan.code == 4
    again = resnap("demo", "--engine", "local", "--dir", "here")
    assert (again.code, again.out) == (2, "")
    assert again.err.splitlines()[1].startswith("hint: ")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_the_command_gives_steps_and_figures_to_programs(resnap: Resnap, tmp_path: Path, form: str) -> None:
    (tmp_path / "tmp").mkdir()
    ran = resnap("demo", "--engine", "local", "--quiet", "--output", form, TMPDIR=str(tmp_path / "tmp"))
    assert (ran.code, ran.err) == (0, "")
    if form == "json":
        steps, summary = ran.document["steps"], ran.document["summary"]
    else:
        *steps, summary = map(json.loads, ran.out.splitlines())
    assert [step["step"] for step in steps] == ["write", "lose", "scan", "tier", "verify", "again"]
    assert summary["regenerated"] == summary["equal"] == steps[1]["lost"] > 0
    assert steps[3]["shipped"] == steps[4]["segments"] == steps[5]["already"]
    assert steps[5]["shipped"] == 0
    assert summary["directory"] is None
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_snapshot_that_differs_ends_the_command_with_1_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RESNAP_")]:
        monkeypatch.delenv(name)

    def lose_and_spoil(partitions: Sequence[DemoPartition], lost: Path) -> None:
        lose_snapshots(partitions, lost)
        path = next((lost / "payments-0").iterdir())
        first, *others = load_snapshot(path).values()
        path.write_bytes(snapshot_bytes([first._replace(producer_epoch=first.producer_epoch + 1), *others]))

    monkeypatch.setattr(demonstration, "lose_snapshots", lose_and_spoil)
    assert cli.run(["demo", "--engine", "local", "--quiet"]) == 1
    told = capsys.readouterr()
    assert "18 of 19 regenerated snapshots equal the lost ones" in told.out
    assert "!" in next(line for line in told.out.splitlines() if line.split()[:2] == ["payments-0", ".......##"])
    assert told.err.startswith("error: payments-0: the snapshot at ")
    assert "resnap demo --seed 1 --dir DIR" in told.err


def test_an_interrupt_ends_the_command_with_130_and_leaves_nothing_behind(resnap: Resnap, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "resnap", "demo", "--engine", "local", "--keep"]
    environment = resnap.environment({"TMPDIR": str(tmp_path / "tmp")})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"1."):
            assert process.poll() is None
        assert list((tmp_path / "tmp").iterdir()) != []
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
@pytest.mark.spark
def test_on_spark_it_comes_out_the_same_whatever_cluster_is_configured(resnap: Resnap, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    ran = resnap(
        "demo", "--output", "json", "--quiet", TMPDIR=str(tmp_path / "tmp"), RESNAP_SPARK_MASTER="spark://nowhere:7077",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.document["steps"][3]["engine"] == "spark"
    assert ran.document["summary"]["equal"] == ran.document["summary"]["regenerated"] > 0
    assert list((tmp_path / "tmp").iterdir()) == []
