"""Whether `resnap check` is right: what it says of each topic before tiering is on, a real broker does afterwards."""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Any, Final

import kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from resnap.storage.log.record import write_data_batch
from tests.kafka.brokers import SMALL, Broker, eventually, tiering
from tests.kafka.releases import PATIENCE_S
from tests.kafka.wire import Wire
from tests.scheduler.files import bases, batch_positions, file_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

VERSION: Final = "3.9.1"
MAX_TIMEOUT_MS: Final = 10_000
BATCHES: Final = 60
STOPPED: Final = {
    "no-snapshot": "missing-snapshot",
    "no-epochs": "leader-epochs-unknown",
    "late-epochs": "leader-epochs-unknown",
    "hanging": "above-last-stable-offset",
}
"""Topics of which a broker tiers no more than what lies below the blocker."""
UNREADABLE: Final = {
    "odd-index": "index-unusable", "odd-timeindex": "index-unusable", "no-bytes": "damaged", "short-log": "damaged",
    "no-first-log": "damaged", "no-last-log": "damaged", "short-last-log": "damaged", "cut-log": "damaged",
}  # fmt: skip
"""Topics that a broker tiers, and that no consumer can read completely afterwards."""
FORGOTTEN: Final = ("no-first-log", "no-last-log", "short-last-log")
"""Those of which a broker removes what shows the loss when it starts."""
REFUSED: Final = ("compact", "compact,delete")
"""Cleanup policies with which tiering cannot be turned on."""
READY: Final = ("plain", "no-index", "no-timeindex")
WRONG_EPOCHS: Final = {"late-epochs": {"leader-epochs-unknown", "leader-epochs-wrong"}}
"""Its checkpoint names another epoch than the batches above it; a broker that starts forgets that one."""


def produce(port: int, topic: str, sequence: int, *, producer_id: int = 7, timestamp: int, **fields: Any) -> None:
    """Send one batch of one record; a transaction that the coordinator does not know of, where it is transactional."""
    batch = write_data_batch(
        offset=0, timestamps=timestamp, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
        values=[bytes(1_500)], **fields,
    )  # fmt: skip
    name = topic.encode()
    named = struct.pack(">h", len(name)) + name
    body = struct.pack(">h", 1) + b"t" + struct.pack(">hii", -1, 30_000, 1) + named
    with Wire(port) as wire:
        answer = wire.ask(0, 3, body + struct.pack(">iii", 1, 0, len(batch)) + batch, flexible=False)
    assert struct.unpack_from(">h", answer, 4 + len(named) + 8)[0] == 0


def topic_of(policy: str) -> str:
    """Return the name of the topic with a cleanup policy."""
    return policy.replace(",", "-and-")


def fill(broker: Broker, admin: Any) -> None:
    """Create all topics, with six segments each, and leave a transaction open in one of them."""
    settings = dict(one.split("=") for one in SMALL[VERSION])
    names = [*READY, *STOPPED, *UNREADABLE]
    made = [NewTopic(name, 1, 1, topic_configs=settings) for name in names]
    made += [NewTopic(topic_of(one), 1, 1, topic_configs=settings | {"cleanup.policy": one}) for one in REFUSED]
    admin.create_topics(made)
    now_ms = int(time.time() * 1000)
    eventually(lambda: all((broker.log_dirs[0] / f"{one.name}-0").is_dir() for one in made), "a topic is not there")
    for one in made[: len(names)]:
        for sequence in range(BATCHES):
            produce(broker.port, one.name, sequence, timestamp=now_ms)
            if one.name == "hanging" and sequence == BATCHES // 2:
                early = now_ms - 2 * MAX_TIMEOUT_MS
                produce(broker.port, one.name, 0, producer_id=8, timestamp=early, transactional=True)


