"""A server that speaks enough S3 to give one object in ranges, and watches how it is asked."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from resnap.storage.stores.s3_settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Served:
    """What is served under every key, how, and what was asked for."""

    body: bytes
    url: str = ""
    etag: str = '"first"'
    knows_conditions: bool = True
    before_answer: Callable[[Served, int], None] = lambda _served, _number: None
    """Called before each GET with its number, from 0; may change anything."""
    status: int | None = None
    """Answered to every GET while it is set."""
    cut_short: int = 0
    """How many of the next bodies break off in the middle."""
    heads: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    change: threading.Condition = field(default_factory=threading.Condition)
    """Held while any of this changes."""

    @property
    def bytes_asked(self) -> int:
        return sum(end - start for start, end in self.ranges)

    def settings(self) -> S3Settings:
        return S3Settings(
            endpoint_url=self.url, region="us-east-1", access_key_id="a", secret_access_key="s",
            addressing_style="path", max_attempts=2,
        )  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served: Served

    def do_HEAD(self) -> None:
        self.served.heads += 1
        self._head(200, len(self.served.body))

    def do_GET(self) -> None:
        served = self.served
        found = RANGE.fullmatch(self.headers["Range"] or "")
        start, end = (int(found[1]), min(int(found[2]) + 1, len(served.body))) if found else (0, len(served.body))
        with served.change:
            number = len(served.ranges)
            served.ranges.append((start, end))
            served.in_flight += 1
            served.most_in_flight = max(served.most_in_flight, served.in_flight)
        try:
            served.before_answer(served, number)
            self._answer(start, end)
        finally:
            with served.change:
                served.in_flight -= 1

    def _answer(self, start: int, end: int) -> None:
        served = self.served
        if served.status is not None:
            self._head(served.status, 0)
        elif served.knows_conditions and self.headers["If-Match"] not in {None, served.etag}:
            self._head(412, 0)
        else:
            self._head(206, end - start, {"Content-Range": f"bytes {start}-{end - 1}/{len(served.body)}"})
            body = served.body[start:end]
            if served.cut_short:
                served.cut_short -= 1
                self.close_connection = True
                body = body[: len(body) // 2]
            self.wfile.write(body)

    def _head(self, status: int, length: int, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(length), "ETag": self.served.etag}
        headers["Last-Modified"] = "Wed, 01 Jan 2025 00:00:00 GMT"
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up."""


@contextmanager
def serving(body: bytes) -> Iterator[Served]:
    """Serve ``body`` while the context lasts."""
    served = Served(body)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"served": served}))
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
