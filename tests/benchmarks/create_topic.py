"""The one request a benchmark makes of a broker: a topic, so that the broker knows the partitions it is to load."""

from __future__ import annotations

import socket
import struct
import time

CREATE_TOPICS = 19
VERSION = 4
"""The newest one without tagged fields; understood from 2.4 to 4.x."""
TIMEOUT_MS = 30_000
ATTEMPTS = 60
SETTINGS = {"retention.ms": "-1", "segment.bytes": str(1 << 30)}
_DONE = {0, 36}
"""Created, or there already."""


def create_topic(port: int, topic: str, *, partitions: int) -> None:
    """Create ``topic`` at the broker on ``port``, which may not be ready yet.

    Raises:
        RuntimeError: it was not created.

    """
    for _ in range(ATTEMPTS):
        error = _ask(port, _request(topic, partitions))
        if error in _DONE:
            return
        time.sleep(0.5)
    raise RuntimeError(f"the broker does not create {topic}: error {error}")


def _request(topic: str, partitions: int) -> bytes:
    settings = b"".join(_text(name) + _text(value) for name, value in SETTINGS.items())
    header = struct.pack(">hhi", CREATE_TOPICS, VERSION, 1) + _text("benchmarks")
    body = b"".join((
        struct.pack(">i", 1), _text(topic), struct.pack(">ih", partitions, 1), struct.pack(">i", 0),
        struct.pack(">i", len(SETTINGS)), settings, struct.pack(">i?", TIMEOUT_MS, False),
    ))  # fmt: skip
    return struct.pack(">i", len(header) + len(body)) + header + body


def _ask(port: int, request: bytes) -> int:
    """Send the request and return the error code of the one topic it names."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_MS / 1000) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    correlation_throttle_count = struct.calcsize(">iii")
    (name_length,) = struct.unpack_from(">h", answer, correlation_throttle_count)
    (error,) = struct.unpack_from(">h", answer, correlation_throttle_count + 2 + name_length)
    return int(error)


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()
