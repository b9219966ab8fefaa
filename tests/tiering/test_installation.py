from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resnap.storage.log.log_dir import load_partition_dir
from resnap.tiering.installing.installation import (
    CHANGES,
    HINTS,
    REFUSALS,
    Decision,
    Outcome,
    PartitionInstallation,
    Replace,
    decisions_beside,
    set_aside_at_log_end,
    with_tail_judged,
)
from resnap.tiering.judging.inventory import take_partition_inventory
from tests.scheduler.files import EMPTY_SNAPSHOT, file_at

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from resnap.tiering.judging.inventory import PartitionInventory

BASES = (0, 10, 20, 30)
ENTRY = bytes.fromhex(
    "00018bfc482d0000000100000000000010920003000000090000000000000009000000040000018bcfe5687b000000070000000000000005"
)
"""A valid snapshot of one entry."""
BOTH = frozenset(Replace)


def a_directory(path: Path, snapshots: Mapping[int, bytes]) -> PartitionInventory:
    """Take the inventory of a directory with segments at ``BASES`` and these snapshots."""
    partition = path / "payments-0"
    partition.mkdir()
    for base in BASES:
        for suffix in ("log", "index", "timeindex"):
            file_at(partition, base, suffix).touch()
    for offset, data in snapshots.items():
        file_at(partition, offset, "snapshot").write_bytes(data)
    return take_partition_inventory(load_partition_dir(partition))


def outcomes(offsets: Collection[int], inventory: PartitionInventory, asked: Collection[Replace] = ()) -> list[Outcome]:
    return [decision.outcome for decision in decisions_beside(offsets, inventory, asked)]


def installs(*offsets: int, left_out: int = 0) -> list[Decision]:
    return [Decision(offset=offset, outcome=Outcome.INSTALLED, entries=1, left_out=left_out) for offset in offsets]


@pytest.mark.parametrize(
    ("there", "unasked", "asked"),
    [
        (None, Outcome.INSTALLED, Outcome.INSTALLED),
        (b"", Outcome.NOT_ASKED, Outcome.REPLACED),
        (b"rubbish", Outcome.NOT_ASKED, Outcome.REPLACED),
        (EMPTY_SNAPSHOT, Outcome.NOT_ASKED, Outcome.REPLACED),
        (ENTRY, Outcome.GOOD_FILE_THERE, Outcome.GOOD_FILE_THERE),
    ],
)
def test_what_is_there_decides_and_a_good_file_stays(
    tmp_path: Path, there: bytes | None, unasked: Outcome, asked: Outcome
) -> None:
    inventory = a_directory(tmp_path, {} if there is None else {20: there})
    assert (outcomes([20], inventory), outcomes([20], inventory, BOTH)) == ([unasked], [asked])


def test_each_kind_is_replaced_only_if_it_was_named(tmp_path: Path) -> None:
    inventory = a_directory(tmp_path, {10: b"", 20: EMPTY_SNAPSHOT})
    assert outcomes([10, 20], inventory, {Replace.CORRUPT}) == [Outcome.REPLACED, Outcome.NOT_ASKED]
    assert outcomes([10, 20], inventory, {Replace.FALSE_EMPTY}) == [Outcome.NOT_ASKED, Outcome.REPLACED]


def test_a_stray_covers_no_tail_since_a_broker_deletes_it(tmp_path: Path) -> None:
    inventory = a_directory(tmp_path, {15: ENTRY})
    assert {one.outcome for one in with_tail_judged(installs(10, 20), inventory)} == {Outcome.TAIL_UNCOVERED}


@pytest.mark.parametrize("offset", [20, 30, 35])
def test_a_snapshot_of_the_brokers_own_covers_the_tail(tmp_path: Path, offset: int) -> None:
    assert with_tail_judged(installs(10), a_directory(tmp_path, {offset: ENTRY})) == installs(10)


def test_where_the_broker_has_none_one_that_lacks_a_producer_is_better_than_nothing(tmp_path: Path) -> None:
    inventory = a_directory(tmp_path, {})
    assert with_tail_judged(installs(30, left_out=2), inventory) == installs(30, left_out=2)


def test_an_empty_file_at_the_log_end_goes_only_with_entries_below_it_and_on_request(tmp_path: Path) -> None:
    inventory = a_directory(tmp_path, {35: EMPTY_SNAPSHOT})

    def aside(decisions: list[Decision], asked: Collection[Replace] = BOTH, *, empty: bool = True) -> bool:
        return set_aside_at_log_end(decisions, inventory, log_end_is_empty=empty, asked=asked) is not None

    assert aside(installs(10, 30))
    assert not aside(installs(10, 30), {Replace.CORRUPT})
    assert not aside(installs(10, 30), empty=False)
    assert not aside(installs(10, 20))
    assert not aside([Decision(offset=30, outcome=Outcome.INSTALLED, entries=0)])
    assert not aside([Decision(offset=30, outcome=Outcome.STALE, entries=1)])


def test_changes_are_made_from_the_highest_offset_down_and_the_log_end_goes_last(tmp_path: Path) -> None:
    aside = Decision(offset=35, outcome=Outcome.SET_ASIDE)
    decisions = (*installs(10, 30), Decision(offset=20, outcome=Outcome.STALE), aside)
    installation = PartitionInstallation(directory=a_directory(tmp_path, {}).partition, decisions=decisions)
    assert [change.offset for change in installation.changes] == [30, 10, 35]


def test_every_refusal_says_what_to_do() -> None:
    assert HINTS.keys() >= REFUSALS
    assert not REFUSALS & CHANGES
