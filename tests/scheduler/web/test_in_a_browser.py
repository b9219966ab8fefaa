"""The pages in a real Chromium: by keyboard, in the dark, on a phone, live, and held against the rules of axe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from resnap.scheduler.runs.run import Run, RunEnd, RunRequest, RunState
from resnap.scheduler.web import login, rendering
from tests.scheduler.api.serving import served
from tests.scheduler.api.whole import Whole, whole
from tests.scheduler.services import Script, fleet_table, scripted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

    from tests.fixture_sets import FixtureSet

CHROMIUM: Final = Path("/usr/bin/chromium")
PATIENCE_MS: Final = 60_000
"""For what takes a moment on a machine that does nothing else."""
expect.set_options(timeout=PATIENCE_MS)
RUN_ID: Final = "01m80nh4xnte37pxkvd4"
CONTRAST: Final = {"runOnly": ["color-contrast"]}
"""All else is the same in the dark."""
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}: the pages go untested in a browser"),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    with (
        scripted(Script()) as other,
        whole(
            tmp_path_factory.mktemp("browser"),
            fixture_set("kafka-2.7.2").data,
            more=fleet_table(1, other.address) + fleet_table(2, "http://127.0.0.1:9"),
        ) as found,
    ):
        seen = found.services.scans.find("payments", 0)[0]
        odd = {**seen.row, "topic": "a" * 200 + "<b>", "path": "/" + "long-" * 60}
        found.services.scans.keep("/" + "long-" * 60, [odd])
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def is_error(message: ConsoleMessage) -> bool:
    """Whether a page has done something wrong; the one that is not there is to be answered with 404."""
    return message.type == "error" and not message.location["url"].endswith("/nowhere")


@pytest.fixture
def context(browser: Browser, service: Whole) -> Iterator[BrowserContext]:
    """A browser that fails the test where a page asks for anything elsewhere, or breaks one of its own rules."""
    wrong: list[str] = []
    context = browser.new_context(base_url=service.address, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    context.on("request", lambda one: None if one.url.startswith(service.address) else wrong.append(one.url))
    context.on("console", lambda one: wrong.append(one.text) if is_error(one) else None)
    context.on("weberror", lambda one: wrong.append(str(one.error)))
    yield context
    context.close()
    assert wrong == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


def pages(service: Whole) -> list[str]:
    """Return one address of each kind of page."""
    partition = "/partitions/payments/0"
    services = service.services
    boundaries = services.partition_details.boundaries(services.scans.find("payments", 0)[0])
    present = [boundary.offset for boundary in boundaries if boundary.state == "present"]
    runs = services.history.page(limit=1)
    snapshot = f"{partition}/snapshots/{present[0]}?to={present[-1]}"
    explained = f"{partition}/explain/{present[-1]}?producerId=0"
    with service.client() as client:
        plan = f"/plans/{client.post('/v1/plans', json={}).json()['id']}"
    return [
        *("/plans", plan, explained, "/nowhere"),
        "/",
        "/topics",
        partition,
        snapshot,
        "/runs",
        f"/runs/{runs[0].id}",
        "/schedules",
        "/fleet",
        "/audit",
    ]


def test_the_overview_is_filtered_by_keyboard_alone(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"Can I turn tiering on yet\? 1 of \d topics"))
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_label("Topic", exact=True).focus()
    page.keyboard.type("pay*")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # a form is sent from any of its fields
    page.wait_for_url("**topic=pay*")
    expect(page.get_by_role("row", name="payments-0").first).to_be_visible()
    expect(page.get_by_role("link", name="orders-0")).to_have_count(0)
    outline = page.get_by_label("Topic", exact=True).evaluate(
        "one => { one.focus(); return getComputedStyle(one).outlineStyle }"
    )
    assert outline == "solid"


def test_everything_is_there_without_scripts(browser: Browser, service: Whole) -> None:
    with browser.new_context(base_url=service.address, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto("/")
        page.get_by_role("rowheader", name="payments").get_by_role("link").click()
        page.get_by_role("link", name="payments-1").first.click()  # named as a reason, too
        expect(page.get_by_role("heading", level=1)).to_contain_text("blocked")
        expect(page.get_by_role("button", name="Copy")).to_have_count(0)
        expect(page.get_by_text("resnap regenerate").first).to_be_visible()


def test_a_command_is_copied(context: BrowserContext, service: Whole) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=service.address)
    page = context.new_page()
    page.goto("/?topic=pay*")
    line = page.locator("code[id^=line]").first.text_content()
    assert line
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == line


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_keeps_the_rules_of_accessibility(page: Page, service: Whole, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    grounds = set()
    for path in pages(service):
        page.goto(path)
        found = Axe().run(page, options=None if scheme == "light" else CONTRAST)
        assert found.response["violations"] == [], (path, found.generate_report())
        assert found.response["passes"]
        grounds.add(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert grounds == ({"rgb(20, 23, 26)"} if scheme == "dark" else {"rgb(255, 255, 255)"})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_to_sign_in_keeps_them_too(browser: Browser, tmp_path: Path, scheme: str) -> None:
    with served(tmp_path, login.router, rendering.router) as found:
        page = browser.new_page(
            base_url=str(found.client.base_url), color_scheme="dark" if scheme == "dark" else "light",
            viewport={"width": 360, "height": 740},
        )  # fmt: skip
        page.goto("/login?next=/runs")
        expect(page.get_by_label("Token")).to_be_focused()
        assert Axe().run(page).response["violations"] == []
        page.keyboard.type("resnap_wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_be_visible()
        found_wrong = Axe().run(page)
        assert found_wrong.response["violations"] == [], found_wrong.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.close()


def test_no_page_scrolls_sideways_on_a_phone(page: Page, service: Whole) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    for path in pages(service):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") == 360, path


def test_a_run_is_followed_to_its_end_without_a_reload(page: Page, service: Whole) -> None:
    history = service.services.history
    asked = RunRequest(kind="regenerate", destination="/nowhere")
    run = Run(id=RUN_ID, request=asked, state=RunState.QUEUED, origin="api", principal="local", created_ms=0)
    history.add(run)
    history.began(RUN_ID)
    page.goto(f"/runs/{RUN_ID}")
    page.evaluate("window.same = true")
    expect(page.locator("#run")).to_contain_text("running")
    row = {"task": "replay", "phase": "scanning", "segments": 612, "segmentsTotal": 1478, "bytes": 1 << 30,
           "bytesTotal": 5 << 30, "elapsedMs": 60_000, "bytesPerSecond": 1 << 24, "leftMs": 4_800_000}  # fmt: skip
    history.progressed(RUN_ID, {"replay": row | {"phase": "compiling"}})
    expect(page.get_by_text("preparing machine code (first run only)")).to_be_visible()
    history.progressed(RUN_ID, {"replay": row})
    expect(page.get_by_text("scanning")).to_be_visible()
    expect(page.get_by_text("612 / 1,478 segments")).to_be_visible()
    expect(page.get_by_text("1 h 20 m left")).to_be_visible()
    expect(page.get_by_role("status").first).to_have_text("regenerate running, 20 % done")
    history.ended(RUN_ID, RunEnd(state=RunState.SUCCEEDED, totals={"snapshots": 1478}, errors=()))
    expect(page.locator("#run")).to_contain_text("succeeded")
    expect(page.get_by_role("status").first).to_have_text("regenerate succeeded")
    assert page.evaluate("window.same") is True
