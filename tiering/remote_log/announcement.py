"""Shipped segments as they are announced to brokers, in any layout: which may be, why others may not, the records.

Announcing makes brokers serve a segment from remote storage, and delete their own copies of it. A wrong record directly
causes a loss of data, or the end of tiering on every broker, so each such case is a reason to stop:

- a topic with another id, one that is not tiered, or one whose leaders still copy: they keep their position in memory,
  copy the same offsets again, and nothing fences the two;
- a gap: brokers continue from the highest remote offset, and never fill a gap below it;
- an overlap with segments that brokers have, and leader epochs that are not the leader's: unreachable segments are
  neither found nor ever deleted, and those of another lineage are served as correct;
- undecided offsets, objects that are not where brokers read, and a poisoned metadata topic.

Topics and leaders change while segments are announced, so the cheap checks are repeated before each segment.

A segment is announced by two records. A layout that brokers read has one key for each object of a segment; brokers do
not find other objects. Only segments that Resnap has written are announced: their ids are UUIDs of version 5, and those
of brokers are of version 4.

Source: KIP-405; ``RemoteLogManager``, with ``copyLogSegment``, ``RemoteLogMetadataCache``, ``ConsumerTask``.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.layouts.lineage import chain_of, is_one_lineage
from resnap.storage.layouts.manifest import ManifestFacts
from resnap.storage.messages.wire import ZERO_UUID
from resnap.tiering.remote_log.records import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    SegmentLeaderEpoch,
    SegmentState,
    TopicIdPartition,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from resnap.storage.layouts.segments import StoredManifest
    from resnap.tiering.cluster.client import EpochEnd
    from resnap.tiering.cluster.facts import PartitionFacts, TopicFacts
    from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadataCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Announceable(ManifestFacts):
    """One shipped segment."""

    manifest_key: str
    stored_bytes: int
    """Size of all its objects but the manifest."""
    misplaced: str | None
    """Why brokers would not find it; None if they would."""

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """Its partition, as brokers name it."""
        return TopicIdPartition(name=self.topic, id=self.topic_id or ZERO_UUID, partition=self.partition)


def announceable(found: StoredManifest, *, misplaced: str | None, cluster_id: str | None) -> Announceable:
    """Return the segment of a manifest, in the cluster ``cluster_id``."""
    values, largest = found.facts.values(), found.facts.max_timestamp_ms
    values |= {"cluster_id": cluster_id, "max_timestamp_ms": None if largest is not None and largest < 0 else largest}
    return Announceable(**values, manifest_key=found.key, stored_bytes=found.size_bytes, misplaced=misplaced)


def records_of(
    one: Announceable, *, broker_id: int, now_ms: int
) -> tuple[RemoteLogSegmentMetadataRecord, RemoteLogSegmentMetadataUpdateRecord]:
    """Return the two records that announce a segment, in the order in which they must come."""
    segment = RemoteLogSegmentId(topic_id_partition=one.topic_id_partition, id=one.remote_id)
    if one.max_timestamp_ms is None:
        raise AssertionError("judge() lets no such segment pass")
    begun = RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=segment,
        start_offset=one.base_offset,
        end_offset=one.next_base_offset - 1,
        broker_id=broker_id,
        max_timestamp_ms=one.max_timestamp_ms,
        event_timestamp_ms=now_ms,
        segment_leader_epochs=tuple(
            SegmentLeaderEpoch(leader_epoch=entry.epoch, offset=entry.start_offset) for entry in one.leader_epochs
        ),
        segment_size_in_bytes=one.log_bytes,
    )
    finished = RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=segment,
        broker_id=broker_id,
        event_timestamp_ms=now_ms,
        remote_log_segment_state=SegmentState.COPY_SEGMENT_FINISHED,
    )
    return begun, finished


_MAX_INT32: Final = 0x7FFFFFFF
UNLIMITED: Final = 2**63
"""Above any ``retention.bytes``: none is safe."""


class StopReason(StrEnum):
    """Why a segment, and all above it, are not announced; the values are codes that users and programs see."""

    TOPIC_UNKNOWN = "topic-unknown"
    """The cluster has no topic of this name."""
    TOPIC_ID_DIFFERS = "topic-id-differs"
    """The topic was deleted and created again."""
    NOT_TIERED = "not-tiered"
    """Brokers skip what they read of a topic that is not tiered."""
    COMPACTED = "compacted"
    """Brokers do not tier compacted topics."""
    COPYING_NOT_PAUSED = "copying-not-paused"
    """A leader keeps in memory how far it has copied, and would copy the same again."""
    RETENTION_AT_RISK = "retention-at-risk"
    """Brokers of this release would count the local log twice, and delete what is within retention.bytes."""
    LEADER_CHANGED = "leader-changed"
    """Another broker leads than the one whose log it was judged by."""
    POISONED = "poisoned"
    """No broker reads past a record that is in the metadata topic already."""
    OTHER_LAYOUT = "other-layout"
    """An object is not where brokers look for it."""
    OTHER_STORE = "other-store"
    """A segment that brokers know is not there."""
    GAP = "gap"
    """It is not contiguous from the log start, or from where remote segments end."""
    OVERLAP = "overlap"
    """Brokers have copied with other boundaries, or it is not joined to the segments that end there."""
    ABOVE_LAST_STABLE_OFFSET = "above-last-stable-offset"
    """Whether its transactions were committed is not decided yet."""
    LINEAGE_DIFFERS = "lineage-differs"
    """Its leader epochs are not the leader's, or there are two histories of the same offsets."""
    NOT_SAYABLE = "not-sayable"
    """A record cannot hold it: no leader epoch, no timestamp, or a size over 2 GiB."""


