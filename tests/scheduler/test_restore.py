"""``resnap restore``: partition directories of what was shipped, each whole or not there, whatever ends the run."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

import pytest

from resnap.replay.watching import Progress
from resnap.scheduler.cli import run
from resnap.storage.errors import LogDirError
from resnap.storage.log.log_dir_lock import hold_lock
from resnap.storage.log.names import DirKind, TopicPartition, parse_partition_dir_name
from resnap.storage.sources.files import Sources
from resnap.tiering.restore import RestoreOrder, RestoreWork, restore
from resnap.tiering.restoring.restorer import unfinished_name
from resnap.tiering.selection import Scope
from tests.scheduler.files import bases, file_at, fill, flip, tree
from tests.scheduler.shipped import check_whole, entries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.tiering.restore import RestoreReport
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

SET: Final = "kafka-2.7.2-then-3.9.1"
PARTITIONS: Final = ("payments-0", "payments-1")
JSON: Final = ("--output", "json")


@pytest.fixture(scope="module")
def store(fixture_set: Callable[[str], FixtureSet], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was shipped of two partitions."""
    root = tmp_path_factory.mktemp("shipped") / "store"
    os.environ["RESNAP_STATE_DIR"] = "none"
    arguments = ["tier", str(fixture_set(SET).data), "--topic", "payments", "--to", root.as_uri(), "--as-of", "roll"]
    assert run([*arguments, "--engine", "local", "--quiet", *JSON]) == 0
    return root


@pytest.fixture
def log_dir(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    """The log dir of the broker, whose disk has lost the partitions."""
    shutil.copytree(fixture_set(SET).data, tmp_path / "data")
    for name in PARTITIONS:
        shutil.rmtree(tmp_path / "data" / name)
    return tmp_path / "data"


def test_every_file_comes_back_as_it_was_and_a_second_run_finds_it_there(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], store: Path, log_dir: Path
) -> None:
    fixture, before = fixture_set(SET), tree(log_dir)
    ran = command("restore", store.as_uri(), "--into", log_dir, *JSON)
    assert ran.code == 0, ran.err
    assert [row["outcome"] for row in ran.document["partitions"]] == ["restored", "restored"]
    assert check_whole(store, log_dir) == set(PARTITIONS)
    for name in PARTITIONS:
        *_, end = bases(log_dir / name, "snapshot")
        for base in bases(log_dir / name):
            assert (
                file_at(log_dir / name, base, "log").read_bytes()
                == file_at(fixture.data / name, base, "log").read_bytes()
            )
        for offset in bases(log_dir / name, "snapshot"):
            ours, theirs = (file_at(root / name, offset, "snapshot") for root in (log_dir, fixture.expected))
            assert entries(ours.read_bytes()) == entries(theirs.read_bytes())
        assert end > max(bases(log_dir / name))
        metadata = fixture.data / name / "partition.metadata"
        assert (log_dir / name / "partition.metadata").read_bytes() == metadata.read_bytes()
    assert {place: look for place, look in tree(log_dir).items() if place in before} == before
    ran = command("restore", store.as_uri(), "--into", log_dir, *JSON)
    assert (ran.code, ran.document["summary"]["alreadyThere"]) == (0, 2)


