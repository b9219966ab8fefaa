"""The HTTP server: uvicorn, with limits on the time to send a request and on the number of connections.

uvicorn limits only the time between two requests: a connection without a complete first request may stay open for ever.
A thousand of those use up the process's file descriptors, which the active run needs, too.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence
    from typing import Self

    from fastapi import FastAPI
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

REQUEST_S: Final = 30.0
"""For a whole request, head and body; a body of the greatest length then takes 35 KB a second."""
MOST_CONNECTIONS: Final = 800
"""Open at once: all event streams that may be, and others; no more is left to callers of the files that may be open."""


class Connection(H11Protocol):
    """HTTP/1.1 to one client, which must send a request within ``REQUEST_S`` of connecting or of the last response.

    A response may take any time; an event stream stays open.
    """

    _waiting: asyncio.TimerHandle | None = None

    @property
    def waits_until_s(self) -> float | None:
        """When the connection times out, by the loop's clock; None while a response is being made."""
        return None if self._waiting is None else self._waiting.when()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base does
        """Accept a connection; at the limit, close the one that has waited longest, if any waits.

        Otherwise a client that holds connections without requests would lock out all others.
        """
        super().connection_made(transport)
        if len(self.connections) == MOST_CONNECTIONS:
            self.logger.warning(
                "%d connections are open; a further one closes the one that has waited longest", MOST_CONNECTIONS
            )
        others = {one.waits_until_s: one for one in self.connections if isinstance(one, Connection)}
        waiting = {until_s: one for until_s, one in others.items() if until_s is not None}
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            (waiting[min(waiting)] if waiting else self).let_go()

    def handle_events(self) -> None:
        """Handle received data; also called after a response, for data that came before it."""
        super().handle_events()
        asked: RequestResponseCycle | None = self.cycle
        if asked is None or asked.more_body or asked.response_complete:
            self._wait()
        else:
            self._wait_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the loop."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Start the timeout for a complete request; sending it byte by byte does not extend it."""
        if self._waiting is None:
            self._waiting = self.loop.call_later(REQUEST_S, self.transport.close)

    def let_go(self) -> None:
        """Close the connection at once."""
        self._wait_no_more()
        self.transport.abort()

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling and log, which the daemon does."""

    @classmethod
    def of(cls, app: FastAPI, trusted_proxies: Sequence[str]) -> Self:
        """Return the server of ``app``; forwarded addresses are trusted from ``trusted_proxies`` only.

        By default uvicorn trusts every client on this machine, and any address could get into the audit log.
        """
        return cls(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                http=Connection,
                ws="none",
                proxy_headers=bool(trusted_proxies),
                forwarded_allow_ips=list(trusted_proxies),
                timeout_graceful_shutdown=5,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
