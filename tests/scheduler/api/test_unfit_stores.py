"""What a scheduled verification finds unfit in a store stays visible: in a metric and on the pages."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from tests.scheduler.api.whole import Whole, whole
from tests.scheduler.files import EMPTY_SNAPSHOT, PRODUCERS_STAY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

_SCHEDULE = """
[[schedules]]
name = "check"
run = "verify"
cron = "0 0 1 1 *"
sources = ["{store}"]
"""


def test_partitions_with_unfit_snapshots_are_named_until_a_verification_finds_them_right(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    tiered = fixture_set("kafka-3.9.1-tiered")
    store = shutil.copytree(tiered.remote, tmp_path / "store")
    empty, damaged = sorted(
        path for path in store.rglob("payments-1-*/*.snapshot") if path.read_bytes() != EMPTY_SNAPSHOT
    )[:2]
    right = {path: path.read_bytes() for path in (empty, damaged)}
    empty.write_bytes(EMPTY_SNAPSHOT)
    damaged.write_bytes(right[damaged][:-1])
    more = _SCHEDULE.format(store=store.as_uri())
    with whole(tmp_path, tiered.data, more=more, environment=PRODUCERS_STAY) as service:
        assert _unfit(service) == 0
        assert "unfit snapshots" not in _page(service, "/")
        run = _verify(service)
        assert (run["state"], run["totals"]["partitionsUnfit"]) == ("partially_failed", 1)
        assert _unfit(service) == 1
        overview = _page(service, "/")
        assert "1 partition in" in overview
        for line in (f"verify {store.as_uri()}", f"repair {store.as_uri()} --topic payments"):
            assert f"resnap {line}" in overview
        page = _page(service, f"/runs/{run['id']}")
        assert "2 snapshots missing, damaged, or not what a replay gives" in page
        for text in (overview, page):
            assert '<span class="name">payments-1</span>' in text
        for path, body in right.items():
            path.write_bytes(body)
        assert _verify(service)["state"] == "succeeded"
        assert _unfit(service) == 0
        assert "unfit snapshots" not in _page(service, "/")


def _verify(service: Whole) -> dict[str, Any]:
    with service.client() as client:
        return service.over(client, client.post("/v1/schedules/check/run").headers["Location"])


def _unfit(service: Whole) -> float:
    with service.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("resnap_remote_partitions_unfit ")))


def _page(service: Whole, path: str) -> str:
    with service.client() as client:
        return client.get(path, headers={"Accept": "text/html"}).text
