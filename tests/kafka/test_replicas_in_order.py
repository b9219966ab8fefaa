"""No false alarm: replicas of a cluster that loses nothing, while producers come and go, and brokers too."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.client import Cluster
from resnap.tiering.cluster.producers import describe_producers
from tests.kafka.brokers import DRIVER, Broker
from tests.kafka.lost_state import IDEMPOTENT, QUICK, send_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

STEADY: Final = "steady"
CUT: Final = TopicPartition("cut", 0)
EXPIRING: Final = {"producer.id.expiration.ms": 60_000, "producer.id.expiration.check.interval.ms": 7_000}


@contextmanager
def traffic(broker: Broker) -> Iterator[None]:
    """Let producers of every kind write meanwhile, again and again others; what a restart ends is begun again."""
    running: list[subprocess.Popen[bytes]] = []
    is_over = threading.Event()

    def go_on() -> None:
        for seed in itertools.count():
            if is_over.is_set():
                return
            program = broker.release.program(DRIVER, "traffic", broker.address, STEADY, 1, 60, seed)
            running[:] = [subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
            running[0].wait()
            is_over.wait(0.5)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        while thread.is_alive():
            for one in running:
                one.kill()
            thread.join(0.5)


@pytest.mark.parametrize(("version", "seconds"), [("4.4.0", 75), pytest.param("3.9.1", 3_600, marks=pytest.mark.heavy)])
def test_a_cluster_that_loses_nothing_gives_no_alarm_while_producers_and_brokers_come_and_go(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str, seconds: int
) -> None:
    for node in range(3):
        (tmp_path / str(node)).mkdir()
    first = Broker(release(version), [tmp_path / "0" / "data"], QUICK | EXPIRING)
    others = [
        Broker(release(version), [tmp_path / str(node) / "data"], QUICK | EXPIRING, node=node + 1, joins=first)
        for node in (1, 2)
    ]
    servers = ",".join(one.address for one in (first, *others))
    codes: dict[str, list[int]] = {}

    def check(when: str, *expected: int) -> None:
        ran = command("replicas", "--bootstrap-server", servers, "--output", "json")
        codes.setdefault(when, []).append(ran.code)
        assert ran.code in expected, (when, ran.out, ran.err)

    with ExitStack() as stack:
        for one in (first, *others):
            stack.enter_context(one.running())
        first.drive("assign", CUT.topic, "1,2")
        send_batch(first, IDEMPOTENT, CUT.topic)
        first.drive("append", CUT.topic, 0, 20)
        first.drive("delete", CUT.topic, 0, 90)
        first.drive("assign", STEADY, "1,2,3", "min.insync.replicas=2")
        first.drive("reassign", CUT.topic, 0, "1,2,3")
        with Cluster(first.address, {}) as cluster:
            old, new = (describe_producers(cluster, node, [CUT])[CUT].producers for node in (1, 3))
        stack.enter_context(traffic(first))
        assert {one.producer_id for one in old} - {one.producer_id for one in new} == {IDEMPOTENT}
        check("a new replica that cannot know producers whose records were deleted", 0)
        ends_s = time.monotonic() + seconds
        for broker in itertools.cycle((*others, first)):
            if time.monotonic() > ends_s:
                break
            check("while producers come and go", 0)
            broker.stop()
            if broker is not first:  # which is the only controller
                check("while a broker is down", 0, 16)
            broker.start_up()
            check("after a start", 0, 16)
            time.sleep(3)
        check("at last", 0)
    assert set(itertools.chain(*codes.values())) <= {0, 16}
