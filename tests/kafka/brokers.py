"""Real Kafka brokers on loopback: started, shut down cleanly or killed, and what they report."""

from __future__ import annotations

import fcntl
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.kafka.releases import HERE, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.kafka.releases import Release

DRIVER: Final = HERE / "Driver.java"
CLUSTER_ID: Final = "AAAAAAAAQACAAAAAAAAAAQ"
TIERED_STORAGE: Final = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
SMALL: Final = {
    "2.7.2": ("segment.bytes=16384", "index.interval.bytes=1024"),
    "3.9.1": ("segment.bytes=16384", "index.interval.bytes=1024"),
    "3.6.2": ("segment.bytes=16384", "index.interval.bytes=1024"),
    "3.8.1": ("segment.bytes=16384", "index.interval.bytes=1024"),
    "4.1.1": ("internal.segment.bytes=16384", "index.interval.bytes=1024"),  # segment.bytes has a minimum of 1 MiB
    "4.4.0": ("internal.segment.bytes=16384", "index.interval.bytes=1024"),
}
"""Settings of a topic that give it many segments soon, by version."""
_STARTED: Final = re.compile(r"started \(kafka\.server\.Kafka\w*Server\)")
_RECORD: Final = re.compile(r"^\d{4}-\S+ \S+ (?=[A-Z]+ )", flags=re.MULTILINE)
_OF_ITS_LOGS: Final = re.compile(
    r"(WARN|ERROR|FATAL) .*"
    r"\(\S*\b\w*(Log|Segment|Producer|Remote|Tier|Replica|Partition|Epoch|Checkpoint|Coordinator)\w*(\$\w+)?\)"
    r"|ERROR Error occurred while processing the records \(\S*\bConsumerTask\)"
)
"""Elections, connections and a machine that is slow make a broker complain, too; that is nothing to us.

What ends the reader of the metadata topic ends all tiering of the broker.
"""
_OF_EVERY_START: Final = re.compile(
    r"Remote storage with ID \S+ already exists on the file system"
    r"|This instance is in invalid state, initialized: false"
    r"|IllegalStateException: Consumer is not subscribed to any topics or assigned any partitions"
    r"|No resource metadata found for partition"
    r"|No meta.properties file under dir"
)
"""Of tiering: the folder is there already, or it looked before it had read its metadata topic, or was being stopped."""
_OF_ARCHIVES: Final = "-Xlog:cds*=off"
"""A JVM that cannot map an archive says so where a tool's output is expected, and goes on without it."""
_PORTS: Final = range(12_000, 32_000)
"""Below those that the kernel gives to clients, so that no other process takes a free port before a broker starts."""


def free_port() -> int:
    """Return a port of loopback that no process listens on, and that no other test gets while this process lives."""
    while True:
        port, name = random.SystemRandom().choice(_PORTS), socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0resnap-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            name.close()
        else:
            name.detach()  # the kernel keeps the name until this process ends
            return port


def eventually(true: Callable[[], object], what: str) -> None:
    """Wait until ``true()`` is; fail with ``what`` after far longer than that should take."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@contextmanager
def zookeeper(release: Release, root: Path) -> Iterator[str]:
    """Run ZooKeeper, of a release that brings one, and give its address."""
    root.mkdir(parents=True, exist_ok=True)
    port, settings = free_port(), root / "zoo.cfg"
    settings.write_text(
        f"dataDir={root / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
    )
    with (root / "zookeeper.log").open("ab") as output:
        command = release.command("org.apache.zookeeper.server.quorum.QuorumPeerMain", settings)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: _answers(port), "ZooKeeper does not answer")
        yield f"127.0.0.1:{port}"
    finally:
        _end(process)


def tiering(remote: Path) -> dict[str, object]:
    """Return a broker's properties that make it tier to the folder ``remote``, quickly."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": TIERED_STORAGE,
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rsm.config.dir": remote,
        "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 3,
        "remote.log.manager.task.interval.ms": 500,
        "log.retention.check.interval.ms": 500,
        "log.initial.task.delay.ms": 500,
    }


