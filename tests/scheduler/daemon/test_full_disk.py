"""A service whose disk is full: it says so, goes on answering, and takes work again once there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.scheduler.api.whole import FINAL
from tests.scheduler.daemon.process import configure, eventually, serving
from tests.scheduler.files import BALLAST, fill
from tests.scheduler.scenes import SET, one_partition

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from tests.fixture_sets import FixtureSet

pytestmark = pytest.mark.slow

SCHEDULE: Final = """
[[schedules]]
name = "ship"
run = "tier"
cron = "0 0 29 2 *"
to = "file://{directory}/store"
settings = {{ as-of = "roll", bwlimit = "50" }}
"""
"""Asked for by hand, and so slow that a segment takes longer than any test."""


def is_refused(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["code"]) == (503, "state-unusable"), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert "full" in answer.json()["detail"]
    assert "free space" in answer.json()["hint"]
    assert int(answer.headers["retry-after"]) > 0


def test_a_full_disk_is_reported_and_does_not_block_reading_and_ends_by_itself(
    tmp_path: Path, tiny_disk: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    def ask(client: httpx.Client) -> httpx.Response:
        return client.post("/v1/replays", json={"destination": str(tmp_path / "out")})

    def run(client: httpx.Client, at: str) -> dict[str, Any]:
        return dict(client.get(at).json())

    def over(client: httpx.Client, at: str) -> dict[str, Any]:
        return dict(eventually(lambda: run(client, at), lambda run: run["state"] in FINAL))

    one_partition(fixture_set(SET).data, tmp_path / "data")
    configure(tmp_path, tmp_path / "data", SCHEDULE.format(directory=tmp_path), state=tiny_disk / "state")
    with serving(tmp_path) as process, process.client() as client:
        at = client.post("/v1/schedules/ship/run").headers["location"]
        eventually(lambda: run(client, at)["state"], lambda state: state == "running")
        waiting = ask(client).headers["location"]
        fill(tiny_disk)

        is_refused(ask(client))
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["state"]) == (503, "StateError")
        for path in ("/livez", "/metrics", "/", at, "/v1/runs", "/v1/partitions", "/v1/schedules", "/openapi.json"):
            assert client.get(path).status_code == 200, path
        is_refused(client.post(f"{at}/cancel"))
        eventually(lambda: client.get("/metrics").text, lambda told: 'resnap_queue_runs{state="running"} 0.0' in told)
        assert {run(client, one)["state"] for one in (at, waiting)} == {"running", "queued"}, "as the file has it"

        (tiny_disk / BALLAST).unlink()
        eventually(lambda: client.get("/readyz").status_code, lambda status: status == 200)
        first, second = (over(client, one) for one in (at, waiting))
        # The run at work may have reported something before it got the request to end.
        assert (first["state"], [error["code"] for error in first["errors"]]) in (
            ("cancelled", []),
            ("failed", ["StateError"]),
        )
        assert (second["state"], [error["code"] for error in second["errors"]]) == ("failed", ["StateError"])
        assert "free space" in second["errors"][0]["hint"]
        assert over(client, ask(client).headers["location"])["state"] == "succeeded"
