"""Replicas that cut one log at other offsets ship into one store: readers find one chain, of one history."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.flat.listing import shipped_log_dir
from resnap.storage.layouts.lineage import chains_of
from resnap.storage.log.names import segment_name
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.retain import Limits, delete_beyond, retention_of
from resnap.tiering.verifying.verification import StoreReader
from tests.examples import examples
from tests.storage.layouts.manifests import stored
from tests.tiering.replicas import LENGTH, PARTITION, Replica
from tests.tiering.shipping import manifest_keys, manifests

if TYPE_CHECKING:
    from resnap.storage.stores.protocol import ObjectStore

CUTS = st.frozensets(st.integers(1, LENGTH - 1), max_size=8)


def a_store() -> MemoryObjectStore:
    return MemoryObjectStore(f"lineage-{uuid4()}")


def ranges(store: ObjectStore) -> list[tuple[int, int]]:
    return sorted((manifest.base_offset, manifest.next_base_offset) for manifest in manifests(store))


def chain(store: ObjectStore) -> list[tuple[int, int]]:
    """Return the segments that readers take: one after the other, and every manifest is all right."""
    reader = StoreReader(store=store, listing=Flat().listing(store, bool))
    assert [reader.verify(key, reads_objects=True).problems for key in manifest_keys(store)] == [()] * len(
        manifest_keys(store)
    )
    found = shipped_log_dir(store, store.list(), None)
    assert found.problems == ()
    taken = [(one.base_offset, one.next_base_offset or 0) for part in found.partitions for one in part.segments]
    assert all(below[1] == above[0] for below, above in pairwise(taken))
    chains = chains_of(manifest.facts for manifest in manifests(store))
    assert all(overlap.is_one_lineage for one in chains for overlap in one.overlaps)
    return taken


@examples(20)
@given(st.lists(st.tuples(CUTS, st.integers(1, LENGTH)), min_size=2, max_size=4))
def test_whichever_replica_ships_whenever_readers_find_all_of_the_log_once(
    turns: list[tuple[frozenset[int], int]],
) -> None:
    store, end = a_store(), 0
    with TemporaryDirectory() as root:
        for number, (cuts, length) in enumerate([*turns, turns[0]]):
            replica = Replica(Path(root, str(number)), cuts, length)
            assert replica.conflicts(store) == []
            replica.ship(store)
            end = max(end, replica.closed_end)
            taken = chain(store)
            assert ([taken[0][0], taken[-1][1]] if taken else [0, 0]) == [0, end]
            assert replica.left(store).candidates.segments == ()


@examples(20)
@given(st.lists(st.tuples(CUTS, st.integers(0, 12), st.integers(13, LENGTH)), min_size=2, max_size=4))
def test_what_can_be_read_stays_so_when_replicas_have_lost_their_oldest_segments(
    turns: list[tuple[frozenset[int], int, int]],
) -> None:
    store = a_store()
    with TemporaryDirectory() as root:
        for number, (cuts, start, length) in enumerate([*turns, turns[0]]):
            Replica(Path(root, str(number)), cuts, length, start=start).ship(store)
            found = shipped_log_dir(store, store.list(), None)
            there = {offset for base, end in ranges(store) for offset in range(base, end)}
            is_broken = bool(there) and there != set(range(min(there), max(there) + 1))
            assert ["leave a gap" in str(problem.error) for problem in found.problems] == [True] * is_broken
            if not is_broken:
                taken = chain(store)
                assert {offset for base, end in taken for offset in range(base, end)} == there


def test_another_replica_goes_on_from_the_last_boundary_that_both_have(tmp_path: Path) -> None:
    store = a_store()
    first, second = Replica(tmp_path / "a", {5, 10, 15}), Replica(tmp_path / "b", {5, 8, 13, 18, 22})
    first.ship(store)
    second.ship(store)
    assert ranges(store) == [(0, 5), (5, 8), (5, 10), (8, 13), (10, 15), (13, 18), (18, 22)]
    assert chain(store) == [(0, 5), (5, 8), (8, 13), (13, 18), (18, 22)]
    # The first one was cut back to 12, has fetched the rest from the second, and leads again.
    truncated = Replica(tmp_path / "c", {5, 10, 18, 20, 23})
    truncated.ship(store)
    assert set(ranges(store)) >= {(18, 20), (20, 23)}
    assert (10, 18) not in ranges(store)
    assert chain(store)[-3:] == [(13, 18), (18, 20), (20, 23)]


def test_what_the_store_holds_in_other_pieces_is_not_shipped_again(tmp_path: Path) -> None:
    store = a_store()
    Replica(tmp_path / "a", {5, 10, 20}).ship(store)
    left = Replica(tmp_path / "b", {4, 12, 19}).left(store)
    assert (left.candidates.segments, left.already) == ((), 3)


def test_a_replica_whose_log_begins_elsewhere_and_shares_no_boundary_is_refused(tmp_path: Path) -> None:
    store = a_store()
    Replica(tmp_path / "a", {5, 10, 15}).ship(store)
    before = ranges(store)
    late = Replica(tmp_path / "b", {9, 13, 18, 22}, start=7)
    assert late.conflicts(store) == [13, 18]
    late.ship(store)
    assert ranges(store) == before


def test_what_depends_on_a_segment_that_turns_out_unfit_waits_for_it(tmp_path: Path) -> None:
    """[1, 3) would take the place of [0, 2), which is sound, in the readers' chain, and nothing would lead to it."""
    store = a_store()
    Replica(tmp_path / "a", {2}, length=3).ship(store)
    other = Replica(tmp_path / "b", {1, 3, 4}, length=5)
    index = other.data / str(PARTITION) / segment_name(0, "txnindex")
    index.write_bytes(b"damaged")
    (shipment,) = other.ship(store)
    assert ranges(store) == chain(store) == [(0, 2)]
    assert ["it would leave a gap" in refusal.detail for refusal in shipment.eligibility.refusals] == [
        False, True, True, False,
    ]  # fmt: skip
    index.unlink()
    other.ship(store)
    assert chain(store) == [(0, 1), (1, 3), (3, 4)]


