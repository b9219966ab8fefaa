"""A cluster behind TLS and SCRAM, reached by ``--command-config`` in the names of Kafka's own tools."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from tests.kafka.brokers import SMALL, Broker, free_port, tiering

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

VERSION: Final = "4.4.0"
TOPIC: Final = "payments"
PASSWORD: Final = "changeit"
USER: Final = ("alice", 'a "b" \\c')
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What a broker and its clients know each other by, made with the JDK's own tool."""

    folder: Path

    def keytool(self, *arguments: object) -> str:
        line = ["keytool", *map(str, arguments), "-storepass", PASSWORD]
        return subprocess.run(line, check=True, capture_output=True, text=True, cwd=self.folder).stdout

    def make(self, name: str) -> None:
        """Make a key with a certificate of its own, and a trust store that holds the certificate."""
        self.keytool("-genkeypair", "-alias", name, "-keyalg", "EC", "-dname", f"CN={name}", "-ext",
                     "san=ip:127.0.0.1", "-keystore", f"{name}.p12", "-storetype", "PKCS12")  # fmt: skip
        self.keytool("-exportcert", "-alias", name, "-keystore", f"{name}.p12", "-rfc", "-file", f"{name}.crt")
        self.keytool("-importcert", "-noprompt", "-alias", name, "-file", f"{name}.crt", "-keystore",
                     f"{name}-trust.jks", "-storetype", "JKS")  # fmt: skip

    def pem_of(self, store: str) -> Path:
        """Do with a trust store what the refusal of it says."""
        path = self.folder / f"{store}.pem"
        path.write_text(self.keytool("-list", "-rfc", "-keystore", store))
        return path


def secured(keys: Keys) -> dict[str, object]:
    """Return the properties of a broker with a key, and listeners with TLS, on one of which users log in."""
    return {
        "ssl.keystore.location": keys.folder / "broker.p12",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": PASSWORD,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{SCRAM};",
    }


def test_a_cluster_behind_tls_and_scram_is_reached_as_kafkas_own_tools_reach_it(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    keys, remote, data = Keys(folder=tmp_path), tmp_path / "remote", tmp_path / "data"
    keys.make("broker")
    keys.make("stranger")
    remote.mkdir()
    ports = {"SASL_SSL": free_port(), "SSL": free_port()}
    broker = Broker(release(VERSION), [data], tiering(remote) | secured(keys), secure=ports)
    jaas = '{} username="{}" password="{}";'.format(
        SCRAM, *(part.replace("\\", "\\\\").replace('"', '\\"') for part in USER)
    )
    trust = {"ssl.truststore.location": keys.pem_of("broker-trust.jks"), "ssl.truststore.type": "PEM"}
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}

    def by(properties: dict[str, object], listener: str = "SASL_SSL") -> tuple[object, ...]:
        path = tmp_path / "client.properties"
        lines = (f"{name}={str(value).replace(chr(92), chr(92) * 2)}\n" for name, value in properties.items())
        path.write_text("".join(lines))
        address = f"127.0.0.1:{ports[listener]}"
        return ("--bootstrap-server", address, "--command-config", path, "--output", "json")

    with broker.running():
        broker.drive("create", TOPIC, 1, *SMALL[VERSION], "remote.storage.enable=true", "remote.log.copy.disable=true")
        broker.drive("append", TOPIC, 0, 20)
        broker.drive("scram", *USER)
        shipped = command("tier", data, "--topic", TOPIC, "--to", remote.as_uri(), "--layout", "local-tiered",
                          "--engine", "local", *by(trust | login))  # fmt: skip
        assert shipped.code == 0, shipped.err
        told = command("announce", remote.as_uri(), "--publish", *by(trust | login))
        assert (told.code, told.document["summary"]["segments"] > 0) == (0, True), told.err
        for listener, properties in (("SASL_SSL", trust | login), ("SSL", trust | {"security.protocol": "SSL"})):
            status = command("remote", "status", *by(properties, listener))
            assert (status.code, status.document["partitions"][0]["startOffset"]) == (0, 0), status.err
            assert command("replicas", *by(properties, listener)).code == 0

        jks = {"ssl.truststore.location": tmp_path / "broker-trust.jks"}
        strange = {"ssl.truststore.location": keys.pem_of("stranger-trust.jks"), "ssl.truststore.type": "PEM"}
        for properties, code, what in (
            (jks | login, 10, "a store of type JKS cannot be read"),
            (trust | login | {"sasl.jaas.config": jaas.replace("alice", "bob")}, 16, "cannot connect to 127.0.0.1"),
            (strange | login, 16, "certificate verify failed"),
            (trust | login | {"ssl.truststore.location": tmp_path / "none.pem"}, 10, "none.pem: cannot be read"),
        ):
            refused = command("remote", "status", *by(properties))
            assert (refused.code, what in refused.error["message"]) == (code, True), refused.err
            assert refused.error["hint"]
            assert ("must hold the certificate" in refused.error["hint"]) == ("certificate" in what)
