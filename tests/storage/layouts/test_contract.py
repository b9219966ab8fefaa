"""What every layout must hold, whatever its keys: one suite, on the memory store.

Writing follows ``storage.layouts.protocol`` step by step, so that a writer may be stopped after any of its writes.
"""

from __future__ import annotations

import hashlib
import io
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import pytest

from resnap.storage.crc32c import crc32c
from resnap.storage.encryption import NO_KEYS
from resnap.storage.errors import FormatError, VerificationError
from resnap.storage.layouts import SegmentForm
from resnap.storage.layouts.aiven.layout import Aiven
from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.local_tiered import BrokersFolders
from resnap.storage.layouts.manifest import TOMBSTONE, ObjectKind
from resnap.storage.layouts.mirror import Mirror
from resnap.storage.layouts.segments import (
    NewSegment,
    Provenance,
    SegmentFile,
    ShippedMeanwhileError,
    TopicIdUnknownError,
    known_topic_id,
)
from resnap.storage.log.checkpoints import LeaderEpoch
from resnap.storage.log.names import TopicPartition
from resnap.storage.sources.files import Sources
from resnap.storage.sources.registry import READABLE, TIERED, layout_in, layout_named
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.storage.stores.protocol import length_of
from resnap.tiering.shipping.shipped import ShippedTopic
from tests.storage.layouts.manifests import a_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.layouts.protocol import Layout, Tiered
    from resnap.storage.layouts.segments import SegmentObjects
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.stores.protocol import ObjectStore


def key_elsewhere(segment: NewSegment, segment_id: UUID, kind: ObjectKind) -> str:
    """Return a key that no layout has; the manifest is where that of ``flat`` is."""
    return f"elsewhere/{known_topic_id(segment)}/{segment.provenance.topic_partition}/{segment_id}.{kind}"


LAYOUTS: Final[dict[str, Layout]] = {
    "flat": Flat(),
    "local-tiered": layout_named("local-tiered"),
    "with keys of its own": Flat("with keys of its own", object_key=key_elsewhere),
    "aiven": Aiven(),
    "aiven, in small chunks": Aiven(SegmentForm(chunk_size=100, compression="zstd")),
    "aiven, under a prefix": Aiven(SegmentForm(key_prefix="tiered/kafka/")),
    "aiven, under a prefix without a slash": Aiven(SegmentForm(key_prefix="tiered-")),
}
IDS_IN_KEYS: Final = sorted(LAYOUTS.keys() - {"flat"})
PAYMENTS: Final = TopicPartition("payments", 3)
TOPIC_ID: Final = "f3L0rq1dQfuMgT5AJqVZ0g"
OTHER_ID: Final = "Zx8pYt2nRr6vKw1mQe4uLg"


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
def layout(request: pytest.FixtureRequest) -> Layout:
    found: Layout = request.param
    return found


@pytest.fixture
def store() -> ObjectStore:
    return MemoryObjectStore(f"contract-{uuid4()}")


def a_segment(base: int, end: int, *, snapshot: bytes = b"snapshot", **changes: Any) -> NewSegment:
    """Return a segment whose files differ from those of every other one."""
    bodies = {
        ObjectKind.LOG: f"records [{base}, {end})".encode() * 40,
        ObjectKind.INDEX: b"offset index",
        ObjectKind.TIME_INDEX: b"time index",
        ObjectKind.TXN_INDEX: b"aborted",
        ObjectKind.LEADER_EPOCH_CHECKPOINT: b"0\n1\n4 0\n",
        ObjectKind.SNAPSHOT: snapshot,
    }
    provenance: dict[str, Any] = {
        "cluster_id": "bTqSZkTYQ0uWQFZlDcFAhw",
        "broker_id": 1,
        "log_directory": "/var/lib/kafka",
        "topic_partition": PAYMENTS,
        "topic_id": TOPIC_ID,
        "compaction_assumption": None,
        "resnap_version": "0.0.0",
    }
    return NewSegment(
        provenance=Provenance(**(provenance | changes)),
        path=f"/var/lib/kafka/payments-3/{base:020d}.log",
        base_offset=base,
        next_base_offset=end,
        last_offset=end - 1,
        max_timestamp_ms=1_600_000_000_000 + end,
        leader_epochs=(LeaderEpoch(4, base),),
        files=tuple(a_file(kind, body) for kind, body in bodies.items()),
        origin=a_manifest().snapshot_origin,
        created_at_ms=1_700_000_000_000 + end,
    )


