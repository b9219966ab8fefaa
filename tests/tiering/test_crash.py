"""A run that is killed at any instant leaves nothing half-done visible, and the next one completes it."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

from resnap.storage.layouts.flat.keys import parse_key
from resnap.storage.stores.s3_settings import S3Settings
from resnap.storage.stores.urls import open_store
from tests.tiering.shipping import (
    HOUR_MS,
    UPGRADED,
    an_order,
    check_objects,
    manifests,
    must_be_shipped,
    newest_ms,
    rules_at,
    tier,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.stores.protocol import ObjectStore
    from tests.fixture_sets import FixtureSet
    from tests.tiering.shipping import Order

pytestmark = pytest.mark.slow

NAME: Final = "payments-1"
KILLS: Final = 10
MOST_ROUNDS: Final = 20
PATIENCE_S: Final = 300


class Run:
    """A process of its own that ships an order into the store at ``url``."""

    def __init__(self, context: ForkServerContext, order: Order, url: str, s3: S3Settings) -> None:
        begun, there = context.Pipe(duplex=False)
        self._process = context.Process(target=_ship, args=(order, url, s3, there))
        self._process.start()
        assert begun.poll(PATIENCE_S)
        begun.recv()

    def kill(self) -> int:
        """Send SIGKILL and return the exit code, which is 0 if it came too late."""
        self._process.kill()
        return self.join()

    def join(self) -> int:
        self._process.join(PATIENCE_S)
        code = self._process.exitcode
        assert code is not None
        return code


def _ship(order: Order, url: str, s3: S3Settings, begun: Connection) -> None:
    store = open_store(url, s3)
    begun.send(None)
    order.ship(store)


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    """Where processes start in milliseconds, from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "tests.tiering.shipping", "resnap.storage.stores.s3"])
    return context


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Give the URL of another empty store at each call."""
    root = tmp_path.as_uri() if request.param == "local" else f"s3://{request.getfixturevalue('s3_bucket')}"
    return lambda: f"{root}/{uuid4()}"


def instants(kills: int, duration_s: float, seed: int) -> Iterator[float]:
    """Yield random delays, one in each of ``kills`` equal stretches of ``duration_s``."""
    chance = random.Random(seed)
    for number in range(kills):
        yield (number + chance.random()) / kills * duration_s


def check_visible(store: ObjectStore, partition: PartitionDir) -> list[tuple[int, int]]:
    """Make sure that what a reader sees is whole; return the segments that are there."""
    for manifest in manifests(store):
        check_objects(store, manifest)
    for info in store.list():
        if info.key.startswith(".resnap/"):
            continue  # what a run leaves of its probe of the store, or its lease, does not concern readers
        key = parse_key(info.key)
        assert key is not None, f"{info.key} is visible"
        if key.extension == "log":
            path = partition.path / f"{key.base_offset:020d}.log"
            assert store.get(info.key) == path.read_bytes(), "an object that nothing names is whole, too"
    return [(manifest.base_offset, manifest.next_base_offset) for manifest in manifests(store)]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A replayed partition, stores to ship it into, and processes to do it."""

    data: Path
    order: Order
    context: ForkServerContext
    new_url: Callable[[], str]
    s3: S3Settings
    staged: Path

    @property
    def partition(self) -> PartitionDir:
        return self.order.candidates.inventory.partition

    def start(self, url: str) -> Run:
        return Run(self.context, self.order, url, self.s3)

    def timed_s(self) -> float:
        """Return how long shipping takes without a kill."""
        run = self.start(self.new_url())
        begun = time.monotonic()
        assert run.join() == 0
        return time.monotonic() - begun

    def go_on(self, store: ObjectStore) -> None:
        """Run once more, with another T."""
        tier(self.data, store, self.staged, rules_at(newest_ms(self.data, NAME) + 2 * HOUR_MS), only={NAME})

    def kill_and_go_on(self, kills: int, seed: int) -> None:
        """Kill a run into an empty store, check what is visible, and run again; ``kills`` times."""
        expected = must_be_shipped(self.partition)
        begun = set[int]()
        # Where the machine was much slower for the run that was timed, or much quicker, other instants are tried.
        tried = (delay_s for more in range(MOST_ROUNDS) for delay_s in instants(kills, self.timed_s(), seed + more))
        for number, delay_s in enumerate(tried, 1):
            url = self.new_url()
            store = open_store(url, self.s3)
            run = self.start(url)
            time.sleep(delay_s)
            assert run.kill() in {0, -signal.SIGKILL}
            done = check_visible(store, self.partition)
            assert done == expected[: len(done)]
            begun.add(len(done))
            self.go_on(store)
            assert check_visible(store, self.partition) == expected
            if number >= kills and begun - {0, len(expected)}:
                return
        pytest.fail(f"none was killed half-way: {begun}")


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    fixture_set: Callable[[str], FixtureSet],
    context: ForkServerContext,
    new_url: Callable[[], str],
    tmp_path: Path,
) -> Scene:
    data = fixture_set(UPGRADED).data
    is_s3 = new_url().startswith("s3:")
    return Scene(
        data=data,
        order=an_order(data, tmp_path / "staged", NAME, rules_at(newest_ms(data, NAME))),
        context=context,
        new_url=new_url,
        s3=request.getfixturevalue("s3_settings") if is_s3 else S3Settings(),
        staged=tmp_path / "staged-again",
    )


def test_after_a_kill_at_any_instant_one_more_run_completes_the_store(scene: Scene) -> None:
    scene.kill_and_go_on(KILLS, seed=1)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(2, 7))
def test_after_many_kills_at_any_instant_one_more_run_completes_the_store(seed: int, scene: Scene) -> None:
    scene.kill_and_go_on(5 * KILLS, seed)


def test_runs_killed_one_after_the_other_never_lose_what_was_visible(scene: Scene) -> None:
    """All of them found the store empty when they looked, so each begins with the first segment."""
    expected = must_be_shipped(scene.partition)
    url = scene.new_url()
    store = open_store(url, scene.s3)
    done: list[tuple[int, int]] = []
    for delay_s in instants(KILLS // 2, scene.timed_s(), seed=1):
        run = scene.start(url)
        time.sleep(delay_s)
        run.kill()
        before, done = done, check_visible(store, scene.partition)
        assert before == done[: len(before)]
    scene.go_on(store)
    assert check_visible(store, scene.partition) == expected