_HINTS: Final = {
    StopReason.TOPIC_UNKNOWN: "check --bootstrap-server: it may name another cluster",
    StopReason.TOPIC_ID_DIFFERS: "the topic was deleted and made again: what was shipped is of the old one",
    StopReason.NOT_TIERED: "set remote.storage.enable=true on the topic; brokers skip records of other topics",
    StopReason.COMPACTED: "Kafka does not tier compacted topics",
    StopReason.COPYING_NOT_PAUSED: "set remote.log.copy.disable=true on the topic (3.9 with KRaft), or stop its"
    " leaders",
    StopReason.RETENTION_AT_RISK: "set retention.bytes=-1 on the topic until its leaders have copied by themselves",
    StopReason.LEADER_CHANGED: "run again: the new leader's log is then used",
    StopReason.POISONED: "no broker reads past that record: see `resnap remote status`",
    StopReason.OTHER_LAYOUT: "give --key-prefix as brokers have it, or ship in the layout that they read, to a new"
    " prefix",
    StopReason.OTHER_STORE: "give the URL of what brokers tier to, and ship there",
    StopReason.GAP: "ship what is missing: brokers never fill a gap below what is remote",
    StopReason.OVERLAP: "let the brokers continue alone: they have copied here with other boundaries",
    StopReason.ABOVE_LAST_STABLE_OFFSET: "run again when the transaction has ended",
    StopReason.LINEAGE_DIFFERS: "ship the partition from the log dir of its leader, to a new prefix",
    StopReason.NOT_SAYABLE: "let the broker copy it",
}