def a_file(kind: ObjectKind, body: bytes) -> SegmentFile:
    return SegmentFile(
        kind=kind,
        open_body=partial(io.BytesIO, body),
        size_bytes=len(body),
        crc32c=crc32c(body),
        sha256=hashlib.sha256(body).hexdigest(),
    )


def writes_of(objects: SegmentObjects) -> Iterator[tuple[str, bytes]]:
    """Yield all writes of a segment, in their order."""
    for one in (*objects.files, *objects.beside):
        with one.open_body() as body:
            yield one.key, body.read()
    yield objects.manifest_key, objects.manifest


def ship(layout: Layout, segment: NewSegment, store: ObjectStore, *, most: int | None = None) -> SegmentObjects:
    """Ship ``segment``, or stop after ``most`` writes, as a writer that is killed."""
    objects = layout.objects_of(segment, store)
    layout.check_missing(segment, store, objects.manifest_key)
    for key, body in list(writes_of(objects))[:most]:
        store.put(key, body)
    return objects


def read(layout: Tiered | Mirror, store: ObjectStore) -> LogDir:
    return layout.log_dir(store, store.list(), None)


def visible(layout: Tiered | Mirror, store: ObjectStore) -> list[tuple[int, int | None]]:
    """Return the offsets of all segments that a reader sees; nothing may be wrong with any of them."""
    log_dir = read(layout, store)
    assert log_dir.problems == ()
    return [(one.base_offset, one.next_base_offset) for found in log_dir.partitions for one in found.segments]


def files_of(partition: PartitionDir) -> Iterator[tuple[int, ObjectKind, bytes]]:
    """Yield what a reader finds under the locators of ``partition``."""
    sources = Sources()
    for segment in partition.segments:
        yield segment.base_offset, ObjectKind.LOG, sources.read(segment.path)
        for kind in (ObjectKind.INDEX, ObjectKind.TIME_INDEX, ObjectKind.TXN_INDEX):
            yield segment.base_offset, kind, sources.read(segment.sibling(kind))
    for snapshot in partition.snapshots:
        yield snapshot.offset, ObjectKind.SNAPSHOT, sources.read(snapshot.path)


def test_what_is_shipped_is_read_back_byte_for_byte(layout: Layout, store: ObjectStore) -> None:
    segments = [a_segment(0, 10), a_segment(10, 25, snapshot=b"other")]
    for segment in segments:
        ship(layout, segment, store)
    (partition,) = read(layout, store).partitions
    assert (partition.topic_partition, partition.topic_id) == (PAYMENTS, TOPIC_ID)
    assert partition.high_watermark == 25
    assert partition.log_start_offset == 0
    assert not any(segment.is_active for segment in partition.segments)
    expected = {
        (segment.next_base_offset if file.kind is ObjectKind.SNAPSHOT else segment.base_offset, file.kind): body.read()
        for segment in segments
        for file in segment.files
        if file.kind is not ObjectKind.LEADER_EPOCH_CHECKPOINT
        for body in [file.open_body()]
    }
    assert {(offset, kind): body for offset, kind, body in files_of(partition)} == expected
    assert partition.leader_epochs is not None
    assert Sources().read(partition.leader_epochs) == b"0\n1\n4 0\n"
    assert [one.size_bytes for one in partition.segments] == [one.files[0].size_bytes for one in segments]


def test_the_manifest_is_written_last_and_nothing_before_it_is_seen(layout: Layout, store: ObjectStore) -> None:
    first, second = a_segment(0, 10), a_segment(10, 25)
    for segment, seen in ((first, []), (second, [(0, 10)])):
        writes = list(writes_of(layout.objects_of(segment, store)))
        for key, body in writes[:-1]:
            store.put(key, body)
            assert visible(layout, store) == seen
        store.put(*writes[-1])
        assert visible(layout, store) == [*seen, (segment.base_offset, segment.next_base_offset)]


def test_after_a_kill_at_any_write_the_next_run_completes_the_store(layout: Layout) -> None:
    whole = MemoryObjectStore(f"contract-{uuid4()}")
    count = len(list(writes_of(ship(layout, a_segment(0, 10), whole))))
    for writes in range(1, count + 1):
        store = MemoryObjectStore(f"contract-{uuid4()}")
        ship(layout, a_segment(0, 10), store, most=writes)
        assert visible(layout, store) == ([(0, 10)] if writes == count else [])
        if writes < count:
            ship(layout, a_segment(0, 10), store)
        assert contents(store) == contents(whole)


