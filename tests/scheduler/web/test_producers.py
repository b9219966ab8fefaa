"""The page of producers over HTTP: what the last census of a schedule counted, topic by topic."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

import httpx
import pytest

from resnap.scheduler.clock import Clock
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.service.services import Services
from resnap.scheduler.verbs.census import CensusRow
from resnap.scheduler.web.app import create_app
from tests.scheduler.api.serving import listening
from tests.scheduler.api.whole import Whole, whole
from tests.schemas import check_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

CENSUS = """
[[schedules]]
name = "count"
run = "census"
cron = "0 0 1 1 *"
settings = { producer-id-expiration-ms = 43200000 }
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    with whole(tmp_path_factory.mktemp("census"), fixture_set("kafka-3.9.1-kraft").data, more=CENSUS) as found:
        yield found


def shown(service: Whole) -> str:
    with service.client("viewer") as client:
        answer = client.get("/producers", headers={"Accept": "text/html"})
    assert answer.status_code == 200
    assert re.findall(r"<style|style=|<script(?! src)|\son[a-z]+=", answer.text) == []
    return unescape(answer.text)


def test_a_page_shows_the_last_census_of_a_schedule_and_names_who_stands_out(service: Whole) -> None:
    assert "Nothing was counted yet" in shown(service)
    with service.client("operator") as client:
        location = client.post("/v1/schedules/count/run").headers["location"]
        run = service.over(client, location)
        kept = client.get(f"{location}/partitions").json()
    assert (run["state"], run["totals"]["producers"]) == ("succeeded", 1_094)
    for partition in kept["partitions"]:
        check_row(CensusRow, partition["row"])
    assert sum(partition["row"]["producers"] for partition in kept["partitions"]) == 1_094
    text = shown(service)
    assert re.search(r"<b class=\"num\">1,094</b> producers in 12 partitions of 5 topics", text)
    rows = re.findall(r'<a class="name"[^>]*>([^<]+)</a></th>\n<td class="num tell"[^>]*>([\d,]+)</td>', text)
    assert rows[:2] == [("meta-1", "1,050"), ("payments", "44")]
    assert text.count("a client creates a producer for each message") == 1
    assert "producer.id.expiration.ms=43200000" in text
    assert re.search(r'<svg class="bar"[^>]*><title>1,050 producers</title>', text)
    assert "resnap producer census" in text
    assert f'href="{location.removeprefix("/v1")}"' in text


def test_without_a_configuration_file_the_command_names_the_log_dirs_of_the_service(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    log_dir = fixture_set("kafka-2.7.2").data
    flags = {"state_dir": str(tmp_path / "state"), "log_dirs": [log_dir], "engine": "local"}
    services = Services(Configuration(flags=flags, environment={}, directory=tmp_path), Clock())
    try:
        with listening(create_app(services, "0")) as address:
            text = unescape(httpx.get(f"{address}/producers", headers={"Accept": "text/html"}, timeout=60).text)
    finally:
        services.database.close()
    assert f"resnap producer census {log_dir} --engine local" in text
    assert "in the configuration" not in text