def test_what_is_restored_can_be_shipped_again_and_nothing_is_missing(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    assert command("restore", store.as_uri(), "--into", tmp_path / "new").code == 0
    ran = command("verify", tmp_path / "new", "--engine", "local", "--as-of", "roll", *JSON)
    assert ran.code == 0
    assert {row["verdict"] for row in ran.document["boundaries"]} == {"proven"}


def test_the_progress_counts_segments_and_bytes(store: Path, log_dir: Path) -> None:
    class Counted(Progress):
        expected = done = (0, 0)

        def expect(self, segments: int, size_bytes: int) -> None:
            self.expected = (self.expected[0] + segments, self.expected[1] + size_bytes)

        def advance(self, segments: int, size_bytes: int) -> None:
            self.done = (self.done[0] + segments, self.done[1] + size_bytes)

    request = RestoreOrder(scope=Scope(sources=(store.as_uri(),)), log_dirs=(log_dir,))
    logs = len(list(store.rglob("*.log")))
    for again in (False, True):
        progress = Counted()
        reports: list[RestoreReport] = []
        restore(request, RestoreWork(sources=Sources(), progress=progress), reports.append)
        assert [fault for one in reports for fault in one.faults] == []
        assert progress.done == progress.expected, again
        assert progress.done[0] == logs, again


def test_a_dry_run_writes_nothing(command: Resnap, store: Path, log_dir: Path) -> None:
    before = tree(log_dir)
    ran = command("restore", store.as_uri(), "--into", log_dir, "--dry-run", *JSON)
    assert (ran.code, ran.document["summary"]["restored"]) == (0, 2)
    assert tree(log_dir) == before


def test_a_dry_run_names_the_directory_that_is_to_be_made_and_reports_no_bytes_as_restored(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    dry = command("restore", store.as_uri(), "--into", tmp_path / "new", "--dry-run")
    assert "restore: " not in dry.err
    rows = [line for line in dry.out.splitlines() if line.startswith("payments ")]
    assert [row.split()[-1] for row in rows] == [str(tmp_path / "new")] * 2
    assert all("  would be restored  " in row for row in rows)
    assert dry.out.splitlines()[-1] == "Next: the same command without --dry-run."
    assert not (tmp_path / "new").exists()
    ran = command("restore", store.as_uri(), "--into", tmp_path / "new")
    assert ran.out.splitlines()[-1] == f"Next: start the broker whose log.dirs names {tmp_path / 'new'}."


def test_that_topics_have_no_id_is_warned_of_once(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    store = (tmp_path / "store").as_uri()
    data = fixture_set("kafka-2.7.2").data
    assert command("tier", data, "--to", store, "--topic", "payments", "--engine", "local").code == 0
    ran = command("restore", store, "--into", tmp_path / "new")
    assert (ran.code, len([line for line in ran.out.splitlines() if line.startswith("payments ")])) == (0, 2)
    assert ran.err.count("no topic id was shipped of payments, ") == ran.err.count("--topic-id") == 1


def test_a_directory_that_is_not_there_is_made(command: Resnap, store: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    tried = command("restore", store.as_uri(), "--into", new, "--dry-run", *JSON)
    assert (tried.code, tried.document["summary"]["restored"], new.exists()) == (0, 2, False)
    assert command("restore", store.as_uri(), "--into", new).code == 0
    assert check_whole(store, new) == set(PARTITIONS)
    assert command("restore", store.as_uri(), "--into", tmp_path / "no" / "parent").code == 2


def test_a_directory_that_cannot_be_made_is_an_error_with_a_remedy(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "new").symlink_to(tmp_path / "nowhere")
    ran = command("restore", store.as_uri(), "--into", tmp_path / "new")
    assert ran.code == LogDirError.exit_code
    assert f"{tmp_path / 'new'}: cannot be written: File exists" in ran.err
    assert "bug" not in ran.err


def test_what_keeps_a_broker_from_starting_on_a_new_disk_is_said(command: Resnap, store: Path, tmp_path: Path) -> None:
    found = tmp_path / "disk" / "lost+found"
    found.mkdir(parents=True)
    for flags in (("--dry-run",), ()):
        ran = command("restore", store.as_uri(), "--into", found.parent, *flags)
        assert ran.code == 0
        assert f"no-start: {found} is not named" in ran.err
        assert f"move {found} to a place outside the log dir" in ran.err


def test_nothing_is_restored_into_a_directory_of_a_log_dir(
    command: Resnap, store: Path, broker_log: Path, tmp_path: Path
) -> None:
    before = tree(broker_log)
    (tmp_path / "link").symlink_to(broker_log)
    for into in (broker_log / "new", broker_log / "payments-0", tmp_path / "link" / "new"):
        for flags in ((), ("--dry-run",)):
            ran = command("restore", store.as_uri(), "--into", into, *flags)
            assert (ran.code, ran.out) == (2, "")
            assert "inside the log dir" in ran.err
    assert tree(broker_log) == before


def test_what_is_there_already_is_never_touched(command: Resnap, store: Path, log_dir: Path) -> None:
    (log_dir / "payments-0").mkdir()
    (log_dir / "payments-0" / f"{0:020d}.log").write_bytes(b"mine")
    before = tree(log_dir / "payments-0")
    ran = command("restore", store.as_uri(), "--into", log_dir, *JSON)
    assert ran.code == 3
    assert "payments-0 is there already" in ran.error["message"]
    assert tree(log_dir / "payments-0") == before
    assert [row["outcome"] for row in ran.document["partitions"]] == ["occupied", "restored"]


def test_a_running_broker_is_never_worked_beside(resnap: Resnap, store: Path, log_dir: Path) -> None:
    with hold_lock(log_dir):
        ran = resnap("restore", store.as_uri(), "--into", log_dir, *JSON)
    assert (ran.code, ran.error["type"]) == (14, "LogDirInUseError")
    assert check_whole(store, log_dir) == set()


def test_the_log_dir_of_another_cluster_is_refused(command: Resnap, store: Path, log_dir: Path) -> None:
    meta = log_dir / "meta.properties"
    cluster = next(path.name for path in store.iterdir())
    meta.write_text(meta.read_text().replace(cluster, "AAAAAAAAQACAAAAAAAAAAQ"))
    ran = command("restore", store.as_uri(), "--into", log_dir, *JSON)
    assert (ran.code, "is of cluster" in ran.error["message"]) == (2, True)


def test_a_log_that_its_log_dir_would_have_emptied_is_refused(command: Resnap, store: Path, log_dir: Path) -> None:
    (log_dir / "log-start-offset-checkpoint").write_text("0\n1\npayments 0 999999\n")
    ran = command("restore", store.as_uri(), "--into", log_dir, *JSON)
    assert ran.code == 3
    assert "a broker would delete all of it" in ran.error["message"]
    assert check_whole(store, log_dir) == {"payments-1"}


@pytest.mark.parametrize("suffix", ["log", "snapshot", "index", "leader-epoch-checkpoint"])
def test_an_object_that_is_not_what_its_manifest_says_is_not_restored(
    command: Resnap, store: Path, log_dir: Path, tmp_path: Path, suffix: str
) -> None:
    damaged = shutil.copytree(store, tmp_path / "damaged")
    flip(max((damaged).glob(f"*/payments/*/1/*.{suffix}")), 3)
    ran = command("restore", damaged.as_uri(), "--into", log_dir, *JSON)
    assert ran.code == 3
    assert "other bytes than its manifest says" in ran.error["message"]
    assert check_whole(store, log_dir, killed=True) == {"payments-0"}
    assert command("restore", store.as_uri(), "--into", log_dir).code == 0
    assert check_whole(store, log_dir) == set(PARTITIONS)


def test_a_gap_is_not_restored(command: Resnap, store: Path, log_dir: Path, tmp_path: Path) -> None:
    torn = shutil.copytree(store, tmp_path / "torn")
    sorted(torn.glob("*/payments/*/1/*.manifest"))[2].unlink()
    ran = command("restore", torn.as_uri(), "--into", log_dir, *JSON)
    assert (ran.code, "leave a gap" in ran.error["message"]) == (3, True)
    assert check_whole(store, log_dir) == {"payments-0"}


def test_a_segment_that_lacks_an_object_is_named_with_its_partition_and_offsets(
    command: Resnap, store: Path, log_dir: Path, tmp_path: Path
) -> None:
    torn = shutil.copytree(store, tmp_path / "torn")
    gone = sorted(torn.glob("*/payments/*/1/*.timeindex"))
    gone[1].unlink()
    error = command("restore", torn.as_uri(), "--into", log_dir, *JSON).error
    offsets = f"[{int(gone[1].name[:20])}, {int(gone[2].name[:20])})"
    assert f"payments-1: the segment {offsets} lacks an object: " in error["message"]
    assert f"names {gone[1].relative_to(torn)} of " in error["message"]
    assert f"`resnap verify {torn.as_uri()}`" in error["hint"]


def test_only_a_log_dir_and_only_what_was_shipped(command: Resnap, store: Path, broker_log: Path) -> None:
    assert command("restore", store.as_uri(), "--into", store / "nothing").code == 2
    assert command("restore", broker_log.as_uri(), "--into", broker_log).code == 2
    ran = command("restore", f"{store.as_uri()}-mistyped", "--into", broker_log)
    assert (ran.code, "holds no tiered segment" in ran.err, "log.dirs" in ran.err) == (2, True, False)
    ran = command("restore", store, "--into", broker_log)
    assert (ran.code, f"for this directory give {store.as_uri()}" in ran.err) == (2, True), ran.err


def test_a_full_disk_is_reported_and_the_same_command_continues(command: Resnap, store: Path, tiny_disk: Path) -> None:
    log_dir = tiny_disk / "data"
    log_dir.mkdir()
    fill(tiny_disk, leaving=150_000)
    ran = command("restore", store.as_uri(), "--into", log_dir, *JSON)
    assert ran.code in {1, 3}
    assert "free some space" in ran.error["hint"]
    check_whole(store, log_dir, killed=True)
    (tiny_disk / "ballast").unlink()
    assert command("restore", store.as_uri(), "--into", log_dir).code == 0
    assert check_whole(store, log_dir) == set(PARTITIONS)


@pytest.mark.parametrize("topic", ["t", "t" * 249, "a.b_c-d"])
def test_a_directory_in_the_making_is_one_that_a_broker_removes(topic: str) -> None:
    for number in (0, 2_147_483_647):
        name = unfinished_name(TopicPartition(topic, number))
        parsed = parse_partition_dir_name(name)
        assert parsed is not None
        assert (parsed.kind, parsed.partition, len(name) <= 255) == (DirKind.DELETE, number, True)
        assert topic.startswith(parsed.topic)


@pytest.fixture
def store_without_topic_id(command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    """What was shipped while the topic's id was not known."""
    data, root = tmp_path / "unnamed", tmp_path / "unnamed-store"
    shutil.copytree(fixture_set(SET).data, data)
    for name in PARTITIONS:
        (data / name / "partition.metadata").unlink(missing_ok=True)
    arguments = ("tier", data, "--topic", "payments", "--to", root.as_uri(), "--as-of", "roll", "--engine", "local")
    assert command(*arguments).code == 0
    return root


def test_without_a_topic_id_a_broker_with_zookeeper_gets_its_partitions_and_a_warning(
    command: Resnap, store_without_topic_id: Path, log_dir: Path
) -> None:
    ran = command("restore", store_without_topic_id.as_uri(), "--into", log_dir, *JSON)
    assert ran.code == 0
    assert "--topic-id" in ran.err
    assert not (log_dir / "payments-0" / "partition.metadata").exists()


def test_without_a_topic_id_nothing_is_put_before_a_broker_that_would_set_it_aside(
    command: Resnap, store_without_topic_id: Path, log_dir: Path
) -> None:
    url, topic_id, of_cluster = store_without_topic_id.as_uri(), "Hx8dHx8dHx8dHx8dHx8dHw", cluster_line(log_dir)
    migrated = f"version=0\nbroker.id=1\ndirectory.id={topic_id}\n"
    for meta in ("version=1\nnode.id=1\n", migrated):
        (log_dir / "meta.properties").write_text(meta + of_cluster)
        before = tree(log_dir)
        ran = command("restore", url, "--into", log_dir, *JSON)
        assert (ran.code, tree(log_dir)) == (2, before), meta
        assert "--topic-id payments=ID" in ran.err
    for wrong in ("payments", "payments=short", f"other={topic_id}", f"payments={'A' * 22}"):
        assert command("restore", url, "--into", log_dir, "--topic-id", wrong).code == 2
    assert tree(log_dir) == before
    assert command("restore", url, "--into", log_dir, "--topic-id", f"payments={topic_id}").code == 0
    for name in PARTITIONS:
        assert (log_dir / name / "partition.metadata").read_text() == f"version: 0\ntopic_id: {topic_id}"


def cluster_line(log_dir: Path) -> str:
    lines = (log_dir / "meta.properties").read_text().splitlines()
    return next(line for line in lines if line.startswith("cluster.id="))


def test_a_link_in_the_place_of_what_a_run_left_is_taken_away_and_not_followed(
    command: Resnap, store: Path, log_dir: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "kept").write_bytes(b"somebody's")
    (log_dir / unfinished_name(TopicPartition("payments", 0))).symlink_to(foreign)
    assert command("restore", store.as_uri(), "--into", log_dir).code == 0
    assert (foreign / "kept").read_bytes() == b"somebody's"
    assert sorted(path.name for path in log_dir.glob("payments-*")) == list(PARTITIONS)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root has what others cannot get at")
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_root_restores_nothing_where_others_may_write(
    dry_run: tuple[str, ...], command: Resnap, store: Path, log_dir: Path
) -> None:
    os.chown(log_dir, 1234, 2345)
    ran = command("restore", store.as_uri(), "--into", log_dir, *dry_run, *JSON)
    assert (ran.code, ran.error["type"]) == (1, "LogDirError")
    assert "setpriv --reuid 1234 --regid" in ran.error["hint"]
    assert not list(log_dir.glob("payments-*"))
