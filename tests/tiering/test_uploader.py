from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resnap.storage.errors import (
    FormatError,
    LogDirError,
    ObjectExistsError,
    StoreError,
    VerificationError,
)
from resnap.storage.layouts.flat.keys import parse_key
from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.manifest import write_manifest
from resnap.storage.layouts.segments import NewSegment, Provenance, ShippedMeanwhileError, ShippedSegment
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.producer_snapshot import ProducerEntry, snapshot_bytes
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.shipping.delivery import Delivery, Proof
from resnap.tiering.shipping.segment_bundle import CopyOrder, EpochHistory, SegmentChangedError
from resnap.tiering.shipping.segment_copy import copy_segment, publish
from resnap.tiering.shipping.shipped import ShippedTopic
from resnap.tiering.verifying.verification import StoreReader
from tests.tiering.shipping import (
    LATER_MS,
    ORIGIN,
    UPGRADED,
    a_new_segment,
    a_provenance,
    check_objects,
    is_manifest,
    manifest_keys,
    manifests,
)
from tests.tiering.stores import ActingStore, PassingStore, RecordingStore, flip_byte, lose, truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.crc32c import Buffer
    from resnap.storage.layouts.manifest import (
        Manifest,
    )
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore
    from resnap.tiering.shipping.segment_indexes import SegmentIndexes
    from tests.fixture_sets import FixtureSet

    Sets = Callable[[str], FixtureSet]
    Copy = Callable[[Path], Path]

SNAPSHOT = snapshot_bytes([])
ANOTHER_SNAPSHOT = snapshot_bytes([ProducerEntry(7, 0, 4, 4, 4, LATER_MS, -1, -1)])


@dataclass(frozen=True)
class Cargo:
    """A segment with a transaction index, ready to be shipped."""

    provenance: Provenance
    order: CopyOrder
    segment: NewSegment
    indexes: SegmentIndexes

    def ship(self, store: ObjectStore, *, now_ms: int = LATER_MS, proven: bool = False) -> ShippedSegment:
        """Ship as to any store, or as to one that has proven to keep its promises, by one listing."""
        proof, beside = Proof(), None
        if proven:
            proof = Proof(counts=True, conditions=True)
            beside = tuple(info for info in store.list() if info.key.endswith(".manifest"))
        delivery = Delivery(store=store, proof=proof)
        segment = replace(self.segment, provenance=self.provenance, created_at_ms=now_ms, beside=beside)
        uploaded = copy_segment(delivery, Flat(), self.order, segment, self.indexes)
        publish(delivery, Flat(), uploaded)
        return Flat().read_manifest(uploaded.objects.manifest_key, uploaded.objects.manifest)

    def find(self, store: ObjectStore, *, topic_id: str | None = None) -> ShippedSegment | None:
        shipped = ShippedTopic(store, Flat(), self.provenance.cluster_id, self.provenance.topic_partition.topic)
        partition = self.provenance.topic_partition.partition
        return shipped.find(partition, self.base_offset, self.segment.next_base_offset, topic_id=topic_id)

    @property
    def base_offset(self) -> int:
        return self.order.segment.base_offset

    @property
    def path(self) -> Path:
        return Path(self.order.segment.path)


def a_cargo(data: Path, snapshot: bytes = SNAPSHOT, *, index: int = 1) -> Cargo:
    log_dir = load_log_dir(data)
    (partition,) = (found for found in log_dir.partitions if str(found.topic_partition) == "payments-0")
    provenance = a_provenance(log_dir, partition)
    made = a_new_segment(EpochHistory(partition), partition.segments[index], snapshot, provenance)
    return Cargo(provenance, *made)


def ship_at_the_same_instant(store: ObjectStore, cargo: Cargo) -> None:
    """Ship as a run does that has not seen the manifest of another."""
    blind = MemoryObjectStore(f"blind-{id(store)}")
    cargo.ship(blind)
    for info in list(blind.list()):
        store.put(info.key, blind.get(info.key))
        blind.delete(info.key)


@pytest.fixture
def cargo(fixture_set: Sets) -> Cargo:
    return a_cargo(fixture_set(UPGRADED).data)


