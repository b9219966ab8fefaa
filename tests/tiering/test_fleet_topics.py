"""The answer for a topic over all replicas: blocked before unknown, and ready only if all are known to be."""

from __future__ import annotations

from typing import Final

from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.replica_comparison import PartitionReplicas
from resnap.tiering.fleet import BrokerReplicas, ScannedReplica, TopicAnswer, topic_answers
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import UnblockedBy

READY: Final = ScannedReplica(Verdict.READY, None, None, "a broker can tier every closed segment", "turn tiering on", 0)
BLOCKED: Final = ScannedReplica(
    Verdict.BLOCKED, UnblockedBy.REBUILD, "missing-snapshot", "no snapshot at 10", "start a replay", 2
)
INSTALL: Final = BLOCKED._replace(unblocked_by=UnblockedBy.INSTALL)
DAMAGED: Final = BLOCKED._replace(unblocked_by=UnblockedBy.OTHER, reason="damaged")
NEVER: Final = READY._replace(verdict=Verdict.NEVER, reason="compacted")


def broker(broker_id: int, *replicas: ScannedReplica | None, topic: str = "t") -> BrokerReplicas:
    """Return a broker whose replicas of a topic's first partitions are these; None for none of that partition."""
    found = {number: one for number, one in enumerate(replicas) if one is not None}
    return BrokerReplicas(broker_id=broker_id, topics={topic: found})


def silent(broker_id: int) -> BrokerReplicas:
    return BrokerReplicas(broker_id=broker_id, error=f"broker {broker_id} is silent")


def place(number: int, *replicas: int, leader: int | None = 1, in_sync: tuple[int, ...] = ()) -> PartitionReplicas:
    return PartitionReplicas(TopicPartition("t", number), leader, 0, replicas, in_sync or replicas)


def one(brokers: list[BrokerReplicas], places: list[PartitionReplicas] | None = None) -> TopicAnswer:
    (found,) = topic_answers(brokers, places)
    return found


def test_a_topic_is_blocked_before_it_is_unknown_and_ready_only_if_every_replica_is_known_to_be() -> None:
    ready, blocked, unknown = Verdict.READY, Verdict.BLOCKED, Verdict.UNKNOWN
    three = [place(0, 1, 2, 3)]
    for what, brokers, places, wanted in (
        ("all are ready", [broker(1, READY), broker(2, READY), broker(3, READY)], None, ready),
        ("one is compacted", [broker(1, BLOCKED), broker(2, NEVER), silent(3)], None, Verdict.NEVER),
        ("one waits for an installation", [broker(1, READY), broker(2, INSTALL)], None, blocked),
        ("one is blocked", [broker(1, READY), broker(2, BLOCKED)], None, blocked),
        ("one is silent, and may have a replica", [broker(1, READY), silent(2)], None, unknown),
        ("one is silent, another blocked", [broker(1, BLOCKED), silent(2)], None, blocked),
        ("all that the cluster has are ready", [broker(1, READY), broker(2, READY), broker(3, READY)], three, ready),
        ("a silent one has a replica", [broker(1, READY), broker(2, READY), silent(3)], three, unknown),
        ("a silent one has no replica", [broker(1, READY), silent(2)], [place(0, 1)], ready),
        ("one is not in the configuration", [broker(1, READY), broker(2, READY)], three, unknown),
        ("one has not been scanned", [broker(1, READY), broker(2, None, READY)], [place(0, 1, 2)], unknown),
        ("the replica that is blocked is none any more", [broker(1, READY), broker(2, BLOCKED)], [place(0, 1)], ready),
        ("there is no leader", [broker(1, READY)], [place(0, 1, leader=None)], unknown),
        ("nobody answers", [silent(1), silent(2), silent(3)], three, unknown),
    ):
        assert one(brokers, places).verdict is wanted, what


def test_what_is_not_known_is_said_broker_by_broker() -> None:
    places = [place(number, 1, 2, 3, 4) for number in range(3)]
    answer = one([broker(1, READY, READY, READY), broker(2, READY), silent(3)], places)
    assert answer.unknown == (
        "broker 2: its service has not seen t-1 and 1 more",
        "broker 3 is silent",
        "broker 4 has no [[fleet]] entry",
    )
    assert one([broker(1, READY)], [place(0, 1, leader=None)]).unknown == ("without a leader: t-0",)


def test_replicas_are_counted_by_kind_by_reason_and_by_who_leads() -> None:
    brokers = [broker(1, BLOCKED, READY), broker(2, BLOCKED, DAMAGED), broker(3, READY, INSTALL)]
    places = [place(0, 1, 2, 3), place(1, 3, 2, 1, leader=3, in_sync=(3, 2))]
    answer = one(brokers, places)
    assert answer.verdicts == {Verdict.READY: 2, Verdict.BLOCKED: 4}
    assert (answer.partitions, answer.missing, answer.offline) == (2, 8, 0)
    assert (answer.under_replicated, answer.blocked_leaders) == (1, 2)
    first, second = answer.blockers
    assert (first.reason, first.replicas, first.brokers) == ("missing-snapshot", 3, (1, 2, 3))
    assert (second.reason, second.broker_id, second.partition) == ("damaged", 2, 1)


def test_a_cluster_that_was_asked_and_is_silent_makes_topics_unknown_and_one_that_was_not_does_not() -> None:
    (asked,) = topic_answers([broker(1, READY)], None, unanswered="nobody answers")
    (not_asked,) = topic_answers([broker(1, READY)], None)
    assert (asked.verdict, asked.unknown) == (Verdict.UNKNOWN, ("nobody answers",))
    assert (not_asked.verdict, not_asked.under_replicated) == (Verdict.READY, None)


def test_only_selected_topics_that_the_cluster_has_are_reported() -> None:
    brokers = [broker(1, READY), broker(2, READY, topic="other"), broker(3, BLOCKED, topic="deleted")]
    assert [answer.topic for answer in topic_answers(brokers, None)] == ["deleted", "other", "t"]
    assert [answer.topic for answer in topic_answers(brokers, [place(0, 1)])] == ["t"]
    assert [answer.topic for answer in topic_answers(brokers, None, wants=lambda name: name == "other")] == ["other"]


def test_of_a_replica_that_was_seen_twice_the_worse_counts() -> None:
    for better, worse in ((READY, NEVER), (NEVER, DAMAGED), (READY, BLOCKED)):
        assert better.or_worse(worse) == worse.or_worse(better) == worse
