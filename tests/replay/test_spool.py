from __future__ import annotations

import random

import pytest

from resnap.replay.spark.scan_tasks import Spool


@pytest.mark.parametrize("in_memory_bytes", [1, 1 << 20])
def test_what_comes_in_any_order_is_given_back_in_that_of_its_places(in_memory_bytes: int) -> None:
    expected = {(number // 10, number % 10): bytes([number]) * number for number in range(100)}
    shuffled = [*expected.items()]
    random.Random(1).shuffle(shuffled)
    with Spool(in_memory_bytes=in_memory_bytes) as spool:
        for place, body in shuffled:
            spool.add(place, body)
        stored = [*spool.ordered()]
        assert [one.place for one in stored] == [*expected]
        # In another order than they lie, and more than once.
        assert [one.read() for one in reversed(stored)] == [*reversed(expected.values())]
        assert [one.read() for one in stored] == [*expected.values()]