@pytest.fixture
def own_cargo(fixture_set: Sets, writable_copy: Copy) -> Cargo:
    """A cargo whose files the test may change."""
    return a_cargo(writable_copy(fixture_set(UPGRADED).data))


def the_manifest(store: ObjectStore) -> Manifest:
    (found,) = manifests(store)
    return found


def test_a_manifest_states_what_the_segment_is_and_where_it_comes_from(cargo: Cargo, memory_store: ObjectStore) -> None:
    shipped = cargo.ship(memory_store, now_ms=5)
    manifest = the_manifest(memory_store)
    key = parse_key(shipped.manifest_key)
    assert key is not None
    assert (key.segment_id, key.base_offset, key.partition) == (str(manifest.segment_id), cargo.base_offset, 0)
    assert (manifest.topic, manifest.partition, manifest.topic_id) == ("payments", 0, cargo.provenance.topic_id)
    assert (manifest.cluster_id, manifest.broker_id) == (cargo.provenance.cluster_id, 1)
    assert manifest.log_directory == str(cargo.path.parent.parent)
    assert (manifest.base_offset, manifest.next_base_offset) == (cargo.base_offset, cargo.segment.next_base_offset)
    assert manifest.last_offset == cargo.segment.next_base_offset - 1
    assert manifest.leader_epochs == cargo.segment.leader_epochs
    assert manifest.snapshot_origin == ORIGIN
    assert manifest.created_at_ms == 5


def test_objects_go_first_each_read_back_and_the_manifest_last(cargo: Cargo, store: ObjectStore) -> None:
    recording = RecordingStore(store)
    cargo.ship(recording)
    kinds = [part.kind for part in cargo.segment.files]
    assert len(kinds) == 6
    steps = [(verb, key.rpartition(".")[2]) for verb, key in recording.calls]
    objects = [step for kind in kinds for step in (("put", kind), ("read", kind))]
    heads = [("head", kind) for kind in kinds]
    assert steps == [*objects, *heads, ("put", "manifest"), ("read", "manifest")]


@pytest.mark.parametrize("act", [flip_byte, truncate, lose])
@pytest.mark.parametrize("kind", ["log", "index", "timeindex", "txnindex", "leader-epoch-checkpoint", "snapshot"])
def test_a_store_that_changes_an_object_is_caught_before_anything_is_visible(
    act: Callable[[ObjectStore, str], None], kind: str, cargo: Cargo, memory_store: ObjectStore
) -> None:
    def on_this_kind(inner: ObjectStore, key: str) -> None:
        if key.endswith(f".{kind}"):
            act(inner, key)

    with pytest.raises(VerificationError, match=kind) as raised:
        cargo.ship(ActingStore(memory_store, on_this_kind))
    assert raised.value.hint
    assert manifest_keys(memory_store) == []
    assert cargo.find(memory_store) is None
    cargo.ship(memory_store)
    check_objects(memory_store, the_manifest(memory_store))


@pytest.mark.parametrize("act", [truncate, lose])
def test_an_object_that_goes_after_it_was_verified_is_missed_before_the_manifest(
    act: Callable[[ObjectStore, str], None], cargo: Cargo, memory_store: ObjectStore
) -> None:
    def on_the_last(inner: ObjectStore, key: str) -> None:
        if key.endswith(".snapshot"):
            act(inner, key.replace(".snapshot", ".log"))

    with pytest.raises(VerificationError, match=r"\.log: gone or changed after it was verified"):
        cargo.ship(ActingStore(memory_store, on_the_last))
    assert manifest_keys(memory_store) == []


@pytest.mark.parametrize("act", [flip_byte, truncate, lose])
def test_a_manifest_that_the_store_changes_is_an_error_and_makes_nothing_visible(
    act: Callable[[ObjectStore, str], None], cargo: Cargo, memory_store: ObjectStore
) -> None:
    def on_manifest(inner: ObjectStore, key: str) -> None:
        if is_manifest(key):
            act(inner, key)

    with pytest.raises(VerificationError, match="manifest"):
        cargo.ship(ActingStore(memory_store, on_manifest))
    if manifest_keys(memory_store):
        with pytest.raises(FormatError, match="manifest"):
            cargo.find(memory_store)
    else:
        assert cargo.find(memory_store) is None


