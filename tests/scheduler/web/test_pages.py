"""The other pages over HTTP: a partition, its snapshots, runs, schedules, the audit, and errors as pages."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sqlite3
from html import unescape
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.runs.partition_details import ScannedBoundary
from resnap.scheduler.runs.run import Run, RunRequest, RunState
from resnap.scheduler.web.partitions import BOUNDARIES, cells, spread_of
from resnap.scheduler.web.words import human_facts, outcome_lines
from tests.scheduler.api.whole import Whole, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    data, release = fixture_set("kafka-2.7.2").data, {"RESNAP_KAFKA_VERSION": "3.9.1"}
    with whole(tmp_path_factory.mktemp("pages"), data, auth="token", environment=release) as found:
        yield found


@pytest.fixture(scope="module")
def replay(service: Whole) -> str:
    """Have the service make what payments-0 lacks, and return the run's id."""
    body = {"partitions": ["payments-0"], "destination": str(service.directory / "out")}
    with service.client("operator") as client:
        location = client.post("/v1/replays", json=body).headers["location"]
        assert service.over(client, location)["state"] == "succeeded"
    return location.rsplit("/", 1)[1]


def opened(service: Whole, path: str, role: str = "viewer", status: int = 200) -> str:
    with service.client(role) as client:
        answer = client.get(path, headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8"), answer.text
    assert "READ-ONLY" in answer.text
    assert re.findall(r"<style|style=|<script(?! src)|\son[a-z]+=", answer.text) == []
    return unescape(answer.text)


def commands(text: str) -> list[list[str]]:
    """Return the commands to copy, as a shell would read them."""
    return [shlex.split(line) for line in re.findall(r'<code id="line-\d+"[^>]*>([^<]*)</code>', text)]


def test_a_run_at_work_says_what_it_does(tmp_path: Path, fixture_set: Callable[[str], FixtureSet]) -> None:
    row = {"task": "replay", "phase": "compiling", "segments": 1, "segmentsTotal": 4, "bytes": 1, "bytesTotal": 4,
           "elapsedMs": 60_000, "bytesPerSecond": 1 << 24, "leftMs": 4_800_000}  # fmt: skip
    asked = RunRequest(kind="regenerate", destination="/nowhere", settings={"dry_run": True})
    with whole(tmp_path, fixture_set("kafka-2.7.2").data) as service, service.client() as client:
        history, run_id = service.services.history, service.services.plans.ids.make()
        history.add(Run(id=run_id, request=asked, state=RunState.QUEUED, origin="api", principal="local", created_ms=0))
        history.began(run_id)
        listing = {**row, "task": "select", "phase": "waiting", "segments": 0, "segmentsTotal": 0, "bytes": 0,
                   "bytesTotal": 0}  # fmt: skip
        history.progressed(run_id, {"select": listing, "replay": row})
        for path in ("/", "/runs", f"/runs/{run_id}"):
            answer = client.get(path, headers={"Accept": "text/html"})
            assert "preparing machine code (first run only)" in answer.text, path
            assert "listing files" in answer.text, path
        assert 'regenerate</a> <span class="soft">dry run</span>' in client.get("/runs").text
        assert "regenerate running, 20 % done" in answer.text


def test_a_partition_says_why_and_what_to_do_and_shows_each_boundary(service: Whole) -> None:
    text = opened(service, "/partitions/payments/1")
    assert re.search(r"<h1[^>]*>.*payments-1.*blocked", text)
    assert "missing-snapshot" in text
    row = service.services.scans.find("payments", 1)[0].row
    assert len(re.findall(r'<tr><th scope="row" class="num">\d+', text)) == row["boundaries"]
    (fault,) = row["knownFaults"]
    assert (fault["fault"], fault["releases"], fault["isCertain"]) == ("segment-without-snapshot", ["3.9.1"], True)
    assert f"<code>segment-without-snapshot</code>: {fault['detail']}" in text
    assert "make the snapshots with <code>resnap regenerate</code>" in text
    timeline = re.search(r'<div class="timeline" role="img" aria-label="([^"]*)">(.*?)</div>', text, re.DOTALL)
    assert timeline
    assert timeline[1].startswith(f"{row['boundaries']} boundaries, oldest first: 5 missing, ")
    assert timeline[2].count("<span") == row["boundaries"]
    staged = str(service.directory / "out" / "staged")
    assert ["resnap", "regenerate", str(row["path"]), "--into", staged] in [words[:5] for words in commands(text)]


def test_a_row_that_an_earlier_release_has_kept_is_shown_without_known_faults(service: Whole) -> None:
    with sqlite3.connect(service.directory / "state" / "service.db") as database:
        database.execute("UPDATE partitions SET row = json_remove(row, '$.knownFaults') WHERE topic = 'legacy'")
    assert "Kafka's known faults" not in opened(service, "/partitions/legacy/0")
    with sqlite3.connect(service.directory / "state" / "service.db") as database:
        database.execute("UPDATE partitions SET row = json_set(row, '$.knownFaults', NULL) WHERE topic = 'legacy'")
    assert "Not checked: the brokers' release is not known" in opened(service, "/partitions/legacy/0")


def test_what_a_run_has_made_is_shown_with_its_producers_and_how_to_install_it(service: Whole, replay: str) -> None:
    text = opened(service, "/partitions/payments/0")
    assert f'href="/runs/{replay}"' in text
    assert re.search(r"<h1[^>]*>.*blocked.*: install the rebuilt snapshots</h1>", text)
    out = str(service.directory / "out")
    assert ["resnap", "install", out, service.services.scans.sources()[0].source] in commands(text)
    offsets = re.findall(r'href="/partitions/payments/0/snapshots/(\d+)', text)
    first, last = offsets[0], offsets[-1]
    there = opened(service, f"/partitions/payments/0/snapshots/{last}?to={first}")
    assert re.search(r"Producers of .*payments-0.* at .*" + last, there)
    assert re.search(rf"From {last} to {first}</h2>\s*<p>\d+ producers? added", there)
    assert [words[:2] for words in commands(there)][:2] == [["resnap", "inspect"], ["resnap", "explain"]]
    with service.client("viewer") as client:
        told = client.get(f"/v1/partitions/payments/0/snapshots/{last}").json()
    for entry in told["entries"]:
        assert f'<th scope="row" class="num tell" data-tell="producer">{entry["producerId"]}</th>' in there


def test_a_partition_of_several_sources_is_asked_about(service: Whole) -> None:
    seen = service.services.scans.find("orders", 0)[0]
    service.services.scans.keep("/other", [seen.row])
    try:
        text = opened(service, "/partitions/orders/0")
        assert "is in several sources" in text
        link = re.search(r'href="(/partitions/orders/0\?source=%2F(?!other)[^"]*)"', text)
        assert link
        assert "is in several sources" not in opened(service, link[1])
    finally:
        service.services.scans.keep("/other", [])


def test_a_source_that_is_gone_is_reported_beside_what_was_seen_of_it(service: Whole) -> None:
    seen = service.services.scans.find("orders", 0)[0]
    service.services.scans.keep("/gone", [{**seen.row, "topic": "gone"}])
    try:
        text = opened(service, "/partitions/gone/0")
        assert "Its boundaries cannot be read now" in text
        assert "What the scan saw" in text
    finally:
        service.services.scans.keep("/gone", [])


def test_a_run_shows_its_outcome_by_partition_and_how_to_do_it_again(service: Whole, replay: str) -> None:
    assert f'href="/runs/{replay}"' in opened(service, "/runs?kind=regenerate")
    assert "No run fits." in opened(service, "/runs?kind=verify")
    text = opened(service, f"/runs/{replay}")
    assert re.search(r"payments-0</a></th>\s*<td>.*done.*</td>\s*<td[^>]*>6 boundaries rebuilt", text)
    assert "data-events" not in text
    out, log_dir = str(service.directory / "out"), service.services.scans.find("payments", 0)[0].source
    assert commands(text)[0] == ["resnap", "install", out, log_dir]
    assert commands(text)[1][:4] == ["resnap", "regenerate", "--into", out]
    assert "None is in this state." in opened(service, f"/runs/{replay}?state=failed")


def test_a_run_that_is_over_shows_its_topics_and_no_phase(service: Whole) -> None:
    body = {"topics": ["pay*"], "destination": str(service.directory / "out")}
    with service.client("operator") as client:
        location = client.post("/v1/replays", json=body).headers["location"]
        service.over(client, location)
    text = opened(service, location.replace("/v1/runs", "/runs"))
    assert re.search(r"<dt>Topics</dt><dd[^>]*>pay\*</dd>", text)
    for path in ("/", "/runs"):
        assert re.search(r"<b>pay\*</b> <span[^>]*>in</span> log.dirs", opened(service, path)), path
    assert '<div class="task">' in text
    assert "scanning" not in text


def test_what_went_wrong_is_shown_with_the_next_step(service: Whole) -> None:
    body = {"sources": [str(service.directory / "sources" / "nowhere")], "destination": str(service.directory / "out")}
    with service.client("operator") as client:
        location = client.post("/v1/replays", json=body).headers["location"]
        assert service.over(client, location)["state"] == "failed"
    text = opened(service, location.replace("/v1/runs", "/runs"))
    assert re.search(r"What went wrong</h2>.*nowhere does not exist.*check the spelling", text, re.DOTALL)


def test_an_entry_leads_to_the_batches_that_made_it(service: Whole) -> None:
    seen = service.services.scans.find("payments", 0)[0]
    offset = max(one.offset for one in service.services.partition_details.boundaries(seen) if one.state == "present")
    snapshot = opened(service, f"/partitions/payments/0/snapshots/{offset}")
    links = re.findall(rf'href="(/partitions/payments/0/explain/{offset}\?producerId=(\d+))"', snapshot)
    assert len(links) == len(service.services.partition_details.snapshot(seen, offset)[1]) > 1
    for path, producer_id in links[:3]:
        text = opened(service, path)
        with service.client("viewer") as client:
            batches = client.get(f"/v1{path}").json()["batches"]
        assert all(
            re.search(rf'<td class="num tell" data-tell="offsets">{batch["baseOffset"]}\b', text) for batch in batches
        )
        assert f"explain {seen.row['path']} payments-0 {offset} --producer-id {producer_id}" in text
    assert "No batch of it" in opened(service, f"/partitions/payments/0/explain/{offset}?producerId=999999")


def test_a_plan_shows_what_it_would_do_and_whether_it_is_still_valid(service: Whole) -> None:
    assert "None is kept" in opened(service, "/plans")
    log_dir = service.directory / "sources" / "data"
    shutil.copytree(service.services.scans.find("payments", 1)[0].row["path"], log_dir / "payments-1")
    with service.client("operator") as client:
        body = {"sources": [str(log_dir)], "window": {"asOf": "roll"}}
        plan = client.post("/v1/plans", json=body).json()
    assert f'href="/plans/{plan["id"]}"' in opened(service, "/plans")
    text = opened(service, f"/plans/{plan['id']}")
    assert "can be carried out" in text
    offsets = [one["offset"] for one in plan["partitions"][0]["boundaries"]]
    assert f"{offsets[0]} to {offsets[-1]}" in text
    assert commands(text)[0][-1].endswith(f"/v1/plans/{plan['id']}/replays")
    min((log_dir / "payments-1").glob("*.log")).unlink()
    stale = opened(service, f"/plans/{plan['id']}")
    assert re.search(
        r"<strong>stale</strong>.*payments-1: the closed segments are not those.*make a new plan", stale, re.DOTALL
    )
    anew = commands(stale)[0]
    assert json.loads(anew[anew.index("-d") + 1]) == body
    shutil.rmtree(log_dir)
    assert "<strong>not known</strong>" in opened(service, f"/plans/{plan['id']}")
    opened(service, "/plans/00000000000000000000", status=404)


def test_schedules_and_for_admins_the_audit(service: Whole, replay: str) -> None:
    text = opened(service, "/schedules")
    assert "every 1 h<" in text
    assert f"resnap tier --to file://{service.directory}/store --as-of roll" in text
    audit = opened(service, "/audit?principal=operator", role="admin")
    assert "POST /v1/replays" in audit
    assert f'<a href="/runs/{replay}">' in audit
    assert '<a href="/audit">Clear</a>' in audit
    assert ">Clear<" not in opened(service, "/audit", role="admin"), "nothing is filtered"
    assert "Nothing fits." in opened(service, "/audit?principal=nobody", role="admin")
    assert 'href="/audit"' not in text
    assert "Sign out viewer" in text
    opened(service, "/audit", status=403)


def test_errors_are_pages_to_browsers_and_problems_to_programs(service: Whole) -> None:
    for path, status, said in (
        ("/partitions/nothing/0", 404, "no scan has seen nothing-0"),
        ("/nowhere", 404, "there is nothing at this path"),
        ("/runs/00000000000000000000", 404, "there is no run"),
        ("/?limit=many", 422, "limit"),
        ("/partitions/payments/1/snapshots/1", 404, "has no snapshot at 1"),
        ("/?topic=<script>&cursor=<script>", 422, "not a cursor"),
    ):
        text = opened(service, path, status=status)
        assert said in text
        assert '<li><a href="/topics">Topics</a></li>' in text
        with service.client("viewer") as client:
            assert client.get(path).headers["content-type"] == "application/problem+json"
            assert client.get("/v1/nowhere", headers={"Accept": "text/html"}).json()["code"] == "not-found"
    with service.client() as client:
        client.headers.pop("Authorization", None)
        unknown = client.get("/nowhere", headers={"Accept": "text/html"})
    assert (unknown.status_code, "/topics" in unknown.text) == (404, False), "an unknown caller sees no menu"


def boundary(offset: int, state: str = "present", *, made: bool = False) -> ScannedBoundary:
    return ScannedBoundary(offset, None, None, state, None, made)


@pytest.mark.parametrize(("count", "shown"), [(0, 0), (1, 1), (120, 120), (121, 61), (10_000, 120)])
def test_a_timeline_has_so_many_cells_at_most_and_leaves_nothing_out(count: int, shown: int) -> None:
    found = cells([boundary(at) for at in range(count)])
    assert len(found) == shown
    places = [title.partition(":")[0].partition(" to ") for _, title in found]
    ranges = [(int(first), int(last or first)) for first, _, last in places]
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]
    assert (ranges[0][0], ranges[-1][1]) == (0, count - 1) if found else count == 0


