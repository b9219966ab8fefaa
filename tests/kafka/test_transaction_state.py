"""``__transaction_state`` of real brokers, and who holds the transactions that stay open."""

from __future__ import annotations

import json
import random
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.storage.log.internal_topic import partitions_of, read_partition
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.record_batch import read_header
from resnap.tiering.controller.metadata.folding import load_image
from resnap.tiering.controller.transactions.metadata import TransactionState
from resnap.tiering.controller.transactions.state_log import (
    TRANSACTION_TOPIC,
    PartitionsSchema,
    TransactionLogValue,
    decode_record,
    read_transaction_states,
)
from tests.kafka.brokers import Broker, eventually
from tests.kafka.raw_client import RawClient
from tests.kafka.releases import HERE
from tests.kafka.test_cluster_from_a_bucket import IdleProducer
from tests.logs.transaction_log import encode_record
from tests.scheduler.files import batch_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

VERSIONS: Final = ("3.9.1", "4.4.0")
TOPIC: Final = "payments"


def judged(release: Release, file: Path, records: Iterable[tuple[bytes, bytes]]) -> list[list[str]]:
    """Return what Kafka's classes make of each record: key and value as JSON, and the value written again."""
    file.write_text("".join(f"{key.hex()} {value.hex()}\n" for key, value in records))
    lines = release.run(HERE / "TransactionState.java", file).splitlines()
    return [lines[start : start + 3] for start in range(0, len(lines), 3)]