def damage(data: Path) -> None:
    """Do to each topic what its name says, in its third segment, while no broker runs."""

    def third(topic: str, suffix: str) -> Path:
        return file_at(data / f"{topic}-0", bases(data / f"{topic}-0")[2], suffix)

    third("no-snapshot", "snapshot").unlink()
    (data / "no-epochs-0" / "leader-epoch-checkpoint").unlink()
    late = bases(data / "late-epochs-0")[3]
    (data / "late-epochs-0" / "leader-epoch-checkpoint").write_text(f"0\n1\n5 {late}\n")
    for suffix in ("index", "timeindex"):
        third(f"no-{suffix}", suffix).unlink()
        with third(f"odd-{suffix}", suffix).open("ab") as file:
            file.write(b"odd")
    os.truncate(third("no-bytes", "log"), 0)
    short = third("short-log", "log")
    os.truncate(short, batch_positions(short)[2])
    os.truncate(third("cut-log", "log"), third("cut-log", "log").stat().st_size - 7)
    for name, number in (("no-first-log", 0), ("no-last-log", -1)):
        file_at(data / f"{name}-0", bases(data / f"{name}-0")[number], "log").unlink()
    last = file_at(data / "short-last-log-0", bases(data / "short-last-log-0")[-1], "log")
    os.truncate(last, batch_positions(last)[2])


def configure(admin: Any, topic: str, **settings: str) -> str:
    """Set a topic's settings; return what the broker says against it."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=settings)
    said = str(admin.alter_configs([resource])["topic"][topic])
    return "" if said == "OK" else said


def read(broker: Broker, topic: str, expected: int, *, within_s: int) -> int:
    """Return how many records a consumer gets, at most ``expected``; it gives up when it gets an error."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.address, consumer_timeout_ms=within_s * 1_000, auto_offset_reset="earliest"
    )
    place = kafka.TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    got = 0
    try:
        for got, _ in enumerate(consumer, 1):
            if got == expected:
                break
    except kafka.errors.KafkaError:
        pass
    finally:
        consumer.close()
    return got


def tiered(remote: Path, topic: str) -> list[int]:
    """Return the base offsets of the segments that ``LocalTieredStorage`` holds of a topic."""
    folders = (remote / "kafka-tiered-storage").glob(f"{topic}-0-*")
    return sorted(int(path.name[:20]) for folder in folders for path in folder.glob("*.log"))


