"""Requests to a broker over a plain socket, as a client sends them: no library between our bytes and the broker."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final

from tests.kafka.releases import PATIENCE_S

if TYPE_CHECKING:
    from typing import Self

_HEADER: Final = struct.Struct(">hhih")
_CLIENT: Final = b"test"


class Wire:
    """One connection; requests are answered one at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
        """Send a request and return the body of its answer; ``flexible`` says which headers both have."""
        self._correlation += 1
        head = _HEADER.pack(key, version, self._correlation, len(_CLIENT)) + _CLIENT + (b"\0" if flexible else b"")
        self._socket.sendall(struct.pack(">i", len(head + body)) + head + body)
        (size,) = struct.unpack(">i", self._exactly(4))
        answer = self._exactly(size)
        assert struct.unpack_from(">i", answer)[0] == self._correlation
        return answer[5 if flexible else 4 :]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the broker has closed the connection"
            data += part
        return data
