"""Scans on request: what they leave of the service's report about its own log dirs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resnap.scheduler.clock import Clock
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.runs.run import BY_API, Run, RunEnd, RunRequest, RunState
from resnap.scheduler.service.services import Services
from resnap.storage.errors import StoreUnavailableError
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.selection import Scope, select
from tests.fixture_sets import copied_tree
from tests.scheduler.api.whole import Whole, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from resnap.storage.stores.protocol import ObjectInfo
    from tests.fixture_sets import FixtureSet


@pytest.fixture
def service(tmp_path: Path, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    log_dir = copied_tree(fixture_set("kafka-2.7.2").data, tmp_path / "data")
    copied_tree(log_dir, tmp_path / "sources" / "copy")
    with whole(tmp_path, log_dir) as found:
        yield found


def known(service: Whole, client: httpx.Client) -> tuple[list[str], list[Any]]:
    """Return the sources with what is wrong with them, and where each partition was seen."""
    sources = [f"{source.source} {source.error}" for source in service.services.scans.sources()]
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


def test_of_a_source_without_the_partition_there_is_none(service: Whole) -> None:
    one = "/v1/partitions/payments/0"
    with service.client() as client:
        for path in (one, f"{one}/boundaries"):
            assert client.get(path, params={"source": str(service.directory / "data")}).status_code == 200
            for source in ("", "/elsewhere"):
                found = client.get(path, params={"source": source})
                assert (found.status_code, found.json()["code"]) == (404, "not-found"), source
        assert "/elsewhere" in found.json()["detail"]
        assert client.get("/partitions/payments/0?source=").status_code == 200, "a form leaves it empty for any"


def missing(client: httpx.Client) -> list[str]:
    """Return how many segments lack a snapshot, a line for each log dir."""
    lines = client.get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith("resnap_segments_missing_snapshot{")]


def test_a_scan_of_one_topic_leaves_the_metric_of_the_log_dir_as_it_was(service: Whole) -> None:
    with service.client() as client:
        scanned(service, client)
        before = missing(client)
        assert [float(line.split()[-1]) > 0 for line in before] == [True]
        assert scanned(service, client, topics=["orders"])["totals"]["partitions"] == 1
        assert missing(client) == before


def test_a_replay_of_a_partitions_directory_shows_that_the_partition_waits_for_an_installation(service: Whole) -> None:
    directory = service.directory / "data" / "payments-0"
    destination = service.directory / "out" / "one"
    with service.client() as client:
        scanned(service, client)
        [before] = service.services.scans.find("payments", 0)
        body = {"sources": [str(directory)], "destination": str(destination)}
        answer = client.post("/v1/replays", json=body)
        assert answer.status_code == 202, answer.text
        assert service.over(client, answer.headers["location"])["state"] == "succeeded"
        [seen] = service.services.scans.find("payments", 0)
        assert [one.judgement.unblocked_by for one in (before, seen)] == ["rebuild", "install"]
        assert seen.source == before.source
        ready = service.services.scans.counts()[Verdict.READY]
        measured = client.get("/metrics").text
        assert f'resnap_partitions{{verdict="ready"}} {ready}.0' in measured, "it is not installed"
        for verdict, topics in service.services.scans.topics_by_verdict().items():
            assert f'resnap_topics{{verdict="{verdict.value}"}} {len(topics)}.0' in measured
        for name, size_bytes in service.services.scans.sizes().items():
            assert float(measured.split(f"\nresnap_{name}_bytes ")[1].split()[0]) == size_bytes


def _without_answer(_store: LocalObjectStore, _prefix: str = "") -> Iterator[ObjectInfo]:
    raise StoreUnavailableError("no answer")


@pytest.mark.parametrize(("kind", "mark"), [("regenerate", "install"), ("tier", "announce")])
def test_what_was_made_counts_as_long_as_a_scan_finds_it_where_it_was_put(
    service: Whole, monkeypatch: pytest.MonkeyPatch, kind: str, mark: str
) -> None:
    destination, elsewhere = service.directory / "out", service.directory / "elsewhere"
    body = {"kind": kind, "partitions": ["payments-0"], "destination": destination.as_uri()}

    def shown(client: httpx.Client) -> tuple[str, bool, int]:
        """Return what unblocks it, whether the page names the place, and how many partitions are counted so."""
        scanned(service, client, topics=["payments"])
        one = client.get("/v1/partitions/payments/0").json()
        page = client.get("/partitions/payments/0").text
        so_too = client.get("/v1/partitions", params={"unblockedBy": mark}).json()["partitions"]
        assert one["verdict"] == "blocked"
        return one["unblockedBy"], f"<dt>{'Shipped' if kind == 'tier' else 'Regenerated'}</dt>" in page, len(so_too)

    with service.client() as client:
        before = shown(client)
        assert before == ("rebuild", False, 0)
        answer = client.post("/v1/replays", json=body)
        assert service.over(client, answer.headers["location"])["state"] == "succeeded", answer.text
        assert shown(client) == (mark, True, 1)
        with monkeypatch.context() as patched:
            patched.setattr(LocalObjectStore, "list", _without_answer)
            assert shown(client) == (mark, True, 1), "a store that does not answer has not lost anything"
        destination.rename(elsewhere)
        assert shown(client) == before
        destination.write_text("")
        assert shown(client) == before, "it cannot be read"
        destination.unlink()
        elsewhere.rename(destination)
        assert shown(client) == (mark, True, 1), "such as a disk that was not mounted"


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


def test_topics_that_are_nowhere_are_not_a_fault_of_the_log_dir(service: Whole) -> None:
    with service.client() as client:
        before = known(service, client)
        run = scanned(service, client, topics=["nope"])
        assert (run["state"], run["totals"]["partitions"]) == ("succeeded", 0)
        assert known(service, client) == before
        assert "resnap_last_scan_success 1" in client.get("/metrics").text


def test_a_scheduled_scan_forgets_sources_that_are_no_longer_configured(service: Whole) -> None:
    with service.client() as client:
        before = known(service, client)
        scans = service.services.scans
        scans.keep("/gone", [scans.find("payments", 0)[0].row])
        scans.keep_error("/never", "was there")
        assert known(service, client) != before
        assert service.over(client, client.post("/v1/schedules/look/run").headers["location"])["state"] == "succeeded"
        assert known(service, client) == before


def test_log_dirs_of_the_service_are_scanned_with_their_remote_part_which_is_listed_once(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = fixture_set("kafka-3.9.1-tiered")
    log_dir, other = copied_tree(fixture.data, tmp_path / "data"), tmp_path / "other"
    copied_tree(fixture.data, other, ignore=shutil.ignore_patterns("payments-0", "__*"))
    shutil.rmtree(log_dir / "payments-1")
    listings: list[str] = []
    plain = LocalObjectStore.list

    def counted(self: LocalObjectStore, prefix: str = "") -> Iterator[ObjectInfo]:
        if self.url == fixture.remote.as_uri():
            listings.append(prefix)
        return plain(self, prefix)

    monkeypatch.setattr(LocalObjectStore, "list", counted)
    select(Scope(sources=(str(log_dir),), topics=("payments",), remote=fixture.remote.as_uri()))
    once = len(listings)
    environment = {"RESNAP_REMOTE": fixture.remote.as_uri()}
    with whole(tmp_path, Path(f"{log_dir},{other}"), environment=environment) as found, found.client() as client:
        assert (once > 0, len(listings)) == (True, 2 * once)
        _, seen = known(found, client)
        assert {(source, number) for source, topic, number in seen if topic == "payments"} == {
            (str(log_dir), 0), (str(other), 1),
        }  # fmt: skip


def test_a_log_dir_without_partitions_is_scanned_and_what_was_seen_in_it_is_gone(service: Whole) -> None:
    with service.client() as client:
        scanned(service, client)
        assert known(service, client)[1]
        for path in (service.directory / "data").glob("*-[0-9]"):
            shutil.rmtree(path)
        run = scanned(service, client)
        assert (run["state"], run["totals"]["partitions"], run["errors"]) == ("succeeded", 0, [])
        assert known(service, client) == ([f"{service.directory / 'data'} None"], [])
        assert [line.split()[-1] for line in missing(client)] == ["0.0"]
        assert "resnap_last_scan_success 1" in client.get("/metrics").text


_OF_A_COPY = """
[[schedules]]
name = "copy"
run = "scan"
every = "1h"
sources = ["file://{copy}"]
"""


def test_the_metrics_of_scans_and_checks_of_replicas_outlive_a_restart(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    data = fixture_set("kafka-2.7.2").data
    more = _OF_A_COPY.format(copy=copied_tree(data, tmp_path / "copy"))
    names = "resnap_segments_missing_snapshot{", "resnap_last_scan_success", 'resnap_replicas{state="lost"}'

    def measured(services: Services) -> list[str]:
        services.measure()
        text = services.observation.metrics.render()[0].decode()
        return [line for line in text.splitlines() if line.startswith(names)]

    with whole(tmp_path, data, more=more) as service:
        with service.client() as client:
            for name in ("look", "copy"):
                service.over(client, client.post(f"/v1/schedules/{name}/run").headers["location"])
        history, ids = service.services.history, service.services.plans.ids
        for partitions, lost in (((), 2), (("payments-0",), 1)):  # the second one says nothing of the others
            request = RunRequest(kind="replicas", partitions=partitions)
            run = Run(
                id=ids.make(), request=request, state=RunState.QUEUED, origin=BY_API, principal="ci", created_ms=1
            )
            history.add(run)
            history.began(run.id)
            totals = {"lost": lost, "lagging": 0, "unknown": 0}
            history.ended(run.id, RunEnd(state=RunState.PARTIALLY_FAILED, totals=totals, errors=()))
        before = measured(service.services)
    assert [line.split()[-1] for line in before] == ["34.0", "34.0", "1.0", "0.0"]
    services = Services(Configuration(directory=tmp_path, environment={}), Clock())
    services.start()
    assert measured(services) == [*before[:-1], 'resnap_replicas{state="lost"} 2.0']
    assert services.stop()


def test_topics_that_a_request_excludes_stay_as_they_were_and_those_of_the_configuration_are_forgotten(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    log_dir = fixture_set("kafka-2.7.2").data
    with whole(tmp_path, log_dir) as service, service.client() as client:
        sources, before = known(service, client)
        assert scanned(service, client, excludeTopics=["pay*", "legacy"])["totals"]["partitions"] == len(before) - 3
        assert known(service, client) == (sources, before)
        file = service.directory / "resnap.toml"
        file.write_text(f'exclude-topic = ["pay*"]\n{file.read_text()}')
        service.services.reload()
        scanned(service, client)
        assert known(service, client)[1] == [one for one in before if one[1] != "payments"]
