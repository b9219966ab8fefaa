"""Callers who do not ask in time, and too many of them, against a real server on loopback."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI, Request

from scheduler.daemon import http_server
from tests.scheduler.api.serving import listening

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60
WHOLE = b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def answering() -> threading.Event:
    return threading.Event()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, answering: threading.Event) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(http_server, "REQUEST_S", 2.0)
    app = FastAPI()

    @app.get("/slow")
    def slow() -> str:
        assert answering.wait(PATIENCE_S)
        return "done"

    @app.post("/read")
    async def read(request: Request) -> str:
        return str(len(await request.body()))

    with listening(app) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        yield host, int(port)


def connected(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=PATIENCE_S)


def end_of(caller: socket.socket) -> bytes:
    """Return what is answered until the connection ends."""
    answer = b""
    with suppress(ConnectionError):
        while more := caller.recv(4096):
            answer += more
    return answer


def go_on(caller: socket.socket) -> None:
    """Send a byte now and then for as long as somebody takes it."""
    while not threading.Event().wait(0.05):
        caller.sendall(b"x")


@pytest.mark.parametrize(
    "sent", [b"", WHOLE[:20], b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf"]
)
def test_who_does_not_ask_wholly_is_let_go(address: tuple[str, int], sent: bytes) -> None:
    with connected(address) as caller:
        caller.sendall(sent)
        assert b"200 OK" not in end_of(caller)


def test_asking_byte_by_byte_gives_no_more_time(address: tuple[str, int]) -> None:
    with connected(address) as caller:
        caller.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nX: ")
        with pytest.raises(ConnectionError):
            go_on(caller)


def test_an_answer_may_take_longer_than_a_request(address: tuple[str, int], answering: threading.Event) -> None:
    with connected(address) as asking, connected(address) as silent:
        asking.sendall(WHOLE)
        assert end_of(silent) == b""  # its time is over, and so would be that of the other
        answering.set()
        assert b'"done"' in end_of(asking)


def test_more_connections_than_may_be_are_turned_away(
    address: tuple[str, int], answering: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", PATIENCE_S)
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 1)
    with connected(address) as first:
        first.sendall(WHOLE)
        with connected(address) as second:
            assert end_of(second) == b""
        answering.set()
        assert b'"done"' in end_of(first)
