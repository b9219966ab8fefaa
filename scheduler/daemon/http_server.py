"""The HTTP server: uvicorn, with bounds on how long a caller may take to ask, and on how many there are at once.

uvicorn times a connection between two requests alone: one that has not asked yet, or not wholly, may wait for ever. A
thousand of those take every file that the process may open, and the run at work needs some, too.
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
    """HTTP/1.1 to one caller, who asks within ``REQUEST_S`` of the connection's begin or of the last answer.

    An answer may take as long as it does; an event stream lasts.
    """

    _waiting: asyncio.TimerHandle | None = None

    @property
    def waits_until_s(self) -> float | None:
        """When its patience ends, by the loop's clock; None while it is answered."""
        return None if self._waiting is None else self._waiting.when()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base does
        """Take a connection; where as many are open as may, the one that has waited longest makes room, if any waits.

        A client that holds connections without asking for anything would else keep all others out.
        """
        super().connection_made(transport)
        if len(self.connections) == MOST_CONNECTIONS:
            self.logger.warning("%d connections are open, who waits longest makes room for more", MOST_CONNECTIONS)
        others = {one.waits_until_s: one for one in self.connections if isinstance(one, Connection)}
        waiting = {until_s: one for until_s, one in others.items() if until_s is not None}
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            (waiting[min(waiting)] if waiting else self).let_go()

    def handle_events(self) -> None:
        """Take what has come; also called behind an answer, for what had come before it."""
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
        """Begin to wait for a whole request; a client that sends it byte by byte gets no more time for that."""
        if self._waiting is None:
            self._waiting = self.loop.call_later(REQUEST_S, self.transport.close)

    def let_go(self) -> None:
        """End the connection at once."""
        self._wait_no_more()
        self.transport.abort()

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class HttpServer(uvicorn.Server):
    """Leaves signals and the log to the daemon."""

    @classmethod
    def of(cls, app: FastAPI, trusted_proxies: Sequence[str]) -> Self:
        """Return what serves ``app``; what ``trusted_proxies`` say of their callers is believed, and of no others.

        By default uvicorn believes every client on this machine: any address stood in the audit then.
        """
        return cls(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                http=Connection,
                proxy_headers=bool(trusted_proxies),
                forwarded_allow_ips=list(trusted_proxies),
                timeout_graceful_shutdown=5,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
