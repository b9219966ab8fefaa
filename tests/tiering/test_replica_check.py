"""The check of replicas: no alarm where nothing is lost, whatever happens meanwhile; and none missed where it is."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

from hypothesis import example, given
from hypothesis import strategies as st

from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.facts import ClusterFacts, PartitionFacts, TopicFacts
from resnap.tiering.cluster.live_replicas import PARTITIONS_A_REQUEST, LiveBrokers
from resnap.tiering.cluster.replica_comparison import (
    ActiveProducer,
    DeletedRecords,
    Loss,
    ReplicaState,
    Tolerance,
    lost_producers,
)
from tests.tiering.simulated_cluster import EXPIRATION_MS, LAG_MS, START_MS, TOPIC, Batch, cluster_of, quiet

if TYPE_CHECKING:
    from resnap.tiering.cluster.client import Cluster as Client

SEEDS: Final = st.integers(0, 1 << 40)
CLUSTERS: Final = 20
"""In one example: one of them costs a few milliseconds."""
BASE: Final = ActiveProducer(7, 3, 100, START_MS, 4, None)
OPEN: Final = BASE._replace(current_transaction_start_offset=40)
MOVED: Final = BASE._replace(last_sequence=101)
TOLERANCE: Final = Tolerance(now_ms=START_MS + 1, expiration_ms=EXPIRATION_MS, deleted=DeletedRecords())
DELETED: Final = replace(TOLERANCE, deleted=DeletedRecords(below=41))
LATER: Final = replace(TOLERANCE, now_ms=START_MS + EXPIRATION_MS)
COMPACTED: Final = replace(TOLERANCE, deleted=DeletedRecords(markers=True))

CASES: Final = {
    "the same": (BASE, BASE, BASE, TOLERANCE, ()),
    "not known": (BASE, None, BASE, TOLERANCE, (Loss.PRODUCER,)),
    "not known, whatever it has written since": (BASE, None, MOVED, TOLERANCE, (Loss.PRODUCER,)),
    "not known, and expired by the other meanwhile": (BASE, None, None, TOLERANCE, ()),
    "not known, and about to expire": (BASE, None, BASE, LATER, ()),
    "not known, with an open transaction that never expires": (
        OPEN, None, OPEN, LATER, (Loss.PRODUCER, Loss.TRANSACTION)),
    "not known, since its records are gone": (BASE, None, BASE, DELETED, ()),
    "its open transaction began in records that are gone": (OPEN, None, OPEN, DELETED, ()),
    "older epoch": (BASE, BASE._replace(producer_epoch=2), BASE, TOLERANCE, (Loss.EPOCH,)),
    "older epoch, in spite of deleted records": (BASE, BASE._replace(producer_epoch=2), BASE, DELETED, (Loss.EPOCH,)),
    "newer epoch": (BASE, BASE._replace(producer_epoch=4, last_sequence=0), BASE, TOLERANCE, ()),
    "older sequence": (BASE, BASE._replace(last_sequence=99), BASE, TOLERANCE, (Loss.SEQUENCE,)),
    "older sequence of a producer that writes": (BASE, BASE._replace(last_sequence=99), MOVED, TOLERANCE, ()),
    "no sequence, from a marker alone": (BASE, BASE._replace(last_sequence=-1), BASE, TOLERANCE, (Loss.SEQUENCE,)),
    "newer sequence": (BASE, MOVED, BASE, TOLERANCE, ()),
    "newer sequence, wrapped around": (
        BASE._replace(last_sequence=(1 << 31) - 1), BASE._replace(last_sequence=0),
        BASE._replace(last_sequence=(1 << 31) - 1), TOLERANCE, ()),
    "older sequence, before the wrap": (
        BASE._replace(last_sequence=0), BASE._replace(last_sequence=(1 << 31) - 1), BASE._replace(last_sequence=0),
        TOLERANCE, (Loss.SEQUENCE,)),
    "older coordinator": (BASE, BASE._replace(coordinator_epoch=-1), BASE, TOLERANCE, (Loss.COORDINATOR_EPOCH,)),
    "older coordinator, of a compacted log": (BASE, BASE._replace(coordinator_epoch=-1), BASE, COMPACTED, ()),
    "coordinator not known, of one that was expired and came back with a transaction": (
        OPEN, OPEN._replace(coordinator_epoch=-1), OPEN, TOLERANCE, ()),
    "older coordinator, of one whose transaction is open": (
        OPEN, OPEN._replace(coordinator_epoch=3), OPEN, TOLERANCE, (Loss.COORDINATOR_EPOCH,)),
    "open transaction not known": (OPEN, BASE, OPEN, TOLERANCE, (Loss.TRANSACTION,)),
    "open transaction without its beginning": (
        OPEN, OPEN._replace(current_transaction_start_offset=60), OPEN, TOLERANCE, (Loss.TRANSACTION,)),
    "open transaction that has ended meanwhile": (OPEN, BASE, BASE, TOLERANCE, ()),
    "transaction that is open still, of which the other one knows the end": (BASE, OPEN, BASE, TOLERANCE, ()),
}  # fmt: skip


def test_a_loss_is_what_neither_time_nor_expiry_nor_deletion_explains() -> None:
    for case, (before, found, after, tolerance, losses) in CASES.items():
        said = [[] if one is None else [one] for one in (before, found, after)]
        lost = [(loss, producer.known) for producer in lost_producers(*said) for loss in producer.losses]
        assert [loss for loss, known in lost if not tolerance.allows(loss, known)] == list(losses), case


@given(SEEDS)
@example(659_389_383)  # one replica expires a producer, which comes back before the others do
def test_no_alarm_in_a_cluster_that_loses_nothing(seed: int) -> None:
    for one in range(seed, seed + CLUSTERS):
        found = cluster_of(random.Random(one)).check().findings()
        assert [finding for finding in found if finding.state is ReplicaState.LOST] == [], one


@given(SEEDS)
def test_what_a_replica_loses_is_found_at_that_replica_while_all_others_go_on(seed: int) -> None:
    chance = random.Random(seed)
    cluster = cluster_of(chance)
    cluster.moves_leaders = cluster.restarts = False
    cluster.down.clear()
    cluster.live(1)
    partition = chance.choice(cluster.cluster_partitions)
    partition.append(Batch(5, 0, 9, cluster.now_ms))  # no other writes in the name of this one
    partition.append(Batch(6, 2, 9, cluster.now_ms, is_transactional=True))
    for broker_id in partition.replicas:
        partition.fetch(broker_id, len(partition.log))
    loser = chance.choice(sorted(partition.replicas))
    partition.replicas[loser].producers.clear()
    found = [finding for finding in cluster.check().findings() if finding.state is ReplicaState.LOST]
    assert [(one.topic_partition, one.broker_id, one.leads) for one in found] == [
        (partition.name, loser, loser == partition.leader)
    ]
    losses = {one.known.producer_id: one.losses for one in found[0].lost}
    assert losses[5] == (Loss.PRODUCER,)
    assert losses[6] == (Loss.PRODUCER, Loss.TRANSACTION)


def test_replicas_that_agree_are_asked_once_and_many_partitions_a_request() -> None:
    cluster = quiet(partitions=3 * PARTITIONS_A_REQUEST)
    check = cluster.check()
    assert list(check.findings()) == []
    assert sorted(cluster.requests) == [(broker_id, PARTITIONS_A_REQUEST) for broker_id in range(3) for _ in range(3)]
    assert (check.partitions, check.replicas) == (150, 450)


def test_an_alarm_takes_as_long_as_a_replica_in_sync_may_lag() -> None:
    cluster = quiet()
    partition = cluster.cluster_partitions[0]
    del partition.replicas[next(iter(partition.in_sync - {partition.leader}))].producers[5]
    began_ms = cluster.now_ms
    assert [finding.state for finding in cluster.check().findings()] == [ReplicaState.LOST]
    assert 2 * LAG_MS <= cluster.now_ms - began_ms < 3 * LAG_MS


def test_who_is_out_of_sync_is_lagging_and_who_does_not_answer_is_not_known() -> None:
    cluster = quiet()
    partition = cluster.cluster_partitions[0]
    lagging, silent = sorted(partition.in_sync - {partition.leader})
    partition.in_sync.discard(lagging)
    partition.replicas[lagging].producers.clear()
    cluster.down[silent] = cluster.now_ms * 2
    found = {finding.broker_id: (finding.state, finding.why) for finding in cluster.check().findings()}
    assert found == {
        lagging: (ReplicaState.LAGGING, None),
        silent: (ReplicaState.UNKNOWN, f"broker {silent} does not answer"),
    }
    cluster.down = {partition.leader: cluster.now_ms * 2}
    found = {finding.broker_id: (finding.state, finding.why) for finding in cluster.check().findings()}
    assert found[silent] == (
        ReplicaState.UNKNOWN,
        f"its leader, broker {partition.leader}, did not answer: broker {partition.leader} does not answer",
    )


def test_one_replica_that_does_not_answer_hides_no_other() -> None:
    cluster = quiet()
    partition = cluster.cluster_partitions[0]
    lost, silent = sorted(partition.in_sync - {partition.leader})
    partition.replicas[lost].producers.clear()
    del partition.replicas[silent]
    partition.replicas[9] = partition.replicas[lost]
    partition.in_sync = {partition.leader, lost, silent}
    found = {finding.broker_id: (finding.state, finding.why) for finding in cluster.check().findings()}
    assert found[silent] == (ReplicaState.UNKNOWN, "NOT_LEADER_OR_FOLLOWER")
    assert found[lost] == (ReplicaState.LOST, None)


def test_a_partition_without_a_leader_is_not_known() -> None:
    cluster = quiet()
    cluster.cluster_partitions[0].leader = -1
    (found,) = cluster.check().findings()
    assert (found.state, found.broker_id, found.leads, found.why) == (
        ReplicaState.UNKNOWN, None, False, "the partition has no leader")  # fmt: skip


def test_the_time_of_an_alarm_begins_again_under_another_leader() -> None:
    cluster = quiet()
    partition = cluster.cluster_partitions[0]
    loser, other = sorted(partition.in_sync - {partition.leader})
    partition.replicas[loser].producers.clear()
    check, moved_ms = cluster.check(), cluster.now_ms + LAG_MS * 3 // 2

    def pause(seconds: float) -> None:
        cluster.now_ms += int(seconds * 1000)
        if partition.leader_epoch == 0 and cluster.now_ms >= moved_ms:
            partition.lead(other)

    partition.leader_epoch, check.pause = 0, pause
    assert [(finding.broker_id, finding.state) for finding in check.findings()] == [(loser, ReplicaState.LOST)]
    assert cluster.now_ms - moved_ms >= 2 * LAG_MS


def test_who_falls_out_of_sync_while_it_is_compared_is_lagging_and_no_loser() -> None:
    cluster = quiet()
    partition = cluster.cluster_partitions[0]
    late = min(partition.in_sync - {partition.leader})
    partition.replicas[late].producers.clear()
    check = cluster.check()

    def pause(seconds: float) -> None:
        cluster.now_ms += int(seconds * 1000)
        partition.in_sync.discard(late)

    check.pause = pause
    assert [(finding.broker_id, finding.state) for finding in check.findings()] == [(late, ReplicaState.LAGGING)]


def test_the_same_leader_in_a_later_epoch_begins_the_time_of_an_alarm_again() -> None:
    cluster = quiet()
    partition = cluster.cluster_partitions[0]
    loser, other = sorted(partition.in_sync - {partition.leader})
    partition.replicas[loser].producers.clear()
    check, first, moved_ms = cluster.check(), partition.leader, cluster.now_ms + LAG_MS * 3 // 2

    def pause(seconds: float) -> None:
        cluster.now_ms += int(seconds * 1000)
        if partition.leader_epoch == 0 and cluster.now_ms >= moved_ms:
            partition.lead(other)
            partition.lead(first)

    partition.leader_epoch, check.pause = 0, pause
    assert [(finding.broker_id, finding.state) for finding in check.findings()] == [(loser, ReplicaState.LOST)]
    assert cluster.now_ms - moved_ms >= 2 * LAG_MS


def test_one_answer_with_an_error_is_asked_for_again() -> None:
    cluster = quiet()
    partition = cluster.cluster_partitions[0]
    cluster.down[min(partition.in_sync - {partition.leader})] = cluster.now_ms * 2
    check = cluster.check()

    def pause(seconds: float) -> None:
        cluster.now_ms += int(seconds * 1000)
        cluster.down.clear()

    check.pause = pause
    assert list(check.findings()) == []


def test_a_topic_that_is_not_described_any_more_is_not_known() -> None:
    cluster = quiet()
    partition = cluster.cluster_partitions[0]
    partition.replicas[min(partition.in_sync - {partition.leader})].producers.clear()
    check = cluster.check()

    def pause(seconds: float) -> None:
        cluster.now_ms += int(seconds * 1000)
        partition.error = "TOPIC_AUTHORIZATION_FAILED"

    check.pause = pause
    assert [(finding.topic_partition, finding.state, finding.why) for finding in check.findings()] == [
        (partition.name, ReplicaState.UNKNOWN, "TOPIC_AUTHORIZATION_FAILED")
    ]


def test_new_replicas_lack_deleted_records_where_they_do_not_start_from_remote_storage() -> None:
    tiered, plain = {"remote.storage.enable": "true"}, {"remote.storage.enable": "false"}
    for settings, local_start, remote_end, below in (
        (plain, 90, None, 90),
        (tiered, 120, 120, 0),
        (tiered, 90, 120, 0),
        (tiered, 90, 0, 90),
        (tiered, 120, 0, 0),
        (tiered, 90, None, 0),
        (tiered, None, None, 0),
        ({}, 90, 0, 0),
    ):
        partition = PartitionFacts(
            partition=0, leader=1, log_start_offset=90, local_start_offset=local_start, remote_end_offset=remote_end
        )
        topic = TopicFacts(name=TOPIC, topic_id=None, settings=settings, partitions={0: partition})
        told = SimpleNamespace(facts=lambda *_, one=topic: ClusterFacts(cluster_id=None, topics={TOPIC: one}))
        brokers = LiveBrokers(cluster=cast("Client", told), wants=lambda _: True, warn=lambda _: None)
        name = TopicPartition(TOPIC, 0)
        assert brokers.deleted([name])[name].below == below, (settings, local_start, remote_end)
