from __future__ import annotations

import pytest

from resnap.replay.evidence import Evidence, ShownTransaction
from resnap.replay.plan import Coverage, PartitionPlan, earliest_read, plan_partition, reach_back
from resnap.replay.producer_state import Expiry
from resnap.replay.window import AsOf, ReplayRules, SegmentSpan
from resnap.storage.log.indexes import AbortedTxn
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import ProducerEntry

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
PAYMENTS = TopicPartition("payments", 0)
EXPIRY = Expiry(5 * HOUR_MS, 600_000)
HOURS = 24


def hour(number: float) -> int:
    return START_MS + int(number * HOUR_MS)


def segments(*, largest: dict[int, int | None] | None = None) -> list[SegmentSpan]:
    """Give 24 segments of 100 offsets each, one for every hour; ``largest`` overrides timestamps by index."""
    return [
        SegmentSpan(
            locator=f"{100 * i:020d}.log",
            base_offset=100 * i,
            next_base_offset=100 * (i + 1) if i + 1 < HOURS else None,
            size_bytes=1_000,
            mtime_ms=hour(i + 1),
            largest_timestamp_ms=(largest or {}).get(i, hour(i + 1)) if i + 1 < HOURS else None,
        )
        for i in range(HOURS)
    ]


def plan(
    *wanted: int, evidence: Evidence | None = None, spans: list[SegmentSpan] | None = None, **rules: object
) -> PartitionPlan:
    chosen = {"as_of": AsOf(now_ms=hour(24)), "expiry": EXPIRY, **rules}
    return plan_partition(
        PAYMENTS, spans or segments(), wanted or range(100, 2_400, 100), ReplayRules(**chosen), evidence=evidence
    )


def coverage(made: PartitionPlan) -> dict[int, Coverage]:
    return {boundary.offset: boundary.coverage for boundary in made.boundaries}


def open_since(first_offset: int, *, seen_at: int, last_offset: int, producer_id: int = 7) -> ShownTransaction:
    entry = ProducerEntry(producer_id, 0, 3, last_offset, 0, hour(0), 2, first_offset)
    return ShownTransaction(seen_at=seen_at, entry=entry)


def test_the_window_is_the_suffix_that_can_hold_a_living_producer_and_the_reach_of_a_transaction() -> None:
    made = plan()
    (run,) = made.runs
    # 24 - 5 hours, less 20 minutes: the segment that ends at hour 19 is the first with anything later.
    assert run.start == 18
    assert run.end == 23
    assert not run.last_chance
    assert run.seen_since_ms == hour(18)


def test_boundaries_that_are_older_than_the_expiration_need_no_reading() -> None:
    made = plan()
    assert [b.offset for b in made.idle] == [100 * n for n in range(1, 19)]
    assert {b.coverage for b in made.idle} == {Coverage.BEYOND_WINDOW}
    assert [offset for offset, cover in coverage(made).items() if cover is Coverage.WINDOW] == [2000, 2100, 2200, 2300]


def test_every_wanted_boundary_is_made_exactly_once() -> None:
    for rules in ({}, {"full": True}, {"as_of": AsOf(now_ms=hour(24), roll=True)}):
        offsets = [boundary.offset for boundary in plan(**rules).boundaries]
        assert offsets == list(range(100, 2_400, 100))


def test_a_later_segment_is_read_even_if_its_timestamps_are_older() -> None:
    made = plan(spans=segments(largest={20: hour(1), 21: hour(1)}))
    (run,) = made.runs
    assert (run.start, run.end) == (18, 23)


def test_one_timestamp_ahead_only_makes_the_window_longer() -> None:
    made = plan(spans=segments(largest={3: hour(900)}))
    (run,) = made.runs
    assert run.start == 3
    assert coverage(made)[400] is Coverage.WINDOW


def test_a_segment_of_unknown_age_counts_as_recent() -> None:
    assert plan(spans=segments(largest={3: None})).runs[0].start == 3


