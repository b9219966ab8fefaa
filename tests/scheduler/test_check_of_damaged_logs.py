"""What ``resnap check`` says of log dirs that are damaged, or cannot be read; ``tests/kafka`` asks brokers the same."""

from __future__ import annotations

import os
import shutil
import struct
from typing import TYPE_CHECKING

import pytest

from tests.logs.batch_builder import write_legacy_message
from tests.scheduler.files import bases, batch_positions, file_at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scheduler.conftest import Resnap


def test_damaged_segments_are_not_counted_as_what_could_be_freed(command: Resnap, ready_log: Path) -> None:
    partition = ready_log / "payments-0"
    [whole] = command("check", ready_log, "--output", "json").document["topics"]
    damaged = [file_at(partition, base, "log").stat().st_size for base in bases(partition)[1:3]]
    for base in bases(partition)[1:3]:
        size_bytes = file_at(partition, base, "log").stat().st_size
        file_at(partition, base, "index").write_bytes(struct.pack(">ii", 1, size_bytes))
    [row] = command("check", ready_log, "--output", "json").document["topics"]
    assert row["tierableBytes"] + row["blockedBytes"] == whole["freeableBytes"]
    assert row["freeableBytes"] == whole["freeableBytes"] - sum(damaged) > 0


def test_leader_epochs_that_cannot_be_read_are_unknown_and_damage_is_named(command: Resnap, ready_log: Path) -> None:
    checkpoint = ready_log / "payments-0" / "leader-epoch-checkpoint"
    checkpoint.write_text("garbage\n")
    [row] = command("check", ready_log, "--output", "json").document["topics"]
    start, blocker = row["blockers"]
    assert (start["reason"], blocker["reason"]) == ("no-start", "leader-epochs-unknown")
    assert "is damaged" in blocker["detail"]
    assert str(checkpoint) in blocker["detail"]
    checkpoint.unlink()
    checkpoint.mkdir()  # no user can read that, not even root
    ran = command("check", ready_log, "--output", "json")
    [row] = ran.document["topics"]
    assert (ran.code, row["verdict"], row["blockers"]) == (3, "unknown", [])
    assert str(checkpoint) in row["unknown"][0]
    [seen] = command("scan", ready_log, "--output", "json").document["partitions"]
    assert seen["brokerStops"]["reason"] == "unreadable"


def test_logs_that_are_gone_are_damage_and_a_directory_without_any_is_unknown(command: Resnap, ready_log: Path) -> None:
    partition = ready_log / "payments-0"
    below, gone, *_ = bases(partition)
    file_at(partition, gone, "log").unlink()
    ran = command("check", ready_log, "--output", "json")
    [row] = ran.document["topics"]
    [blocker] = row["blockers"]
    assert (ran.code, blocker["reason"], blocker["baseOffset"]) == (4, "damaged", below)
    assert f"offset {gone} " in blocker["detail"]
    for path in partition.glob("*.log"):
        path.unlink()
    ran = command("check", ready_log, "--output", "json")
    [row] = ran.document["topics"]
    assert (ran.code, row["verdict"], row["blockers"]) == (3, "unknown", [])
    assert str(partition) in row["unknown"][0]


def test_a_first_or_a_last_log_that_is_gone_is_damage_but_not_while_a_broker_deletes_it(
    command: Resnap, ready_log: Path
) -> None:
    partition = ready_log / "payments-0"
    every = bases(partition)
    for base in (every[0], every[-1]):
        log = file_at(partition, base, "log")
        deleted = log.rename(f"{log}.deleted")
        assert command("check", ready_log).code == 0, "its indexes are about to be renamed, too"
        kept = deleted.read_bytes()
        deleted.unlink()
        ran = command("check", ready_log, "--output", "json")
        [row] = ran.document["topics"]
        [blocker] = row["blockers"]
        assert (ran.code, blocker["reason"], blocker["baseOffset"]) == (4, "damaged", base)
        [seen] = command("scan", ready_log, "--output", "json").document["partitions"]
        assert seen["brokerStops"]["reason"] == "damaged"
        log.write_bytes(kept)
    file_at(partition, every[0], "log").unlink()
    checkpoint = ready_log / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n1\npayments 0 {every[1]}\n")
    assert command("check", ready_log).code == 0, "no consumer can read below the log start"
    checkpoint.unlink()
    (partition / "leader-epoch-checkpoint").write_text(f"0\n1\n0 {every[1]}\n")
    assert command("check", ready_log).code == 0, "retention has passed it: a copy made beside it"


