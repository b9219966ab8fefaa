"""A whole cluster is repaired while it is in use: three brokers, one after the other, each when the gate lets it go.

Topics that 2.7 wrote, with three replicas, on brokers of 3.9 that cannot tier them. The service beside each broker
makes the snapshots that it lacks; ``resnap fleet gate`` says when it may be stopped for their installation. All the
while a producer writes and a consumer reads, neither of which may get an error.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import yaml

from tests.kafka.brokers import SMALL, Broker, eventually, tiering, zookeeper
from tests.kafka.logs import all_snapshots_kept, snapshots_in, tiered_snapshots
from tests.kafka.lost_state import QUICK
from tests.kafka.releases import HERE, PATIENCE_S
from tests.scheduler.api.whole import whole
from tests.scheduler.files import bases
from tests.scheduler.services import fleet_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.kafka.releases import Release
    from tests.scheduler.api.whole import Whole
    from tests.scheduler.conftest import Ran, Resnap

pytestmark = pytest.mark.kafka

TOPICS: Final = {"payments": "1,2,3", "orders": "3,1,2"}
"""Replicas by topic; the first leads."""
NODES: Final = (1, 2, 3)
STEADY: Final = HERE / "Steady.java"
REPLICATED: Final = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "rlmm.config.remote.log.metadata.topic.replication.factor": 3,
}
ANSIBLE: Final = HERE.parents[1] / "docs" / "deploy" / "ansible"
JSON: Final = ("--output", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Three brokers, the service beside each, and the command that gets the URLs of all."""

    brokers: dict[int, Broker]
    services: dict[int, Whole]
    command: Resnap
    configuration: Path

    def fleet(self, *words: object) -> Ran:
        named = (flag for topic in TOPICS for flag in ("--topic", topic))
        return self.command("fleet", *words, "--config", self.configuration, *named, *JSON)

    def gate(self, node: int) -> tuple[int, set[str]]:
        """Return the exit code for a broker, and the reasons."""
        ran = self.fleet("gate", "--broker", node)
        return ran.code, {reason["reason"] for reason in ran.document["reasons"]}

    def run(self, node: int, kind: str, **body: object) -> None:
        """Have the service of a broker do something, to its end."""
        with self.services[node].client("operator") as client:
            run = self.services[node].over(client, client.post(f"/v1/{kind}", json=body).headers["Location"])
        assert run["state"] == "succeeded", run

    def repair(self, node: int) -> None:
        """Make and install what a broker lacks, and have it seen."""
        self.run(node, "replays", destination=str(self.made(node)), topics=list(TOPICS), window={"asOf": "roll"})
        while (answer := self.gate(node))[0]:
            assert answer[0] in {4, 16}, answer
            time.sleep(1)
        broker = self.brokers[node]
        broker.stop()
        assert self.command("install", self.made(node), *broker.log_dirs).code == 0
        code, reasons = self.gate(NODES[node % len(NODES)])
        assert (code, reasons >= {"broker-down", "below-min-insync"}) == (4, True), reasons
        broker.start_up()
        self.run(node, "scans")

    def play(self, root: Path) -> None:
        """Let Ansible repair all brokers; it has them stopped and started by files, which it waits to be gone."""
        control, script = root / "control", root / "control.sh"
        control.mkdir()
        script.write_text(f"touch {control}/$2.$1\nwhile [ -e {control}/$2.$1 ]; do sleep 0.2; done\n")
        hosts = {f"broker-{node}": self.variables(node, script) for node in NODES}
        (root / "hosts.yml").write_text(yaml.safe_dump({"kafka_brokers": {"hosts": hosts}}))
        with (root / "play.log").open("w") as told:
            playbook = Path(sys.executable).with_name("ansible-playbook")
            command = [playbook, "-i", root / "hosts.yml", ANSIBLE / "install.yml"]
            play = subprocess.Popen(command, stdout=told, stderr=told, cwd=root)
            while play.poll() is None:
                for asked in sorted(control.iterdir()):
                    broker = self.brokers[int(asked.stem)]
                    {"stop": broker.stop, "start": broker.start_up}[asked.suffix[1:]]()
                    asked.unlink()
                time.sleep(0.2)
        assert play.returncode == 0, (root / "play.log").read_text()[-8000:]

    def variables(self, node: int, script: Path) -> dict[str, object]:
        """Return the variables that the role gets for a broker."""
        service, directory = self.services[node], self.services[node].directory
        (directory / "operator").write_text(service.secrets["operator"])
        return {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "resnap_broker_id": node,
            "resnap_command": str(Path(sys.executable).with_name("resnap")),
            "resnap_config": str(self.configuration),
            "resnap_service": service.address,
            "resnap_token_file": str(directory / "operator"),
            "resnap_log_dirs": [str(one) for one in self.brokers[node].log_dirs],
            "resnap_topics": list(TOPICS),
            "resnap_staged": str(self.made(node)),
            "resnap_undo_dir": str(directory / "undo"),
            "resnap_broker_stop": f"sh {script} stop {node}",
            "resnap_broker_start": f"sh {script} start {node}",
            "resnap_user": "",
            "resnap_delay": 1,
        }

    def made(self, node: int) -> Path:
        return self.services[node].directory / "out" / "made"


