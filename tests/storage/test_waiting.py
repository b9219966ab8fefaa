"""A pause ends early when the process is to end, and only then."""

from __future__ import annotations

import os
from contextvars import copy_context

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