def contents(store: ObjectStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list()}


def test_no_two_segments_share_a_key(layout: Layout, store: ObjectStore) -> None:
    segments = [
        a_segment(0, 10),
        a_segment(0, 10, snapshot=b"other"),
        a_segment(0, 11),
        a_segment(10, 25),
        a_segment(0, 10, topic_id=OTHER_ID),
        a_segment(0, 10, topic_partition=TopicPartition("payments", 4)),
        a_segment(0, 10, topic_partition=TopicPartition("payments-3", 3)),
    ]
    keys = [key for segment in segments for key, _ in writes_of(layout.objects_of(segment, store))]
    assert len(keys) == len(set(keys))


def test_equal_segments_become_equal_objects(layout: Layout, store: ObjectStore) -> None:
    one, other = (list(writes_of(layout.objects_of(a_segment(0, 10), store))) for _ in range(2))
    assert one == other


def test_what_is_shipped_is_found_by_its_topic_and_by_its_partition(layout: Layout, store: ObjectStore) -> None:
    shipped = {ship(layout, a_segment(base, end), store).manifest_key: (base, end) for base, end in ((0, 10), (10, 25))}
    other = a_segment(0, 10, topic_partition=TopicPartition("payments", 4))
    ship(layout, other, store)
    ship(layout, a_segment(0, 10, topic_partition=TopicPartition("payments-3", 3)), store)
    cluster = other.provenance.cluster_id
    of_topic = list(store.list(*layout.key_prefixes(cluster, "payments", None)))
    places = {
        info.key: place for info in of_topic if (place := layout.segment_of_manifest(info, "payments")) is not None
    }
    assert {place.topic_id for place in places.values()} == {TOPIC_ID}
    assert {key: place.base_offset for key, place in places.items() if place.partition == PAYMENTS.partition} == {
        key: base for key, (base, _) in shipped.items()
    }
    assert sorted(place.partition for place in places.values()) == [3, 3, 4]
    prefixes = layout.key_prefixes(cluster, "payments", (TOPIC_ID, PAYMENTS.partition))
    of_partition = [info for prefix in prefixes for info in store.list(prefix)]
    assert {info.key for info in of_partition if layout.segment_of_manifest(info, "payments")} == shipped.keys()


def test_a_manifest_states_which_objects_must_be_there(layout: Layout, store: ObjectStore) -> None:
    segment = a_segment(0, 10)
    key = ship(layout, segment, store).manifest_key
    found = layout.read_manifest(key, store.get(key))
    assert (found.base_offset, found.next_base_offset, found.manifest_key) == (0, 10, key)
    assert found.log_bytes == segment.files[0].size_bytes
    assert found.leader_epochs == segment.leader_epochs
    assert found.made[0] == segment.created_at_ms
    (known,) = ShippedTopic(store, layout, segment.provenance.cluster_id, "payments").with_origins([found])
    assert known.snapshot_origin == segment.origin
    assert all(length_of(store, one) == size for one, size in found.objects)
    assert found.log_key in {one for one, _ in found.objects}
    assert Sources().read(f"{store.url}/{found.snapshot_key}") == b"snapshot"


