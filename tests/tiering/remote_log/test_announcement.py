from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.local_tiered import object_key
from resnap.storage.layouts.manifest import ManifestObject, ObjectKind
from resnap.storage.log.checkpoints import LeaderEpoch
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.client import EpochEnd
from resnap.tiering.cluster.facts import PartitionFacts, TopicFacts
from resnap.tiering.remote_log.announcement import (
    UNLIMITED,
    Situation,
    StopAt,
    StopReason,
    announceable,
    changed,
    epochs_of,
    judge,
    records_of,
)
from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadataCache, fold_events
from resnap.tiering.remote_log.records import decode_record, encode_record
from tests.storage.layouts.manifests import a_manifest, stored
from tests.tiering.remote_log.written_records import PARTITION, copied, events

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resnap.tiering.remote_log.announcement import Announceable
    from resnap.tiering.remote_log.records import RemoteLogRecord

TIERED = {"remote.storage.enable": "true", "remote.log.copy.disable": "true", "cleanup.policy": "delete"}


def _segment_id(start: int, end: int) -> UUID:
    return UUID(int=(start << 64) + (end << 8) + 0x5000_8000_0000_0000_0000)


def _objects(start: int, segment_id: UUID) -> tuple[ManifestObject, ...]:
    place = TopicPartition(PARTITION.name, PARTITION.partition)
    return tuple(
        ManifestObject(
            kind=kind,
            key=object_key(place, PARTITION.id, start, segment_id, kind),
            size_bytes=100,
            sha256="ab" * 32,
            crc32c=1,
        )
        for kind in ObjectKind
    )


def shipped(start: int, end: int, epochs: Sequence[tuple[int, int]] = (), **changes: Any) -> Announceable:
    """A segment [start, end), its objects where brokers read them."""
    segment_id = _segment_id(start, end)
    manifest = replace(
        a_manifest(),
        topic=PARTITION.name,
        topic_id=PARTITION.id,
        partition=PARTITION.partition,
        base_offset=start,
        next_base_offset=end,
        last_offset=end - 1,
        max_timestamp_ms=7,
        segment_id=segment_id,
        leader_epochs=tuple(LeaderEpoch(epoch, at) for epoch, at in epochs or [(0, start)]),
        objects=_objects(start, segment_id),
    )
    found = stored(replace(manifest, **changes))
    misplaced = Flat().misplacement(found, key_prefix="")
    return announceable(found, misplaced=misplaced, cluster_id=found.facts.cluster_id)


def cached(records: Iterable[RemoteLogRecord]) -> RemoteLogMetadataCache:
    (found,) = fold_events(events(records)).partitions
    return found


def situation(*, settings: dict[str, str] | None = None, **changes: Any) -> Situation:
    """A cluster that is ready for announcements: the log starts at 0, all below 1000 is decided, one epoch."""
    led = PartitionFacts(
        partition=0, leader=1, log_start_offset=0, local_start_offset=0, high_watermark=1000, last_stable_offset=1000
    )
    facts = changes.get("partition", led)
    topic = TopicFacts(
        name=PARTITION.name,
        topic_id=PARTITION.id,
        settings=TIERED | (settings or {}),
        partitions={} if facts is None else {0: facts},
    )
    usual = Situation(
        topic=topic,
        partition=facts,
        cache=None,
        poison_at=None,
        lost=None,
        now_ms=107,
        epoch_ends={0: EpochEnd(0, 1000)},
    )
    return replace(usual, **changes)


def spans(manifests: Iterable[Announceable]) -> list[tuple[int, int]]:
    return [(manifest.base_offset, manifest.next_base_offset) for manifest in manifests]


def stop_of(*manifests: Announceable, **changes: Any) -> StopAt:
    found = judge(PARTITION, manifests, situation(**changes))
    assert found.stop is not None
    return found.stop


OBJECTS = _objects(0, _segment_id(0, 10))
CHAIN = [shipped(0, 10), shipped(10, 25), shipped(25, 40)]


def test_what_was_announced_is_not_announced_again() -> None:
    told = [record for one in CHAIN for record in records_of(one, broker_id=1, now_ms=2)]
    found = judge(PARTITION, CHAIN, situation(cache=cached(told)))
    assert (found.segments, found.below, found.stop) == ((), 3, None)


