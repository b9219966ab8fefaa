"""What `resnap replicas` prints, and which exit code counts where replicas lost state and others do not answer."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from resnap.scheduler.cli.failures import Failures
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.output.rendering import Output
from resnap.scheduler.settings.settings import Settings
from resnap.scheduler.verbs import replicas as job
from resnap.scheduler.verbs.replicas import ReplicasView, report_all
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.replica_comparison import (
    ActiveProducer,
    Loss,
    LostProducer,
    PartitionReplicas,
    ReplicaFinding,
    ReplicaState,
)
from tests import schemas
from tests.tiering.simulated_cluster import TOPIC, quiet

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scheduler.conftest import Resnap
    from tests.tiering.simulated_cluster import Cluster

KNOWN: Final = ActiveProducer(9001, 1, 2, 1_700_000_000_000, 4, 20)
PAYMENTS: Final = PartitionReplicas(TopicPartition("payments", 0), 2, 0, (), ())
LOST: Final = ReplicaFinding(
    place=PAYMENTS,
    broker_id=2,
    state=ReplicaState.LOST,
    lost=(LostProducer(KNOWN, None, (Loss.PRODUCER, Loss.TRANSACTION)),),
)
SILENT: Final = replace(LOST, broker_id=3, state=ReplicaState.UNKNOWN, lost=(), why="no answer")
ORDERS: Final = PAYMENTS._replace(topic_partition=TopicPartition("orders", 0))
CONNECTION: Final = ("--bootstrap-server", "one:9092", "--command-config", "client.properties")
LAGGING: Final = replace(SILENT, place=ORDERS, state=ReplicaState.LAGGING, why=None)


def test_lost_state_outranks_replicas_that_do_not_answer_and_those_outrank_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for findings, code in (
        ([LAGGING, LOST, SILENT], 4),
        ([LOST], 4),
        ([SILENT, LAGGING], 16),
        ([LAGGING], 0),
        ([], 0),
    ):
        said = io.StringIO()
        failures = Failures(said)
        context = Invocation(settings=Settings(), flags={}, output=Output("json"), failures=failures)
        view = ReplicasView(CONNECTION)
        context.show(partial(report_all, found=findings, partitions=2, replicas=5), view)
        assert failures.exit_code(view.exit_code) == code, findings
        document = json.loads(capsys.readouterr().out)
        schemas.check("replicas", document)
        assert [replica["state"] for replica in document["replicas"]] == [
            finding.state.value for finding in sorted(findings, key=lambda one: one.topic_partition)
        ]
        assert document["summary"] == {
            "partitions": 2, "notCompared": 0, "notReplayed": 0, "replicas": 5, "lost": findings.count(LOST),
            "lagging": findings.count(LAGGING), "unknown": findings.count(SILENT), "knownFaults": None,
        }  # fmt: skip
        assert ("error: " in said.getvalue()) == (code != 0)


def test_a_producer_without_an_open_transaction_is_as_the_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    ended = LostProducer(KNOWN, KNOWN._replace(current_transaction_start_offset=None), (Loss.TRANSACTION,))
    context = Invocation(settings=Settings(), flags={}, output=Output("json"), failures=Failures(io.StringIO()))
    context.show(
        partial(report_all, found=[replace(LOST, lost=(ended,))], partitions=1, replicas=3), ReplicasView(CONNECTION)
    )
    document = json.loads(capsys.readouterr().out)
    schemas.check("replicas", document)
    (row,) = document["replicas"]
    assert (row["lostTransactions"], row["lostProducers"]) == (1, 0)
    assert row["producers"][0]["found"]["currentTransactionStartOffset"] is None


def test_the_commands_that_move_leadership_away_are_of_all_partitions_that_can_be_led_by_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders = PartitionReplicas(TopicPartition("orders", 3), 2, 0, (2, 3, 1), (1, 2, 3))
    stuck = PartitionReplicas(TopicPartition("stuck", 0), 2, 0, (2, 3), (2,))
    followed = PartitionReplicas(TopicPartition("followed", 0), 2, 0, (2, 4), (2, 4))
    found = [
        replace(LOST, place=PAYMENTS._replace(replicas=(2, 3, 1), in_sync=(1, 2))),
        replace(LOST, place=orders),
        replace(LOST, place=orders, broker_id=3),
        replace(LOST, place=stuck),
        replace(LOST, place=followed, broker_id=4),
    ]
    context = Invocation(settings=Settings(), flags={}, output=Output("table"), failures=Failures(io.StringIO()))
    context.show(partial(report_all, found=found, partitions=4, replicas=9), ReplicasView(CONNECTION))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    (echo,) = (shlex.split(line) for line in lines if line.startswith("echo "))
    assert json.loads(echo[1]) == {
        "version": 1,
        "partitions": [
            {"topic": "orders", "partition": 3, "replicas": [1, 2, 3]},
            {"topic": "payments", "partition": 0, "replicas": [1, 2, 3]},
        ],
    }
    first = lines.index(f"echo {shlex.quote(echo[1])} > move.json") + 1
    reassign, elect, rest = lines[first : first + 3]
    server = "--bootstrap-server one:9092"
    config = "--command-config client.properties --reassignment-json-file move.json --execute"
    assert reassign == f"kafka-reassign-partitions.sh {server} {config}"
    config = "--admin.config client.properties --election-type preferred --path-to-json-file move.json"
    assert elect == f"kafka-leader-election.sh {server} {config}"
    assert rest == "Leadership cannot be moved yet, since no other replica in sync is known to have its state: stuck-0."
    assert "(2, 3, 4; one after the other)" in "".join(lines)


def serve(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `resnap replicas` ask a simulated cluster."""

    def brokers(*, wants: Callable[[TopicPartition], bool], **_: object) -> Cluster:
        cluster.cluster_partitions = [partition for partition in cluster.cluster_partitions if wants(partition.name)]
        return cluster

    monkeypatch.setattr(job, "cluster_of", lambda _: nullcontext())
    monkeypatch.setattr(job, "LiveBrokers", brokers)


