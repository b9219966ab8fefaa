"""Announcing beside others: runs that announce or brokers that copy, killed runs, recreated topics."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.scheduler.clock import Clock
from resnap.storage.sources.files import Sources
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.cluster.client import Cluster
from resnap.tiering.remote_log.announcer import Announcer
from resnap.tiering.remote_log.records import (
    METADATA_TOPIC,
    TopicIdPartition,
    decode_record,
    is_ours,
    metadata_partition,
    partition_of,
)
from tests.kafka.brokers import SMALL, Broker, eventually, tiering
from tests.scheduler.conftest import FORGETFUL, PROJECT
from tests.scheduler.files import bases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resnap.tiering.remote_log.announcement import Announcement
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Ran, Resnap

pytestmark = pytest.mark.kafka

VERSION: Final = "4.4.0"
PAUSED: Final = ("remote.storage.enable=true", "remote.log.copy.disable=true")
ON: Final = "remote.log.copy.disable=false"
CUT_SHORT: Final = b"\1\0\0"
"""A record that no reader can take."""
LOCAL: Final = ("local.retention.ms=-2", "local.retention.bytes=1000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A broker that tiers to a folder, and an operator with what Resnap ships there."""

    broker: Broker
    data: Path
    remote: Path
    command: Resnap

    def ship(self, topic: str) -> None:
        ran = self.command("tier", self.data, "--topic", topic, "--to", self.remote.as_uri(), "--layout",
                           "local-tiered", "--engine", "local", *self.there)  # fmt: skip
        assert (ran.code, ran.document["summary"]["shipped"] > 0) == (0, True), ran.err

    def make(self, topic: str, transactions: int = 40) -> None:
        """Make a topic that is tiered, with copying paused, and ship it."""
        self.broker.drive("create", topic, 1, *SMALL[VERSION], *PAUSED)
        self.broker.drive("append", topic, 0, transactions)
        self.ship(topic)

    def closed(self, topic: str) -> list[int]:
        """Return the bases of the segments that are closed, as they lie on the disk."""
        return bases(self.data / f"{topic}-0")[:-1]

    def announcement(self, topic: str, *flags: str) -> list[object]:
        return ["announce", self.remote.as_uri(), "--topic", topic, *self.there, *flags]

    def announce(self, topic: str, *flags: str) -> Ran:
        return self.command(*self.announcement(topic, *flags))

    def status(self, topic: str) -> Any:
        """Return the partition as brokers cache it; no problem may be harmful."""
        ran = self.command("remote", "status", "--store", self.remote.as_uri(), "--topic", topic, *self.there)
        assert ran.code == 0, ran.err
        return next(iter(ran.document["partitions"]), None)

    def announced(self, topic: str) -> list[str]:
        """Return the segment that each record of the metadata topic is about."""
        with Cluster(self.broker.address, {}) as cluster:
            numbers = cluster.facts(lambda name: name == METADATA_TOPIC).topics[METADATA_TOPIC].partitions
            values = [value for number in numbers for _, value in cluster.read(METADATA_TOPIC, number)]
        records: list[Any] = [decode_record(value) for value in values if value is not None]
        return [record.remote_log_segment_id.id for record in records if partition_of(record).name == topic]

    def check_served(self, topic: str, read: str) -> None:
        """Let the broker go on and delete its own copies, and see that consumers read what they did."""
        goal = bases(self.data / f"{topic}-0")[-1]
        self.broker.drive("configure", topic, ON, *LOCAL)
        eventually(lambda: bases(self.data / f"{topic}-0")[0] >= goal, f"{topic}: local copies stay")
        assert self.broker.drive("read", topic, 0) == read
        assert self.status(topic)["endOffset"] >= goal

    @property
    def there(self) -> tuple[str, ...]:
        return ("--bootstrap-server", self.broker.address, "--output", "json")


@pytest.fixture(scope="module")
def running(
    release: Callable[[str], Release], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, Path, Path]]:
    root = tmp_path_factory.mktemp("site")
    data, remote = root / "data", root / "remote"
    remote.mkdir()
    broker = Broker(release(VERSION), [data], tiering(remote))
    with broker.running():
        yield broker, data, remote


@pytest.fixture
def site(running: tuple[Broker, Path, Path], command: Resnap) -> Iterator[Site]:
    """Give the broker of all tests here; it must not complain in any of them."""
    broker, data, remote = running
    since = len(broker.printed())
    yield Site(broker=broker, data=data, remote=remote, command=command)
    assert broker.complaints(since) == []


@dataclass
class Meddling(Cluster):
    """A cluster with an event once a number of records was announced."""

    address: str
    after: int
    happens: Callable[[Cluster], None]
    records: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__init__(self.address, {})

    def publish(self, topic: str, partition: int, value: bytes) -> int:
        offset = super().publish(topic, partition, value)
        self.records += 1
        if self.records == self.after:
            self.happens(self)
        return offset


