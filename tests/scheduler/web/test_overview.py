"""The first page over HTTP: the whole service, over a log that a real broker wrote, and over very many partitions."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest

from resnap.scheduler.runs.scans import PartitionFilter
from tests.scheduler.api.whole import Whole, whole

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

HOSTILE = ("<script>alert(1)</script>", '" onmouseover="x', "a&b", "{{ 7*7 }}", "tür", "to*pic[x]", "$(reboot)")
MANY = 10_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    with whole(tmp_path_factory.mktemp("overview"), fixture_set("kafka-2.7.2").data) as found:
        yield found


def scanned(service: Whole) -> dict[str, Any]:
    """Return the row of a partition that blocks, as the scan made it."""
    return dict(service.services.scans.find("payments", 0)[0].row)


def opened(service: Whole, path: str, role: str | None = None) -> str:
    with service.client(role) as client:
        answer = client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


def rows(text: str) -> list[str]:
    """Return the partitions on the page."""
    return [unescape(name) for name in re.findall(r'<th scope="row"><a class="name"[^>]*>([^<]*)</a>', text)]


def test_the_question_is_answered_in_words_first(service: Whole) -> None:
    text = opened(service, "/")
    assert re.search(r"<h1[^>]*>Can I turn tiering on yet\? <strong>1 of 5 topics</strong></h1>", text)
    said = [re.sub("<[^>]*>", "", line) for line in text.splitlines()]
    assert "1 of 5 topics can be turned on now: orders." in said
    assert "3 blocked: dash-ed.topic_1, legacy, payments." in said
    assert "1 never (Kafka does not tier what is compacted or internal): compacted." in said
    assert '3 blocked: <span class="named"><a class="name" href="/?topic=dash-ed.topic_1#partitions">dash-ed' in text
    assert (
        '<ul class="counts" aria-label="Partitions by verdict">\n<li class="soft" aria-hidden="true">Partitions<'
        in text
    )
    assert re.search(
        r'<li>wait for retention: <span class="named"><a class="name" href="[^"]*/legacy/0[^"]*">legacy-0</a>', text
    )
    assert "--add-config remote.storage.enable=true --entity-name orders" in text
    assert "READ-ONLY" in text
    assert rows(text) == ["payments", "dash-ed.topic_1", "legacy", "compacted", "orders"]  # most bytes blocked first
    text = opened(service, "/?topic=*")
    assert rows(text) == [
        "payments-0", "payments-1", "dash-ed.topic_1-0", "legacy-0", "compacted-0", "orders-0",
    ]  # fmt: skip
    assert "no producer snapshot for offset" in text
    assert "<code>resnap regenerate</code> makes the file" in text


def test_filters_are_in_the_address_and_in_the_commands(service: Whole) -> None:
    text = opened(service, "/?topic=pay*&verdict=blocked&verdict=unknown&source=")
    assert rows(text) == ["payments-0", "payments-1"]
    assert 'value="pay*"' in text
    assert re.findall(r'value="(\w+)" checked', text) == ["blocked", "unknown"]
    assert "resnap scan --topic &#39;pay*&#39;" in text
    assert "/v1/partitions?topic=pay%2A&amp;verdict=blocked&amp;verdict=unknown&#39;" in text
    assert "No partition fits." in opened(service, "/?topic=nothing")


def test_partitions_are_sorted_by_what_their_topics_come_to_and_cut_into_pages(service: Whole) -> None:
    assert rows(opened(service, "/?topic=*&order=name"))[:3] == ["compacted-0", "dash-ed.topic_1-0", "legacy-0"]
    text = opened(service, "/?topic=*&order=missing")
    assert 'aria-sort="descending"><a href="/?topic=%2A&amp;order=missing"' in text
    found, path = [], "/?topic=*&order=missing&limit=2"
    while path:
        page = opened(service, path)
        found += rows(page)
        following = re.search(r'<a href="([^"]+)" rel="next">', page)
        path = unescape(following[1]) if following else ""
    assert found == rows(text)
    assert found[0] == "legacy-0"


def test_topics_have_an_answer_each(service: Whole) -> None:
    text = opened(service, "/topics")
    found = dict(
        re.findall(r'class="name"[^>]*>([^<]*)</a></th>\s*<td><span class="state.*?</span>([^<]*)</span>', text)
    )
    assert found == {
        "orders": "ready", "compacted": "never",
        **dict.fromkeys(("payments", "legacy", "dash-ed.topic_1"), "blocked"),
    }  # fmt: skip
    assert '<td class="why">missing-snapshot (2)</td>' in text


def test_what_has_not_changed_is_not_sent_again(service: Whole) -> None:
    with service.client() as client:
        for _ in range(3):  # the page changes when a minute has passed
            etag = client.get("/topics").headers["etag"]
            again = client.get("/topics", headers={"If-None-Match": f'"x", W/{etag}'})
            if again.status_code == 304:
                break
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)


def test_names_from_a_disk_are_text_and_nothing_else(service: Whole) -> None:
    row = scanned(service)
    service.services.scans.keep("/odd", [{**row, "topic": name, "path": f"/odd/{name}-0"} for name in HOSTILE])
    try:
        text = opened(service, "/?source=/odd")
        assert sorted(rows(text)) == sorted(f"{name}-0" for name in HOSTILE)
        assert "<script>alert" not in text
        assert ' onmouseover="x' not in text
        for name in HOSTILE:
            link = re.search(rf'<a class="name" href="([^"]*)#partitions">{re.escape(html(name))}</a>', text)
            assert link, name
            assert rows(opened(service, unescape(link[1]))) == [f"{name}-0"]
    finally:
        service.services.scans.keep("/odd", [])


def html(text: str) -> str:
    for letter, code in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&#34;"), ("'", "&#39;")):
        text = text.replace(letter, code)
    return text


def test_what_goes_around_a_page_is_there_and_nothing_is_asked_of_others(service: Whole) -> None:
    text = opened(service, "/")
    asked = re.findall(r'(?:src|href)="(/static/[^"]*)"', text)
    assert len(asked) == 3
    with service.client() as client:
        for path in asked:
            answer = client.get(unescape(path))
            assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
        assert client.get("/static/page.css").headers["cache-control"] == "no-cache"
        assert client.get("/static/..%2Fpages.py").status_code == 404
    assert re.findall(r'(?:src|href|action)="(?!/|#)', text) == []
    assert re.findall(r"<style|style=|<script(?! src)|\son[a-z]+=", text) == []


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of what is asked of the service's file from now on, by services that start later."""
    asked: list[str] = []
    from resnap.scheduler.state.database import Database  # noqa: PLC0415

    connect = Database._connect

    def listened(self: Database) -> sqlite3.Connection:
        connection = connect(self)
        connection.set_trace_callback(asked.append)
        return connection

    monkeypatch.setattr(Database, "_connect", listened)
    return asked


