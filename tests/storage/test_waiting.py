"""A pause ends early when the process is to end, and only then."""

from __future__ import annotations

import os

from resnap.storage.threads import end_pauses, pause


def test_a_forked_process_is_asked_to_end_and_its_parent_is_not() -> None:
    if not (child := os.fork()):
        was_waiting = pause(0)
        end_pauses()
        os._exit(0 if was_waiting and not pause(60) else 1)
    assert os.waitpid(child, 0) == (child, 0)
    assert pause(0)
