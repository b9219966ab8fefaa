"""As much of an HTTP/1.1 client as a load generator needs: on kept connections, and cheap."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


class Answer(NamedTuple):
    """Of a request: its status, its head by lower-case names, and the body unless it comes in chunks."""

    status: int
    head: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Connection:
    """One connection to a server, opened when it is needed; ``close`` it at the end."""

    host: str
    port: int
    _reader: asyncio.StreamReader | None = field(default=None, init=False)
    _writer: asyncio.StreamWriter | None = field(default=None, init=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def ask(self, method: str, path: str, *, accept: str = "*/*", body: bytes = b"") -> Answer:
        """Send a request, and return its answer; once more where the server had closed a connection that was idle."""
        is_kept = self._writer is not None
        try:
            return await self._asked(method, path, accept, body)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            self.close()
            if not is_kept or getattr(error, "partial", b""):
                raise
            return await self._asked(method, path, accept, body)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body of the last answer, which comes in chunks, to its end."""
        assert self._reader is not None
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _asked(self, method: str, path: str, accept: str, body: bytes) -> Answer:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self.host, self.port)
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nAccept: {accept}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(f"{head}\r\n".encode() + body)
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        answer = await self._reader.readexactly(int(found.get("content-length", "0")))
        if found.get("connection") == "close" and "transfer-encoding" not in found:
            self.close()
        return Answer(int(status.split()[1]), found, answer)
