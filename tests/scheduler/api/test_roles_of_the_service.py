"""Every route of the service and every role: a route that is not in the table, or admits another role, is an error."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest
from fastapi.routing import iter_route_contexts
from starlette.routing import Mount

from resnap.scheduler.access.roles import Role
from resnap.scheduler.api.auth import SESSION_COOKIE
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.app import create_app
from tests.clocks import FixedClock
from tests.scheduler.api.serving import START_MS, Served, client_of, listening, secrets_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fastapi import FastAPI

NO_PRODUCERS: Final = ("none", "revoked", "expired", "garbage")
SAFE: Final = ("GET", "HEAD", "OPTIONS")
REFUSED: Final = {401, 403}
RUN_ROUTES: Final = {
    ("GET", ""): Role.VIEWER,
    ("GET", "/{run_id}"): Role.VIEWER,
    ("GET", "/{run_id}/events"): Role.VIEWER,
    ("GET", "/{run_id}/partitions"): Role.VIEWER,
    ("POST", "/{run_id}/cancel"): Role.OPERATOR,
    ("POST", "/{run_id}/retry"): Role.OPERATOR,
}
PARTITION: Final = "/v1/partitions/{topic}/{partition}"
TABLE: Final[Mapping[tuple[str, str], Role | None]] = {
    ("GET", "/openapi.json"): None,
    ("GET", "/v1/problems"): None,
    ("GET", "/v1/problems/{code}"): None,
    **{(method, f"/v1/runs{path}"): role for (method, path), role in RUN_ROUTES.items()},
    ("GET", "/"): Role.VIEWER,
    ("GET", "/topics"): Role.VIEWER,
    ("GET", "/partitions/{topic}/{partition}"): Role.VIEWER,
    ("GET", "/partitions/{topic}/{partition}/snapshots/{offset}"): Role.VIEWER,
    ("GET", "/partitions/{topic}/{partition}/explain/{offset}"): Role.VIEWER,
    ("GET", "/runs"): Role.VIEWER,
    ("GET", "/runs/{run_id}"): Role.VIEWER,
    ("GET", "/plans"): Role.VIEWER,
    ("GET", "/plans/{plan_id}"): Role.VIEWER,
    ("GET", "/schedules"): Role.VIEWER,
    ("GET", "/docs"): Role.VIEWER,
    ("GET", "/producers"): Role.VIEWER,
    ("GET", "/audit"): Role.ADMIN,
    ("GET", "/static/{name}"): None,
    ("GET", "/login"): None,
    ("POST", "/login"): None,
    ("POST", "/logout"): None,
    ("GET", "/livez"): None,
    ("GET", "/readyz"): None,
    ("GET", "/metrics"): None,
    ("POST", "/v1/replica-checks"): Role.OPERATOR,
    ("GET", "/v1/sources"): Role.VIEWER,
    ("GET", "/v1/partitions"): Role.VIEWER,
    ("GET", PARTITION): Role.VIEWER,
    ("GET", f"{PARTITION}/boundaries"): Role.VIEWER,
    ("GET", f"{PARTITION}/explain/{{offset}}"): Role.VIEWER,
    ("GET", f"{PARTITION}/snapshots/{{offset}}"): Role.VIEWER,
    ("GET", f"{PARTITION}/snapshots/{{offset}}/difference"): Role.VIEWER,
    ("GET", "/v1/plans"): Role.VIEWER,
    ("GET", "/v1/plans/{plan_id}"): Role.VIEWER,
    ("GET", "/v1/plans/{plan_id}/file"): Role.VIEWER,
    ("GET", "/v1/schedules"): Role.VIEWER,
    ("GET", "/v1/fleet"): Role.VIEWER,
    ("GET", "/fleet"): Role.VIEWER,
    ("GET", "/v1/schedules/{name}"): Role.VIEWER,
    ("POST", "/v1/replays"): Role.OPERATOR,
    ("POST", "/v1/scans"): Role.OPERATOR,
    ("POST", "/v1/plans"): Role.OPERATOR,
    ("POST", "/v1/plans/{plan_id}/replays"): Role.OPERATOR,
    ("POST", "/v1/schedules/{name}/run"): Role.OPERATOR,
    ("POST", "/v1/schedules/{name}/pause"): Role.ADMIN,
    ("POST", "/v1/schedules/{name}/resume"): Role.ADMIN,
    ("GET", "/v1/audit"): Role.ADMIN,
}
"""None stands for every caller."""


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    """Return every route as (method, path); all below a mount is one, of the method ``GET``."""
    found: set[tuple[str, str]] = set()
    for context in iter_route_contexts(app.routes):
        if isinstance(context.original_route, Mount):
            found.add(("GET", f"{context.path}/{{path}}"))
        else:
            found |= {(method, str(context.path)) for method in (context.methods or ()) if method != "HEAD"}
    return found


def may(role: Role | None, caller: str) -> int | None:
    """Return the status with which ``caller`` must be refused a route for ``role``; None if they must not be."""
    if role is None:
        return None
    if caller in NO_PRODUCERS:
        return 401
    return None if Role(caller).covers(role) else 403


def check_route(service: Served, method: str, path: str, role: Role | None) -> None:
    """Call one route as every principal, and compare the response with the expected one."""
    for caller in (*NO_PRODUCERS, *Role):
        service.clock.advance(60_000)  # so that failures do not add up to a limit
        headers = {} if caller == "none" else {"Authorization": f"Bearer {service.secrets.get(caller, 'resnap_x')}"}
        where = re.sub(r"\{[^}]*\}", "1", path)
        body = None if method in SAFE else {}
        with service.client.stream(method, where, headers=headers, json=body) as answer:
            status = answer.status_code
        wanted = may(role, caller)
        assert (status == wanted) if wanted else (status not in REFUSED), (method, path, caller, status)


@contextmanager
def the_service(root: Path, auth: str) -> Iterator[Served]:
    """Serve the service itself, over a log dir without partitions; nothing is at work in it."""
    state, logs = root / "state", root / "logs"
    state.mkdir()
    logs.mkdir()
    clock = FixedClock(START_MS)
    flags = {"state_dir": str(state), "log_dirs": (logs,), "engine": "local", "auth": auth}
    services = Services(Configuration(flags=flags, environment={}, directory=state), clock)
    app = create_app(services, "0")
    with listening(app) as address, client_of(address) as client:
        secrets = secrets_of(services.access, clock) if auth == "token" else {}
        yield Served(client=client, access=services.access, clock=clock, secrets=secrets, app=app)
    services.database.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with the_service(tmp_path_factory.mktemp("roles"), "token") as served:
        yield served


def test_every_route_is_in_the_table(service: Served) -> None:
    assert routes_of(service.app) == TABLE.keys()


@pytest.mark.parametrize(("method", "path"), TABLE, ids=str)
def test_a_route_admits_its_role_and_no_other(service: Served, method: str, path: str) -> None:
    check_route(service, method, path, TABLE[method, path])


def test_every_call_to_change_something_was_audited_under_its_route(service: Served) -> None:
    changing = [(method, path, role) for (method, path), role in TABLE.items() if method == "POST" and role]
    for method, path, role in changing:
        check_route(service, method, path, role)
        seen = service.audited()[:7]
        # An unknown client is refused before its route is resolved.
        assert {action for who, action, _ in seen if who != "anonymous"} == {f"{method} {path}"}
        assert {who for who, _, _ in seen} == {"anonymous", *Role}


def test_requests_are_counted_by_route_and_what_no_route_takes_as_one(service: Served) -> None:
    for path in ("/v1/runs/1", "/v1/runs/2", "/nowhere/1", "/nowhere/2"):
        service.client.get(path, headers=service.bearer("viewer"))
    counted = service.client.get("/metrics").text
    assert re.search(r'resnap_http_requests_total\{[^}]*route="/v1/runs/\{run_id\}"[^}]*\} [1-9]', counted)
    assert "/v1/runs/1" not in counted
    assert "nowhere" not in counted


def test_no_answer_was_a_failure_and_every_refusal_is_described(service: Served) -> None:
    told = service.app.openapi()["paths"]
    for method, path in TABLE:
        if path in told:
            where = re.sub(r"\{[^}]*\}", "1", path)
            with service.client.stream(
                method, where, headers=service.bearer("admin"), json={} if method == "POST" else None
            ) as answer:
                assert str(answer.status_code) in told[path][method.lower()]["responses"], (method, path)
                assert answer.status_code < 500


def test_the_description_states_the_role_of_each_operation(service: Served) -> None:
    told = service.app.openapi()["paths"]
    assert told.keys() >= {path for _, path in TABLE if path.startswith("/v1/")}
    for (method, path), role in TABLE.items():
        if path in told:
            assert told[path][method.lower()].get("security") == ([{"token": [role.value]}] if role else None)


def test_a_session_may_read_and_change_nothing(service: Served) -> None:
    _, session = service.access.enter(service.secrets["admin"], "127.0.0.1")
    cookie = {"Cookie": f"{SESSION_COOKIE}={session}"}
    assert service.client.get("/v1/audit", headers=cookie).status_code == 200
    assert service.client.post("/v1/schedules/1/pause", headers=cookie, json={}).status_code == 401


def test_where_no_token_is_asked_for_every_caller_is_local(tmp_path: Path) -> None:
    with the_service(tmp_path, "none") as service:
        assert service.client.post("/v1/schedules/1/pause", json={}).status_code == 404
        assert service.audited() == [("local", "POST /v1/schedules/{name}/pause", "404")]
        assert "security" not in service.app.openapi()["paths"]["/v1/audit"]["get"]
