"""Servers with canned answers."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(autouse=True)
def _no_aws_of_this_machine(no_aws_of_this_machine: None) -> None:
    """For all tests here: they also open stores with settings of their own."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a canned server says to one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    claimed_length: int | None = None
    """Content-Length, where it shall lie; the connection is closed after the body."""
    head_bytes: int | None = None
    """Of the head, where the connection shall be closed within it."""
    instead: bytes | None = None
    """What is sent in place of an answer of HTTP."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a canned server was asked."""

    method: str
    path: str
    headers: Message
    body: bytes


@dataclass
class CannedServer:
    """Gives its answers in order, the last one again and again, and keeps the requests."""

    url: str
    answers: list[Answer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    continue_bytes: int | None = None
    """Of the answer that asks for a body, where the connection shall be closed within it."""

    def next_answer(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def canned_server() -> Iterator[CannedServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_expect_100(self) -> bool:
            if canned.continue_bytes is None:
                return super().handle_expect_100()
            self.wfile.write(CONTINUE[: canned.continue_bytes])
            self.close_connection = True
            return False

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            canned.requests.append(Request(method=self.command, path=self.path, headers=self.headers, body=body))
            answer = canned.next_answer()
            connection, self.wfile = self.wfile, io.BytesIO()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            length = len(answer.body) if answer.claimed_length is None else answer.claimed_length
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            whole, self.wfile = self.wfile.getvalue(), connection
            self.wfile.write(whole[: answer.head_bytes] if answer.instead is None else answer.instead)
            parts = (answer.claimed_length, answer.head_bytes, answer.instead)
            self.close_connection = any(part is not None for part in parts)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815 - http.server's own names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing of clients that hang up: that is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    canned = CannedServer(url=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield canned
    server.shutdown()
    thread.join()
    server.server_close()
