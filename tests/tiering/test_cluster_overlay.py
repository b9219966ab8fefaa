from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from resnap.storage.errors import UsageError
from resnap.storage.log.log_dir import load_log_dir
from resnap.tiering.cluster.facts import ClusterFacts, PartitionFacts, TopicFacts, with_facts
from resnap.tiering.selection import Scope, select, warn_of_gaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.log.log_dir import LogDir
    from tests.fixture_sets import FixtureSet

TOPIC_ID = "qRkflhTtSyCfY_5C8Ka4hg"


@pytest.fixture
def log_dir(fixture_set: Callable[[str], FixtureSet]) -> LogDir:
    return load_log_dir(fixture_set("kafka-3.9.1-tiered").data, topics=lambda one: one.topic == "payments")


def facts(log_dir: LogDir, **changes: Any) -> ClusterFacts:
    """What a cluster would report of ``payments``: partition 0 led by the broker of the log dir, 1 by another."""
    partitions = {
        number: PartitionFacts(
            partition=number, leader=leader, log_start_offset=130, local_start_offset=130, high_watermark=10_000
        )
        for number, leader in ((0, log_dir.broker_id), (1, 77))
    }
    topic = TopicFacts(name="payments", topic_id=TOPIC_ID, settings={"cleanup.policy": "delete"}, partitions=partitions)
    return ClusterFacts(cluster_id=log_dir.cluster_id, topics={"payments": replace(topic, **changes)})


def test_what_a_leader_says_counts_for_its_own_log_dir_alone(log_dir: LogDir) -> None:
    led, followed = with_facts(log_dir, facts(log_dir)).partitions
    assert (led.high_watermark, led.log_start_offset) == (10_000, 130)
    assert followed == log_dir.partitions[1]


def test_a_topic_id_that_the_files_lack_is_the_clusters(log_dir: LogDir) -> None:
    without = replace(log_dir, partitions=tuple(replace(partition, topic_id=None) for partition in log_dir.partitions))
    assert {partition.topic_id for partition in with_facts(without, facts(log_dir)).partitions} == {TOPIC_ID}


def test_what_remains_of_a_deleted_topic_is_a_problem_and_no_partition(log_dir: LogDir) -> None:
    found = with_facts(log_dir, facts(log_dir, topic_id="AAAAAAAAQACAAAAAAAAAAQ"))
    assert found.partitions == ()
    assert [str(one.path.name) for one in found.problems] == ["payments-0", "payments-1"]
    assert "the cluster's payments has AAAAAAAAQACAAAAAAAAAAQ" in str(found.problems[0].error)


def test_a_topic_that_the_cluster_does_not_report_stays_unchanged(log_dir: LogDir) -> None:
    assert with_facts(log_dir, replace(facts(log_dir), topics={})) == log_dir


def test_a_topic_that_the_user_may_not_describe_is_a_problem_and_no_partition(log_dir: LogDir) -> None:
    hidden = replace(facts(log_dir), topics={}, refused={"payments": "TOPIC_AUTHORIZATION_FAILED"})
    without_settings = replace(facts(log_dir, settings={}), refused=hidden.refused)
    for known in (hidden, without_settings):
        found = with_facts(log_dir, known)
        assert found.partitions == ()
        assert [str(one.topic_partition) for one in found.problems] == ["payments-0", "payments-1"]
        assert "TOPIC_AUTHORIZATION_FAILED" in str(found.problems[0].error)
        assert "DescribeConfigs" in str(found.problems[0].error.hint)


class Asked:
    """A running cluster that has said what it is asked."""

    def __init__(self, known: ClusterFacts) -> None:
        self.known = known

    def facts(self, _wants: Callable[[str], bool]) -> ClusterFacts:
        return self.known


def test_a_leader_that_does_not_answer_is_named_if_it_leads_what_is_in_scope(log_dir: LogDir) -> None:
    known = replace(facts(log_dir), silent={77: "no route to kafka-77:9092", 78: "no route to kafka-78:9092"})

    @contextmanager
    def connect() -> Iterator[Any]:
        yield Asked(known)

    said: list[str] = []
    scope = Scope(sources=(str(log_dir.path),), topics=("payments",), connect=connect)
    warn_of_gaps(scope, select(scope), said.append)
    assert said == ["of partitions that broker 77 leads the files here alone count: no route to kafka-77:9092"]


def test_another_cluster_is_refused(log_dir: LogDir) -> None:
    with pytest.raises(UsageError, match="the running one is other"):
        with_facts(log_dir, replace(facts(log_dir), cluster_id="other"))


def test_compaction_is_the_cleanup_policy_that_the_topic_has_now(log_dir: LogDir) -> None:
    told = facts(log_dir, settings={"cleanup.policy": "compact"})
    assert told.topic_settings()["payments"]["cleanup.policy"] == "compact"
    assert facts(log_dir, settings={}).topic_settings() == {}
