"""A service of its own process, seen as an operator sees it: by systemd, a scrape, its log, and the probes."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.fixture_sets import unpack
from tests.kafka.brokers import free_port
from tests.scheduler.scenes import SET, one_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parent.parent.parent.parent
WAIT_S: Final = 120
CONFIGURATION: Final = """
state-dir = "state"
engine = "local"
log.dirs = "data"
listen = "127.0.0.1:{port}"
queue-size = {queue_size}
[[schedules]]
name = "look"
run = "scan"
every = "1h"
"""


class Service:
    def __init__(self, top: Path) -> None:
        self.top, self.port, self.log = top, free_port(), top / "log"
        one_partition(unpack(SET, top / "fixture").data, top / "data")
        self.configure(queue_size=7)
        self.systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.systemd.bind(f"\0resnap-test-{self.port}")
        self.systemd.settimeout(WAIT_S)
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, *, queue_size: int | str) -> None:
        (self.top / "resnap.toml").write_text(CONFIGURATION.format(port=self.port, queue_size=queue_size))

    def start(self) -> None:
        environment = {"NOTIFY_SOCKET": f"@resnap-test-{self.port}", "WATCHDOG_USEC": "2000000", "HOME": str(self.top)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "resnap", "serve"],
                cwd=self.top,
                env={**environment, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
                stderr=log,
                stdout=log,
            )
        self.next_notice("READY=1")

    def next_notice(self, wanted: str) -> str:
        """Return the next message that systemd gets and that begins so; others are passed over."""
        while not (message := self.systemd.recv(4096).decode()).startswith(wanted):
            pass
        return message

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> int:
        assert self.process is not None
        self.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", headers=headers, timeout=WAIT_S, trust_env=False)

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics").text, flags=re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    found = Service(tmp_path)
    yield found
    found.systemd.close()
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.wait()


@pytest.mark.slow
def test_an_operator_sees_how_the_service_is_from_its_start_to_its_end(service: Service) -> None:
    service.start()
    assert service.get("/livez").status_code == 200
    assert service.next_notice("WATCHDOG=1").partition("\n")[2].startswith("STATUS=")
    while not service.metric('resnap_run_duration_seconds_count{kind="scan"}'):  # the first scan of the schedule
        service.next_notice("WATCHDOG=1")
    name = 'resnap_schedule_last_success_timestamp_seconds{schedule="look"}'
    seen_s = service.metric(name)
    assert seen_s > 0
    assert service.metric("resnap_last_scan_success") == 1
    (missing,) = re.findall(
        r"^resnap_segments_missing_snapshot\{(.+)\} (.+)$", service.get("/metrics").text, re.MULTILINE
    )
    assert (missing[0].endswith('data"'), float(missing[1])) == (True, 4)
    assert service.metric('resnap_runs_total{kind="scan",state="succeeded"}') == 1
    openmetrics = service.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert "resnap_build" in {family.name for family in text_string_to_metric_families(openmetrics.text)}

    service.configure(queue_size=9)
    service.send_signal(signal.SIGHUP)
    assert "MONOTONIC_USEC=" in service.next_notice("RELOADING=1")
    service.next_notice("READY=1")
    assert service.metric("resnap_queue_limit_runs") == 9
    service.configure(queue_size='"none"')
    service.send_signal(signal.SIGHUP)
    service.next_notice("RELOADING=1")
    service.next_notice("READY=1")
    assert service.metric("resnap_config_last_reload_success") == 0
    assert service.metric("resnap_queue_limit_runs") == 9

    assert service.end() == 0
    service.next_notice("STOPPING=1")
    lines = service.lines()
    assert all(line.keys() >= {"timestamp", "level", "logger", "event"} or line.keys() == {"note"} for line in lines)
    of_runs = {str(line["event"]): line["run"] for line in lines if "run" in line}
    assert of_runs.keys() >= {"run began", "run ended"}
    assert len(set(of_runs.values())) == 1

    service.configure(queue_size=7)
    service.start()
    # Now from the history, which had noted the end of that run a moment earlier than the metrics.
    assert 0 <= seen_s - service.metric(name) < WAIT_S
    assert service.metric("resnap_last_success_timestamp_seconds") == service.metric(name)
    assert service.end() == 0
