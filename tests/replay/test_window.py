"""What a window rebuilds equals what the whole log gives, wherever anything survives."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.evidence import load_evidence, segment_spans
from resnap.replay.plan import Coverage, plan_partition
from resnap.replay.producer_state import NO_COORDINATOR_EPOCH
from resnap.replay.rebuild import rebuild_locally
from resnap.replay.results import BoundaryOutcome
from resnap.replay.window import AsOf, ReplayRules
from tests.examples import examples
from tests.replay.memory_sink import MemorySink
from tests.replay.simulation import EXPIRY, HOUR_MS, MINUTE_MS, Move, Simulation, Written, moves, write
from tests.replay.specification import as_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.storage.log.producer_snapshot import ProducerEntry

thorough = examples(40)
Rebuilt = tuple["PartitionResult", dict[int, dict[int, "ProducerEntry"]]]


def rebuild(written: Written, *, wanted: Sequence[int] | None = None, **rules: object) -> Rebuilt:
    partition = written.partition
    plan = plan_partition(
        partition.topic_partition,
        segment_spans(partition),
        partition.boundaries if wanted is None else wanted,
        ReplayRules(expiry=EXPIRY, **rules),
        evidence=load_evidence(partition),
    )
    sink = MemorySink()
    (result,) = rebuild_locally([plan], sink)
    assert all(boundary.outcome is BoundaryOutcome.REBUILT for boundary in result.boundaries)
    return result, {offset: as_entries(entries) for (_, offset), entries in sink.snapshots.items()}


def was_silent(written: Written, producer_id: int, below: int, silence_ms: int) -> bool:
    times = [timestamp for offset, timestamp in written.times[producer_id] if offset < below]
    return any(later - earlier >= silence_ms for earlier, later in pairwise(times))


def check_inside(written: Written, result: BoundaryResult, found: dict[int, ProducerEntry], rules: ReplayRules) -> None:
    """The entries are those of the whole log that survive; only a coordinator epoch may be forgotten by silence."""
    offset = result.offset
    kept_after_ms = rules.kept_after_ms(result.as_of_ms)
    expected = {
        pid: entry
        for pid, entry in written.states[offset].items()
        if entry.has_open_transaction or entry.timestamp > kept_after_ms
    }
    assert found.keys() == expected.keys()
    assert result.left_out == ()
    for pid, entry in found.items():
        if entry.coordinator_epoch == NO_COORDINATOR_EPOCH != expected[pid].coordinator_epoch:
            assert was_silent(written, pid, offset, rules.silence_ms)
            assert entry == expected[pid]._replace(coordinator_epoch=NO_COORDINATOR_EPOCH)
        else:
            assert entry == expected[pid]


def check_beyond(written: Written, result: BoundaryResult, found: dict[int, ProducerEntry]) -> None:
    """The entries are those whose transaction spans the boundary and was aborted later, or hangs."""
    expected = {
        pid: entry._replace(coordinator_epoch=NO_COORDINATOR_EPOCH)
        for pid, entry in written.states[result.offset].items()
        if entry.has_open_transaction and not written.ends.get((pid, entry.current_txn_first_offset), False)
    }
    # One that is committed later may be there, if a snapshot happens to show it.
    named = {pid: entry._replace(coordinator_epoch=NO_COORDINATOR_EPOCH) for pid, entry in found.items()}
    assert named.items() >= expected.items()
    for pid in named.keys() - expected.keys():
        assert pid in result.boundary.evidence.spanning
        assert named[pid] == written.states[result.offset][pid]._replace(coordinator_epoch=NO_COORDINATOR_EPOCH)


@thorough
@given(drawn=moves, late_ms=st.sampled_from((0, 0, MINUTE_MS, HOUR_MS, 4 * HOUR_MS)))
def test_a_window_as_of_now_equals_the_whole_log(drawn: list[Move], late_ms: int) -> None:
    simulation = Simulation().play(drawn)
    rules = {"as_of": AsOf(now_ms=simulation.now_ms + late_ms)}
    with TemporaryDirectory() as directory:
        written = write(simulation, Path(directory))
        result, found = rebuild(written, **rules)
    for boundary in result.boundaries:
        if boundary.coverage is Coverage.WINDOW:
            check_inside(written, boundary, found[boundary.offset], ReplayRules(expiry=EXPIRY, **rules))
        else:
            check_beyond(written, boundary, found[boundary.offset])


@thorough
@given(drawn=moves, last=st.integers(1, 4))
def test_a_window_as_of_roll_equals_the_whole_log(drawn: list[Move], last: int) -> None:
    simulation = Simulation().play(drawn)
    rules = {"as_of": AsOf(now_ms=simulation.now_ms + HOUR_MS, roll=True)}
    with TemporaryDirectory() as directory:
        written = write(simulation, Path(directory))
        wanted = written.partition.boundaries[-last:]
        result, found = rebuild(written, wanted=wanted, **rules)
        whole, _ = rebuild(written, wanted=wanted, full=True, **rules)
    for boundary, of_whole in zip(result.boundaries, whole.boundaries, strict=True):
        assert boundary.as_of_ms == of_whole.as_of_ms
        check_inside(written, boundary, found[boundary.offset], ReplayRules(expiry=EXPIRY, **rules))


@thorough
@given(drawn=moves)
def test_a_full_replay_equals_the_fold_at_every_boundary(drawn: list[Move]) -> None:
    simulation = Simulation().play(drawn)
    with TemporaryDirectory() as directory:
        written = write(simulation, Path(directory), tail_snapshots=False)
        _, found = rebuild(written, as_of=AsOf(now_ms=0), full=True)
    assert found == written.states


@thorough
@given(drawn=moves, limit_ms=st.sampled_from((0, MINUTE_MS, HOUR_MS)), roll=st.booleans())
def test_what_a_limited_reach_cannot_know_is_excluded_and_never_guessed(
    drawn: list[Move], limit_ms: int, roll: bool
) -> None:
    simulation = Simulation().play(drawn)
    rules = {"as_of": AsOf(now_ms=simulation.now_ms, roll=roll), "max_reach_back_ms": limit_ms}
    with TemporaryDirectory() as directory:
        written = write(simulation, Path(directory))
        result, found = rebuild(written, wanted=written.partition.boundaries[-4:], **rules)
    for boundary in result.boundaries:
        if boundary.coverage is Coverage.BEYOND_WINDOW:
            continue
        kept_after_ms = ReplayRules(expiry=EXPIRY, **rules).kept_after_ms(boundary.as_of_ms)
        expected = written.states[boundary.offset]
        left_out = {producer.producer_id for producer in boundary.left_out}
        alive = {pid for pid, e in expected.items() if e.has_open_transaction or e.timestamp > kept_after_ms}
        entries = found[boundary.offset]
        assert entries.keys() | left_out == alive
        assert entries.keys().isdisjoint(left_out)
        for pid, entry in entries.items():
            assert entry in (expected[pid], expected[pid]._replace(coordinator_epoch=NO_COORDINATOR_EPOCH))
