"""The whole cluster through the API and on its page: collected on request, from brokers that come and go."""

from __future__ import annotations

import socket
from html import unescape
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.fleet import status as fleet
from resnap.scheduler.fleet.status import FleetStatus
from resnap.storage.kafka_release import Release
from resnap.tiering.broker_releases import BrokerReleases
from tests.kafka.brokers import free_port
from tests.scheduler.api.whole import whole
from tests.scheduler.daemon.process import eventually
from tests.scheduler.services import Script, fleet_table, scripted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "EVERY_S", 0.05)


@pytest.mark.usefixtures("quick")
def test_the_cluster_is_answered_for_and_a_broker_that_goes_and_comes_back_is_followed(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    script = Script(topics={"orders": 2, "payments": 2})
    with scripted(script) as other:
        tables = fleet_table(2, other.address) + fleet_table(3, gone)
        with (
            whole(tmp_path, fixture_set("kafka-2.7.2").data, auth="token", more=tables) as service,
            service.client("viewer") as client,
        ):
            (tmp_path / "token").write_text(service.secrets["viewer"])
            configuration = tmp_path / "resnap.toml"
            own = fleet_table(1, service.address, token=tmp_path / "token")
            configuration.write_text(configuration.read_text() + own)
            service.services.reload()

            def answer() -> dict[str, object]:
                found: dict[str, object] = client.get("/v1/fleet").json()
                return found

            found = eventually(answer, lambda one: one["collected"] is not None)
            assert found["verdict"] == "blocked"
            brokers = {broker["broker"]: broker for broker in found["brokers"]}
            assert f"broker 3: {gone}: connection refused" == brokers[3]["error"]
            assert (brokers[2]["replicas"], brokers[2]["error"]) == (4, None)
            topics = {topic["topic"]: topic for topic in found["topics"]}
            assert topics["payments"]["verdicts"] == {"blocked": 2, "ready": 2}
            assert topics["payments"]["blockers"][0]["brokers"] == [1]
            assert topics["payments"]["underReplicated"] is None

            first = client.get("/v1/fleet", params={"limit": 1}).json()
            second = client.get("/v1/fleet", params={"limit": 1, "cursor": first["nextCursor"]}).json()
            assert [one["topics"][0]["topic"] for one in (first, second)] == sorted(topics)[:2]
            blocked = client.get("/v1/fleet", params={"verdict": "blocked", "topic": "pay*"}).json()
            assert [topic["topic"] for topic in blocked["topics"]] == ["payments"]

            page = client.get("/fleet").text
            assert "Not yet" in page
            assert "missing-snapshot: 2 replicas" in page
            assert f"broker 3: {gone}" in page
            assert service.secrets["viewer"] not in page + str(found)
            assert "Fleet" in client.get("/").text

            without_gone = configuration.read_text().replace(fleet_table(3, gone), "")
            configuration.write_text(without_gone)
            script.answers["/v1"] = lambda handler: handler.connection.shutdown(socket.SHUT_RDWR)
            service.services.reload()
            eventually(answer, lambda one: [two["error"] is None for two in one["brokers"]] == [False, True])
            script.answers.clear()
            script.topics = {"orders": 1}
            eventually(answer, lambda one: [two["replicas"] for two in one["brokers"]][:1] == [1])

            configuration.write_text(without_gone[: without_gone.index("\n[[fleet]]")])
            service.services.reload()
            assert client.get("/v1/fleet").json()["code"] == "not-found"
            assert client.get("/fleet").status_code == 404
            assert "Fleet" not in client.get("/").text


def test_known_faults_of_the_clusters_releases_are_in_the_answer_and_on_the_page(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(Script()) as other:
        more = fleet_table(2, other.address)
        with whole(tmp_path, fixture_set("kafka-3.9.1-steady").data, more=more) as service, service.client() as client:
            for releases, faults, says in (
                (None, None, ""),
                (BrokerReleases((), "the brokers' release is not known"), None, "faults are not checked"),
                (BrokerReleases((Release(3, 6, 2),), None), {"local-start-not-updated"}, "upgrade to 3.7 or later"),
            ):
                status = FleetStatus(brokers=(), topics=(), unanswered=None, releases=releases, at_ms=1)
                monkeypatch.setattr(fleet.FleetWatch, "collected", lambda _, found=status: found)
                found = client.get("/v1/fleet").json()["knownFaults"]
                assert (found is None) == (faults is None)
                assert {one["fault"] for one in found or ()} >= (faults or set())
                page = unescape(client.get("/fleet").text)
                assert (says in page, "Kafka's known faults" in page) == (True, releases is not None)


def test_before_anything_is_collected_and_long_after_no_broker_is_known(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "FIRST_S", 0.0)
    monkeypatch.setattr(fleet, "LINGER_S", 0.0)
    with scripted(Script()) as other:
        more = fleet_table(2, other.address)
        with whole(tmp_path, fixture_set("kafka-3.9.1-steady").data, more=more) as service, service.client() as client:
            found = client.get("/v1/fleet").json()
            assert (found["collected"], found["verdict"]) == (None, "unknown")
            assert found["brokers"][0]["error"] == "broker 2: not asked yet"
            assert "Not known yet" in client.get("/fleet").text
            monkeypatch.setattr(fleet, "LINGER_S", 60.0)
            eventually(lambda: client.get("/v1/fleet").json()["verdict"], lambda one: one == "ready")
            monkeypatch.setattr(fleet, "OLD_S", -1.0)
            assert client.get("/v1/fleet").json()["verdict"] == "unknown"