@pytest.mark.slow
def test_ten_thousand_partitions_are_a_page_at_a_time_with_as_many_queries_as_few(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet], queries: list[str]
) -> None:
    with whole(tmp_path, fixture_set("kafka-2.7.2").data) as service:
        with service.client() as client:  # nothing but the page shall ask for anything
            for run in client.get("/v1/runs").json()["runs"]:
                service.over(client, f"/v1/runs/{run['id']}")
        row, scans = scanned(service), service.services.scans
        row["lostBoundaries"] = row["lostBoundaries"][:1]
        many = [{**row, "topic": f"t{number // 100:04}", "partition": number % 100} for number in range(MANY)]
        scans.keep("/many", many)
        assert scans.counts(PartitionFilter(source="/many"))[scans.find("t0000", 0)[0].judgement.verdict] == MANY
        queries.clear()
        text = opened(service, "/?source=/many")
        a_page = len([one for one in queries if one.startswith("SELECT")])
        assert a_page <= 20
        assert rows(text) == [f"t0000-{number}" for number in range(50)]
        assert "50 of 10,000 partitions that fit the filter" in text
        queries.clear()
        assert len(rows(opened(service, "/?source=/many&limit=500"))) == 500
        assert len([one for one in queries if one.startswith("SELECT")]) == a_page
        following = re.search(r'href="([^"]*)" rel="next"', text)
        assert following
        text = opened(service, unescape(following[1]))
        assert rows(text) == [f"t0000-{number}" for number in range(50, 100)]
        assert 'href="/?source=%2Fmany">First page</a>' in text
        assert len(re.findall(r'<tr>\s*<th scope="row">', opened(service, "/topics"))) == 50
