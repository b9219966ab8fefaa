"""Real Kafka brokers, to be compared with: one node of KRaft on loopback, started and stopped as often as needed.

The jars are the caller's: any folder below which ``kafka_2.13-<version>.jar`` lies together with all that it needs.
How long a broker took is taken from its own log.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.create_topic import create_topic
from tests.benchmarks.measuring import warm
from tests.kafka.brokers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.benchmarks.datasets import Log

CLUSTER_ID = "AAAAAAAAQACAAAAAAAAAAQ"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
HEAP = "-Xmx1g"
STARTED = b"Kafka Server started"
"""What it says last; one that is stopped before leaves no marker of a clean shutdown."""
START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 120
_JAR = re.compile(r"kafka_2\.13-(\d+\.\d+\.\d+)\.jar")
_LOADED = r"Completed load of \w+\(dir=[^,]*/({topic}-\d+),.*? in (\d+) ?ms"
_REPLAYED = r"partition=({topic}-\d+),.*?Producer state recovery took \d+ ?ms for snapshot load and (\d+) ?ms"
_LOG4J = """\
log4j.rootLogger=INFO, A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d %p %m%n
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """One release, as jars."""

    version: str
    jars: Path

    def java(self, *arguments: str) -> list[str]:
        """Return the command line that runs a class of this release."""
        home = os.environ.get("JAVA_HOME")
        return [f"{home}/bin/java" if home else "java", HEAP, "-cp", f"{self.jars}/*", *arguments]


def find_kafkas(jars: Path) -> list[Kafka]:
    """Return the releases below ``jars``, the oldest first; only those that know KRaft and this way to start it."""
    found = {}
    for path in jars.rglob("kafka_2.13-*.jar"):
        named = _JAR.fullmatch(path.name)
        if named and int(named[1].split(".")[0]) >= 3:
            found[tuple(map(int, named[1].split(".")))] = Kafka(version=named[1], jars=path.parent)
    return [found[key] for key in sorted(found)]


class Broker:
    """A broker with one topic whose files are replaced by those of a generated log."""

    def __init__(self, kafka: Kafka, log: Log, topic: str) -> None:
        """Make the broker's directory beside ``log``, and let it create the topic."""
        self.kafka = kafka
        self.topic = topic
        self.root = log.root / f"broker-{kafka.version}"
        self.data = self.root / "data"
        self._log = log
        self._output = self.root / "broker.log"
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        (self.root / "log4j.properties").write_text(_LOG4J, encoding="utf-8")
        self._format()
        with self.running(threads=1) as port:
            create_topic(port, topic, partitions=log.options.partitions)
            self._await_partitions()
        self._take_over()

    def partition(self, number: int) -> Path:
        """Return the directory of one partition."""
        return self.data / f"{self.topic}-{number}"

    def replay_producer_state(self, threads: int) -> float:
        """Start it after a clean stop, all snapshots lost but the oldest; return the seconds its replay took.

        Without any snapshot a broker that was stopped cleanly replays nothing, and writes empty ones.
        """
        for number in range(self._log.options.partitions):
            self._lose_snapshots(number)
            shutil.copy2(self._log.kept(number)[0], self.partition(number))
        return self._restart(_REPLAYED, threads)

    def recover(self, threads: int) -> float:
        """Start it as after a crash, with nothing known to be on disk; return the seconds it took to load the logs."""
        for number in range(self._log.options.partitions):
            self._lose_snapshots(number)
        (self.data / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        checkpoint = self.data / "recovery-point-offset-checkpoint"
        points = re.sub(rf"^({self.topic} \d+) \d+$", r"\1 0", checkpoint.read_text(), flags=re.MULTILINE)
        checkpoint.write_text(points)
        return self._restart(_LOADED, threads)

    @contextmanager
    def running(self, *, threads: int) -> Iterator[int]:
        """Start it, give its port once it is there, and stop it in order."""
        port, controller_port = free_port(), free_port()
        properties = self._write_properties(port, controller_port, threads)
        log4j = f"-Dlog4j.configuration=file:{self.root}/log4j.properties"
        command = self.kafka.java(log4j, "kafka.Kafka", properties)
        with self._output.open("ab") as output:
            said_before = output.tell()
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            self._await_start(process, said_before)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _restart(self, pattern: str, threads: int) -> float:
        """Start and stop it; return the seconds it logs: of all threads' work if one, of the longest if two."""
        warm(self._log.segments)
        seen = self._output.stat().st_size
        with self.running(threads=threads):
            pass
        told = self._output.read_bytes()[seen:].decode(errors="replace")
        found = {match[1]: int(match[2]) / 1000 for match in re.finditer(pattern.format(topic=self.topic), told)}
        if len(found) != self._log.options.partitions:
            raise RuntimeError(f"{self._output}: it does not tell how long it took: {found}")
        return sum(found.values()) if threads == 1 else max(found.values())

    def _format(self) -> None:
        properties = self._write_properties(free_port(), free_port(), 1)
        subprocess.run(
            self.kafka.java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", properties),
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _write_properties(self, port: int, controller_port: int, threads: int) -> str:
        properties = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.data,
            "offsets.topic.replication.factor": 1,
            "num.recovery.threads.per.data.dir": threads,
            "log.retention.ms": -1,
            "producer.id.expiration.ms": 2**31 - 1,
        }
        path = self.root / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
        return str(path)

    def _await_start(self, process: subprocess.Popen[bytes], said_before: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while STARTED not in self._output.read_bytes()[said_before:]:
            if process.poll() is not None:
                raise RuntimeError(f"{self._output}: the broker ended with {process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._output}: the broker did not start within {START_TIMEOUT_S} s")
            time.sleep(0.1)

    def _await_partitions(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        wanted = [self.partition(number) / "partition.metadata" for number in range(self._log.options.partitions)]
        while not all(path.exists() for path in wanted):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._output}: the topic did not come about")
            time.sleep(0.1)

    def _take_over(self) -> None:
        """Put the generated files in the place of the empty ones, segments as hard links."""
        for number in range(self._log.options.partitions):
            own = self.partition(number)
            for path in own.iterdir():
                if path.name != "partition.metadata":
                    path.unlink()
            for path in self._log.partition(number).iterdir():
                if path.suffix == ".log":
                    os.link(path, own / path.name)
                else:
                    shutil.copy2(path, own)

    def _lose_snapshots(self, number: int) -> None:
        for path in self.partition(number).glob("*.snapshot"):
            path.unlink()
        shutil.copy2(self._log.partition(number) / "leader-epoch-checkpoint", self.partition(number))
