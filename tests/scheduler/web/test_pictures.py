"""Pictures on the pages: shapes to scale, with titles, and the figures behind them in words."""

from __future__ import annotations

import re
from html import unescape
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from resnap.replay.window import SegmentSpan
from resnap.scheduler.output.answer import way_of
from resnap.scheduler.runs.partition_details import ScannedBoundary
from resnap.scheduler.runs.scans import DAY_MS, Scans
from resnap.scheduler.web.partitions import segments_picture
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import UnblockedBy
from tests.scheduler.api.whole import Whole, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

NAME = r'<th scope="row"><a class="name"[^>]*>([^<]+)<'
SVG = re.compile(r"<svg.*?</svg>", flags=re.DOTALL)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    with whole(tmp_path_factory.mktemp("pictures"), fixture_set("kafka-2.7.2").data) as found:
        yield found


def shown(service: Whole, path: str) -> str:
    with service.client() as client:
        answer = client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    assert re.findall(r"<style|style=|<script(?! src)|\son[a-z]+=", answer.text) == []
    for picture in SVG.findall(answer.text):
        found = ET.fromstring(picture)  # noqa: S314 - made by ourselves
        if found.get("aria-hidden") is None:
            assert found.get("role") == "img", picture
            assert found[0].tag == "title", picture
    return unescape(answer.text)


def sizes(service: Whole) -> dict[str, dict[str, int]]:
    """Return the sizes by topic, from the rows of the API."""
    found: dict[str, dict[str, int]] = {}
    with service.client() as client:
        for partition in client.get("/v1/partitions").json()["partitions"]:
            row = client.get(f"/v1/partitions/{partition['topic']}/{partition['partition']}").json()["row"]
            mine = found.setdefault(partition["topic"], {"blockedBytes": 0, "tierableBytes": 0, "freeableBytes": 0})
            for name in mine:
                mine[name] += row[name] if partition["verdict"] != "never" else 0
    return found


def test_the_overview_shows_the_disk_by_topic_most_blocked_first(service: Whole) -> None:
    text, known = shown(service, "/"), sizes(service)
    rows = re.findall(r'data-tell="blocked">([\d.]+ \w+)</td>', text)
    blocked = sorted((one["blockedBytes"] for one in known.values() if one["blockedBytes"]), reverse=True)
    assert len(blocked) > 1
    assert [round(float(row.split()[0])) for row in rows[: len(blocked)]] == [round(one / 1024) for one in blocked]
    freeable = sum(one["freeableBytes"] for one in known.values()) / 1024
    assert f'Disk: <span class="num">{freeable:.1f} KiB</span> could be freed' in text


def test_topics_are_sorted_by_any_column_and_say_by_which(service: Whole) -> None:
    orders = ("name", "blocked", "freeable", "missing", "partitions")
    names = {order: re.findall(NAME, shown(service, f"/topics?order={order}")) for order in orders}
    assert names["name"] == sorted(names["name"])
    known = sizes(service)
    blocked = [known[name]["blockedBytes"] for name in names["blocked"]]
    assert blocked == sorted(blocked, reverse=True)
    assert names["partitions"][0] == "payments"
    assert {frozenset(name) for name in names.values()} == {frozenset(names["name"])}
    assert 'aria-sort="descending"><a href="/topics?order=missing"' in shown(service, "/topics?order=missing")
    pages, path = [], "/topics?order=missing&limit=2"
    while path:
        text = shown(service, path)
        pages += re.findall(NAME, text)
        following = re.search(r'<a href="([^"]+)" rel="next">', text)
        path = following[1] if following else ""
    assert pages == names["missing"]