def test_a_full_replay_starts_at_the_log_start_and_has_no_second_chance() -> None:
    for rules in ({"full": True}, {"full": True, "max_reach_back_ms": 0}):
        (run,) = plan(**rules).runs
        assert (run.start, run.seen_since_ms, run.last_chance) == (0, None, True)
        assert set(coverage(plan(**rules)).values()) == {Coverage.WINDOW}


def test_as_of_roll_every_boundary_has_a_window_of_its_own() -> None:
    made = plan(1_000, as_of=AsOf(now_ms=hour(24), roll=True))
    (run,) = made.runs
    # Rolled at hour 10; less expiration, check interval and the reach of a transaction: half past 4.
    assert run.start == 4
    # The segment above the boundary is read for its clock.
    assert run.end == 11


def test_a_limit_to_reaching_back_leaves_the_window_itself_alone() -> None:
    for roll in (False, True):
        as_of = AsOf(now_ms=hour(24), roll=roll)
        limited, free = plan(as_of=as_of, max_reach_back_ms=0), plan(as_of=as_of)
        assert limited.runs[-1].start == free.runs[-1].start
        assert limited.idle == free.idle
        assert limited.runs[-1].last_chance


def test_reaching_back_covers_the_silence_before_the_first_appearance() -> None:
    further = reach_back(plan(), hour(18.5))
    (run,) = further.runs
    # 5 hours and 20 minutes before half past 18.
    assert run.start == 13
    assert run.seen_since_ms == hour(13)
    assert not run.last_chance
    assert further.boundaries == plan().boundaries


def test_reaching_back_to_the_log_start_is_the_last_chance() -> None:
    (run,) = reach_back(plan(), hour(3)).runs
    assert (run.start, run.seen_since_ms, run.last_chance) == (0, None, True)


def test_a_limit_ends_the_reach_and_never_claims_what_it_has_not_read() -> None:
    made = plan(max_reach_back_ms=2 * HOUR_MS)
    (run,) = reach_back(made, hour(18.5)).runs
    assert run.start == 16
    assert run.last_chance
    assert run.seen_since_ms == hour(16)


@pytest.mark.parametrize("roll", [False, True])
def test_the_earliest_that_may_be_read_is_where_a_limited_reach_ends(*, roll: bool) -> None:
    rules = {"as_of": AsOf(now_ms=hour(24), roll=roll), "max_reach_back_ms": 2 * HOUR_MS}
    for offset in (2_000, 2_100, 2_300):
        (run,) = reach_back(plan(offset, **rules), hour(0)).runs
        reached = earliest_read(segments(), offset, ReplayRules(expiry=EXPIRY, **rules))  # type: ignore[arg-type]
        assert 100 * run.start == reached > 0
        # A log that rolled elsewhere has no boundary there, but one above.
        between = earliest_read(segments(), offset - 50, ReplayRules(expiry=EXPIRY, **rules))  # type: ignore[arg-type]
        assert between == reached
    assert earliest_read(segments(), 2_300, ReplayRules(expiry=EXPIRY, full=True, **rules)) == 0  # type: ignore[arg-type]


def test_a_last_chance_has_nothing_further_to_reach() -> None:
    with pytest.raises(AssertionError):
        reach_back(plan(full=True), hour(1))


def test_the_window_starts_where_a_transaction_begins_that_was_aborted_above_its_first_boundary() -> None:
    aborted = Evidence(aborted=(AbortedTxn(7, 450, 2_050, 2_050),))
    (run,) = plan(2_000, 2_100, evidence=aborted).runs
    assert run.start == 4
    assert plan(2_000, 2_100, evidence=aborted, max_reach_back_ms=3 * HOUR_MS).runs[-1].start == 15


def test_a_transaction_whose_entry_is_known_exactly_needs_no_reading() -> None:
    hanging = Evidence(open=(open_since(450, seen_at=2_300, last_offset=460),))
    made = plan(evidence=hanging)
    assert made.runs[-1].start == 18
    by_offset = {boundary.offset: boundary.evidence for boundary in made.boundaries}
    assert by_offset[400].spanning == {}
    assert by_offset[500].at_boundary.keys() == {7}
    assert by_offset[2_300].at_boundary.keys() == {7}


