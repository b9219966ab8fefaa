"""Checks of producer ids a second, one by one and in batches, beside an exact set and a well-known Bloom filter.

Known ids and new ones are checked against two layers that share them, as the default profile has it. Times are of the
processor, for one core: what else runs on the machine does not count.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from resnap.tiering.quota.active_producers import Remembering
from resnap.tiering.quota.client_quotas import UserRates
from resnap.tiering.quota.layers import UNSEEN, BloomStore, ExactStore, Ids, Layers, life_cycle
from resnap.tiering.quota.quota_manager import ProducerIdQuotaManager
from tests.benchmarks.measuring import Contender, Outcome, contest
from tests.benchmarks.tables import Table, amount, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.benchmarks.options import Options

NAME = "quota"
RATE = 0.01
SIZES = (1_000, 1_000_000, 10_000_000)
PRINCIPALS = 1_000
ONE_BY_ONE = 200_000
BATCHED = 400_000
BATCH = 10_000
NOW_MS = 10**12


def run(options: Options) -> Iterator[Table]:
    """Measure memory and checks at each size, then decisions over many principals."""
    yield _checks(options)
    yield _decisions(options)


def _checks(options: Options) -> Table:
    table = Table(
        "Checks of ids, one core; two layers, 1 % false positives together",
        ["ids of a principal", "who", "checked", "ids", "time", "checks a second", "memory", "false positives"],
        remarks=[
            "Memory of sets is that of table and integers, of filters that of bits.",
            "Goals: 2 microseconds one by one, a million ids in less than 3 MB.",
        ],
    )
    for size in SIZES[:1] if options.quick else SIZES:
        ids = np.arange(size, dtype=np.int64) * 7 + 1000
        ours = _layers(ids, BloomStore(seed=936))
        _measure(
            table, options, size, "Resnap, batches of 10,000", partial(_batches, ours), ids, ours.size_bytes, BATCHED
        )
        _measure(
            table, options, size, "Resnap", partial(_one_by_one, partial(_has, ours)), ids, ours.size_bytes, ONE_BY_ONE
        )
        exact = ExactStore()
        if size <= SIZES[1]:
            layers = _layers(ids, exact)
            known = set(ids.tolist())
            _measure(table, options, size, "a set of Python", partial(_one_by_one, known.__contains__), ids,
                     layers.size_bytes, ONE_BY_ONE)  # fmt: skip
    return table


def _layers(ids: Ids, store: BloomStore | ExactStore) -> Layers:
    cycle = life_cycle("P-C", capacity=len(ids))
    layers = Layers(cycle, store, false_positive_rate=RATE)
    half = len(ids) // 2
    layers.add_many(ids[:half], NOW_MS - cycle.span_ms)
    layers.add_many(ids[half:], NOW_MS)
    return layers


def _has(layers: Layers, producer_id: int) -> bool:
    return layers.find(producer_id, NOW_MS) != UNSEEN


def _measure(  # noqa: PLR0917
    table: Table,
    options: Options,
    size: int,
    who: str,
    check: Callable[[Ids], float],
    ids: Ids,
    memory: int,
    count: int,
) -> None:
    dice = np.random.default_rng(1)
    count = count // 100 if options.quick else count
    for kind, asked in (("known", dice.choice(ids, count)), ("new", dice.integers(1 << 61, 1 << 62, count))):
        contender = Contender(name=f"{size} {who}, {kind}", run=partial(_timed, check, asked), rehearsed=True)
        (result,) = contest([contender], rounds=options.rounds, on_disk=options.store.root).values()
        wrong = result.outcome.says if kind == "new" else ""
        speed = f"{count / result.seconds / 1e6:.3g} M"
        table.add(f"{size:,}", who, kind, f"{count:,}", seconds(result.seconds), speed, amount(memory), wrong)


def _timed(check: Callable[[Ids], float], asked: Ids) -> Outcome:
    started = time.process_time()
    found = check(asked)
    return Outcome(seconds=time.process_time() - started, says=f"{found:.3%}")


def _batches(layers: Layers, asked: Ids) -> float:
    found = 0
    for start in range(0, len(asked), BATCH):
        found += int(np.count_nonzero(layers.find_many(asked[start : start + BATCH], NOW_MS) != UNSEEN))
    return found / len(asked)


def _one_by_one(has: Callable[[int], bool], asked: Ids) -> float:
    return sum(map(has, asked.tolist())) / len(asked)


def _decisions(options: Options) -> Table:
    """Measure whole decisions: lock, clock, layers, bucket, metrics."""
    principals = PRINCIPALS // 100 if options.quick else PRINCIPALS
    table = Table(
        f"Decisions, one core; {principals:,} principals, their ids in turn",
        ["what", "ids", "time", "a decision", "memory"],
        remarks=[
            "Filters are made for the quota: here a million an hour for each, so 1.4 MiB; refused at a quota of 0.001."
        ],
    )
    names = [f"User:{number}" for number in range(principals)]
    for what, ask in (("new ids, admitted", _admit_new), ("known ids", _admit_known), ("new ids, refused", _refuse),
                      ("new ids, requests of 1,000", _admit_requests)):  # fmt: skip
        memory: list[int] = []
        contender = Contender(name=what, run=partial(_decide, ask, names, memory), rehearsed=True)
        (result,) = contest([contender], rounds=options.rounds, on_disk=options.store.root).values()
        count = int(result.outcome.says)
        table.add(
            what, f"{count:,}", seconds(result.seconds), f"{result.seconds / count * 1e6:.3g} µs", amount(memory[-1])
        )
    return table


def _decide(
    ask: Callable[[ProducerIdQuotaManager, list[str]], tuple[int, float]], names: list[str], memory: list[int]
) -> Outcome:
    manager = ProducerIdQuotaManager(
        lambda: NOW_MS, UserRates(default=1e-3 if ask is _refuse else 1e6), remembering=Remembering(seed=936)
    )
    count, took = ask(manager, names)
    memory.append(manager.active.population().size_bytes)
    return Outcome(seconds=took, says=str(count))


def _each(manager: ProducerIdQuotaManager, names: list[str], ids: range) -> tuple[int, float]:
    started = time.process_time()
    for producer_id in ids:
        for name in names:
            manager.admit(name, producer_id)
    return len(ids) * len(names), time.process_time() - started


def _admit_new(manager: ProducerIdQuotaManager, names: list[str]) -> tuple[int, float]:
    for name in names:
        manager.admit(name, 0)
    return _each(manager, names, range(1, 101))


def _admit_known(manager: ProducerIdQuotaManager, names: list[str]) -> tuple[int, float]:
    for name in names:
        manager.admit_request(name, np.arange(100))
    return _each(manager, names, range(100))


def _refuse(manager: ProducerIdQuotaManager, names: list[str]) -> tuple[int, float]:
    for name in names:
        manager.admit(name, 0)
    return _each(manager, names, range(1, 101))


def _admit_requests(manager: ProducerIdQuotaManager, names: list[str]) -> tuple[int, float]:
    started = time.process_time()
    for start in range(0, 10_000, 1_000):
        ids = np.arange(start, start + 1_000)
        for name in names:
            manager.admit_request(name, ids)
    return 10_000 * len(names), time.process_time() - started