def test_other_content_has_other_keys_and_overwrites_nothing(fixture_set: Sets, memory_store: ObjectStore) -> None:
    data = fixture_set(UPGRADED).data
    a_cargo(data).ship(memory_store)
    before = {info.key: memory_store.get(info.key) for info in memory_store.list()}
    ship_at_the_same_instant(memory_store, a_cargo(data, ANOTHER_SNAPSHOT))
    after = {info.key: memory_store.get(info.key) for info in memory_store.list()}
    assert before.items() < after.items()
    assert len(after) == 2 * len(before)


@dataclass
class LostAnswerStore(PassingStore):
    """Writes, and then claims that the key was taken: what a client sees whose first answer was lost."""

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        super().put(key, body, if_absent=if_absent)
        if if_absent:
            raise ObjectExistsError(f"{key}: the object already exists", key=key)


def test_a_manifest_whose_answer_was_lost_counts(cargo: Cargo, memory_store: ObjectStore) -> None:
    assert cargo.ship(LostAnswerStore(memory_store)) == cargo.find(memory_store)


@pytest.mark.parametrize("act", [flip_byte, truncate])
def test_a_damaged_manifest_in_the_way_is_the_stores_fault_and_not_the_segments(
    act: Callable[[ObjectStore, str], None], cargo: Cargo, memory_store: ObjectStore
) -> None:
    key = cargo.ship(memory_store).manifest_key
    act(memory_store, key)
    with pytest.raises(VerificationError, match=key) as raised:
        cargo.ship(memory_store)
    assert raised.value.hint


def test_an_existing_manifest_that_names_something_else_is_not_accepted(
    cargo: Cargo, memory_store: ObjectStore
) -> None:
    key = cargo.ship(memory_store).manifest_key
    manifest = the_manifest(memory_store)
    others = tuple(replace(entry, sha256="0" * 64) for entry in manifest.objects)
    memory_store.put(key, write_manifest(replace(manifest, objects=others)))
    with pytest.raises(VerificationError, match="names other objects"):
        cargo.ship(memory_store)


def test_a_store_that_ignores_the_condition_still_ends_with_one_manifest(
    cargo: Cargo, memory_store: ObjectStore
) -> None:
    class Ignoring(PassingStore):
        def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:  # noqa: ARG002
            super().put(key, body)

    first = cargo.ship(Ignoring(memory_store), now_ms=1)
    assert cargo.ship(Ignoring(memory_store), now_ms=2).objects == first.objects
    check_objects(memory_store, the_manifest(memory_store))


