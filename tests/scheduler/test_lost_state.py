"""A replica that a real broker started from remote storage, without producer state: seen, and healed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.replay.watching import Progress
from resnap.storage.log.producer_snapshot import load_snapshot, snapshot_bytes
from resnap.storage.stores.s3_settings import S3Settings
from resnap.storage.words import instant
from resnap.tiering.install import InstallOrder, install
from resnap.tiering.installing.installation import Replace
from resnap.tiering.selection import Scope
from tests.clocks import FixedClock
from tests.fixture_sets import AIVEN, LOST
from tests.scheduler.failing_disk import Killed, WatchedDisk, killed_at
from tests.scheduler.files import EMPTY_SNAPSHOT, bases, batch_positions, file_at
from tests.scheduler.installed import look
from tests.scheduler.shipped import BATCH, entries, files_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

    Sets = Callable[[str], FixtureSet]

LOCAL_FROM: Final = 205
LAST_BASE: Final = 625
LOG_END: Final = 671
HEAL: Final = ("--replace", "false-partial", "--replace", "txnindex", "--output", "json")
LATER: Final = ("--as-of", "roll", "--engine", "local", "-q")
"""The set grows old: as of now its producers have expired."""


@pytest.fixture
def replica(fixture_set: Sets, tmp_path: Path) -> Path:
    """The log dir of the replica, to be changed at will."""
    data = shutil.copytree(fixture_set(LOST).data, tmp_path / "data")
    (data / ".lock").touch()
    return data


@pytest.fixture
def remote(fixture_set: Sets, tmp_path: Path) -> Path:
    """The remote part of its log, to be changed at will."""
    return shutil.copytree(fixture_set(LOST).remote, tmp_path / "remote")


def regenerate(command: Resnap, replica: Path, remote: Path, into: Path) -> Ran:
    ran = command(
        "regenerate", replica, "--remote", remote.as_uri(), "--boundaries", "all", "--into", into, *LATER[:-1],
        "--output", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return ran


def test_before_a_move_between_disks_the_producers_below_the_local_log_start_are_listed_until_they_expire(
    command: Resnap, replica: Path, fixture_set: Sets
) -> None:
    leader = load_snapshot(file_at(fixture_set(LOST).expected / "t-0", LOG_END, "snapshot"))
    partition = replica / "t-0"
    for path in partition.glob("*.snapshot"):
        shutil.copy(fixture_set(LOST).expected / "t-0" / path.name, path)
    asked = ("check", replica, "--before-move", "t", "--output", "json", "--producer-id-expiration-ms")
    ran = command(*asked, 10**13)
    assert ran.code == 4, ran.err
    (row,) = ran.document["partitions"]
    below = {one.producer_id for one in leader.values() if one.last_offset < LOCAL_FROM}
    assert set(row["producers"]) == below
    assert (row["snapshotOffset"], row["localStartOffset"], row["openTransactions"]) == (LOG_END, LOCAL_FROM, 0)
    last_ms = max(leader[producer_id].timestamp for producer_id in below)
    assert row["safeFrom"] == instant(last_ms + 10**13)
    ran = command(*asked, 1)
    assert (ran.code, ran.document["partitions"], ran.document["summary"]["safe"]) == (0, [], 1)
    for path in partition.glob("*.snapshot"):
        path.unlink()
    ran = command(*asked, 1)
    assert (ran.code, ran.document["summary"]["unknown"]) == (4, 1), "not known is not safe"
    assert ran.document["partitions"][0]["notKnown"] == f"no snapshot from offset {LOCAL_FROM} on can be read"


def test_before_a_move_a_replica_that_lost_state_before_is_not_called_safe(
    command: Resnap, replica: Path, remote: Path
) -> None:
    """Its snapshots lack producers that the log has; remote storage proves that, and no checkpoint is needed."""
    asked = ("check", replica, "--before-move", "t", "--output", "json", "--producer-id-expiration-ms", 1)
    seems = command(*asked)
    (row,) = seems.document["partitions"]
    assert (seems.code, row["producers"], row["safeFrom"]) == (4, [], None)
    assert "with a snapshot without entries, and later ones have some" in row["notKnown"]
    (replica / "log-start-offset-checkpoint").unlink()
    assert command(*asked).document["summary"]["partitions"] == 0
    proven = command(*asked[:-1], 10**13, "--remote", remote.as_uri())
    (row,) = proven.document["partitions"]
    assert (proven.code, row["localStartOffset"]) == (4, LOCAL_FROM)
    assert "lacks producers that" in row["notKnown"]


def test_the_topics_of_a_move_are_named_by_its_flag_alone(command: Resnap, replica: Path) -> None:
    ran = command("check", replica, "--before-move", "nosuch")
    assert (ran.code, "matches --before-move nosuch" in ran.err) == (2, True), ran.err
    ran = command("check", replica, "--before-move", "t", "--topic", "t")
    assert (ran.code, "leave out --topic" in ran.err) == (2, True), ran.err


def check_healed(partition: Path, expected: Path) -> None:
    """Compare what a broker loads with what the leader had; the first snapshot's right form lies in the remote part."""
    for offset in (LOCAL_FROM, 425, LAST_BASE, LOG_END):
        found, leader = (entries(file_at(path, offset, "snapshot").read_bytes()) for path in (partition, expected))
        assert found == leader, offset
    name = f"{LAST_BASE:020}.txnindex"
    assert (partition / name).read_bytes() == (expected / name).read_bytes()


