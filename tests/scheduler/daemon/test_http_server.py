"""Callers who do not ask in time, and too many of them, against a real server on loopback."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi import FastAPI, Request

from resnap.scheduler.commands import serve
from tests.scheduler.api.serving import listening

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60
WHOLE = b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def answering() -> threading.Event:
    return threading.Event()


@pytest.fixture
def asked() -> threading.Event:
    return threading.Event()


@pytest.fixture
def address(
    monkeypatch: pytest.MonkeyPatch, answering: threading.Event, asked: threading.Event
) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(serve, "REQUEST_S", 1.0)
    app = FastAPI()

    @app.get("/slow")
    def slow() -> str:
        asked.set()
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
    """Send a byte now and then for as long as the server takes it."""
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


def test_who_has_waited_longest_makes_room_for_who_asks(
    address: tuple[str, int], answering: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "REQUEST_S", PATIENCE_S)
    monkeypatch.setattr(serve, "MOST_CONNECTIONS", 3)
    answering.set()
    with connected(address) as idle, connected(address) as silent, connected(address) as later:
        idle.sendall(WHOLE.replace(b"Connection: close\r\n", b""))
        answer = b""
        while b'"done"' not in answer:  # and it is kept alive
            answer += idle.recv(4096)
        with connected(address) as asking:
            asking.sendall(WHOLE)
            assert b'"done"' in end_of(asking)
        assert end_of(silent) == b""
        for left in (idle, later):
            left.sendall(WHOLE)
            assert b'"done"' in end_of(left)


@pytest.mark.parametrize(
    ("trusted", "seen"), [((), "127.0.0.1"), (("10.0.0.0/8",), "127.0.0.1"), (("127.0.0.0/8",), "192.0.2.7")]
)
def test_only_a_trusted_proxy_may_name_its_caller(trusted: tuple[str, ...], seen: str) -> None:
    app = FastAPI()

    @app.get("/who")
    def who(request: Request) -> str:
        assert request.client is not None
        return f"{request.url.scheme} {request.client.host}"

    with listening(app, trusted) as url:
        answer = httpx.get(f"{url}/who", headers={"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"})
    assert answer.json() == f"{'https' if seen == '192.0.2.7' else 'http'} {seen}"


def test_more_connections_than_may_be_are_turned_away_while_all_are_answered(
    address: tuple[str, int], answering: threading.Event, asked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "REQUEST_S", PATIENCE_S)
    monkeypatch.setattr(serve, "MOST_CONNECTIONS", 1)
    with connected(address) as first:
        first.sendall(WHOLE)
        assert asked.wait(PATIENCE_S)
        with connected(address) as second:
            assert end_of(second) == b""
        answering.set()
        assert b'"done"' in end_of(first)
