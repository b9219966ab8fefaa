"""Shipping log dirs from end to end without a command line: what tests of tiering start from."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from resnap.replay.evidence import segment_spans
from resnap.replay.producer_state import Expiry
from resnap.replay.rebuild import rebuild_locally
from resnap.replay.staging import DirectorySink
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.layouts.flat.keys import MANIFEST_EXTENSION, parse_key, segment_of_manifest
from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.manifest import SnapshotHow, SnapshotOrigin, read_manifest
from resnap.storage.layouts.segments import Provenance
from resnap.storage.log.log_dir import load_log_dir, load_partition_dir
from resnap.storage.log.record_batch import HEADER, MAGIC_POSITION, MAGIC_V2, read_header
from resnap.storage.sources.files import PLAIN
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.judging.eligibility import before_replay
from resnap.tiering.judging.inventory import take_inventory
from resnap.tiering.judging.planning import load_facts, plan_replay
from resnap.tiering.shipping.delivery import Delivery
from resnap.tiering.shipping.remainder import remainder
from resnap.tiering.shipping.segment_bundle import ChosenSnapshot, CopyOrder, new_segment, reporting_change
from resnap.tiering.shipping.shipment import Shipper
from resnap.tiering.shipping.shipped import ShippedTopic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.storage.layouts.manifest import Manifest
    from resnap.storage.layouts.segments import NewSegment
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.judging.eligibility import Candidates
    from resnap.tiering.judging.inventory import PartitionInventory
    from resnap.tiering.shipping.segment_bundle import EpochHistory
    from resnap.tiering.shipping.segment_indexes import SegmentIndexes
    from resnap.tiering.shipping.shipment import PartitionShipment

UPGRADED: Final = "kafka-2.7.2-then-3.9.1"
HOUR_MS: Final = 3_600_000
TEN_YEARS_MS: Final = 10 * 365 * 24 * HOUR_MS
LATER_MS: Final = 2_000_000_000_000
"""Later than anything in a fixture set."""
ROLL: Final = ReplayRules(as_of=AsOf(now_ms=LATER_MS, roll=True), expiry=Expiry(TEN_YEARS_MS, 600_000))
"""What makes each snapshot what the broker wrote."""


ORIGIN: Final = SnapshotOrigin(
    how=SnapshotHow.REGENERATED,
    as_of="roll",
    as_of_ms=LATER_MS,
    window_start_offset=0,
    producer_id_expiration_ms=1,
    check_interval_ms=1,
    entries_count=0,
)


def a_new_segment(
    epochs: EpochHistory, segment: Segment, snapshot: bytes, provenance: Provenance
) -> tuple[CopyOrder, NewSegment, SegmentIndexes]:
    """Return what is shipped for ``segment``, as a partition's shipment makes it."""
    with reporting_change(segment, PLAIN):
        known = epochs.up_to(segment)
    order = CopyOrder(
        provenance=provenance,
        segment=segment,
        log_start_offset=epochs.log_start_offset,
        sources=PLAIN,
        leader_epochs=known,
        rebuilt=cast("BoundaryResult", None),
        created_at_ms=LATER_MS,
    )
    return order, *new_segment(order, ChosenSnapshot(body=snapshot, origin=ORIGIN))


def rules_at(now_ms: int) -> ReplayRules:
    """Return rules as of ``now_ms`` under which idle producers expire after an hour."""
    return ReplayRules(as_of=AsOf(now_ms=now_ms), expiry=Expiry(HOUR_MS, 600_000))


