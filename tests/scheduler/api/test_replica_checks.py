"""A check of the cluster's replicas, asked for over HTTP: of the cluster that the configuration names, and no other."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.runs.configuration import check_schedule
from resnap.scheduler.settings.service import ScheduleSpec
from resnap.storage.errors import UsageError
from tests.scheduler.api.whole import whole

if TYPE_CHECKING:
    from pathlib import Path


def test_a_check_without_a_cluster_or_of_one_that_does_not_answer_fails_and_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"127.0.0.1:{taken.getsockname()[1]}"
    for case, environment, code in (
        ("none", {}, "ConfigurationError"),
        ("closed", {"RESNAP_BOOTSTRAP_SERVER": closed}, "ClusterError"),
    ):
        directory = tmp_path / case
        (directory / "data").mkdir(parents=True)
        with (
            whole(directory, directory / "data", auth="token", environment=environment) as service,
            service.client("operator") as client,
            service.client("viewer") as viewer,
        ):
            asked = {"topics": ["payments*"], "partitions": ["payments-0"]}
            answer = client.post("/v1/replica-checks", json=asked)
            assert answer.status_code == 202
            run = service.over(client, answer.headers["Location"])
            assert (run["kind"], run["state"]) == ("replicas", "failed")
            assert [error["code"] for error in run["errors"]] == [code]
            page = client.get(f"/runs/{run['id']}").text
            assert "resnap replicas" in page
            assert "the running cluster" in page
            assert client.post("/v1/replica-checks", json={"bootstrapServer": "evil:9092"}).status_code == 422
            assert client.post("/v1/replica-checks", json={"sources": ["/"]}).status_code == 422
            audited = service.services.access.audit.page(limit=50)
            assert audited[-1].action == "POST /v1/replica-checks"
            assert viewer.post("/v1/replica-checks", json={}).status_code == 403


def test_a_schedule_of_replicas_names_no_places() -> None:
    asked = {"name": "replicas", "run": "replicas", "every": "1h"}
    assert ScheduleSpec.model_validate(asked).run == "replicas"
    for place in ({"to": "file:///srv"}, {"sources": ["/var/lib/kafka"]}):
        with pytest.raises(UsageError, match=r"takes no `(to|sources)`"):
            check_schedule(ScheduleSpec.model_validate(asked | place))


def test_settings_of_a_schedule_name_no_place_and_those_of_a_verification_may_say_since_when() -> None:
    """Each run would end with an error, as a destination has its own key, `to`."""
    store = {"name": "read-back", "run": "verify", "every": "1h", "sources": ["file:///srv"]}
    check_schedule(ScheduleSpec.model_validate(store | {"settings": {"since": "7d"}}))
    ship = {"name": "ship", "run": "tier", "every": "1h", "to": "file:///srv"}
    made = {"name": "make", "run": "regenerate", "every": "1h", "to": "/srv"}
    for asked, name in ((store, "store"), (store, "snapshots"), (store, "places"), (ship, "to"), (made, "into")):
        with pytest.raises(UsageError, match=f"'{name}' cannot be set for one schedule"):
            check_schedule(ScheduleSpec.model_validate(asked | {"settings": {name: "/elsewhere"}}))
