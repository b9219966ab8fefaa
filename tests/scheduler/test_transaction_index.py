"""Transaction indexes against the batches, entry by entry, through the commands."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.scheduler import aiven_files
from tests.scheduler.aiven_files import ABORTED
from tests.scheduler.files import file_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

    Sets = Callable[[str], FixtureSet]
    Change = Callable[[list[list[int]], int], None]

PLAIN: Final = "kafka-3.9.1-aiven-plain"
ZSTD: Final = "kafka-3.9.1-aiven-zstd"
LOCAL: Final = ("--engine", "local", "--as-of", "roll", "--output", "json", "-q")


def removed(entries: list[list[int]], at: int) -> None:
    del entries[at]


def of_another_producer(entries: list[list[int]], at: int) -> None:
    entries[at][1] += 1


def begun_elsewhere(entries: list[list[int]], at: int) -> None:
    entries[at][2] -= 1


def stable_elsewhere(entries: list[list[int]], at: int) -> None:
    entries[at][4] += 1


def added(entries: list[list[int]], at: int) -> None:
    """Add one of a transaction that was committed, or is not there, at an offset that no other entry has."""
    version, producer_id, first, marker, stable = entries[at]
    entries.insert(at, [version, producer_id, first - 1, marker - 1, stable])


CHANGES: Final = [
    (removed, "lacks the transaction"),
    (of_another_producer, "says producer"),
    (begun_elsewhere, "says first offset"),
    (stable_elsewhere, "says last stable offset"),
    (added, "names a transaction"),
]


def begun_below(fixture: FixtureSet, store: Path) -> tuple[Path, int, list[list[int]]]:
    """Return a manifest, an entry by its number that is of a transaction begun in a segment below, and all entries."""
    for manifest in aiven_files.manifests(store):
        entries = aiven_files.aborted(manifest)
        base = aiven_files.read(manifest)["remoteLogSegmentMetadata"]["startOffset"]
        for number, entry in enumerate(entries):
            if entry[2] < base:
                return manifest, number, entries
    raise AssertionError(f"{fixture.name} has no transaction that was aborted in another segment")


def test_brokers_own_transaction_indexes_are_all_as_the_batches_say(command: Resnap, fixture_set: Sets) -> None:
    for name in (PLAIN, ZSTD):
        ran = command("verify", "--store", fixture_set(name).remote.as_uri(), *LOCAL)
        assert (ran.code, ran.document["summary"]["different"]) == (0, 0), ran.err
        assert all(row["undecided"] == [] for row in ran.document["segments"])


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_a_changed_transaction_index_is_named_and_not_restored(
    change: Change, named: str, command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set(PLAIN)
    store = shutil.copytree(fixture.remote, tmp_path / "store")
    manifest, number, entries = begun_below(fixture, store)
    change(entries, number)
    aiven_files.put_aborted(manifest, entries)
    ran = command("verify", "--store", store.as_uri(), *LOCAL)
    wrong = [row for row in ran.document["segments"] if row["result"] == "different"]
    assert (ran.code, len(wrong)) == (13, 1), ran.err
    assert manifest.stem in wrong[0]["manifest"]
    assert named in ran.err
    (tmp_path / "new").mkdir()
    back = command("restore", f"{store.as_uri()}/tiered", "--into", tmp_path / "new", "--output", "json", "-q")
    assert (back.code, named in back.err) == (3, True), back.err
    assert not (tmp_path / "new" / "payments-0").exists()


@pytest.mark.parametrize("case", CHANGES[:2])
def test_a_changed_transaction_index_is_not_shipped(
    case: tuple[Change, str], command: Resnap, fixture_set: Sets, writable_copy: Any, tmp_path: Path
) -> None:
    (change, named), fixture = case, fixture_set(PLAIN)
    manifest, number, entries = begun_below(fixture, fixture.remote)
    base = aiven_files.read(manifest)["remoteLogSegmentMetadata"]["startOffset"]
    log_dir = writable_copy(fixture.data)
    change(entries, number)
    file_at(log_dir / "payments-0", base, "txnindex").write_bytes(b"".join(ABORTED.pack(*entry) for entry in entries))
    to = ("--to", (tmp_path / "store").as_uri(), "--topic", "payments")
    ran = command("tier", log_dir, *to, *LOCAL)
    (row,) = [row for row in ran.document["partitions"] if row["partition"] == 0]
    assert (row["refused"][0]["baseOffset"], row["refused"][0]["reason"]) == (base, "index-unusable"), ran.err
    assert named in ran.err
    assert base not in [one["baseOffset"] for one in row["shipped"]]
