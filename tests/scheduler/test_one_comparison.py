"""What one command calls right or wrong of a snapshot, every command does: they compare it with a replay in one way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.log.producer_snapshot import ProducerEntry, read_snapshot, snapshot_bytes
from tests.builders import a_partition
from tests.scheduler.files import EMPTY_SNAPSHOT, file_at
from tests.scheduler.installed import outcomes
from tests.strategies import START_MS, DataEvent, MarkerEvent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.usefixtures("producers_stay")

STEADY: Final = ("--producer-id-expiration-ms", 4000, "--producer-id-expiration-check-interval-ms", 1000)
ROLL: Final = ("--engine", "local", "--as-of", "roll")
JSON: Final = ("--output", "json")
EXPIRATION_MS: Final = 20_000
SHORT: Final = ("--producer-id-expiration-ms", EXPIRATION_MS)


def test_what_verify_proves_install_leaves(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], writable_copy: Callable[[Path], Path], tmp_path: Path
) -> None:
    data, staged = writable_copy(fixture_set("kafka-3.9.1-steady").data), tmp_path / "staged"
    verified = command("verify", data, *ROLL, *STEADY, *JSON)
    assert {row["verdict"] for row in verified.document["boundaries"]} == {"proven"}
    assert any(row["sweptByBrokerCount"] for row in verified.document["boundaries"])
    assert command("regenerate", data, "--boundaries", "all", "--into", staged, *ROLL, *STEADY).code == 0
    for asked in ((), ("--replace", "false-partial", "--replace", "false-empty")):
        ran = command("install", staged, data, "--dry-run", *asked, *JSON)
        found = set(outcomes(ran.document, "payments-0").values())
        assert (ran.code, found) == (0, {"already-there", "good-file-there"})


@pytest.mark.parametrize(
    ("change", "needs"),
    [
        (lambda entries: entries[1:], "false-partial"),
        (lambda entries: [entries[0]._replace(last_sequence=10**6), *entries[1:]], "false-partial"),
        (lambda _: [], "false-empty"),
    ],
)  # fmt: skip
def test_what_verify_calls_wrong_install_replaces_where_it_is_asked_to(
    command: Resnap, broker_log: Path, tmp_path: Path, change: Callable[[list[ProducerEntry]], list[ProducerEntry]],
    needs: str,
) -> None:  # fmt: skip
    partition, staged = broker_log / "payments-0", tmp_path / "staged"
    path = min(one for one in partition.glob("*.snapshot") if one.read_bytes() != EMPTY_SNAPSHOT)
    path.write_bytes(snapshot_bytes(change([*read_snapshot(path.read_bytes()).values()])))
    assert command("verify", partition, *ROLL).code == 13
    assert command("regenerate", partition, "--boundaries", "all", "--into", staged, *ROLL).code == 0
    unasked = command("install", staged, broker_log, "--dry-run")
    assert (unasked.code, f"run again with --replace {needs}." in unasked.out) == (3, True)
    assert command("install", staged, broker_log, "--replace", needs).code == 0
    assert command("verify", partition, *ROLL).code == 0


@pytest.mark.parametrize("since", ["another snapshot", "no comparison"])
def test_regenerate_compares_what_it_has_staged_with_the_snapshot_that_is_there_now(
    command: Resnap, broker_log: Path, tmp_path: Path, since: str
) -> None:
    partition, staged = broker_log / "payments-0", tmp_path / "staged"
    regenerate = (
        "regenerate",
        partition,
        "--boundaries",
        "all",
        "--into",
        staged,
        *ROLL,
        "--state-dir",
        tmp_path / "s",
    )
    path = min(one for one in partition.glob("*.snapshot") if one.read_bytes() != EMPTY_SNAPSHOT)
    wrong = snapshot_bytes([*read_snapshot(path.read_bytes()).values()][1:])
    if since == "no comparison":
        path.write_bytes(wrong)
    assert command(*regenerate).code == 0
    fingerprint = staged / "payments-0" / "fingerprint.json"
    if since == "no comparison":  # as earlier releases left it
        fingerprint.write_bytes(fingerprint.read_bytes().partition(b',\n"compared"')[0] + b"}\n")
    path.write_bytes(wrong)
    install = ("install", staged, broker_log, "--replace", "false-partial", "--dry-run", *JSON)
    ran = command(*install)
    assert (ran.code, outcomes(ran.document, "payments-0")[int(path.stem)]) == (3, "not-asked")
    assert command(*regenerate).code == 0
    ran = command(*install)
    assert (ran.code, outcomes(ran.document, "payments-0")[int(path.stem)]) == (0, "replaced")
    assert "unchanged" in command(*regenerate).out


@pytest.fixture
def expired(tmp_path: Path) -> Path:
    """A snapshot with an entry that a broker made of a marker alone, though the producer had written in this epoch.

    By the log it was silent for 400 ms. The broker was down until it had expired, and recovered the log then.
    """
    here = {"producer_id": 7, "producer_epoch": 7}
    partition = a_partition(
        tmp_path / "log",
        [
            [
                DataEvent(**here, timestamp=START_MS, records=3, transactional=True),
                MarkerEvent(**here, timestamp=START_MS + 10, coordinator_epoch=3),
            ],
            [MarkerEvent(**here, timestamp=START_MS + 400, coordinator_epoch=3)],
            [MarkerEvent(producer_id=8, producer_epoch=0, timestamp=START_MS + 500, coordinator_epoch=3)],
        ],
    )
    path = partition / f"{5:020}.snapshot"
    path.write_bytes(snapshot_bytes([ProducerEntry(7, 7, -1, -1, 0, START_MS + 400, 3, -1)]))
    return path


def _written(path: Path, at_ms: int) -> None:
    os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def test_an_entry_that_had_expired_before_a_marker_without_data_is_right(
    command: Resnap, expired: Path, tmp_path: Path
) -> None:
    store, staged = tmp_path / "store", tmp_path / "staged"
    _written(expired, START_MS + 10 + EXPIRATION_MS)
    ran = command("verify", expired.parent, *ROLL, *SHORT, *JSON)
    [row] = ran.document["boundaries"]
    assert (ran.code, row["verdict"], row["lastBatchLost"]) == (0, "proven", [7])
    assert command("regenerate", expired.parent, "--boundaries", "all", "--into", staged, *ROLL, *SHORT).code == 0
    asked = ("install", staged, expired.parent.parent, "--dry-run", "--replace", "false-partial", *JSON)
    assert outcomes(command(*asked).document, "payments-0")[5] == "good-file-there"
    assert command("tier", expired.parent, "--to", store.as_uri(), *ROLL, *SHORT, "--high-watermark", 6).code in {0, 3}
    [stored] = store.rglob(f"*{4:020}*.snapshot")
    assert read_snapshot(stored.read_bytes()) == read_snapshot(expired.read_bytes())
    assert command("verify", store.as_uri(), *ROLL).code == 0
    repaired = command("repair", store.as_uri(), *ROLL, "--dry-run", *JSON)
    assert (repaired.code, repaired.document["summary"]["snapshots"]) == (0, 0), repaired.document["summary"]


@pytest.mark.parametrize("early_ms", [1, EXPIRATION_MS])
def test_no_batch_is_lost_before_the_producer_can_have_expired(command: Resnap, expired: Path, early_ms: int) -> None:
    _written(expired, START_MS + 10 + EXPIRATION_MS - early_ms)
    ran = command("verify", expired.parent, *ROLL, *SHORT, *JSON)
    assert (ran.code, ran.document["boundaries"][0]["different"]) == (13, [7])


@pytest.mark.parametrize(("late_ms", "expected"), [(0, (0, [7], [])), (-1, (13, [], [7]))])
def test_a_coordinator_epoch_is_lost_only_by_a_producer_that_can_have_expired(
    command: Resnap, tmp_path: Path, late_ms: int, expected: tuple[int, list[int], list[int]]
) -> None:
    here = {"producer_id": 7, "producer_epoch": 7}
    marker = MarkerEvent(**here, timestamp=START_MS + 10, coordinator_epoch=3)
    data = [DataEvent(**here, timestamp=START_MS + ms, records=3, base_sequence=sequence, transactional=True)
            for ms, sequence in ((0, 0), (400, 3))]  # fmt: skip
    partition = a_partition(tmp_path / "log", [[data[0], marker, data[1]], [marker], [marker]])
    path = partition / f"{7:020}.snapshot"
    path.write_bytes(snapshot_bytes([ProducerEntry(7, 7, 5, 6, 2, START_MS + 400, -1, 4)]))
    _written(path, START_MS + 10 + EXPIRATION_MS + late_ms)
    ran = command("verify", partition, *ROLL, *SHORT, *JSON)
    row = ran.document["boundaries"][0]
    assert (ran.code, row["coordinatorEpochLost"], row["different"]) == expected


def test_a_snapshot_with_entries_from_above_its_offset_is_not_usable(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    partition = broker_log / "payments-0"
    path = min(one for one in partition.glob("*.snapshot") if one.read_bytes() != EMPTY_SNAPSHOT)
    offset = int(path.stem)
    first, *others = read_snapshot(path.read_bytes()).values()
    path.write_bytes(snapshot_bytes([first._replace(last_offset=offset), *others]))
    scanned = command("scan", broker_log, "--topic", "payments", *JSON)
    [row] = [one for one in scanned.document["partitions"] if one["partition"] == 0]
    assert row["states"]["corrupt"] == 1, row
    verified = command("verify", partition, *ROLL)
    assert verified.code == 13
    assert f"{path}: corrupt: " in verified.err
    assert f"offsets below {offset}" in verified.err
    staged = tmp_path / "staged"
    assert command("regenerate", broker_log, "--topic", "payments", "--into", staged, *ROLL).code == 0
    assert file_at(staged / "payments-0", offset, "snapshot").exists()
