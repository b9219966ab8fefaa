"""Replicas of one log take turns at one store, as manifests alone show: whatever they have, wherever they end.

What a run decides by the manifests near its segments is what it would decide by all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from uuid import NAMESPACE_URL, uuid4, uuid5

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from resnap.storage.layouts.flat.keys import object_key
from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.lineage import StoredRanges, chain_of, chains_of, is_one_lineage
from resnap.storage.layouts.manifest import ObjectKind, write_manifest
from resnap.storage.log.checkpoints import LeaderEpoch, epochs_in, write_leader_epochs
from resnap.storage.log.names import OffsetRange, TopicPartition
from resnap.storage.log.partition_dir import PartitionDir, Segment
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.judging.eligibility import Candidates
from resnap.tiering.judging.inventory import ALL_KNOWN, Compaction, CompactionOrigin, PartitionInventory
from resnap.tiering.shipping.placement import place
from resnap.tiering.shipping.remainder import Remainder, remainder
from resnap.tiering.shipping.shipped import ShippedTopic
from tests.examples import examples
from tests.storage.layouts.manifests import a_manifest, an_object
from tests.tiering.shipping import manifests
from tests.tiering.stores import PassingStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.storage.stores.protocol import ObjectStore

pytestmark = pytest.mark.slow

LENGTH = 16
PARTED_AT = 6
PARTITION = TopicPartition("payments", 0)
KEPT = (LeaderEpoch(0, 0), LeaderEpoch(2, 4), LeaderEpoch(3, 11))
LOST = (LeaderEpoch(0, 0), LeaderEpoch(2, 4), LeaderEpoch(7, PARTED_AT))
"""A leader that had only the first offsets was elected."""


class Turn(NamedTuple):
    """A replica that ships what it has."""

    boundaries: list[int]
    epochs: tuple[LeaderEpoch, ...] = KEPT
    is_cut: bool = False
    """Whether its checkpoint begins where its log begins, as after retention."""
    killed_after: int = 99

    @property
    def spans(self) -> list[OffsetRange]:
        return [OffsetRange(*both) for both in pairwise(self.boundaries)]

    @property
    def known(self) -> tuple[LeaderEpoch, ...]:
        start = self.boundaries[0]
        if not self.is_cut:
            return self.epochs
        first = bisect_right(self.epochs, start, key=lambda entry: entry.start_offset) - 1
        return (self.epochs[first]._replace(start_offset=start), *self.epochs[first + 1 :])


def turns(epochs: Sequence[tuple[LeaderEpoch, ...]]) -> st.SearchStrategy[list[Turn]]:
    boundaries = st.lists(st.integers(0, LENGTH), unique=True, min_size=2, max_size=8).map(sorted)
    killed_after = st.one_of(st.just(99), st.integers(0, 5))
    turn = st.builds(Turn, boundaries, st.sampled_from(epochs), st.booleans(), killed_after)
    return st.lists(turn, min_size=1, max_size=5)


def candidates(turn: Turn, directory: Path) -> Candidates:
    checkpoint = directory / "leader-epoch-checkpoint"
    checkpoint.write_bytes(write_leader_epochs(turn.known))
    segments = tuple(
        Segment(base_offset=start, next_base_offset=end, path=f"{start:020d}.log", size_bytes=end - start, mtime_ns=0,
                inode=0, index_bytes=None, timeindex_bytes=None, txnindex_bytes=None)
        for start, end in turn.spans
    )  # fmt: skip
    partition = PartitionDir(
        path=directory, topic_partition=PARTITION, segments=segments, snapshots=(), unfinished=(), deleted=0,
        leader_epochs=str(checkpoint), topic_id=None, high_watermark=LENGTH, log_start_offset=turn.boundaries[0],
        recovery_point=None, cleaner_offset=None,
    )  # fmt: skip
    inventory = PartitionInventory(
        partition=partition, boundaries=(), log_end=None, strays=(), compaction=Compaction.NOT_COMPACTED,
        compaction_origin=CompactionOrigin.TOPIC_CONFIGURATION, leader_epochs=ALL_KNOWN,
    )  # fmt: skip
    return Candidates(inventory=inventory, high_watermark=LENGTH, segments=segments, refusals=())


def publish(store: ObjectStore, span: OffsetRange, epochs: Sequence[LeaderEpoch]) -> None:
    where = {"cluster_id": None, "topic": "payments", "topic_id": None, "partition": 0, "base_offset": span.start}
    name = uuid5(NAMESPACE_URL, f"{span} {uuid4()}")
    keys = {kind: object_key(**where, segment_id=name, extension=kind) for kind in ("log", "snapshot", "manifest")}
    objects = {ObjectKind.LOG: span.end - span.start, ObjectKind.SNAPSHOT: 10}
    for kind, size in objects.items():
        store.put(keys[kind], bytes(size))
    manifest = a_manifest(
        **where,
        segment_id=name,
        next_base_offset=span.end,
        last_offset=span.end - 1,
        leader_epochs=epochs_in(epochs, *span),
        objects=tuple(an_object(kind, key=keys[kind], size_bytes=size) for kind, size in objects.items()),
    )
    store.put(keys["manifest"], write_manifest(manifest))


def stored(store: ObjectStore) -> list[OffsetRange]:
    return [OffsetRange(manifest.base_offset, manifest.next_base_offset) for manifest in manifests(store)]


def offsets(spans: Sequence[OffsetRange]) -> set[int]:
    return {offset for span in spans for offset in range(*span)}


def take_turn(store: ObjectStore, turn: Turn, directory: Path) -> Remainder:
    left = remainder(candidates(turn, directory), ShippedTopic(store, Flat(), None, "payments"))
    for one, _ in left.order[: turn.killed_after]:
        publish(store, OffsetRange(one.base_offset, one.next_base_offset or 0), turn.epochs)
        spans = stored(store)
        assert {span.start for span in spans} <= StoredRanges(spans).reached
    return left


def check_reading(store: ObjectStore) -> None:
    """Make sure that readers find a way through all offsets that are there."""
    found = [manifest.facts for manifest in manifests(store)]
    for chain in chains_of(found):
        assert chain.breaks == ()
    chain = chain_of(sorted(found, key=attrgetter("made")))
    assert offsets([one.offsets for one in chain]) == offsets(stored(store))
    assert all(below.next_base_offset <= above.base_offset for below, above in pairwise(chain))


def check_one_history(history: list[Turn]) -> None:
    store = MemoryObjectStore(f"turns-{uuid4()}")
    with TemporaryDirectory() as directory:
        for turn in history:
            before = stored(store)
            full = place(before, turn.spans, log_start=turn.boundaries[0])
            left = take_turn(store, turn, Path(directory))
            assert all("leader epochs" not in refusal.detail for refusal in left.candidates.refusals)
            placed = [OffsetRange(one.base_offset, one.next_base_offset or 0) for one, _ in left.order]
            best = [turn.spans[step.candidate] for step in full.steps]
            assert offsets([*before, *placed]) == offsets([*before, *best])
            assert {refusal.base_offset for refusal in left.candidates.refusals} >= {
                span.start for span in turn.spans if not offsets([span]) <= offsets([*before, *placed])
            }
            check_reading(store)
            if turn.killed_after == 99:
                again = remainder(candidates(turn, Path(directory)), ShippedTopic(store, Flat(), None, "payments"))
                assert again.order == ()


def check_two_histories(history: list[Turn]) -> None:
    store = MemoryObjectStore(f"turns-{uuid4()}")
    lineages = set()
    with TemporaryDirectory() as directory:
        for turn in history:
            left = take_turn(store, turn, Path(directory))
            beyond = [one for one, _ in left.order[: turn.killed_after] if (one.next_base_offset or 0) > PARTED_AT]
            lineages |= {turn.epochs} if beyond else set()
            check_reading(store)
            assert all(is_one_lineage(*both) for both in combinations(manifests(store), 2))
            assert len(lineages) <= 1 or any(one.is_cut for one in history)


@examples(60)
@given(turns([KEPT]))
def test_replicas_of_one_log_ship_all_that_can_be_read_together(history: list[Turn]) -> None:
    check_one_history(history)


@examples(60)
@example([Turn([9, 11, 14], LOST, killed_after=1), Turn([13, 14, 15], KEPT, killed_after=1), Turn([7, 9], KEPT)])
@example([Turn([3, 6, 8, 10], KEPT, killed_after=1), Turn([14, 16], KEPT), Turn([0, 3, 10], LOST)])
@given(turns([KEPT, LOST]))
def test_of_two_histories_the_store_holds_one(history: list[Turn]) -> None:
    check_two_histories(history)


@dataclass
class Counting(PassingStore):
    """Records what was read whole."""

    read: list[str] = field(default_factory=list)

    def get(self, key: str) -> bytes:
        self.read.append(key)
        return super().get(key)


def test_a_run_that_goes_on_reads_the_manifests_of_its_own_segments_and_two_below(tmp_path: Path) -> None:
    store = Counting(MemoryObjectStore("long"))
    for start in range(300):
        publish(store, OffsetRange(start, start + 1), KEPT)
    left = remainder(candidates(Turn([*range(280, 302)]), tmp_path), ShippedTopic(store, Flat(), None, "payments"))
    assert [one.base_offset for one, _ in left.order] == [300]
    assert len(store.read) == 20 + 2


@pytest.mark.heavy
@settings(deadline=None, derandomize=False, max_examples=5_000)
@given(turns([KEPT]))
def test_replicas_of_one_log_in_thousands_of_turns(history: list[Turn]) -> None:
    check_one_history(history)


@pytest.mark.heavy
@settings(deadline=None, derandomize=False, max_examples=5_000)
@given(turns([KEPT, LOST]))
def test_two_histories_in_thousands_of_turns(history: list[Turn]) -> None:
    check_two_histories(history)
