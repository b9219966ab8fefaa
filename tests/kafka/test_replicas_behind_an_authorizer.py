"""A user who may describe topics and not read them: replicas are not known to him, and by no means in order."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from tests.kafka.brokers import Broker, free_port
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
    client = tmp_path / "client.properties"
    client.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} username="alice" password="secret";\n'
    )

    def allow(operation: str) -> None:
        release("3.9.1").tool(
            "kafka.admin.AclCommand", "--bootstrap-server", first.address, "--add", "--allow-principal", "User:alice",
            "--operation", operation, "--topic", TOPIC,
        )  # fmt: skip

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