def test_a_log_that_ends_before_its_offset_index_does_is_damage(command: Resnap, ready_log: Path) -> None:
    partition = ready_log / "payments-0"
    every = bases(partition)
    for base in (every[1], every[-1]):
        log, index = file_at(partition, base, "log"), file_at(partition, base, "index")
        entries, size_bytes = index.read_bytes(), log.stat().st_size
        last = batch_positions(log)[-1]
        offset = struct.unpack_from(">q", log.read_bytes(), last)[0] - base
        index.write_bytes(struct.pack(">ii", max(1, offset), max(1, last)))
        assert command("check", ready_log).code == 0
        index.write_bytes(struct.pack(">ii", 1, size_bytes))
        ran = command("check", ready_log, "--output", "json")
        [row] = ran.document["topics"]
        [blocker] = row["blockers"]
        assert (ran.code, blocker["reason"], blocker["baseOffset"]) == (4, "damaged", base)
        assert f"ends at byte {size_bytes}" in blocker["detail"]
        index.write_bytes(struct.pack(">ii", 1, size_bytes) + bytes(800))
        assert command("check", ready_log).code == 0, "a broker that was killed fills it with zeros, and recovers it"
        index.write_bytes(struct.pack(">ii", 1, 1))
        whole = log.read_bytes()
        log.write_bytes(b"")
        [row] = command("check", ready_log, "--output", "json").document["topics"]
        assert [one["reason"] for one in row["blockers"]] == ["damaged"]
        log.write_bytes(whole)
        index.write_bytes(entries)


@pytest.mark.parametrize("left", [-5, 30, 20])
@pytest.mark.parametrize("has_entries", [True, False])
def test_a_closed_log_that_ends_inside_its_last_batch_is_damage(
    command: Resnap, ready_log: Path, left: int, *, has_entries: bool
) -> None:
    partition = ready_log / "payments-0"
    base, active = bases(partition)[1], bases(partition)[-1]
    log, index = file_at(partition, base, "log"), file_at(partition, base, "index")
    if not has_entries:
        index.write_bytes(b"")
    last, size_bytes = batch_positions(log)[-1], log.stat().st_size
    assert index.stat().st_size % 8 == 0
    assert command("check", ready_log).code == 0
    cut = last + left if left > 0 else size_bytes + left
    os.truncate(log, cut)
    ran = command("check", ready_log, "--output", "json")
    [row] = ran.document["topics"]
    [blocker] = row["blockers"]
    assert (ran.code, blocker["reason"], blocker["baseOffset"], row["warnings"]) == (4, "damaged", base, [])
    assert f"ends at byte {cut}, inside the batch that begins at byte {last}" in blocker["detail"]
    with log.open("ab") as file:
        file.truncate(last)
        file.write(bytes(64))
    [row] = command("check", ready_log, "--output", "json").document["topics"]
    assert ([one["reason"] for one in row["blockers"]], row["warnings"]) == (["damaged"], [])
    assert f"goes on at byte {last} with what is no batch" in row["blockers"][0]["detail"]
    os.truncate(log, last)
    index.write_bytes(b"")
    [row] = command("check", ready_log, "--output", "json").document["topics"]
    assert (row["blockers"], [one["reason"] for one in row["warnings"]]) == ([], ["missing-offsets"])
    os.truncate(file_at(partition, active, "log"), file_at(partition, active, "log").stat().st_size - 5)
    assert command("check", ready_log).code == 0, "a broker that starts cuts off the end of the active one"


@pytest.mark.parametrize(("at", "more"), [(16, b"\7"), (8, b"\1"), (None, bytes(4530))])
def test_check_and_a_dry_run_find_in_the_first_batch_and_after_the_last_what_tier_finds(
    command: Resnap, ready_log: Path, tmp_path: Path, at: int | None, more: bytes
) -> None:
    log = file_at(ready_log / "payments-0", bases(ready_log / "payments-0")[1], "log")
    data = log.read_bytes()
    at = len(data) if at is None else at
    log.write_bytes(data[:at] + more + data[at + len(more) :])
    tier = ("tier", ready_log, "--to", (tmp_path / "store").as_uri(), "--engine", "local", "--output", "json")
    checked, dry, ran = command("check", ready_log, "--output", "json"), command(*tier, "--dry-run"), command(*tier)
    [row] = checked.document["topics"]
    assert (checked.code, [one["reason"] for one in row["blockers"]], dry.code, ran.code) == (4, ["damaged"], 3, 3)
    for said in row["blockers"][0]["detail"], dry.error["message"], ran.error["message"]:
        assert str(log) in said
    for path in (ready_log / "payments-0").glob(f"{0:020d}.*"):
        path.unlink()  # of what is left none can be shipped
    ran = command("tier", ready_log, "--to", (tmp_path / "other").as_uri(), "--engine", "local")
    assert "Next: the same command again, once any errors named here are repaired" in ran.out


