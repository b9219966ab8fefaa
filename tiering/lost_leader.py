"""A replica that led without its producer state: what it did wrong, its right indexes, how leadership is moved away.

It did not know the producers and open transactions from below: so it serves records of such a transaction that was
aborted later, appends duplicate batches, and accepts batches of fenced producer instances.

Its transaction indexes are rebuilt: if a transaction begins below the log dir and is aborted in it, such a replica
writes no entry, or one with too high a first offset, and consumers get the aborted records. The replay's snapshot at
the base offset of a segment shows which transactions were open there.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.replay.explain import batches_of
from resnap.storage.errors import ResnapError
from resnap.storage.log.indexes import write_transaction_index
from resnap.storage.stores.urls import is_store_url
from resnap.storage.words import some
from resnap.tiering.cluster.live_replicas import LiveBrokers
from resnap.tiering.cluster.replica_comparison import SEQUENCES
from resnap.tiering.shipping.aborted_transactions import InheritedTransactions, open_in
from resnap.tiering.shipping.segment_indexes import index_there
from resnap.tiering.shipping.segment_pass import transactions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from resnap.replay.explain import Batch
    from resnap.replay.window import SegmentSpan
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources
    from resnap.tiering.cluster.client import Connect
    from resnap.tiering.cluster.replica_comparison import PartitionReplicas
    from resnap.tiering.judging.lost_producer_state import LostState
    from resnap.tiering.selection import SelectedPartition


class WronglyAppended(NamedTuple):
    """A batch or marker that a leader with complete state would not have appended."""

    producer_id: int
    batch: Batch
    before: Batch
    """The last one of its producer before it."""

    @property
    def is_fenced(self) -> bool:
        """Whether a later instance had fenced it; else its sequence numbers are duplicates."""
        return self.batch.producer_epoch < self.before.producer_epoch


def aborted_and_served(partition: PartitionDir, sources: Sources) -> Iterator[AbortedTxn]:
    """Yield the aborted transactions that a transaction index lacks or records wrongly: their records are served.

    It reads every segment of the log, remote ones too. Transactions that began below the log are not reported.

    Raises:
        FormatError: a segment is damaged.
        LogDirError, StoreError: one cannot be read.

    """
    before = InheritedTransactions({}, known_from=partition.segments[0].base_offset)
    for segment in partition.segments:
        found = transactions_of(segment, sources)
        index = index_there(segment, sources)
        there = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in index or ()}
        for transaction in found.entries(before) if index is not None else ():  # of a damaged one nothing is served
            first = there.get((transaction.producer_id, transaction.last_offset))
            if first is None or first > transaction.first_offset:
                yield transaction
        before = found.after(before)


def wrongly_appended(
    segments: Iterable[SegmentSpan], producers: Collection[int], begin: int, sources: Sources
) -> Iterator[WronglyAppended]:
    """Yield batches of ``producers`` from the offset ``begin`` on that contradict the log below it.

    A producer that starts again at sequence 0, long after the broker had forgotten it, looks the same.

    Raises:
        FormatError: a segment is damaged.
        LogDirError, StoreError: one cannot be read.

    """
    last: dict[int, Batch] = {}
    for segment in segments:
        for producer_id, batch in batches_of(segment, producers, sources):
            before = last.get(producer_id)
            if before is not None and batch.base_offset >= begin:
                found = WronglyAppended(producer_id, batch, before)
                if found.is_fenced or _is_repeated(batch, before):
                    yield found
                    continue
            if not batch.is_marker or before is None or batch.producer_epoch > before.producer_epoch:
                last[producer_id] = batch


def _is_repeated(batch: Batch, before: Batch) -> bool:
    """Whether ``batch`` has sequence numbers of ``before``, or lower ones."""
    if batch.is_marker or before.is_marker or batch.producer_epoch != before.producer_epoch:
        return False
    return (before.last_sequence - batch.base_sequence) % SEQUENCES < SEQUENCES // 2


_MOST_NAMED: Final = 20
_AS_ELECTION: Final = {"--command-config": "--admin.config"}
"""What the tool that elects leaders calls flags of the others."""
_STAGED: Final = "/var/tmp/healed"  # noqa: S108 - in commands that are printed


def heal_commands(log_dirs: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the commands that restore the producer state of replicas in ``log_dirs`` of one stopped broker.

    Each comes with the URL of its remote part, if that is known.
    """
    places = " ".join(map(shlex.quote, log_dirs))
    remote = next((shlex.quote(log_dir) for log_dir in log_dirs.values() if log_dir is not None), "URL")
    yield f"resnap regenerate {places} --remote {remote} --boundaries all --into {_STAGED}"
    for log_dir in log_dirs:
        there = "LOG_DIR" if is_store_url(log_dir) else shlex.quote(log_dir)
        yield f"resnap install {_STAGED} {there} --replace false-partial --replace txnindex"


