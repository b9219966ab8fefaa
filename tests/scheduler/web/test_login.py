"""Signing in with a browser: a cookie that may read and change nothing, and no redirect to other sites."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from resnap.scheduler.access.control import BURST
from resnap.scheduler.access.tokens import SESSION_S
from resnap.scheduler.api.auth import SESSION_COOKIE, Viewer
from resnap.scheduler.web import login
from tests.scheduler.api.serving import Served, served
from tests.scheduler.daemon.process import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

pages = APIRouter()


@pages.get("/partitions")
def show_page(who: Viewer) -> HTMLResponse:
    return HTMLResponse(f"<h1>Hello {who.name}</h1>")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, pages, login.router) as found:
        yield found


def enter(service: Served, token: str, **fields: str) -> httpx.Response:
    return service.client.post("/login", data={"token": token, **fields})


def open_page(service: Served, path: str = "/partitions") -> httpx.Response:
    return service.client.get(path, headers={"Accept": "text/html"})


def test_who_opens_a_page_is_asked_to_sign_in_and_sent_on(service: Served) -> None:
    asked = open_page(service, "/partitions?state=not-ready&topic=a%26b")
    assert asked.status_code == 303
    form = service.client.get(asked.headers["location"])
    assert 'value="/partitions?state=not-ready&amp;topic=a%26b"' in form.text
    entered = enter(service, service.secrets["viewer"], next="/partitions?state=not-ready&topic=a%26b")
    assert (entered.status_code, entered.headers["location"]) == (303, "/partitions?state=not-ready&topic=a%26b")
    assert open_page(service).text == "<h1>Hello viewer</h1>"
    assert service.client.get("/login?next=/partitions").headers["location"] == "/partitions"


def test_a_client_that_hangs_up_within_the_form_is_not_a_failure_of_the_service(
    service: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection((service.client.base_url.host, service.client.base_url.port or 0)) as caller:
        caller.sendall(
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntok"
        )
    assert eventually(service.audited, bool) == [("anonymous", "POST /login", "400")]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_program_is_not_sent_to_a_form(service: Served) -> None:
    assert service.client.get("/partitions").status_code == 401
    assert open_page(service, "/v1/nowhere").status_code == 404


def test_the_cookie_is_for_the_browser_alone(service: Served) -> None:
    cookie = enter(service, service.secrets["viewer"]).headers["set-cookie"]
    assert cookie.startswith(f"{SESSION_COOKIE}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={SESSION_S}"} <= set(cookie.split("; "))
    assert service.secrets["viewer"] not in cookie


@pytest.mark.parametrize("caller", ["expired", "revoked", "nobody"])
def test_a_wrong_token_is_asked_for_again_and_not_repeated(service: Served, caller: str) -> None:
    secret = service.secrets.get(caller, "resnap_<script>")
    refused = enter(service, secret, next="/partitions")
    assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
    assert 'role="alert"' in refused.text
    assert secret not in refused.text
    assert service.audited() == [("anonymous", "POST /login", "401")]


@pytest.mark.parametrize("form", ["&".join(["a=b"] * 10_000), f"next={'%2F' * 30_000}"])
def test_a_form_that_is_larger_than_ours_is_not_read(form: str, service: Served) -> None:
    """Its fields would be read while no other client gets a response."""
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    refused = service.client.post("/login", content=f"token={service.secrets['viewer']}&{form}", headers=kind)
    assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)


def test_too_many_wrong_tokens_have_to_wait(service: Served) -> None:
    statuses = [enter(service, "resnap_wrong").status_code for _ in range(BURST + 1)]
    assert statuses == [401] * BURST + [429]
    assert int(enter(service, "resnap_wrong").headers["retry-after"]) > 0
    assert enter(service, service.secrets["viewer"]).status_code == 303


def test_a_session_ends_by_logging_out_and_both_are_audited(service: Served) -> None:
    enter(service, service.secrets["operator"])
    session = service.client.cookies[SESSION_COOKIE]
    assert service.client.post("/logout").headers["location"] == "/login"
    assert service.access.tokens.principal_of_session(session) is None
    assert open_page(service).status_code == 303
    assert service.audited() == [("operator", "POST /logout", "303"), ("operator", "POST /login", "303")]


def test_another_site_cannot_sign_a_user_in_or_out(service: Served) -> None:
    for path in ("/login", "/logout"):
        headers = {"Origin": "http://evil.example", "Content-Type": "application/x-www-form-urlencoded"}
        assert service.client.post(path, headers=headers, content=b"token=x").status_code == 403


@pytest.mark.parametrize(
    "path", ["//evil.example", "/\\evil.example", "/\t/evil.example", "https://evil.example", "javascript:1", "", "x"]
)
def test_no_redirect_leads_to_another_site(service: Served, path: str) -> None:
    assert enter(service, service.secrets["viewer"], next=path).headers["location"] == "/"
    assert service.client.get(f"/login?next={quote(path)}").headers["location"] == "/"


def test_what_is_asked_for_is_text_on_the_page(service: Served) -> None:
    form = service.client.get("/login", params={"next": '/"><script>alert(1)</script>'})
    assert "<script>" not in form.text


def test_where_no_token_is_asked_for_there_is_no_login(tmp_path: Path) -> None:
    with served(tmp_path, pages, login.router, auth="none") as service:
        assert open_page(service).text == "<h1>Hello local</h1>"
        assert service.client.get("/login?next=/partitions").headers["location"] == "/partitions"


def test_a_form_requested_from_another_site_reloads_itself(service: Served) -> None:
    assert service.client.get("/login", headers={"Sec-Fetch-Site": "cross-site"}).headers["refresh"] == "0"
    assert "refresh" not in service.client.get("/login", headers={"Sec-Fetch-Site": "same-origin"}).headers
