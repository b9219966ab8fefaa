"""Compares the producer state of replicas of a running cluster with a replay of the partition's log.

Replicas cannot show what all of them have lost, nor a single one what it has lost: a leader that was moved to another
disk, or that started from remote storage, lacks the producers below its first local offset. The log shows them. It is
read from remote storage, and from log dirs where these are given, up to the last closed segment; what a producer has
done since can only have added to its state. A producer that may have expired is not compared, and an open transaction
only with one that the replica has, since it may have ended above.

Source: ``TierStateMachine.buildProducerSnapshotFile``, ``ReplicaAlterLogDirsThread``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from resnap.replay.results import BoundaryOutcome
from resnap.replay.staging import scratch_directory, snapshot_key
from resnap.storage.errors import ClusterError, ResnapError, UsageError
from resnap.storage.log.producer_snapshot import read_snapshot
from resnap.tiering.cluster.live_replicas import PARTITIONS_A_REQUEST
from resnap.tiering.cluster.replica_comparison import (
    ActiveProducer,
    DeletedRecords,
    Loss,
    ReplicaState,
    Tolerance,
    lost_producers,
)
from resnap.tiering.judging.lost_producer_state import judge_snapshots
from resnap.tiering.judging.planning import load_facts, plan_replay
from resnap.tiering.remote_log.metadata_cache import fold_events
from resnap.tiering.remote_log.records import TopicIdPartition
from resnap.tiering.remote_log.stored import KnownSegments, events_of
from resnap.tiering.selection import NothingInScopeError, select
from resnap.tiering.stored_snapshots import REPLAYED_HERE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import PartitionResult
    from resnap.replay.watching import Progress
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.tiering.cluster.facts import TopicFacts
    from resnap.tiering.cluster.live_replicas import LiveBrokers
    from resnap.tiering.cluster.replica_comparison import (
        LostProducer,
        PartitionReplicas,
        ReplicaFinding,
        ReplicaProducers,
    )
    from resnap.tiering.planner import Planner
    from resnap.tiering.selection import Scope, SelectedPartition

    Show: TypeAlias = Callable[[str], AbstractContextManager[Sequence[Progress]]]
    """Gives what to report to while a task lasts."""


@dataclass(slots=True, kw_only=True)
class LeaderReplay:
    """The comparison of replicas with the log.

    Attributes:
        scope: log dirs of brokers, and the remote storage; topics limit the replay, and then all of them are replayed.
        topics: of the cluster, with offsets.
        places: the replicas of all partitions.

    """

    scope: Scope
    brokers: LiveBrokers
    topics: Mapping[str, TopicFacts]
    places: Sequence[PartitionReplicas]

    @property
    def partitions(self) -> dict[TopicPartition, PartitionReplicas]:
        """The tiered partitions whose leaders do not have the beginning of the log on their disk."""
        found = {}
        for place in self.places:
            topic = self.topics.get(place.topic_partition.topic)
            facts = None if topic is None else topic.partitions.get(place.topic_partition.partition)
            if topic is None or facts is None or place.leader is None or not topic.is_tiered:
                continue
            if facts.local_start_offset is None or facts.local_start_offset > (facts.log_start_offset or 0):
                found[place.topic_partition] = place
        return found

    def findings(self, planner: Planner, now_ms: int, show: Show) -> Iterator[ReplicaFinding]:
        """Yield the replicas that lack state which the log has, and the partitions whose log shows no state.

        Raises:
            ResnapError: the cluster, or remote storage, cannot be read.

        """
        wanted = self.partitions
        logs, unread = self._logs(wanted, planner)
        answers = self._answers([wanted[name] for name in logs])
        times = self.brokers.times()
        tolerance = Tolerance(now_ms=now_ms, expiration_ms=times.expiration_ms, deleted=DeletedRecords())
        for name in wanted.keys() - logs.keys():
            why = unread.get(name, f"{self.scope.remote} holds nothing of it")
            yield wanted[name].finding(None, ReplicaState.UNKNOWN, why)
        by_mark = {
            name
            for name in logs
            if self.scope.topics
            or self.scope.partitions
            or self._is_marked(logs[name], answers[name], planner, tolerance)
        }
        with scratch_directory("replicas") as directory:
            for result in self._replay({name: logs[name] for name in by_mark}, planner, directory, show):
                place = wanted[result.topic_partition]
                yield from _compare(place, result, answers[result.topic_partition], directory, tolerance)

    def _logs(
        self, wanted: Mapping[TopicPartition, PartitionReplicas], planner: Planner
    ) -> tuple[dict[TopicPartition, SelectedPartition], dict[TopicPartition | None, str]]:
        """Return the logs of ``wanted``, and why others cannot be read.

        They are read in the log dirs that have them, with their remote parts, else from remote storage alone.
        """
        if not wanted or self.scope.remote is None:
            return {}, {}
        sources = planner.sources
        ids = {name.topic: topic_id for name in wanted if (topic_id := self.topics[name.topic].topic_id) is not None}
        asked = [
            TopicIdPartition(name=name.topic, id=ids[name.topic], partition=name.partition)
            for name in wanted
            if name.topic in ids
        ]
        try:
            events = events_of(self.brokers.cluster, asked)
        except UsageError:  # the metadata are kept elsewhere
            events = {}
        known = KnownSegments(fold_events(chain.from_iterable(events.values())))
        names = tuple(map(str, wanted))
        remote = replace(
            self.scope,
            sources=(self.scope.remote,),
            remote=None,
            connect=None,
            topic_ids=ids,
            counts=known.counts,
            topics=(),
            partitions=names,
        )
        found: dict[TopicPartition, SelectedPartition] = {}
        unread: dict[TopicPartition | None, str] = {}
        local = replace(self.scope, topics=(), partitions=names)
        for scope in (remote, local) if self.scope.sources else (remote,):
            try:
                selection = select(scope, sources)
            except NothingInScopeError:
                continue
            found |= {
                partition.topic_partition: partition
                for partition in selection.partitions
                if scope is remote or partition.log_dir.broker_id in wanted[partition.topic_partition].in_sync
            }
            unread |= {problem.topic_partition: str(problem.error) for problem in selection.problems}
        return {name: selected for name, selected in found.items() if selected.inventory.partition.boundaries}, unread

    def _answers(self, places: Iterable[PartitionReplicas]) -> dict[TopicPartition, dict[int, ReplicaProducers]]:
        """Return the producers of every replica in sync, by partition and broker; none of one that does not answer."""
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        answers: dict[TopicPartition, dict[int, ReplicaProducers]] = {}
        for place in places:
            answers[place.topic_partition] = {}
            for broker_id in place.in_sync:
                led[broker_id].append(place.topic_partition)
        for broker_id, names in led.items():
            for begin in range(0, len(names), PARTITIONS_A_REQUEST):
                try:
                    said = self.brokers.producers(broker_id, names[begin : begin + PARTITIONS_A_REQUEST])
                except ClusterError:
                    continue  # the comparison of replicas says so
                for name, producers in said.items():
                    answers[name][broker_id] = producers
        return answers

    def _is_marked(
        self,
        selected: SelectedPartition,
        answers: Mapping[int, ReplicaProducers],
        planner: Planner,
        tolerance: Tolerance,
    ) -> bool:
        """Whether a remote snapshot has a producer that a replica, or a later snapshot, lacks."""
        partition, sources = selected.inventory.partition, planner.sources
        youngest_ns = (tolerance.now_ms - tolerance.expiration_ms) * 1_000_000
        recent = [one for one in partition.snapshots if one.mtime_ns >= youngest_ns] or partition.snapshots[-1:]
        if judge_snapshots(replace(partition, snapshots=recent), sources, tolerance.expiration_ms).losses:
            return True
        try:
            entries = read_snapshot(sources.read(recent[-1].path)) if recent else {}
        except ResnapError:
            return True  # a replay shows it
        return any(
            next(_missing(entries.values(), recent[-1].offset, replica.producers, tolerance), None) is not None
            for replica in answers.values()
            if replica.error is None
        )

    def _replay(
        self, logs: Mapping[TopicPartition, SelectedPartition], planner: Planner, directory: Path, show: Show
    ) -> Iterator[PartitionResult]:
        plans = [self._plan(partition, planner) for partition in logs.values()]
        if planner.engine.is_remote and plans:
            hint = "give --engine local, or a local --spark-master"
            raise UsageError("executors on other machines cannot write where replicas are compared", hint=hint)
        with show("replay") as (progress,):
            yield from planner.engine.replay(plans, directory.as_uri(), progress, here_below_bytes=REPLAYED_HERE_BYTES)

    def _plan(self, selected: SelectedPartition, planner: Planner) -> PartitionPlan:
        partition, sources = selected.inventory.partition, planner.sources
        expiration_ms = planner.rules.written_under.expiration_ms
        facts = load_facts(partition, sources, expiration_ms=expiration_ms, is_judged=True)
        return plan_replay(selected.inventory, facts, partition.boundaries[-1:], planner.rules)


def _compare(
    place: PartitionReplicas,
    result: PartitionResult,
    answers: Mapping[int, ReplicaProducers],
    directory: Path,
    tolerance: Tolerance,
) -> Iterator[ReplicaFinding]:
    """Yield what replicas lack of the state that the replay of a partition gives."""
    (found,) = result.boundaries
    if found.outcome is not BoundaryOutcome.REBUILT:
        why = f"its log cannot be replayed: {found.reason or result.error}"
        yield place.finding(None, ReplicaState.UNKNOWN, why)
        return
    offset = found.offset
    entries = read_snapshot((directory / snapshot_key(place.topic_partition, offset)).read_bytes())
    for broker_id, answer in sorted(answers.items()):
        lost = () if answer.error else tuple(_missing(entries.values(), offset, answer.producers, tolerance))
        if lost:
            finding = place.finding(broker_id, ReplicaState.LOST)
            yield replace(finding, lost=lost, replayed_to=offset)


def _missing(
    entries: Iterable[ProducerEntry], end: int, producers: Iterable[ActiveProducer], tolerance: Tolerance
) -> Iterator[LostProducer]:
    """Yield what ``producers`` lack of the state at offset ``end``.

    A transaction that was open there may have ended above, and its producer have expired since.
    """
    known = [
        producer
        for producer in map(_active, entries)
        if not tolerance.expires(producer._replace(current_transaction_start_offset=None))
    ]
    for lost in lost_producers(known, producers, known):
        start = None if lost.found is None else lost.found.current_transaction_start_offset
        is_cut = start is not None and start < end
        losses = tuple(loss for loss in lost.losses if loss is not Loss.TRANSACTION or lost.found is None or is_cut)
        if losses:
            yield lost._replace(losses=losses)


def _active(entry: ProducerEntry) -> ActiveProducer:
    return ActiveProducer(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_transaction_start_offset=entry.current_txn_first_offset if entry.has_open_transaction else None,
    )
