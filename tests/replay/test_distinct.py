from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.spark.scan_tasks import SAMPLE, estimate_ids, join, range_starts, sketch
from tests.cases import each

ids = st.lists(st.integers(0, 5_000), max_size=3_000).map(lambda drawn: np.array(drawn, dtype=np.int64))


@given(pieces=st.lists(ids, min_size=1, max_size=4))
def test_the_sketch_of_a_union_is_that_of_the_sketches(pieces: list[np.ndarray]) -> None:
    together = sketch(np.concatenate(pieces))
    assert reduce(join, [sketch(piece) for piece in pieces]).tolist() == together.tolist()


@given(producer_ids=ids)
def test_few_ids_are_counted_exactly(producer_ids: np.ndarray) -> None:
    distinct = len(np.unique(producer_ids))
    if distinct < SAMPLE:
        assert estimate_ids(sketch(producer_ids)) == distinct


@each("first", [0, 1_000, 1 << 40])
@each(("count", "step"), [(5_000, 1), (400_000, 1), (100_000, 1_000)])
def test_many_ids_are_counted_to_some_percent_however_they_lie(first: int, count: int, step: int) -> None:
    producer_ids = first + step * np.arange(count, dtype=np.int64)
    assert estimate_ids(sketch(producer_ids)) == pytest.approx(count, rel=0.12)


@pytest.mark.parametrize("ranges", [2, 8, 20])
def test_ranges_hold_about_as_many_ids_each(ranges: int) -> None:
    random = np.random.default_rng(1)
    producer_ids = np.unique(random.zipf(1.2, 400_000).clip(max=1 << 50))
    starts = range_starts(sketch(producer_ids), ranges)
    held = np.bincount(np.searchsorted(starts, producer_ids, side="right"), minlength=ranges)
    assert len(starts) == ranges - 1
    assert held.sum() == len(producer_ids)
    assert held.max() < 1.6 * len(producer_ids) / ranges


def test_there_are_no_more_ranges_than_ids() -> None:
    assert range_starts(sketch(np.array([7], dtype=np.int64)), 5) == ()
    assert range_starts(sketch(np.array([7, 9], dtype=np.int64)), 5) == (9,)
