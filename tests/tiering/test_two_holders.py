"""Two runs at one partition, of which one is stopped between its check and its request, and goes on much later.

First the protocol alone, as a model of which every interleaving is walked through; then the code itself, stopped before
each of its requests while another run does all of its work. No lease separates the two here: nothing may depend on it.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import pytest

from resnap.storage.errors import ResnapError
from resnap.storage.layouts.manifest import read_manifest
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.garbage import collect, find_garbage
from resnap.tiering.retain import Limits, delete_beyond, retention_of
from tests.cases import each, mostly_slow
from tests.storage.layouts.manifests import stored
from tests.tiering.shipping import LATER_MS, UPGRADED, check_objects, manifest_keys, manifests
from tests.tiering.stores import PassingStore
from tests.tiering.test_uploader import a_cargo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.crc32c import Buffer
    from resnap.storage.stores.protocol import BodyOpener, ObjectInfo, ObjectStore
    from tests.fixture_sets import FixtureSet
    from tests.tiering.test_uploader import Cargo

OBJECTS: Final = ("log", "snapshot")
MANIFEST: Final = "manifest"
DEAD: Final = "tombstone"


class World(NamedTuple):
    """A store, and two runs: what each of them is, where it is, and what it has seen."""

    store: frozenset[tuple[int, str, str]]
    """(incarnation, name, body) of each object."""
    runs: tuple[tuple[str, int, int], ...]
    """(kind, step, incarnation)"""
    said: frozenset[int]
    """Incarnations that were said to be shipped, and that no run was asked to delete since."""
    keeps_conditions: bool

    def body(self, incarnation: int, name: str) -> str | None:
        return next((body for one, other, body in self.store if (one, other) == (incarnation, name)), None)

    def put(self, incarnation: int, name: str, body: str) -> World:
        rest = {one for one in self.store if one[:2] != (incarnation, name)}
        return self._replace(store=frozenset(rest | {(incarnation, name, body)}))

    def delete(self, incarnation: int, name: str) -> World:
        return self._replace(store=frozenset(one for one in self.store if one[:2] != (incarnation, name)))

    def create(self, incarnation: int, body: str) -> World:
        """Put where nothing is; where conditions are not kept, whatever is there."""
        is_taken = self.body(incarnation, MANIFEST) is not None and self.keeps_conditions
        return self if is_taken else self.put(incarnation, MANIFEST, body)

    def at(self, number: int, step: int, incarnation: int) -> World:
        runs = list(self.runs)
        runs[number] = (runs[number][0], step, incarnation)
        return self._replace(runs=tuple(runs))

    def visible(self) -> set[int]:
        return {one for one, name, body in self.store if name == MANIFEST and body != DEAD}

    def torn(self) -> set[int]:
        return {one for one in self.visible() if any(self.body(one, name) is None for name in OBJECTS)}

    def free(self) -> int:
        return next(one for one in range(9) if self.body(one, MANIFEST) != DEAD)


END: Final = 99


def step_of_tier(world: World, number: int, step: int, one: int) -> World:
    """Search for an id, write the objects, search again, name them: each step is one request, and may come late.

    Where conditions hold, nothing is searched again.
    """
    if step == 0:
        done = world.visible() - world.torn()
        return world.at(number, END if done else 1, world.free())
    if step <= len(OBJECTS):
        return world.put(one, OBJECTS[step - 1], "x").at(number, step + 1, one)
    if step == len(OBJECTS) + 1 and not world.keeps_conditions:
        whole = all(world.body(one, name) is not None for name in OBJECTS)
        return world.at(number, step + 1 if whole and world.body(one, MANIFEST) != DEAD else END, one)
    after = world.create(one, "m").at(number, END, one)
    said = after.said | {one} if after.body(one, MANIFEST) == "m" else after.said
    return after._replace(said=said)


def step_of_retain(world: World, number: int, step: int, one: int) -> World:
    """Judge what is visible, put a tombstone over its manifest, and then delete."""
    if step == 0:
        seen = min(world.visible(), default=None)
        return (
            world.at(number, END, one) if seen is None else world.at(number, 1, seen)._replace(said=world.said - {seen})
        )
    if step == 1:
        after = world.put(one, MANIFEST, DEAD).at(number, 2, one)
        return after._replace(said=after.said - {one})
    name = OBJECTS[step - 2]
    return world.delete(one, name).at(number, END if name == OBJECTS[-1] else step + 1, one)


def step_of_gc(world: World, number: int, step: int, one: int) -> World:
    """Find what no manifest names, claim its manifest's key, see which run has it, and then delete."""
    if step == 0:
        unnamed = sorted({found for found, name, _ in world.store if name in OBJECTS} - world.visible())
        return world.at(number, 1 if unnamed else END, unnamed[0] if unnamed else one)
    if step == 1:
        return world.create(one, DEAD).at(number, 2, one)
    if step == 2:
        return world.at(number, 3 if world.body(one, MANIFEST) == DEAD else END, one)
    name = OBJECTS[step - 3]
    return world.delete(one, name).at(number, END if name == OBJECTS[-1] else step + 1, one)


