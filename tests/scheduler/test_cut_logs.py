"""Logs whose beginning is gone: what is shipped and rebuilt all the same is what the broker had."""

from __future__ import annotations

import shutil
import struct
from typing import TYPE_CHECKING

import pytest

from resnap.storage.crc32c import crc32c
from tests.scheduler.files import EMPTY_SNAPSHOT, bases, file_at
from tests.scheduler.shipped import SNAPSHOT_ENTRY, check_content, entries, files_of, manifests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

SET, PARTITION = "kafka-2.7.2", "payments-0"
ROLL = ("--as-of", "roll", "--engine", "local")
NEVER = ("--producer-id-expiration-ms", 10 * 365 * 86_400_000)


@pytest.fixture
def log(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    """A log dir of one partition."""
    fixture = fixture_set(SET)
    data = tmp_path / "data"
    data.mkdir()
    for path in fixture.data.iterdir():
        if path.is_file():
            shutil.copy2(path, data)
    for name in ("log-start-offset", "replication-offset"):
        high = bases(fixture.data / PARTITION)[-1]
        (data / f"{name}-checkpoint").write_text(f"0\n1\npayments 0 {0 if name.startswith('log') else high}\n")
    shutil.copytree(fixture.data / PARTITION, data / PARTITION)
    return data


@pytest.fixture
def expected(fixture_set: Callable[[str], FixtureSet]) -> Path:
    return fixture_set(SET).expected


def with_segments(log: Path, first: int, end: int | None, into: Path) -> Path:
    """Copy ``log`` with the segments [first, end) and without any snapshot; the last one becomes the active one."""
    copy = shutil.copytree(log, into)
    offsets = bases(log / PARTITION)
    kept = set(offsets[first:end])
    for path in (copy / PARTITION).glob("0*.*"):
        if path.suffix == ".snapshot" or int(path.stem) not in kept:
            path.unlink()
    return copy


def move_on(log: Path, begins: int, copy: Path) -> None:
    """Let retention take what lies below ``begins``, and the log in ``copy`` grow to all that is in ``log``."""
    for path in (copy / PARTITION).glob("0*.*"):
        if int(path.stem) < begins:
            path.unlink()
    for path in (log / PARTITION).glob("0*.*"):
        there = copy / PARTITION / path.name
        if int(path.stem) >= begins and path.suffix != ".snapshot" and not there.exists():
            shutil.copy2(path, there)


def put_snapshot(log: Path, expected: Path, offset: int) -> None:
    shutil.copy2(file_at(expected / PARTITION, offset, "snapshot"), log / PARTITION)


@pytest.mark.parametrize("keeps_state", [False, True], ids=["another machine", "the same machine"])
def test_what_the_store_holds_shows_producers_whose_batches_retention_has_taken(
    command: Resnap, log: Path, expected: Path, tmp_path: Path, *, keeps_state: bool
) -> None:
    offsets, store = bases(log / PARTITION), (tmp_path / "store").as_uri()
    grown = tmp_path / "grown"
    state = ("--state-dir", tmp_path / "state") if keeps_state else ("--state-dir", "none")
    first = with_segments(log, 0, 4, grown)
    assert command("tier", first, "--to", store, *ROLL, *NEVER, *state).code == 0
    shipped = len(manifests(files_of(tmp_path / "store")))
    assert shipped
    # A state is known to be of this log by a segment above it that was there then.
    begins = shipped - 1 if keeps_state else shipped
    move_on(log, offsets[begins], first)
    ran = command("tier", first, "--to", store, *ROLL, *NEVER, *state)
    assert ran.code == 0
    found = manifests(files_of(tmp_path / "store"))
    assert len(found) > shipped
    check_content(files_of(tmp_path / "store"), log, expected)
    known_from = {one["baseOffset"]: one["snapshotOrigin"]["knownFromOffset"] for one in found.values()}
    assert known_from[0] == 0
    assert known_from[offsets[shipped]] == (0 if keeps_state else offsets[begins])
    assert command("verify", "--store", store, "--engine", "local").code == 0


def test_a_state_that_was_kept_just_where_the_log_begins_now_shows_what_was_below(
    command: Resnap, log: Path, expected: Path, tmp_path: Path
) -> None:
    offsets, store = bases(log / PARTITION), (tmp_path / "store").as_uri()
    run = ("--to", store, *ROLL, *NEVER, "--state-dir", tmp_path / "state")
    grown = with_segments(log, 0, 7, tmp_path / "grown")
    committed = (grown / "replication-offset-checkpoint").read_text()
    (grown / "replication-offset-checkpoint").write_text(f"0\n1\npayments 0 {offsets[3]}\n")
    assert command("tier", grown, *run).code == 0
    shipped = len(manifests(files_of(tmp_path / "store")))
    (grown / "replication-offset-checkpoint").write_text(committed)
    move_on(log, offsets[shipped], grown)
    assert command("tier", grown, *run).code == 0
    found = manifests(files_of(tmp_path / "store"))
    assert {one["snapshotOrigin"]["knownFromOffset"] for one in found.values()} == {0}
    check_content(files_of(tmp_path / "store"), log, expected)


def test_idle_producers_of_a_cut_log_are_rebuilt_from_the_snapshots_that_show_them(
    command: Resnap, log: Path, expected: Path, tmp_path: Path
) -> None:
    offsets = bases(log / PARTITION)
    cut = with_segments(log, 5, None, tmp_path / "cut")
    (cut / "log-start-offset-checkpoint").write_text(f"0\n1\npayments 0 {offsets[5]}\n")
    newest = offsets[-2:]
    for offset in newest:
        put_snapshot(cut, expected, offset)
    ran = command("regenerate", cut, "--into", tmp_path / "out", *ROLL, *NEVER, "--output", "json")
    assert ran.code == 0
    planned = command("plan", cut, *ROLL, *NEVER)
    assert f"the log of {PARTITION} begins at {offsets[5]}: producers whose last batch lies below" in planned.out
    below = {
        pid
        for offset in newest
        for pid, entry in entries(file_at(expected / PARTITION, offset, "snapshot").read_bytes()).items()
        if entry[3] < offsets[5]
    }
    assert below
    for row in ran.document["boundaries"]:
        assert row["knownFromOffset"] == offsets[5]
        theirs = entries(file_at(expected / PARTITION, row["offset"], "snapshot").read_bytes())
        ours = entries(file_at(tmp_path / "out" / PARTITION, row["offset"], "snapshot").read_bytes())
        assert {pid: ours[pid] for pid in below} == {pid: theirs[pid] for pid in below}
        assert theirs.keys() - ours.keys() <= {one["producerId"] for one in row["leftOut"]}

    shipped = command("tier", cut, "--to", (tmp_path / "store").as_uri(), *ROLL, *NEVER, "--output", "json")
    said, too = (
        {line for line in one.err.splitlines() if "excluded from the snapshot at" in line} for one in (ran, shipped)
    )
    assert said
    assert too == said


def test_a_transaction_that_may_have_begun_below_the_log_is_named_and_not_made_up(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    fixture = fixture_set("kafka-2.7.2-odd-timestamps")
    _, _, begins, ends, *_ = bases(fixture.data / PARTITION)
    cut = tmp_path / "cut"
    (cut / PARTITION).mkdir(parents=True)
    for path in (fixture.data / PARTITION).glob(f"{begins:020d}.*"):
        shutil.copy2(path, cut / PARTITION)
    (cut / PARTITION / f"{ends:020d}.log").touch()  # no marker has come yet
    theirs = entries(file_at(fixture.expected / PARTITION, ends, "snapshot").read_bytes())
    across = {pid for pid, entry in theirs.items() if 0 <= entry[-1] < begins <= entry[3]}
    assert across
    ran = command("regenerate", cut, "--into", tmp_path / "out", *ROLL, *NEVER, "--output", "json")
    assert ran.code == 0
    (row,) = ran.document["boundaries"]
    assert {one["producerId"] for one in row["leftOut"]} == across
    assert {one["reason"] for one in row["leftOut"]} == {"transaction-begun-before-the-window"}
    ours = entries(file_at(tmp_path / "out" / PARTITION, ends, "snapshot").read_bytes())
    assert ours
    assert {pid: theirs[pid] for pid in ours} == ours


@pytest.mark.parametrize("txn_first_offset", [-1, 3], ids=["idle", "in a transaction"])
def test_a_producer_that_a_whole_log_has_never_seen_is_a_difference(
    command: Resnap, log: Path, expected: Path, txn_first_offset: int
) -> None:
    offset = bases(log / PARTITION)[-1]
    for path in (log / PARTITION).glob("*.snapshot"):
        path.unlink()
    put_snapshot(log, expected, offset)
    assert command("verify", log, *ROLL, *NEVER).code == 0
    path = file_at(log / PARTITION, offset, "snapshot")
    newest_ms = max(entry[5] for entry in entries(path.read_bytes()).values())
    known = path.read_bytes()[10:]
    body = struct.pack(">i", len(known) // 46 + 1) + known
    body += SNAPSHOT_ENTRY.pack(9_001, 0, 0, 3, 0, newest_ms, -1, txn_first_offset)
    path.write_bytes(EMPTY_SNAPSHOT[:2] + struct.pack(">I", crc32c(body)) + body)
    ran = command("verify", log, *ROLL, *NEVER, "--output", "json")
    assert ran.code == 13
    (row,) = (boundary for boundary in ran.document["boundaries"] if boundary["offset"] == offset)
    assert (row["verdict"], row["different"]) == ("different", [9_001])


def test_of_a_cut_log_nothing_is_proven_that_only_snapshots_show(
    command: Resnap, log: Path, expected: Path, tmp_path: Path
) -> None:
    offsets = bases(log / PARTITION)
    cut = with_segments(log, 5, None, tmp_path / "cut")
    for offset in offsets[6:]:
        put_snapshot(cut, expected, offset)
    ran = command("verify", cut, *ROLL, *NEVER, "--output", "json")
    assert ran.code == 0
    assert ran.document["boundaries"]
    for row in ran.document["boundaries"]:
        theirs = entries(file_at(expected / PARTITION, row["offset"], "snapshot").read_bytes())
        rest_below = [pid for pid, entry in sorted(theirs.items()) if entry[3] < offsets[5]]
        assert row["verdict"] == ("unproven" if rest_below else "proven")
        assert set(rest_below) >= set(row["withoutRecords"])
