"""`remote status` beside a broker that copies, and after one that was killed in the middle of a copy."""

from __future__ import annotations

import signal
import subprocess
import time
from html import unescape
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.storage.words import human_bytes
from tests.kafka.brokers import DRIVER, SMALL, Broker, eventually, tiering
from tests.scheduler.api.whole import whole
from tests.scheduler.files import bases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Ran, Resnap

pytestmark = pytest.mark.kafka

TOPIC: Final = "payments"
NEEDED: Final = {".log", ".index", ".timeindex", ".leader_epoch_checkpoint", ".snapshot"}
READS: Final = 20
OLD: Final = ["--older-than", "1s"]


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
        program = broker.release.program(DRIVER, "append", broker.address, TOPIC, 0, 100)
        appending = subprocess.Popen(program)

        def is_appended() -> bool:
            nonlocal appending
            for place in (by_cluster, (data,)):
                assert status(*place)[1] == {}
            # A slow broker can cost it its transaction, too.
            appending = subprocess.Popen(program) if appending.poll() else appending
            return appending.poll() == 0

        eventually(is_appended, "the records are not appended")

        # All is there before it is copied: a broker that is halted again and again can cost a client its transaction.
        broker.drive("configure", TOPIC, "remote.log.copy.disable=true")
        broker.drive("append", TOPIC, 0, 2_000)
        halved: list[str] = []
        broker.drive("configure", TOPIC, "remote.log.copy.disable=false")

        def is_halved() -> bool:
            for _ in range(READS):
                halved.extend(filter(None, [stopped_while_it_copies(broker, remote)]))
                if halved:
                    break
                time.sleep(0.01)  # a copy takes some milliseconds
            return bool(halved)

        eventually(is_halved, "it is never met in the middle of a copy")
        broker.kill()
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

        left = {str(path.relative_to(remote)) for path in remote.rglob(f"*-{halved[0]}.*")}
        garbage = ("gc", remote.as_uri(), "--brokers", *by_cluster, "--no-other-writers", "--output", "json")
        for more, found in ((["--delete"], set()), (OLD, left), ([*OLD, "--delete"], left), (OLD, set())):
            rows = command(*garbage, *more).document["garbage"]
            assert {row["key"] for row in rows} == found
            assert {row["why"] for row in rows} <= {"copy never ended"}
        assert not list(remote.rglob(f"*-{halved[0]}.*"))
        assert [*status(*by_cluster)[1]] == ["orphans"]
        broker.drive("append", TOPIC, 0, 100)
    assert broker.complaints() == []


def test_tiering_that_has_stopped_is_found_on_the_running_cluster_in_its_log_dir_and_by_the_service(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    data, remote = tmp_path / "data", tmp_path / "remote"
    remote.mkdir()
    broker = Broker(release("3.9.1"), [data], tiering(remote))

    def status(*more: object) -> Ran:
        return command("remote", "status", *more, "--output", "json")

    def waiting(*more: object) -> dict[str, list[Any]]:
        """Return what waits in each topic, and check that this alone decides on the exit code."""
        ran = status(*more, "--copy-overdue-after", "0s")
        found = {row["topic"]: row["waiting"] for row in ran.document["partitions"]}
        assert ran.code == (13 if any(found.values()) else 0), ran.err
        return found

    with broker.running():
        by_cluster = ("--bootstrap-server", broker.address)
        broker.drive("create", TOPIC, 1, *SMALL["3.9.1"], "remote.storage.enable=true")
        while len(bases(data / f"{TOPIC}-0")) < 3:
            broker.drive("append", TOPIC, 0, 30)
        eventually(lambda: waiting(data)[TOPIC] is None, "nothing is copied")
        assert waiting(*by_cluster)[TOPIC] is None
        (remote / "kafka-tiered-storage").rename(remote / "away")
        (remote / "kafka-tiered-storage").write_text("the store fails from now on")
        copied = status(data).document["partitions"][0]["endOffset"]
        broker.drive("create", "never", 1, *SMALL["3.9.1"], "remote.storage.enable=true")
        for topic in (TOPIC, "never"):
            goal = len(bases(data / f"{topic}-0")) + 3
            while len(bases(data / f"{topic}-0")) < goal:
                broker.drive("append", topic, 0, 30)
        # A broker writes its high watermarks to the log dir every five seconds.
        eventually(lambda: (waiting(data)[TOPIC] or {}).get("segments", 0) >= 3, "the high watermark is not written")
        log, live = waiting(data)[TOPIC], waiting(*by_cluster)
        assert (log["offset"], log["segments"], log["isEstimate"]) == (copied, 3, False)
        closed = bases(data / f"{TOPIC}-0")[-4:-1]
        assert closed[0] == copied
        assert log["bytes"] == sum((data / f"{TOPIC}-0" / f"{base:020d}.log").stat().st_size for base in closed)
        assert (live[TOPIC]["offset"], live[TOPIC]["isEstimate"], live["never"]["offset"]) == (copied, True, 0)
        assert log["segments"] - 1 <= live[TOPIC]["segments"] <= log["segments"]
        assert log["bytes"] <= live[TOPIC]["bytes"] <= log["bytes"] + 16_384
        assert "tiering has stopped" in status(*by_cluster, "--copy-overdue-after", "0s").error["message"]
        assert status(*by_cluster).code == 0, "an hour has not passed"

        limit = 1 + sum(path.stat().st_size for path in (data / f"{TOPIC}-0").glob("*.log"))
        broker.drive("configure", TOPIC, f"retention.bytes={limit}")
        check, scan = (
            command(verb, data, *by_cluster, "--topic", TOPIC, "--output", "json") for verb in ("check", "scan")
        )
        (fault,) = scan.document["partitions"][0]["knownFaults"]
        assert (fault["fault"], fault["releases"], fault["isCertain"]) == ("local-log-counted-twice", ["3.9.x"], True)
        assert fault["detail"] in [one["detail"] for one in check.document["topics"][0]["warnings"]]

        (service := tmp_path / "service").mkdir()
        settings = {"RESNAP_BOOTSTRAP_SERVER": broker.address, "RESNAP_COPY_OVERDUE_AFTER": "0s"}
        with whole(service, data, environment=settings) as served, served.client() as client:
            assert served.over(client, client.post("/v1/scans", json={}).headers["Location"])["state"] == "succeeded"
            (said,) = (
                line
                for line in client.get("/metrics").text.splitlines()
                if line.startswith("resnap_oldest_segment_not_in_remote_seconds{") and "other" not in line
            )
            assert float(said.split()[-1]) > 0
            page = client.get("/").text
            assert "Tiering has stopped" in page
            assert f"3 segments, {human_bytes(log['bytes'])}, from offset {copied} on" in page
            assert fault["detail"] in unescape(client.get(f"/partitions/{TOPIC}/0").text)
