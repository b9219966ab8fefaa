"""``--command-config``: a properties file as Kafka's own tools take it, said in the words of kafka-python.

Only what decides how a broker is reached is taken over; other properties, which tune clients, are passed over. What
would be needed and cannot be had (JKS stores, GSSAPI, tokens) is refused by name: going on without it would connect
otherwise than was meant.

Source: ``CommonClientConfigs``, ``SslConfigs``, ``SaslConfigs``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PLAIN: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.password": "ssl_password",
    "client.id": "client_id",
}
"""Kafka's names and the library's."""
_SETUP: Final = "socket.connection.setup.timeout.ms"
_OURS: Final = {*_PLAIN, "sasl.jaas.config", "ssl.endpoint.identification.algorithm", "request.timeout.ms", _SETUP}
_STORE_TYPES: Final = ("ssl.truststore.type", "ssl.keystore.type")
_TO_PEM: Final = {
    "ssl.truststore.type": "`keytool -list -rfc -keystore STORE > ca.pem` makes a PEM file of it: give that as"
    " ssl.truststore.location, with ssl.truststore.type=PEM",
    "ssl.keystore.type": "`keytool -importkeystore -srckeystore STORE -destkeystore me.p12 -deststoretype PKCS12` and"
    " `openssl pkcs12 -in me.p12 -nodes -out me.pem` make a PEM file of it: give that as ssl.keystore.location,"
    " with ssl.keystore.type=PEM",
}
_PASSED_OVER: Final = {"ssl.truststore.password", "ssl.keystore.password", "ssl.protocol", "ssl.enabled.protocols"}
_MECHANISMS: Final = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
_CREDENTIALS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


def client_settings(properties: Mapping[str, str]) -> dict[str, object]:
    """Return what kafka-python is to be given for ``properties``.

    Raises:
        ConfigurationError: something is asked for that cannot be had.

    """
    for name in properties:
        _check_known(name)
    for name in _STORE_TYPES:
        location = name.replace(".type", ".location")
        if location in properties and properties.get(name, "JKS").upper() != "PEM":
            raise ConfigurationError(f"{location}: a store of type {properties.get(name, 'JKS')} cannot be read",
                                     hint=_TO_PEM[name])  # fmt: skip
    found: dict[str, object] = {ours: properties[name] for name, ours in _PLAIN.items() if name in properties}
    if "ssl_certfile" in found:
        found["ssl_keyfile"] = found["ssl_certfile"]  # Kafka has key and certificates in one file
    if properties.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl_check_hostname"] = False
    request_timeout_ms = _milliseconds(properties, "request.timeout.ms")
    if request_timeout_ms is not None:
        found["request_timeout_ms"] = request_timeout_ms
    found.update(_credentials(properties))
    return found


def setup_timeout_s(properties: Mapping[str, str]) -> float | None:
    """Return how long a broker has to take a connection, where ``properties`` say so.

    Raises:
        ConfigurationError: it is not a number.

    """
    setup_ms = _milliseconds(properties, _SETUP)
    return None if setup_ms is None else setup_ms / 1000


def stores(properties: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files with keys and certificates that ``properties`` name."""
    for name in _STORE_TYPES:
        location = properties.get(name.replace(".type", ".location"))
        if location is not None:
            yield Path(location)


def _milliseconds(properties: Mapping[str, str], name: str) -> int | None:
    given = properties.get(name)
    if given is not None and not (given.isdecimal() and int(given) > 0):
        raise ConfigurationError(f"{name}={given}: expected milliseconds, more than 0")
    return None if given is None else int(given)


def _check_known(name: str) -> None:
    if name in _OURS or name in _PASSED_OVER or name in _STORE_TYPES:
        return
    if name.startswith(("sasl.", "ssl.", "security.")):
        raise ConfigurationError(f"{name} cannot be honoured", hint="known are " + ", ".join(sorted(_OURS)))


def _credentials(properties: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    if not properties.get("security.protocol", "").upper().startswith("SASL_"):
        return
    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(f"sasl.mechanism {mechanism} cannot be honoured",
                                 hint=f"known are {', '.join(sorted(_MECHANISMS))}")  # fmt: skip
    given = dict(_CREDENTIALS.findall(properties.get("sasl.jaas.config", "")))
    if given.keys() < {"username", "password"}:
        raise ConfigurationError('sasl.jaas.config: expected username="..." and password="..."')
    yield "sasl_plain_username", _unescaped(given["username"])
    yield "sasl_plain_password", _unescaped(given["password"])


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
