"""Replicas that cut one log at other offsets ship into one store, and every choice is held against trying them all."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resnap.storage.log.names import OffsetRange
from resnap.tiering.shipping.placement import Placement, PlacementVerdict, place
from tests.cases import each
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LENGTH = 14
Store = frozenset[OffsetRange]


class Turn(NamedTuple):
    """A replica that ships what it has: its segments, and their outcome."""

    boundaries: list[int]
    gone: frozenset[int]
    """Boundaries of which the segment above is no candidate: damaged, say."""
    unfit: frozenset[int]
    log_start: int
    failing: frozenset[int]
    """Candidates that turn out unfit while they are shipped."""
    killed_after: int
    """Steps."""

    @property
    def candidates(self) -> list[OffsetRange]:
        spans = (OffsetRange(*both) for both in pairwise(self.boundaries))
        return [span for span in spans if span.start not in self.gone and span.end > self.log_start]

    @property
    def wanted(self) -> set[int]:
        return set(range(self.log_start, LENGTH))


SMALL = st.frozensets(st.integers(0, 5), max_size=2)
TURNS = st.builds(
    Turn,
    st.lists(st.integers(0, LENGTH), unique=True, min_size=2, max_size=7).map(sorted),
    st.one_of(st.just(frozenset()), st.frozensets(st.integers(0, LENGTH), max_size=3)),
    st.one_of(st.just(frozenset()), SMALL),
    st.one_of(st.just(0), st.integers(0, LENGTH)),
    st.one_of(st.just(frozenset()), SMALL),
    st.one_of(st.just(99), st.integers(0, 6)),
)


def offsets(spans: Iterable[OffsetRange]) -> set[int]:
    return {offset for span in spans for offset in range(*span)}


def beginnings(spans: Iterable[OffsetRange]) -> set[int]:
    """Return where stretches begin."""
    spans = list(spans)
    return {one.start for one in spans if not any(other.start < one.start <= other.end for other in spans)}


def reached(spans: Iterable[OffsetRange]) -> set[int]:
    """Return the boundaries to which segments lead from the beginning of their stretch."""
    spans = sorted(spans)
    found = beginnings(spans)
    for one in spans:
        if one.start in found:
            found.add(one.end)
    return found


def is_sound(spans: Iterable[OffsetRange]) -> bool:
    """Whether all segments can be passed on the way from the beginning of their stretch."""
    spans = list(spans)
    return {one.start for one in spans} <= reached(spans)


def readable(spans: Iterable[OffsetRange]) -> set[int]:
    """Return the offsets through which a reader finds a way down, from where each stretch ends to where it begins."""
    spans = sorted(spans, reverse=True)
    ends = {one.end for one in spans if not any(other.start <= one.end < other.end for other in spans)}
    passed, found = set(ends), set()
    for one in spans:
        if one.end in passed:
            passed.add(one.start)
            found |= set(range(*one))
    return found


def is_allowed(store: Store, turn: Turn, index: int) -> bool:
    """Return whether adding one candidate keeps all that was promised, by comparing everything."""
    span = turn.candidates[index]
    both = store | {span}
    if index in turn.unfit or not is_sound(both):
        return False
    if span.start not in beginnings(both) or span.start in beginnings(store):
        return True
    is_at_the_top = not any(one.start >= span.start for one in store)
    leads_on = len(beginnings(both)) == len(beginnings(store))
    return (is_at_the_top or leads_on) and not _is_parted(store, turn, index)


def _is_parted(store: Store, turn: Turn, index: int) -> bool:
    """Whether the gap below ``index`` is not in the log, and will not be filled by what is in it."""
    for below in range(index - 1, -1, -1):
        span = turn.candidates[below]
        if below in turn.unfit:
            return True
        if offsets([span]) & turn.wanted <= offsets(store):
            return False
        if not is_sound(store | {span}):
            return True
    return False


def all_ways(store: Store, turn: Turn) -> Iterator[Store]:
    """Yield every store that can be come to, one allowed candidate after the other."""
    seen, left = {store}, [store]
    while left:
        now = left.pop()
        yield now
        for index, span in enumerate(turn.candidates):
            following = now | {span}
            if following not in seen and is_allowed(now, turn, index):
                seen.add(following)
                left.append(following)


def shipped(store: Store, turn: Turn, placement: Placement) -> Store:
    """Return what the store holds after the steps of ``placement``, each of which is checked."""
    done: set[int] = set()
    for number, (index, depends_on) in enumerate(placement.steps):
        if number == turn.killed_after:
            break
        if index in turn.failing or not (depends_on is None or depends_on in done):
            continue
        done.add(index)
        now = store | {turn.candidates[index]}
        assert is_sound(now)
        assert readable(now) == offsets(now)
        if len(beginnings(now)) > len(beginnings(store)):
            gap = set(range(max((one.end for one in store), default=0), turn.candidates[index].start))
            sound = [one for number, one in enumerate(turn.candidates) if number not in turn.failing]
            assert turn.candidates[index].start > max((one.end for one in store), default=-1)
            assert not gap & offsets(sound) & turn.wanted
        store = now
    return store


def check_best(store: Store, turn: Turn, placement: Placement) -> None:
    """Make sure that no other way of shipping has more offsets in the end, or as many in fewer segments."""
    now = store | {turn.candidates[step.candidate] for step in placement.steps}
    ways = list(all_ways(store, turn))
    assert now in ways
    most = max(len(offsets(way) & turn.wanted) for way in ways)
    assert len(offsets(now) & turn.wanted) == most
    assert len(now) == min(len(way) for way in ways if len(offsets(way) & turn.wanted) == most)


def check(turns: Sequence[Turn]) -> None:
    store: Store = frozenset()
    for turn in turns:
        candidates = turn.candidates
        if not candidates:
            continue
        unfit = turn.unfit & frozenset(range(len(candidates)))
        placement = place(store, candidates, unfit, log_start=turn.log_start)
        verdicts = placement.verdicts
        assert len(verdicts) == len(candidates)
        assert {step.candidate for step in placement.steps} == {
            index for index, verdict in enumerate(verdicts) if verdict is PlacementVerdict.PLACED
        }
        for index, span in enumerate(candidates):
            is_held = offsets([span]) & turn.wanted <= offsets(store)
            assert (verdicts[index] is PlacementVerdict.HELD) <= is_held
            assert (verdicts[index] is PlacementVerdict.UNFIT) == (index in unfit)
        check_best(store, turn._replace(unfit=unfit), placement)
        store = shipped(store, turn, placement)


def spans(*ranges: tuple[int, int]) -> list[OffsetRange]:
    return [OffsetRange(*one) for one in ranges]


@each(
    ("stored", "candidates", "placed"),
    [
        pytest.param([], [(0, 4), (4, 9)], [(0, 4), (4, 9)], id="an empty store"),
        pytest.param([(0, 5), (5, 9)], [(5, 7), (7, 12)], [(5, 7), (7, 12)], id="from the last common boundary"),
        pytest.param([(0, 9)], [(0, 4), (4, 8)], [], id="held in another piece"),
        pytest.param([(0, 9)], [(3, 9), (9, 12)], [(9, 12)], id="joined at the end"),
        pytest.param([(0, 9)], [(7, 12), (12, 15)], [], id="no common boundary"),
        pytest.param([(5, 9)], [(0, 3), (3, 5), (5, 9)], [(3, 5), (0, 3)], id="what lies below goes downwards"),
        pytest.param([(5, 9)], [(0, 3), (3, 7), (7, 12)], [], id="the beginning of what is stored stays in sight"),
        pytest.param([(1, 2), (0, 2)], [(1, 3)], [], id="a boundary that no reader passes"),
        pytest.param([(0, 5)], [(7, 9)], [(7, 9)], id="above a gap that the log has"),
        pytest.param([(0, 5), (9, 12)], [(5, 7), (7, 11)], [(5, 7)], id="a gap is filled as far as it goes"),
        pytest.param([(0, 5), (9, 12)], [(0, 3), (3, 7), (7, 9)], [(0, 3), (3, 7), (7, 9)], id="a gap is filled"),
    ],
)
def test_what_is_placed(
    stored: list[tuple[int, int]], candidates: list[tuple[int, int]], placed: list[tuple[int, int]]
) -> None:
    found = place(spans(*stored), spans(*candidates))
    assert [candidates[step.candidate] for step in found.steps] == placed


def test_what_depends_on_a_segment_that_fails_is_not_placed_either() -> None:
    """Else the store would lack offsets of [1, 3), which is sound, below those of [3, 4)."""
    found = place(spans((0, 2)), spans((0, 1), (1, 3), (3, 4)))
    assert [step.depends_on for step in found.steps] == [None, 0, 1]
    alone = place(spans((0, 2)), spans((2, 3), (3, 4)))
    assert [step.depends_on for step in alone.steps] == [None, None]


@examples(300)
@given(st.lists(TURNS, min_size=1, max_size=4))
def test_no_other_choice_ships_more_or_with_less_and_what_could_be_read_still_can(turns: list[Turn]) -> None:
    check(turns)


@pytest.mark.heavy
@settings(deadline=None, derandomize=False, max_examples=30_000)
@given(st.lists(TURNS, min_size=1, max_size=6))
def test_no_other_choice_ships_more_in_thousands_of_histories(turns: list[Turn]) -> None:
    check(turns)