def test_a_cell_is_shown_as_the_worst_that_is_in_it() -> None:
    some = [boundary(0), boundary(1, "missing", made=True), boundary(2, "empty"), boundary(3, "missing")]
    assert [word.text for word, _ in cells(some, most=2)] == ["made", "missing"]
    assert spread_of(some) == "1 missing, 1 made, 1 empty, 1 present"
    assert len({word.sign for word in BOUNDARIES.values()}) == len(BOUNDARIES)


def test_totals_that_are_not_known_or_a_table_are_not_shown_as_facts() -> None:
    assert human_facts({"lost": 1, "knownFaults": None, "brokers": []}) == [("lost", "1")]


def test_reasons_come_before_counts() -> None:
    failed = {"offset": 7, "outcome": "illegal", "reason": "epoch went back"}
    rebuilt = {"offset": 9, "outcome": "rebuilt", "reason": None}
    assert outcome_lines({"boundaries": [rebuilt, failed]}) == [
        "at 7: epoch went back", "1 boundary rebuilt", "1 boundary illegal",
    ]  # fmt: skip
    assert outcome_lines({"reason": "the store failed before its turn"}) == ["the store failed before its turn"]
    stopped = {"baseOffset": 5, "detail": "damaged", "hint": "take another replica"}
    shipped = {"shipped": [{"bytes": 1024}], "already": 2, "blocking": stopped}
    assert outcome_lines(shipped) == [
        "from 5 on: damaged; take another replica",
        "1 segment shipped, 1.0 KiB; 2 before",
    ]


def test_boundaries_lead_to_the_snapshots_that_are_here_and_to_none_that_was_shipped(service: Whole) -> None:
    path, store = "/partitions/dash-ed.topic_1/0", (service.directory / "out" / "store").as_uri()
    (service.directory / "out").mkdir(exist_ok=True)
    body = {"kind": "tier", "partitions": ["dash-ed.topic_1-0"], "destination": store}
    with service.client("operator") as client:
        shipped = client.post("/v1/replays", json=body).headers["location"]
        assert service.over(client, shipped)["state"] == "succeeded"
        boundaries = client.get(f"/v1{path}/boundaries").json()["boundaries"]
        missing = next(one["offset"] for one in boundaries if one["state"] == "missing")
        answer = client.get(f"/v1{path}/snapshots/{missing}")
    assert (answer.status_code, answer.json()["hint"]) == (404, f"a run has shipped it to {store}")
    offsets = re.findall(rf'href="{path}/snapshots/(\d+)', opened(service, path))
    assert list(map(int, offsets)) == [one["offset"] for one in boundaries if one["state"] == "present"] != []
    for offset in offsets:
        opened(service, f"{path}/snapshots/{offset}")
