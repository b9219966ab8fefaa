"""The whole service over a log that a real broker wrote, behind a real server."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from resnap.scheduler.access.roles import Role
from resnap.scheduler.clock import Clock
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.runs.run import RunState
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.app import create_app
from tests.scheduler.api.serving import client_of, listening

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx
    from fastapi import FastAPI

FINAL: Final = {"succeeded", "partially_failed", "failed", "cancelled"}
OVER: Final = tuple(map(RunState, FINAL))
_DEADLINE_S: Final = 300
"""For what takes a second on a machine that does nothing else."""
_CONFIGURATION: Final = """
engine = "local"
log.dirs = "{log_dir}"
state-dir = "{directory}/state"
allow-sources = ["{directory}/sources"]
allow-destinations = ["{directory}/out"]
queue-size = 5
auth = "{auth}"

[[schedules]]
name = "look"
run = "scan"
every = "1h"

[[schedules]]
name = "ship"
run = "tier"
cron = "0 0 1 1 *"
to = "file://{directory}/store"
settings = {{ as-of = "roll" }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A service at work, and who may speak to it."""

    address: str
    app: FastAPI
    services: Services
    directory: Path
    secrets: dict[str, str]

    def client(self, role: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.secrets[role]}"} if role else {}
        return client_of(self.address, headers)

    def over(self, client: httpx.Client, location: str) -> dict[str, Any]:
        """Return a run once it is over."""
        ends_s = time.monotonic() + _DEADLINE_S
        while time.monotonic() < ends_s:
            run: dict[str, Any] = client.get(location).json()
            if run["state"] in FINAL:
                return run
            time.sleep(0.05)
        raise AssertionError(f"{location} is not over: {run}")


@contextmanager
def whole(
    directory: Path,
    log_dir: Path,
    *,
    auth: str = "none",
    more: str = "",
    environment: dict[str, str] | None = None,
) -> Iterator[Whole]:
    """Serve everything over ``log_dir``, with ``more`` in the configuration; the first scan is through."""
    text = _CONFIGURATION.format(log_dir=log_dir, directory=directory, auth=auth) + more
    (directory / "resnap.toml").write_text(text)
    services = Services(Configuration(directory=directory, environment=environment or {}), Clock())
    secrets = {role.value: services.access.tokens.create(role.value, role)[1] for role in Role}
    app = create_app(services, "0")
    services.start()
    try:
        with listening(app) as address:
            ends_s = time.monotonic() + _DEADLINE_S
            while not services.history.page(states=OVER, limit=1) and time.monotonic() < ends_s:
                time.sleep(0.02)
            yield Whole(address=address, app=app, services=services, directory=directory, secrets=secrets)
            services.is_ending = True
    finally:
        assert services.stop()