def test_what_is_staged_of_remote_and_local_segments_is_what_the_leader_had(
    command: Resnap, replica: Path, remote: Path, fixture_set: Sets, tmp_path: Path
) -> None:
    before = files_of(replica)
    ran = regenerate(command, replica, remote, tmp_path / "staged")
    assert [row["offset"] for row in ran.document["boundaries"]] == [LOCAL_FROM, 425, LAST_BASE, LOG_END]
    assert {row["knownFromOffset"] for row in ran.document["boundaries"]} == {0}
    assert "of producer 9001 that began at offset 20 and was aborted at 665 is not in" in ran.err
    assert {path.name for path in (tmp_path / "staged/t-0").glob("*.txnindex")} == {f"{LAST_BASE:020}.txnindex"}
    check_healed(tmp_path / "staged" / "t-0", fixture_set(LOST).expected / "t-0")
    assert files_of(replica) == before


def test_wrong_files_are_replaced_only_on_request_and_all_of_it_comes_back(
    command: Resnap, replica: Path, remote: Path, fixture_set: Sets, tmp_path: Path
) -> None:
    staged, before = tmp_path / "staged", look(replica)
    regenerate(command, replica, remote, staged)
    unasked = command(
        "install", staged, replica, "--replace", "false-empty", "--replace", "corrupt", "--output", "json"
    )
    kept = {row["offset"]: row["outcome"] for row in unasked.document["partitions"][0]["snapshots"]
            if row["file"] == "snapshot"}  # fmt: skip
    assert (kept[425], kept[LAST_BASE], kept[LOG_END]) == ("not-asked",) * 3
    assert command("install", "--undo", unasked.document["undoManifest"]).code == 0
    assert look(replica) == before

    healed = command("install", staged, replica, *HEAL)
    assert healed.code == 0, healed.err
    rows = healed.document["partitions"][0]["snapshots"]
    assert {(row["file"], row["offset"], row["outcome"]) for row in rows} == {
        *(("snapshot", offset, "replaced") for offset in (LOCAL_FROM, 425, LAST_BASE, LOG_END)),
        ("txnindex", LAST_BASE, "installed"),
    }
    check_healed(replica / "t-0", fixture_set(LOST).expected / "t-0")
    verified = command("verify", replica, "--remote", remote.as_uri(), *LATER, "--output", "json")
    assert (verified.code, {row["verdict"] for row in verified.document["boundaries"]}) == (0, {"proven"})

    again = command("install", staged, replica, *HEAL)
    assert again.document["undoManifest"] is None
    assert command("install", "--undo", healed.document["undoManifest"]).code == 0
    assert look(replica) == before


