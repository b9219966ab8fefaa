from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.replay.evidence import Evidence, ShownTransaction
from resnap.replay.plan import Coverage
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.log.indexes import AbortedTxn
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.log.producer_snapshot import ProducerEntry, SnapshotDigest
from resnap.storage.sources.files import Sources
from resnap.tiering.judging.inventory import take_partition_inventory
from resnap.tiering.judging.planning import load_facts, plan_replay
from resnap.tiering.run_cache.results import CachedBoundary, CachedResults, is_cached_as_well, mark_of, rules_key
from resnap.tiering.run_cache.run_cache import CacheFiles, look_up, with_result
from tests.builders import a_partition
from tests.strategies import START_MS, PlainEvent

if TYPE_CHECKING:
    from resnap.tiering.judging.inventory import PartitionInventory
    from resnap.tiering.run_cache.run_cache import CachedPartition

SOURCES = Sources()
RULES = ReplayRules(as_of=AsOf(now_ms=START_MS))


@pytest.fixture
def inventory(tmp_path: Path) -> PartitionInventory:
    directory = a_partition(tmp_path, [[PlainEvent(records=10, timestamp=START_MS)] for _ in range(4)])
    return take_partition_inventory(load_partition_dir(directory))


def boundary(offset: int, read_from: int | None = 10, coverage: Coverage = Coverage.WINDOW) -> CachedBoundary:
    return CachedBoundary(
        offset=offset, as_of_ms=START_MS, made_ms=START_MS, coverage=coverage, window_start_offset=read_from,
        known_from_offset=read_from, entries=0,
        digest=SnapshotDigest(size_bytes=10, crc32c=0, sha256=""), left_out=(), evidence="",
    )  # fmt: skip


def cached_files(
    inventory: PartitionInventory,
    root: Path,
    rules: ReplayRules = RULES,
    *,
    read_from: int | None = 10,
    coverage: Coverage = Coverage.WINDOW,
) -> CacheFiles:
    files = CacheFiles(root)
    marks = [mark_of(segment, SOURCES) for segment in inventory.partition.segments]
    results = CachedResults(
        rules=rules_key(rules),
        marks=tuple(mark for mark in marks if mark),
        directory="another",
        boundaries={offset: boundary(offset, read_from, coverage) for offset in inventory.partition.boundaries},
    )
    files.save(inventory.partition, results, before=CachedResults())
    return files


VOUCHED = Evidence(newest_snapshot=30)


def open_since(offset: int, coordinator_epoch: int = 0) -> Evidence:
    entry = ProducerEntry(1, 0, 0, offset, 0, START_MS, coordinator_epoch, offset)
    return replace(VOUCHED, open=(ShownTransaction(seen_at=30, entry=entry),))


def still_valid(cached: CachedPartition, evidence: Evidence, rules: ReplayRules = RULES) -> list[int]:
    return list(cached.supported_by(evidence, rules).results.boundaries)


@pytest.mark.parametrize("since", [5, 15])
def test_other_evidence_invalidates_the_boundaries_that_depend_on_it(
    inventory: PartitionInventory, tmp_path: Path, since: int
) -> None:
    found = look_up(cached_files(inventory, tmp_path / "state"), inventory, RULES, SOURCES)
    assert list(found.results.boundaries) == [10, 20, 30]
    assert not found.is_same_directory
    assert still_valid(found, VOUCHED) == [10, 20, 30]
    # Wherever the transaction seems to begin, it may settle what had been in doubt of it.
    assert still_valid(found, open_since(since)) == [offset for offset in (10, 20, 30) if offset <= since]


def test_of_a_log_that_was_read_from_its_first_offset_no_evidence_counts(
    inventory: PartitionInventory, tmp_path: Path
) -> None:
    found = look_up(cached_files(inventory, tmp_path / "state", read_from=0), inventory, RULES, SOURCES)
    assert still_valid(found, open_since(5)) == still_valid(found, Evidence()) == [10, 20, 30]


@pytest.mark.parametrize(
    ("read_from", "coverage"),
    [(10, Coverage.WINDOW), (None, Coverage.BEYOND_WINDOW), (10, Coverage.BEYOND_WINDOW)],
)
def test_once_no_evidence_covers_what_was_left_unread_nothing_above_it_is_valid(
    inventory: PartitionInventory, tmp_path: Path, read_from: int | None, coverage: Coverage
) -> None:
    files = cached_files(inventory, tmp_path / "state", read_from=read_from, coverage=coverage)
    found = look_up(files, inventory, RULES, SOURCES)
    assert still_valid(found, VOUCHED) == still_valid(found, Evidence(newest_empty=30)) == [10, 20, 30]
    assert still_valid(found, Evidence()) == []
    # An empty snapshot vouches for nothing where there are signs of transactions.
    aborted = AbortedTxn(producer_id=3, first_offset=31, last_offset=32, last_stable_offset=31)
    assert still_valid(found, Evidence(newest_empty=30, aborted=(aborted,))) == []


