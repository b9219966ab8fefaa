"""Services beside brokers, as ``resnap fleet`` asks them: real ones, and one that answers as a test says."""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from resnap.scheduler.clock import Clock
from resnap.storage.words import instant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass(slots=True, kw_only=True)
class Script:
    """What a service answers, and what it was asked."""

    topics: dict[str, int] = field(default_factory=lambda: {"payments": 1})
    """Partitions by topic, all ready."""
    answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)
    """Instead, by the beginning of the path."""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Paths with their headers, in small letters."""
    address: str = ""

    def body(self, path: str) -> Any:
        """Return what is at a path."""
        now = instant(Clock().now_ms())
        if path.startswith("/v1/sources"):
            return {"sources": [{"source": "/data", "scanned": now, "tried": now, "error": None}]}
        return {"partitions": [row(topic, number) for topic, count in self.topics.items() for number in range(count)],
                "counts": {}, "nextCursor": None}  # fmt: skip


def row(topic: str, number: int, **fields: object) -> dict[str, object]:
    """Return a partition as the API gives it."""
    ready = {"source": "/data", "topic": topic, "partition": number, "verdict": "ready", "unblockedBy": None,
             "until": None, "reason": None,
             "detail": "nothing stops it", "nextStep": "turn tiering on", "missing": 0}  # fmt: skip
    return {**ready, "scanned": "2026-01-01T00:00:00.000Z", "row": None, **fields}


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    """Answer a request."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    script: Script

    def do_GET(self) -> None:
        self.script.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        own = next((answer for path, answer in self.script.answers.items() if self.path.startswith(path)), None)
        if own is not None:
            own(self)
        else:
            send(self, 200, json.dumps(self.script.body(self.path)).encode(), Content_Type="application/json")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of a caller who has gone."""


@contextmanager
def scripted(script: Script, certificate: Path | None = None) -> Iterator[Script]:
    """Serve what ``script`` says, over TLS if there is a certificate with its key in one file."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"script": script}))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    script.address = f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fleet_table(broker: int, address: str, *, token: Path | None = None, ca: Path | None = None) -> str:
    """Return a ``[[fleet]]`` table."""
    more = "".join(f'{key} = "{path}"\n' for key, path in (("token-file", token), ("ca-file", ca)) if path)
    return f'\n[[fleet]]\nbroker = {broker}\nurl = "{address}"\n{more}'