@pytest.mark.parametrize("which", [0, 2, -1])
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_log_that_is_gone_or_empty_is_damage_to_every_command(
    command: Resnap, ready_log: Path, tmp_path: Path, which: int, *, is_gone: bool
) -> None:
    partition = ready_log / "payments-0"
    log = file_at(partition, bases(partition)[which], "log")
    is_active = which == -1
    log.unlink() if is_gone else log.write_bytes(b"")
    store, how = (tmp_path / "store").as_uri(), ("--engine", "local", "--output", "json")
    runs = {
        "check": command("check", ready_log, "--output", "json"),
        "plan": command("plan", ready_log, "--boundaries", "all", "--output", "json"),
        "dry run": command("tier", ready_log, "--to", store, "--dry-run", *how),
        "tier": command("tier", ready_log, "--to", store, *how),
        "regenerate": command("regenerate", ready_log, "--boundaries", "all", "--into", tmp_path / "made", *how),
        "verify": command("verify", ready_log, *how),
    }
    codes = {name: ran.code for name, ran in runs.items()}
    [seen] = command("scan", ready_log, "--output", "json").document["partitions"]
    if is_active and not is_gone:
        assert set(codes.values()) == {0}, "a segment that was just begun"
        return
    assert codes == {"check": 4, "plan": 3, "dry run": 1, "tier": 1, "regenerate": 3, "verify": 1}
    assert (seen["verdict"], seen["brokerStops"]["reason"]) == ("blocked", "damaged")
    [blocker] = runs["check"].document["topics"][0]["blockers"]
    assert blocker["reason"] == "damaged"
    for name in codes.keys() - {"check"}:
        assert runs[name].error["message"].startswith(f"payments-0: damaged: {blocker['detail']}"), name
    [row] = runs["tier"].document["partitions"]
    assert {one["reason"] for one in row["refused"]} == {"damaged", "active-segment"}
    assert not list((tmp_path / "store").rglob("*.manifest"))


def test_damage_beside_missing_offsets_is_not_called_compaction(
    command: Resnap, ready_log: Path, tmp_path: Path
) -> None:
    partition = ready_log / "payments-0"
    base = bases(partition)[2]
    for suffix in ("log", "index", "timeindex", "snapshot", "txnindex"):
        path = file_at(partition, base, suffix)
        if path.exists():
            path.rename(file_at(partition, base - 20, suffix))  # the batches of the segment below cross its end now
    tier = ("tier", ready_log, "--to", (tmp_path / "store").as_uri(), "--engine", "local", "--output", "json")
    checked, dry, ran = command("check", ready_log, "--output", "json"), command(*tier, "--dry-run"), command(*tier)
    [row] = ran.document["partitions"]
    assert (ran.code, {one["reason"] for one in row["refused"]}) == (1, {"damaged", "active-segment"})
    assert "expected rising offsets" in ran.error["message"]
    [blocker, *_] = checked.document["topics"][0]["blockers"]
    assert (checked.code, blocker["reason"]) == (4, "damaged")
    assert "goes on at byte" in blocker["detail"]
    assert dry.code == 1, "as the run: where offsets are missing, all of the partition is refused"
    assert "payments-0: index-unusable: " in dry.error["message"], "the transaction index of it crosses the end, too"


def test_a_dry_run_says_that_nothing_of_a_log_with_a_gap_will_be_shipped(
    command: Resnap, ready_log: Path, tmp_path: Path
) -> None:
    partition = ready_log / "payments-0"
    for path in partition.glob(f"{bases(partition)[2]:020d}.*"):
        path.unlink()
    tier = ("tier", ready_log, "--to", (tmp_path / "store").as_uri(), "--engine", "local", "--output", "json")
    dry, ran = command(*tier, "--dry-run"), command(*tier)
    assert (dry.code, ran.code, ran.document["summary"]["shipped"]) == (0, 0, 0)
    assert "payments-0: ships nothing: missing-offsets: " in dry.err


