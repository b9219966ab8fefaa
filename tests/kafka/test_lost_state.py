"""Replicas that start from remote storage lose producer state: it is found, and what clients notice of it is shown."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.kafka.brokers import Broker, eventually, zookeeper
from tests.kafka.lost_state import IDEMPOTENT, TOPIC, directory_of, lost_state, move_to_other_disk, on_two_disks
from tests.kafka.repaired_kafka import repaired
from tests.scheduler.api.whole import whole
from tests.scheduler.files import EMPTY_SNAPSHOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.lost_state import LostState
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Ran, Resnap

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("version", "more"),
    [
        ("3.9.1", {}),
        ("4.4.0", {}),
        pytest.param("4.4.0", {"follower.fetch.last.tiered.offset.enable": "true"}, marks=pytest.mark.heavy),
    ],
)
def test_a_new_replica_from_remote_storage_is_found_before_clients_notice_it(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str, more: dict[str, object]
) -> None:
    with lost_state(release(version), tmp_path, more=more) as lost:
        asked = ("replicas", "--bootstrap-server", lost.leader.address, "--topic", TOPIC)
        found = command(*asked, "--output", "json")
        assert found.code == 4, (found.out, found.err)
        (replica,) = found.document["replicas"]
        assert (replica["brokerId"], replica["leader"], replica["state"]) == (2, 1, "lost")
        by_id = {producer["known"]["producerId"]: producer for producer in replica["producers"]}
        assert by_id[IDEMPOTENT]["losses"] == ["producer"]
        assert by_id[IDEMPOTENT]["found"] is None
        assert by_id.keys() >= {IDEMPOTENT}
        assert found.error["type"] == "LostProducerStateError"

        if not more:
            _check_service(tmp_path / "service", lost)

        before = lost.read()
        assert lost.sent_again(lost.leader) == lost.batch_offset
        assert lost.read() == before
        lost.lead(lost.follower, lost.leader)
        found = command(*asked, "--output", "json")
        assert [(one["brokerId"], one["leads"]) for one in found.document["replicas"]] == [(2, True)]
        printed = [line.strip() for line in command(*asked).out.splitlines()]
        assert set(_explained(command, lost)["moveCommands"]) <= set(printed)
        _move_leadership_away(command, lost, release("3.9.1"), tmp_path / "move.json")
        lost.lead(lost.follower)
        records, _ = lost.read()
        assert records == before[0] + 1, "the aborted record is served as committed"
        again = lost.sent_again(lost.follower)
        assert again > lost.batch_offset, "the batch is appended a second time"
        said = _explained(command, lost)
        assert (said["leads"], said["moveCommands"]) == (True, []), "no other replica is in sync"
        assert [(one["producerId"], one["baseOffset"], one["offsetBefore"]) for one in said["wronglyAppended"]] == [
            (IDEMPOTENT, again, lost.batch_offset)
        ]


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.4.0", marks=pytest.mark.heavy)])
def test_a_single_leader_that_was_moved_between_two_disks_is_found_by_the_log_and_healed(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    with on_two_disks(release(version), tmp_path) as lost:
        broker, remote = lost.leader, ("--remote", lost.remote.as_uri())
        disks, how = broker.log_dirs, ("--engine", "local", "--output", "json")
        asked = ("replicas", "--bootstrap-server", broker.address, *how)
        before = lost.read()
        assert command(*asked, *remote).code == 0, "nothing is lost yet"
        # The broker checkpoints log start offsets once a minute: before that, nothing here says what is remote alone.
        eventually(lambda: command("check", *disks, "--before-move", TOPIC).code == 4, "the move is not warned of")
        warned = command("check", *disks, "--before-move", TOPIC, "--output", "json")
        assert warned.code == 4, warned.err
        (move,) = warned.document["partitions"]
        assert {IDEMPOTENT, lost.aborted} <= set(move["producers"])
        assert (move["openTransactions"], move["safeFrom"]) == (1, None), "it is aborted above the newest snapshot"

        move_to_other_disk(broker)
        alone = command(*asked)
        assert (alone.code, alone.document["summary"]["notReplayed"]) == (0, 1), "it is said, and not called healthy"
        for more in ((), ("--topic", TOPIC), tuple(disks)):
            found = command(*asked, *remote, *more)
            assert found.code == 4, (more, found.err)
            (replica,) = found.document["replicas"]
            assert (replica["brokerId"], replica["leads"], replica["state"]) == (1, True, "lost")
            by_id = {producer["known"]["producerId"]: producer for producer in replica["producers"]}
            assert by_id[IDEMPOTENT]["losses"] == ["producer"]
            assert replica["replayedTo"] > lost.batch_offset
        records, _ = lost.read()
        assert records == before[0] + 1, "the aborted record is served as committed, at once"
        again = lost.sent_again(broker)
        assert again > lost.batch_offset, "the batch is appended a second time"
        marked = command("scan", *disks, *remote, "--topic", TOPIC, "--output", "json")
        assert marked.document["partitions"][0]["lostProducerState"]["isProven"] is True
        said = _explained(command, lost)
        assert (said["leads"], said["moveCommands"]) == (True, [])
        assert [(one["producerId"], one["baseOffset"]) for one in said["wronglyAppended"]] == [(IDEMPOTENT, again)]

        broker.stop()
        staged = tmp_path / "healed"
        made = command("regenerate", *disks, *remote, "--boundaries", "all", "--topic", TOPIC, "--into", staged, *how)
        assert made.code == 0, made.err
        home = directory_of(broker).parent
        replaced = ("--replace", "false-partial", "--replace", "txnindex")
        assert command("install", staged, home, *replaced, "--output", "json").code == 0
        broker.start_up()
        eventually(lambda: command(*asked, *remote, "--topic", TOPIC).code == 0, "the healed leader lacks state")
        assert lost.read()[0] == before[0] + 1, "the duplicate stays, and the aborted record is hidden again"
        assert lost.sent_again(broker) == again, "a duplicate is answered as one"
        assert not broker.complaints(broker.started_at)


def _explained(command: Resnap, lost: LostState) -> dict[str, Any]:
    """Return what is said of the replica that lost its state."""
    asked = ("--remote", lost.remote.as_uri(), "--bootstrap-server", lost.leader.address, "--output", "json")
    explained = command("explain", directory_of(lost.follower).parent, f"{TOPIC}-0", 1, *asked)
    assert explained.code == 0, explained.err
    said: dict[str, Any] = explained.document["summary"]["lostProducerState"]
    (aborted,) = said["abortedAndServed"]
    assert aborted["producerId"] == lost.aborted
    assert IDEMPOTENT in said["producers"]
    return said


def _move_leadership_away(command: Resnap, lost: LostState, tools: Release, plan: Path) -> None:
    """Do what is said to be done first, and check which broker leads; then let the other one lead again."""
    said = _explained(command, lost)
    assert (said["leads"], said["wronglyAppended"]) == (True, [])
    echo, reassign, elect = map(shlex.split, said["moveCommands"])
    assert (echo[0], echo[2:]) == ("echo", [">", "move.json"])
    plan.write_text(echo[1])
    named = [str(plan) if one == "move.json" else one for one in reassign[1:]]
    tools.script("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *named)
    tools.script("org.apache.kafka.tools.LeaderElectionCommand", *elect[1:])
    eventually(lambda: _explained(command, lost)["leads"] is False, "leadership does not move")
    lost.lead(lost.follower, lost.leader)


def _check_service(root: Path, lost: LostState) -> None:
    """Let the service find it, and check its metric and its page."""
    (root / "data").mkdir(parents=True)
    cluster = {"RESNAP_BOOTSTRAP_SERVER": lost.leader.address}
    with whole(root, root / "data", environment=cluster) as service, service.client() as client:
        assert 'resnap_replicas{state="lost"} 0.0' in client.get("/metrics").text
        narrow = service.over(client, client.post("/v1/replica-checks", json={"topics": ["__*"]}).headers["Location"])
        assert (narrow["state"], narrow["totals"]["lost"]) == ("succeeded", 0)
        run = service.over(client, client.post("/v1/replica-checks", json={}).headers["Location"])
        assert [error["code"] for error in run["errors"]] == ["LostProducerStateError"]
        assert run["totals"]["lost"] == 1
        service.over(client, client.post("/v1/replica-checks", json={"topics": ["__*"]}).headers["Location"])
        assert 'resnap_replicas{state="lost"} 1.0' in client.get("/metrics").text
        page = client.get(f"/runs/{run['id']}").text
        assert "broker 2 has lost state of the producers" in page
        (one,) = client.get(f"/v1/runs/{run['id']}/partitions").json()["partitions"]
        assert (one["topic"], one["state"], one["row"]["replicas"][0]["state"]) == (TOPIC, "failed", "lost")


def test_brokers_that_are_too_old_to_be_asked_are_not_in_order(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    kafka = release("2.7.2")
    with zookeeper(kafka, tmp_path / "zookeeper") as address, ExitStack() as stack:
        brokers = []
        for node in (1, 2):
            (tmp_path / str(node)).mkdir()
            brokers.append(Broker(kafka, [tmp_path / str(node) / "data"], zookeeper=address, node=node))
            stack.enter_context(brokers[-1].running())
        brokers[0].drive("assign", TOPIC, "1,2")
        ask = ("replicas", "--bootstrap-server", brokers[0].address, "--output", "json")
        eventually(lambda: command(*ask).code != 2, "the broker is not told of the topic")
        found = command(*ask)
    assert found.code == 16, (found.out, found.err)
    assert {replica["state"] for replica in found.document["replicas"]} == {"unknown"}
    assert found.document["summary"]["unknown"] == 2
    assert "does not support the 'DescribeProducersRequest" in found.error["message"]


@pytest.mark.heavy
@pytest.mark.parametrize("version", ["3.9.1", "4.1.1"])  # of 4.4.0 Maven has no sources
def test_with_one_method_of_kafka_repaired_nothing_is_lost_but_what_remote_snapshots_lack(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    kafka = repaired(release(version), tmp_path / "repaired")

    def replicas(lost: LostState, *more: object) -> Ran:
        return command(
            "replicas", "--bootstrap-server", lost.leader.address, "--topic", TOPIC, "--output", "json", *more
        )

    with on_two_disks(kafka, tmp_path / "disks") as lost:
        before = lost.read()
        move_to_other_disk(lost.leader)
        assert replicas(lost, "--remote", lost.remote.as_uri(), "--engine", "local").code == 0
        assert lost.read() == before
        assert lost.sent_again(lost.leader) == lost.batch_offset

    with lost_state(kafka, tmp_path / "right") as lost:
        assert replicas(lost).code == 0
        before = lost.read()
        lost.lead(lost.follower)
        assert lost.read() == before
        assert lost.sent_again(lost.follower) == lost.batch_offset

    def empty_all(remote: Path) -> None:
        for snapshot in remote.rglob("*.snapshot"):
            snapshot.write_bytes(EMPTY_SNAPSHOT)

    with lost_state(kafka, tmp_path / "empty", before_replica=empty_all) as lost:
        assert replicas(lost).code == 4, "remote snapshots are live state now, and these are empty"

    def empty_and_repair(remote: Path) -> None:
        empty_all(remote)
        how = ("--no-other-writers", "--engine", "local", "--output", "json")
        made = command("repair", remote.as_uri(), "--topic", TOPIC, *how)
        assert (made.code, made.document["summary"]["snapshots"] > 0) == (0, True), made.err

    with lost_state(kafka, tmp_path / "mended", before_replica=empty_and_repair) as lost:
        assert replicas(lost).code == 0, "a follower takes its state from what is repaired"
        before = lost.read()
        lost.lead(lost.follower)
        assert lost.read() == before
        assert lost.sent_again(lost.follower) == lost.batch_offset
