from __future__ import annotations

from functools import reduce
from itertools import combinations_with_replacement, pairwise
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from resnap.replay.kernel.summary import NONE
from resnap.replay.producer_state import DataBatch, Marker, ProducerStates, ServerTime
from tests.cases import each
from tests.examples import examples
from tests.replay.specification import NOTHING, entries_in, illegal_in, join, piece_of
from tests.replay.strategies import EXPIRY, FAR_FUTURE, event_lists

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resnap.replay.kernel.summary import Array
    from resnap.replay.producer_state import Event
    from resnap.replay.scan.splits import Piece

SILENCE_MS = EXPIRY.certain_silence_ms
thorough = examples(300)


def cuts(values: Sequence[Event], points: Sequence[int]) -> list[Sequence[Event]]:
    """Divide ``values`` at ``points``; parts may be empty."""
    edges = [0, *sorted(min(point, len(values)) for point in points), len(values)]
    return [values[start:end] for start, end in pairwise(edges)]


def joined(pieces: Sequence[Piece], shape: st.DataObject) -> Piece:
    """Join ``pieces`` two neighbours at a time, in an order that is drawn."""
    waiting = list(pieces)
    while len(waiting) > 1:
        at = shape.draw(st.integers(0, len(waiting) - 2))
        waiting[at : at + 2] = [join(waiting[at], waiting[at + 1], SILENCE_MS)]
    return waiting[0] if waiting else NOTHING


def legal_rows(piece: Piece) -> Array:
    return piece.rows[piece.rows["illegal_offset"] == NONE]


@thorough
@given(event_lists(), st.lists(st.integers(0, 24), max_size=8), st.data())
def test_summaries_of_any_parts_in_any_order_give_the_state_of_the_whole(
    events: list[Event], points: list[int], shape: st.DataObject
) -> None:
    states = ProducerStates(EXPIRY)
    states.append(events)
    piece = joined([piece_of(part, SILENCE_MS) for part in cuts(events, points)], shape)
    assert illegal_in(piece.rows) == states.illegal
    legal = {pid: entry for pid, entry in states.entries.items() if pid not in states.illegal}
    assert entries_in(legal_rows(piece)) == legal


@thorough
@given(event_lists(max_events=16), event_lists(max_events=16), st.lists(st.integers(0, 32), max_size=6))
def test_the_state_is_right_at_every_cut_on_the_way(first: list[Event], second: list[Event], points: list[int]) -> None:
    states, piece = ProducerStates(EXPIRY), NOTHING
    for part in cuts([*first, *(_moved(event, 1_000) for event in second)], points):
        states.append(part)
        piece = join(piece, piece_of(part, SILENCE_MS), SILENCE_MS)
        assert illegal_in(piece.rows) == states.illegal
        legal = {pid: entry for pid, entry in states.entries.items() if pid not in states.illegal}
        assert entries_in(legal_rows(piece)) == legal


@thorough
@given(event_lists(), st.integers(0, 24), st.integers(0, 24))
def test_composition_is_associative_row_for_row(events: list[Event], one: int, other: int) -> None:
    a, b, c = (piece_of(part, SILENCE_MS) for part in cuts(events, [one, other]))
    left = join(join(a, b, SILENCE_MS), c, SILENCE_MS)
    right = join(a, join(b, c, SILENCE_MS), SILENCE_MS)
    assert left.clock_ms == right.clock_ms
    assert left.rows["producer_id"].tolist() == right.rows["producer_id"].tolist()
    assert left.rows["illegal_offset"].tolist() == right.rows["illegal_offset"].tolist()
    assert legal_rows(left).tolist() == legal_rows(right).tolist()


