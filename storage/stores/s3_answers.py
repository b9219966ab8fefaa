"""Takes an answer whose head was cut off for one that did not come.

``http.client`` takes the end of a connection for the end of a head. Such an answer lacks the headers that did not
arrive, its length among them, so that its body seems empty, and the checksum that would show it; or the last one has
half of its value. And botocore reads on for ever where it ends within an answer that asks for the body.
"""

from __future__ import annotations

import http.client
from typing import Any, Final

from botocore.awsrequest import AWSHTTPConnection, AWSHTTPSConnection

_LINE_BYTES: Final = 64 << 10
"""The longest that is read as one."""


class _Lines:
    """The lines of a head, as a connection gives them."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - a file, by its methods
        self._connection = connection

    def readline(self, limit: int) -> bytes:
        """Return the next line.

        Raises:
            RemoteDisconnected: the connection has ended.

        """
        line: bytes = self._connection.readline(limit)
        if not line.endswith(b"\n") and len(line) < limit:
            raise http.client.RemoteDisconnected("the connection ended within the head of an answer")
        return line

    def close(self) -> None:
        """Close the connection's file, as ``http.client`` does at what is no answer."""
        self._connection.close()


class WholeHead(http.client.HTTPResponse):
    """An answer whose head came whole."""

    def begin(self) -> None:
        """Read the head; RemoteDisconnected if the connection ends within it."""
        connection, self.fp = self.fp, _Lines(self.fp)  # type: ignore[assignment]  # it is read by lines alone
        try:
            super().begin()
        finally:
            if self.fp is not None:  # else it was closed: what came is no answer
                self.fp = connection


def _skip_headers(_: object, connection: object) -> None:
    """Read to the end of a head; RemoteDisconnected if the connection ends within it."""
    lines = _Lines(connection)
    while lines.readline(_LINE_BYTES) != b"\r\n":
        pass


def require_whole_heads() -> None:
    """Make botocore take no other answers, for all clients of the process."""
    connections: tuple[Any, ...] = (AWSHTTPConnection, AWSHTTPSConnection)
    for connection in connections:
        connection.response_class = WholeHead
        connection._consume_headers = _skip_headers  # noqa: SLF001 - that of an answer that asks for the body
