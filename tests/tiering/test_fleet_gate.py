"""When a broker may be stopped: one thing wrong at a time, what beats what, and what the command makes of it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from resnap.scheduler.cli.failures import Failures
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.output.rendering import Output
from resnap.scheduler.settings.settings import Settings
from resnap.scheduler.verbs.fleet import GateView, report_all
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.replica_comparison import PartitionReplicas, ReplicaFinding, ReplicaState
from resnap.tiering.fleet import BrokerReplicas, Gate, GateReason, ScannedReplica
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import Stop, UnblockedBy
from tests import schemas

if TYPE_CHECKING:
    import pytest

T0: Final = TopicPartition("t", 0)
READY: Final = ScannedReplica(Verdict.READY, None, None, "a broker can tier every closed segment", "turn tiering on", 0)
BLOCKED: Final = ScannedReplica(
    Verdict.BLOCKED, UnblockedBy.REBUILD, "missing-snapshot", "no snapshot at 10", "start a replay", 2
)
PREPARED: Final = BLOCKED._replace(unblocked_by=UnblockedBy.INSTALL)
LOST: Final = ScannedReplica(
    Verdict.BLOCKED, UnblockedBy.OTHER, "lost-producer-state", "9001 is not known", "keep it from leading", 0
)
SERVICES: Final = tuple(BrokerReplicas(broker_id=one, topics={"t": {0: READY}}) for one in (1, 2, 3))
FINE: Final = Gate(
    broker_id=1,
    running=frozenset({1, 2, 3}),
    brokers=SERVICES,
    places=(PartitionReplicas(T0, 1, 0, (1, 2, 3), (1, 2, 3)),),
    min_in_sync={"t": 2},
    findings=(),
)


def placed(*replicas: int, leader: int | None = 1, in_sync: tuple[int, ...] | None = None, topic: str = "t") -> Any:
    return (PartitionReplicas(TopicPartition(topic, 0), leader, 0, replicas, replicas if in_sync is None else in_sync),)


def seen(*replicas: ScannedReplica) -> tuple[BrokerReplicas, ...]:
    """Return what the services of brokers 1, 2 and so on have seen of t-0."""
    return tuple(BrokerReplicas(broker_id=one, topics={"t": {0: two}}) for one, two in enumerate(replicas, 1))


def found(broker_id: int | None, state: ReplicaState) -> tuple[ReplicaFinding, ...]:
    return (PartitionReplicas(T0, 1, 0, (), ()).finding(broker_id, state, "no answer"),)


def test_a_broker_may_be_stopped_only_if_nothing_suffers() -> None:
    down, offline, below = GateReason.BROKER_DOWN, GateReason.OFFLINE, GateReason.BELOW_MIN_IN_SYNC
    under, staged, state = GateReason.UNDER_REPLICATED, GateReason.NOT_STAGED, GateReason.LOST_STATE_WOULD_LEAD
    lost, lagging = ReplicaState.LOST, ReplicaState.LAGGING
    unfit = BLOCKED._replace(unblocked_by=UnblockedBy.OTHER)
    for what, changed, wanted in (
        ("all is well", {}, []),
        ("it lags itself", {"places": placed(1, 2, 3, leader=2, in_sync=(2, 3))}, []),
        ("it is down already", {"running": {2, 3}, "places": placed(1, 2, 3, leader=2, in_sync=(2, 3))}, []),
        ("another has no replica of it, and is down", {"running": {1, 2}, "places": placed(1, 2)}, [down, below]),
        ("a broker without a service is down", {"places": placed(1, 2, 3, 4, in_sync=(1, 2, 3))}, [down, under]),
        ("nobody else is in sync", {"places": placed(1, 2, 3, in_sync=(1,))}, [offline]),
        ("it has the only replica", {"places": placed(1)}, [offline]),
        ("only a broker that does not run is in sync", {"running": {1, 3}, "places": placed(1, 2)}, [down, offline]),
        ("one of two others is in sync", {"places": placed(1, 2, 3, in_sync=(1, 2))}, [below]),
        ("... which is enough", {"places": placed(1, 2, 3, in_sync=(1, 2)), "min_in_sync": {"t": 1}}, [under]),
        ("a partition elsewhere is not in sync", {"places": placed(2, 3, leader=2, in_sync=(2,))}, []),
        ("it has no leader", {"places": placed(1, 2, leader=None, in_sync=(2,)), "min_in_sync": {"t": 1}}, []),
        ("its snapshots are made", {"brokers": seen(PREPARED, BLOCKED, BLOCKED)}, []),
        ("its snapshots are not made", {"brokers": seen(BLOCKED, READY, READY)}, [staged]),
        ("its snapshots cannot be made", {"brokers": seen(unfit, READY, READY)}, [staged]),
        ("... of a topic that is not meant", {"brokers": seen(BLOCKED, READY, READY), "wants": lambda _: False}, []),
        ("it was shipped", {"brokers": seen(BLOCKED._replace(unblocked_by=UnblockedBy.ANNOUNCE), READY, READY)}, []),
        ("the next leader has lost state", {"findings": found(2, lost)}, [state]),
        ("... as its service has seen", {"brokers": seen(READY, LOST, READY)}, [state]),
        ("the one after that has", {"findings": found(3, lost)}, []),
        ("it has lost state itself", {"findings": found(1, lost), "brokers": seen(LOST, READY, READY)}, []),
        ("the next leader would be the third", {
            "findings": found(3, lost), "places": placed(1, 2, 3, in_sync=(1, 3)), "min_in_sync": {"t": 1},
        }, [under, state]),
        ("it does not lead", {"places": placed(1, 2, 3, leader=3), "findings": found(2, lost)}, []),
        ("one lags", {"findings": found(3, lagging)}, []),
    ):  # fmt: skip
        gate = replace(FINE, **changed)
        assert [one.reason for one in gate.obstacles()] == wanted, what
        assert gate.unknown() == (), what


def test_what_is_not_known_is_never_taken_for_well() -> None:
    unknown = ReplicaState.UNKNOWN
    silent = BrokerReplicas(broker_id=2, error="broker 2: no answer")
    own = BrokerReplicas(broker_id=1, error="broker 1: no answer")
    unseen = BrokerReplicas(broker_id=1)
    for what, changed, wanted in (
        ("another service is silent", {"brokers": (SERVICES[0], silent, SERVICES[2])}, ("broker 2: no answer",)),
        ("its own service is silent", {"brokers": (own, *SERVICES[1:])}, ("broker 1: no answer",)),
        ("its own has not seen it", {"brokers": (unseen, *SERVICES[1:])}, ("broker 1: its service has not seen t-0",)),
        ("a topic is not described", {"min_in_sync": {}}, ("the cluster does not report min.insync.replicas of t",)),
        ("the leader did not answer", {"findings": found(1, unknown)}, ("producer state of t-0: no answer",)),
        ("the next did not answer", {"findings": found(2, unknown)}, ("producer state of t-0: no answer",)),
        ("the one after that did not", {"findings": found(3, unknown)}, ()),
        ("nothing was compared", {"findings": found(None, unknown)}, ("producer state of t-0: no answer",)),
    ):
        gate = replace(FINE, **changed)  # type: ignore[arg-type]
        assert (gate.obstacles(), gate.unknown()) == ([], wanted), what


def test_reasons_beat_what_is_not_known_and_that_beats_yes(capsys: pytest.CaptureFixture[str]) -> None:
    reason = Stop(reason=GateReason.OFFLINE, detail="no other replica is in sync: t-0", hint="wait")
    for obstacles, unknown, code in (([reason], ["silent"], 4), ([reason], [], 4), ([], ["silent"], 16), ([], [], 0)):
        said = io.StringIO()
        failures = Failures(said)
        context = Invocation(settings=Settings(), flags={}, output=Output("json"), failures=failures)
        view = GateView(broker_id=2)
        context.show(partial(report_all, obstacles=obstacles, unknown=unknown), view)
        assert failures.exit_code(view.exit_code) == code
        document = json.loads(capsys.readouterr().out)
        schemas.check("fleet-gate", document)
        assert [one["reason"] for one in document["reasons"]] == [one.reason for one in obstacles]
        assert (document["summary"]["broker"], document["summary"]["mayStop"]) == (2, code == 0)
        assert [f"not known: {one}" in said.getvalue() for one in unknown] == [True] * len(unknown)
        lines = Invocation(settings=Settings(), flags={}, output=Output("table"), failures=Failures(io.StringIO()))
        lines.show(partial(report_all, obstacles=obstacles, unknown=unknown), GateView(broker_id=2))
        told = capsys.readouterr().out.splitlines()[-1]
        assert told.startswith("Next: stop it, " if code == 0 else "Next: the same command again, once ")