STEPS: Final = {"tier": step_of_tier, "retain": step_of_retain, "gc": step_of_gc}
BEGINNINGS: Final = {
    "nothing": frozenset[tuple[int, str, str]](),
    "a segment": frozenset({(0, "log", "x"), (0, "snapshot", "x"), (0, MANIFEST, "m")}),
    "what a killed run left": frozenset({(0, "log", "x")}),
    "what a killed retain left": frozenset({(0, "snapshot", "x"), (0, MANIFEST, DEAD)}),
}


def reachable(world: World) -> Iterator[World]:
    """Yield every world that any interleaving leads to: a run that is stopped is one that is not taken for long."""
    seen, left = {world}, [world]
    while left:
        here = left.pop()
        yield here
        for number, (kind, step, incarnation) in enumerate(here.runs):
            if step != END:
                there = STEPS[kind](here, number, step, incarnation)
                if there not in seen:
                    seen.add(there)
                    left.append(there)


def alone(world: World, kind: str) -> World:
    """Return what is left after one more run by itself."""
    world = world._replace(runs=((kind, 0, 0),))
    while world.runs[0][1] != END:
        world = STEPS[kind](world, 0, *world.runs[0][1:])
    return world


RUNS: Final = [("tier", "retain", "tier"), ("tier", "gc", "tier"), ("retain", "tier", "retain"), ("gc", "tier", "gc"),
               ("tier", "retain", "gc"), ("tier", "tier", "retain")]  # fmt: skip


@each("runs", RUNS, ids=" ".join)
@each("beginning", BEGINNINGS)
def test_where_conditions_hold_no_manifest_ever_names_what_is_gone(runs: tuple[str, ...], beginning: str) -> None:
    """At any moment, not only in the end; and what was said to be shipped stays until a run means to delete it."""
    first = World(BEGINNINGS[beginning], tuple((kind, 0, 0) for kind in runs), frozenset(), keeps_conditions=True)
    for world in reachable(first):
        assert not world.torn(), world
        assert world.said <= world.visible(), world
        if all(step == END for _, step, _ in world.runs):
            assert alone(world, "tier").visible(), world


@each("runs", [run for run in RUNS if "gc" not in run], ids=" ".join)
@each("beginning", BEGINNINGS)
def test_where_they_do_not_a_rerun_of_tier_repairs_what_a_late_manifest_names(
    runs: tuple[str, ...], beginning: str
) -> None:
    """Such stores know no leases either, so a gc needs its operator to confirm that no other run is at work."""
    first = World(BEGINNINGS[beginning], tuple((kind, 0, 0) for kind in runs), frozenset(), keeps_conditions=False)
    was_torn = False
    for world in reachable(first):
        was_torn = was_torn or bool(world.torn())
        if all(step == END for _, step, _ in world.runs):
            repaired = alone(world, "tier")
            assert repaired.visible() - repaired.torn(), world
    assert was_torn or beginning == "a segment" or runs.count("tier") < 2, "this is what the condition is for"


