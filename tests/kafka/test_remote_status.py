"""`remote status` beside a broker that copies, and after one that was killed in the middle of a copy."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.kafka.brokers import DRIVER, SMALL, Broker, eventually, tiering
from tests.scheduler.files import bases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

TOPIC: Final = "payments"
NEEDED: Final = {".log", ".index", ".timeindex", ".leader_epoch_checkpoint", ".snapshot"}
READS: Final = 20


def stopped_while_it_copies(broker: Broker, remote: Path) -> str | None:
    """Halt the broker; return the id of the segment that it is in the middle of copying, else let it go on."""
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    there: dict[str, set[str]] = {}
    for path in remote.glob(f"kafka-tiered-storage/{TOPIC}-0-*/*"):
        there.setdefault(path.stem[21:], set()).add(path.suffix)
    halved = next((name for name, kinds in there.items() if kinds < NEEDED), None)
    if halved is None:
        broker.process.send_signal(signal.SIGCONT)
    return halved


def test_status_is_right_beside_a_broker_that_copies_and_after_it_was_killed_in_the_middle(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    data, remote = tmp_path / "data", tmp_path / "remote"
    remote.mkdir()
    broker = Broker(release("4.4.0"), [data], tiering(remote))

    def status(*place: object) -> tuple[Any, dict[str, dict[str, Any]]]:
        ran = command("remote", "status", *place, "--store", remote.as_uri(), "--output", "json")
        assert ran.code == 0, ran.err
        findings = {finding["kind"]: finding for finding in ran.document["summary"]["findings"]}
        return next(iter(ran.document["partitions"]), None), findings

    with broker.running():
        by_cluster = ("--bootstrap-server", broker.address)
        broker.drive("create", TOPIC, 1, *SMALL["4.4.0"], "remote.storage.enable=true")
        appending = subprocess.Popen(broker.release.program(DRIVER, "append", broker.address, TOPIC, 0, 100))
        looks = 0
        while appending.poll() is None:
            for place in (by_cluster, (data,)):
                assert status(*place)[1] == {}
                looks += 1
        assert (appending.returncode, looks > 0) == (0, True)

        halved: list[str] = []
        program = broker.release.program(DRIVER, "append", broker.address, TOPIC, 0, 5_000)
        appending = subprocess.Popen(program)

        def is_halved() -> bool:
            nonlocal appending
            if appending.poll() is not None:  # a broker that is halted again and again can cost it its transaction
                appending = subprocess.Popen(program)
            for _ in range(READS):
                halved.extend(filter(None, [stopped_while_it_copies(broker, remote)]))
                if halved:
                    break
                time.sleep(0.01)  # a copy takes some milliseconds
            return bool(halved)

        eventually(is_halved, "it is never met in the middle of a copy")
        broker.kill()
        appending.kill()
        appending.wait()
        partition, findings = status(data)
        assert (partition["copying"], findings) == (halved[0], {})

        broker.start_up()
        goal = bases(data / f"{TOPIC}-0")[-1]
        eventually(lambda: status(data)[0]["endOffset"] >= goal, "it does not go on")
        for place in (by_cluster, (data,)):
            partition, findings = status(*place)
            assert {kind: finding["count"] for kind, finding in findings.items()} == {
                "orphans": 1,
                "unreferenced-objects": 1,
            }
            assert all(halved[0] in finding["detail"] for finding in findings.values())
            assert (partition["orphans"], partition["copying"]) == (1, None)
    assert broker.complaints() == []
