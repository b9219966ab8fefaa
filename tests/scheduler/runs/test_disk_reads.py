from __future__ import annotations

import threading
import time

import pytest

from resnap.scheduler.disk_reads import DiskReads
from resnap.storage.errors import CancelledError, LogDirError, UsageError


def test_what_is_read_is_given_and_what_is_raised_is_raised() -> None:
    reads = DiskReads()
    assert reads.run(lambda: 3) == 3
    for error in (UsageError("no"), TimeoutError("of what is read"), ZeroDivisionError()):
        with pytest.raises(type(error)) as caught:
            reads.run(lambda error=error: (_ for _ in ()).throw(error))
        assert caught.value is error


def test_a_caller_waits_for_a_time_and_then_no_longer_for_a_thread_either() -> None:
    reads, back = DiskReads(2, turn_s=0.5), threading.Event()
    for _ in range(2):
        with pytest.raises(LogDirError, match="no answer within"):
            reads.run(back.wait, 0.01)
    time.sleep(0.5)
    began_s = time.monotonic()
    for _ in range(20):
        with pytest.raises(LogDirError, match="2 earlier reads have not returned"):
            reads.run(lambda: 3)
    assert time.monotonic() - began_s < 5, "each of them has waited"
    back.set()
    ends_s = time.monotonic() + 60
    while True:
        try:
            assert reads.run(lambda: 3) == 3
            break
        except LogDirError:
            assert time.monotonic() < ends_s, "the threads that came back are not used again"
            time.sleep(0.01)


def test_a_thread_that_the_system_does_not_give_takes_no_turn_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = DiskReads(1)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            reads.run(lambda: 3)
    assert reads.run(lambda: 3) == 3


def test_what_has_come_back_keeps_no_turn_from_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = DiskReads(1, turn_s=0)
    release = reads._turns.release

    def late() -> None:
        time.sleep(0.02)
        release()

    monkeypatch.setattr(reads._turns, "release", late)
    assert [reads.run(lambda: 3) for _ in range(3)] == [3, 3, 3]


def test_a_turn_is_waited_for_while_others_come_and_go() -> None:
    reads, given = DiskReads(1), []
    threads = [threading.Thread(target=lambda: given.append(reads.run(lambda: time.sleep(0.01)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == 8


def test_at_the_end_all_who_wait_are_let_go_and_all_who_will() -> None:
    reads, back = DiskReads(), threading.Event()
    threading.Timer(0.05, reads.close).start()
    with pytest.raises(CancelledError):
        reads.run(back.wait)
    with pytest.raises(CancelledError):
        reads.run(back.wait)
    back.set()