def test_a_run_that_was_cut_short_between_two_records_is_gone_on_with() -> None:
    told = [record for one in CHAIN for record in records_of(one, broker_id=1, now_ms=2)]
    found = judge(PARTITION, CHAIN, situation(cache=cached(told[:3])))
    assert spans(found.segments) == [(10, 25), (25, 40)]


def test_what_brokers_forgot_below_what_they_know_is_announced_only_if_they_may_have_lost_it() -> None:
    ours = [shipped(0, 10), shipped(10, 20), shipped(20, 30), shipped(30, 40)]
    known = cached([*copied("c", 20, 29), *copied("d", 30, 39)])
    assert judge(PARTITION, ours, situation(cache=known)).segments == ()
    found = judge(PARTITION, ours, situation(cache=known, was_lost=True))
    assert (spans(found.segments), found.stop) == ([(0, 10), (10, 20)], None)
    with_hole = judge(PARTITION, [ours[0], *ours[2:]], situation(cache=known, was_lost=True))
    assert spans(with_hole.segments) == [(0, 10)]
    whole = cached([record for start in (0, 10, 20, 30) for record in copied(f"s{start}", start, start + 9)])
    assert judge(PARTITION, ours, situation(cache=whole, was_lost=True)).segments == ()


def test_the_log_may_start_within_the_first_segment() -> None:
    started_late = replace(situation().partition, log_start_offset=12)  # type: ignore[type-var]
    found = judge(PARTITION, CHAIN, situation(partition=started_late))
    assert (spans(found.segments), found.below, found.stop) == ([(10, 25), (25, 40)], 1, None)


def test_other_boundaries_than_those_of_brokers_overlap() -> None:
    assert stop_of(*CHAIN, cache=cached(copied("a", 0, 14))).reason is StopReason.OVERLAP


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"topic": None}, StopReason.TOPIC_UNKNOWN),
        ({"partition": None}, StopReason.TOPIC_UNKNOWN),
        ({"topic": replace(situation().topic, topic_id="AAAAAAAAQACAAAAAAAAAAQ")}, StopReason.TOPIC_ID_DIFFERS),  # type: ignore[type-var]
        ({"settings": {"cleanup.policy": "compact,delete"}}, StopReason.COMPACTED),
        ({"settings": {"remote.storage.enable": "false"}}, StopReason.NOT_TIERED),
        ({"settings": {"remote.log.copy.disable": "false"}}, StopReason.COPYING_NOT_PAUSED),
        ({"settings": {"retention.bytes": "1099"}, "least_retention_bytes": 1100}, StopReason.RETENTION_AT_RISK),
        ({"poison_at": 7}, StopReason.POISONED),
        ({"lost": "kafka-tiered-storage/x"}, StopReason.OTHER_STORE),
    ],
)
def test_what_would_end_tiering_or_lose_records_keeps_the_whole_partition_back(
    changes: dict[str, Any], reason: StopReason
) -> None:
    found = judge(PARTITION, CHAIN, situation(**changes))
    assert found.segments == ()
    assert found.stop is not None
    assert (found.stop.reason, bool(found.stop.hint)) == (reason, True)


@pytest.mark.parametrize(
    ("leader", "settings", "reason"),
    [
        (1, {}, None),
        (2, {}, StopReason.LEADER_CHANGED),
        (None, {}, StopReason.LEADER_CHANGED),
        (1, {"remote.log.copy.disable": "false"}, StopReason.COPYING_NOT_PAUSED),
    ],
)
def test_a_change_after_the_judgement_ends_the_announcement(
    leader: int | None, settings: dict[str, str], reason: StopReason | None
) -> None:
    stop = changed(PARTITION, 10, situation(settings=settings).topic, leader)
    assert (None if stop is None else stop.reason) == reason
    assert stop is None or (stop.offset, bool(stop.hint)) == (10, True)