def test_a_file_of_the_whole_log_dir_that_cannot_be_read_makes_each_topic_unknown(
    command: Resnap, ready_log: Path
) -> None:
    checkpoint = ready_log / "cleaner-offset-checkpoint"
    checkpoint.write_text("garbage\n")
    ran = command("check", ready_log, "--output", "json")
    [row] = ran.document["topics"]
    assert (ran.code, row["verdict"], ran.document["summary"]["verdict"]) == (3, "unknown", "unknown")
    assert any(str(checkpoint) in one for one in row["unknown"])


def test_a_log_dir_that_cannot_be_read_is_unknown(command: Resnap, ready_log: Path) -> None:
    properties = ready_log / "meta.properties"
    properties.unlink()
    properties.mkdir()  # no user can read that, not even root
    ran = command("check", ready_log, "--output", "json")
    assert (ran.code, ran.document["summary"]["verdict"]) == (3, "unknown")
    assert str(properties) in ran.error["message"]


def test_a_log_dir_that_cannot_be_read_hides_no_other(command: Resnap, ready_log: Path, broker_log: Path) -> None:
    unread = ready_log.with_name("unread")
    (unread / "meta.properties").mkdir(parents=True)
    ran = command("check", ready_log, unread, "--output", "json")
    [row] = ran.document["topics"]
    assert (ran.code, row["verdict"], ran.document["summary"]["verdict"]) == (3, "unknown", "unknown")
    assert (row["verdicts"], row["blockers"], row["tierableBytes"] > 0) == ({"ready": 1}, [], True)
    assert (str(unread) in row["unknown"][0], str(unread) in ran.error["message"]) == (True, True)
    ran = command("check", unread, broker_log, "--output", "json")
    assert (ran.code, {row["topic"]: row["verdict"] for row in ran.document["topics"]}["payments"]) == (4, "blocked")
    assert str(unread) in ran.error["message"]
    ran = command("scan", ready_log, unread, "--output", "json")
    assert (ran.code, len(ran.document["partitions"]), str(unread) in ran.error["message"]) == (3, 1, True)


@pytest.mark.parametrize("is_mounted_on", [False, True], ids=["missing", "empty"])
def test_a_disk_that_is_gone_hides_no_other_log_dir(
    command: Resnap, ready_log: Path, tmp_path: Path, *, is_mounted_on: bool
) -> None:
    gone = tmp_path / "kafka-logs-2"  # named as a partition's directory would be
    if is_mounted_on:
        gone.mkdir()
    ran = command("check", ready_log, gone, "--output", "json")
    [row] = ran.document["topics"]
    assert (ran.code, row["verdict"], str(gone) in row["unknown"][0]) == (3, "unknown", True)
    assert (str(gone) in ran.error["message"], "mounted" in ran.error["hint"]) == (True, True)
    properties, store = tmp_path / "server.properties", tmp_path / "store"
    properties.write_text(f"log.dirs={ready_log},{gone}\n")
    for arguments in ("scan",), ("plan", "--boundaries", "all"), ("tier", "--to", store.as_uri(), "--engine", "local"):
        ran = command(*arguments, "--server-properties", properties, "--output", "json")
        assert (ran.code, len(ran.document["partitions"]), str(gone) in ran.error["message"]) == (3, 1, True)
    assert list(store.rglob("*.manifest"))