def with_archive(release: Release, root: Path) -> Release:
    """Return a release of KRaft whose JVMs map a broker's classes: a start takes a third less of the processor.

    The archive is made by one start of a broker that tiers, and is kept beside the jars.
    """
    archive = release.jars / "broker.jsa"
    with (release.jars / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            made = root / archive.name
            making = replace(release, options=(f"-XX:ArchiveClassesAtExit={made}", _OF_ARCHIVES))
            with Broker(making, [root / "data"], tiering(root / "remote")).running():
                pass  # it has loaded what it needs, and writes it when it ends
            shutil.copy(made, archive.with_suffix(".tmp")).rename(archive)
    return replace(release, options=(f"-XX:SharedArchiveFile={archive}", _OF_ARCHIVES))


class Broker:
    """One broker: of KRaft, or with a ZooKeeper; its log dirs may have been another broker's."""

    def __init__(
        self,
        release: Release,
        log_dirs: Sequence[Path],
        properties: dict[str, object] | None = None,
        *,
        zookeeper: str | None = None,
        secure: Mapping[str, int] | None = None,
        node: int = 1,
        joins: Broker | None = None,
        voters: str | None = None,
        cluster_id: str = CLUSTER_ID,
    ) -> None:
        """Choose ports, which stay the same over all starts; what it writes goes beside the first log dir.

        ``secure`` are the ports of further listeners, by security protocol, of a broker of KRaft. One that ``joins``
        another one's cluster is not a controller, and has log dirs in a folder of its own; nor is one whose quorum
        ``voters`` names. New log dirs are formatted for ``cluster_id``.
        """
        self.release, self.log_dirs = release, log_dirs
        self.root = log_dirs[0].parent
        self.output = self.root / f"broker-{release.version}.log"
        self.port, self._controller, self._zookeeper = free_port(), free_port(), zookeeper
        self._properties, self._secure = properties or {}, secure or {}
        self.node, self._cluster_id = node, cluster_id
        self._voters = f"1@127.0.0.1:{joins._controller}" if joins else voters
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0
        """How much it had logged when it was started last."""

    @property
    def address(self) -> str:
        """What clients bootstrap from."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    @property
    def settings(self) -> Path:
        """Its ``server.properties``, once it has been started."""
        return self.root / f"server-{self.release.version}.properties"

    @contextmanager
    def running(self) -> Iterator[Broker]:
        """Start it, wait until it has started, and stop it in order at the end."""
        try:
            self.start_up()
            yield self
        except BaseException as error:
            error.add_note(f"broker {self.node} said: {self.printed()[-4_000:]}")
            raise
        finally:
            self.stop()

    def start_up(self) -> None:
        """Start it, and wait until it has started."""
        self.start()
        self.await_start()

    def await_start(self) -> None:
        """Wait until it has started."""
        eventually(self._has_started, "the broker does not start")

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process and wait for nothing."""
        self.started_at, settings = len(self.printed()), self._write_properties()
        if self._zookeeper is None and not (self.log_dirs[0] / "meta.properties").exists():
            self.format()
        with self.output.open("ab") as output:
            command = self.release.command("kafka.Kafka", settings)
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        return self.process

    def format(self) -> None:
        """Format its log dirs, as is done once before the first start."""
        settings = self._write_properties()
        # in one word: a cluster id that ZooKeeper gave may begin with a hyphen
        self.release.tool("kafka.tools.StorageTool", "format", f"--cluster-id={self._cluster_id}", "-c", settings)

    def stop(self) -> None:
        """Stop it in order, if it still runs."""
        if self.process is not None:
            _end(self.process)

    def kill(self) -> None:
        """End it as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def printed(self) -> str:
        """Return all that it has written so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def complaints(self, since: int = 0) -> list[str]:
        """Return what it said of its logs at WARN or ERROR, with exceptions, after the first ``since`` characters."""
        said = ["\n".join(one.splitlines()[:2]) for one in _RECORD.split(self.printed()[since:])]
        return [one for one in said if _OF_ITS_LOGS.match(one) and not _OF_EVERY_START.search(one)]

    def drive(self, verb: str, *arguments: object, client: Release | None = None) -> str:
        """Let ``Driver.java`` do something as a client; return what it prints."""
        return (client or self.release).run(DRIVER, verb, self.address, *arguments)

    def _has_started(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.printed()[-4000:]
        return _STARTED.search(self.printed()[self.started_at :]) is not None

    def _write_properties(self) -> Path:
        own = self._of_zookeeper() if self._zookeeper else self._of_kraft()
        properties = _COMMON | {"log.dirs": ",".join(map(str, self.log_dirs))} | own | self._properties
        self.settings.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return self.settings

    def _of_zookeeper(self) -> dict[str, object]:
        return {
            "broker.id": self.node,
            "listeners": f"PLAINTEXT://{self.address}",
            "zookeeper.connect": self._zookeeper,
            "zookeeper.connection.timeout.ms": 60_000,
        }

    def _of_kraft(self) -> dict[str, object]:
        more = "".join(f",{protocol}://127.0.0.1:{port}" for protocol, port in self._secure.items())
        protocols = "".join(f",{protocol}:{protocol}" for protocol in self._secure)
        own = "" if self._voters else f",CONTROLLER://127.0.0.1:{self._controller}"
        return {
            "process.roles": "broker,controller" if own else "broker",
            "node.id": self.node,
            "listeners": f"PLAINTEXT://{self.address}{own}{more}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": self._voters or f"1@127.0.0.1:{self._controller}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}",
        }


_COMMON: Final[dict[str, object]] = {
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.min.isr": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
    "log.flush.offset.checkpoint.interval.ms": 3_600_000,
    "log.retention.ms": -1,
    "log.segment.delete.delay.ms": 100,
}
"""Before 2.8 the checkpoint of recovery points deletes snapshots: here only 30 s after the start, and at the stop."""


def _answers(port: int) -> bool:
    with socket.socket() as knocking:
        return knocking.connect_ex(("127.0.0.1", port)) == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process in order, or, where that takes too long, at once."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
