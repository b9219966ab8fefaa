"""Logs whose beginning is gone, as retention or tiering takes it: every entry the broker had is rebuilt, or named."""

from __future__ import annotations

import shutil
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pytest

from storage.log.names import segment_name
from storage.log.producer_snapshot import load_snapshot
from storage.log.record_batch import read_header
from tests.replay.replaying import planned, replayed
from tests.replay.truth import LATER_MS, NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from storage.log.record_batch import RecordBatchHeader
    from tests.fixture_sets import FixtureSet

    Sets: TypeAlias = Callable[[str], FixtureSet]

CUT: Final = (
    ("kafka-2.7.2", "payments-0"),
    ("kafka-2.7.2", "payments-1"),
    ("kafka-2.7.2", "orders-0"),
    ("kafka-3.9.1-tiered", "payments-0"),
    ("kafka-4.1.1-kraft", "payments-0"),
    ("kafka-3.9.1-kraft", "payments-0"),
)


class Cut(NamedTuple):
    """A partition whose first segments have gone, and the snapshots that are there."""

    directory: Path
    offsets: list[int]
    """Base offsets of the segments that are left."""


def cut(fixture: FixtureSet, partition: str, first: int, kept: Collection[int], into: Path) -> Cut:
    """Copy ``partition`` without its ``first`` segments, with the broker's own snapshots at the offsets ``kept``."""
    directory = into / partition
    shutil.rmtree(into, ignore_errors=True)
    directory.mkdir(parents=True)
    source = fixture.data / partition
    offsets = bases(fixture, partition)[first:]
    for offset in offsets:
        for path in source.glob(f"{offset:020d}.*"):
            if path.suffix != ".snapshot":
                shutil.copy2(path, directory)
    for offset in kept:
        shutil.copy2(fixture.expected / partition / segment_name(offset, "snapshot"), directory)
    return Cut(directory, offsets)


def bases(fixture: FixtureSet, partition: str) -> list[int]:
    """Return the base offsets of all segments."""
    return sorted(int(path.stem) for path in (fixture.data / partition).glob("*.log"))


def patterns(offsets: list[int]) -> Iterator[set[int]]:
    """Yield which snapshots to keep: all but one or two, only one or two, and none."""
    for count in (1, 2):
        for some in combinations(offsets, count):
            yield set(some)
            yield set(offsets) - set(some)
    yield set()


@pytest.mark.parametrize(("name", "partition"), CUT)
def test_every_entry_that_the_broker_had_is_rebuilt_or_named(
    name: str, partition: str, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set(name)
    every = bases(fixture, partition)
    rebuilt_from_snapshots = 0
    for first in range(1, min(len(every) - 1, 4)):
        for kept in patterns(every[first:][:4]):
            log = cut(fixture, partition, first, kept, tmp_path / "log")
            found = replayed(planned(log.directory, now_ms=LATER_MS, expiry=NEVER))
            shown = {pid for offset in kept for pid in load_snapshot(snapshot(fixture, partition, offset))}
            firsts = first_batches(log.directory)
            for boundary in found.result.boundaries:
                offset = boundary.boundary.offset
                assert boundary.known_from_offset == log.offsets[0]
                broker, ours = load_snapshot(snapshot(fixture, partition, offset)), found.snapshots[offset]
                named = {one.producer_id for one in boundary.left_out}
                where = (first, sorted(kept), offset)
                assert ours.keys() <= broker.keys(), where
                assert not named & ours.keys(), where
                for pid, theirs in broker.items():
                    goes_on = pid in firsts and (firsts[pid].is_control or firsts[pid].base_sequence > 0)
                    if pid in ours:
                        assert ours[pid] == theirs or pid not in shown, (where, ours[pid], theirs)
                        rebuilt_from_snapshots += theirs.last_offset < log.offsets[0]
                    else:
                        assert pid in named or (pid not in shown and not goes_on), (where, theirs)
    assert rebuilt_from_snapshots


def first_batches(directory: Path) -> dict[int, RecordBatchHeader]:
    """Return the first batch of each producer in the closed segments, which are those that are read."""
    firsts: dict[int, RecordBatchHeader] = {}
    for path in sorted(directory.glob("*.log"))[:-1]:
        body, position = path.read_bytes(), 0
        while position < len(body):
            header = read_header(body, position)
            firsts.setdefault(header.producer_id, header)
            position += header.size_bytes
    return firsts


def snapshot(fixture: FixtureSet, partition: str, offset: int) -> Path:
    """Return where the broker's own snapshot at ``offset`` lies."""
    return fixture.expected / partition / segment_name(offset, "snapshot")
