"""No false alarm: replicas of a cluster that loses nothing, while producers come and go, and brokers too."""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.client import Cluster
from resnap.tiering.cluster.replica_comparison import describe_producers
from tests.kafka.brokers import DRIVER, Broker, eventually, tiering
from tests.kafka.lost_state import IDEMPOTENT, QUICK, send_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

STEADY: Final = "steady"
WRITTEN: Final = TopicPartition(STEADY, 0)
CUT: Final = TopicPartition("cut", 0)
EXPIRING: Final = {"producer.id.expiration.ms": 60_000, "producer.id.expiration.check.interval.ms": 7_000}


@contextmanager
def traffic(broker: Broker) -> Iterator[list[int]]:
    """Let producers write meanwhile, of every kind and without a pause; what a restart ends is begun again by others.

    Gives the exit codes of those that have ended.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    ended: list[int] = []
    is_over = threading.Event()

    def go_on(verb: str, *arguments: object) -> None:
        for seed in itertools.count():
            if is_over.is_set():
                return
            program = broker.release.program(DRIVER, verb, broker.address, STEADY, *arguments, seed)
            running[verb] = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            ended.append(running[verb].wait())
            is_over.wait(0.5)

    kinds = (("traffic", 1, 60), ("append", 0, 2_000))
    threads = [threading.Thread(target=go_on, args=kind) for kind in kinds]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        is_over.set()
        while any(thread.is_alive() for thread in threads):
            for one in [*running.values()]:
                one.kill()
            threads[0].join(0.5)


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
    codes: dict[str, Counter[int]] = defaultdict(Counter)
    came, gone = set[int](), set[int]()

    def check(when: str, *expected: int) -> None:
        ran = command("replicas", "--bootstrap-server", servers, "--output", "json")
        codes[when][ran.code] += 1
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
        written = stack.enter_context(traffic(first))
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
            with Cluster(broker.address, {}) as cluster:
                now = {
                    one.producer_id for one in describe_producers(cluster, broker.node, [WRITTEN])[WRITTEN].producers
                }
            came, gone = came | now, gone | (came - now)
        check("at last", 0)
    figures = f"{dict(codes)}; producers: {len(came)} came, {len(gone)} went; programs: {Counter(written)}"
    (tmp_path / "figures").write_text(figures)
    assert len(came) > 1
    assert gone or seconds < 2 * EXPIRING["producer.id.expiration.ms"] / 1000


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.4.0", marks=pytest.mark.heavy)])
def test_records_deleted_before_any_were_tiered_give_no_alarm_of_a_new_replica(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    own = QUICK | tiering(tmp_path / "remote")
    for folder in ("remote", "1", "2"):
        (tmp_path / folder).mkdir()
    leader = Broker(release(version), [tmp_path / "1" / "data"], own)
    new = Broker(release(version), [tmp_path / "2" / "data"], own, node=2, joins=leader)
    with leader.running(), new.running():
        leader.drive("assign", CUT.topic, "1", "remote.storage.enable=true")
        send_batch(leader, IDEMPOTENT, CUT.topic)
        leader.drive("append", CUT.topic, 0, 20)
        leader.drive("delete", CUT.topic, 0, 90)
        leader.drive("reassign", CUT.topic, 0, "1,2")
        with Cluster(leader.address, {}) as cluster:
            eventually(lambda: describe_producers(cluster, 2, [CUT])[CUT].error is None, "there is no new replica")
            old, found = (describe_producers(cluster, node, [CUT])[CUT].producers for node in (1, 2))
        assert IDEMPOTENT in {one.producer_id for one in old} - {one.producer_id for one in found}
        ran = command("replicas", "--bootstrap-server", leader.address, "--topic", CUT.topic, "--output", "json")
        assert ran.code == 0, (ran.out, ran.err)
        assert ran.document["summary"]["replicas"] == 2


def test_a_broker_that_hangs_does_not_hide_what_is_known_of_the_others(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    for node in ("1", "2"):
        (tmp_path / node).mkdir()
    first = Broker(release("3.9.1"), [tmp_path / "1" / "data"], {"broker.session.timeout.ms": 600_000})
    other = Broker(release("3.9.1"), [tmp_path / "2" / "data"], {"broker.session.timeout.ms": 600_000}, node=2,
                   joins=first)  # fmt: skip
    with first.running(), other.running():
        first.drive("assign", STEADY, "1,2")
        send_batch(first, IDEMPOTENT, STEADY)
        servers = ("--bootstrap-server", f"{first.address},{other.address}", "--output", "json")
        eventually(lambda: command("replicas", *servers).code == 0, "the replicas are not in order")
        assert other.process is not None
        other.process.send_signal(signal.SIGSTOP)  # the kernel goes on to take connections
        try:
            ran = command("replicas", *servers, "--topic", STEADY)
        finally:
            other.process.send_signal(signal.SIGCONT)
    assert ran.out, ran.err
    rows = ran.document["replicas"]
    assert (ran.code, [row["brokerId"] for row in rows], rows[0]["state"] in {"unknown", "lagging"}) == (
        16 if rows[0]["state"] == "unknown" else 0, [2], True,
    ), ran.err  # fmt: skip