@pytest.mark.parametrize(
    ("retention_bytes", "least", "stops"),
    [
        ("-1", UNLIMITED, False),
        ("1100", 1100, False),
        ("1099", 1100, True),
        ("0", 0, False),
        ("99999", UNLIMITED, True),
    ],
)
def test_a_size_limit_that_brokers_would_count_twice_keeps_all_back(
    retention_bytes: str, least: int, stops: bool
) -> None:
    settings = {"retention.bytes": retention_bytes}
    found = judge(PARTITION, CHAIN, situation(settings=settings, least_retention_bytes=least))
    assert (found.segments == (), found.stop is not None) == (stops, stops)
    altered = changed(PARTITION, 10, situation(settings=settings).topic, 1, least_retention_bytes=least)
    assert (altered is not None) is stops


@pytest.mark.parametrize(
    ("settings", "own", "before", "after"),
    [
        ({"retention.bytes": "9"}, {"retention.bytes"}, "retention.bytes=-1", "--add-config retention.bytes=9"),
        ({"retention.bytes": "9"}, set(), "retention.bytes=-1", "--delete-config retention.bytes"),
        (
            {"retention.bytes": "9", "local.retention.bytes": "9"},
            {"retention.bytes", "local.retention.bytes"},
            "retention.bytes=-1,local.retention.bytes=-2",
            "--add-config retention.bytes=9,local.retention.bytes=9",
        ),
        (
            {"retention.bytes": "9", "local.retention.bytes": "-2"},
            {"retention.bytes"},
            "retention.bytes=-1",
            "--add-config retention.bytes=9",
        ),
    ],
)
def test_the_commands_around_an_announcement_put_every_limit_back(
    settings: dict[str, str], own: set[str], before: str, after: str
) -> None:
    topic = situation(settings=settings).topic
    assert topic is not None
    stop = changed(PARTITION, 10, replace(topic, own_settings=frozenset(own)), 1, least_retention_bytes=UNLIMITED)
    assert stop is not None
    line = f"`kafka-configs.sh --alter --entity-type topics --entity-name {PARTITION.name}"
    assert f"before: {line} --add-config {before}`; " in stop.hint
    assert f": {line} {after}`" in stop.hint


@pytest.mark.parametrize(
    ("counted", "least", "awaits"), [(None, 1, True), (0, 1, True), (20, 1, True), (30, 1, False), (0, 0, False)]
)
def test_all_is_done_once_the_leader_counts_what_was_announced(counted: int | None, least: int, awaits: bool) -> None:
    led = PartitionFacts(partition=0, leader=1, log_start_offset=0, last_stable_offset=1000, remote_end_offset=counted)
    known = cached(copied("a", 0, 29))
    found = judge(PARTITION, [], situation(partition=led, cache=known, least_retention_bytes=least))
    assert found.awaits_leader is awaits


def test_where_there_is_no_leader_no_broker_copies_meanwhile() -> None:
    leaderless = PartitionFacts(partition=0, leader=None)
    settings = {"remote.log.copy.disable": "false"}
    found = judge(PARTITION, CHAIN, situation(partition=leaderless, settings=settings, epoch_ends={}))
    assert (spans(found.segments), found.stop) == (spans(CHAIN), None)


@pytest.mark.parametrize(("retention_ms", "expired"), [("-1", 0), ("101", 0), ("100", 3), ("0", 3)])
def test_segments_that_brokers_would_delete_at_once_are_counted(retention_ms: str, expired: int) -> None:
    found = judge(PARTITION, CHAIN, situation(settings={"retention.ms": retention_ms}))
    assert (len(found.segments), found.expired) == (3, expired)


def test_what_is_not_decided_yet_waits() -> None:
    undecided = replace(situation().partition, last_stable_offset=24)  # type: ignore[type-var]
    found = judge(PARTITION, CHAIN, situation(partition=undecided))
    assert spans(found.segments) == [(0, 10)]
    assert found.stop is not None
    assert found.stop.reason is StopReason.ABOVE_LAST_STABLE_OFFSET


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"leader_epochs": ()}, StopReason.NOT_SAYABLE),
        ({"max_timestamp_ms": None}, StopReason.NOT_SAYABLE),
        ({"objects": a_manifest().objects}, StopReason.OTHER_LAYOUT),
        ({"objects": (OBJECTS[0], *OBJECTS[2:])}, StopReason.OTHER_LAYOUT),
    ],
)
def test_a_segment_that_brokers_could_not_read_is_not_announced(changes: dict[str, Any], reason: StopReason) -> None:
    assert stop_of(shipped(0, 10, **changes)).reason is reason


