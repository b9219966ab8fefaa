"""What brokers are asked beside their topics: the producers of each replica, settings, and quotas."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as Place
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest
from kafka.structs import OffsetAndMetadata

from resnap.storage.errors import ClusterError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.client import Cluster
from resnap.tiering.cluster.connecting import client_settings
from resnap.tiering.cluster.replica_comparison import ReplicaProducers, describe_producers
from tests.kafka.brokers import SMALL, Broker, eventually, free_port, tiering, zookeeper
from tests.kafka.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

TOPIC: Final = "payments"
EXPIRATION: Final = "producer.id.expiration.ms"
HEAVY: Final = [pytest.param(version, marks=pytest.mark.heavy) for version in ("2.7.2", "3.8.1")]
FROM_FIRST: Final = "broker 1 of the running cluster: server-properties"


@pytest.mark.parametrize("version", ["3.9.1", "4.4.0"])
def test_a_broker_says_which_producers_each_of_its_replicas_has(
    release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    broker = Broker(release(version), [tmp_path / "data"])
    open_in, ended, missing = (TopicPartition(TOPIC, number) for number in range(3))
    with broker.running():
        broker.drive("create", TOPIC, 2)
        broker.drive("append", TOPIC, 1, 3)
        client = RawClient(broker.port, "open one")
        client.add(open_in)
        client.produce(open_in)
        client.produce(open_in, sequence=1)
        with Cluster(broker.address, {}) as cluster:
            found = describe_producers(cluster, 1, [open_in, ended, missing])
            with pytest.raises(ClusterError, match="cannot describe the producers of broker 7"):
                describe_producers(cluster, 7, [ended])
            assert describe_producers(cluster, 1, []) == {}
    (one,), (other,) = found[open_in].producers, found[ended].producers
    assert one[:3] == (client.producer_id, client.producer_epoch, 1)
    assert one[4:] == (-1, 0)
    epoch_begun_by_marker = release(version).line >= (4, 0)
    assert other.last_sequence == (-1 if epoch_begun_by_marker else 14)
    assert (other.coordinator_epoch, other.current_transaction_start_offset) == (0, None)
    assert other.last_timestamp > 0
    assert found[missing] == ReplicaProducers(error="UNKNOWN_TOPIC_OR_PARTITION")


def test_a_broker_too_old_to_be_asked_is_reported_and_files_are_used(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    with zookeeper(release("2.7.2"), tmp_path / "zookeeper") as address:
        broker = Broker(release("2.7.2"), [tmp_path / "data"], zookeeper=address)
        with broker.running():
            with Cluster(broker.address, {}) as cluster, pytest.raises(ClusterError) as caught:
                describe_producers(cluster, 1, [TopicPartition(TOPIC, 0)])
            found, _ = settings_of(command, "--bootstrap-server", broker.address)
            broker.drive("create", TOPIC, 1)
            broker.drive("append", TOPIC, 0, 1)
            live = ("--bootstrap-server", broker.address, "--output", "json")
            explained = command("explain", tmp_path / "data", f"{TOPIC}-0", 1, *live)
    assert (explained.code, explained.document["batches"][0]["transactionalId"]) == (0, "appender")
    assert "the cluster does not say who holds transactions: cannot describe transactions" in explained.err
    assert found[EXPIRATION] == (
        604_800_000,
        "broker 1 of the running cluster: brokers before 3.4 use transactional.id.expiration.ms, default",
    )
    assert "broker does not support the 'DescribeProducersRequest" in str(caught.value)
    assert caught.value.hint.startswith("brokers of this release do not know the request")


@pytest.mark.parametrize("version", [*HEAVY, "3.6.2"])
def test_clusters_of_older_releases_answer_every_command_that_asks_them(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    older, store = release(version), tmp_path / "store"
    (tmp_path / "remote").mkdir()
    with nullcontext(None) if older.line >= (3, 6) else zookeeper(older, tmp_path / "zookeeper") as address:
        settings = tiering(tmp_path / "remote") if older.line >= (3, 6) else {}
        broker = Broker(older, [tmp_path / "data"], settings, zookeeper=address)
        with broker.running():
            broker.drive("create", TOPIC, 1, "segment.bytes=16384", "index.interval.bytes=1024")
            broker.drive("append", TOPIC, 0, 40)
            for group in ("billing", "reports"):
                commit(broker, group, offset=5)
            live = ("--bootstrap-server", broker.address, "--output", "json")
            (scanned,) = command("scan", broker.log_dirs[0] / f"{TOPIC}-0", *live).document["partitions"]
            checked = command("check", broker.log_dirs[0], *live).document
            compared = command("replicas", *live)
            shipped = command("tier", broker.log_dirs[0], "--to", store.as_uri(), "--engine", "local", *live)
            exported = command("export-cluster", "--to", store.as_uri(), *live)
            status = command("remote", "status", "--store", store.as_uri(), *live)
    assert scanned["live"]["leader"] == 1
    assert [topic["topic"] for topic in checked["topics"]] == [TOPIC]
    assert (compared.code, shipped.code, exported.code) == (0, 0, 0)
    assert shipped.document["summary"]["shipped"] > 2
    assert (status.code, "no topic __remote_log_metadata" in status.err) == ((0, False) if settings else (2, True))
    assert (exported.document["groups"], exported.document["offsets"]) == (2, 2)


def test_a_broker_that_cannot_be_reached_hides_nothing_of_the_others(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    ports, closed, small = (free_port(), free_port()), free_port(), SMALL["4.4.0"]
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings: dict[str, object] = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_alice="secret";',
    }
    for node in ("1", "2"):
        (tmp_path / node).mkdir()
    kafka, elsewhere = release("4.4.0"), dict(settings)
    first = Broker(kafka, [tmp_path / "1" / "data"], settings, secure={"SASL_PLAINTEXT": ports[0]})
    second = Broker(
        kafka, [tmp_path / "2" / "data"], elsewhere, secure={"SASL_PLAINTEXT": ports[1]}, node=2, joins=first
    )
    # Brokers reach each other; clients are sent to a port where nobody listens.
    elsewhere["advertised.listeners"] = f"PLAINTEXT://{second.address},SASL_PLAINTEXT://127.0.0.1:{closed}"
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{login} username="alice" password="secret";',
    }
    client = tmp_path / "client.properties"
    client.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    live = ("--bootstrap-server", f"127.0.0.1:{ports[0]}", "--command-config", client, "--output", "json")
    store = (tmp_path / "store").as_uri()
    with first.running(), second.running():
        for topic, replicas in (("here", "1,2"), ("elsewhere", "2,1")):
            first.drive("assign", topic, replicas, *small)
            first.drive("append", topic, 0, 40)
        with Cluster(f"127.0.0.1:{ports[0]}", client_settings(properties)) as cluster:
            facts = cluster.facts({"here", "elsewhere"}.__contains__)
        shipped = command("tier", first.log_dirs[0], "--to", store, "--engine", "local", *live)
        checked = command("check", first.log_dirs[0], *live).document
    known = {name: topic.partitions[0] for name, topic in facts.topics.items()}
    assert {name: (of.leader, of.high_watermark is None) for name, of in known.items()} == {
        "here": (1, False), "elsewhere": (2, True),
    }  # fmt: skip
    assert {broker: f"127.0.0.1:{closed}" in why for broker, why in facts.silent.items()} == {2: True}
    assert shipped.code == 0, shipped.err
    assert "here" in {one["topic"] for one in shipped.document["partitions"] if one["shipped"]}
    assert {topic["topic"]: "last-stable-offset" in topic["notChecked"] for topic in checked["topics"]} == {
        "here": False, "elsewhere": True,
    }  # fmt: skip


def commit(broker: Broker, group: str, *, offset: int) -> None:
    """Commit an offset of the topic's first partition for a group."""
    place = Place(TOPIC, 0)
    consumer = KafkaConsumer(group_id=group, bootstrap_servers=broker.address, enable_auto_commit=False)
    consumer.assign([place])
    consumer.commit({place: OffsetAndMetadata(offset, "", -1)})
    consumer.close()


