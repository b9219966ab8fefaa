"""Every route of the service and every role: a route that is not in the table, or admits another role, is an error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from resnap.scheduler.access.roles import Role
from resnap.scheduler.daemon.app import create_app
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.service.services import Services
from tests.clocks import FixedClock
from tests.scheduler.api.role_table import OWN_ROUTES, check_route, routes_of
from tests.scheduler.api.serving import START_MS, Served, listening, secrets_of

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN_ROUTES: Final = {
    ("GET", ""): Role.VIEWER,
    ("GET", "/{run_id}"): Role.VIEWER,
    ("GET", "/{run_id}/events"): Role.VIEWER,
    ("GET", "/{run_id}/partitions"): Role.VIEWER,
    ("POST", "/{run_id}/cancel"): Role.OPERATOR,
    ("POST", "/{run_id}/retry"): Role.OPERATOR,
}
PARTITION: Final = "/v1/partitions/{topic}/{partition}"
TABLE: Final = {
    **OWN_ROUTES,
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


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The service itself, over a log dir without partitions; nothing is at work in it."""
    state, logs = tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("logs")
    clock = FixedClock(START_MS)
    flags = {"state_dir": str(state), "log_dirs": (logs,), "engine": "local", "auth": "token"}
    services = Services(Configuration(flags=flags, environment={}, directory=state), clock)
    app = create_app(services, "0")
    with listening(app) as address, httpx.Client(base_url=address, timeout=60) as client:
        secrets = secrets_of(services.access, clock)
        yield Served(client=client, access=services.access, clock=clock, secrets=secrets, app=app)
    services.database.close()


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