def test_an_index_that_names_a_later_beginning_is_replaced_and_a_right_one_stays(
    command: Resnap, replica: Path, remote: Path, fixture_set: Sets, tmp_path: Path
) -> None:
    index = file_at(replica / "t-0", LAST_BASE, "txnindex")
    right = (fixture_set(LOST).expected / "t-0" / index.name).read_bytes()
    wrong = bytearray(right)
    wrong[10:18] = (LAST_BASE).to_bytes(8, "big")  # the first offset
    index.write_bytes(wrong)
    regenerate(command, replica, remote, tmp_path / "staged")
    ran = command("install", tmp_path / "staged", replica, *HEAL)
    rows = [row for row in ran.document["partitions"][0]["snapshots"] if row["file"] == "txnindex"]
    assert [(row["offset"], row["outcome"]) for row in rows] == [(LAST_BASE, "replaced")]
    assert index.read_bytes() == right
    regenerate(command, replica, remote, tmp_path / "again")
    assert not list((tmp_path / "again").rglob("*.txnindex"))


def test_remote_snapshots_of_a_leader_that_had_lost_its_state_are_not_used(
    command: Resnap, replica: Path, remote: Path, fixture_set: Sets, tmp_path: Path
) -> None:
    for path in remote.rglob("*.snapshot"):
        if not path.name.startswith(f"{0:020}"):
            path.write_bytes(EMPTY_SNAPSHOT)
    regenerate(command, replica, remote, tmp_path / "staged")
    check_healed(tmp_path / "staged" / "t-0", fixture_set(LOST).expected / "t-0")


def test_a_remote_snapshot_with_every_producer_may_be_wrong_and_is_not_the_start_of_a_replay(
    command: Resnap, replica: Path, remote: Path, fixture_set: Sets, tmp_path: Path
) -> None:
    (right,) = remote.rglob(f"{0:020}-*.snapshot")
    changed = [
        entry._replace(current_txn_first_offset=LOCAL_FROM - 1) if entry.producer_id == 9001 else entry
        for entry in load_snapshot(right).values()
    ]
    right.write_bytes(snapshot_bytes(changed))
    found = scanned(command, replica, "--remote", remote.as_uri())
    assert found["offset"] == LOCAL_FROM, "of the remote snapshots nothing is said"
    regenerate(command, replica, remote, tmp_path / "staged")
    check_healed(tmp_path / "staged" / "t-0", fixture_set(LOST).expected / "t-0")


def test_a_snapshot_that_lacks_producers_replaces_no_valid_one(
    command: Resnap, replica: Path, remote: Path, tmp_path: Path
) -> None:
    regenerate(command, replica, remote, tmp_path / "staged")
    fingerprint = tmp_path / "staged" / "t-0" / "fingerprint.json"
    text = fingerprint.read_text().replace('", 0]', '", 1]')
    fingerprint.write_text(text)
    ran = command("install", tmp_path / "staged", replica, *HEAL)
    found = {row["offset"]: row["outcome"] for row in ran.document["partitions"][0]["snapshots"]
             if row["file"] == "snapshot"}  # fmt: skip
    assert set(found.values()) == {"good-file-there"}


def scanned(command: Resnap, *arguments: object) -> Any:
    ran = command("scan", *arguments, "--output", "json")
    assert ran.code == 0, ran.err
    return ran.document["partitions"][0]["lostProducerState"]


def test_a_scan_knows_the_mark_of_a_lost_state_and_proves_it_by_the_remote_part(
    command: Resnap, replica: Path, remote: Path, tmp_path: Path
) -> None:
    alone = scanned(command, replica)
    assert (alone["reason"], alone["offset"], alone["isProven"]) == ("lost-producer-state", LOCAL_FROM, False)
    proven = scanned(command, replica, "--remote", remote.as_uri())
    assert (proven["offset"], proven["isProven"], set(proven["producers"]) >= {9001, 9002}) == (LOCAL_FROM, True, True)
    table = command("scan", replica, "--remote", remote.as_uri())
    assert "lost their producer state" in table.out
    assert "--replace false-partial" in table.out
    (row,) = command("scan", replica, "--output", "json").document["partitions"]
    assert row["blocking"]["reason"] == "lost-producer-state", "as `tier` stops"
    assert (row["tierableBytes"], row["blockedBytes"] > 0) == (0, True)

    regenerate(command, replica, remote, tmp_path / "staged")
    assert command("install", tmp_path / "staged", replica, *HEAL).code == 0
    assert scanned(command, replica) is None
    assert scanned(command, replica, "--remote", remote.as_uri()) is None


