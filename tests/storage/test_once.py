from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from resnap.storage.threads import made_once


def test_threads_that_ask_at_once_get_one_value_for_the_same_arguments() -> None:
    @made_once(maxsize=4)
    def make(_: int) -> object:
        time.sleep(0.01)
        return object()

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(make, [1, 2] * 8))
    assert len(set(made)) == 2
    assert make(1) is made[0]


def test_what_could_not_be_made_is_made_when_it_is_asked_for_again() -> None:
    outcomes = [ZeroDivisionError(), None]

    @made_once(maxsize=4)
    def make() -> int:
        if (error := outcomes.pop(0)) is not None:
            raise error
        return 3

    results = []
    for _ in range(3):
        try:
            results.append(make())
        except ZeroDivisionError:
            results.append(0)
    assert results == [0, 3, 3]
