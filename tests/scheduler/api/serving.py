"""Applications behind a real server on loopback, with tokens of every role."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import httpx
from fastapi import FastAPI

from resnap.scheduler.access.control import AccessControl, AuthMode, Hosts
from resnap.scheduler.access.roles import Role
from resnap.scheduler.commands.serve import HttpServer
from resnap.scheduler.state.database import Database
from resnap.scheduler.web.app import guard
from tests.clocks import FixedClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fastapi import APIRouter

START_MS: Final = 1_700_000_000_000
_NO_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A service that answers; ``secrets`` are its tokens by name: one per role, one expired, one revoked."""

    client: httpx.Client
    access: AccessControl
    clock: FixedClock
    secrets: dict[str, str]
    app: FastAPI

    def bearer(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secrets[name]}"}

    def audited(self) -> list[tuple[str, str, str]]:
        """Return who did what, with which outcome; the newest first."""
        return [(entry.principal, entry.action, entry.outcome) for entry in self.access.audit.page(limit=500)]


@contextmanager
def listening(app: FastAPI, trusted_proxies: Sequence[str] = ()) -> Iterator[str]:
    """Give the address at which ``app`` is served."""
    server, listener = HttpServer.of(app, trusted_proxies), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def client_of(address: str, headers: dict[str, str] | None = None) -> httpx.Client:
    """Return a client of a server without TLS: it does not read the certificates that httpx loads for each client."""
    return httpx.Client(base_url=address, headers=headers, timeout=60, verify=_NO_CERTIFICATES)


@contextmanager
def served(
    directory: Path, *routers: APIRouter, auth: AuthMode = "token", hosts: Hosts | None = None
) -> Iterator[Served]:
    """Serve routes behind access control, whose clock is stopped."""
    clock = FixedClock(START_MS)
    database = Database(directory / "service.db")
    access = AccessControl(database, clock, os.urandom, auth=auth, hosts=hosts or Hosts("127.0.0.1"))
    app = FastAPI(docs_url=None, redoc_url=None, redirect_slashes=False)
    for router in routers:
        app.include_router(router)
    guard(app, access)
    with listening(app) as address, client_of(address) as client:
        yield Served(client=client, access=access, clock=clock, secrets=secrets_of(access, clock), app=app)
    database.close()


def secrets_of(access: AccessControl, clock: FixedClock) -> dict[str, str]:
    """Make a token for each role, one that was revoked, and one that has expired."""
    secrets = {role.value: access.tokens.create(role.value, role)[1] for role in Role}
    secrets["revoked"] = access.tokens.create("revoked", Role.ADMIN)[1]
    access.tokens.revoke("revoked")
    secrets["expired"] = access.tokens.create("expired", Role.ADMIN, lifetime=timedelta(seconds=1))[1]
    clock.advance(1000)
    return secrets