def announce_while(site: Site, topic: str, after: int, happens: Callable[[Cluster], None]) -> tuple[Announcement, str]:
    """Announce, and let something happen ``after`` so many records; return what was announced, and what went wrong."""
    with Meddling(site.broker.address, after, happens) as cluster:
        announcer = Announcer(
            store=LocalObjectStore(site.remote),
            cluster=cluster,
            wants=topic.__eq__,
            sources=Sources(),
            key_prefix="",
            now_ms=Clock().now_ms,
            releases=(),
            kafka_configs="kafka-configs.sh",
        )
        (judged,) = announcer.judged()
        announced = announcer.publish(judged, lambda *_: None)
    return announced, "\n".join(map(str, announcer.problems))


def test_two_runs_at_once_announce_each_segment_once(site: Site) -> None:
    site.make("twice")
    line = [sys.executable, "-m", "resnap", *map(str, site.announcement("twice", "--publish"))]
    at_once = [
        subprocess.Popen(line, cwd=PROJECT, env=os.environ | FORGETFUL, stderr=subprocess.PIPE) for _ in range(2)
    ]
    errors = [one.communicate()[1].decode() for one in at_once]
    codes = sorted(one.returncode for one in at_once)
    assert codes in ([0, 0], [0, 11]), errors
    told = site.announced("twice")
    assert len(told) == 2 * len(set(told)) == 2 * len(site.closed("twice"))


def test_what_was_killed_between_two_records_is_gone_on_with(site: Site) -> None:
    site.make("killed")
    read, closed = site.broker.drive("read", "killed", 0), site.closed("killed")
    assert announce_killed(site, "killed", after=3) == -9
    told = site.announced("killed")
    assert (len(told), len(set(told))) == (3, 2)
    assert site.status("killed")["states"]["copy-started"] == 1
    again = site.announce("killed", "--publish")
    (done,) = again.document["partitions"]
    assert (again.code, done["segments"], done["below"]) == (0, len(closed) - 1, 1), again.err
    status = site.status("killed")
    assert (status["readable"], status["orphans"], status["copying"]) == (len(closed), 0, None)
    site.check_served("killed", read)


def announce_killed(site: Site, topic: str, after: int) -> int:
    """Announce in a process that is killed ``after`` so many records; return what it ended with."""
    program = f"""
import os, signal, sys
from resnap.scheduler.cli import run
from resnap.tiering.cluster.client import Cluster
publish, records = Cluster.publish, []
def publish_and_count(self, *record):
    publish(self, *record)
    records.append(record)
    if len(records) == {after}:
        os.kill(os.getpid(), signal.SIGKILL)
Cluster.publish = publish_and_count
run(sys.argv[1:])
"""
    line = [sys.executable, "-c", program, *map(str, site.announcement(topic, "--publish"))]
    return subprocess.run(line, cwd=PROJECT, env=os.environ | FORGETFUL, check=False).returncode


def test_announcing_ends_when_copying_is_turned_on_and_the_broker_continues_from_there(site: Site) -> None:
    site.make("turned-on")
    read, closed = site.broker.drive("read", "turned-on", 0), site.closed("turned-on")

    def turn_on(cluster: Cluster) -> None:
        site.broker.drive("configure", "turned-on", ON)
        eventually(lambda: (topic := cluster.topic("turned-on")) and not topic.is_copying_paused, "it stays paused")

    told, problem = announce_while(site, "turned-on", 2, turn_on)
    assert (len(told.segments), told.stop and told.stop.reason) == (1, "copying-not-paused")
    assert f"copies by itself; 1 of {len(closed)} were announced" in problem
    site.check_served("turned-on", read)
    assert len(set(site.announced("turned-on"))) >= len(closed)


@pytest.mark.heavy
def test_a_broker_that_copied_in_between_is_reported_and_nothing_is_lost(site: Site) -> None:
    site.make("between")
    read, closed = site.broker.drive("read", "between", 0), site.closed("between")

    def let_it_copy(_: Cluster) -> None:
        site.broker.drive("configure", "between", ON)
        eventually(lambda: not all(map(is_ours, site.announced("between"))), "the broker does not copy")

    told, problem = announce_while(site, "between", 2 * len(closed) - 1, let_it_copy)
    assert len(told.segments) == len(closed)
    assert "between-0: broker 1 copied [" in problem
    site.check_served("between", read)


@pytest.mark.heavy
def test_nothing_of_the_old_topic_is_announced_for_a_recreated_one(site: Site) -> None:
    site.make("anew")
    assert site.announce("anew", "--publish").code == 0
    (old,) = (site.remote / "kafka-tiered-storage").glob("anew-0-*")
    site.broker.drive("drop", "anew")
    eventually(lambda: not list(old.glob("*.log")), "the objects of the old topic stay")
    eventually(lambda: not (site.data / "anew-0").exists(), "the old topic stays")
    site.make("anew", 20)
    ran = site.announce("anew", "--publish")
    by_id = {partition["topicId"]: partition for partition in ran.document["partitions"]}
    assert by_id[old.name[-22:]]["stop"]["hurdle"] == "topic-id-differs"
    (new,) = (one for topic_id, one in by_id.items() if topic_id != old.name[-22:])
    assert (new["segments"], new["stop"]) == (len(site.closed("anew")), None)
    assert (ran.code, "topic-id-differs" in ran.err) == (3, True)