def rewrite(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def rename_away(path: Path) -> None:
    path.rename(f"{path}.deleted")


@pytest.mark.parametrize("change", [rewrite, grow, shrink, rename_away])
def test_a_segment_that_changes_before_it_is_uploaded_is_left_for_the_next_run(
    change: Callable[[Path], None], own_cargo: Cargo, store: ObjectStore
) -> None:
    change(own_cargo.path)
    with pytest.raises(SegmentChangedError, match=own_cargo.path.name):
        own_cargo.ship(store)
    assert manifest_keys(store) == []


@pytest.mark.parametrize("change", [rewrite, grow, shrink, rename_away])
def test_a_segment_that_changes_after_it_was_uploaded_gets_no_manifest(
    change: Callable[[Path], None], own_cargo: Cargo, memory_store: ObjectStore
) -> None:
    def on_snapshot(_: ObjectStore, key: str) -> None:
        if key.endswith(".snapshot"):
            change(own_cargo.path)

    with pytest.raises(SegmentChangedError, match=own_cargo.path.name):
        own_cargo.ship(ActingStore(memory_store, on_snapshot))
    assert manifest_keys(memory_store) == []


def test_a_segment_that_looks_the_same_and_is_not_is_a_verification_error(
    own_cargo: Cargo, memory_store: ObjectStore
) -> None:
    times = own_cargo.path.stat()
    with own_cargo.path.open("r+b") as file:
        file.write(b"\1")
    os.utime(own_cargo.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(VerificationError, match="CRC-32C"):
        own_cargo.ship(memory_store)
    assert list(memory_store.list()) == []


def test_a_segment_that_cannot_be_opened_any_more_is_not_a_fault_of_the_store(
    own_cargo: Cargo, memory_store: ObjectStore
) -> None:
    def refusing() -> None:
        raise PermissionError(13, "Permission denied")

    log, *others = own_cargo.segment.files
    files = (replace(log, open_body=refusing), *others)
    cargo = replace(own_cargo, segment=replace(own_cargo.segment, files=files))
    with pytest.raises(LogDirError, match="Permission denied"):
        cargo.ship(memory_store)


def test_what_has_no_manifest_is_not_shipped(cargo: Cargo, store: ObjectStore) -> None:
    store.delete(cargo.ship(store).manifest_key)
    assert cargo.find(store) is None


def test_only_the_segment_asked_for_is_found(cargo: Cargo, memory_store: ObjectStore) -> None:
    cargo.ship(memory_store)
    base, end = cargo.base_offset, cargo.segment.next_base_offset
    shipped = ShippedTopic(memory_store, Flat(), cargo.provenance.cluster_id, "payments")
    assert shipped.find(0, base, end) is not None
    assert shipped.find(0, 0, base) is None
    assert shipped.find(0, end, end + 1) is None
    assert shipped.find(1, base, end) is None
    for cluster_id, topic in ((None, "payments"), ("another", "payments"), (cargo.provenance.cluster_id, "pay")):
        assert ShippedTopic(memory_store, Flat(), cluster_id, topic).find(0, base, end) is None


def of_topic_id(cargo: Cargo, topic_id: str | None) -> Cargo:
    return replace(cargo, provenance=replace(cargo.provenance, topic_id=topic_id))


@pytest.mark.parametrize(
    ("shipped_as", "asked_as", "is_found"),
    [
        (None, None, True),
        (None, "hB0sdH4WT1qRrTrcZne_hA", True),
        ("hB0sdH4WT1qRrTrcZne_hA", None, True),
        ("hB0sdH4WT1qRrTrcZne_hA", "hB0sdH4WT1qRrTrcZne_hA", True),
        ("hB0sdH4WT1qRrTrcZne_hA", "F3RTgxfTQk6MS45WLGHyug", False),
    ],
)
def test_a_segment_is_found_whenever_its_topic_id_became_known_but_not_for_another_topic_of_the_name(
    shipped_as: str | None, asked_as: str | None, is_found: bool, cargo: Cargo, memory_store: ObjectStore
) -> None:
    shipped = of_topic_id(cargo, shipped_as).ship(memory_store)
    assert cargo.find(memory_store, topic_id=asked_as) == (shipped if is_found else None)


@pytest.mark.parametrize("act", [truncate, lose])
def test_a_manifest_with_missing_objects_is_not_a_shipped_segment(
    act: Callable[[ObjectStore, str], None], cargo: Cargo, store: ObjectStore
) -> None:
    shipped = cargo.ship(store)
    key = shipped.manifest_key.replace(".manifest", ".txnindex")
    act(store, key)
    with pytest.raises(VerificationError, match="txnindex") as raised:
        cargo.find(store)
    assert shipped.manifest_key in str(raised.value)


@pytest.mark.parametrize("broken", [0, 1], ids=["the first", "the second"])
def test_one_valid_manifest_makes_a_segment_done(broken: int, fixture_set: Sets, memory_store: ObjectStore) -> None:
    data = fixture_set(UPGRADED).data
    a_cargo(data).ship(memory_store)
    ship_at_the_same_instant(memory_store, a_cargo(data, ANOTHER_SNAPSHOT))
    keys = manifest_keys(memory_store)
    flip_byte(memory_store, keys[broken])
    found = a_cargo(data).find(memory_store)
    assert found is not None
    assert found.manifest_key == keys[1 - broken]


def test_a_listing_that_raced_with_another_run_is_not_damage(cargo: Cargo, memory_store: ObjectStore) -> None:
    """The listing passed the place of the first objects before they were there, and then met their manifest."""

    class Racing(PassingStore):
        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            return (info for info in super().list(prefix) if not info.key.endswith((".index", ".log")))

    shipped = cargo.ship(memory_store)
    assert cargo.find(Racing(memory_store)) == shipped


def test_a_store_that_fails_while_it_is_read_back_is_a_failing_store(cargo: Cargo, memory_store: ObjectStore) -> None:
    class Failing(PassingStore):
        def head(self, key: str) -> ObjectInfo:
            raise StoreError(f"{key}: no", key=key)

    with pytest.raises(StoreError):
        cargo.ship(Failing(memory_store))
    assert manifest_keys(memory_store) == []


class _Elsewhere:
    """A store in which another run ships the same segment, with another snapshot, after the first objects of ours."""

    def __init__(self, store: ObjectStore, other: Cargo) -> None:
        self._store = store
        self._other: Cargo | None = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_stream(self, key: str, open_body: Any, **facts: Any) -> None:
        self._store.put_stream(key, open_body, **facts)
        if self._other is not None:
            other, self._other = self._other, None
            other.ship(self._store)


def test_a_segment_that_another_run_ships_meanwhile_gets_one_manifest(
    fixture_set: Sets, memory_store: ObjectStore
) -> None:
    data = fixture_set(UPGRADED).data
    other = a_cargo(data, snapshot=ANOTHER_SNAPSHOT)
    with pytest.raises(ShippedMeanwhileError, match="another run"):
        a_cargo(data).ship(_Elsewhere(memory_store, other))
    manifests = [info.key for info in memory_store.list() if info.key.endswith(".manifest")]
    assert len(manifests) == 1
    with pytest.raises(ShippedMeanwhileError):
        a_cargo(data).ship(memory_store)


@pytest.mark.parametrize("same", [True, False], ids=["the same T", "another T"])
def test_a_holder_that_was_stopped_before_its_manifest_does_no_harm_when_it_goes_on(
    same: bool, fixture_set: Sets, memory_store: ObjectStore
) -> None:
    """Stopped after its last listing, it goes on when another has finished: the worst that two runs can do."""
    data = fixture_set(UPGRADED).data
    other = a_cargo(data) if same else a_cargo(data, snapshot=ANOTHER_SNAPSHOT)
    stopped = a_cargo(data)

    class Stopping(PassingStore):
        def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
            if is_manifest(key) and not manifest_keys(self.inner):
                other.ship(self.inner)
            super().put(key, body, if_absent=if_absent)

    stopped.ship(Stopping(memory_store))
    found = manifests(memory_store)
    assert len(found) == (1 if same else 2)
    for manifest in found:
        check_objects(memory_store, manifest)
    assert len({manifest.log.sha256 for manifest in found}) == 1
    assert stopped.find(memory_store) is not None
    reader = StoreReader(store=memory_store, listing=Flat().listing(memory_store, bool))
    assert [reader.verify(key, reads_objects=True).problems for key in manifest_keys(memory_store)] == [()] * len(found)


def test_a_log_start_that_has_advanced_leaves_the_segment_for_the_next_run(
    own_cargo: Cargo, memory_store: ObjectStore
) -> None:
    starts = own_cargo.path.parent.parent / "log-start-offset-checkpoint"

    def advance(_: ObjectStore, key: str) -> None:
        if key.endswith(".snapshot"):
            starts.write_text(f"0\n1\npayments 0 {own_cargo.base_offset + 1}\n")

    with pytest.raises(SegmentChangedError, match="the log starts at offset"):
        own_cargo.ship(ActingStore(memory_store, advance))
    assert manifest_keys(memory_store) == []


def test_a_partition_that_is_deleted_or_moved_meanwhile_is_left(own_cargo: Cargo, memory_store: ObjectStore) -> None:
    def delete(_: ObjectStore, key: str) -> None:
        if key.endswith(".snapshot"):
            own_cargo.path.parent.rename(own_cargo.path.parent.with_name("payments-0.0123456789abcdef-delete"))

    with pytest.raises(SegmentChangedError, match="gone"):
        own_cargo.ship(ActingStore(memory_store, delete))
    assert manifest_keys(memory_store) == []