def test_missing_snapshots_are_shown_over_days_with_the_figures_behind_the_picture(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    with whole(tmp_path, fixture_set("kafka-2.7.2").data) as service:
        assert "Missing snapshots</b>" not in shown(service, "/")  # of one day alone
        services, source = service.services, service.services.scans.sources()[0].source
        row, now_ms = services.scans.find("payments", 0)[0].row, services.clock.now_ms()
        for days_ago, partitions, unread in ((500, 5, None), (80, 4, None), (3, 2, "one dir"), (2, 3, None)):
            scans = Scans(services.database, lambda days_ago=days_ago: now_ms - days_ago * DAY_MS)
            rows = [{**row, "partition": number, "compaction": "no"} for number in range(partitions)]
            scans.keep(source, rows, unread=unread)
        lost = row["lost"]
        assert isinstance(lost, int)
        text = shown(service, "/")
        drawn = [ET.fromstring(one) for one in SVG.findall(text) if "picture days" in one]  # noqa: S314
        assert [one.get("class") for one in drawn] == ["picture days wide", "picture days slim"]
        for one in drawn:
            bars = one.findall("rect")
            titles = [str(bar.findtext("title")) for bar in bars]
            assert len(bars) == 81  # every day since the first of the last ninety, scanned or not
            assert titles[0].endswith(f": {4 * lost} missing")
            assert titles[77].endswith(
                f": {4 * lost} missing, as scanned before"
            )  # what was not read whole counts nothing
            assert titles[78].endswith(f": {3 * lost} missing")
            heights = [float(bar.get("height", "nan")) for bar in bars]
            assert heights[78] == pytest.approx(heights[0] * 3 / 4, rel=0.01)
        table = re.findall(r'<th scope="row" class="num left">[\d-]+</th><td class="num">([\d,]+)</td>', text)
        assert [int(cell.replace(",", "")) for cell in table[1:3]] == [3 * lost, 3 * lost]
        assert table[-1] == f"{4 * lost:,}"
        services.forget_old()
        with services.database.read() as connection:
            assert connection.execute("SELECT COUNT(*) FROM scan_days").fetchone()[0] == 3
        services.scans.forget_others([])
        assert "Missing snapshots</b>" not in shown(service, "/")


def test_a_partition_shows_its_segments_to_scale_with_the_offsets_that_matter(service: Whole) -> None:
    text = shown(service, "/partitions/payments/1")
    row = service.services.scans.find("payments", 1)[0].row
    drawn = [ET.fromstring(one) for one in SVG.findall(text) if "picture segments" in one]  # noqa: S314
    assert [one.get("class") for one in drawn] == ["picture segments wide", "picture segments slim"]
    for one in drawn:
        rects = one.findall("rect")
        assert len(rects) == row["segments"]
        assert sum(rect.get("class") == "todo" for rect in rects) == row["lost"]
        assert [rect.get("class") for rect in rects][-1] == "none"
        assert all(str(rect.findtext("title")).startswith("from offset ") for rect in rects)
        widths = [float(rect.get("width", "nan")) for rect in rects]
        assert sum(widths) == pytest.approx(float(str(one.get("viewBox")).split()[2]), rel=0.05)
        named = {found.text for found in one.findall("text")}
        assert {f"log start {row['logStartOffset']}", f"high watermark {row['highWatermark']}"} <= named
    assert "by the snapshot at their end: " in str(drawn[0].findtext("title"))


def span_of(number: int, end: int | None, *, size_bytes: int, largest_timestamp_ms: int) -> SegmentSpan:
    return SegmentSpan(
        locator="",
        base_offset=10 * number,
        next_base_offset=end,
        size_bytes=size_bytes,
        mtime_ms=0,
        largest_timestamp_ms=largest_timestamp_ms,
    )


def test_an_active_segment_that_was_idle_for_long_takes_no_more_width_than_any_other() -> None:
    ends = [*range(10, 100, 10), None]
    segments = [
        span_of(n, end, size_bytes=1, largest_timestamp_ms=10**12 if end is None else n) for n, end in enumerate(ends)
    ]
    found = segments_picture(segments, [], frozenset(), {"high watermark": 95})
    assert found is not None
    for picture in found["pictures"]:
        drawn = ET.fromstring(picture)  # noqa: S314
        *closed, active = [float(rect.get("width", "nan")) for rect in drawn.findall("rect")]
        assert len(closed) == 9
        assert active < 40
        assert max(closed) == pytest.approx(min(closed))
        assert sum(closed) > 0.8 * float(str(drawn.get("viewBox")).split()[2]) - 40


@pytest.mark.parametrize("at_ms", [[7] * 9, [*range(1, 9), 10**12]])
def test_segments_that_cover_next_to_no_time_are_all_there_side_by_side(at_ms: list[int]) -> None:
    segments = [span_of(n, 10 * n + 10, size_bytes=1, largest_timestamp_ms=last) for n, last in enumerate(at_ms)]
    found = segments_picture(segments, [], frozenset(), {})
    assert found is not None
    for picture in found["pictures"]:
        drawn = ET.fromstring(picture)  # noqa: S314
        places = [(float(rect.get("x", "nan")), float(rect.get("width", "nan"))) for rect in drawn.findall("rect")]
        assert len(places) == 9
        assert all(x + wide <= after for (x, wide), (after, _) in pairwise(places))
        assert all(wide >= 0.5 for _, wide in places)
        whole = float(str(drawn.get("viewBox")).split()[2])
        assert whole * 0.95 < sum(places[-1]) <= whole


def test_thousands_of_segments_are_drawn_in_columns_that_hide_no_trouble() -> None:
    segments = [
        span_of(n, None if n == 4_999 else 10 * n + 10, size_bytes=n, largest_timestamp_ms=n) for n in range(5_000)
    ]
    boundaries = [
        ScannedBoundary(segment.base_offset + 10, segment.base_offset, segment.size_bytes, "present", None, made=False)
        for segment in segments[:-1]
    ]
    boundaries[2_345] = boundaries[2_345]._replace(state="missing")
    found = segments_picture(segments, boundaries, frozenset({10, 20}), {"last stable offset": 23_456})
    assert found is not None
    rects = ET.fromstring(found["pictures"][0]).findall("rect")  # noqa: S314
    assert len(rects) <= 241
    assert [str(rect.findtext("title")).split(": ")[-1] for rect in rects if rect.get("class") == "todo"] == ["missing"]
    mark = ET.fromstring(found["pictures"][0]).find("line")  # noqa: S314
    assert mark is not None
    assert float(mark.get("x1", "nan")) == pytest.approx(1_160 * 0.469, rel=0.01)
    assert "1 missing" in found["text"]
    assert "2 shipped" in found["text"]


def test_the_overview_shows_the_way_and_where_all_partitions_are_on_it(service: Whole) -> None:
    steps = re.findall(r'<li class="(\w+)"[^>]*><span class="dot".*?<b>(\w+)</b>', shown(service, "/"))
    assert steps == [("done", "Check"), ("here", "Rebuild"), ("ahead", "Install"), ("ahead", "Tier")]


@pytest.mark.parametrize(
    ("seen", "waiting", "unread", "here"),
    [
        (0, {}, 0, "Check"),
        (3, {}, 1, "Check"),
        (4, {UnblockedBy.REBUILD: 1}, 0, "Rebuild"),
        (4, {UnblockedBy.REBUILD: 1, UnblockedBy.INSTALL: 3}, 0, "Rebuild"),
        (5, {UnblockedBy.INSTALL: 2}, 0, "Install"),
        (6, {UnblockedBy.RETENTION: 2, UnblockedBy.OTHER: 1}, 0, "Tier"),
    ],
)
def test_the_first_step_that_is_not_done_is_where_all_are(
    seen: int, waiting: dict[UnblockedBy, int], unread: int, here: str
) -> None:
    steps = way_of({Verdict.READY: seen}, waiting, 1, unread)
    assert [step.name for step in steps if step.place == "here"] == [here]
    at = [step.name for step in steps].index(here)
    assert [step.place for step in steps] == ["done"] * at + ["here"] + ["ahead"] * (3 - at)