@pytest.mark.slow
def test_killed_at_any_step_a_rerun_completes_and_everything_can_be_undone(
    command: Resnap, replica: Path, remote: Path, fixture_set: Sets, tmp_path: Path
) -> None:
    regenerate(command, replica, remote, tmp_path / "staged")
    before = look(replica)

    def install_on(disk: WatchedDisk) -> None:
        request = InstallOrder(
            staged=str(tmp_path / "staged"),
            scope=Scope(sources=(str(replica),)),
            asked=frozenset({Replace.FALSE_PARTIAL, Replace.TXNINDEX}),
            undo_dir=tmp_path / "undo",
        )
        clock = FixedClock(1_700_000_000_000)
        install(request, now_ms=clock.now_ms, s3=S3Settings(), progress=Progress(), disk=disk)

    step = 0
    while True:
        step += 3
        disk = killed_at(step)
        try:
            install_on(disk)
        except Killed:
            install_on(WatchedDisk())
        check_healed(replica / "t-0", fixture_set(LOST).expected / "t-0")
        for manifest in sorted((tmp_path / "undo").iterdir(), reverse=True):
            if (manifest / "manifest.json").exists():
                assert command("install", "--undo", manifest).code == 0
        assert look(replica) == before
        shutil.rmtree(tmp_path / "undo")
        if disk.steps < step:
            return


