"""``resnap tier`` at several partitions at once: side by side, within one limit, and reported one after the other."""

from __future__ import annotations

import _thread
import json
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest

from resnap.storage.errors import LockedError, StoreError
from resnap.storage.layouts.flat.keys import parse_key
from resnap.storage.log.names import TopicPartition
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.shipping.shipment import PartitionShipment, Shipper
from tests.scheduler.shipped import Range, check_store, eligible, files_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

    AtLogs: TypeAlias = Callable[[Callable[[TopicPartition, Callable[[], None]], None]], None]

ROLL: Final = ("--as-of", "roll", "--engine", "local", "--output", "json")
PATIENCE_S: Final = 300


@pytest.fixture
def data(fixture_set: Callable[[str], FixtureSet]) -> Path:
    return fixture_set("kafka-2.7.2-then-3.9.1").data


@pytest.fixture
def at_logs(monkeypatch: pytest.MonkeyPatch) -> AtLogs:
    """Have each upload of a log go through a function, which is given its partition and what does it."""
    put_stream = LocalObjectStore.put_stream

    def patch(around: Callable[[TopicPartition, Callable[[], None]], None]) -> None:
        def put(store: LocalObjectStore, key: str, *given: Any, **named: Any) -> None:
            parsed = parse_key(key)
            assert parsed is not None
            if parsed.suffix == "log":
                partition = TopicPartition(parsed.topic, parsed.partition)
                around(partition, lambda: put_stream(store, key, *given, **named))
            else:
                put_stream(store, key, *given, **named)

        monkeypatch.setattr(LocalObjectStore, "put_stream", put)

    return patch


def test_partitions_go_up_side_by_side(command: Resnap, data: Path, tmp_path: Path, at_logs: AtLogs) -> None:
    begun: set[TopicPartition] = set()
    met = threading.Event()

    def around(partition: TopicPartition, put: Callable[[], None]) -> None:
        is_first = partition not in begun
        begun.add(partition)
        if len(begun) > 1:
            met.set()
        assert not is_first or met.wait(PATIENCE_S), "no other partition is on its way"
        put()

    at_logs(around)
    store = tmp_path / "store"
    ran = command("tier", data, "--to", store.as_uri(), "--parallel", 4, *ROLL)
    assert ran.code == 0
    assert check_store(files_of(store)) == eligible(data)
    names = [(one["topic"], one["partition"]) for one in ran.document["partitions"] if one["shipped"]]
    assert names == sorted(names)


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_no_more_segments_go_up_at_once_than_was_asked_for(
    command: Resnap, data: Path, tmp_path: Path, at_logs: AtLogs, parallel: int
) -> None:
    lock, going, seen, all_at_once = threading.Lock(), Counter[TopicPartition](), Counter[int](), threading.Event()

    def around(partition: TopicPartition, put: Callable[[], None]) -> None:
        with lock:
            going[partition] += 1
            seen[going.total()] += 1
            if going.total() == parallel:
                all_at_once.set()
        assert all_at_once.wait(PATIENCE_S), "fewer go up"
        threading.Event().wait(0.02)  # for one too many
        put()
        with lock:
            going[partition] -= 1

    at_logs(around)
    assert command("tier", data, "--to", (tmp_path / "store").as_uri(), "--parallel", parallel, *ROLL).code == 0
    assert max(seen) == parallel


@pytest.mark.parametrize("failing", [0, 1])
def test_where_the_store_fails_what_was_begun_is_shipped_and_reported_and_no_more_is_begun(
    command: Resnap, data: Path, tmp_path: Path, at_logs: AtLogs, failing: int
) -> None:
    wanted = eligible(data)
    first, second, *rest = sorted({TopicPartition(one.topic, one.partition) for one in wanted})
    failed, other = (first, second) if failing == 0 else (second, first)
    assert rest
    has_failed, begun = threading.Event(), set[TopicPartition]()

    def around(partition: TopicPartition, put: Callable[[], None]) -> None:
        if partition == failed:
            has_failed.set()
            raise StoreError("out of order")
        if partition not in begun:
            begun.add(partition)
            assert partition != other or has_failed.wait(PATIENCE_S)
        put()

    at_logs(around)
    store = tmp_path / "store"
    ran = command("tier", data, "--to", store.as_uri(), "--parallel", 2, *ROLL)
    assert ran.code == 3
    assert "out of order" in ran.err
    whole = {one for one in wanted if (one.topic, one.partition) == other}
    told = {(one["topic"], one["partition"]): len(one["shipped"]) for one in ran.document["partitions"]}
    assert (told[failed], told[other]) == (0, len(whole))
    assert check_store(files_of(store), strict=False) == whole