@thorough
@given(event_lists(), st.lists(st.integers(0, 24), max_size=4))
def test_the_whole_run_has_the_summary_of_its_parts_row_for_row(events: list[Event], points: list[int]) -> None:
    whole = piece_of(events, SILENCE_MS)
    parts = [piece_of(part, SILENCE_MS) for part in cuts(events, points)]
    together = reduce(lambda left, right: join(left, right, SILENCE_MS), parts, NOTHING)
    assert together.clock_ms == whole.clock_ms
    assert legal_rows(together).tolist() == legal_rows(whole).tolist()


@given(event_lists(), st.integers(0, 24))
@settings(deadline=None, derandomize=True)
def test_composing_changes_neither_side(events: list[Event], point: int) -> None:
    left, right = (piece_of(part, SILENCE_MS) for part in cuts(events, [point]))
    before = left.rows.copy(), right.rows.copy()
    join(left, right, SILENCE_MS)
    assert left.rows.tolist() == before[0].tolist()
    assert right.rows.tolist() == before[1].tolist()


def test_no_events_are_the_neutral_summary() -> None:
    piece = piece_of([_data(1, 0), _marker(2, 5)], SILENCE_MS)
    assert not len(piece_of([], SILENCE_MS).rows)
    for side in (join(NOTHING, piece, SILENCE_MS), join(piece, NOTHING, SILENCE_MS)):
        assert side.clock_ms == piece.clock_ms
        assert side.rows.tolist() == piece.rows.tolist()


LATE = 5_001
"""After the silence of a producer whose marker is of the time 10."""


@each(
    "events",
    [
        lambda: [_marker(1, 0, timestamp=10), ServerTime(5_000), _data(1, 2, timestamp=LATE)],
        lambda: [ServerTime(5_000), _marker(1, 1, timestamp=10), _data(1, 2, timestamp=LATE)],
        lambda: [_marker(1, 0, timestamp=FAR_FUTURE), _data(1, 1, timestamp=FAR_FUTURE), _marker(2, 2, timestamp=9)],
        lambda: [_data(1, 0), _data(1, 1), _data(1, 2, transactional=False), _marker(1, 3)],
        lambda: [_data(1, 0), _marker(1, 1), _data(1, 2, transactional=False)],
    ],
    ids=[
        "a clock in a part without the producer", "a clock before the marker", "a marker at the end of time",
        "data outside a transaction that is open", "data after the marker",
    ],
)  # fmt: skip
def test_rare_events_come_to_the_state_of_the_whole_wherever_the_log_is_cut(events: Callable[[], list[Event]]) -> None:
    states = ProducerStates(EXPIRY)
    states.append(events())
    legal = {pid: entry for pid, entry in states.entries.items() if pid not in states.illegal}
    for points in combinations_with_replacement(range(5), 2):
        a, b, c = (piece_of(part, SILENCE_MS) for part in cuts(events(), points))
        for piece in (join(join(a, b, SILENCE_MS), c, SILENCE_MS), join(a, join(b, c, SILENCE_MS), SILENCE_MS)):
            assert (entries_in(legal_rows(piece)), illegal_in(piece.rows)) == (legal, states.illegal)


def _data(producer_id: int, offset: int, *, timestamp: int = 0, transactional: bool = True) -> DataBatch:
    return DataBatch(
        producer_id=producer_id, producer_epoch=0, base_sequence=offset, last_sequence=offset, base_offset=offset,
        last_offset=offset, timestamp=timestamp, transactional=transactional,
    )  # fmt: skip


def _marker(producer_id: int, offset: int, *, timestamp: int = 0) -> Marker:
    return Marker(
        producer_id=producer_id, producer_epoch=0, coordinator_epoch=3, offset=offset, timestamp=timestamp, commit=True
    )


def _moved(event: Event, by: int) -> Event:
    """Return ``event`` at an offset that is higher by ``by``."""
    match event:
        case DataBatch():
            return event._replace(base_offset=event.base_offset + by, last_offset=event.last_offset + by)
        case Marker():
            return event._replace(offset=event.offset + by)
        case ServerTime():
            return event
