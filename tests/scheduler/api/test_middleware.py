"""What is refused at the door, what is kept of it, and what every answer carries."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from fastapi import APIRouter, Request

from resnap.scheduler.access.control import BURST
from resnap.scheduler.access.roles import Role
from resnap.scheduler.api.auth import Operator, Viewer  # noqa: TC001 - FastAPI looks them up
from resnap.scheduler.api.middleware import BODY_BYTES
from resnap.scheduler.api.request_context import context_in
from resnap.storage.errors import StoreFullError
from tests.scheduler.api.serving import Served, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

router = APIRouter(prefix="/v1/things")


@router.get("")
def list_things(who: Viewer) -> dict[str, str]:
    return {"who": who.name}


@router.post("")
def make_thing(body: dict[str, str], who: Operator, request: Request) -> dict[str, int]:
    context_in(request.scope).detail["source"] = "s3://key:secret@bucket"
    if "fail" in body:
        raise StoreFullError(who.name)
    return {"length": len(body)}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, router) as found:
        yield found


def make(service: Served, caller: str = "operator", **headers: str) -> int:
    sent = {**service.bearer(caller), **{name.replace("_", "-"): value for name, value in headers.items()}}
    return service.client.post("/v1/things", headers=sent, json={}).status_code


def codes(service: Served) -> list[object]:
    return [entry.detail.get("code") for entry in service.access.audit.page()]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "[::1]evil.example",
        "[::1]evil.example:80",
        "[::1].evil.example",
        "[::1",
        "::1",
        "[localhost]",
        "[127.0.0.1]",
        "[127.0.0.1]evil.example",
        "localhost:80@evil.example",
        "localhost:evil.example",
        "127.0.0.1:80:80",
        "user@localhost",
        "localhost/evil.example",
    ],
)
def test_an_unknown_host_name_is_refused_even_for_reading(service: Served, host: str) -> None:
    assert service.client.get("/v1/problems", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize(
    "host", ["localhost:1", "LOCALHOST", "127.0.0.1", "[::1]", "[::1]:9", "[0:0::1]", "localhost:", "127.8.9.1:80"]
)
def test_names_of_the_loopback_interface_are_ours(service: Served, host: str) -> None:
    assert service.client.get("/v1/problems", headers={"Host": host}).status_code == 200


def test_a_page_of_another_origin_may_change_nothing(service: Served) -> None:
    own = str(service.client.base_url).rstrip("/")
    assert make(service, Origin=own, Sec_Fetch_Site="same-origin") == 200
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": f"{own}.evil.example"},
                    {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site", "Origin": own}):  # fmt: skip
        assert make(service, **headers) == 403
    assert set(codes(service)[:5]) == {"cross-site"}


def test_a_form_is_not_a_request(service: Served) -> None:
    answer = service.client.post("/v1/things", headers=service.bearer("operator"), data={"a": "b"})
    assert (answer.status_code, codes(service)) == (415, ["not-json"])


def test_a_body_may_be_so_long_and_no_longer(service: Served) -> None:
    frame = len(b'{"a":""}')
    for padding, wanted in ((BODY_BYTES - frame, 200), (BODY_BYTES - frame + 1, 413)):
        body = b'{"a":"' + b"x" * padding + b'"}'
        for content in (body, (body[at : at + 65536] for at in range(0, len(body), 65536))):
            headers = {**service.bearer("operator"), "Content-Type": "application/json"}
            assert service.client.post("/v1/things", headers=headers, content=content).status_code == wanted


def test_an_unknown_client_is_refused_before_its_body_is_read(service: Served) -> None:
    address = urlsplit(str(service.client.base_url))
    with socket.create_connection((str(address.hostname), address.port or 0)) as connection:
        head = (
            "POST /v1/things HTTP/1.1",
            f"Host: {address.netloc}",
            "Content-Type: application/json",
            "Content-Length: 9",
        )
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        assert connection.recv(12) == b"HTTP/1.1 401"


def test_every_attempt_to_change_something_is_kept_with_who_and_what_came_of_it(service: Served) -> None:
    assert [make(service), make(service, "viewer"), make(service, "revoked")] == [200, 403, 401]
    service.client.post("/v1/things", headers=service.bearer("operator"), json={"fail": "x"})
    service.client.get("/v1/things", headers=service.bearer("viewer"))
    kept = [("operator", "507"), ("anonymous", "401"), ("viewer", "403"), ("operator", "200")]
    assert service.audited() == [(who, "POST /v1/things", outcome) for who, outcome in kept]
    newest = service.access.audit.page()[0]
    assert newest.role == Role.OPERATOR
    assert newest.detail["code"] == "store-full"
    assert newest.detail["source"] == "s3://***@bucket"
    assert newest.detail["address"] == "127.0.0.1"


def test_wrong_tokens_have_to_wait_and_the_right_one_is_not_kept_out(service: Served) -> None:
    wrong = {"Authorization": "Bearer resnap_wrong"}
    statuses = [service.client.get("/v1/things", headers=wrong).status_code for _ in range(BURST + 1)]
    assert statuses == [401] * BURST + [429]
    answer = service.client.get("/v1/things", headers=wrong)
    assert int(answer.headers["retry-after"]) > 0
    assert make(service) == 200
    service.clock.advance(int(answer.headers["retry-after"]) * 1000)
    assert service.client.get("/v1/things", headers=wrong).status_code == 401


def test_unknown_clients_cannot_fill_the_audit(service: Served) -> None:
    for _ in range(BURST + 5):
        service.client.post("/v1/things", json={})
    assert len(service.audited()) == BURST


def test_what_cannot_be_audited_is_not_answered_as_done(tmp_path: Path) -> None:
    with served(tmp_path, router) as service:
        with service.access.audit.database.write() as connection:
            connection.execute("ALTER TABLE audit RENAME TO gone")
        answer = service.client.post("/v1/things", headers=service.bearer("operator"), json={})
        assert (answer.status_code, answer.json()["code"]) == (503, "state-unusable")


def test_every_answer_keeps_browsers_from_harm(service: Served) -> None:
    for path in ("/v1/problems", "/nowhere", "/v1/things"):
        headers = service.client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