def test_what_check_says_of_each_topic_is_what_a_broker_does(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    data, remote = tmp_path / "data", tmp_path / "remote"
    remote.mkdir()
    settings = {"transaction.partition.verification.enable": "false", "transaction.max.timeout.ms": MAX_TIMEOUT_MS}
    broker = Broker(release(VERSION), [data], tiering(remote) | settings)
    with broker.running(), kafka.KafkaAdminClient(bootstrap_servers=broker.address) as admin:
        fill(broker, admin)
    damage(data)

    ran = command("check", data, "--server-properties", broker.settings, "--output", "json")
    assert ran.code == 4, ran.err
    rows = {row["topic"]: row for row in ran.document["topics"]}
    reasons = {name: {blocker["reason"] for blocker in row["blockers"]} for name, row in rows.items()}
    blocked = STOPPED | UNREADABLE | {topic_of(policy): "compacted" for policy in REFUSED}
    one_each = {name: {reason} for name, reason in blocked.items()} | {name: set() for name in READY}
    assert reasons == one_each | WRONG_EPOCHS
    assert {name: row["verdict"] for name, row in rows.items()} == {
        name: "never" if found == {"compacted"} else "blocked" if found else "ready" for name, found in reasons.items()
    }
    closed = {name: bases(data / f"{name}-0")[:-1] for name in rows}
    stops = {name: min((one.get("baseOffset", 0) for one in rows[name]["blockers"]), default=1 << 62) for name in rows}

    with broker.running(), kafka.KafkaAdminClient(bootstrap_servers=broker.address) as admin:
        live = command("check", data, "--bootstrap-server", broker.address, "--server-properties", broker.settings,
                       "--output", "json")  # fmt: skip
        found = {row["topic"]: {blocker["reason"] for blocker in row["blockers"]} for row in live.document["topics"]}
        assert found == one_each | {name: set() for name in FORGOTTEN}
        assert {code for row in live.document["topics"] for code in row["notChecked"]} == {"record-batches"}
        own = dict(one.split("=") for one in SMALL[VERSION])
        on = own | {"remote.storage.enable": "true", "local.retention.bytes": "1000", "retention.ms": "-1"}
        for policy in REFUSED:
            assert "unsupported for the compacted" in configure(
                admin, topic_of(policy), **{"remote.storage.enable": "true"}
            )
        for name in (*READY, *STOPPED, *UNREADABLE):
            assert configure(admin, name, **on) == ""
        expected = {name: [base for base in closed[name] if base < stops[name]] for name in (*READY, *STOPPED)}
        expected |= {name: closed[name] for name in UNREADABLE}
        eventually(lambda: all(tiered(remote, name) == bases for name, bases in expected.items()), "not all is tiered")
        for name in (*READY, *UNREADABLE):
            eventually(lambda name=name: len(bases(data / f"{name}-0")) == 1, f"{name}: local copies stay")
            within_s = 5 if name in UNREADABLE else PATIENCE_S
            assert (read(broker, name, BATCHES, within_s=within_s) < BATCHES) == (name in UNREADABLE), name
        assert {name: tiered(remote, name) for name in STOPPED} == {name: expected[name] for name in STOPPED}
        after = command("check", data, "--topic", "plain", "--topic", "no-snapshot", "--bootstrap-server",
                        broker.address, "--output", "json")  # fmt: skip
        stuck, plain = after.document["topics"]
        assert (plain["verdict"], plain["remoteStorageEnable"], stuck["verdict"]) == ("ready", True, "blocked")
        assert plain["shippedBytes"] == 0, "nothing of it is on this disk any more"


def test_a_broker_with_what_check_says_of_its_settings_does_not_tier(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    for name, reason in (
        ("remote.log.storage.manager.class.name", "plugin-not-set"),
        ("remote.log.metadata.manager.listener.name", "plugin-not-set"),
        ("remote.log.storage.system.enable", "tiering-disabled"),
    ):
        data = tmp_path / name / "data"
        data.mkdir(parents=True)
        settings = tiering(remote)
        del settings[name]
        broker = Broker(release(VERSION), [data], settings)
        broker.start()
        (data / "orders-0").mkdir(exist_ok=True)
        ran = command("check", data, "--server-properties", broker.settings, "--output", "json")
        [found] = [blocker for row in ran.document["topics"] for blocker in row["blockers"]]
        assert (ran.code, found["reason"], found["partition"]) == (4, reason, None)
        assert name in found["detail"]
        (data / "orders-0").rmdir()
        try:
            if "listener" in name:
                said = "Encountered error while initializing topic-based RLMM resources"
                eventually(lambda broker=broker, said=said: said in broker.printed(), "it finds its metadata topic")
                continue
            if reason == "plugin-not-set":
                assert broker.process is not None
                assert broker.process.wait(PATIENCE_S) != 0, name
                assert name in broker.printed()
                continue
            eventually(lambda broker=broker: "started (kafka.server.Kafka" in broker.printed(), "it does not start")
            with kafka.KafkaAdminClient(bootstrap_servers=broker.address) as admin:
                admin.create_topics([NewTopic("orders", 1, 1)])
                said = configure(admin, "orders", **{"remote.storage.enable": "true"})
            assert "remote" in said.lower(), said
            live = command("check", data, "--bootstrap-server", broker.address, "--output", "json")
            assert [blocker["reason"] for blocker in live.document["topics"][0]["blockers"]] == [reason]
        finally:
            broker.stop()