def log_dirs_of(replicas: Iterable[SelectedPartition]) -> dict[str, str | None]:
    """Return the log dirs of ``replicas``, for ``heal_commands``."""
    return {str(replica.log_dir.path): replica.log_dir.remote for replica in replicas}


def move_commands(orders: Mapping[TopicPartition, Sequence[int | str]], connection: Sequence[str]) -> tuple[str, ...]:
    """Return Kafka's commands that make the first replica of each partition its leader; ``connection`` are flags."""
    wanted = [{"topic": one.topic, "partition": one.partition, "replicas": [*order]} for one, order in orders.items()]
    reassign = shlex.join(["kafka-reassign-partitions.sh", *connection])
    elect = shlex.join(["kafka-leader-election.sh", *(_AS_ELECTION.get(word, word) for word in connection)])
    one = next(iter(orders))
    which = f"--topic {one.topic} --partition {one.partition}" if len(orders) == 1 else "--path-to-json-file move.json"
    return (
        f"echo {shlex.quote(json.dumps({'version': 1, 'partitions': wanted}))} > move.json",
        f"{reassign} --reassignment-json-file move.json --execute",
        f"{elect} --election-type preferred {which}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLeader:
    """One replica that has lost its producer state, and may lead.

    Attributes:
        leads: whether it is the leader now; None if no cluster was asked.
        replicas: the order in which another one leads; empty if unknown.

    """

    selected: SelectedPartition
    lost: LostState
    aborted: tuple[AbortedTxn, ...]
    appended: tuple[WronglyAppended, ...]
    leads: bool | None = None
    replicas: tuple[int, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the replica."""
        return self.selected.topic_partition

    def move_commands(self, connection: Sequence[str]) -> tuple[str, ...]:
        """Return Kafka's commands that make another replica the leader."""
        orders = {self.topic_partition: self.replicas or ("ANOTHER", "THE REST")}
        return move_commands(orders, connection)

    def row(self, connection: Sequence[str]) -> Mapping[str, object]:
        """Return it as a row for programs."""
        return {
            "offset": self.lost.offset,
            "producers": list(self.lost.producers),
            "detail": self.lost.detail,
            "leads": self.leads,
            "abortedAndServed": [
                {"producerId": txn.producer_id, "firstOffset": txn.first_offset, "lastOffset": txn.last_offset}
                for txn in self.aborted
            ],
            "wronglyAppended": [
                {
                    "producerId": appended.producer_id,
                    "producerEpoch": appended.batch.producer_epoch,
                    "baseOffset": appended.batch.base_offset,
                    "lastOffset": appended.batch.last_offset,
                    "baseSequence": appended.batch.base_sequence,
                    "lastSequence": appended.batch.last_sequence,
                    "fenced": appended.is_fenced,
                    "offsetBefore": appended.before.base_offset,
                }
                for appended in self.appended
            ],
            "moveCommands": list(self.move_commands(connection)) if self._is_to_move else [],
        }

    @property
    def _is_to_move(self) -> bool:
        return self.leads is None or (self.leads and bool(self.replicas))

    def lines(self, connection: Sequence[str]) -> Iterator[str]:
        """Yield it as text, with what to do."""
        lost = some(len(self.lost.producers), "producer")
        yield f"{self.topic_partition}: this replica lost the state of {lost}: {self.lost.detail}."
        yield "It leads, and answers wrongly:" if self.leads else "While it leads or has led, it answers wrongly:"
        yield from self._aborted_lines()
        yield from self._appended_lines()
        yield (
            f"  of {lost} it does not know what lies below offset {self.lost.offset}: a batch that is sent again is"
            " appended again, and one of a fenced instance is taken, until the producer has written again or expires"
        )
        if self._is_to_move:
            yield "If it leads, move leadership away first, to a replica that `resnap replicas` does not name:"
            yield from (f"  {command}" for command in self.move_commands(connection))
        elif self.leads:
            yield "No other replica is in sync: leadership cannot be moved before one is."
        yield "Then stop its broker, restore the replica's state, and start it:"
        yield from (f"  {command}" for command in heal_commands(log_dirs_of([self.selected])))

    def _aborted_lines(self) -> Iterator[str]:
        for txn in self.aborted[:_MOST_NAMED]:
            yield (
                f"  records of producer {txn.producer_id} between the offsets {txn.first_offset} and {txn.last_offset}"
                " are served as committed: their transaction was aborted"
            )
        if len(self.aborted) > _MOST_NAMED:
            yield f"  and {some(len(self.aborted) - _MOST_NAMED, 'more aborted transaction')}"

    def _appended_lines(self) -> Iterator[str]:
        for one in self.appended[:_MOST_NAMED]:
            what = "is of a fenced epoch" if one.is_fenced else "has sequence numbers that were there already"
            yield (
                f"  offset {one.batch.base_offset} of producer {one.producer_id}, epoch {one.batch.producer_epoch},"
                f" {what}; the one before is at {one.before.base_offset}"
            )
        if len(self.appended) > _MOST_NAMED:
            yield f"  and {some(len(self.appended) - _MOST_NAMED, 'more batch')}"


def lost_leader(
    selected: SelectedPartition,
    lost: LostState,
    segments: Sequence[SegmentSpan],
    sources: Sources,
    *,
    connect: Connect | None,
    warn: Callable[[str], None],
) -> LostLeader:
    """Return the report on a replica whose remote part proves that it lost its state; reads the whole log.

    Raises:
        FormatError: a segment is damaged.
        LogDirError, StoreError: one cannot be read.

    """
    place = None if connect is None else _place(connect, selected.topic_partition, warn)
    own = selected.log_dir.broker_id
    others = () if place is None else tuple(replica for replica in place.replicas if replica != own)
    in_sync = () if place is None else tuple(replica for replica in others if replica in place.in_sync)
    first = in_sync[:1]
    return LostLeader(
        selected=selected,
        lost=lost,
        aborted=tuple(aborted_and_served(selected.inventory.partition, sources)),
        appended=tuple(wrongly_appended(segments, lost.producers, lost.offset, sources)),
        leads=None if place is None else place.leader == own,
        replicas=(*first, *(one for one in others if one not in first), own) if first and own is not None else (),
    )


def _place(connect: Connect, topic_partition: TopicPartition, warn: Callable[[str], None]) -> PartitionReplicas | None:
    """Return where the partition's replicas are; None, with a warning, if the cluster does not say."""
    try:
        with connect() as cluster:
            brokers = LiveBrokers(cluster=cluster, wants=topic_partition.__eq__, warn=warn)
            return next(iter(brokers.partitions(frozenset({topic_partition.topic}))), None)
    except ResnapError as error:
        warn(f"the cluster does not report who leads: {error}")
        return None


def right_indexes(
    partition: PartitionDir, snapshots: Mapping[int, bytes], sources: Sources
) -> Iterator[tuple[Segment, bytes, tuple[AbortedTxn, ...]]]:
    """Yield the closed segments of the log dir whose transaction indexes are wrong or not there, with correct ones.

    An index has no bytes where nothing was aborted. The last value are its entries that are not there: consumers of
    this replica were served the records of these.

    Only segments are judged with a snapshot without missing producers at their base offset, in ``snapshots`` by offset.

    Raises:
        FormatError: a segment is damaged.
        LogDirError, StoreError: a file cannot be read.

    """
    for segment in partition.segments:
        snapshot = snapshots.get(segment.base_offset)
        if segment.is_active or snapshot is None or not partition.is_local(segment.base_offset):
            continue
        before = InheritedTransactions(open_in(snapshot), known_from=0)
        found, there = transactions_of(segment, sources), index_there(segment, sources)
        if there is None or found.judge(there, before).problems:
            right = found.entries(before)
            not_there = tuple(transaction for transaction in right if transaction not in (there or ()))
            yield segment, write_transaction_index(right), not_there
