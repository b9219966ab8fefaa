"""Signing in with a real browser: the form, the session, and links from other sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse
from playwright.sync_api import sync_playwright

from resnap.scheduler.api.auth import Viewer  # noqa: TC001 - FastAPI looks it up
from resnap.scheduler.web import login
from tests.scheduler.api.serving import listening, served

if TYPE_CHECKING:
    from pathlib import Path

CHROMIUM = "/usr/bin/chromium"
pages = APIRouter()


@pages.get("/partitions")
def show_page(who: Viewer, state: str) -> HTMLResponse:
    return HTMLResponse(f"<h1>Hello {who.name}, {state}</h1>")


def chat(link: str) -> FastAPI:
    """Return another site, which links to ours."""
    other = FastAPI()
    other.add_api_route("/", lambda: HTMLResponse(f'<a href="{link}">look at this</a>'))
    return other


@pytest.mark.heavy
def test_a_signed_in_user_may_follow_links_from_elsewhere(tmp_path: Path) -> None:
    with served(tmp_path, pages, login.router) as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        link = f"{service.client.base_url}/partitions?state=not-ready".replace("//partitions", "/partitions")
        page.goto(link)
        page.get_by_label("Token").fill(service.secrets["expired"])
        page.get_by_role("button", name="Sign in").click()
        assert "expired" in page.get_by_role("alert").inner_text()
        page.get_by_label("Token").fill(service.secrets["viewer"])
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Hello viewer, not-ready").wait_for()
        assert page.evaluate("document.cookie") == ""
        # The same host under another name is another site.
        with listening(chat(link)) as elsewhere:
            page.goto(elsewhere.replace("127.0.0.1", "localhost"))
            page.get_by_role("link").click()
            page.get_by_role("heading", name="Hello viewer, not-ready").wait_for()
        browser.close()
