"""A run that begins at an anchor gives what the whole run would have given."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.anchor import begin_at_anchor
from resnap.replay.evidence import load_evidence, segment_spans
from resnap.replay.plan import Coverage, plan_partition
from resnap.replay.producer_state import Expiry
from resnap.replay.rebuild import rebuild_locally
from resnap.replay.results import BoundaryOutcome
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.log.log_dir import load_partition_dir
from tests.builders import a_partition
from tests.cases import mostly_slow
from tests.examples import examples
from tests.replay.memory_sink import MemorySink
from tests.replay.simulation import EXPIRY, HOUR_MS, MINUTE_MS, Move, Simulation, Written, moves, write
from tests.replay.specification import as_entries
from tests.replay.test_window import check_beyond, check_inside
from tests.replay.truth import TRUTHS, Truth
from tests.strategies import START_MS, DataEvent, Event, MarkerEvent, PlainEvent, histories

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import PartitionResult
    from resnap.replay.scan.splits import Anchor
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from tests.fixture_sets import FixtureSet

thorough = examples(60)
Entries = dict[int, dict[int, "ProducerEntry"]]


def plan_of(partition: PartitionDir, rules: ReplayRules, wanted: Sequence[int], keep_in: str | None) -> PartitionPlan:
    plan = plan_partition(
        partition.topic_partition,
        segment_spans(partition),
        wanted,
        rules,
        evidence=load_evidence(partition),
        to_end=True,
    )
    return replace(plan, keep_in=keep_in)


def cut_off(plan: PartitionPlan, offset: int | None = None) -> PartitionPlan:
    """Return ``plan`` for a log that ends at its boundary at ``offset``, or at its last one."""
    if not plan.runs or not plan.runs[-1].boundaries:
        return plan
    *others, window = plan.runs
    boundaries = [boundary for boundary in window.boundaries if offset is None or boundary.offset <= offset]
    end = boundaries[-1].segment_index + 1 if boundaries else window.start + 1
    return replace(plan, runs=(*others, replace(window, end=end, boundaries=tuple(boundaries))))


def wanting(plan: PartitionPlan, offsets: Sequence[int]) -> PartitionPlan:
    """Return ``plan`` with the boundaries at ``offsets`` alone."""
    runs = [replace(run, boundaries=tuple(b for b in run.boundaries if b.offset in offsets)) for run in plan.runs]
    return replace(plan, runs=tuple(runs), idle=tuple(b for b in plan.idle if b.offset in offsets))


def carried_out(plan: PartitionPlan) -> tuple[PartitionResult, Entries]:
    sink = MemorySink()
    (result,) = rebuild_locally([plan], sink)
    return result, {offset: as_entries(entries) for (_, offset), entries in sink.snapshots.items()}


def check(written: Written, result: PartitionResult, found: Entries, rules: ReplayRules) -> None:
    for boundary in result.boundaries:
        assert boundary.outcome is BoundaryOutcome.REBUILT
        entries = found[boundary.offset]
        if boundary.coverage is Coverage.WINDOW:
            check_inside(written, boundary, entries, rules)
        else:
            check_beyond(written, boundary, entries)


@thorough
@given(
    drawn=moves,
    cuts=st.lists(st.integers(20, 75), min_size=2, max_size=4),
    late_ms=st.sampled_from((0, MINUTE_MS, HOUR_MS, 4 * HOUR_MS)),
    roll=st.booleans(),
)
def test_runs_that_follow_a_growing_log_each_equal_the_whole_log(
    drawn: list[Move], cuts: list[int], late_ms: int, roll: bool
) -> None:
    anchors: list[Anchor] = []
    done = 0
    with TemporaryDirectory() as directory:
        for number, cut in enumerate([*sorted(cuts), len(drawn)]):
            simulation = Simulation().play(drawn[:cut])
            rules = ReplayRules(as_of=AsOf(now_ms=simulation.now_ms + late_ms, roll=roll), expiry=EXPIRY)
            written = write(simulation, Path(directory, str(number)))
            wanted = [offset for offset in written.partition.boundaries if offset > done]
            if not wanted:
                continue
            plan = begin_at_anchor(plan_of(written.partition, rules, wanted, directory), anchors)
            result, found = carried_out(plan)
            check(written, result, found, rules)
            anchors, done = [*anchors, *result.anchors], wanted[-1]


@examples(250)
@given(
    events=histories(legal=False, min_events=16, max_events=40),
    sizes=st.lists(st.integers(1, 5), min_size=4, max_size=8),
    at=st.integers(1, 6),
    times=st.tuples(
        st.sampled_from((1_000, 60_000, HOUR_MS, 10**12)), st.integers(0, 4 * HOUR_MS), st.integers(0, 4 * HOUR_MS)
    ),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_whatever_is_in_the_log_an_anchored_run_equals_the_run_it_anchors_in(
    events: list[Event], sizes: list[int], at: int, times: tuple[int, int, int], flags: tuple[bool, bool]
) -> None:
    expiration_ms, first_ms, later_ms = times
    roll, cut_by_retention = flags
    rules = ReplayRules(as_of=AsOf(now_ms=START_MS + first_ms, roll=roll), expiry=Expiry(expiration_ms, 1_000))
    with TemporaryDirectory() as directory:
        partition = load_partition_dir(a_partition(Path(directory), _divided(events, sizes)))
        if cut_by_retention:
            Path(partition.segments[0].path).unlink()
            partition = load_partition_dir(partition.path)
        *earlier, last = partition.boundaries
        first, _ = carried_out(cut_off(plan_of(partition, replace(rules, full=True), earlier[:at], directory)))
        later = replace(rules, as_of=replace(rules.as_of, now_ms=START_MS + first_ms + later_ms), full=True)
        plan = plan_of(partition, later, [last], None)
        expected, expected_entries = carried_out(plan)
        begun = begin_at_anchor(plan, first.anchors)
        found, found_entries = carried_out(begun)
    assert found_entries == expected_entries
    assert [boundary.outcome for boundary in found.boundaries] == [boundary.outcome for boundary in expected.boundaries]
    assert [one.as_of_ms for one in found.boundaries] == [one.as_of_ms for one in expected.boundaries]
    assert [one.left_out for one in found.boundaries] == [one.left_out for one in expected.boundaries]
    assert found.first_unstable_offset == expected.first_unstable_offset


def test_a_batch_outside_of_a_transaction_shows_that_none_was_open_below_the_log(tmp_path: Path) -> None:
    def batch(sequence: int, *, transactional: bool) -> DataEvent:
        return DataEvent(producer_id=1, base_sequence=sequence, timestamp=START_MS, transactional=transactional)

    for is_transactional, unstable in ((False, 2), (True, 1)):
        segments = [[batch(0, transactional=is_transactional)], [batch(1, transactional=is_transactional)],
                    [batch(2, transactional=True)], [plain(0)]]  # fmt: skip
        written = load_partition_dir(a_partition(tmp_path / str(unstable), segments))
        Path(written.segments[0].path).unlink()
        partition = load_partition_dir(written.path)
        rules = ReplayRules(as_of=AsOf(now_ms=START_MS), expiry=EXPIRY)
        result, _ = carried_out(plan_of(partition, replace(rules, full=True), partition.boundaries[-1:], None))
        assert result.first_unstable_offset == unstable


def hour(number: float) -> int:
    return START_MS + int(number * HOUR_MS)


def data(at: float, pid: int, *, sequence: int = 0, epoch: int = 0) -> DataEvent:
    return DataEvent(
        producer_id=pid, producer_epoch=epoch, base_sequence=sequence, timestamp=hour(at), transactional=True
    )


def marker(at: float, pid: int, *, epoch: int = 0) -> MarkerEvent:
    return MarkerEvent(producer_id=pid, producer_epoch=epoch, timestamp=hour(at), coordinator_epoch=5)


def plain(at: float) -> PlainEvent:
    return PlainEvent(timestamp=hour(at))


def begun_at(partition: PartitionDir, rules: ReplayRules, offset: int, directory: Path) -> PartitionPlan:
    """Return the plan of the last boundary, begun at the state that an earlier run kept at ``offset``."""
    earlier = [boundary for boundary in partition.boundaries if boundary <= offset]
    first, _ = carried_out(cut_off(plan_of(partition, rules, earlier, str(directory))))
    kept = [anchor for anchor in first.anchors if anchor.offset == offset]
    plan = begin_at_anchor(plan_of(partition, rules, partition.boundaries[-1:], None), kept)
    assert plan.runs[-1].anchor is not None
    return plan


def test_the_newest_clock_below_an_anchor_shows_when_a_segment_above_it_was_rolled(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, [[plain(0), data(0, 1), marker(3, 1)], [plain(1)], [plain(1)], [plain(1)]])
    for log in directory.glob("*.log"):
        os.utime(log, ns=(0, hour(0) * 1_000_000))  # as a copy may leave it
    partition = load_partition_dir(directory)
    rules = ReplayRules(as_of=AsOf(now_ms=hour(9), roll=True), expiry=EXPIRY)
    result, _ = carried_out(begun_at(partition, rules, partition.boundaries[1], tmp_path))
    assert [boundary.as_of_ms for boundary in result.boundaries] == [hour(3)]
    assert result.anchor == partition.boundaries[1]


def test_a_brokers_clock_that_was_ahead_below_an_anchor_costs_reading_and_no_producer(tmp_path: Path) -> None:
    directory = a_partition(
        tmp_path,
        [[data(0, 1), marker(0.1, 1)], [data(0.2, 2), marker(240, 2)], [data(1, 3), marker(1.1, 3)], [plain(2)]],
    )
    for log in directory.glob("*.log"):
        os.utime(log, ns=(0, hour(1) * 1_000_000))
    partition = load_partition_dir(directory)
    rules = ReplayRules(as_of=AsOf(now_ms=hour(400), roll=True), expiry=Expiry(24 * HOUR_MS, 600_000))
    plan = begun_at(partition, rules, partition.boundaries[1], tmp_path)
    result, found = carried_out(plan)
    assert result.anchor is None
    assert list(found[partition.boundaries[-1]]) == [1, 2, 3]


def test_markers_of_which_the_last_is_a_little_older_cost_no_anchor(tmp_path: Path) -> None:
    """A leader may take the times of markers in another order than it appends them."""
    written = [[data(0, 1), data(0, 2), marker(0.2, 1), marker(0.1, 2)], [plain(1)], [plain(2)]]
    partition = load_partition_dir(a_partition(tmp_path, written))
    for roll in (False, True):
        rules = ReplayRules(as_of=AsOf(now_ms=hour(9), roll=roll), expiry=Expiry(24 * HOUR_MS, 600_000))
        result, found = carried_out(begun_at(partition, rules, partition.boundaries[0], tmp_path))
        assert result.anchor == partition.boundaries[0]
        assert list(found[partition.boundaries[-1]]) == [1, 2]


def test_no_boundary_was_rolled_after_the_run(tmp_path: Path) -> None:
    """A clock that was ahead, and that no segment above corrects yet, expires nobody who is alive now."""
    partition = load_partition_dir(a_partition(tmp_path, [[data(0, 1), marker(240, 1)], [plain(1)]]))
    rules = ReplayRules(as_of=AsOf(now_ms=hour(2), roll=True), expiry=Expiry(24 * HOUR_MS, 600_000))
    result, found = carried_out(plan_of(partition, rules, partition.boundaries, None))
    assert [boundary.as_of_ms for boundary in result.boundaries] == [hour(2)]
    assert list(found[partition.boundaries[0]]) == [1]


def test_who_may_have_a_past_below_the_window_is_read_up_on_without_the_anchor(tmp_path: Path) -> None:
    # Producer 1 was there before the window begins, and comes back only above the anchor.
    segments = [[plain(at)] for at in range(0, 30, 2)]
    segments[0] += [data(0, 1, epoch=3), marker(0.1, 1, epoch=3)]
    segments[10] += [data(20, 1, epoch=3)]
    directory = a_partition(tmp_path, segments)
    for log in directory.glob("*.log"):
        os.utime(log, ns=(0, hour(29) * 1_000_000))
    partition = load_partition_dir(directory)
    rules = ReplayRules(as_of=AsOf(now_ms=hour(29)), expiry=Expiry(24 * HOUR_MS, 600_000))
    plan = begun_at(partition, rules, partition.boundaries[8], tmp_path)
    assert plan.runs[-1].anchor is not None
    assert plan.runs[-1].anchor.read_from > 0
    result, found = carried_out(plan)
    assert result.anchor is None
    assert found[partition.boundaries[-1]][1].coordinator_epoch == 5


def test_a_state_that_is_gone_when_the_run_begins_costs_reading_and_nothing_else(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, [[data(at, 1, sequence=at), marker(at + 0.5, 1)] for at in range(6)])
    partition = load_partition_dir(directory)
    rules = ReplayRules(as_of=AsOf(now_ms=hour(6)), expiry=Expiry(24 * HOUR_MS, 600_000))
    plan = begun_at(partition, rules, partition.boundaries[2], tmp_path)
    expected, entries = carried_out(plan)
    assert expected.anchor == partition.boundaries[2]
    for path in tmp_path.glob("*.state.*"):
        path.unlink()
    result, found = carried_out(plan)
    assert found == entries
    assert result.anchor is None
    assert result.segments_read > expected.segments_read


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.name)
@pytest.mark.parametrize("roll", mostly_slow([False, True], True))
def test_at_every_boundary_of_real_logs_reading_may_end_and_begin_again(
    truth: Truth, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, roll: bool
) -> None:
    begun = 0
    for plan in truth.plans(fixture_set(truth.name), roll=roll):
        expected, expected_entries = carried_out(plan)
        for boundary in plan.boundaries[:-1]:
            rest = [one.offset for one in plan.boundaries if one.offset > boundary.offset]
            first, _ = carried_out(replace(cut_off(plan, boundary.offset), keep_in=str(tmp_path)))
            further = wanting(plan, rest)
            second, entries = carried_out(begin_at_anchor(further, first.anchors))
            begun += second.anchor is not None
            assert entries == {offset: expected_entries[offset] for offset in rest}
            of_rest = [one for one in expected.boundaries if one.offset in rest]
            assert [one.as_of_ms for one in second.boundaries] == [one.as_of_ms for one in of_rest]
            assert second.first_unstable_offset == expected.first_unstable_offset or not further.runs
    assert begun or not roll or truth.boundaries < 3


def _divided(events: list[Event], sizes: list[int]) -> list[list[Event]]:
    segments, rest = [], list(events)
    for size in sizes:
        segments.append(rest[:size])
        rest = rest[size:]
    return [*(segment for segment in segments if segment), rest] if rest else [s for s in segments if s]
