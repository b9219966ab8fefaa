"""Announces shipped segments to brokers: decides, reads objects back, publishes records, and reads these back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from resnap.replay.largest_timestamp import largest_timestamp_by_batches
from resnap.storage.errors import (
    ClusterError,
    FormatError,
    ObjectNotFoundError,
    ResnapError,
    UsageError,
    VerificationError,
    in_file,
)
from resnap.storage.sources.registry import brokers_layout, layout_in
from resnap.storage.stores.protocol import length_of
from resnap.tiering.cluster.broker_settings import local_log_bytes
from resnap.tiering.judging.known_faults import LOCAL_LOG_COUNTED_TWICE, Facts, met_fault
from resnap.tiering.remote_log.announcement import (
    UNLIMITED,
    Situation,
    announceable,
    changed,
    epochs_of,
    judge,
    records_of,
)
from resnap.tiering.remote_log.metadata_cache import begun_since, fold_events
from resnap.tiering.remote_log.records import METADATA_TOPIC, encode_record, event_of, is_ours, metadata_partition
from resnap.tiering.remote_log.stored import metadata_topic
from resnap.tiering.shipping.lease import lease_name, lease_on
from resnap.tiering.verifying.verification import StoreReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resnap.storage.kafka_release import Release
    from resnap.storage.layouts.protocol import Tiered
    from resnap.storage.layouts.segments import Listing
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.cluster.facts import ClusterFacts
    from resnap.tiering.remote_log.announcement import Announceable, Announcement
    from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadata, RemoteLogMetadataCache
    from resnap.tiering.remote_log.records import TopicIdPartition

_WITH_SPACE: Final = 110
"""Per cent: producers write while segments are announced."""
_SILENT: Final = "what it copies itself is not known; leave its topics out with --exclude-topic, or wait for it"
_UNKNOWN_BROKER: Final = -1
"""The broker id of a record if no leader is known."""


@dataclass(slots=True, kw_only=True)
class Announcer:
    """Decides which segments of a store to announce to a cluster's brokers, and publishes them."""

    store: ObjectStore
    cluster: Cluster
    wants: Callable[[str], bool]
    """Whether a topic counts."""
    sources: Sources
    """Which open what was encrypted, too."""
    key_prefix: str
    """The key prefix of the brokers' RemoteStorageManager, if it has one."""
    now_ms: Callable[[], int]
    releases: Sequence[Release]
    """The releases of the brokers; none where they are not known."""
    kafka_configs: str
    """Kafka's tool with the connection to the cluster, for the commands that are named."""
    brokers: bool = False
    """Whether segments that brokers have written are announced, too: the topic with their metadata was lost."""
    problems: list[ResnapError] = field(default_factory=list)
    """Manifests that cannot be read, and partitions that another run is at work on."""
    _layout: Tiered = field(init=False)
    """The layout of the store."""
    _listing: Listing = field(init=False)
    """What is listed there."""

    def judged(self) -> list[Announcement]:
        """Return the segments to announce, by partition; nothing is written, and no object read.

        Raises:
            UsageError: nothing was shipped there, or the cluster has no topic for the metadata.
            StoreError, ClusterError: either failed.

        """
        self._layout = layout_in(self.store)
        self._listing = self._layout.listing(self.store, self._may_want)
        shipped = self._list_shipped(self.cluster.facts(lambda _: False).cluster_id)
        if not shipped:
            raise UsageError(
                f"{self.store.url} holds no shipped segment of these topics",
                hint="give what `resnap tier --to` was given; --brokers announces what brokers have tiered, after their"
                " topic with its metadata was lost",
            )
        facts = self._facts({partition.name for partition in shipped})
        return [self._judge(partition, shipped[partition], facts) for partition in sorted(shipped, key=str)]

    def publish(self, one: Announcement, read: Callable[[int, int], None]) -> Announcement:
        """Announce ``one`` under the partition's lease, decided once more; return what was announced.

        ``read`` is called with the number and bytes of segments that were read back.

        Raises:
            VerificationError: an object is damaged, or brokers would not use the published records.
            LockedError: another run is at work on the partition.
            StoreError, ClusterError: either failed; a segment's records can be published again.

        """
        if not one.segments:
            return one
        name = lease_name(one.segments[0].cluster_id, one.partition.topic_partition)
        with lease_on(self.store, name, verb="announce", now_ms=self.now_ms()) as lease:
            lease.hold()
            self._read_back(one, read)
            lease.hold()
            facts = self._facts({one.partition.name})
            now = self._judge(one.partition, one.segments, facts)
            now = replace(now, below=one.below + now.below, stop=now.stop or one.stop)
            return self._publish(now, facts)

    def _list_shipped(self, cluster_id: str | None) -> dict[TopicIdPartition, list[Announceable]]:
        found: dict[TopicIdPartition, list[Announceable]] = {}
        for segment in self._stored(cluster_id):
            if self.wants(segment.topic):
                found.setdefault(segment.topic_id_partition, []).append(segment)
        return found

    def _may_want(self, topic: str) -> bool:
        """Whether ``topic`` in a key may be selected: a key prefix without a final slash may be part of it."""
        return any(self.wants(topic[at:]) for at in range(len(topic)))

    def _stored(self, cluster_id: str | None) -> Iterator[Announceable]:
        """Yield the segments that Resnap has written; those of brokers, which announce their own, only if asked."""
        for key in self._listing.manifests:
            read = brokers_layout(key)
            place = None if read is None else read.brokers_object(key)
            if not self.brokers and place is not None and not is_ours(place.segment_id):
                continue
            try:
                with in_file(key):
                    found = self._listing.read(key)
            except (FormatError, ObjectNotFoundError) as error:
                self.problems.append(VerificationError(str(error), hint="see `resnap verify URL`"))
                continue
            if found.facts.max_timestamp_ms is None and found.files is not None:  # no manifest says it
                largest_ms = largest_timestamp_by_batches(found.files.segment, self.sources)
                found = replace(found, facts=replace(found.facts, max_timestamp_ms=largest_ms))
            misplaced = self._layout.misplacement(found, key_prefix=self.key_prefix)
            of = found.facts.cluster_id if self._layout.has_digests else cluster_id
            yield announceable(found, misplaced=misplaced, cluster_id=of)

    def _facts(self, topics: set[str]) -> ClusterFacts:
        names = topics | {METADATA_TOPIC}
        facts = self.cluster.facts(names.__contains__, names)
        if refusal := next(filter(None, map(facts.refusal, sorted(topics))), None):
            raise refusal
        for leader, why in facts.silent.items():
            raise ClusterError(f"broker {leader} leads partitions, and does not answer: {why}", hint=_SILENT)
        if metadata_topic(facts).is_compacted:
            raise UsageError(
                f"{METADATA_TOPIC} is compacted, and takes no record without a key",
                hint="set its cleanup.policy to delete: brokers up to 4.4 write no keys there either (KIP-1266)",
            )
        return facts

    def _judge(self, partition: TopicIdPartition, shipped: Sequence[Announceable], facts: ClusterFacts) -> Announcement:
        number = metadata_partition(partition, len(facts.topics[METADATA_TOPIC].partitions))
        metadata = self._metadata(number)
        known = next((cache for cache in metadata.partitions if cache.partition == partition), None)
        there = facts.partition(partition.topic_partition)
        leader = None if there is None else there.leader
        epochs = epochs_of(shipped) if leader is not None else set()
        situation = Situation(
            topic=facts.topics.get(partition.name),
            partition=there,
            cache=known,
            poison_at=min((poison.offset for poison in metadata.poison), default=None),
            lost=self._log_elsewhere(known),
            now_ms=self.now_ms(),
            least_retention_bytes=self._least_retention_bytes(partition, shipped, known, facts),
            kafka_configs=self.kafka_configs,
            was_lost=self.brokers,
            epoch_ends={}
            if leader is None
            else self.cluster.epoch_ends(partition.topic_partition, leader, sorted(epochs)),
        )
        return judge(partition, shipped, situation)

    def _least_retention_bytes(
        self,
        partition: TopicIdPartition,
        shipped: Sequence[Announceable],
        known: RemoteLogMetadataCache | None,
        facts: ClusterFacts,
    ) -> int:
        """Return the ``retention.bytes`` that is above the local log and all remote segments, with some space.

        0 where no broker has the fault by which both are counted; more than any where the sizes are not known.
        """
        topic, there = facts.topics.get(partition.name), facts.partition(partition.topic_partition)
        limited = Facts(retention_bytes=0)
        if topic is None or (self.releases and met_fault(LOCAL_LOG_COUNTED_TWICE, self.releases, limited) is None):
            return 0
        leader = None if there is None else there.leader
        local = None if leader is None else local_log_bytes(self.cluster, partition.topic_partition, leader)
        if local is None:
            return UNLIMITED
        remote = {} if known is None else {segment.id: segment.size_bytes for segment in known.readable}
        remote |= {segment.remote_id: segment.log_bytes for segment in shipped}
        return (local + sum(remote.values())) * _WITH_SPACE // 100

    def _metadata(self, number: int) -> RemoteLogMetadata:
        records = self.cluster.read(METADATA_TOPIC, number)
        return fold_events(event_of(number, offset, value) for offset, value in records)

    def _log_elsewhere(self, known: RemoteLogMetadataCache | None) -> str | None:
        """Return a log that brokers know but that is not in this store, because they read another store."""
        if known is None or not known.readable:
            return None
        newest, of = known.readable[-1], known.partition
        key = self._layout.log_key(
            of.topic_partition, of.id, newest.start_offset, newest.id, key_prefix=self.key_prefix
        )
        return key if length_of(self.store, key) is None else None

    def _read_back(self, one: Announcement, read: Callable[[int, int], None]) -> None:
        """Read every object whole: once brokers know a segment they may delete the only other copy."""
        reader = StoreReader(store=self.store, listing=self._listing, sources=self.sources)
        for segment in one.segments:
            problems = reader.verify(segment.manifest_key, reads_objects=True).problems
            if problems:
                raise VerificationError(problems[0], hint="see `resnap verify URL`; nothing was announced")
            read(1, segment.stored_bytes)

    def _publish(self, one: Announcement, facts: ClusterFacts) -> Announcement:
        """Publish the segments of ``one``, decided by ``facts``, as long as these hold; return what was published."""
        number = metadata_partition(one.partition, len(facts.topics[METADATA_TOPIC].partitions))
        there = facts.partition(one.partition.topic_partition)
        leader = there.leader if there is not None else None
        for count, segment in enumerate(one.segments):
            stop = changed(
                one.partition,
                segment.base_offset,
                self.cluster.topic(one.partition.name),
                leader,
                least_retention_bytes=one.least_retention_bytes,
                kafka_configs=self.kafka_configs,
            )
            if stop is not None:
                what = f"{one.partition.topic_partition}: {stop.reason.value}: {stop.detail}"
                self.problems.append(
                    UsageError(f"{what}; {count} of {len(one.segments)} were announced", hint=stop.hint)
                )
                one = replace(one, segments=one.segments[:count], stop=stop)
                break
            broker_id = leader if leader is not None else segment.broker_id
            if broker_id is None:
                broker_id = _UNKNOWN_BROKER
            records = records_of(segment, broker_id=broker_id, now_ms=self.now_ms())
            for value in [encode_record(record) for record in records]:
                self.cluster.publish(METADATA_TOPIC, number, value)
        self._check_known(one, number)
        return replace(one, awaits_leader=one.least_retention_bytes > 0 and bool(one.segments))

    def _check_known(self, one: Announcement, number: int) -> None:
        """Read the published records; check that brokers use them, and that none copied in between."""
        found = next((each for each in self._metadata(number).partitions if each.partition == one.partition), None)
        ours = {segment.remote_id for segment in one.segments}
        missing = ours if found is None else ours - found.readable_ids
        between = () if found is None else begun_since(found, ours)
        if between:
            first = between[0]
            self.problems.append(UsageError(
                f"{one.partition.topic_partition}: broker {first.broker_id} copied [{first.start_offset},"
                f" {first.end_offset + 1}) while segments were announced",
                hint="nothing is lost: brokers read what was finished last, and the other costs room;"
                " keep copying paused while `resnap announce` runs",
            ))  # fmt: skip
        elif missing:
            raise VerificationError(
                f"{one.partition.topic_partition}: brokers do not know {min(missing)} though it was announced",
                hint="see `resnap remote status` before anything else is done",
            )