def drawn(rng: random.Random, version: int, line: tuple[int, int]) -> TransactionLogValue:
    """Return any value that ``version`` can hold, as releases of ``line`` know it."""
    topics = tuple(
        PartitionsSchema(topic=f"t{number}é", partition_ids=tuple(range(rng.randrange(4))))
        for number in range(rng.randrange(3))
    )
    tagged = {"previous_producer_id": rng.choice((-1, 7)), "next_producer_id": rng.choice((-1, 8))}
    tagged["client_transaction_version"] = rng.randrange(3)
    if line > (4, 1):
        tagged["next_producer_epoch"] = rng.choice((-1, 9))
    return TransactionLogValue(
        producer_id=rng.randrange(1 << 62),
        producer_epoch=rng.randrange(1 << 15),
        transaction_timeout_ms=rng.randrange(1 << 31),
        transaction_status=rng.randrange(8),
        transaction_partitions=rng.choice((None, topics)),
        transaction_last_update_timestamp_ms=rng.randrange(1 << 50),
        transaction_start_timestamp_ms=rng.choice((-1, rng.randrange(1 << 50))),
        **(tagged if version and line >= (4, 0) else {}),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_kafkas_own_classes_read_and_write_the_same_bytes(
    release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    rng, kafka = random.Random(version), release(version)
    values = [(f"id {number} ü", drawn(rng, number % 2, kafka.line), number % 2) for number in range(200)]
    records = [encode_record(*value) for value in values]
    assert all(value is not None for _, value in records)
    answers = judged(kafka, tmp_path / "records", [(key, value or b"") for key, value in records])
    for (name, value, number), (key, data), (key_json, value_json, again) in zip(values, records, answers, strict=True):
        decoded = decode_record(key, data)
        assert (decoded.transactional_id, decoded.value, decoded.version) == (name, value, number)
        assert json.loads(key_json) == {"transactionalId": name}
        assert decoded.json() == json.loads(value_json)
        assert data == bytes.fromhex(again)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_broker_wrote_is_read_as_its_own_classes_read_it(
    release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    kafka = release(version)
    data = tmp_path / "data"
    broker = Broker(kafka, [data], {"transaction.state.log.num.partitions": 3})
    first, second = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
    with broker.running():
        broker.drive("create", TOPIC, 2)
        broker.drive("append", TOPIC, 1, 5)
        clients = [RawClient(broker.port, f"client {number}") for number in range(6)]
        for client in clients:
            client.add(first)
        clients[0].add(second)
    records = [
        (bytes(one.record.key or b""), bytes(one.record.value or b""))
        for partition in partitions_of(TRANSACTION_TOPIC, [load_log_dir(data)]).values()
        for one in read_partition(partition)
    ]
    for (key, value), (key_json, value_json, again) in zip(
        records, judged(kafka, tmp_path / "records", records), strict=True
    ):
        decoded = decode_record(key, value)
        assert {"transactionalId": decoded.transactional_id} == json.loads(key_json)
        assert decoded.json() == json.loads(value_json)
        assert again == value.hex()
        assert encode_record(decoded.transactional_id or "", decoded.value, decoded.version or 0) == (key, value)
    states = read_transaction_states([data])
    assert states.transactions.keys() == {"appender", *(f"client {number}" for number in range(6))}
    holder = states.by_producer_id()[clients[0].producer_id]
    assert (holder.transactional_id, holder.state) == ("client 0", TransactionState.ONGOING)
    assert holder.partitions == {first, second}
    assert states.transactions["appender"].state in {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}


@pytest.mark.parametrize("version", [pytest.param("3.9.1", marks=pytest.mark.heavy), "4.4.0"])
def test_who_holds_a_hanging_transaction_is_named_and_the_command_as_printed_ends_it(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    data = tmp_path / "data"
    broker = Broker(release(version), [data], {"transaction.partition.verification.enable": "false"})
    hung, going_on = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
    with broker.running():
        broker.drive("create", TOPIC, 2)
        unknown, known = RawClient(broker.port, "ledger"), RawClient(broker.port, "audit")
        unknown.produce(hung)  # which is never reported to its coordinator
        known.add(going_on)
        known.produce(going_on)
        live = ("--bootstrap-server", broker.address)

        def explained(place: Path, partition: TopicPartition, *more: object) -> dict[str, Any]:
            ran = command("explain", place, partition, 1, *more, "--output", "json")
            assert ran.code == 0, ran.err
            (row,) = [row for row in ran.document["batches"] if row["role"] == "transaction-start"]
            return dict(row)

        for asked in ((), live):
            row = explained(data, going_on, *asked)
            assert (row["transactionalId"], row["openTransaction"]["hanging"]) == ("audit", False)
            assert (row["openTransaction"]["state"], row["openTransaction"]["abortCommand"]) == ("Ongoing", None)
            row = explained(data, hung, *asked)
            assert (row["transactionalId"], row["openTransaction"]["hanging"]) == ("ledger", True)
            assert row["openTransaction"]["since"] == row["timestamp"]
        said = command("explain", data, hung, 1, *live).out
        assert "It hangs, and was not committed: transactional id 'ledger', which held it, is Empty" in said
        copy = tmp_path / "copy"
        shutil.copytree(data, copy)
        (typed,) = re.findall(r"kafka-transactions\.sh (\S+ \S+ abort [^(]*) \(", said)
        assert typed in row["openTransaction"]["abortCommand"]
        release("3.9.1").script("org.apache.kafka.tools.TransactionsCommand", *typed.split())
        eventually(lambda: "openTransaction" not in explained(data, hung), "the transaction is open still")
        assert "openTransaction" in explained(copy, hung)
        assert "openTransaction" not in explained(copy, hung, *live)


def test_a_replica_without_a_commit_marker_is_repaired_as_explain_says_and_no_record_is_lost(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    kafka, partition = release("3.9.1"), TopicPartition(TOPIC, 0)
    both = {"transaction.state.log.replication.factor": 2, "transaction.state.log.num.partitions": 1}
    good = Broker(kafka, [tmp_path / "good" / "data"], both)
    bad = Broker(kafka, [tmp_path / "bad" / "data"], both, node=2, joins=good)
    for broker in (good, bad):
        broker.root.mkdir()
    path = bad.log_dirs[0] / str(partition) / f"{0:020d}.log"

    def leads() -> bool:
        """Return whether the replica that lacks the marker, or has lacked it, leads; let it, if it may already."""
        if load_image(good.log_dirs[0]).topics[TOPIC].partitions[0].leader == bad.node:
            return True
        with suppress(AssertionError):  # it is not in sync yet
            good.drive("elect", TOPIC, 0)
        return False

    def is_copied() -> bool:
        return path.exists() and path.read_bytes() == (good.log_dirs[0] / str(partition) / path.name).read_bytes()

    with good.running():
        with bad.running():
            good.drive("assign", TOPIC, "2,1")
            good.drive("append", TOPIC, 0, 1)
            IdleProducer(good.port).send([good, bad], 0)
            eventually(is_copied, "the replicas are not equal")
            everything = good.drive("read", TOPIC, 0)
        log, (*_, marker, last) = path.read_bytes(), batch_positions(path)
        assert read_header(log, marker).is_control
        path.write_bytes(log[:marker] + log[last:])
        for other in (one for one in path.parent.iterdir() if one.suffix in {".index", ".timeindex", ".snapshot"}):
            other.unlink()
        with bad.running():
            eventually(leads, "the leader is another one")
            assert "records 0" in good.drive("read", TOPIC, 0)
            for asked in ((), ("--bootstrap-server", good.address)):
                end = read_header(log, last).last_offset + 1
                explained = command("explain", bad.log_dirs[0], partition, end, *asked)
                assert ("It is committed, and its marker is missing here" in explained.out, " abort --topic" in
                        explained.out) == (True, False), explained.out  # fmt: skip
            (asked,) = re.findall(r"kafka-transactions\.sh (\S+ \S+ describe-producers .*?) for each", explained.out)
            shown = {
                node: kafka.script("org.apache.kafka.tools.TransactionsCommand", *asked.replace("N", node).split())
                for node in "12"
            }
            start = re.compile(r"^\d+\s+\d+\s+-?\d+\s+\d+\s+\d+\s+0\s*$", re.MULTILINE)
            assert {node: bool(start.search(text)) for node, text in shown.items()} == {"1": False, "2": True}, shown
        shutil.move(path.parent, tmp_path / "aside")
        with bad.running():
            eventually(is_copied, "the directory does not come back")
            eventually(leads, "the leader is another one")
            assert good.drive("read", TOPIC, 0) == everything
