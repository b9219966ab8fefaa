"""What the service says of itself holds: every operation, with requests made of its own description."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from tests.scheduler.api.whole import Whole, whole

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
        assert [one for one in names if f">{one['operationId']}<" not in text] == []
        assert 'href="/docs"' in client.get("/", headers={"Accept": "text/html"}).text


def test_operations_have_names_for_clients_and_settings_their_descriptions(service: Whole) -> None:
    with service.client() as client:
        told = client.get("/openapi.json").json()
    names = [one["operationId"] for methods in told["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))
    assert {"createReplay", "listReplays", "listRuns", "makePlan", "runPlan", "cancelRun", "cancelReplay"} <= {*names}
    window = told["components"]["schemas"]["Window"]["properties"]
    assert window["full"]["description"] == "Replay from the log start, and ignore the window."
    assert window["asOf"]["default"] == "now"
