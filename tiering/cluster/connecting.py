"""Connects to a cluster: translates ``--command-config`` for kafka-python, and explains why no broker answers.

It is a properties file as for Kafka's own tools. Only the properties for the connection are used; others, which tune
clients, are skipped. Properties that are needed but not supported (JKS stores, GSSAPI, tokens) are refused by name:
without them the connection would not be the intended one.

The library retries until its timeout, whatever its settings are. So a broker that does not accept a connection, or
accepts it and refuses at once, is detected here within seconds: the operator has probably mistyped something, and is
waiting.

Source: ``CommonClientConfigs``, ``SslConfigs``, ``SaslConfigs``.

TLS to brokers: checks key and certificate files before connecting, and limits the time of handshakes.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from resnap.storage.errors import ClusterError, ConfigurationError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
_SKIPPED: Final = {"ssl.truststore.password", "ssl.keystore.password", "ssl.protocol", "ssl.enabled.protocols"}
_MECHANISMS: Final = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
_CREDENTIALS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
HANDSHAKE_S: Final = 10.0
"""How long a broker that has taken a connection has for the TLS handshake."""
_BY_TRUST: Final = "a PEM file with the certificate of the authority that has signed those of the brokers is needed"
_BY_KEY: Final = "a PEM file with key and certificates is needed, and ssl.key.password where the key is encrypted"


def client_settings(properties: Mapping[str, str]) -> dict[str, object]:
    """Return the arguments for kafka-python that correspond to ``properties``.

    Raises:
        ConfigurationError: a required property is not supported.

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
    """Return how long a broker has to accept a connection, if ``properties`` say so.

    Raises:
        ConfigurationError: it is not a number.

    """
    setup_ms = _milliseconds(properties, _SETUP)
    return None if setup_ms is None else setup_ms / 1000


def _milliseconds(properties: Mapping[str, str], name: str) -> int | None:
    given = properties.get(name)
    if given is not None and not (given.isdecimal() and int(given) > 0):
        raise ConfigurationError(f"{name}={given}: expected milliseconds, more than 0")
    return None if given is None else int(given)


def _check_known(name: str) -> None:
    if name in _OURS or name in _SKIPPED or name in _STORE_TYPES:
        return
    if name.startswith(("sasl.", "ssl.", "security.")):
        raise ConfigurationError(f"{name} is not supported", hint="supported are " + ", ".join(sorted(_OURS)))