def newest_ms(data: Path, name: str = "payments-0") -> int:
    """Return the largest timestamp in a partition of the log dir ``data``."""
    return max(span.largest_timestamp_ms or 0 for span in segment_spans(load_partition_dir(data / name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One partition, replayed, and what is left to ship of it."""

    provenance: Provenance
    candidates: Candidates
    result: PartitionResult | None
    """None if nothing is left."""
    rules: ReplayRules
    staged: Path

    def ship(self, store: ObjectStore) -> PartitionShipment | None:
        """Ship what is left into ``store``."""
        if self.result is None:
            return None
        return self.shipper(store).ship_partition(self.provenance, self.candidates, self.result)

    def shipper(self, store: ObjectStore, **changes: Any) -> Shipper:
        """Return what ships into ``store`` one segment after the other, and reports to nobody; or with ``changes``."""
        usual = Shipper(
            delivery=Delivery(store=store),
            layout=Flat(),
            staged=LocalObjectStore(self.staged),
            rules=self.rules,
            threads=ThreadPoolExecutor(1),
            now_ms=lambda: LATER_MS,
            expect=lambda *_: None,
            progress=lambda *_: None,
        )
        return replace(usual, **changes)


def orders(
    data: Path, store: ObjectStore, staged: Path, rules: ReplayRules, only: Collection[str] = ()
) -> Iterator[Order]:
    """Yield an order for each partition of the log dir ``data``, or for those named, by what ``store`` holds."""
    log_dir = load_log_dir(data)
    for inventory in take_inventory(log_dir).partitions:
        if not only or str(inventory.partition.topic_partition) in only:
            yield _order(log_dir, inventory, store, staged, rules)


def tier(
    data: Path, store: ObjectStore, staged: Path, rules: ReplayRules = ROLL, only: Collection[str] = ()
) -> list[PartitionShipment]:
    """Ship a log dir and return what was shipped: nothing of partitions that are done."""
    shipments = [order.ship(store) for order in orders(data, store, staged, rules, only)]
    return [shipment for shipment in shipments if shipment is not None]


def an_order(data: Path, staged: Path, name: str = "payments-0", rules: ReplayRules = ROLL) -> Order:
    """Return the order for one partition and a store that holds nothing yet."""
    (order,) = orders(data, LocalObjectStore(staged), staged, rules, {name})
    return order


def _order(
    log_dir: LogDir, inventory: PartitionInventory, store: ObjectStore, staged: Path, rules: ReplayRules
) -> Order:
    partition = inventory.partition
    shipped = ShippedTopic(store, Flat(), log_dir.cluster_id, partition.topic_partition.topic)
    candidates = remainder(before_replay(inventory), shipped).candidates
    return Order(
        provenance=a_provenance(log_dir, partition),
        candidates=candidates,
        result=_replayed(inventory, candidates, staged, rules) if candidates.segments else None,
        rules=rules,
        staged=staged,
    )


def a_provenance(log_dir: LogDir, partition: PartitionDir) -> Provenance:
    """Return where the segments of ``partition`` come from."""
    return Provenance(
        cluster_id=log_dir.cluster_id,
        broker_id=log_dir.broker_id,
        log_directory=str(log_dir.path),
        topic_partition=partition.topic_partition,
        topic_id=partition.topic_id,
        compaction_assumption=None,
        resnap_version="0.0.0",
    )


def _replayed(
    inventory: PartitionInventory, candidates: Candidates, staged: Path, rules: ReplayRules
) -> PartitionResult:
    plan = plan_replay(
        inventory,
        load_facts(inventory.partition),
        [end for segment in candidates.segments if (end := segment.next_base_offset) is not None],
        rules,
        high_watermark=candidates.high_watermark,
        to_end=True,
    )
    (result,) = rebuild_locally([plan], DirectorySink(staged))
    return result


def manifests(store: ObjectStore) -> list[Manifest]:
    """Return every manifest in ``store``, in order of key; each must be whole."""
    return [read_manifest(store.get(key)) for key in manifest_keys(store)]


def manifest_keys(store: ObjectStore) -> list[str]:
    """Return the keys of all manifests in ``store``."""
    return [info.key for info in store.list() if segment_of_manifest(info)]


def is_manifest(key: str) -> bool:
    """Whether ``key`` is that of a manifest."""
    parsed = parse_key(key)
    return parsed is not None and parsed.suffix == MANIFEST_EXTENSION


def check_objects(store: ObjectStore, manifest: Manifest) -> None:
    """Make sure that every object ``manifest`` names is there and has the bytes it names."""
    for entry in manifest.objects:
        body = store.get(entry.key)
        assert (len(body), hashlib.sha256(body).hexdigest()) == (entry.size_bytes, entry.sha256), entry.key


def must_be_shipped(partition: PartitionDir) -> list[tuple[int, int]]:
    """Return [base, next base) of every segment that must be shipped, found out by reading the log naively."""
    assert partition.high_watermark is not None
    start, last_stable_offset = _epochs_and_stability(partition)
    return [
        (segment.base_offset, segment.next_base_offset)
        for segment in partition.segments
        if segment.next_base_offset is not None
        and segment.base_offset >= start
        and segment.next_base_offset <= min(partition.high_watermark, last_stable_offset)
    ]


def _epochs_and_stability(partition: PartitionDir) -> tuple[int, int]:
    """Return the offset of the first batch of magic 2, and the last stable offset, from one pass over the batches."""
    first: int | None = None
    open_since: dict[int, int] = {}
    end = 0
    for segment in partition.segments:
        data = (partition.path / f"{segment.base_offset:020d}.log").read_bytes()
        position = 0
        while position + HEADER.size <= len(data) and (length := int.from_bytes(data[position + 8 : position + 12])):
            if data[position + MAGIC_POSITION] == MAGIC_V2:
                header = read_header(data, position)
                first = header.base_offset if first is None else first
                end = header.last_offset + 1
                if header.is_control:
                    open_since.pop(header.producer_id, None)
                elif header.is_transactional:
                    open_since.setdefault(header.producer_id, header.base_offset)
            position += 12 + length
    assert first is not None
    return first, min(open_since.values(), default=end)
