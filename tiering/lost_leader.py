"""A replica that lost its producer state: what it did wrong as leader, and how to move leadership away."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import ResnapError
from resnap.storage.stores.urls import is_store_url
from resnap.storage.words import some
from resnap.tiering.cluster.live_replicas import LiveBrokers
from resnap.tiering.installing.wrong_answers import aborted_and_served, wrongly_appended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.replay.window import SegmentSpan
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.sources.files import Sources
    from resnap.tiering.cluster.client import Connect
    from resnap.tiering.cluster.replica_comparison import PartitionReplicas
    from resnap.tiering.installing.wrong_answers import WronglyAppended
    from resnap.tiering.judging.lost_producer_state import LostState
    from resnap.tiering.selection import SelectedPartition

_MOST_NAMED: Final = 20
_STAGED: Final = "/var/tmp/healed"  # noqa: S108 - in commands that are printed


def heal_commands(log_dirs: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the commands that restore the producer state of replicas in ``log_dirs`` of one stopped broker.

    Each comes with the URL of its remote part, if that is known.
    """
    places = " ".join(map(shlex.quote, log_dirs))
    remote = next((shlex.quote(one) for one in log_dirs.values() if one is not None), "URL")
    yield f"resnap regenerate {places} --remote {remote} --boundaries all --into {_STAGED}"
    for log_dir in log_dirs:
        there = "LOG_DIR" if is_store_url(log_dir) else shlex.quote(log_dir)
        yield f"resnap install {_STAGED} {there} --replace false-partial --replace txnindex"


def log_dirs_of(replicas: Iterable[SelectedPartition]) -> dict[str, str | None]:
    """Return the log dirs of ``replicas``, for ``heal_commands``."""
    return {str(one.log_dir.path): one.log_dir.remote for one in replicas}


def move_commands(
    orders: Mapping[TopicPartition, Sequence[int | str]], bootstrap_server: str | None, command_config: Path | None
) -> tuple[str, ...]:
    """Return Kafka's commands that make the first replica of each partition its leader."""
    wanted = [{"topic": one.topic, "partition": one.partition, "replicas": [*order]} for one, order in orders.items()]
    server = f"--bootstrap-server {bootstrap_server or 'HOST:PORT'}"
    reassign, elect = (
        "" if command_config is None else f" {flag} {shlex.quote(str(command_config))}"
        for flag in ("--command-config", "--admin.config")
    )
    one = next(iter(orders))
    which = f"--topic {one.topic} --partition {one.partition}" if len(orders) == 1 else "--path-to-json-file move.json"
    return (
        f"echo {shlex.quote(json.dumps({'version': 1, 'partitions': wanted}))} > move.json",
        f"kafka-reassign-partitions.sh {server}{reassign} --reassignment-json-file move.json --execute",
        f"kafka-leader-election.sh {server}{elect} --election-type preferred {which}",
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

    def move_commands(self, bootstrap_server: str | None, command_config: Path | None) -> tuple[str, ...]:
        """Return Kafka's commands that make another replica the leader."""
        orders = {self.topic_partition: self.replicas or ("ANOTHER", "THE REST")}
        return move_commands(orders, bootstrap_server, command_config)

    def row(self, bootstrap_server: str | None, command_config: Path | None) -> Mapping[str, object]:
        """Return it as a row for programs."""
        return {
            "offset": self.lost.offset,
            "producers": list(self.lost.producers),
            "detail": self.lost.detail,
            "leads": self.leads,
            "abortedAndServed": [
                {"producerId": one.producer_id, "firstOffset": one.first_offset, "lastOffset": one.last_offset}
                for one in self.aborted
            ],
            "wronglyAppended": [
                {
                    "producerId": one.producer_id,
                    "producerEpoch": one.batch.producer_epoch,
                    "baseOffset": one.batch.base_offset,
                    "lastOffset": one.batch.last_offset,
                    "baseSequence": one.batch.base_sequence,
                    "lastSequence": one.batch.last_sequence,
                    "fenced": one.is_fenced,
                    "offsetBefore": one.before.base_offset,
                }
                for one in self.appended
            ],
            "moveCommands": list(self.move_commands(bootstrap_server, command_config)) if self._is_to_move else [],
        }

    @property
    def _is_to_move(self) -> bool:
        return self.leads is None or (self.leads and bool(self.replicas))

    def lines(self, bootstrap_server: str | None, command_config: Path | None) -> Iterator[str]:
        """Yield it as text, with what to do."""
        lost = some(len(self.lost.producers), "producer")
        yield f"{self.topic_partition}: this replica lost the state of {lost}: {self.lost.detail}."
        yield "It leads, and answers wrongly:" if self.leads else "While it leads or has led, it answers wrongly:"
        yield from self._aborted()
        yield from self._appended()
        yield (
            f"  of {lost} it does not know what lies below offset {self.lost.offset}: a batch that is sent again is"
            " appended again, and one of a fenced instance is taken, until the producer has written again or expires"
        )
        if self._is_to_move:
            yield "If it leads, move leadership away first, to a replica that `resnap replicas` does not name:"
            yield from (f"  {one}" for one in self.move_commands(bootstrap_server, command_config))
        elif self.leads:
            yield "No other replica is in sync: leadership cannot be moved before one is."
        yield "Then stop its broker, restore the replica's state, and start it:"
        yield from (f"  {one}" for one in heal_commands(log_dirs_of([self.selected])))

    def _aborted(self) -> Iterator[str]:
        for one in self.aborted[:_MOST_NAMED]:
            yield (
                f"  records of producer {one.producer_id} between the offsets {one.first_offset} and {one.last_offset}"
                " are served as committed: their transaction was aborted"
            )
        if len(self.aborted) > _MOST_NAMED:
            yield f"  and {some(len(self.aborted) - _MOST_NAMED, 'more aborted transaction')}"

    def _appended(self) -> Iterator[str]:
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
    others = () if place is None else tuple(one for one in place.replicas if one != own)
    in_sync = () if place is None else tuple(one for one in others if one in place.in_sync)
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
