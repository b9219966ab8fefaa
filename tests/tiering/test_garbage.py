"""Garbage is what no manifest names, is ours, and is old; whatever else is in the store stays."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import LockedError
from resnap.storage.layouts.flat.keys import parse_key
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.garbage import collect, find_garbage, is_as_it_was
from resnap.tiering.shipping.lease import lease_on
from tests.tiering.shipping import UPGRADED, check_objects, manifest_keys, manifests, tier
from tests.tiering.stores import BeginningStore, PassingStore, flip_byte

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore
    from tests.fixture_sets import FixtureSet

DAY_MS = 86_400_000
SEGMENT = "cluster/payments/none/0/00000000000000000000-6f8e0d8e-0000-5000-8000-000000000000"


class Clock:
    now_ms = 1_000 * DAY_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def shipped(fixture_set: Callable[[str], FixtureSet], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the objects of the segments of a partition, by key."""
    made = MemoryObjectStore(f"garbage-{uuid4()}")
    tier(fixture_set(UPGRADED).data, made, tmp_path_factory.mktemp("staged"), only={"payments-0"})
    return {key: made.get(key) for key in keys(made)}


@pytest.fixture
def store(clock: Clock, shipped: dict[str, bytes]) -> MemoryObjectStore:
    """A store with the segments of a partition, shipped two days ago."""
    made = MemoryObjectStore(f"garbage-{uuid4()}", clock_ms=clock)
    for key, body in shipped.items():
        made.put(key, body)
    clock.now_ms += 2 * DAY_MS
    return made


def keys(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list()}


def cleaned(store: ObjectStore, *, older_than_ms: int = DAY_MS) -> set[str]:
    """Collect the garbage and return what is gone."""
    before = keys(store)
    garbage = find_garbage(store, older_than_ms=older_than_ms)
    said = {one.key for one in collect(store, garbage, now_ms=0) if one.problem is None}
    gone = before - keys(store)
    assert gone == {key for key in said if key in before}
    for manifest in manifests(store):
        check_objects(store, manifest)
    return gone


def test_what_is_named_is_never_garbage_however_old(store: MemoryObjectStore, clock: Clock) -> None:
    clock.now_ms += 1000 * DAY_MS
    assert cleaned(store, older_than_ms=0) == set()


def test_what_a_killed_run_left_is_garbage_once_it_is_old(store: MemoryObjectStore, clock: Clock) -> None:
    left = {entry.key for entry in manifests(store)[0].objects}
    store.delete(manifest_keys(store)[0])
    store.put(f".staging/{uuid4()}/payments-0/00000000000000000001.snapshot", b"x")
    store.put(f".resnap/probe/{'0' * 32}", b"x")
    young = keys(store)
    assert cleaned(store) == left
    assert find_garbage(store, older_than_ms=DAY_MS).younger == 2
    clock.now_ms += DAY_MS
    assert cleaned(store) == {key for key in young - left if key.startswith((".staging", ".resnap"))}


@pytest.mark.parametrize(
    "key",
    [
        "readme.txt",
        "cluster/payments/none/0/00000000000000000000.log",
        f"{SEGMENT}.checksum",
        f"{SEGMENT.replace('-5000-', '-4000-')}.log",
        ".staging/mine/payments-0/00000000000000000001.snapshot",
        ".resnap/lease/cluster/payments/0/0000000001",
        ".resnap/probe/short",
        "payments-0/00000000000000000000.log",
    ],
)
def test_what_is_not_in_a_form_of_ours_is_left(store: MemoryObjectStore, clock: Clock, key: str) -> None:
    store.put(key, b"somebody's")
    clock.now_ms += 1000 * DAY_MS
    assert cleaned(store) == set()


