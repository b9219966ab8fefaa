"""A proxy between a client and an S3 server that does harm to one request: the faults that networks and stores have."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LINGER: Final = struct.pack("ii", 1, 0)
"""With this a close resets the connection."""
_HOP_BY_HOP: Final = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request as it came."""

    method: str
    path: str
    """With its query."""
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer as it goes to the client."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_at: int | None = None
    """Bytes of the body that go out before the connection is reset."""


class ResetError(Exception):
    """The client is to see its connection reset, with no answer at all."""


Server = "Callable[[Call], Reply]"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to a request; ``harm`` is given it, and what the server would do."""

    name: str
    harm: Callable[[Call, Callable[[Call], Reply]], Reply]


@dataclass
class FaultProxy:
    """Forwards to ``upstream``; the requests that ``strikes`` picks meet ``fault``, the first ``times`` of them."""

    upstream: str
    url: str = ""
    fault: Fault | None = None
    strikes: Callable[[Call], bool] = lambda _: True
    times: int = 1
    struck: int = 0
    calls: list[Call] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, fault: Fault | None, strikes: Callable[[Call], bool] = lambda _: True, *, times: int = 1) -> None:
        self.fault, self.strikes, self.times, self.struck, self.calls = fault, strikes, times, 0, []

    def answer(self, call: Call) -> Reply:
        with self.lock:
            self.calls.append(call)
            fault = self.fault if self.struck < self.times and self.strikes(call) else None
            self.struck += fault is not None
        return fault.harm(call, self.forward) if fault else self.forward(call)

    def forward(self, call: Call) -> Reply:
        connection = http.client.HTTPConnection(urlsplit(self.upstream).netloc, timeout=60)
        try:
            headers = {name: value for name, value in call.headers.items() if name.lower() != "expect"}
            headers["Content-Length"] = str(len(call.body))
            connection.request(call.method, call.path, call.body, headers)
            found = connection.getresponse()
            body = found.read()
            headers = {name: value for name, value in found.getheaders() if name.lower() not in _HOP_BY_HOP}
            if call.method == "HEAD":
                headers["Content-Length"] = found.headers.get("Content-Length", "0")
            return Reply(status=found.status, headers=headers, body=body)
        finally:
            connection.close()


@contextmanager
def proxying(upstream: str, *, port: int = 0) -> Iterator[FaultProxy]:  # noqa: C901 - a handler in it, of small methods
    """Run a proxy in front of ``upstream`` for as long as the context lasts, at ``port`` unless any will do."""
    proxy = FaultProxy(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits 40 ms, between its head and its body

        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            call = Call(method=self.command, path=self.path, headers=dict(self.headers.items()), body=body)
            try:
                self._give(proxy.answer(call))
            except ResetError:
                self._reset()

        def _give(self, reply: Reply) -> None:
            self.send_response_only(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in reply.headers:
                self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body[: reply.cut_at])
            if reply.cut_at is not None:
                self._reset()

        def _reset(self) -> None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            self.connection.close()

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = serve  # noqa: N815 - http.server's own names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing of connections that were reset: that is what this is for."""

    server = Server(("127.0.0.1", port), Handler)
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def flipped(body: bytes) -> bytes:
    """Return ``body`` with one bit changed, in its middle."""
    changed = bytearray(body)
    if changed:
        changed[len(changed) // 2] ^= 1
    return bytes(changed)


def error(status: int, code: str, **headers: str) -> Fault:
    """Return the fault of a server that answers with an error and does nothing."""
    body = f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode()
    reply = Reply(status=status, body=body, headers={"Content-Type": "application/xml", **headers})
    return Fault(name=f"{status} {code}", harm=lambda _call, _server: reply)


def _reset_request(_call: Call, _server: Callable[[Call], Reply]) -> Reply:
    raise ResetError


def _lost_answer(call: Call, server: Callable[[Call], Reply]) -> Reply:
    server(call)
    raise ResetError


def _cut_answer(call: Call, server: Callable[[Call], Reply]) -> Reply:
    reply = server(call)
    return replace(reply, cut_at=len(reply.body) // 2)


def _flip_request(call: Call, server: Callable[[Call], Reply]) -> Reply:
    return server(replace(call, body=flipped(call.body)))


def _cut_request(call: Call, server: Callable[[Call], Reply]) -> Reply:
    return server(replace(call, body=call.body[: len(call.body) // 2]))


def _flip_answer(call: Call, server: Callable[[Call], Reply]) -> Reply:
    reply = server(call)
    return replace(reply, body=flipped(reply.body))


def _shorten_answer(call: Call, server: Callable[[Call], Reply]) -> Reply:
    reply = server(call)
    return replace(reply, body=reply.body[: len(reply.body) // 2])


def _wrong_checksum(call: Call, server: Callable[[Call], Reply]) -> Reply:
    reply = server(call)
    return replace(reply, headers=reply.headers | {"x-amz-checksum-crc32c": "AAAAAA=="})


def _swallowed(_call: Call, _server: Callable[[Call], Reply]) -> Reply:
    """Say that all is well, and do nothing."""
    return Reply(status=200, headers={"ETag": '"e"'})


def _without(*names: str) -> Callable[[Call, Callable[[Call], Reply]], Reply]:
    def harm(call: Call, server: Callable[[Call], Reply]) -> Reply:
        return server(replace(call, headers={k: v for k, v in call.headers.items() if k.lower() not in names}))

    return harm


def _empty_listing(_call: Call, _server: Callable[[Call], Reply]) -> Reply:
    body = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    return Reply(status=200, body=body, headers={"Content-Type": "application/xml"})


def _repeated_listing(call: Call, server: Callable[[Call], Reply]) -> Reply:
    """Give each entry of a page twice."""
    reply = server(call)
    start, end = reply.body.find(b"<Contents>"), reply.body.rfind(b"</Contents>")
    if start < 0:
        return reply
    entries = reply.body[start : end + len(b"</Contents>")]
    return replace(reply, body=reply.body.replace(entries, entries * 2))


RESETS: Final = (
    Fault(name="reset before the server", harm=_reset_request),
    Fault(name="lost answer", harm=_lost_answer),
    Fault(name="answer cut off", harm=_cut_answer),
)
BUSY: Final = (
    error(503, "SlowDown"),
    error(500, "InternalError"),
    error(503, "ServiceUnavailable", **{"Retry-After": "1"}),
    error(429, "TooManyRequests"),
)
"""What is gone when it is tried again."""
SWALLOWED: Final = Fault(name="swallowed", harm=_swallowed)
CHANGES: Final = (
    Fault(name="request flipped", harm=_flip_request),
    Fault(name="request shortened", harm=_cut_request),
    Fault(name="answer flipped", harm=_flip_answer),
    Fault(name="answer shortened", harm=_shorten_answer),
    Fault(name="wrong checksum", harm=_wrong_checksum),
    SWALLOWED,
    Fault(name="range ignored", harm=_without("range")),
)
REFUSALS: Final = (
    error(400, "ExpiredToken"),
    error(403, "RequestTimeTooSkewed"),
    error(403, "AccessDenied"),
    error(501, "NotImplemented"),
)
LISTINGS: Final = (
    Fault(name="stale listing", harm=_empty_listing),
    Fault(name="repeated listing", harm=_repeated_listing),
)
