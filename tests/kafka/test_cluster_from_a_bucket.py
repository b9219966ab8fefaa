"""From an empty machine and a store to a cluster that goes on: the section of the runbook, typed unchanged."""

from __future__ import annotations

import re
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.record import write_data_batch
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD, read_header
from resnap.tiering.controller.metadata.folding import load_image
from resnap.tiering.controller.metadata.image import ConfigResource, ResourceType
from resnap.tiering.controller.producer_ids.allocation import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
    read_body,
    write_body,
)
from tests.kafka.brokers import Broker, eventually
from tests.kafka.runbook import Operator
from tests.kafka.story import DISASTER
from tests.kafka.wire import Wire
from tests.scheduler.installed import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resnap.tiering.controller.metadata.image import MetadataImage
    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

TOPIC: Final = "payments"
ABORT: Final = Path(__file__).parent / "Abort.java"
NEW_CLUSTER: Final = "BBBBBBBBQBCBBBBBBBBBBQ"
FORMAT, RESTORE = 0, 1
"""Blocks of the section."""
EXPECTED: Final = ("OutOfOrderSequenceException", "IOException: Connection to")
"""What a broker says of the record that it is to refuse, and of another one that has not started or was stopped."""
LEVELS: Final = ("read_committed", "read_uncommitted")
_PRODUCE: Final = 0


class IdleProducer:
    """An idempotent producer that sends one record at a time to partition 0, and then nothing for long."""

    def __init__(self, port: int) -> None:
        self.producer_id = new_producer_id(port)

    def send(self, brokers: list[Broker], sequence: int) -> tuple[KafkaError, int]:
        """Send the record of this sequence; return what the leader says, and the record's offset."""
        answers = (self._send(broker.port, sequence) for broker in brokers)
        return next(answer for answer in answers if answer[0] != KafkaError.NOT_LEADER_OR_FOLLOWER)

    def _send(self, port: int, sequence: int) -> tuple[KafkaError, int]:
        batch = write_data_batch(
            offset=0, timestamps=int(time.time() * 1000), producer_id=self.producer_id, producer_epoch=0,
            base_sequence=sequence, values=[b"idle"],
        )  # fmt: skip
        name = struct.pack(">h", len(TOPIC)) + TOPIC.encode()
        body = struct.pack(">hhii", -1, -1, 30_000, 1) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
        with Wire(port) as wire:
            answer = wire.ask(_PRODUCE, 7, body, flexible=False)
        error, offset = struct.unpack_from(">hq", answer, 4 + len(name) + 8)
        return KafkaError(error), offset


def new_producer_id(port: int) -> int:
    """Return the id that a new idempotent producer gets."""
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    found: list[int] = []

    def is_given() -> bool:
        with Wire(port) as wire:
            answer = read_body(
                InitProducerIdResponse, wire.ask(INIT_PRODUCER_ID, 1, write_body(request, 1), flexible=False), 1
            )
        found.append(answer.producer_id)
        return answer.error_code == KafkaError.NONE

    eventually(is_given, "no producer id is given")
    return found[-1]


def read_all(broker: Broker, ends: dict[int, int]) -> dict[str, str]:
    """Return what consumers of both isolation levels read of each partition below its end."""
    return {
        f"{partition} {level}": broker.drive("read", TOPIC, partition, level, end)
        for partition, end in ends.items()
        for level in LEVELS
    }


def end_of(broker: Broker, partition: int, level: str) -> int:
    """Return the end that a consumer of this isolation level sees."""
    return int(re.findall(r"end (\d+)", broker.drive("read", TOPIC, partition, level))[0])