def test_nothing_is_touched_beside_a_manifest_that_cannot_be_read(store: MemoryObjectStore, clock: Clock) -> None:
    first, second, *_ = manifest_keys(store)
    store.delete(first)
    flip_byte(store, second)
    clock.now_ms += 2 * DAY_MS
    garbage = find_garbage(store, older_than_ms=DAY_MS)
    assert garbage.objects == ()
    assert [error.file for error in garbage.unreadable] == [second]
    store.put(f"{SEGMENT}.log", b"of another partition")
    clock.now_ms += 2 * DAY_MS
    assert {info.key for info in find_garbage(store, older_than_ms=DAY_MS).objects} == {f"{SEGMENT}.log"}


def test_a_partition_that_another_run_ships_is_left_and_reported(store: MemoryObjectStore, clock: Clock) -> None:
    place = parse_key(manifest_keys(store)[0])
    assert place is not None
    store.delete(place.key)
    clock.now_ms += 2 * DAY_MS
    before = keys(store)
    garbage = find_garbage(store, older_than_ms=DAY_MS)
    with lease_on(store, f"{place.cluster}/{place.topic}/0", verb="a tiering run", now_ms=0) as lease:
        lease.hold()
        (one,) = collect(store, garbage, now_ms=0)
    assert isinstance(one.problem, LockedError)
    assert "a tiering run" in str(one.problem)
    assert keys(store) == before


@pytest.mark.parametrize("watched", [PassingStore, BeginningStore])
def test_an_object_written_again_or_named_between_two_listings_is_left(
    store: MemoryObjectStore, clock: Clock, watched: type[PassingStore]
) -> None:
    first, second, *_ = manifest_keys(store)
    bodies = {key: store.get(key) for key in (first, second)}
    left = {entry.key for entry in manifests(store)[1].objects}
    for key in bodies:
        store.delete(key)
    clock.now_ms += 2 * DAY_MS
    garbage = find_garbage(store, older_than_ms=DAY_MS)
    store.put(first, bodies[first])
    anew = min(left)
    store.put(anew, store.get(anew))
    list(collect(watched(store), garbage, now_ms=0))
    assert left - keys(store) == left - {anew}
    check_objects(store, manifests(store)[0])


def test_a_stale_listing_does_not_say_that_a_replaced_object_is_as_it_was(
    store: MemoryObjectStore, clock: Clock
) -> None:
    listed, *_ = store.list()

    class Stale(PassingStore):
        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            return iter([listed] if listed.key.startswith(prefix) else [])

    assert is_as_it_was(Stale(store), listed)
    clock.now_ms += DAY_MS
    store.put(listed.key, bytes(listed.size_bytes))
    assert not is_as_it_was(Stale(store), listed)


def test_a_listing_that_misses_what_is_there_makes_nothing_garbage(store: MemoryObjectStore, clock: Clock) -> None:
    """Stale, it may show objects without the manifest that names them: the second listing is for that."""
    hidden = manifest_keys(store)[0]

    class Stale(PassingStore):
        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            return (info for info in self.inner.list(prefix) if info.key != hidden)

    clock.now_ms += 2 * DAY_MS
    garbage = find_garbage(Stale(store), older_than_ms=DAY_MS)
    assert garbage.objects
    before = keys(store)
    list(collect(store, garbage, now_ms=0))
    assert keys(store) == before


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["log", "index", "snapshot"]), st.integers(0, 3))))
def test_an_object_is_garbage_exactly_if_it_is_old_and_not_named(found: list[tuple[int, str, int]]) -> None:
    clock = Clock()
    store = MemoryObjectStore(f"garbage-{uuid4()}", clock_ms=clock)
    for number, kind, days in found:
        clock.now_ms = Clock.now_ms - days * DAY_MS
        name = UUID(int=(5 << 76) | (8 << 60) | number)
        store.put(f"c/t/none/{number}/{number:020d}-{name}.{kind}", b"x")
    clock.now_ms = Clock.now_ms
    old = {info.key for info in store.list() if info.modified_ms <= Clock.now_ms - 2 * DAY_MS}
    assert {info.key for info in find_garbage(store, older_than_ms=2 * DAY_MS).objects} == old