@contextmanager
def running(brokers: Sequence[Broker]) -> Iterator[None]:
    """Start brokers side by side; at the end all go at once, since the last ones would wait for each other."""
    try:
        for broker in brokers:
            broker.start()
        for broker in brokers:
            eventually(broker._has_started, f"broker {broker.node} does not start")
        yield
    finally:
        for broker in brokers:
            broker.kill()


@contextmanager
def steady(release: Release, servers: str, root: Path) -> Iterator[Callable[[], int]]:
    """Let a producer and a consumer work; give what ends them, and returns how many transactions both have seen."""
    programs = []
    for verb in ("produce", "consume"):
        with (root / f"{verb}.log").open("w") as told:
            program = release.program(STEADY, verb, servers, *TOPICS)
            programs.append(
                subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True)
            )

    def end() -> int:
        count = 0
        for program, verb in zip(programs, ("produce", "consume"), strict=True):
            said, _ = program.communicate(f"{count}\n", timeout=PATIENCE_S)
            assert program.returncode == 0, (root / f"{verb}.log").read_text()[-4000:]
            assert not count or int(said) == count
            count = int(said)
        return count

    try:
        yield end
        assert all(program.returncode == 0 for program in programs)
    finally:
        for program in programs:
            program.kill()
            program.communicate()


@contextmanager
def old_cluster(release: Callable[[str], Release], root: Path, address: str) -> Iterator[list[Broker]]:
    """Give brokers of 3.9 over log dirs that 2.7 wrote; what it knew of producers is kept in ``root / "truth"``."""
    old, new = release("2.7.2"), release("3.9.1")
    for node in NODES:
        (root / str(node)).mkdir()
    stops_at_once = {"controlled.shutdown.enable": "false"}
    data = [root / str(node) / "data" for node in NODES]
    wrote = [
        Broker(old, [path], QUICK | REPLICATED | stops_at_once, zookeeper=address, node=node)
        for node, path in zip(NODES, data, strict=True)
    ]
    with ExitStack() as stack:
        for topic in TOPICS:
            stack.enter_context(all_snapshots_kept([data[0]], topic, root / "truth"))
        for broker in wrote:
            broker.start()
        for broker in wrote:
            eventually(broker._has_started, "a broker of 2.7 does not start")
        for topic, replicas in TOPICS.items():
            wrote[0].drive("assign", topic, replicas, *SMALL[old.version], "min.insync.replicas=2")
            wrote[0].drive("append", topic, 0, 80)
        for broker in wrote:
            broker.stop()
    own = QUICK | tiering(root / "remote") | REPLICATED | {"inter.broker.protocol.version": "3.9"}
    brokers = [Broker(new, [path], own, zookeeper=address, node=node) for node, path in zip(NODES, data, strict=True)]
    with running(brokers):
        yield brokers