@dataclass
class Stopping(PassingStore):
    """Before the request of this number takes effect, its run is stopped while ``meanwhile`` happens."""

    number: int
    meanwhile: Callable[[], None]
    requests: int = 0
    was_stopped: bool = field(default=False)

    def _pass(self) -> None:
        self.requests += 1
        if self.requests == self.number:
            self.was_stopped = True
            self.meanwhile()

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        self._pass()
        super().put(key, body, if_absent=if_absent)

    def put_stream(self, key: str, open_body: BodyOpener, **facts: Any) -> None:
        self._pass()
        super().put_stream(key, open_body, **facts)

    @contextmanager
    def open(self, key: str, start: int = 0, end: int | None = None) -> Iterator[Iterator[bytes]]:
        self._pass()
        with super().open(key, start, end) as chunks:
            yield chunks

    def get(self, key: str) -> bytes:
        self._pass()
        return super().get(key)

    def head(self, key: str) -> ObjectInfo:
        self._pass()
        return super().head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._pass()
        return super().list(prefix)

    def delete(self, key: str, *, etag: str | None = None) -> None:
        self._pass()
        super().delete(key, etag=etag)


class Actor:
    """Does what runs do at the partition of a segment, with their own code."""

    def __init__(self, cargo: Cargo) -> None:
        self.cargo = cargo
        self.judged: set[str] = set()
        """Manifests that a run meant to delete."""

    def do(self, store: ObjectStore, what: str) -> str | None:
        """Return the key of the manifest that was said to make the segment visible, if one was."""
        key = None
        for one in what.split():
            key = getattr(self, one)(store)
        return str(key) if key else None

    def tier(self, store: ObjectStore) -> str | None:
        return self.cargo.ship(store).manifest_key

    def by_one_listing(self, store: ObjectStore) -> str | None:
        """Ship as to a store that has proven its checks and conditions."""
        return self.cargo.ship(store, proven=True).manifest_key

    def retain(self, store: ObjectStore) -> None:
        found = [stored(read_manifest(store.get(key)), key) for key in manifest_keys(store)]
        for one in retention_of(found, Limits(age_ms=0), 2 * LATER_MS):
            self.judged |= {shipped.key for shipped in one.beyond}
            delete_beyond(store, one, lambda _: None)

    def gc(self, store: ObjectStore) -> None:
        list(collect(store, find_garbage(store, older_than_ms=-60_000), now_ms=0))

    def leave(self, store: ObjectStore) -> None:
        """Leave what a killed run leaves."""
        store.delete(self.cargo.ship(store).manifest_key)


MEANWHILE: Final = ("tier", "retain", "gc", "retain tier", "tier retain", "gc tier", "tier retain tier",
                    "retain tier retain", "gc tier retain gc tier")  # fmt: skip


@pytest.mark.parametrize(
    "meanwhile", mostly_slow(MEANWHILE, "tier", "retain", "gc", "retain tier", "gc tier retain gc tier")
)
@pytest.mark.parametrize(("before", "stopped"), [
    ("", "tier"), ("leave", "tier"), ("leave gc", "tier"), ("tier", "retain"), ("leave", "gc"), ("tier retain", "gc"),
    ("", "by_one_listing"), ("leave", "by_one_listing"), ("leave gc", "by_one_listing"),
])  # fmt: skip
def test_a_run_stopped_before_any_request_that_continues_late_publishes_nothing_wrong_and_deletes_nothing(
    fixture_set: Callable[[str], FixtureSet], before: str, stopped: str, meanwhile: str
) -> None:
    actor = Actor(a_cargo(fixture_set(UPGRADED).data))
    number, was_stopped, kept = 0, True, 0
    while was_stopped:
        number += 1
        store = MemoryObjectStore(f"two-holders-{uuid4()}")
        actor.judged.clear()
        actor.do(store, before)
        said: list[str | None] = [None]

        def happens(store: ObjectStore = store, said: list[str | None] = said) -> None:
            with suppress(ResnapError):
                said[0] = actor.do(store, meanwhile)

        stopping = Stopping(store, number, happens)
        with suppress(ResnapError):
            actor.do(stopping, stopped)
        was_stopped = stopping.was_stopped
        check_all(store)
        if said[0] is not None and said[0] not in actor.judged:
            kept += 1
            assert said[0] in manifest_keys(store), f"what was shipped meanwhile is gone, stopped at {number}"
        with suppress(ResnapError):
            actor.do(store, "tier")
        check_all(store)
        assert manifest_keys(store), f"a rerun ships it, stopped at {number}"
    assert kept or not meanwhile.endswith("tier") or (stopped == "retain" and "retain" not in meanwhile)


def check_all(store: ObjectStore) -> None:
    """Check that every manifest is correct."""
    for manifest in manifests(store):
        check_objects(store, manifest)
