"""What `resnap replicas` prints, and which exit code counts where replicas lost state and others do not answer."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from resnap.scheduler.cli.failures import Failures
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.jobs.replicas import ReplicasView, results
from resnap.scheduler.output.rendering import Output
from resnap.scheduler.settings.settings import Settings
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.producers import ActiveProducer
from resnap.tiering.cluster.replica_comparison import ReplicaFinding, ReplicaState
from resnap.tiering.cluster.replica_state import Loss, LostProducer

if TYPE_CHECKING:
    import pytest

KNOWN: Final = ActiveProducer(9001, 1, 2, 1_700_000_000_000, 4, 20)
LOST: Final = ReplicaFinding(
    topic_partition=TopicPartition("payments", 0),
    broker_id=2,
    leader=2,
    state=ReplicaState.LOST,
    lost=(LostProducer(KNOWN, None, (Loss.PRODUCER, Loss.TRANSACTION)),),
)
SILENT: Final = replace(LOST, broker_id=3, state=ReplicaState.UNKNOWN, lost=(), why="no answer")
LAGGING: Final = replace(SILENT, topic_partition=TopicPartition("orders", 0), state=ReplicaState.LAGGING, why=None)


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
        view = ReplicasView()
        context.show(results(findings, partitions=2, replicas=5), view)
        assert failures.exit_code(view.exit_code) == code, findings
        document = json.loads(capsys.readouterr().out)
        assert [one["state"] for one in document["replicas"]] == [
            one.state.value for one in sorted(findings, key=lambda one: one.topic_partition)
        ]
        assert document["summary"] == {
            "partitions": 2, "replicas": 5, "lost": findings.count(LOST), "lagging": findings.count(LAGGING),
            "unknown": findings.count(SILENT),
        }  # fmt: skip
        assert ("error: " in said.getvalue()) == (code != 0)
