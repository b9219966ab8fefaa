"""Threads, restarts and a cleaner that fails (statements 39, 40 and 43 of ``docs/quota.md``)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from resnap.tiering.quota.active_producers import Cleaner
from resnap.tiering.quota.quota_manager import SEEN
from tests.tiering.quota.quotas import ALICE, BOB, HOUR_MS, Watch, charged, manager, sequential, tokens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

THREADS = 8
PATIENCE_S = 300


def at_once(work: Callable[[int], None]) -> None:
    """Run ``work(number)`` in threads that begin together."""
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> None:
        barrier.wait(PATIENCE_S)
        work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


def test_s39_of_eight_threads_exactly_the_burst_and_one_are_admitted_and_no_bit_is_lost() -> None:
    quota, admitted = manager(exact=True), list[int]()
    bloom = manager(rate=1e6)

    def work(number: int) -> None:
        for one in range(number, 2_000, THREADS):
            bloom.admit(ALICE, one)
            if quota.admit(ALICE, one).admitted:
                admitted.append(one)

    at_once(work)
    assert len(admitted) == charged(quota) == 551
    assert tokens(quota) == -1
    assert all(bloom.active.has(ALICE, one, bloom.now_ms()) for one in range(2_000))


def test_s39_one_principals_lock_does_not_hold_up_another() -> None:
    quota = manager()
    quota.admit(ALICE, 1)
    held = quota.active.locked(ALICE)
    try:
        other = threading.Thread(target=quota.admit, args=(BOB, 1))
        other.start()
        other.join(PATIENCE_S)
        assert not other.is_alive()
        assert charged(quota, BOB) == 1
    finally:
        held.lock.release()


def test_s39_nothing_that_is_admitted_during_a_clean_up_is_lost() -> None:
    watch = Watch()
    quota = manager(rate=1e9, watch=watch, exact=True)
    done = threading.Event()

    def clean() -> None:
        while not done.is_set():
            quota.clean_up()

    cleaning = threading.Thread(target=clean)
    cleaning.start()
    try:
        for one in range(2_000):
            watch.at_ms += 20 * HOUR_MS
            assert quota.admit(ALICE, one).charged == 1
            assert quota.admit(ALICE, one) is SEEN
    finally:
        done.set()
        cleaning.join(PATIENCE_S)


def test_s40_after_a_restart_ids_in_use_are_charged_once_unless_there_is_a_warm_up() -> None:
    watch = Watch()
    for warm_up_ms, wanted in ((0, 400), (60_000, 0)):
        quota = manager(watch=watch, warm_up_ms=warm_up_ms)
        for one in sequential(400).tolist():
            quota.admit(ALICE, one)
        assert charged(quota) == wanted
        assert all(quota.admit(ALICE, one) is SEEN for one in sequential(400).tolist())
    watch.at_ms += 60_000
    assert quota.admit(ALICE, 1).charged == 1


def test_s43_a_cleaner_that_fails_is_tried_again_and_ends_when_it_is_closed() -> None:
    quota, calls, again = manager(), list[int](), threading.Event()

    def fail() -> None:
        calls.append(1)
        if len(calls) > 2:
            again.set()
        raise RuntimeError("broken")

    with Cleaner(fail, interval_ms=1) as cleaner:
        assert again.wait(PATIENCE_S)
        assert quota.admit(ALICE, 1).charged == 1
    assert not cleaner.is_running
    assert quota.admit(ALICE, 2).charged == 1
    cleaner.close()


def test_the_first_request_compiles_nothing_while_it_holds_a_lock(tmp_path: Path) -> None:
    program = """
import sys
from resnap.tiering.quota.client_quotas import UserRates
from resnap.tiering.quota.quota_manager import ProducerIdQuotaManager
assert not {"numba", "pyspark", "boto3"} & sys.modules.keys(), "importing the quota loads what it may never need"
manager = ProducerIdQuotaManager(lambda: 0, UserRates(default=50.0))
from numba.core.event import install_recorder
with install_recorder("numba:compile") as recorder:
    assert manager.admit("alice", 1).charged == 1
    assert manager.admit_request("alice", [1, 2, 3]).charged == 2
print(len(recorder.buffer))
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert (ran.stdout, ran.stderr) == ("0\n", "")