class StopAt(NamedTuple):
    """Where announcing a partition stops, and why."""

    reason: StopReason
    offset: int
    detail: str
    commands: str = ""
    """What to type, where it is known."""

    @property
    def hint(self) -> str:
        """The operator's next step."""
        return self.commands or _HINTS[self.reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """The segments of one partition to announce."""

    partition: TopicIdPartition
    segments: tuple[Announceable, ...]
    """In offset order, without a gap."""
    below: int
    """Segments that end at or below the end of what brokers know, or the log start: there is nothing to announce."""
    expired: int
    """Number of segments that brokers will delete at once, because the topic's retention no longer keeps them."""
    stop: StopAt | None
    """None where all that was shipped is, or will be, known to brokers."""
    least_retention_bytes: int = 0
    """As in the situation that it was judged by."""
    awaits_leader: bool = False
    """Whether ``retention.bytes`` is to stay away: the leader does not count what was announced as remote yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The current facts of one partition for the decision."""

    topic: TopicFacts | None
    partition: PartitionFacts | None
    cache: RemoteLogMetadataCache | None
    """None where the metadata topic has nothing of it."""
    poison_at: int | None
    """Offset of a record that ends the reading of the metadata partition."""
    lost: str | None
    """A key that brokers know, and that the store does not have."""
    now_ms: int
    least_retention_bytes: int = 0
    """The least ``retention.bytes`` within which brokers delete nothing while copying is paused; 0 for any."""
    kafka_configs: str = "kafka-configs.sh"
    """Kafka's tool with its connection, for the commands that are named."""
    epoch_ends: Mapping[int, EpochEnd]
    """Where the leader's epochs end, by the requested epoch; empty if there is no leader."""
    was_lost: bool = False
    """Whether brokers may have lost metadata: then what is stored below all that they know is announced first."""


def judge(partition: TopicIdPartition, shipped: Iterable[Announceable], situation: Situation) -> Announcement:
    """Return the segments of ``shipped``, the manifests of one partition, to announce, and where announcing stops."""
    ours = sorted(shipped, key=attrgetter("base_offset", "made"))
    if lost := _lost_below(ours, situation):
        ours, situation = lost, replace(situation, cache=None)
    reached = _next_offset(situation)
    left = [segment for segment in ours if reached is None or segment.next_base_offset > reached]
    stop = _of_partition(partition, left[0].base_offset if left else 0, situation) if left else None
    segments: list[Announceable] = []
    if stop is None:
        segments, stop = _chain(left, situation)
    return Announcement(
        partition=partition,
        segments=tuple(segments),
        below=len(ours) - len(left),
        expired=_count_expired(segments, situation),
        stop=stop,
        least_retention_bytes=situation.least_retention_bytes,
        awaits_leader=_awaits_leader(situation),
    )


def _lost_below(ours: Iterable[Announceable], situation: Situation) -> list[Announceable]:
    """Return the segments that the log still has, below the first offset that brokers know in remote storage."""
    known = None if situation.cache is None else situation.cache.start_offset
    if not situation.was_lost or known is None or situation.partition is None:
        return []
    log_start = situation.partition.log_start_offset
    return [one for one in ours if one.next_base_offset <= known and one.next_base_offset > (log_start or 0)]


def _awaits_leader(situation: Situation) -> bool:
    """Whether the leader counts less as remote than brokers know, in a release where size retention goes by it."""
    end = None if situation.cache is None else situation.cache.end_offset
    counted = None if situation.partition is None else situation.partition.remote_end_offset
    return situation.least_retention_bytes > 0 and end is not None and (counted or 0) < end


def changed(
    partition: TopicIdPartition,
    offset: int,
    topic: TopicFacts | None,
    leader: int | None,
    *,
    least_retention_bytes: int = 0,
    kafka_configs: str = "kafka-configs.sh",
) -> StopAt | None:
    """Return what in the topic's current state forbids ``offset``; the rest is of the decision (``Situation``)."""
    facts = None if topic is None else topic.partitions.get(partition.partition)
    if topic is None or facts is None:
        return StopAt(StopReason.TOPIC_UNKNOWN, offset, "the cluster has no such partition")
    ids = f"the topic's id is {topic.topic_id}, what was shipped is of {partition.id}"
    reasons = {
        StopReason.TOPIC_ID_DIFFERS: ids if topic.topic_id != partition.id else None,
        StopReason.COMPACTED: "cleanup.policy has compact in it" if topic.is_compacted else None,
        StopReason.NOT_TIERED: None if topic.is_tiered else "remote.storage.enable is not true on the topic",
        StopReason.COPYING_NOT_PAUSED: None
        if facts.leader is None or topic.is_copying_paused
        else f"broker {facts.leader} leads, and copies by itself",
        StopReason.LEADER_CHANGED: None
        if facts.leader == leader
        else f"{_who(facts.leader)} leads, and {_who(leader)} led when it was judged",
    }
    stop = next((StopAt(reason, offset, detail) for reason, detail in reasons.items() if detail is not None), None)
    if stop is None and 0 <= topic.retention_bytes < least_retention_bytes:
        return _retention_at_risk(topic, offset, least_retention_bytes, kafka_configs)
    return stop


def _retention_at_risk(topic: TopicFacts, offset: int, least: int, kafka_configs: str) -> StopAt:
    """Return the stop with the commands that take the limit away, and put it back."""
    limits = {"retention.bytes": "-1", "local.retention.bytes": "-2"}
    now = {name: topic.settings[name] for name in limits if name in topic.settings}
    without = {name: value for name, value in limits.items() if now.get(name, value) != value}
    own = {name for name in without if name in topic.own_settings}
    alter = f"{kafka_configs} --alter --entity-type topics --entity-name {topic.name}"
    back = " ".join(
        f"{flag} {','.join(values)}"
        for flag, values in (
            ("--add-config", [f"{name}={now[name]}" for name in without if name in own]),
            ("--delete-config", [name for name in without if name not in own]),
        )
        if values
    )
    detail = (
        f"retention.bytes is {topic.retention_bytes}: until a leader has copied by itself again, it counts its local"
        " log and the announced segments, and deletes what is within retention (KAFKA-20732)"
    )
    if least < UNLIMITED:
        detail += f"; {least} or more would be safe now"
    commands = (
        f"before: `{alter} --add-config {','.join(f'{name}={value}' for name, value in without.items())}`; after"
        f" `resnap announce` says that leaders count what was announced: `{alter} {back}`"
    )
    return StopAt(StopReason.RETENTION_AT_RISK, offset, detail, commands)


def _who(leader: int | None) -> str:
    return "no broker" if leader is None else f"broker {leader}"


def epochs_of(manifests: Iterable[Announceable]) -> set[int]:
    """Return the leader epochs whose ends ``judge`` needs."""
    return {entry.epoch for manifest in manifests for entry in manifest.leader_epochs}


def _of_partition(partition: TopicIdPartition, offset: int, situation: Situation) -> StopAt | None:
    """Return why the whole partition cannot be announced."""
    there, poison, lost = situation.partition, situation.poison_at, situation.lost
    stop = changed(
        partition,
        offset,
        situation.topic,
        None if there is None else there.leader,
        least_retention_bytes=situation.least_retention_bytes,
        kafka_configs=situation.kafka_configs,
    )
    if stop is None and poison is not None:
        detail = f"the metadata topic has a record at offset {poison} that no broker can read"
        return StopAt(StopReason.POISONED, offset, detail)
    if stop is None and lost is not None:
        return StopAt(StopReason.OTHER_STORE, offset, f"brokers read {lost}, which is not there")
    return stop


def _chain(left: Sequence[Announceable], situation: Situation) -> tuple[list[Announceable], StopAt | None]:
    """Return the segments that follow what brokers know without a gap, and why they end."""
    chosen: list[Announceable] = []
    is_new = situation.cache is None or situation.cache.end_offset is None
    reached = _next_offset(situation)
    chain = _way(left, None if is_new else reached)
    contradictions = _contradictions(chain, left)
    for segment in chain:
        start = segment.base_offset if reached is None else reached
        stop = _of_place(segment, start, is_first=is_new and not chosen) or _of_segment(segment, situation)
        stop = stop or contradictions.get(segment.base_offset) or _of_lineage([*chosen[-1:], segment], situation)
        if stop is not None:
            return chosen, stop
        chosen.append(segment)
        reached = segment.next_base_offset
    beyond = next((segment for segment in left if reached is not None and segment.next_base_offset > reached), None)
    return chosen, None if beyond is None or reached is None else _of_place(beyond, reached, is_first=False)


def _way(left: Sequence[Announceable], reached: int | None) -> list[Announceable]:
    """Return the segments to announce if several have the same offsets: replicas cut one log at different offsets.

    If brokers have segments, only one that begins at their end can follow; if none does, all are checked, to report
    what is wrong.
    """
    above = [segment for segment in left if reached is None or segment.base_offset >= reached]
    follows = reached is None or any(segment.base_offset == reached for segment in above)
    return chain_of(sorted(above if follows else left, key=attrgetter("made")))


def _contradictions(chain: Sequence[Announceable], left: Iterable[Announceable]) -> dict[int, StopAt]:
    """Return the segments of ``chain``, by base offset, that have others with the same offsets from another leader."""
    found: dict[int, StopAt] = {}
    for other in left:
        first = max(bisect_right(chain, other.base_offset, key=attrgetter("base_offset")) - 1, 0)
        for one in takewhile(lambda one: one.base_offset < other.next_base_offset, islice(chain, first, None)):  # noqa: B023
            if not is_one_lineage(one, other):
                what = f"{other.offsets} was shipped, too, with other leader epochs"
                found[one.base_offset] = StopAt(StopReason.LINEAGE_DIFFERS, one.base_offset, what)
    return found


def _count_expired(segments: Iterable[Announceable], situation: Situation) -> int:
    retention_ms = situation.topic.retention_ms if situation.topic is not None else None
    if retention_ms is None:
        return 0
    oldest_ms = situation.now_ms - retention_ms
    return sum((segment.max_timestamp_ms or 0) <= oldest_ms for segment in segments)


def _next_offset(situation: Situation) -> int | None:
    """Return where announcing continues: after what brokers know, else at the log start, if that is known."""
    end = situation.cache.end_offset if situation.cache is not None else None
    if end is not None or situation.partition is None:
        return end
    return situation.partition.log_start_offset


def _of_place(one: Announceable, start: int, *, is_first: bool) -> StopAt | None:
    """Return why a segment cannot follow ``start``; the log may start inside the first one."""
    if one.base_offset > start:
        what = "the log starts" if is_first else "what brokers know ends"
        return StopAt(StopReason.GAP, one.base_offset, f"{what} at {start}, and the next segment is {one.offsets}")
    if one.base_offset < start and not (is_first and start < one.next_base_offset):
        return StopAt(StopReason.OVERLAP, one.base_offset, f"{one.offsets} begins below {start}")
    return None


def _of_segment(one: Announceable, situation: Situation) -> StopAt | None:
    facts = situation.partition
    stable = facts.last_stable_offset if facts is not None else None
    if stable is not None and one.next_base_offset > stable:
        detail = f"it ends at {one.next_base_offset}, the last stable offset is {stable}"
        return StopAt(StopReason.ABOVE_LAST_STABLE_OFFSET, one.base_offset, detail)
    if not one.leader_epochs or one.max_timestamp_ms is None or one.log_bytes > _MAX_INT32:
        return StopAt(StopReason.NOT_SAYABLE, one.base_offset, "no leader epoch, no timestamp, or over 2 GiB")
    if one.misplaced is not None:
        return StopAt(StopReason.OTHER_LAYOUT, one.base_offset, one.misplaced)
    return None


def _of_lineage(neighbours: Sequence[Announceable], situation: Situation) -> StopAt | None:
    """Compare the leader epochs of the last of ``neighbours``, and the seam to the previous one, with the leader's."""
    one = neighbours[-1]
    begun = [entry for manifest in neighbours for entry in manifest.leader_epochs]
    for entry, following in zip(begun, [*begun[1:], None], strict=True):
        end = situation.epoch_ends.get(entry.epoch)
        if end is None or (following is not None and following.epoch == entry.epoch):
            continue
        here = one.next_base_offset if following is None else following.start_offset
        goes_on = end.end_offset >= here if following is None else end.end_offset == here
        if end.epoch != entry.epoch or not goes_on:
            detail = f"leader epoch {entry.epoch} ends at {here} here, and at {end.end_offset} on the leader"
            return StopAt(StopReason.LINEAGE_DIFFERS, one.base_offset, detail)
    return None