def test_where_the_log_begins_later_now_nothing_need_vouch_for_what_is_gone(
    inventory: PartitionInventory, tmp_path: Path
) -> None:
    files = cached_files(inventory, tmp_path / "state")
    Path(inventory.partition.segments[0].path).unlink()
    cut = take_partition_inventory(load_partition_dir(Path(str(inventory.partition.path))))
    assert still_valid(look_up(files, cut, RULES, SOURCES), Evidence()) == [10, 20, 30]


def test_under_a_limit_nothing_need_vouch_as_nothing_did_when_it_was_planned(
    inventory: PartitionInventory, tmp_path: Path
) -> None:
    limited = replace(RULES, max_reach_back_ms=0)
    found = look_up(cached_files(inventory, tmp_path / "state", limited), inventory, limited, SOURCES)
    assert still_valid(found, Evidence(), limited) == [10, 20, 30]


def test_under_roll_no_boundary_stays_valid_below_a_segment_that_was_active_or_has_changed(
    inventory: PartitionInventory, tmp_path: Path
) -> None:
    roll = replace(RULES, as_of=AsOf(now_ms=START_MS, roll=True))
    files = cached_files(inventory, tmp_path / "state", roll)
    assert still_valid(look_up(files, inventory, roll, SOURCES), VOUCHED, roll) == [10, 20]
    Path(inventory.partition.segments[2].path).touch()
    changed = take_partition_inventory(load_partition_dir(Path(str(inventory.partition.path))))
    assert still_valid(look_up(files, changed, roll, SOURCES), VOUCHED, roll) == [10]


def test_results_not_compared_with_the_evidence_are_not_cached_for_a_changed_directory(
    inventory: PartitionInventory, tmp_path: Path
) -> None:
    found = look_up(cached_files(inventory, tmp_path / "state"), inventory, RULES, SOURCES)
    unchecked = with_result(found, None, RULES, START_MS, SOURCES)
    assert unchecked.boundaries == {}
    checked = with_result(found.supported_by(VOUCHED, RULES), None, RULES, START_MS, SOURCES)
    assert list(checked.boundaries) == [10, 20, 30]
    assert checked.directory == found.directory


def test_a_boundary_made_for_a_later_moment_is_not_valid_at_an_earlier_one(
    inventory: PartitionInventory, tmp_path: Path
) -> None:
    files = cached_files(inventory, tmp_path / "state")
    later, earlier = (replace(RULES, as_of=AsOf(now_ms=START_MS + ms)) for ms in (1, -1))
    assert look_up(files, inventory, later, SOURCES).results.boundaries
    assert not look_up(files, inventory, earlier, SOURCES).results.boundaries


@pytest.mark.parametrize(
    ("known", "is_enough"),
    [
        ({10: 0, 20: 0, 30: 0}, True),
        ({10: 0, 20: 0}, False),
        ({10: 0, 20: 0, 30: 10}, False),
        ({10: 0, 20: 0, 30: None}, False),
    ],
)
def test_under_a_limit_all_that_is_wanted_is_known_from_as_far_back_or_nothing_counts(
    inventory: PartitionInventory, known: dict[int, int | None], is_enough: bool
) -> None:
    limited = replace(RULES, max_reach_back_ms=0)
    plan = plan_replay(inventory, load_facts(inventory.partition), (10, 20, 30), limited)
    assert [run.start for run in plan.runs] == [0]
    assert is_cached_as_well([boundary(*item) for item in known.items()], plan) is is_enough


@pytest.mark.parametrize("coverage", [Coverage.WINDOW, Coverage.BEYOND_WINDOW])
def test_of_what_is_older_than_the_window_less_must_be_known(inventory: PartitionInventory, coverage: Coverage) -> None:
    inside, later = (
        plan_replay(
            inventory,
            load_facts(inventory.partition),
            (10,),
            replace(RULES, as_of=AsOf(now_ms=ms), max_reach_back_ms=0),
        )
        for ms in (START_MS, START_MS + 10**12)
    )
    assert [one.coverage for plan in (inside, later) for one in plan.boundaries] == ["window", "beyond-window"]
    known = [boundary(10, 0, coverage)]
    assert is_cached_as_well(known, inside) == (coverage is Coverage.WINDOW)
    assert is_cached_as_well(known, later)