def test_what_is_named_and_not_there_is_not_known(command: Resnap, monkeypatch: pytest.MonkeyPatch) -> None:
    for topics, code, said in (
        ((TOPIC,), 0, ""),
        ((TOPIC, "oders"), 16, "error: not known: oders: the cluster has nothing of this name, or does not show it"),
        ((TOPIC, "oders*"), 0, "warning: no topic that the cluster shows matches oders*"),
        (("oders*",), 2, "the cluster has no requested partition"),
    ):
        serve(quiet(), monkeypatch)
        ran = command("replicas", *(flag for topic in topics for flag in ("--topic", topic)))
        assert ran.code == code, (topics, ran.err)
        assert said in ran.err


def test_partitions_with_nothing_to_compare_with_are_counted_apart(
    command: Resnap, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = quiet(partitions=3)
    alone = cluster.cluster_partitions[1]
    alone.replicas = {alone.leader: alone.replicas[alone.leader]}
    alone.in_sync = {alone.leader}
    serve(cluster, monkeypatch)
    ran = command("replicas")
    assert ran.code == 0, ran.err
    assert "6 replicas of 3 partitions: 0 lost state" in ran.out
    assert "Not compared: 1 partition with 1 replica in sync" in ran.out


def test_known_faults_of_the_brokers_releases_are_in_the_summary(
    command: Resnap, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, has_been_told in (((), False), (("--kafka-version", "4.4.0"), True)):
        serve(quiet(), monkeypatch)
        faults = command("replicas", *version, "--output", "json").document["summary"]["knownFaults"]
        assert (faults is not None) == has_been_told
    by_name = {fault["fault"]: fault for fault in faults}
    assert by_name["state-lost-from-remote"]["releases"] == ["4.4.0"]
    assert "local-start-not-updated" not in by_name


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ([LOST], "Next: repair them: stop the broker"),
        ([LAGGING], "Next: the same command again, once these replicas are in sync"),
        ([SILENT], "Next: the same command again, once these replicas are in sync"),
        ([], "Next: nothing is left to do: no replica lacks what another has."),
    ],
)
def test_the_next_step_is_named_whatever_was_found(
    capsys: pytest.CaptureFixture[str], findings: list[ReplicaFinding], said: str
) -> None:
    context = Invocation(settings=Settings(), flags={}, output=Output("table"), failures=Failures(io.StringIO()))
    context.show(partial(report_all, found=findings, partitions=2, replicas=5), ReplicasView(CONNECTION))
    (told,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Next:"))
    assert told.startswith(said)