def test_aborted_transactions_are_the_one_index_that_may_be_absent() -> None:
    without = tuple(one for one in OBJECTS if one.kind is not ObjectKind.TXN_INDEX)
    assert judge(PARTITION, [shipped(0, 10, objects=without)], situation()).stop is None


@pytest.mark.parametrize(
    ("ends", "agrees"),
    [
        ({0: EpochEnd(0, 5), 2: EpochEnd(2, 15), 3: EpochEnd(3, 1000)}, True),
        ({0: EpochEnd(0, 6), 2: EpochEnd(2, 15), 3: EpochEnd(3, 1000)}, False),
        ({0: EpochEnd(0, 5), 2: EpochEnd(0, 5), 3: EpochEnd(3, 1000)}, False),
        ({0: EpochEnd(0, 5), 2: EpochEnd(2, 12), 3: EpochEnd(3, 1000)}, False),
        ({0: EpochEnd(0, 5), 2: EpochEnd(2, 15), 3: EpochEnd(3, 19)}, False),
        ({0: EpochEnd(-1, -1), 2: EpochEnd(2, 15), 3: EpochEnd(3, 1000)}, False),
    ],
)
def test_leader_epochs_must_be_those_of_the_leader(ends: dict[int, EpochEnd], agrees: bool) -> None:
    chain = [shipped(0, 10, [(0, 0), (2, 5)]), shipped(10, 20, [(2, 10), (3, 15)])]
    assert epochs_of(chain) == {0, 2, 3}
    found = judge(PARTITION, chain, situation(epoch_ends=ends))
    assert (found.stop is None) is agrees
    assert agrees or (found.stop is not None and found.stop.reason is StopReason.LINEAGE_DIFFERS)


def test_what_replicas_cut_at_other_offsets_is_announced_as_one_chain() -> None:
    found = judge(PARTITION, [*CHAIN, shipped(18, 33), shipped(10, 18), shipped(25, 50)], situation())
    assert (spans(found.segments), found.stop) == ([(0, 10), (10, 25), (25, 50)], None)


def test_what_ends_above_the_chain_and_does_not_lead_to_it_is_reported() -> None:
    found = judge(PARTITION, [*CHAIN, shipped(30, 60)], situation())
    assert spans(found.segments) == spans(CHAIN)
    assert found.stop is not None
    assert (found.stop.reason, found.stop.offset) == (StopReason.OVERLAP, 30)


def test_where_brokers_are_already_only_what_begins_there_follows() -> None:
    cache = cached(copied("a", 0, 24))
    found = judge(PARTITION, [*CHAIN, shipped(20, 40)], situation(cache=cache))
    assert (spans(found.segments), found.stop) == ([(25, 40)], None)


def test_two_histories_of_the_same_offsets_are_never_chosen_from() -> None:
    leaderless = PartitionFacts(partition=0, leader=None)
    found = judge(PARTITION, [*CHAIN, shipped(20, 25, [(3, 20)])], situation(partition=leaderless, epoch_ends={}))
    assert spans(found.segments) == [(0, 10)]
    assert found.stop is not None
    assert (found.stop.reason, found.stop.offset) == (StopReason.LINEAGE_DIFFERS, 10)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_whatever_is_announced_is_cached_by_a_broker_without_a_gap(lengths: list[int], data: st.DataObject) -> None:
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    manifests = [shipped(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    kept = data.draw(st.lists(st.sampled_from(manifests), unique_by=attrgetter("remote_id")))
    found = judge(PARTITION, kept, situation())
    values = [encode_record(record) for one in found.segments for record in records_of(one, broker_id=1, now_ms=2)]
    for cache in fold_events(events(map(decode_record, values))).partitions:
        assert cache.readable_ids == {segment.remote_id for segment in found.segments}
        assert (cache.start_offset, cache.gaps, cache.overlaps, cache.dropped) == (0, (), (), 0)
