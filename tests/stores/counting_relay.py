"""A relay between clients and a server that counts requests by kind, and the bytes which pass in both directions."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_REQUEST = re.compile(rb"(PUT|GET|HEAD|POST|DELETE) (\S+) HTTP/1\.1\r\n")


@dataclass
class CountingRelay:
    """Passes connections on to ``upstream``, a URL, and counts; ``heard`` is given the count each time it grows."""

    upstream: str
    address: str
    port: int = 0
    size_bytes: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    """By method; of listings as LIST. A client sends the head of a request in one piece."""
    heard: Callable[[int], None] = lambda _: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.address}:{self.port}"

    def serve(self, server: socket.socket) -> None:
        """Take connections until ``server`` is closed."""
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                threading.Thread(target=self.connect, args=(client,), daemon=True).start()

    def connect(self, client: socket.socket) -> None:
        """Pass one connection on, until both sides have ended it."""
        there = urlsplit(self.upstream)
        with client, socket.create_connection((there.hostname or "", there.port or 0)) as onward:
            back = threading.Thread(target=self.pass_on, args=(onward, client), daemon=True)
            back.start()
            self.pass_on(client, onward)
            back.join()

    def pass_on(self, source: socket.socket, target: socket.socket) -> None:
        """Copy what comes from one side to the other, up to its end."""
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):
            while data := source.recv(1 << 16):
                request = _REQUEST.match(data)
                if request is not None:
                    with self.lock:
                        self.requests["LIST" if b"list-type=2" in request[2] else request[1].decode()] += 1
                target.sendall(data)
                with self.lock:
                    self.size_bytes += len(data)
                self.heard(self.size_bytes)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextmanager
def relaying(upstream: str, address: str) -> Iterator[CountingRelay]:
    """Run a relay at a loopback ``address`` for as long as the context lasts."""
    with socket.create_server((address, 0)) as server:
        relay = CountingRelay(upstream, address, server.getsockname()[1])
        accepting = threading.Thread(target=relay.serve, args=(server,), daemon=True)
        accepting.start()
        yield relay
        server.shutdown(socket.SHUT_RDWR)
        accepting.join()