def _credentials(properties: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    if not properties.get("security.protocol", "").upper().startswith("SASL_"):
        return
    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(f"sasl.mechanism {mechanism} is not supported",
                                 hint=f"supported are {', '.join(sorted(_MECHANISMS))}")  # fmt: skip
    given = dict(_CREDENTIALS.findall(properties.get("sasl.jaas.config", "")))
    if given.keys() < {"username", "password"}:
        raise ConfigurationError('sasl.jaas.config: expected username="..." and password="..."')
    yield "sasl_plain_username", _unescape(given["username"])
    yield "sasl_plain_password", _unescape(given["password"])


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


_Made = TypeVar("_Made")
SETUP_TIMEOUT_S: Final = 5.0
"""How long a broker has to take a connection."""
_FIRST_MS: Final = 3_000
_ENOUGH: Final = 2
"""Failures of one kind that are conclusive: the first may only be due to lack of time."""
_FAILED: Final = re.compile(r"Bootstrap (?:connection|attempt) to \S+ failed: (.*?)(?: \(backoff .*)?$")
"""What the library logs of each attempt."""
_SAYS_NOTHING: Final = "socket disconnected"
"""Reported, too, where a broker has sent the reason before it closed the connection."""
_BY_PROPERTY: Final = (
    "check --bootstrap-server, that the broker runs, and that no firewall blocks the connection; "
    "socket.connection.setup.timeout.ms in --command-config sets a longer timeout"
)
_BY_CERTIFICATE: Final = (
    "ssl.truststore.location in --command-config must hold the certificate of the authority that signed the broker's;"
    " that must be valid today, and name the host that --bootstrap-server and the broker's advertised.listeners name"
)
_BY_PROTOCOL: Final = (
    "check --bootstrap-server and --command-config: brokers close the connection if security.protocol differs from "
    "theirs, or the credentials are wrong"
)


def reach(servers: Sequence[str], timeout_s: float) -> None:
    """Check that one of ``servers`` (host:port) accepts a connection; all are tried at once.

    Raises:
        UsageError: one of them is not an address.
        ClusterError: none does; gives the reason of each.

    """
    places = [_place(server) for server in servers]
    with ThreadPoolExecutor(len(places)) as asking:
        failures = list(asking.map(lambda place: _failure(place, timeout_s), places))
    if None in failures:
        return
    failed = "; ".join(f"{server}: {why}" for server, why in zip(servers, failures, strict=True))
    raise ClusterError(f"cannot connect to {failed}", hint=_BY_PROPERTY)


def connect_in_time(
    connect: Callable[[int, list[str]], _Made],
    errors: tuple[type[Exception], ...],
    servers: list[str],
    patience_ms: int,
) -> _Made:
    """Return the result of ``connect``, which may take so many milliseconds; stops early if it cannot succeed.

    It fails with one of ``errors``. The library stays with the server that it has chosen, even with one that accepts a
    connection and hangs; so each is tried alone, too.

    Raises:
        ClusterError: it failed; gives the reason.

    """
    failures, first_ms = _Failures(), min(_FIRST_MS, patience_ms)
    alone = [(first_ms, [server]) for server in servers] if len(servers) > 1 else []
    with _listening(failures):
        for wait_ms, some in ((first_ms, servers), *alone, (patience_ms, servers)):
            try:
                return connect(wait_ms, some)
            except errors as error:
                last = error
            if some is servers and len(failures.why) >= _ENOUGH:
                break
    what = next((why for why in failures.why if _SAYS_NOTHING not in why), None)
    what = what or next(iter(failures.why), f"{type(last).__name__}: {last}")
    hint = _BY_CERTIFICATE if "CERTIFICATE_VERIFY_FAILED" in what else _BY_PROTOCOL
    raise ClusterError(f"cannot connect to {','.join(servers)}: {what}", hint=hint) from last


def _place(server: str) -> tuple[str, int]:
    host, colon, port = server.strip().rpartition(":")
    if not (colon and host and port.isdecimal()) or "/" in host:
        raise UsageError(f"--bootstrap-server {server!r}: expected HOST:PORT", hint="brokers have port 9092 by default")
    return host.strip("[]"), int(port)


def _failure(place: tuple[str, int], timeout_s: float) -> str | None:
    """Return why ``place`` accepts no connection; None if it does."""
    try:
        socket.create_connection(place, timeout_s).close()
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


class _Failures(logging.Handler):
    """Collects the reasons why the library could not connect, which its exception omits."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.why: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store the failure in ``record``."""
        failed = _FAILED.match(record.getMessage())
        if failed is not None:
            self.why.append(failed[1])


@contextmanager
def _listening(failures: _Failures) -> Iterator[None]:
    """Let ``failures`` receive the library's log, which is otherwise off: errors arrive as exceptions."""
    log = logging.getLogger("kafka")
    log.addHandler(failures)
    log.propagate = False
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.removeHandler(failures)
        log.setLevel(logging.CRITICAL)


def check_stores(settings: Mapping[str, Any]) -> None:
    """Check that the files in the library's ``settings`` hold what TLS needs.

    The library would report a connection error, and prompt on the terminal for the password of an encrypted key.

    Raises:
        ConfigurationError: a file does not, or cannot be read.

    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if trusted := settings.get("ssl_cafile"):
            name, hint = f"ssl.truststore.location: {trusted}", _BY_TRUST
            context.load_verify_locations(trusted)
        if own := settings.get("ssl_certfile"):
            name, hint = f"ssl.keystore.location: {own}", _BY_KEY
            context.load_cert_chain(own, password=settings.get("ssl_password") or "")
    except OSError as error:
        raise ConfigurationError(f"{name}: cannot be read: {error.strerror or error}", hint=hint) from error


def bound_handshakes() -> None:
    """Let an unanswered TLS handshake fail, as with a stopped broker: the library would wait without a limit."""
    from kafka.errors import KafkaTimeoutError
    from kafka.net import manager
    from kafka.net.transport import KafkaSSLTransport

    class BoundedTransport(KafkaSSLTransport):  # type: ignore[misc]
        async def handshake(self) -> None:
            try:
                await self._shake_hands(time.monotonic() + HANDSHAKE_S)
            except BaseException as error:
                self._sock.close()
                if isinstance(error, KafkaTimeoutError):
                    raise TimeoutError(f"no answer within {HANDSHAKE_S:g} s") from error
                raise

        async def _shake_hands(self, end: float) -> None:
            while True:
                try:
                    self._sock.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await self._net.wait_read(self._sock, end)
                except ssl.SSLWantWriteError:
                    await self._net.wait_write(self._sock, end)

    manager.KafkaSSLTransport = BoundedTransport
