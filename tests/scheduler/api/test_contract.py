"""What the service says of itself holds: every operation, with requests made of its own description."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from resnap.scheduler.verbs import planned, scan
from resnap.scheduler.verbs.replayed import SnapshotsRow
from resnap.scheduler.verbs.tier import ShipmentRow
from tests.scheduler.api.whole import Whole, whole
from tests.schemas import check_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import schemathesis

    from tests.fixture_sets import FixtureSet

STREAMS: Final = "/events"
UNSAID: Final = {"positive_data_acceptance"}
"""A cursor is one of a page before, and a source must be there: no schema says that."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    with whole(tmp_path_factory.mktemp("contract"), fixture_set("kafka-2.7.2").data) as found:
        yield found


@pytest.fixture(scope="module")
def description(service: Whole) -> schemathesis.BaseSchema:
    import schemathesis  # noqa: PLC0415 - takes a second to import, for the few that ask

    return schemathesis.openapi.from_url(f"{service.address}/openapi.json").exclude(path_regex=f"{STREAMS}$")


def answer_as_they_say(description: schemathesis.BaseSchema, examples: int) -> None:
    from schemathesis import GenerationMode  # noqa: PLC0415 - likewise
    from schemathesis.checks import CHECKS  # noqa: PLC0415

    excluded = [found for name in UNSAID for found in CHECKS.get_by_names([name])]
    for found in description.get_all_operations():
        operation = found.ok()

        for mode in GenerationMode:

            @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def answers(case: schemathesis.Case) -> None:
                case.call_and_validate(excluded_checks=excluded)

            with suppress(Unsatisfiable):  # what has no parameters cannot be asked wrongly
                answers()


@pytest.mark.slow
def test_operations_answer_as_they_say(description: schemathesis.BaseSchema) -> None:
    answer_as_they_say(description, 2)


@pytest.mark.heavy
def test_operations_answer_as_they_say_to_many_requests(description: schemathesis.BaseSchema) -> None:
    answer_as_they_say(description, 200)


def test_the_description_is_of_openapi_3_1_and_a_page_shows_it(service: Whole) -> None:
    with service.client() as client:
        assert client.get("/openapi.json").json()["openapi"].startswith("3.1")
        names = [one for methods in client.get("/openapi.json").json()["paths"].values() for one in methods.values()]
        text = client.get("/docs", headers={"Accept": "text/html"}).text
        assert [name for name in names if f">{name['operationId']}<" not in text] == []
        assert 'href="/docs"' in client.get("/", headers={"Accept": "text/html"}).text


def test_each_operation_has_an_example_that_the_service_takes(service: Whole) -> None:
    """Nothing of it is in the wrong form; whether the example's run or partition is there is another matter."""
    with service.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
        for path, methods in paths.items():
            for method, operation in methods.items():
                [sample] = operation["x-codeSamples"]
                *command, address = shlex.split(sample["source"])
                body = json.loads(command[-1]) if "-d" in command else None
                assert (body is not None) == ("requestBody" in operation)
                assert method.upper() == (command[command.index("-X") + 1] if "-X" in command else "GET")
                assert re.fullmatch(re.sub(r"{\w+}", "[^/]+", path), urlsplit(address).path)
                if not path.endswith(STREAMS):
                    asked = address.removeprefix("http://127.0.0.1:8936")
                    answer = client.request(method, asked, json=body)
                    problem = {} if answer.is_success else answer.json()
                    assert problem.get("code") not in {"invalid-request", "bad-request"}, (sample, problem)


def test_parameters_of_a_path_come_as_they_stand_in_it(service: Whole) -> None:
    with service.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for operation in methods.values():
            named = [one["name"] for one in operation.get("parameters", []) if one["in"] == "path"]
            assert [f"{{{name}}}" for name in named] == re.findall(r"{\w+}", path)


def test_operations_have_names_for_clients_and_settings_their_descriptions(service: Whole) -> None:
    with service.client() as client:
        told = client.get("/openapi.json").json()
    names = [one["operationId"] for methods in told["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))
    assert {"createReplay", "createScan", "listRuns", "makePlan", "runPlan", "cancelRun"} <= {*names}
    window = told["components"]["schemas"]["Window"]["properties"]
    assert window["full"]["description"] == "Replay from the log start, and ignore the window."
    assert window["asOf"]["default"] == "now"


def test_rows_of_runs_plans_and_partitions_are_as_the_description_says(service: Whole) -> None:
    out, store = f"{service.directory}/out", f"file://{service.directory}/store"
    asked = {
        planned.PlanRow: ("/v1/replays", {"destination": out, "dryRun": True}),
        SnapshotsRow: ("/v1/replays", {"destination": out}),
        ShipmentRow: ("/v1/replays", {"kind": "tier", "destination": store}),
    }
    with service.client() as client:
        shapes = client.get("/openapi.json").json()["components"]["schemas"]
        told = [one["$ref"].rsplit("/")[-1] for one in shapes["RunPartition"]["properties"]["row"]["anyOf"]]
        for kind, (path, body) in asked.items():
            answer = client.post(path, json=body)
            assert answer.status_code == 202, answer.text
            location = answer.headers["location"]
            service.over(client, location)
            partitions = client.get(f"{location}/partitions").json()["partitions"]
            rows = [one["row"] for one in partitions if one["state"] in {"done", "planned"} and one["row"]]
            assert rows, (kind, partitions)
            assert kind.__name__ in told
            for row in rows:
                check_row(kind, row)
        plan = client.post("/v1/plans", json={}).json()
        assert plan["partitions"]
        for row in plan["partitions"]:
            check_row(planned.PlanRow, row)
        assert shapes["PlanAnswer"]["properties"]["partitions"]["items"]["title"] == "PlanRow"
        check_row(scan.ScanRow, client.get("/v1/partitions/payments/0").json()["row"])


def test_head_is_answered_as_get_without_a_body(service: Whole) -> None:
    """As load balancers ask whether the service is there."""
    with service.client() as client:
        for path in ("/livez", "/readyz", "/metrics", "/v1/partitions", "/", "/static/page.css"):
            answer, whole_answer = client.head(path), client.get(path)
            assert (answer.status_code, answer.content) == (200, b""), path
            assert answer.headers["content-type"] == whole_answer.headers["content-type"]
        assert client.head("/v1/nowhere").status_code == 404
        assert 'resnap_http_requests_total{method="GET",route="/livez"' in client.get("/metrics").text
