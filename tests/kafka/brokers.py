"""A real Kafka broker of 3.9 on a log dir that is there already: started, driven, and stopped in order or killed.

``KAFKA_JARS`` names a folder below which ``kafka_2.13-3.9.*.jar`` lies together with all that it needs; a JDK must be
on the ``PATH``. Everything stays on the loopback interface.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S: Final = 120
APPENDER: Final = Path(__file__).parent / "Appender.java"
_LOG4J: Final = """\
log4j.rootLogger=WARN, A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d %p %m%n
"""


def find_jars() -> Path:
    """Return the folder with the jars of 3.9, or skip the test."""
    root = os.environ.get("KAFKA_JARS")
    found = sorted(Path(root).rglob("kafka_2.13-3.9.*.jar")) if root else []
    if not found or shutil.which("java") is None:
        pytest.skip("NOT TESTED: a real broker needs KAFKA_JARS with Kafka 3.9, and a JDK")
    return found[-1].parent


class Broker:
    """One node of KRaft on the log dir ``data``, whose ``meta.properties`` says that it is node 1."""

    def __init__(self, data: Path, **properties: object) -> None:
        """``properties`` are the broker's, with underscores for dots."""
        self.data, self.jars, self.root = data, find_jars(), data.parent
        self.output = self.root / "broker.log"
        self._properties = {name.replace("_", "."): value for name, value in properties.items()}
        (self.root / "log4j.properties").write_text(_LOG4J)
        self.port = 0

    @contextmanager
    def running(self) -> Iterator[Broker]:
        """Start it, wait until it answers, and stop it in order at the end."""
        process = self.start()
        try:
            self._await_answer(process)
            yield self
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process and wait for nothing."""
        self.port, controller = _free_port(), _free_port()
        log4j = f"-Dlog4j.configuration=file:{self.root}/log4j.properties"
        command = ["java", "-Xmx512m", log4j, "-cp", f"{self.jars}/*", "kafka.Kafka", self._written(controller)]
        with self.output.open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def told(self) -> str:
        """Return all that it has written so far."""
        return self.output.read_text(errors="replace")

    def client(self, verb: str, topic: str, partition: int, number: int = 0) -> str:
        """Append transactions, delete records below an offset, or read; return what is printed."""
        where = f"127.0.0.1:{self.port}"
        log4j = f"-Dlog4j.configuration=file:{self.root}/log4j.properties"
        command = [
            "java",
            log4j,
            "-cp",
            f"{self.jars}/*",
            str(APPENDER),
            verb,
            where,
            topic,
            str(partition),
            str(number),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def _written(self, controller: int) -> str:
        properties = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.data,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.num.partitions": 2,
            "transaction.state.log.min.isr": 1,
            "log.retention.ms": -1,
            "log.segment.delete.delay.ms": 100,
        }
        path = self.root / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in (properties | self._properties).items()))
        return str(path)

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert process.poll() is None, self.told()[-4000:]
            with socket.socket() as knocking:
                if knocking.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the broker did not answer: {self.told()[-4000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
