"""A pause ends early when the process is to end, and only then; items are taken as their results are."""

from __future__ import annotations

import os
from contextvars import copy_context
from operator import length_hint

import pytest

from resnap.storage.errors import CancelledError
from resnap.storage.threads import CHECK, Threads, each, end_pauses, pause


def test_a_forked_process_is_asked_to_end_and_its_parent_is_not() -> None:
    if not (child := os.fork()):
        was_waiting = pause(0)
        end_pauses()
        os._exit(0 if was_waiting and not pause(60) else 1)
    assert os.waitpid(child, 0) == (child, 0)
    assert pause(0)


def test_work_in_threads_ends_with_the_run_that_asked_for_it() -> None:
    def end() -> None:
        raise CancelledError("the run was asked to end")

    def wait_in_threads() -> None:
        CHECK.set(end)
        with Threads(1) as threads:
            with pytest.raises(CancelledError):
                threads.submit(pause, 60).result()
            with pytest.raises(CancelledError):
                list(each(pause, [60, 60], remote=True))

    copy_context().run(wait_in_threads)
    assert pause(0), "others go on"


def test_of_very_many_items_few_are_begun_before_results_are_taken() -> None:
    left = iter(range(40_000))
    results = each(lambda item: item * 10, left, remote=True)
    assert next(results) == 0
    assert length_hint(left) > 20_000, "each one that is begun takes memory"
    assert list(results) == [item * 10 for item in range(1, 40_000)]


def test_the_first_error_is_raised_in_its_turn_and_ends_the_work() -> None:
    done = set[int]()

    def work(item: int) -> int:
        done.add(item)
        if item in {3_000, 3_001}:
            raise ValueError(item)
        return item

    found: list[int] = []
    with pytest.raises(ValueError, match="3000"):
        found.extend(each(work, range(40_000), remote=True))
    assert done.isdisjoint(range(20_000, 40_000))
    assert done.issuperset(range(3_000))
