"""Logs whose beginning is gone, as retention or tiering takes it: every entry the broker had is rebuilt, or named."""

from __future__ import annotations

import shutil
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pytest

from resnap.replay.producer_state import ProducerStates
from resnap.replay.window import Unexplained
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import load_snapshot, snapshot_bytes
from resnap.storage.log.record_batch import read_header
from tests.builders import a_batch, a_marker
from tests.cases import mostly_slow
from tests.logs.log_writer import PartitionWriter
from tests.replay.replaying import planned, replayed
from tests.replay.specification import events_of
from tests.replay.truth import LATER_MS, NEVER, TRUTHS, Truth, partitions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from resnap.storage.log.record_batch import RecordBatchHeader
    from tests.fixture_sets import FixtureSet

    Sets: TypeAlias = Callable[[str], FixtureSet]

CUT: Final = (
    ("kafka-2.7.2", "payments-0"),
    ("kafka-2.7.2", "payments-1"),
    ("kafka-2.7.2", "orders-0"),
    ("kafka-3.9.1-tiered", "payments-0"),
    ("kafka-4.1.1-kraft", "payments-0"),
    ("kafka-3.9.1-kraft", "payments-0"),
    ("kafka-4.4.0-kraft", "payments-1"),
)


INCOMPLETE: Final = {
    Unexplained.COORDINATOR: ("coordinator_epoch",),
    Unexplained.BATCHES: (
        "producer_epoch", "last_sequence", "last_offset", "offset_delta", "timestamp", "coordinator_epoch",
    ),
}  # fmt: skip
"""Reasons for which a producer is named though it has an entry, and what that may lack."""


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


