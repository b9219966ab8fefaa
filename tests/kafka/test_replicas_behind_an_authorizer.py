"""A user who may not describe or read all topics: what of them is not known to him is by no means in order."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from tests.kafka.brokers import SMALL, Broker, free_port, tiering
from tests.kafka.lost_state import QUICK

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Ran, Resnap

pytestmark = pytest.mark.kafka
TOPIC: Final = "payments"
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
GUARDED: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # the brokers, and the test's own client
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} user_alice="secret";',
}


def client_properties(folder: Path) -> Path:
    """Write what alice logs in with."""
    client = folder / "client.properties"
    client.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} username="alice" password="secret";\n'
    )
    return client


def grant(release: Callable[[str], Release], broker: Broker, operation: str, *resource: str) -> None:
    """Let alice do ``operation`` on a resource."""
    release("3.9.1").tool(
        "kafka.admin.AclCommand", "--bootstrap-server", broker.address, "--add", "--allow-principal", "User:alice",
        "--operation", operation, *resource,
    )  # fmt: skip


@pytest.mark.parametrize("version", [pytest.param("3.9.1", marks=pytest.mark.heavy), "4.4.0"])
def test_replicas_that_the_authorizer_does_not_let_us_ask_are_not_known(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    ports = [free_port(), free_port()]
    for node in (1, 2):
        (tmp_path / str(node)).mkdir()
    one, two = ({"secure": {"SASL_PLAINTEXT": port}} for port in ports)
    first = Broker(release(version), [tmp_path / "1" / "data"], QUICK | GUARDED, **one)
    second = Broker(release(version), [tmp_path / "2" / "data"], QUICK | GUARDED, node=2, joins=first, **two)
    client = client_properties(tmp_path)

    def allow(operation: str) -> None:
        grant(release, first, operation, "--topic", TOPIC)

    def replicas(*topic: str) -> Ran:
        server = f"127.0.0.1:{ports[0]}"
        return command("replicas", "--bootstrap-server", server, "--command-config", client, *topic, "--output", "json")

    with ExitStack() as stack:
        stack.enter_context(first.running())
        stack.enter_context(second.running())
        first.drive("assign", TOPIC, "1,2")
        first.drive("append", TOPIC, 0, 3)
        for topic in ((), ("--topic", TOPIC)):
            unseen = replicas(*topic)
            assert unseen.code == 2, unseen.out
            assert "may describe" in unseen.error["hint"]

        allow("Describe")
        refused = replicas()
        assert refused.code == 16, (refused.out, refused.err)
        assert {(replica["brokerId"], replica["state"]) for replica in refused.document["replicas"]} == {
            (1, "unknown"), (2, "unknown"),
        }  # fmt: skip
        assert "TOPIC_AUTHORIZATION_FAILED" in refused.error["message"]
        assert "may read the topic" in refused.error["hint"]

        allow("Read")
        assert replicas().code == 0

        dies = threading.Timer(0.3, second.kill)  # while it is asked, or right before
        dies.start()
        replicas()
        dies.join()
        for _ in range(3):
            ran = replicas()
            (found,) = ran.document["replicas"]
            assert (found["brokerId"], found["state"], ran.code) in {(2, "unknown", 16), (2, "lagging", 0)}, ran.err


def test_nothing_is_made_or_kept_of_topics_that_the_user_may_not_describe(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    port, data, store = free_port(), tmp_path / "data", tmp_path / "store"
    (tmp_path / "remote").mkdir()
    settings = tiering(tmp_path / "remote") | GUARDED
    broker = Broker(release("4.4.0"), [data], settings, secure={"SASL_PLAINTEXT": port})
    reached = ("--bootstrap-server", f"127.0.0.1:{port}", "--command-config", client_properties(tmp_path))

    def asked(*arguments: object) -> Ran:
        return command(*arguments, *reached, "--output", "json")

    def tier() -> Ran:
        return asked("tier", data, "--to", store.as_uri(), "--engine", "local")

    with broker.running():
        for topic in (TOPIC, "hidden"):
            broker.drive("create", topic, 1, *SMALL["4.4.0"])
            broker.drive("append", topic, 0, 20)
        for operation in ("Describe", "DescribeConfigs"):
            grant(release, broker, operation, "--cluster")
        grant(release, broker, "Describe", "--topic", TOPIC)  # and not its settings

        checked = asked("check", data)
        assert {topic["topic"]: topic["verdict"] for topic in checked.document["topics"]} == {
            TOPIC: "unknown", "hidden": "unknown",
        }  # fmt: skip
        assert "DescribeConfigs" in checked.error["hint"]
        refused = tier()
        assert (refused.code, refused.document["summary"]["shipped"]) == (3, 0), refused.err
        exported = asked("export-cluster", "--to", store.as_uri())
        assert (exported.code, "may not describe" in exported.error["message"]) == (16, True), exported.err
        assert not list(store.rglob("*-cluster.json"))
        replicas = asked("replicas").document["replicas"]
        assert ("hidden", "unknown") in {(replica["topic"], replica["state"]) for replica in replicas}
        assert "__remote_log_metadata: the cluster does not describe" in asked("remote", "status").error["message"]

        grant(release, broker, "DescribeConfigs", "--topic", TOPIC)
        shipped = tier()
        assert {one["topic"] for one in shipped.document["partitions"] if one["shipped"]} == {TOPIC}
        for operation in ("Describe", "DescribeConfigs"):
            grant(release, broker, operation, "--topic", "*")
        assert (tier().code, asked("export-cluster", "--to", store.as_uri()).code) == (0, 0)