@pytest.mark.parametrize("way", ["gate", pytest.param("ansible", marks=pytest.mark.heavy)])
def test_a_cluster_in_use_is_repaired_broker_by_broker_and_tiers_everything(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, way: str
) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    with ExitStack() as stack:
        address = stack.enter_context(zookeeper(release("2.7.2"), tmp_path / "zookeeper"))
        brokers = stack.enter_context(old_cluster(release, tmp_path, address))
        first, servers = brokers[0], ",".join(broker.address for broker in brokers)
        services, tables = {}, f'bootstrap-server = "{servers}"\n'
        for broker in brokers:
            directory = tmp_path / "service" / str(broker.node)
            directory.mkdir(parents=True)
            service = stack.enter_context(whole(directory, broker.log_dirs[0], auth="token"))
            (directory / "token").write_text(service.secrets["viewer"])
            services[broker.node] = service
            tables += fleet_table(broker.node, service.address, token=directory / "token")
        configuration = tmp_path / "fleet.toml"
        configuration.write_text(tables)
        by_node = {broker.node: broker for broker in brokers}
        cluster = Cluster(brokers=by_node, services=services, command=command, configuration=configuration)
        before = {topic: committed(first, topic) for topic in TOPICS}

        seen = cluster.fleet("status")
        assert seen.code == 4, seen.err
        assert {topic["topic"]: (topic["verdict"], topic["verdicts"]) for topic in seen.document["topics"]} == {
            topic: ("blocked", {"blocked": 3}) for topic in TOPICS
        }
        assert [topic["blockers"][0]["brokers"] for topic in seen.document["topics"]] == [[1, 2, 3]] * 2
        eventually(lambda: cluster.gate(1) == (4, {"not-staged"}), "the gate says something else")

        with steady(release("3.9.1"), servers, tmp_path) as end:
            if way == "ansible":
                cluster.play(tmp_path)
            for node in NODES if way == "gate" else ():
                cluster.repair(node)
            ready = cluster.fleet("status")
            assert (ready.code, ready.err) == (0, "")
            assert ready.document["summary"]["verdict"] == "ready"
            closed = {}
            for topic in TOPICS:
                closed[topic] = bases(first.log_dirs[0] / f"{topic}-0")
                first.drive("configure", topic, "remote.storage.enable=true", "file.delete.delay.ms=100")
                first.drive("configure", topic, "local.retention.ms=-2", "local.retention.bytes=1000")
            for topic, there in closed.items():
                check_tiered(brokers, remote, topic, there, tmp_path / "truth")
            count = end()
        assert count > 0
        assert {topic: committed(first, topic) for topic in TOPICS} == {
            topic: records + count for topic, records in before.items()
        }


def committed(broker: Broker, topic: str) -> int:
    """Return how many records a ``read_committed`` consumer sees of a topic, from the beginning on."""
    return int(dict(map(str.split, broker.drive("read", topic, 0).splitlines()))["records"])


def check_tiered(brokers: list[Broker], remote: Path, topic: str, there: list[int], truth: Path) -> None:
    """Check that all closed segments are tiered, with the snapshots that 2.7 had, and leave the disks of all."""
    name = f"{topic}-0"
    closed = dict(pairwise(there))
    assert len(closed) > 5
    eventually(lambda: tiered_snapshots(remote, topic).get(name, {}).keys() >= closed.keys(), f"{name} is not tiered")
    tiered, known = tiered_snapshots(remote, topic)[name], snapshots_in(truth)[name]
    old = {base: known[after] for base, after in closed.items() if after in known}
    assert len(old) > 3
    assert {base: tiered[base] for base in old} == old
    for broker in brokers:
        eventually(lambda: not closed.keys() & set(bases(broker.log_dirs[0] / name)), f"{broker.node}: copies stay")  # noqa: B023