@pytest.mark.parametrize(
    ("name", "partition"), mostly_slow(CUT, ("kafka-3.9.1-tiered", "payments-0"), ("kafka-2.7.2", "payments-1"))
)
def test_every_entry_that_the_broker_had_is_rebuilt_or_named(
    name: str, partition: str, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set(name)
    every = bases(fixture, partition)
    rebuilt_from_snapshots = 0
    for first in range(1, min(len(every) - 1, 4)):
        for kept in patterns(every[first:][:4]):
            log = cut(fixture, partition, first, kept, tmp_path / "log")
            rebuilt_from_snapshots += check_cut(log, fixture.expected / partition, kept)
    assert rebuilt_from_snapshots


@pytest.mark.parametrize("truth", mostly_slow(TRUTHS, TRUTHS[-1]), ids=lambda one: one.name)
def test_at_every_boundary_of_every_set_each_producer_of_the_broker_is_equal_or_named(
    truth: Truth, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture, rng = fixture_set(truth.name), Random(truth.name)
    checked = 0
    for one in partitions_of(fixture):
        partition = str(one.topic_partition)
        if one.topic_partition.topic == "legacy":  # its batches have no producers
            continue
        every = bases(fixture, partition)
        for first in range(1, len(every) - 1):
            kept = set(rng.sample(every[first:], rng.randrange(min(len(every) - first, 5))))
            log = cut(fixture, partition, first, kept, tmp_path / "log")
            checked += 1 + check_cut(log, fixture.expected / partition, kept, truth)
    assert checked


def check_cut(log: Cut, expected: Path, kept: set[int], truth: Truth | None = None) -> int:
    """Check every boundary against the snapshots ``expected``; return how many entries only the ``kept`` ones show."""
    roll, expiry, is_exact = (False, NEVER, True) if truth is None else (True, truth.expiry, truth.exact)
    found = replayed(planned(log.directory, now_ms=LATER_MS, roll=roll, expiry=expiry))
    shown = {pid for offset in kept for pid in load_snapshot(expected / segment_name(offset, "snapshot"))}
    firsts = first_batches(log.directory)
    rebuilt_from_snapshots = 0
    for boundary in found.result.boundaries:
        offset = boundary.offset
        assert boundary.known_from_offset == log.offsets[0]
        broker, ours = load_snapshot(expected / segment_name(offset, "snapshot")), found.snapshots[offset]
        named = {one.producer_id: one.reason for one in boundary.left_out}
        where = (log.offsets[0], sorted(kept), offset)
        assert ours.keys() <= broker.keys() or not is_exact, where
        assert not {pid for pid, reason in named.items() if reason not in INCOMPLETE} & ours.keys(), where
        for pid, theirs in broker.items():
            if pid not in ours:
                assert pid in named or (pid not in shown and pid not in firsts), (where, theirs)
                continue
            fields = INCOMPLETE[named[pid]] if pid in named else ()
            if theirs.coordinator_epoch == -1 and expiry != NEVER:
                fields = ("coordinator_epoch",)  # the broker has forgotten it by expiry: the older one does no harm
            known = theirs._replace(**{name: getattr(ours[pid], name) for name in fields})
            assert ours[pid] == known, (where, ours[pid], theirs)
            rebuilt_from_snapshots += theirs.last_offset < log.offsets[0]
    return rebuilt_from_snapshots


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


@pytest.mark.parametrize("kept", [(203, 423), (203,), (423,)], ids=str)
def test_a_transaction_that_began_in_a_segment_that_is_gone_stays_open_up_to_its_marker(
    kept: tuple[int, ...], tmp_path: Path
) -> None:
    hung, other = 9_001, 7
    states, snapshots = ProducerStates(NEVER), {}
    with PartitionWriter(tmp_path / "payments-0") as writer:
        for start, end in ((0, 203), (203, 423), (423, 623), (623, 700)):
            if start:
                writer.roll()
            for offset in range(start, end):
                if offset == 664:
                    batch = a_marker(offset=offset, producer_id=hung, coordinator_epoch=3, commit=False)
                elif offset == 20:
                    batch = a_batch(offset=offset, producer_id=hung, transactional=True)
                else:
                    batch = a_batch(offset=offset, producer_id=other, base_sequence=offset)
                writer.append_batch(batch)
                states.append(events_of(batch))
            snapshots[end] = dict(states.entries)
    directory = tmp_path / "payments-0"
    for path in directory.glob(f"{0:020d}.*"):
        path.unlink()
    for offset in kept:
        body = snapshot_bytes(snapshots[offset].values())
        (directory / segment_name(offset, "snapshot")).write_bytes(body)
    wanted = [offset for offset in (423, 623) if offset not in kept]
    found = replayed(planned(directory, now_ms=LATER_MS, expiry=NEVER, wanted=wanted))
    for offset in wanted:
        assert found.snapshots[offset] == snapshots[offset]
        assert found.snapshots[offset][hung].current_txn_first_offset == 20
        assert found.at(offset).left_out == ()
    nothing_shown = tmp_path / "nothing shown"
    shutil.copytree(directory, nothing_shown / "payments-0", ignore=shutil.ignore_patterns("*.snapshot"))
    silent = replayed(planned(nothing_shown / "payments-0", now_ms=LATER_MS, expiry=NEVER, wanted=[423, 623]))
    # What is left is the index of aborted transactions and the marker: they show no batch.
    for offset in (423, 623):
        assert silent.at(offset).left_out == ((hung, Unexplained.BATCHES),)
        without_batch = states.entries[hung]._replace(coordinator_epoch=-1, current_txn_first_offset=20)
        assert silent.snapshots[offset][hung] == without_batch._replace(last_sequence=-1, last_offset=-1)


def test_a_producer_whose_past_only_a_later_snapshot_shows_is_named(tmp_path: Path) -> None:
    """With transactions of version 2 each begins at sequence 0, under an epoch of its own: batches show no past."""
    idle, ended_here, new, other = 9_001, 9_002, 9_003, 7
    states, snapshots = ProducerStates(NEVER), {}
    batches = {
        20: a_batch(offset=20, producer_id=idle, producer_epoch=1, transactional=True),
        21: a_batch(offset=21, producer_id=ended_here, producer_epoch=1, transactional=True),
        30: a_marker(offset=30, producer_id=idle, producer_epoch=2, coordinator_epoch=3),
        250: a_marker(offset=250, producer_id=ended_here, producer_epoch=2, coordinator_epoch=3),
        430: a_batch(offset=430, producer_id=idle, producer_epoch=2, transactional=True),
        431: a_batch(offset=431, producer_id=ended_here, producer_epoch=2, transactional=True),
        432: a_batch(offset=432, producer_id=new, transactional=True),
        640: a_marker(offset=640, producer_id=idle, producer_epoch=3, coordinator_epoch=3),
    }
    with PartitionWriter(tmp_path / "payments-0") as writer:
        for start, end in ((0, 203), (203, 423), (423, 623), (623, 700)):
            if start:
                writer.roll()
            for offset in range(start, end):
                batch = batches.get(offset) or a_batch(offset=offset, producer_id=other, base_sequence=offset)
                writer.append_batch(batch)
                states.append(events_of(batch))
            snapshots[end] = dict(states.entries)
    directory = tmp_path / "payments-0"
    for path in directory.glob(f"{0:020d}.*"):
        path.unlink()
    body = snapshot_bytes(snapshots[623].values())
    (directory / segment_name(623, "snapshot")).write_bytes(body)
    found = replayed(planned(directory, now_ms=LATER_MS, expiry=NEVER, wanted=[423, 623]))
    named = {one.producer_id: one.reason for one in found.at(423).left_out}
    assert snapshots[423].keys() == named.keys() | found.snapshots[423].keys() == {idle, ended_here, other}
    assert named[idle] is Unexplained.LATER
    assert found.at(623).left_out == ()
    assert found.snapshots[623] == snapshots[623]