def producer_ids(log_dir: Path) -> Iterator[int]:
    """Yield the producer id of every batch of the topic."""
    for log in log_dir.glob(f"{TOPIC}-*/*.log"):
        data, position = log.read_bytes(), 0
        while position + HEADER.size <= len(data):
            header = read_header(data, position)
            yield header.producer_id
            position += LOG_OVERHEAD + header.batch_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What was said of a cluster that is about to start."""

    ends: dict[int, int]
    """Log end of each partition."""
    open_at: list[tuple[int, int]]
    """Partition and first offset of each transaction that is open there."""
    aborts: list[str]
    """The arguments of the commands that were named to end them."""
    next_producer_id: int


def begin(command: Resnap, cluster: list[Broker], store: Path, root: Path) -> Begun:
    """Restore all into the log dirs of a cluster: of one broker as the runbook says it, of more in one command."""
    first, *others = cluster
    restore = ["restore", store.as_uri(), "--new-cluster", first.log_dirs[0], "--output", "json"]
    for broker in cluster:
        restore += ["--into", broker.log_dirs[0]]
    for broker in cluster:
        broker.root.mkdir()
    for broker in others:
        broker.format()
    paths = {"/var/lib/kafka/data": first.log_dirs[0], "s3://bucket/tiered": store.as_uri(),
             "/var/tmp/offsets": root / "offsets"}  # noqa: S108  # fmt: skip
    operator = Operator(root, paths, {"kafka-storage.sh": lambda _: first.format()})
    operator.follow(DISASTER, FORMAT)
    planned = command(*restore, "--dry-run")
    assert planned.code == 0, planned.err
    if others:
        assert command(*restore).code == 0
    else:
        operator.follow(DISASTER, RESTORE)
    again = command(*restore)
    assert (again.code, again.document["summary"]["alreadyThere"]) == (0, 2 * len(cluster)), again.err
    rows = [row for row in again.document["partitions"] if row["logDir"] == str(first.log_dirs[0])]
    return Begun(
        ends={row["partition"]: row["endOffset"] for row in rows},
        open_at=[(row["partition"], one["firstOffset"]) for row in rows for one in row["openTransactions"]],
        aborts=sorted(set(re.findall(r"kafka-transactions\.sh (\S+ \S+ abort .*?) \(", again.err))),
        next_producer_id=again.document["summary"]["newCluster"]["nextProducerId"],
    )


def end_transactions(broker: Broker, aborts: list[str]) -> None:
    for one in aborts:
        broker.release.run(ABORT, *one.replace("HOST:PORT", broker.address).split())


def in_sync(broker: Broker) -> set[int]:
    """Return how many replicas are in sync, of all partitions."""
    return {len(partition.isr) for partition in load_image(broker.log_dirs[0]).topics[TOPIC].partitions}


def config(image: MetadataImage) -> Mapping[str, str]:
    return image.configs[ConfigResource(ResourceType.TOPIC, TOPIC)]


@pytest.mark.parametrize(
    "shape",
    [("3.9.1", 1), ("4.4.0", 2), pytest.param(("3.9.1", 2), marks=pytest.mark.heavy)],
    ids=str,
)
def test_producers_and_consumers_go_on_with_a_cluster_that_a_store_gave(
    command: Resnap, release: Callable[[str], Release], fixture_set: Callable[[str], FixtureSet], tmp_path: Path,
    shape: tuple[str, int],
) -> None:  # fmt: skip
    version, brokers = shape
    store, data = tmp_path / "store", copied(fixture_set(f"kafka-{version}-kraft").data, tmp_path / "old" / "data")
    old = Broker(release(version), [data])
    with old.running():
        while (stable := end_of(old, 0, "read_committed")) < end_of(
            old, 0, "read_uncommitted"
        ):  # or nothing is shipped
            hanging = f"--bootstrap-server HOST:PORT abort --topic {TOPIC} --partition 0 --start-offset {stable}"
            end_transactions(old, [hanging])
        idle = IdleProducer(old.port)
        sent = [idle.send([old], sequence) for sequence in range(3)]
        assert {error for error, _ in sent} == {KafkaError.NONE}
        old.drive("append", TOPIC, 0, 60)
        tier = ("tier", data, "--topic", TOPIC, "--to", store.as_uri(), "--as-of", "roll", "--engine", "local")
        assert command(*tier, "--bootstrap-server", old.address).code == 0

    first = Broker(release(version), [tmp_path / "new-1" / "data"], cluster_id=NEW_CLUSTER)
    cluster = [first, *(
        Broker(release(version), [tmp_path / f"new-{node}" / "data"], node=node, joins=first, cluster_id=NEW_CLUSTER)
        for node in range(2, brokers + 1)
    )]  # fmt: skip
    begun = begin(command, cluster, store, tmp_path)
    ends = begun.ends
    assert max(offset for _, offset in sent) < ends[0], "the idle producer's records were not shipped"
    assert len(begun.aborts) == len(begun.open_at)
    highest = max(producer_ids(first.log_dirs[0]))
    assert begun.next_producer_id > highest

    with ExitStack() as running:
        for broker in cluster:
            broker.start()
            running.callback(broker.stop)
        for broker in cluster:
            broker.await_start()
        end_transactions(first, begun.aborts)
        found = read_all(first, ends)
        assert idle.send(cluster, 2) == sent[2], "a duplicate is not answered as the first one was"
        assert idle.send(cluster, 7)[0] == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        markers = sum(partition == 0 for partition, _ in begun.open_at)
        assert idle.send(cluster, 3) == (KafkaError.NONE, ends[0] + markers)
        assert new_producer_id(first.port) >= begun.next_producer_id > highest
        for partition in ends:
            first.drive("append", TOPIC, partition, 8)
        eventually(lambda: in_sync(first) == {brokers}, "the replicas do not come in sync")
    complaints = [one for broker in cluster for one in broker.complaints()]
    assert [one for one in complaints if not any(expected in one for expected in EXPECTED)] == []
    assert not [path for broker in cluster for path in broker.log_dirs[0].glob("*-stray")]
    with old.running():
        expected = read_all(old, ends)
    ended_otherwise = {f"{partition} read_committed" for partition, _ in begun.open_at}
    assert ended_otherwise or version != "3.9.1", "no transaction was open at the end of what was shipped"
    assert {what for what in found if found[what] != expected[what]} <= ended_otherwise
    theirs, ours = load_image(data), load_image(first.log_dirs[0])
    assert ours.topics[TOPIC].topic_id == theirs.topics[TOPIC].topic_id
    assert config(ours) == config(theirs) != {}


def test_a_running_cluster_that_would_give_restored_producer_ids_to_others_is_named(
    command: Resnap, release: Callable[[str], Release], fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    store, data = tmp_path / "store", fixture_set("kafka-3.9.1-kraft").data
    tier = ("tier", data, "--topic", TOPIC, "--to", store.as_uri(), "--as-of", "roll", "--engine", "local")
    assert command(*tier).code == 0
    (tmp_path / "disk").mkdir()
    (tmp_path / "broker").mkdir()
    with Broker(release("3.9.1"), [tmp_path / "broker" / "data"]).running() as broker:
        cluster = ("--bootstrap-server", broker.address)
        ran = command("restore", store.as_uri(), "--into", tmp_path / "disk" / "restored", *cluster)
    assert (ran.code, "the next producer id of the cluster is 0, and what was restored" in ran.err) == (0, True), (
        ran.err
    )