def _main_thread_waits() -> bool:
    """Whether the main thread waits for the work of others, and for nothing else."""
    stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])
    names = [frame.name for frame in stack]
    return "as_done" in names and names[names.index("as_done") + 1 :][:1] == ["wait"]


def test_what_was_shipped_is_reported_also_where_the_run_is_interrupted(
    command: Resnap, data: Path, tmp_path: Path, at_logs: AtLogs
) -> None:
    first, *others = sorted({TopicPartition(one.topic, one.partition) for one in eligible(data)})
    store = tmp_path / "store"

    is_first = threading.Semaphore(1)

    def around(partition: TopicPartition, put: Callable[[], None]) -> None:
        if partition == first and is_first.acquire(blocking=False):
            deadline = time.monotonic() + PATIENCE_S
            while len([*store.rglob("*.manifest")]) < len(of(others)):  # not their files, which come and go
                assert time.monotonic() < deadline
                time.sleep(0.1)
            idle = 0
            while idle < 10:  # runs when the main thread has nothing left to report
                time.sleep(0.05)
                idle = idle + 1 if _main_thread_waits() else 0
            _thread.interrupt_main()
            time.sleep(1)
        put()

    def of(partitions: Collection[TopicPartition]) -> set[Range]:
        return {one for one in eligible(data) if (one.topic, one.partition) in partitions}

    at_logs(around)
    ran = command("tier", data, "--to", store.as_uri(), "--parallel", 4, "--output", "ndjson", *ROLL[:-2])
    assert ran.code == 130
    told = [json.loads(line) for line in ran.out.splitlines()]
    assert sum(len(one["shipped"]) for one in told if one["type"] == "partition") >= len(of(others))


def test_what_was_shipped_of_a_partition_that_was_interrupted_is_counted(
    command: Resnap, data: Path, tmp_path: Path, at_logs: AtLogs
) -> None:
    partition = max(eligible(data)).topic, max(eligible(data)).partition
    store = tmp_path / "store"
    puts: list[int] = []

    def around(_: TopicPartition, put: Callable[[], None]) -> None:
        puts.append(1)
        if len(puts) == 3:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(1)
        put()

    at_logs(around)
    topic = ("--partition", f"{partition[0]}-{partition[1]}")
    ran = command("tier", data, "--to", store.as_uri(), "--parallel", 1, "--output", "table", *topic, *ROLL[:-2])
    stored = len(check_store(files_of(store), strict=False))
    assert (ran.code, stored >= 2) == (130, True)
    assert f"{stored} segments shipped, each verified; {stored} of them are of partitions that the run" in ran.out
    assert "Nothing was shipped" not in ran.out


def test_what_another_run_ships_meanwhile_is_not_taken_off_what_was_shipped(
    command: Resnap, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship_partition = Shipper.ship_partition

    def behind_another(self: Shipper, *given: Any) -> PartitionShipment:
        ship_partition(replace(self, progress=lambda *_: None), *given[:3])
        shipment = ship_partition(self, *given)
        shipment.failures.append(LockedError("another run is at work there"))
        return shipment

    monkeypatch.setattr(Shipper, "ship_partition", behind_another)
    ran = command("tier", data, "--to", (tmp_path / "store").as_uri(), *ROLL[:-1], "table")
    assert ran.code == LockedError.exit_code
    assert f"Nothing was shipped: {len(eligible(data))} segments are there already." in ran.out
    assert check_store(files_of(tmp_path / "store")) == eligible(data)
