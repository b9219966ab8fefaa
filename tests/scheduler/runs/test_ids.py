"""Ids sort by the time they were made, whatever clocks and chance do."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from resnap.scheduler.runs.run import Ids

TIMES = st.lists(st.integers(0, (1 << 50) - 2), min_size=2, max_size=20)


@given(times=TIMES, chance=st.integers(0, (1 << 50) - 1))
def test_they_ascend_also_where_the_clock_goes_back(times: list[int], chance: int) -> None:
    clock = iter(times)
    ids = Ids(lambda: next(clock), lambda _: chance)
    made = [ids.make() for _ in times]
    assert made == sorted(set(made))
    assert all(re.fullmatch(r"[0-9a-hjkmnp-tv-z]{20}", one) for one in made)


@given(times=TIMES, chance=st.integers(0, (1 << 50) - 1))
def test_they_ascend_also_where_the_clock_was_set_back_between_two_processes(times: list[int], chance: int) -> None:
    made = [Ids(lambda: 0, lambda _: chance).make()]
    for now_ms in times:
        made.append(Ids(lambda now_ms=now_ms: now_ms, lambda _: chance, newest=made[-1]).make())  # type: ignore[misc]
    assert made == sorted(set(made))


def test_their_beginning_is_the_time() -> None:
    early, late = Ids(lambda: 1, lambda _: (1 << 50) - 1), Ids(lambda: 2, lambda _: 0)
    assert early.make() < late.make()