def test_a_saved_plan_of_both_parts_is_carried_out_with_the_same_remote_part(
    command: Resnap, replica: Path, remote: Path, fixture_set: Sets, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    made = command("plan", replica, "--remote", remote.as_uri(), "--boundaries", "all", "--save", plan, *LATER)
    assert made.code == 0, made.err
    ran = command("regenerate", "--plan", plan, "--into", tmp_path / "staged", *LATER[2:])
    assert ran.code == 0, ran.err
    check_healed(tmp_path / "staged" / "t-0", fixture_set(LOST).expected / "t-0")


@pytest.mark.parametrize("name", [*AIVEN, "kafka-3.9.1-tiered", "kafka-4.4.0-tiered"])
def test_no_replica_that_kept_its_state_is_taken_for_one_that_lost_it(
    name: str, command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set(name)
    data = shutil.copytree(fixture.data, tmp_path / "data")
    for partition in data.glob("payments-*"):
        if len(bases(partition)) > 2:
            for base in bases(partition)[:2]:
                for path in partition.glob(f"{base:020}.*"):
                    path.unlink()
    private = fixture.root / "keys" / "private.pem"
    key = ["--encryption-private-key", f"key1={private}"] if private.exists() else []
    url = f"{fixture.remote.as_uri()}/tiered" if name in AIVEN else fixture.remote.as_uri()
    ran = command("scan", data, "--remote", url, *key, "--topic", "payments", "--output", "json")
    assert ran.code in {0, 3}, ran.err
    assert ran.document["partitions"]
    assert [row["lostProducerState"] for row in ran.document["partitions"] if row["lostProducerState"]] == []


@pytest.mark.slow
def test_a_transaction_that_hangs_for_long_is_not_forgotten_with_the_state_of_a_replica(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    source = fixture_set("kafka-2.7.2-nine-days").data
    data, store = tmp_path / "data", (tmp_path / "store").as_uri()
    how = ("--topic", "payments", "--producer-id-expiration-ms", 172_800_000, *LATER)
    shutil.copytree(source, data)
    whole = command("regenerate", data, "--boundaries", "all", "--into", tmp_path / "whole", *how)
    assert whole.code == 0, whole.err
    shipped = command("tier", data, "--to", store, *how)
    assert shipped.code in {0, 3}, shipped.err
    for partition in data.glob("payments-*"):
        first = bases(partition)[-4]
        for path in partition.iterdir():
            if path.stem.isdigit() and (int(path.stem) < first or path.suffix == ".snapshot"):
                path.unlink()
        file_at(partition, first, "snapshot").write_bytes(EMPTY_SNAPSHOT)
    (data / "log-start-offset-checkpoint").write_text("0\n0\n")
    joined = command("regenerate", data, "--remote", store, "--boundaries", "all", "--into", tmp_path / "joined", *how)
    assert joined.code == 0, joined.err
    made, expected = (files_of(tmp_path / place) for place in ("joined", "whole"))
    names = {one for one in made if one.endswith(".snapshot")}
    assert len(names) >= 8
    for name in names:
        assert entries(made[name]) == entries(expected[name]), name


def test_a_replica_that_looks_as_if_it_had_lost_its_state_is_tiered_with_its_remote_part_alone(
    command: Resnap, replica: Path, remote: Path, fixture_set: Sets, tmp_path: Path
) -> None:
    how = ("--to", (tmp_path / "store").as_uri(), *LATER[:-1], "--fresh", "--state-dir", "none")
    for more in ([], ["--dry-run"]):
        refused = command("tier", replica, *how, *more, "--output", "json")
        assert refused.code in {1, 3}, refused.err
        assert "lost-producer-state" in refused.error["message"]
        assert "--remote URL" in refused.error["hint"]
        assert not (tmp_path / "store").exists() or not files_of(tmp_path / "store")
    for job in (("verify",), ("plan", "--prove")):
        ran = command(*job, replica, *LATER[:-1], "--output", "json")
        verdicts = {row["offset"]: row["verdict"] for row in ran.document["boundaries"]}
        assert "proven" not in {verdicts[offset] for offset in (425, LAST_BASE)}, ran.out
    shipped = command("tier", replica, *how, "--remote", remote.as_uri(), "--output", "json")
    assert shipped.code == 0, shipped.err
    [stored] = (tmp_path / "store").rglob(f"*{LOCAL_FROM:020}*snapshot*")
    expected = fixture_set(LOST).expected / "t-0" / f"{425:020}.snapshot"
    assert entries(stored.read_bytes()) == entries(expected.read_bytes())


def test_an_installation_names_the_flags_for_wrong_files_that_it_left_and_is_done_in_part(
    command: Resnap, replica: Path, remote: Path, tmp_path: Path
) -> None:
    staged = tmp_path / "staged"
    made = command(
        "regenerate", replica, "--remote", remote.as_uri(), "--boundaries", "all", "--into", staged, *LATER[:-1]
    )
    every = "--replace false-empty --replace false-partial --replace txnindex"
    assert f"`resnap install {staged} {replica} --dry-run {every}`." in made.out
    assert command("install", staged, replica, "--dry-run").code == 3
    unasked = command("install", staged, replica)
    assert unasked.code == 3
    assert f"5 files not replaced: run again with {every}." in unasked.out
    assert "good-file-there" not in unasked.out

    half = command("install", staged, replica, "--replace", "false-partial")
    assert half.code == 3
    assert "1 file not replaced: run again with --replace txnindex." in half.out
    assert "start the broker" not in half.out
    assert command("install", staged, replica, "--replace", "txnindex").code == 0
    again = command("install", staged, replica)
    assert (again.code, "5 files are there already" in again.out) == (0, True)


def test_explain_says_what_such_a_replica_answers_wrongly_and_how_another_one_becomes_the_leader(
    command: Resnap, replica: Path, remote: Path
) -> None:
    asked = ("explain", replica, "t-0", LOG_END, "--remote", remote.as_uri())
    lost = command(*asked, "--output", "json").document["summary"]["lostProducerState"]
    assert (lost["offset"], lost["leads"], lost["wronglyAppended"]) == (LOCAL_FROM, None, [])
    assert lost["abortedAndServed"] == [{"producerId": 9001, "firstOffset": 20, "lastOffset": 665}]
    assert set(lost["producers"]) >= {9001, 9002}
    said = command(*asked).out
    assert "records of producer 9001 between the offsets 20 and 665 are served as committed" in said
    assert (
        "kafka-leader-election.sh --bootstrap-server HOST:PORT --election-type preferred --topic t --partition 0"
        in said
    )

    alone = command("explain", replica, "t-0", LOG_END)
    assert (alone.code, "seems to have lost its producer state" in alone.err) == (0, True)
    assert "--remote URL" in alone.err


def test_explain_names_batches_that_such_a_replica_appended_although_the_log_had_them(
    command: Resnap, replica: Path, remote: Path
) -> None:
    (tiered,) = remote.rglob(f"{0:020}-*.log")
    data = tiered.read_bytes()
    at, length, offset = next(
        (at, length, offset)
        for at in batch_positions(tiered)
        for offset, length, *_, producer_id, _, _, _ in [BATCH.unpack_from(data, at)]
        if producer_id == 9002
    )
    with file_at(replica / "t-0", LAST_BASE, "log").open("ab") as file:
        file.write(LOG_END.to_bytes(8, "big") + data[at + 8 : at + 12 + length])
    ran = command("explain", replica, "t-0", LOG_END, "--remote", remote.as_uri(), "--output", "json")
    (again,) = ran.document["summary"]["lostProducerState"]["wronglyAppended"]
    assert (again["producerId"], again["baseOffset"], again["offsetBefore"]) == (9002, LOG_END, offset)
    assert again["fenced"] is False


def checked(command: Resnap, *arguments: object) -> tuple[int, list[str]]:
    ran = command("check", *arguments, "--output", "json")
    (topic,) = ran.document["topics"]
    return ran.code, [blocker["reason"] for blocker in topic["blockers"]]


def test_check_blocks_a_replica_by_its_mark_unless_the_remote_part_shows_no_earlier_producer(
    command: Resnap, replica: Path, remote: Path
) -> None:
    joined = (replica, "--remote", remote.as_uri())
    assert checked(command, replica) == (4, ["lost-producer-state"])
    assert checked(command, *joined) == (4, ["lost-producer-state"])
    for path in remote.rglob("*.snapshot"):
        if path.name.startswith(f"{0:020}"):
            path.write_bytes(EMPTY_SNAPSHOT)
    assert checked(command, *joined) == (0, [])
    assert scanned(command, *joined) is None
    [row] = command("check", *joined, "--output", "json").document["topics"]
    local = sum(file_at(replica / "t-0", base, "log").stat().st_size for base in (LOCAL_FROM, 425))
    assert row["tierableBytes"] == local, "remote segments are on no disk"

    for path in remote.rglob("*.snapshot"):
        path.write_bytes(EMPTY_SNAPSHOT[:-1])
    assert checked(command, *joined) == (4, ["lost-producer-state"]), "what cannot be read shows nothing"
    lost = scanned(command, *joined)
    assert not lost["isProven"]
    assert str(next(remote.rglob(f"{0:020}-*.snapshot"))) in lost["detail"]

    for path in remote.rglob("*.snapshot"):
        path.unlink()
    assert checked(command, *joined)[0] != 0, "nothing shows it"


def test_what_brokers_tiered_is_read_in_a_store_that_segments_were_shipped_to_besides(
    command: Resnap, replica: Path, remote: Path, fixture_set: Sets, tmp_path: Path
) -> None:
    both = (replica, "--remote", remote.as_uri())
    before = scanned(command, *both)
    shipped = command("tier", *both, "--to", remote.as_uri(), *LATER)
    assert shipped.code == 0, shipped.err
    assert scanned(command, *both) == before
    regenerate(command, replica, remote, tmp_path / "staged")
    check_healed(tmp_path / "staged" / "t-0", fixture_set(LOST).expected / "t-0")


@pytest.mark.parametrize("asked", [("scan",), ("explain", "t-0", "0")], ids=["scan", "explain"])
def test_the_commands_that_are_printed_repair_the_replica_unchanged(
    command: Resnap, replica: Path, remote: Path, fixture_set: Sets, asked: tuple[str, ...]
) -> None:
    verb, *more = asked
    ran = command(verb, replica, *more, "--remote", remote.as_uri())
    assert ran.code == 0, ran.err
    printed = [line.split() for line in ran.out.splitlines() if line.startswith("  resnap ")]
    assert [words[1] for words in printed] == ["regenerate", "install"]
    for words, flags in zip(printed, (LATER, ()), strict=True):
        there = [str(replica.parent / "healed") if one == "/var/tmp/healed" else one for one in words[1:]]  # noqa: S108
        done = command(*there, *flags)
        assert done.code == 0, done.err
    assert scanned(command, replica, "--remote", remote.as_uri()) is None
    expected = fixture_set(LOST).expected / "t-0"
    for path in expected.glob("*.snapshot"):
        assert entries((replica / "t-0" / path.name).read_bytes()) == entries(path.read_bytes())


def test_a_replay_of_such_a_replica_without_its_remote_part_gives_a_warning(
    command: Resnap, replica: Path, remote: Path, tmp_path: Path
) -> None:
    said, there = "t-0: this replica seems to have lost its producer state", ("--remote", remote.as_uri())
    for verb, *more in (("plan",), ("regenerate", "--into", tmp_path / "staged", "--dry-run")):
        assert said in command(verb, replica, *more).err, verb
        assert said not in command(verb, replica, *more, *there).err, verb
    assert said in command("verify", replica, *LATER[:-1]).err
