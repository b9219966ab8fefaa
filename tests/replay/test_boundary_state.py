"""What is written at a boundary, what is excluded, and what asks for more to be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.boundary_state import (
    MOST_NAMED,
    BoundaryState,
    boundary_state,
    fewest,
    idle_state,
    quick_boundary_state,
)
from resnap.replay.evidence import BoundaryEvidence
from resnap.replay.kernel.summary import NONE
from resnap.replay.plan import Boundary, Coverage, SegmentRun, plan_partition
from resnap.replay.producer_state import DataBatch, Expiry, Marker
from resnap.replay.scan.producer_table import ProducerTable
from resnap.replay.window import AsOf, ReplayRules, SegmentSpan, Unexplained
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, LeftOut, ProducerEntry
from tests.examples import examples
from tests.replay import strategies
from tests.replay.specification import as_entries, piece_of
from tests.replay.strategies import event_lists
from tests.replay.test_partial_state import cuts

if TYPE_CHECKING:
    from resnap.replay.plan import PartitionPlan
    from resnap.replay.producer_state import Event

NOW_MS = 1_700_000_000_000
EXPIRY = Expiry(10_000_000, 600_000)
BOUNDARY = 1_000
SILENCE_MS = EXPIRY.expiration_ms + 1_200_000
SEEN_SINCE_MS = NOW_MS - SILENCE_MS
RECENT_MS = NOW_MS - 1
"""Within the silence since the run has seen everything, so that a past is possible."""
FIRST_OFFSET = 500


def batch(offset: int = 900, *, pid: int = 7, sequence: int = 4, epoch: int = 0, at: int = RECENT_MS) -> DataBatch:
    return DataBatch(
        producer_id=pid, producer_epoch=epoch, base_sequence=sequence, last_sequence=sequence, base_offset=offset,
        last_offset=offset, timestamp=at, transactional=True,
    )  # fmt: skip


def marker(offset: int, *, pid: int = 7, epoch: int = 0, at: int = RECENT_MS) -> Marker:
    return Marker(producer_id=pid, producer_epoch=epoch, coordinator_epoch=3, offset=offset, timestamp=at, commit=True)


def a_plan(first_offset: int, expiry: Expiry = EXPIRY) -> PartitionPlan:
    segment = SegmentSpan(
        locator="x", base_offset=first_offset, next_base_offset=BOUNDARY, size_bytes=1, mtime_ms=NOW_MS,
        largest_timestamp_ms=NOW_MS,
    )  # fmt: skip
    rules = ReplayRules(as_of=AsOf(now_ms=NOW_MS), expiry=expiry)
    return plan_partition(TopicPartition("payments", 0), [segment], [], rules)


def a_boundary(evidence: BoundaryEvidence | None = None, coverage: Coverage = Coverage.WINDOW) -> Boundary:
    return Boundary(
        offset=BOUNDARY, segment_index=0, coverage=coverage, earliest_roll_ms=NOW_MS,
        evidence=evidence or BoundaryEvidence(),
    )  # fmt: skip


def state_of(
    *events: Event,
    evidence: BoundaryEvidence | None = None,
    seen_since_ms: int | None = SEEN_SINCE_MS,
    coverage: Coverage = Coverage.WINDOW,
    first_offset: int = FIRST_OFFSET,
    cut_through: frozenset[int] = frozenset(),
) -> BoundaryState:
    plan = a_plan(first_offset)
    run = SegmentRun(start=0, end=1, seen_since_ms=seen_since_ms, cut_through=cut_through)
    boundary = a_boundary(evidence, coverage)
    return boundary_state(piece_of(events, EXPIRY.certain_silence_ms).rows, plan, run, boundary, NOW_MS)


def entry(found: BoundaryState, pid: int = 7) -> ProducerEntry:
    return as_entries(found.entries)[pid]


def shown(first_offset: int, last_offset: int, *, pid: int = 7) -> BoundaryEvidence:
    seen = ProducerEntry(pid, 0, 8, last_offset, 0, RECENT_MS, 2, first_offset)
    at_boundary = {pid: seen} if last_offset < BOUNDARY else {}
    return BoundaryEvidence(spanning={pid: first_offset}, shown={pid: seen}, at_boundary=at_boundary)


def test_a_transaction_that_was_begun_unseen_asks_for_more_and_is_excluded_meanwhile() -> None:
    found = state_of(batch())
    assert not len(found.entries)
    assert found.left_out == (LeftOut(7, Unexplained.TRANSACTION),)
    assert found.unexplained_since_ms == RECENT_MS


def test_the_oldest_first_appearance_determines_how_far_to_read() -> None:
    found = state_of(batch(900, pid=7), batch(901, pid=8, at=RECENT_MS - 5), batch(902, pid=7, at=RECENT_MS - 9))
    assert found.unexplained_since_ms == RECENT_MS - 5
    assert [left_out.producer_id for left_out in found.left_out] == [7, 8]


def test_a_first_sequence_of_zero_has_no_past_at_epoch_zero() -> None:
    found = state_of(batch(sequence=0))
    assert entry(found).current_txn_first_offset == 900
    assert found.unexplained_since_ms is None


def test_a_first_sequence_of_zero_at_a_later_epoch_asks_for_the_coordinator_epoch_alone() -> None:
    found = state_of(batch(sequence=0, epoch=2))
    assert found.unexplained_since_ms == RECENT_MS
    # Should nothing more be read, it is kept without one, and named: that is harmless.
    assert found.left_out == (LeftOut(7, Unexplained.COORDINATOR),)
    assert entry(found).coordinator_epoch == -1


def test_silence_that_has_been_read_explains_a_first_appearance() -> None:
    for first_ms, explained in ((NOW_MS - 1, False), (NOW_MS, True)):
        found = state_of(batch(at=first_ms))
        assert (found.unexplained_since_ms is None) == explained
        assert (len(found.entries) == 1) == explained


def test_a_marker_below_the_boundary_explains_its_transaction() -> None:
    found = state_of(batch(), marker(901))
    assert found.unexplained_since_ms is None
    assert entry(found).coordinator_epoch == 3


def test_a_marker_that_came_first_lacks_its_batch() -> None:
    found = state_of(marker(900))
    assert found.left_out == (LeftOut(7, Unexplained.BATCH),)
    assert found.unexplained_since_ms == RECENT_MS


def test_a_marker_that_came_first_lacks_nothing_once_data_of_its_epoch_or_another_follow() -> None:
    assert entry(state_of(marker(900), batch(901))).last_sequence == 4
    assert entry(state_of(marker(900), batch(901, epoch=1))).last_sequence == 4
    assert entry(state_of(marker(900), marker(901, epoch=1))).last_sequence == -1


def test_a_marker_that_ends_a_transaction_cut_by_the_start_of_the_run_is_never_explained_by_silence() -> None:
    assert len(state_of(marker(900, at=NOW_MS)).entries) == 1
    found = state_of(marker(900, at=NOW_MS), cut_through=frozenset({7}))
    assert found.left_out == (LeftOut(7, Unexplained.BATCH),)


def test_an_expired_producer_is_in_no_doubt() -> None:
    found = state_of(marker(900, at=NOW_MS - EXPIRY.expiration_ms))
    assert (len(found.entries), found.left_out, found.unexplained_since_ms) == (0, (), None)


def test_an_entry_expires_at_the_expiration_and_not_a_millisecond_before() -> None:
    events = batch(900, sequence=0, at=NOW_MS), marker(901, at=NOW_MS - EXPIRY.expiration_ms + 1)
    assert len(state_of(*events).entries) == 1
    assert not len(state_of(events[0], events[1]._replace(timestamp=NOW_MS - EXPIRY.expiration_ms)).entries)


def test_an_open_transaction_survives_at_any_age() -> None:
    assert len(state_of(batch(sequence=0, at=5)).entries) == 1


def test_nothing_is_in_doubt_where_the_run_starts_with_the_log() -> None:
    found = state_of(batch(), marker(901, pid=8), seen_since_ms=None, first_offset=0)
    assert as_entries(found.entries).keys() == {7, 8}


def test_a_log_without_its_beginning_leaves_markers_and_transactions_that_go_on_in_doubt() -> None:
    events = batch(), marker(901, pid=8), batch(902, sequence=0, pid=9)
    found = state_of(*events, seen_since_ms=None, first_offset=1)
    assert as_entries(found.entries).keys() == {9}
    assert found.left_out == (LeftOut(7, Unexplained.TRANSACTION), LeftOut(8, Unexplained.BATCH))


def test_a_transaction_is_in_no_doubt_once_servers_clocks_show_that_those_across_the_cut_have_ended() -> None:
    plan, run = a_plan(1), SegmentRun(start=0, end=1)
    reach_ms = plan.rules.transaction_reach_ms
    for silent_ms, is_kept in ((reach_ms, True), (reach_ms - 1, False)):
        # What clients stamp proves nothing: the producer's own timestamp is far ahead of both clocks.
        clocks = marker(800, pid=8, at=SEEN_SINCE_MS), marker(801, pid=8, at=SEEN_SINCE_MS + silent_ms)
        rows = piece_of((*clocks, batch()), EXPIRY.certain_silence_ms).rows
        found = boundary_state(rows, plan, run, a_boundary(), NOW_MS, oldest_clock_ms=SEEN_SINCE_MS)
        assert (7 in as_entries(found.entries)) == is_kept
        assert (LeftOut(7, Unexplained.TRANSACTION) in found.left_out) != is_kept


def test_evidence_settles_where_a_transaction_began_and_under_which_coordinator() -> None:
    found = state_of(batch(), evidence=shown(400, BOUNDARY + 5))
    assert found.unexplained_since_ms is None
    assert entry(found) == ProducerEntry(7, 0, 4, 900, 0, RECENT_MS, 2, 400)


def test_evidence_of_a_younger_transaction_settles_nothing() -> None:
    found = state_of(batch(), evidence=shown(950, BOUNDARY + 5))
    assert found.left_out == (LeftOut(7, Unexplained.TRANSACTION),)


def test_an_entry_that_evidence_shows_to_be_valid_is_written_though_nothing_of_it_was_read() -> None:
    found = state_of(batch(sequence=0, pid=3), batch(901, sequence=0, pid=9), evidence=shown(100, 120))
    assert list(as_entries(found.entries)) == [3, 7, 9]
    assert entry(found) == ProducerEntry(7, 0, 8, 120, 0, RECENT_MS, 2, 100)


def test_entries_keep_the_byte_order_of_the_file() -> None:
    assert state_of(batch(sequence=0), evidence=shown(100, 120, pid=9)).entries.dtype == ENTRY_DTYPE
    boundary = Boundary(
        offset=BOUNDARY, segment_index=0, coverage=Coverage.WINDOW, earliest_roll_ms=0, evidence=shown(100, 120)
    )
    assert idle_state(boundary).entries.dtype == ENTRY_DTYPE


def test_what_was_read_counts_more_than_evidence() -> None:
    found = state_of(batch(sequence=0), marker(901), evidence=shown(100, 120))
    assert not entry(found).has_open_transaction


def test_evidence_is_not_asked_where_the_log_was_read_from_its_first_offset() -> None:
    found = state_of(evidence=shown(100, 120), seen_since_ms=None, first_offset=0)
    assert not len(found.entries)


@pytest.mark.parametrize("at", [-1, 0, 5, 2**63 - 1])
def test_odd_timestamps_of_a_first_appearance_break_nothing(at: int) -> None:
    found = state_of(batch(at=at))
    assert found.unexplained_since_ms == (at if at < NOW_MS else None)


def test_beyond_the_window_only_transactions_that_evidence_names_are_written() -> None:
    named = BoundaryEvidence(spanning={7: 880})
    found = state_of(
        batch(880, pid=7), batch(900, pid=7, sequence=5), batch(901, pid=8), coverage=Coverage.BEYOND_WINDOW,
        evidence=named,
    )  # fmt: skip
    assert as_entries(found.entries) == {7: ProducerEntry(7, 0, 5, 900, 0, RECENT_MS, -1, 880)}
    assert found.unexplained_since_ms is None


def test_beyond_the_window_a_named_transaction_that_has_its_marker_is_not_written() -> None:
    found = state_of(
        batch(880), marker(890), coverage=Coverage.BEYOND_WINDOW, evidence=BoundaryEvidence(spanning={7: 880})
    )
    assert not len(found.entries)


def test_beyond_the_window_a_valid_entry_is_written_unchanged() -> None:
    found = state_of(coverage=Coverage.BEYOND_WINDOW, evidence=shown(100, 120))
    assert entry(found) == ProducerEntry(7, 0, 8, 120, 0, RECENT_MS, 2, 100)


@examples(600)
@given(
    events=event_lists(max_events=30),
    points=st.lists(st.integers(0, 30), max_size=4),
    run=st.builds(
        SegmentRun,
        start=st.just(0),
        end=st.just(1),
        seen_since_ms=st.sampled_from((None, 0, 300)),
        touched_until_ms=st.sampled_from((None, 2_000)),
        cut_through=st.sampled_from((frozenset(), frozenset({2}))),
    ),
    first_offset=st.sampled_from((0, 1)),
    as_of_ms=st.integers(0, 6_000),
    oldest_clock_ms=st.sampled_from((None, 0, 900)),
    evidence=st.sampled_from((BoundaryEvidence(), shown(400, BOUNDARY + 5, pid=1), shown(0, 0, pid=2))),
    coverage=st.sampled_from((Coverage.WINDOW, Coverage.WINDOW, Coverage.BEYOND_WINDOW)),
)
def test_what_is_beyond_doubt_is_what_the_whole_judgement_gives(
    *, events: list[Event], points: list[int], run: SegmentRun, first_offset: int, as_of_ms: int,
    oldest_clock_ms: int | None, evidence: BoundaryEvidence, coverage: Coverage,
) -> None:  # fmt: skip
    plan = a_plan(first_offset, strategies.EXPIRY)
    boundary = a_boundary(evidence, coverage)
    # Of a log cut by retention servers' clocks may say that all is known, which the whole judgement alone asks.
    clocks_decide = bool(first_offset) and run.seen_since_ms is None and oldest_clock_ms is not None
    table = ProducerTable(strategies.EXPIRY.certain_silence_ms)
    for part in cuts(events, points):
        table.append(piece_of(part, strategies.EXPIRY.certain_silence_ms))
        quick = quick_boundary_state(table, plan, run, boundary, as_of_ms, oldest_clock_ms=oldest_clock_ms)
        rows = table.rows()
        found = boundary_state(rows, plan, run, boundary, as_of_ms, oldest_clock_ms=oldest_clock_ms)
        if quick is not None:
            assert not (rows["illegal_offset"] != NONE).any()
            assert quick.entries.tobytes() == found.entries.tobytes()
            assert (quick.left_out, quick.unexplained_since_ms) == (found.left_out, found.unexplained_since_ms)
        elif coverage is Coverage.WINDOW and evidence == BoundaryEvidence() and not (run.cut_through or clocks_decide):
            illegal = bool((rows["illegal_offset"] != NONE).any())
            assert illegal or found.left_out or found.unexplained_since_ms is not None


def test_nothing_is_asked_twice_of_a_run_without_doubt() -> None:
    table = ProducerTable(strategies.EXPIRY.certain_silence_ms)
    table.append(piece_of([batch(sequence=0, pid=pid) for pid in (9, 3, 5)], EXPIRY.certain_silence_ms))
    run = SegmentRun(start=0, end=1)
    found = quick_boundary_state(table, a_plan(0), run, a_boundary(), NOW_MS)
    assert found is not None
    assert found.entries["producer_id"].tolist() == [3, 5, 9]


def test_a_producer_that_is_left_out_for_two_reasons_is_named_once() -> None:
    below, later = LeftOut(5000, Unexplained.BELOW), [LeftOut(pid, Unexplained.LATER) for pid in range(5000, 7000)]
    named = fewest([*later, below])
    assert named[0] == below
    assert [one.producer_id for one in named] == list(range(5000, 5001 + MOST_NAMED))
