from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import ConfigurationError
from resnap.tiering.cluster.connecting import check_stores, client_settings, setup_timeout_s

if TYPE_CHECKING:
    from pathlib import Path

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="us\\"er" password="pass";'


def test_nothing_given_is_a_plain_connection() -> None:
    assert client_settings({}) == {}


def test_credentials_of_sasl_are_those_of_the_jaas_line() -> None:
    found = client_settings(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS}
    )
    assert found == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": 'us"er',
        "sasl_plain_password": "pass",
    }


def test_stores_of_keys_are_read_as_pem() -> None:
    found = client_settings(
        {
            "security.protocol": "SSL",
            "ssl.truststore.location": "ca.pem",
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": "me.pem",
            "ssl.keystore.type": "PEM",
            "ssl.endpoint.identification.algorithm": "",
            "request.timeout.ms": "1000",
        }
    )
    assert (found["ssl_cafile"], found["ssl_certfile"], found["ssl_keyfile"]) == ("ca.pem", "me.pem", "me.pem")
    assert (found["ssl_check_hostname"], found["request_timeout_ms"]) == (False, 1000)


def test_how_long_a_broker_has_to_take_a_connection_is_asked_for_in_kafkas_name() -> None:
    assert setup_timeout_s({}) is None
    assert setup_timeout_s({"socket.connection.setup.timeout.ms": "1500"}) == 1.5
    with pytest.raises(ConfigurationError, match="expected milliseconds, more than 0"):
        setup_timeout_s({"socket.connection.setup.timeout.ms": "0"})


def test_what_only_tunes_a_client_is_passed_over() -> None:
    assert client_settings({"fetch.max.bytes": "1", "acks": "1"}) == {}


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"sasl.login.class": "x"}, "sasl.login.class is not supported"),
        ({"ssl.truststore.location": "a.jks"}, "a store of type JKS cannot be read"),
        ({"ssl.keystore.location": "a.p12", "ssl.keystore.type": "PKCS12"}, "a store of type PKCS12 cannot be read"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms=soon: expected milliseconds"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism GSSAPI is not supported"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "expected username"),
    ],
)
def test_what_is_needed_and_cannot_be_had_is_refused_by_name(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        client_settings(properties)


def test_files_that_hold_no_key_or_certificate_are_refused_by_name(tmp_path: Path) -> None:
    key, certificate, own = (tmp_path / name for name in ("key", "certificate", "own.pem"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-subj", "/CN=me", "-passout", "pass:secret",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    own.write_bytes(key.read_bytes() + certificate.read_bytes())
    right = {"ssl_cafile": str(certificate), "ssl_certfile": str(own), "ssl_password": "secret"}
    check_stores(right)
    for wrong, named in (
        ({"ssl_cafile": str(key)}, f"ssl.truststore.location: {key}: cannot be read"),
        ({"ssl_cafile": str(tmp_path / "none")}, "none: cannot be read: No such file or directory"),
        ({"ssl_certfile": str(certificate)}, f"ssl.keystore.location: {certificate}: cannot be read"),
        ({"ssl_password": "wrong"}, f"ssl.keystore.location: {own}: cannot be read"),
        ({"ssl_password": None}, f"ssl.keystore.location: {own}: cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=named) as caught:
            check_stores(right | wrong)
        assert caught.value.hint