def test_an_entry_stays_valid_only_where_no_batch_of_it_came_later() -> None:
    hanging = Evidence(open=(open_since(450, seen_at=900, last_offset=700),))
    by_offset = {boundary.offset: boundary.evidence for boundary in plan(evidence=hanging).boundaries}
    assert by_offset[700].spanning == {7: 450}
    assert by_offset[700].at_boundary == {}
    assert by_offset[800].at_boundary.keys() == {7}
    assert by_offset[1_000].spanning == {}


def test_an_older_boundary_within_an_aborted_transaction_is_read_from_where_that_began() -> None:
    aborted = Evidence(aborted=(AbortedTxn(7, 450, 750, 750), AbortedTxn(8, 1_010, 1_120, 1_120)))
    made = plan(evidence=aborted)
    assert [(run.start, run.end) for run in made.runs] == [(4, 7), (10, 11), (18, 23)]
    assert [[b.offset for b in run.boundaries] for run in made.runs[:2]] == [[500, 600, 700], [1_100]]
    assert all(run.last_chance for run in made.runs[:2])


def test_stretches_that_overlap_become_one() -> None:
    aborted = Evidence(aborted=(AbortedTxn(7, 450, 750, 750), AbortedTxn(8, 610, 1_120, 1_120)))
    assert [(run.start, run.end) for run in plan(evidence=aborted).runs] == [(4, 11), (18, 23)]


def test_a_stretch_that_runs_into_the_window_becomes_part_of_it() -> None:
    aborted = Evidence(aborted=(AbortedTxn(7, 1_650, 1_910, 1_910),))
    (run,) = plan(evidence=aborted).runs
    assert (run.start, run.end) == (16, 23)
    assert run.seen_since_ms == hour(16)
    assert not run.last_chance
    longer = reach_back(plan(evidence=aborted), hour(18.5))
    assert [(run.start, run.end) for run in longer.runs] == [(13, 23)]


def test_reaching_back_swallows_a_stretch_that_it_comes_to() -> None:
    aborted = Evidence(aborted=(AbortedTxn(7, 1_250, 1_390, 1_390),))
    made = plan(evidence=aborted)
    assert [(run.start, run.end) for run in made.runs] == [(12, 13), (18, 23)]
    longer = reach_back(made, hour(18))
    assert [(run.start, run.end) for run in longer.runs] == [(12, 23)]
    assert longer.runs[-1].seen_since_ms == hour(12)
    assert longer.boundaries == made.boundaries


def test_reading_to_the_log_end_begins_where_a_transaction_open_at_the_high_watermark_can_have_begun() -> None:
    rules = ReplayRules(as_of=AsOf(now_ms=hour(24)), expiry=EXPIRY)
    for high_watermark, start in ((None, 18), (2_399, 18), (1_750, 16), (1_700, 16), (50, 0)):
        made = plan_partition(PAYMENTS, segments(), [2_300], rules, high_watermark=high_watermark, to_end=True)
        assert (made.runs[-1].start, made.runs[-1].end) == (start, 24), high_watermark


def test_a_partition_without_wanted_boundaries_is_read_only_for_its_last_stable_offset() -> None:
    rules = ReplayRules(as_of=AsOf(now_ms=hour(24)), expiry=EXPIRY)
    assert plan_partition(PAYMENTS, segments(), [], rules).runs == ()
    assert plan_partition(PAYMENTS, segments(), [], rules, to_end=True).runs[0].end == 24
    assert plan_partition(PAYMENTS, [], [], rules, to_end=True).runs == ()


def test_a_plan_says_how_many_bytes_its_segments_have() -> None:
    assert plan().bytes_in_segments == 5_000
    assert plan(full=True).bytes_in_segments == 23_000