def settings_of(command: Resnap, *arguments: object) -> tuple[dict[str, tuple[Any, str]], str]:
    """Return value and origin of each setting as ``config show`` has them, and what was said on standard error."""
    ran = command("config", "show", *arguments, "--output", "json")
    assert ran.code == 0, ran.err
    return {setting["name"]: (setting["value"], setting["origin"]) for setting in ran.document["settings"]}, ran.err


def made_by(monkeypatch: pytest.MonkeyPatch) -> list[KafkaAdminClient]:
    """Return the connections to clusters that are made from now on."""
    made: list[KafkaAdminClient] = []

    class Noted(KafkaAdminClient):  # type: ignore[misc] # the library has no types
        def __init__(self, **config: Any) -> None:
            made.append(self)
            super().__init__(**config)

    monkeypatch.setattr("kafka.KafkaAdminClient", Noted)
    return made


def test_brokers_on_zookeeper_report_their_setting_and_of_two_that_differ_the_longest_counts(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = release("3.9.1")
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    with zookeeper(release("2.7.2"), tmp_path / "zookeeper") as address:
        first = Broker(kafka, [tmp_path / "1" / "data"], {EXPIRATION: 7_200_000}, zookeeper=address)
        second = Broker(kafka, [tmp_path / "2" / "data"], {"broker.id": 2, EXPIRATION: 60_000}, zookeeper=address)
        with first.running():
            live = ("--bootstrap-server", first.address)
            first.drive("create", TOPIC, 1)
            connections = made_by(monkeypatch)
            planned = command("plan", first.log_dirs[0], *live, "--output", "json")
            assert len(connections) == 1, "what the settings were learned by serves for the rest"
            assert command("check", first.log_dirs[0], *live).code == 4
            assert len(connections) == 2
            assert planned.document["producerIdExpirationMs"] == 7_200_000
            assert planned.document["producerIdExpirationFrom"] == FROM_FIRST
            assert "is not known" not in planned.err
            given = command("plan", first.log_dirs[0], *live, "--producer-id-expiration-ms", 1000)
            assert f"1000 (flag --producer-id-expiration-ms), but the brokers use 7200000 ({FROM_FIRST})" in given.err
            with second.running():
                found, said = settings_of(command, *live)
    assert found[EXPIRATION] == (7_200_000, FROM_FIRST)
    assert found["transaction.max.timeout.ms"] == (900_000, "broker 1 of the running cluster: default")
    assert f"brokers differ in {EXPIRATION} (7200000 on broker 1, 60000 on broker 2): the longest is used" in said


def test_what_is_set_at_run_time_counts_and_a_refusal_is_said(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    broker = Broker(release("4.4.0"), [tmp_path / "data"], authorizer)
    with broker.running():
        live = ("--bootstrap-server", broker.address)
        broker.drive("broker", "-", EXPIRATION, 5_000_000)
        with Cluster(broker.address, {}) as cluster:
            entry = AlterClientQuotasRequest.EntryData(
                entity=[AlterClientQuotasRequest.EntryData.EntityData(entity_type="user", entity_name="alice")],
                ops=[AlterClientQuotasRequest.EntryData.OpData(key="producer_byte_rate", value=1024.0, remove=False)],
            )
            cluster.ask("no quota", AlterClientQuotasRequest(entries=[entry], validate_only=False))
        found, _ = settings_of(command, *live)
        assert found[EXPIRATION] == (5_000_000, "broker 1 of the running cluster: dynamic-default")
        (quota,) = command("quota", "describe", *live, "--output", "json").document["quotas"]
        assert (quota["entity"], quota["key"], quota["value"], quota["origin"]) == (
            {"user": "alice"}, "producer_byte_rate", 1024, "running cluster",
        )  # fmt: skip

        admin = KafkaAdminClient(bootstrap_servers=[broker.address])
        for operation, permission in (("ALL", "ALLOW"), ("DESCRIBE_CONFIGS", "DENY")):
            rule = (ACLOperation[operation], ACLPermissionType[permission])
            here = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
            admin.create_acls([ACL("User:ANONYMOUS", "*", *rule, here)])
        admin.close()
        eventually(lambda: "does not report" in settings_of(command, *live)[1], "nothing is refused")
        found, said = settings_of(command, *live)
        assert found[EXPIRATION] == (None, "default")
        assert (
            "broker 1 does not report its settings: CLUSTER_AUTHORIZATION_FAILED; grant the user DescribeConfigs"
            in said
        )
        refused = command("quota", "describe", *live)
        assert (refused.code, "CLUSTER_AUTHORIZATION_FAILED" in refused.err) == (16, True)