@pytest.mark.parametrize(
    "cuts", [{5, 10, 15, 20}, {5, 8, 13, 18, 22}, {10, 20}, {3, 12, 15, 20}], ids=lambda cuts: str(sorted(cuts))
)
def test_a_history_that_parted_from_the_shipped_one_is_refused_from_there_on(tmp_path: Path, cuts: set[int]) -> None:
    """A leader that lacked the offsets from 11 on was elected: those that were shipped are lost to all replicas."""
    store = a_store()
    Replica(tmp_path / "a", {5, 10, 15}).ship(store)
    unclean = Replica(tmp_path / "b", cuts, elections=(7, 11))
    conflicts = unclean.conflicts(store)
    unclean.ship(store)
    assert conflicts[-1:] == [max(base for base in cuts if base < unclean.closed_end)]
    assert ranges(store) == [(0, 5), (5, 10), (10, 15)] or all(end <= 10 for _, end in set(ranges(store)) - {(10, 15)})
    assert chain(store)[-1] == (10, 15)


@pytest.mark.parametrize("cuts", [{5, 10, 15}, {5, 8, 20}, {4, 12, 20}, {20}], ids=lambda cuts: str(sorted(cuts)))
@pytest.mark.parametrize("start", [0, 3])
def test_a_recreated_topic_is_not_taken_for_the_old_one(tmp_path: Path, cuts: set[int], start: int) -> None:
    """No id distinguishes the two, as before Kafka 2.8, and the leader epochs are the same."""
    store = a_store()
    Replica(tmp_path / "a", {5, 10, 15}).ship(store)
    before = ranges(store)
    anew = Replica(tmp_path / "b", cuts, producer_id=8, start=start)
    left = anew.left(store)
    assert (left.order, left.already) == ((), 0)
    assert all("another topic of this name" in refusal.detail for refusal in left.candidates.refusals[:-1])
    assert left.candidates.refusals[0].base_offset == start
    anew.ship(store)
    assert ranges(store) == before


def test_retention_leaves_a_chain_whatever_lies_beside_it_and_whatever_ends_it(tmp_path: Path) -> None:
    whole = a_store()
    Replica(tmp_path / "a", {5, 10, 15}).ship(whole)
    Replica(tmp_path / "b", {5, 8, 13, 18, 22}).ship(whole)
    starts = {_retained(whole, log_bytes) for log_bytes in range(0, 4200, 200)}
    assert starts == {0, 5, 8, 13, 18, 22}


def _retained(whole: ObjectStore, log_bytes: int) -> int:
    """Check what is left of a copy of ``whole`` after each deletion; return where the chain begins then."""
    store = a_store()
    for info in whole.list():
        store.put(info.key, whole.get(info.key))
    found = list(map(stored, manifests(store), manifest_keys(store)))
    (retention,) = retention_of(found, Limits(log_bytes=log_bytes), 0)
    ends = []
    delete_beyond(store, retention, lambda _: ends.append([end for _, end in chain(store)][-1:]))
    start, left = retention.new_start_offset or 0, chain(store)
    assert all(end in ([22], []) for end in ends)
    assert ([left[0][0], left[-1][1]] if left else [22, 22]) == [start, 22]
    assert len(ranges(store)) == retention.kept
    assert all(base >= start for base, _ in ranges(store))
    return start
