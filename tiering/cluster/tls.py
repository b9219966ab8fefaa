"""TLS to brokers: checks key and certificate files before connecting, and limits the time of handshakes."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

HANDSHAKE_S: Final = 10.0
"""How long a broker that has taken a connection has for the TLS handshake."""
_BY_TRUST: Final = "a PEM file with the certificate of the authority that has signed those of the brokers is needed"
_BY_KEY: Final = "a PEM file with key and certificates is needed, and ssl.key.password where the key is encrypted"


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