def test_a_damaged_manifest_is_an_error_and_makes_its_partition_a_problem(layout: Layout, store: ObjectStore) -> None:
    key = ship(layout, a_segment(0, 10), store).manifest_key
    body = store.get(key)
    for damaged in (b"", body[: len(body) // 2], body[:-1] + bytes([body[-1] ^ 1]) * 2):
        with pytest.raises(FormatError):
            layout.read_manifest(key, damaged)
    store.put(key, b"")
    log_dir = read(layout, store)
    assert (len(log_dir.partitions), len(log_dir.problems)) == (0, 1)


@pytest.mark.parametrize("change", ["gone", "cut"])
def test_a_segment_whose_log_is_gone_or_cut_is_a_problem_of_its_partition(
    layout: Layout, store: ObjectStore, change: str
) -> None:
    key = ship(layout, a_segment(0, 10), store).manifest_key
    log = layout.read_manifest(key, store.get(key)).log_key
    body = store.get(log)
    if change == "gone":
        store.delete(log)
    else:
        store.put(log, body[:-1])
    log_dir = read(layout, store)
    assert (len(log_dir.partitions), len(log_dir.problems)) == (0, 1)


def test_nothing_is_shipped_beside_what_another_run_has_shipped(layout: Layout, store: ObjectStore) -> None:
    ship(layout, a_segment(0, 10), store)
    with pytest.raises(ShippedMeanwhileError):
        ship(layout, a_segment(0, 10, snapshot=b"other"), store)
    ship(layout, a_segment(10, 25), store)
    assert visible(layout, store) == [(0, 10), (10, 25)]


def test_a_manifest_that_is_there_already_must_be_the_same(layout: Layout, store: ObjectStore) -> None:
    objects = ship(layout, a_segment(0, 10), store)
    layout.check_same(objects.manifest_key, store.get(objects.manifest_key), objects.manifest)
    with pytest.raises((FormatError, VerificationError)):
        layout.check_same(objects.manifest_key, b"something else", objects.manifest)


def test_segments_with_a_gap_between_them_are_a_problem(layout: Layout, store: ObjectStore) -> None:
    ship(layout, a_segment(0, 10), store)
    ship(layout, a_segment(15, 25), store)
    log_dir = read(layout, store)
    assert [str(problem.error).partition(":")[0] for problem in log_dir.problems] == ["payments-3"]
    assert log_dir.partitions == ()


def test_of_two_topics_of_one_name_a_reader_takes_the_one_that_is_chosen(layout: Layout, store: ObjectStore) -> None:
    ship(layout, a_segment(0, 10), store)
    ship(layout, a_segment(0, 20, topic_id=OTHER_ID), store)
    assert len(read(layout, store).problems) == 1
    log_dir = layout.log_dir(store, store.list(), None, topic_ids={"payments": OTHER_ID})
    assert [partition.topic_id for partition in log_dir.partitions] == [OTHER_ID]


def test_a_reader_gets_the_partitions_that_it_wants(layout: Layout, store: ObjectStore) -> None:
    ship(layout, a_segment(0, 10), store)
    ship(layout, a_segment(0, 10, topic_partition=TopicPartition("payments", 4)), store)
    log_dir = layout.log_dir(store, store.list(), lambda one: one.partition == 4)
    assert [partition.topic_partition.partition for partition in log_dir.partitions] == [4]


def test_what_others_keep_in_the_store_is_not_seen(layout: Layout, store: ObjectStore) -> None:
    store.put("notes/readme.txt", b"not ours")
    store.put(".resnap/leases/payments", b"a lease")
    assert visible(layout, store) == []
    ship(layout, a_segment(0, 10), store)
    assert visible(layout, store) == [(0, 10)]


@pytest.mark.parametrize("name", IDS_IN_KEYS)
def test_a_layout_with_the_topic_id_in_its_keys_needs_it(name: str, store: ObjectStore) -> None:
    with pytest.raises(TopicIdUnknownError, match="nothing says the id of payments"):
        LAYOUTS[name].objects_of(a_segment(0, 10, topic_id=None), store)


@pytest.mark.parametrize("name", ["flat", "local-tiered"])
def test_an_id_that_has_a_tombstone_is_not_used_again(name: str, store: ObjectStore) -> None:
    layout = LAYOUTS[name]
    first = ship(layout, a_segment(0, 10), store)
    store.put(first.manifest_key, TOMBSTONE)
    assert visible(layout, store) == []
    again = ship(layout, a_segment(0, 10), store)
    assert again.manifest_key != first.manifest_key
    assert visible(layout, store) == [(0, 10)]


@pytest.mark.parametrize("name", ["flat", "local-tiered"])
def test_a_manifest_that_names_what_is_gone_gives_way(name: str, store: ObjectStore) -> None:
    layout, segment = LAYOUTS[name], a_segment(0, 10, snapshot=b"other")
    first = ship(layout, a_segment(0, 10), store)
    store.delete(first.files[0].key)
    objects = layout.objects_of(segment, store)
    assert layout.check_missing(segment, store, objects.manifest_key) == [first.manifest_key]


@pytest.mark.parametrize("name", ["flat", "aiven", "mirror"])
def test_a_layout_knows_its_own_keys_alone(name: str, store: ObjectStore) -> None:
    known: dict[str, Tiered | Mirror] = {"flat": Flat(), "aiven": Aiven(), "mirror": Mirror()}
    keys = {
        "flat": [key for key, _ in writes_of(Flat().objects_of(a_segment(0, 10), store))],
        "aiven": [file.key for file in Aiven().objects_of(a_segment(0, 10), store).files],
        "mirror": ["payments-3/00000000000000000000.log", "meta.properties"],
    }
    assert {other for other, found in keys.items() if all(map(known[name].is_key, found))} == {name}
    assert not known[name].is_key("notes/readme.txt")


def test_a_copy_of_a_log_dir_is_read_with_its_last_segment_active(store: ObjectStore) -> None:
    for base in (0, 10):
        for kind in (ObjectKind.LOG, ObjectKind.INDEX):
            store.put(f"payments-3/{base:020d}.{kind}", f"{kind} {base}".encode())
    store.put("payments-3/00000000000000000010.snapshot", b"snapshot")
    store.put("payments-3/leader-epoch-checkpoint", b"0\n1\n4 0\n")
    (partition,) = read(Mirror(), store).partitions
    assert visible(Mirror(), store) == [(0, 10), (10, None)]
    assert partition.topic_partition == PAYMENTS
    sources = Sources()
    assert [sources.read(segment.path) for segment in partition.segments] == [b"log 0", b"log 10"]
    assert [sources.read(snapshot.path) for snapshot in partition.snapshots] == [b"snapshot"]
    assert partition.leader_epochs is not None
    assert sources.read(partition.leader_epochs) == b"0\n1\n4 0\n"


def test_what_a_killed_writer_has_left_is_named_by_nothing(layout: Layout, store: ObjectStore) -> None:
    written = ship(layout, a_segment(0, 10), store, most=-1)
    assert layout.unnamed_objects(store, list(store.list())).unreadable == ()
    left = {info.key for info in layout.unnamed_objects(store, list(store.list())).objects}
    of_others = {file.key for file in written.files if Flat().deletion_of(file.key) is None}  # theirs to delete
    kept_by_them = {one.key for one in written.beside} if of_others else set()
    assert left == {key for key, _ in writes_of(written)} - {written.manifest_key} - of_others - kept_by_them
    assert all(layout.deletion_of(key) is not None for key in left | kept_by_them)
    store.put(written.manifest_key, written.manifest)
    assert layout.unnamed_objects(store, list(store.list())).objects == ()


def test_parts_that_are_rewritten_are_what_readers_find_and_nothing_names_the_old_ones(
    layout: Layout, store: ObjectStore
) -> None:
    keys = [ship(layout, a_segment(base, end), store).manifest_key for base, end in ((0, 10), (10, 25))]
    (before,) = read(layout, store).partitions
    sources = Sources()
    kept = {one: sources.read(one) for part in before.segments for one in (part.path, part.sibling("index"))}
    parts = {ObjectKind.SNAPSHOT: b"right snapshot", ObjectKind.TXN_INDEX: b"right index"}
    origin = a_manifest().snapshot_origin
    rewritten = layout.replacements(store.get, keys[0], parts, origin, NO_KEYS)
    for key, body in rewritten.writes:
        store.put(key, body)
    (after,) = read(layout, store).partitions
    assert [sources.read(snapshot.path) for snapshot in after.snapshots] == [b"right snapshot", b"snapshot"]
    assert [sources.read(segment.sibling("txnindex")) for segment in after.segments] == [b"right index", b"aborted"]
    assert {one: sources.read(one) for part in after.segments for one in (part.path, part.sibling("index"))} == kept
    assert {info.key for info in layout.unnamed_objects(store, list(store.list())).objects} == set(rewritten.replaced)
    for key in rewritten.replaced:
        store.delete(key)
    assert visible(layout, store) == [(0, 10), (10, 25)]
    assert not layout.replacements(store.get, keys[0], parts, origin, NO_KEYS).replaced


def test_what_says_of_a_segment_that_is_gone_is_named_by_nothing(store: ObjectStore) -> None:
    layout = LAYOUTS["aiven"]
    written = ship(layout, a_segment(0, 10), store)
    for key in (*(file.key for file in written.files), written.manifest_key):
        store.delete(key)
    assert [info.key for info in layout.unnamed_objects(store, list(store.list())).objects] == [written.beside[0].key]


def test_beside_a_manifest_that_cannot_be_read_nothing_is_unnamed(store: ObjectStore) -> None:
    layout = LAYOUTS["flat"]
    ship(layout, a_segment(0, 10), store, most=-1)
    torn = ship(layout, a_segment(10, 25), store)
    store.put(torn.manifest_key, b"torn")
    found = layout.unnamed_objects(store, list(store.list()))
    assert (found.objects, len(found.unreadable)) == ((), 1)


def test_segments_are_listed_and_read_one_by_one_and_their_files_vouched_for(
    layout: Layout, store: ObjectStore
) -> None:
    shipped = [ship(layout, a_segment(base, end), store) for base, end in ((0, 10), (10, 25))]
    listing = layout.listing(store, lambda topic: topic.endswith("payments"))
    assert sorted(listing.manifests) == [one.manifest_key for one in shipped]
    assert len({listing.folder(key) for key in listing.manifests}) == 1
    assert len({listing.source(key) for key in listing.manifests}) == 1
    for key, one in zip(listing.manifests, shipped, strict=True):
        found, again = listing.read(key), layout.read_manifest(key, store.get(key))
        assert (found.facts.topic, found.facts.partition) == PAYMENTS
        assert (found.facts.base_offset, found.facts.next_base_offset) == (again.base_offset, again.next_base_offset)
        assert (found.facts.snapshot_key, found.facts.log_bytes) == (again.snapshot_key, again.log_bytes)
        assert (found.problems, found.missing, bool(found.objects)) == ((), (), layout.has_digests)
        store.delete(one.files[-1].key)
        assert layout.listing(store, bool).read(key).missing or layout.has_digests
    assert not layout.listing(store, lambda _: False).manifests


def test_digests_vouch_for_all_files_of_a_partition_or_for_none(layout: Layout, store: ObjectStore) -> None:
    for base, end in ((0, 10), (10, 25)):
        ship(layout, a_segment(base, end), store)
    (partition,) = read(layout, store).partitions
    vouched = layout.manifest_records(store, partition)
    assert len(vouched.leader_epochs) == len(partition.segments)
    assert vouched.passed_over == ()
    snapshots = {snapshot.path for snapshot in partition.snapshots}
    assert snapshots <= vouched.digests.keys() if layout.has_digests else not vouched.digests


@pytest.mark.parametrize("layout", [one for one in TIERED if one.needed_parts], ids=lambda one: one.name)
def test_what_brokers_read_is_found_without_a_manifest_of_ours(layout: Tiered, store: ObjectStore) -> None:
    """Brokers name their segments in the same way: keys alone show what is whole."""
    ship(LAYOUTS[layout.name], a_segment(0, 10), store)
    found = [one for info in store.list() if (one := layout.brokers_object(info.key)) is not None]
    assert {(one.topic_id, one.partition, one.base_offset) for one in found} == {(TOPIC_ID, PAYMENTS.partition, 0)}
    assert len({one.segment_id for one in found}) == 1
    assert {one.suffix for one in found} >= layout.needed_parts
    others = {"notes/readme.txt", *(key for key, _ in writes_of(Flat().objects_of(a_segment(0, 10), store)))}
    assert not any(layout.brokers_object(key) for key in others)


@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() - {"local-tiered"}))
def test_only_where_brokers_leave_manifests_is_what_is_gone_retained_away(name: str, store: ObjectStore) -> None:
    first, _ = (ship(LAYOUTS[name], a_segment(base, end), store) for base, end in ((0, 10), (10, 25)))
    for file in first.files:
        store.delete(file.key)
    assert not BrokersFolders(store).have_lost(0, [file.key for file in first.files])


def test_what_retention_of_brokers_has_taken_is_not_damage(store: ObjectStore) -> None:
    """They delete from the beginning, and know nothing of our manifests; where all is gone it was not retention."""
    layout = LAYOUTS["local-tiered"]
    first, second = (ship(layout, a_segment(base, end), store) for base, end in ((0, 10), (10, 25)))
    taken = [file.key for file in first.files]
    assert not BrokersFolders(store).have_lost(0, taken)
    for key in taken:
        store.delete(key)
    assert BrokersFolders(store).have_lost(0, taken)
    assert visible(layout, store) == [(10, 25)]
    for file in second.files:
        store.delete(file.key)
    assert not BrokersFolders(store).have_lost(0, taken)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_of_a_store_shows_in_its_first_segment(name: str, store: ObjectStore) -> None:
    assert layout_in(store).name == "flat"
    store.put("0/readme.txt", b"not ours")
    ship(LAYOUTS[name], a_segment(0, 10), store)
    assert layout_in(store).has_digests == LAYOUTS[name].has_digests
    assert {one for one in READABLE if any(one.is_key(info.key) for info in store.list())} <= {layout_in(store)}
