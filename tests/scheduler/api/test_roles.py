"""Every route and every role, by a table; and what a session of a browser is good for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from fastapi import APIRouter

from resnap.scheduler.access.roles import Role
from resnap.scheduler.api.auth import SESSION_COOKIE, Admin, Operator, Viewer
from tests.scheduler.api.role_table import OWN_ROUTES, check_route, routes_of
from tests.scheduler.api.serving import Served, served

if TYPE_CHECKING:
    from collections.abc import Iterator

router = APIRouter(prefix="/v1/things")


@router.get("")
def list_things(who: Viewer) -> dict[str, str]:
    return {"who": who.name}


@router.post("/{thing_id}/run", status_code=202)
def run_thing(thing_id: str, who: Operator) -> dict[str, str]:
    return {"thing": thing_id, "who": who.name}


@router.delete("/{thing_id}")
def delete_thing(thing_id: str, who: Admin) -> dict[str, str]:
    return {"thing": thing_id, "who": who.name}


@router.get("/open")
def open_thing() -> dict[str, str]:
    return {}


TABLE: Final = {
    **OWN_ROUTES,
    ("GET", "/v1/things"): Role.VIEWER,
    ("POST", "/v1/things/{thing_id}/run"): Role.OPERATOR,
    ("DELETE", "/v1/things/{thing_id}"): Role.ADMIN,
    ("GET", "/v1/things/open"): None,
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("roles"), router) as found:
        yield found


def test_every_route_is_in_the_table(service: Served) -> None:
    assert routes_of(service.app) == TABLE.keys()


@pytest.mark.parametrize(("method", "path"), TABLE, ids=str)
def test_a_route_admits_its_role_and_no_other(service: Served, method: str, path: str) -> None:
    check_route(service, method, path, TABLE[method, path])


def test_the_description_states_the_role_of_each_operation(service: Served) -> None:
    told = service.app.openapi()["paths"]
    for (method, path), role in TABLE.items():
        if path != "/openapi.json":
            wanted = [{"token": [role.value]}] if role else None
            assert told[path][method.lower()].get("security") == wanted


def test_a_session_may_read_and_change_nothing(service: Served) -> None:
    _, session = service.access.enter(service.secrets["admin"], "127.0.0.1")
    cookie = {"Cookie": f"{SESSION_COOKIE}={session}"}
    assert service.client.get("/v1/things", headers=cookie).json() == {"who": "admin"}
    assert service.client.delete("/v1/things/1", headers=cookie).status_code == 401


def test_where_no_token_is_asked_for_every_caller_is_local(tmp_path_factory: pytest.TempPathFactory) -> None:
    with served(tmp_path_factory.mktemp("open"), router, auth="none") as service:
        assert service.client.delete("/v1/things/1").json()["who"] == "local"
        assert service.audited() == [("local", "DELETE /v1/things/{thing_id}", "200")]
        assert "security" not in service.app.openapi()["paths"]["/v1/things"]["get"]
