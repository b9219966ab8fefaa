"""Scans that somebody asks for: what they leave of the service's answer about its own log dirs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.scheduler.api.whole import Whole, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx

    from tests.fixture_sets import FixtureSet


@pytest.fixture
def service(tmp_path: Path, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    log_dir = shutil.copytree(fixture_set("kafka-2.7.2").data, tmp_path / "data")
    shutil.copytree(log_dir, tmp_path / "sources" / "copy")
    with whole(tmp_path, log_dir) as found:
        yield found


def known(service: Whole, client: httpx.Client) -> tuple[list[str], list[Any]]:
    """Return the sources with what is wrong with them, and where each partition was seen."""
    sources = [f"{one.source} {one.error}" for one in service.services.sightings.sources()]
    shown = client.get("/v1/partitions", params={"limit": 200}).json()["partitions"]
    return sources, [(one["source"], one["topic"], one["partition"]) for one in shown]


def scanned(service: Whole, client: httpx.Client, **body: object) -> dict[str, Any]:
    answer = client.post("/v1/scans", json=body)
    assert answer.status_code == 202, answer.text
    return service.over(client, answer.headers["location"])


def test_a_partition_of_a_configured_log_dir_is_not_a_source_of_its_own(service: Whole) -> None:
    log_dir = service.directory / "data"
    with service.client() as client:
        before = known(service, client)
        assert before[0] == [f"{log_dir} None"]
        run = scanned(service, client, sources=[str(log_dir / "payments-0")])
        assert (run["state"], run["totals"]["partitions"]) == ("succeeded", 1)
        assert known(service, client) == before
        (service.directory / "sources" / "link").symlink_to(log_dir)
        link = service.directory / "sources" / "link"
        assert scanned(service, client, sources=[str(link / "payments-0"), str(link)])["state"] == "succeeded"
        assert known(service, client) == before


def test_what_is_not_there_is_refused_at_once_and_what_is_not_configured_is_not_kept(service: Whole) -> None:
    with service.client() as client:
        before = known(service, client)
        for place in (service.directory / "data" / "payments-99", service.directory / "sources" / "nothing"):
            answer = client.post("/v1/scans", json={"sources": [str(place)]})
            assert (answer.status_code, answer.json()["code"]) == (400, "unusable-request")
            assert f"{place} is not a directory" in answer.json()["detail"]
        run = scanned(service, client, sources=[str(service.directory / "sources" / "copy")])
        assert (run["state"], run["totals"]["partitions"]) == ("succeeded", len(before[1]))
        assert known(service, client) == before


def test_topics_that_are_nowhere_are_no_fault_of_the_log_dir(service: Whole) -> None:
    with service.client() as client:
        before = known(service, client)
        run = scanned(service, client, topics=["nope"])
        assert (run["state"], run["totals"]["partitions"]) == ("succeeded", 0)
        assert known(service, client) == before
        assert "resnap_last_scan_success 1" in client.get("/metrics").text


def test_a_scheduled_scan_forgets_sources_that_are_no_longer_configured(service: Whole) -> None:
    with service.client() as client:
        before = known(service, client)
        sightings = service.services.sightings
        sightings.saw("/gone", [sightings.find("payments", 0)[0].row])
        sightings.could_not_see("/never", "was there")
        assert known(service, client) != before
        assert service.over(client, client.post("/v1/schedules/look/run").headers["location"])["state"] == "succeeded"
        assert known(service, client) == before