@pytest.mark.parametrize("name", ["lost+found/", "zebra-0/copy.log", "payments-0/old.snapshot"])
def test_a_name_with_which_no_broker_starts_blocks_all(
    command: Resnap, ready_log: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(ready_log / "payments-0", ready_log / "zebra-0")
    path = ready_log / name
    path.mkdir() if name.endswith("/") else path.write_bytes(b"")
    for scope in (ready_log,), (ready_log, "--topic", "payments"), (ready_log / "payments-0",):
        rows = command("check", *scope, "--output", "json").document["topics"]
        for row in rows:
            [blocker] = row["blockers"]
            assert (row["verdict"], blocker["reason"], str(path) in blocker["detail"]) == ("blocked", "no-start", True)
            assert blocker["hint"] == f"before the broker starts, move {path} to a place outside the log dir"
    tier = command("tier", ready_log, "--to", (tmp_path / "store").as_uri(), "--as-of", "roll", "--engine", "local")
    assert tier.code == 0
    [warning] = [line for line in tier.err.splitlines() if line.startswith("warning: no-start: ")]
    assert str(path) in warning


def test_all_names_with_which_no_broker_starts_are_named_and_to_be_moved_before_anything_else(
    command: Resnap, broker_log: Path
) -> None:
    names = ("-0", "lost+found", "random-dir")
    for name in names:
        (broker_log / name).mkdir()
    for verb in "check", "scan":
        ran = command(verb, broker_log)
        [following] = [line for line in ran.out.splitlines() if line.startswith("Next: ")]
        assert "before the broker starts, move " in following
        assert [name for name in names if f"{broker_log / name}" not in following] == []


@pytest.mark.parametrize("is_of_one_broker", [True, False])
def test_a_partition_in_two_log_dirs_of_one_broker_is_no_second_replica(
    command: Resnap, ready_log: Path, tmp_path: Path, is_of_one_broker: bool
) -> None:
    shutil.copytree(ready_log / "payments-0", tmp_path / "other" / "payments-0")
    if is_of_one_broker:
        shutil.copy2(ready_log / "meta.properties", tmp_path / "other")
    ran = command("check", ready_log, tmp_path / "other", "--output", "json")
    assert (ran.code, "a broker does not start with both" in ran.error["hint"]) == (2, is_of_one_broker)
    assert ("replicas" in ran.error["hint"]) == (not is_of_one_broker)


@pytest.mark.parametrize("name", ["remote-log-index-cache/", "payments-0/directory.log/", "payments-0/x.log.bak"])
def test_a_name_that_a_broker_ignores_blocks_nothing(command: Resnap, ready_log: Path, name: str) -> None:
    path = ready_log / name
    path.mkdir() if name.endswith("/") else path.write_bytes(b"")
    [row] = command("check", ready_log, "--output", "json").document["topics"]
    assert row["verdict"] == "ready"


@pytest.mark.parametrize("name", ["txnindex", "partition.metadata", "leader-epoch-checkpoint"])
def test_what_ends_the_start_of_a_broker_blocks_all_that_it_ends_whatever_is_in_scope(
    command: Resnap, ready_log: Path, tmp_path: Path, name: str
) -> None:
    zebra = shutil.copytree(ready_log / "payments-0", ready_log / "zebra-0")
    checkpoint = ready_log / "replication-offset-checkpoint"
    high_watermark = checkpoint.read_text().split("payments 0 ")[1].split()[0]
    checkpoint.write_text(f"0\n2\npayments 0 {high_watermark}\nzebra 0 {high_watermark}\n")
    other = tmp_path / "other-disk"
    shutil.copytree(ready_log / "payments-0", other / "lion-0")
    shutil.copy2(ready_log / "meta.properties", other)
    damaged = file_at(zebra, bases(zebra)[1], name) if name == "txnindex" else zebra / name
    damaged.write_bytes(b"garbage of more than one entry of an index")
    rows = {row["topic"]: row for row in command("check", ready_log, other, "--output", "json").document["topics"]}
    assert rows["payments"]["verdict"] == "blocked"
    [blocker] = rows["payments"]["blockers"]
    assert (blocker["reason"], str(damaged) in blocker["detail"]) == ("no-start", True)
    assert "another replica" in blocker["hint"]
    # A damaged checkpoint takes its log dir offline; a file of one line in place of two, or a bad index, ends all.
    assert ("no-start" in {one["reason"] for one in rows["lion"]["blockers"]}) == (name != "leader-epoch-checkpoint")
    others = (ready_log, "--topic", "payments"), (ready_log, "--exclude-topic", "zebra"), (ready_log / "payments-0",)
    for scope in others:
        [row] = command("check", *scope, "--output", "json").document["topics"]
        assert row["blockers"] == [blocker]
    scanned = command("scan", ready_log, "--output", "json").document["partitions"]
    stops = {row["topic"]: row["brokerStops"] for row in scanned}
    assert (stops["payments"]["reason"], stops["payments"]["detail"]) == ("no-start", blocker["detail"])


def test_the_shortest_message_of_before_0_10_at_the_end_of_a_log_is_no_damage(
    command: Resnap, broker_log: Path
) -> None:
    """One without key and value is shorter than what a batch begins with."""
    partition = broker_log / "legacy-0"
    begins, ends, *_ = bases(partition)
    message = write_legacy_message(offset=ends - 1, magic=0, key=None, value=None)
    for index in ("index", "timeindex"):
        file_at(partition, begins, index).write_bytes(b"")

    def reasons(log: bytes) -> set[str]:
        file_at(partition, begins, "log").write_bytes(log)
        [row] = command("check", broker_log, "--topic", "legacy", "--output", "json").document["topics"]
        return {blocker["reason"] for blocker in row["blockers"]}

    assert "damaged" not in reasons(message)
    assert "damaged" in reasons(message[:-1])