@pytest.mark.heavy
def test_what_is_not_contiguous_is_announced_up_to_the_gap_and_continued_once_it_is_shipped(site: Site) -> None:
    site.make("gap")
    read, closed = site.broker.drive("read", "gap", 0), site.closed("gap")
    (manifest,) = (path for path in site.remote.rglob(f"{closed[1]:020d}-*.manifest") if "gap" in path.parts)
    manifest.rename(manifest.with_suffix(".aside"))
    ran = site.announce("gap", "--publish")
    (one,) = ran.document["partitions"]
    assert (ran.code, one["segments"], one["stop"]["hurdle"], one["stop"]["offset"]) == (0, 1, "gap", closed[2])
    manifest.with_suffix(".aside").rename(manifest)
    (one,) = site.announce("gap", "--publish").document["partitions"]
    assert (one["segments"], one["below"], one["stop"]) == (len(closed) - 1, 1, None)
    site.check_served("gap", read)


@pytest.mark.heavy
def test_segments_of_several_leader_epochs_are_announced_as_the_broker_would_have(site: Site) -> None:
    site.broker.drive("create", "epochs", 1, *SMALL[VERSION], *PAUSED)
    for _ in range(3):
        site.broker.drive("append", "epochs", 0, 14)
        site.broker.stop()
        site.broker.start_up()
    site.ship("epochs")
    read = site.broker.drive("read", "epochs", 0)
    assert site.announce("epochs", "--publish").code == 0
    epochs = [segment["segmentLeaderEpochs"] for segment in site.status("epochs")["segments"]]
    assert any(len(each) > 1 for each in epochs)
    site.check_served("epochs", read)
    site.broker.stop()
    site.broker.start_up()
    assert site.broker.drive("read", "epochs", 0) == read


@pytest.mark.heavy
def test_what_is_too_old_is_deleted_by_kafkas_rules_and_the_broker_is_at_rest_then(site: Site) -> None:
    site.make("old")
    closed, goal = site.closed("old"), bases(site.data / "old-0")[-1]
    assert site.announce("old", "--publish").code == 0
    site.broker.drive("configure", "old", "retention.ms=1000", ON)
    (folder,) = (site.remote / "kafka-tiered-storage").glob("old-0-*")
    eventually(lambda: not list(folder.glob("*.log")), "what is too old stays")
    start = int(site.broker.drive("read", "old", 0).split()[1])
    assert start >= goal
    status = site.status("old")
    assert (status["readable"], status["orphans"]) == (0, 0)
    since = len(site.broker.printed())
    site.broker.drive("append", "old", 0, 5)
    said = [line for line in site.broker.printed()[since:].splitlines() if "old-0" in line]
    assert len(said) < 50, said[:10]
    again = site.announce("old", "--publish").document["partitions"][0]
    assert (again["segments"], again["below"]) == (0, len(closed))


@pytest.mark.heavy
def test_where_a_record_has_ended_the_brokers_reading_nothing_is_announced(
    release: Callable[[str], Release], command: Resnap, tmp_path: Path
) -> None:
    data, remote = tmp_path / "data", tmp_path / "remote"
    remote.mkdir()
    broker = Broker(release(VERSION), [data], tiering(remote))
    site = Site(broker=broker, data=data, remote=remote, command=command)

    def has_died(since: int) -> bool:
        return "ERROR Error occurred while processing the records (" in broker.printed()[since:]

    with broker.running():
        site.make("poisoned")
        with Cluster(broker.address, {}) as cluster:
            topics = cluster.facts(lambda _: True).topics
            of = TopicIdPartition(name="poisoned", id=topics["poisoned"].topic_id or "", partition=0)
            number = metadata_partition(of, len(topics[METADATA_TOPIC].partitions))
            cluster.publish(METADATA_TOPIC, number, CUT_SHORT)
            eventually(lambda: has_died(0), "the broker reads on")
            refused = site.announce("poisoned", "--publish")
            (one,) = refused.document["partitions"]
            assert (refused.code, one["segments"], one["stop"]["hurdle"]) == (2, 0, "poisoned")
            assert [value for _, value in cluster.read(METADATA_TOPIC, number)] == [CUT_SHORT]
        status = command("remote", "status", "--store", remote.as_uri(), *site.there)
        assert (status.code, [one["kind"] for one in status.document["summary"]["findings"]]) == (13, ["poison"])
        assert "kafka-delete-records.sh" in status.error["hint"]
    since = len(broker.printed())
    with broker.running():
        eventually(lambda: has_died(since), "the broker reads on after a restart")
        broker.drive("delete", METADATA_TOPIC, number, 1)  # as the error of `remote status` advises
    since = len(broker.printed())
    with broker.running():
        read = broker.drive("read", "poisoned", 0)
        assert site.announce("poisoned", "--publish").code == 0
        site.check_served("poisoned", read)
    assert broker.complaints(since) == []
