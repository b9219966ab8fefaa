"""What requests name: within the configuration as it is now, and no secret of theirs is kept anywhere."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.runs.execution import public_error
from resnap.scheduler.service.services import Services
from resnap.scheduler.state.database import Database
from resnap.scheduler.web.app import create_app
from resnap.storage.errors import StoreAccessError
from tests.clocks import FixedClock
from tests.scheduler.api.serving import START_MS, client_of, listening
from tests.scheduler.runs.working import history_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

SECRET = "hV7x0123456789abcdefghijklmnopqrstu"


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    for name in ("logs", "out", "elsewhere"):
        (tmp_path / name).mkdir()
    return tmp_path / "out"


@pytest.fixture
def services(tmp_path: Path, allowed: Path) -> Services:
    """The service, with nothing at work in it: runs stay in the queue."""
    flags = {
        "state_dir": str(tmp_path / "state"),
        "log_dirs": (tmp_path / "logs",),
        "engine": "local",
        "allow_destinations": (str(allowed),),
    }
    return made(flags, tmp_path)


def made(flags: dict[str, object], directory: Path) -> Services:
    return Services(Configuration(flags=flags, environment={}, directory=directory), FixedClock(START_MS))


@pytest.fixture
def client(services: Services) -> Iterator[httpx.Client]:
    with listening(create_app(services, "0")) as address, client_of(address) as found:
        yield found
    services.database.close()


def ask(client: httpx.Client, **body: object) -> httpx.Response:
    return client.post("/v1/replays", json=body)


def test_a_destination_elsewhere_is_refused_and_kept_with_who_asked(
    client: httpx.Client, services: Services, allowed: Path
) -> None:
    assert ask(client, destination=str(allowed / "run")).status_code == 202
    for body in (
        {"destination": str(allowed.parent / "elsewhere")},
        {"destination": "s3://bucket/prefix"},
        {"destination": str(allowed), "sources": ["/etc"]},
        {"destination": str(allowed), "remote": "s3://bucket/tiered"},
    ):
        answer = ask(client, **body)
        assert (answer.status_code, answer.json()["code"]) == (403, "place-not-allowed")
    entries = services.access.audit.page()
    assert [entry.outcome for entry in entries] == ["403", "403", "403", "403", "202"]
    assert {entry.principal for entry in entries} == {"local"}
    assert entries[0].detail["code"] == "place-not-allowed"


def test_what_every_run_of_a_request_would_refuse_is_refused_at_once(client: httpx.Client, allowed: Path) -> None:
    answer = ask(client, kind="tier", destination=str(allowed / "store"))
    assert (answer.status_code, answer.json()["hint"].partition(";")[0]) == (
        400, f"for this directory give file://{allowed}/store"
    )  # fmt: skip
    answer = ask(client, destination=str(allowed), window={"asOf": "2026-02-30T10:00Z"})
    assert (answer.status_code, answer.json()["errors"][0]["at"]) == (422, "/window/asOf")
    assert client.get("/v1/runs").json()["runs"] == []


def test_a_place_that_was_allowed_is_judged_again_on_a_retry(
    client: httpx.Client, services: Services, allowed: Path
) -> None:
    at = ask(client, destination=str(allowed)).headers["location"]
    assert client.post(f"{at}/cancel").status_code == 202
    assert client.post(f"{at}/retry").status_code == 202
    services.settings = services.settings.model_copy(update={"allow_destinations": ()})
    again = client.post(f"{at}/retry")
    assert (again.status_code, again.json()["code"]) == (403, "place-not-allowed")


def test_what_waited_while_the_configuration_was_made_narrower_is_not_taken_up(
    client: httpx.Client, services: Services, allowed: Path
) -> None:
    kept = [ask(client, destination=str(allowed / name)).json()["id"] for name in ("a", "b")]
    services.database.close()
    flags = {**services.configuration.flags, "allow_destinations": (str(allowed / "b"),)}
    after = made(flags, allowed.parent)
    after.start()
    assert after.worker.wait(kept[1]) is not None
    assert after.stop()
    with closing(Database(services.database.path)) as left:
        refused, tried = (history_of(left).get(run_id) for run_id in kept)
    assert refused is not None
    assert tried is not None
    assert [error.code for error in refused.errors] == ["PlaceForbiddenError"]
    assert [error.code for error in tried.errors] == ["NoLogDirError"], "there is nothing in the log dir"
    assert 'resnap_runs_total{kind="regenerate",state="failed"} 2.0' in after.observation.metrics.render()[0].decode()


def test_credentials_in_a_request_are_kept_nowhere(client: httpx.Client, services: Services) -> None:
    answer = ask(client, destination=f"s3://key:{SECRET}@bucket/prefix")
    assert (answer.status_code, answer.json()["code"]) == (400, "unusable-request")
    assert SECRET not in answer.text
    for path in services.database.path.parent.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_an_error_is_kept_in_the_history_without_secrets() -> None:
    error = StoreAccessError(f"s3://key:{SECRET}@bucket: no", hint=f"aws_secret_access_key={SECRET} is wrong")
    kept = public_error(error)
    assert SECRET not in f"{kept.message} {kept.hint}"
    assert kept.message.startswith("s3://***@bucket")
