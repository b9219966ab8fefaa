"""Errors over HTTP: problems of RFC 9457, with a stable code, a next step, and no secret."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from fastapi import APIRouter
from pydantic import BaseModel, Field

from resnap.scheduler.access import roles as access_errors
from resnap.scheduler.api.auth import Operator, Viewer  # noqa: TC001 - FastAPI looks them up
from resnap.scheduler.api.problems import BY_CODE, KINDS, MEDIA_TYPE, HttpError, kind_of, problems
from resnap.scheduler.state.database import StateError
from resnap.scheduler.telemetry.logs import set_up
from resnap.storage import errors
from resnap.storage.errors import FormatError, LockedError, ResnapError, StoreAccessError, StoreUnavailableError
from tests.cases import each
from tests.scheduler.api.serving import Served, served

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

API_TEXT: Final = Path(__file__).parents[3] / "docs" / "api.md"
SECRET: Final = "resnap_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
router = APIRouter(prefix="/v1/things")


class Thing(BaseModel):
    name: str
    sizes: list[int] = Field(default_factory=list)


@router.get("/bug")
def fail_by_a_bug(who: Viewer) -> None:
    raise RuntimeError(f"s3://key:secret/with/slashes@bucket {who.name}")


@router.get("/{thing_id}", responses=problems("not-found", "locked"))
def get_thing(thing_id: str, who: Viewer, limit: int = 1) -> dict[str, object]:
    if thing_id == "locked":
        raise LockedError(f"{who.name}: another run is at it", hint="wait for run 7")
    if thing_id == "busy":
        raise StoreUnavailableError("busy", retry_after_s=2.5)
    if thing_id == "secret":
        raise StoreAccessError(f"s3://AKIAIOSFODNN7EXAMPLE:abc/def@bucket/prefix, {SECRET}")
    raise HttpError("not-found", f"no thing {thing_id!r} among {limit}")


@router.post("", status_code=201)
def make_thing(thing: Thing, who: Operator) -> dict[str, str]:
    return {"name": thing.name, "who": who.name}


@router.post("/bug")
def fail_while_changing(who: Operator) -> None:
    raise RuntimeError(who.name)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("problems"), router) as found:
        yield found


def problem(answer: httpx.Response, code: str) -> dict[str, object]:
    """Return the problem that an answer must be, whole and of this code."""
    assert answer.headers["content-type"] == MEDIA_TYPE
    told: dict[str, object] = answer.json()
    kind = BY_CODE[code]
    assert (told["code"], told["status"], told["title"], told["type"]) == (code, kind.status, kind.title, kind.type)
    assert answer.status_code == kind.status
    assert told["instance"] == f"urn:uuid:{uuid.UUID(answer.headers['x-request-id'])}"
    assert told["detail"]
    assert told["hint"]
    return told


def get(service: Served, path: str) -> httpx.Response:
    return service.client.get(path, headers=service.bearer("viewer"))


def post(service: Served, path: str = "/v1/things", **sent: object) -> httpx.Response:
    return service.client.post(path, headers=service.bearer("operator"), **sent)  # type: ignore[arg-type]


def test_an_error_of_ours_has_the_code_of_its_class_and_its_own_next_step(service: Served) -> None:
    told = problem(get(service, "/v1/things/locked"), "locked")
    assert told["detail"] == "viewer: another run is at it"
    assert told["hint"] == "wait for run 7"


def test_the_type_of_a_problem_leads_to_its_description(service: Served) -> None:
    told = problem(get(service, "/v1/things/3"), "not-found")
    described = service.client.get(str(told["type"])).json()
    assert described.items() <= {**told, "hint": BY_CODE["not-found"].hint}.items()


def test_a_store_that_says_when_to_come_back_is_quoted_in_whole_seconds(service: Served) -> None:
    answer = get(service, "/v1/things/busy")
    problem(answer, "store-unavailable")
    assert answer.headers["retry-after"] == "3"


def test_secrets_in_a_message_are_masked(service: Served) -> None:
    answer = get(service, "/v1/things/secret")
    problem(answer, "store-denied")
    assert "bucket/prefix" in answer.text
    for secret in ("AKIAIOSFODNN7EXAMPLE", "abc/def", SECRET):
        assert secret not in answer.text


def test_a_bug_is_reported_only_with_where_the_log_has_it_and_there_without_secrets(
    service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    with monkeypatch.context() as patched:
        patched.setattr(logging.getLogger(), "handlers", [])
        patched.setattr(threading, "excepthook", threading.excepthook)
        set_up(stream, "json")
        logging.captureWarnings(capture=False)
        answer = get(service, "/v1/things/bug")
    told = problem(answer, "internal-error")
    assert "RuntimeError" not in answer.text
    (entry,) = [json.loads(line) for line in stream.getvalue().splitlines() if "request failed" in line]
    assert entry["request_id"] == str(told["instance"]).removeprefix("urn:uuid:")
    assert "RuntimeError" in entry["exception"]
    assert "secret/with" not in json.dumps(entry)


def test_a_bug_while_something_is_changed_is_audited(service: Served) -> None:
    problem(post(service, "/v1/things/bug"), "internal-error")
    assert service.audited()[0] == ("operator", "POST /v1/things/bug", "500")


def test_each_wrong_part_of_a_request_is_reported_without_what_was_sent(service: Served) -> None:
    told = problem(post(service, json={"sizes": [1, SECRET]}), "invalid-request")
    assert [(part["in"], part["at"]) for part in told["errors"]] == [("body", "/name"), ("body", "/sizes/1")]  # type: ignore[attr-defined]
    assert SECRET not in json.dumps(told)
    told = problem(get(service, "/v1/things/3?limit=many"), "invalid-request")
    assert [(part["in"], part["at"]) for part in told["errors"]] == [("query", "limit")]  # type: ignore[attr-defined]


def test_a_part_of_any_length_is_reported_in_short(service: Served) -> None:
    began_s = time.process_time()
    told = problem(post(service, json={"sizes": {"://" * 300_000: 1}}), "invalid-request")
    assert time.process_time() - began_s < 1.5, "problems are made on the event loop"
    assert len(json.dumps(told)) < 6_000
    told = problem(post(service, json={"name": "x", "sizes": ["x"] * 90_000}), "invalid-request")
    assert len(told["errors"]) == 20  # type: ignore[arg-type]
    assert "and 89999 more" in str(told["detail"])


def test_a_query_that_is_too_long_is_refused_before_its_values_are_read(service: Served) -> None:
    told = problem(get(service, "/v1/things/3?" + "&".join(["limit=many"] * 1_600)), "invalid-request")
    assert "a query of 17599 bytes" in str(told["detail"])


def test_a_body_that_is_not_json_is_reported_with_its_position(service: Served) -> None:
    told = problem(
        service.client.post(
            "/v1/things", headers={**service.bearer("operator"), "Content-Type": "application/json"}, content=b'{"name"'
        ),
        "invalid-request",
    )
    assert "from character 7 on" in str(told["detail"])


def test_paths_and_methods_that_are_not_known_are_problems_too(service: Served) -> None:
    problem(service.client.get("/nowhere"), "not-found")
    answer = service.client.put("/v1/things", headers=service.bearer("admin"))
    problem(answer, "method-not-allowed")
    assert answer.headers["allow"] == "POST"


def test_every_answer_that_is_possible_is_described(service: Served) -> None:
    paths = service.app.openapi()["paths"]
    assert set(paths["/v1/things"]["post"]["responses"]) == {
        "201", "400", "401", "403", "413", "415", "421", "422", "429", "500", "503",
    }  # fmt: skip
    assert set(paths["/v1/things/{thing_id}"]["get"]["responses"]) == {
        "200", "401", "403", "404", "409", "421", "422", "429", "500", "503",
    }  # fmt: skip
    said = paths["/v1/things/{thing_id}"]["get"]["responses"]["409"]
    assert said["description"] == "Another process is doing the same work (`locked`)"
    assert said["content"][MEDIA_TYPE]["schema"] == {"$ref": "#/components/schemas/Problem"}


def test_what_is_answered_is_what_the_description_says_a_problem_is(service: Served) -> None:
    schema = service.app.openapi()["components"]["schemas"]["Problem"]
    told = problem(post(service, json={}), "invalid-request")
    assert set(schema["required"]) <= told.keys() <= schema["properties"].keys()


def test_the_text_has_every_code_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d{3}) \|", API_TEXT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {(code, int(status)) for code, status in rows} == {(kind.code, kind.status) for kind in KINDS}


def test_codes_are_distinguished() -> None:
    assert len(BY_CODE) == len(KINDS)


@each(
    "error",
    [
        kind
        for module in (errors, access_errors)
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, ResnapError)
        and kind not in {ResnapError, access_errors.AccessError, access_errors.TooOftenError}
    ],
)
def test_no_error_of_ours_is_reported_as_a_mere_failure(error: type[ResnapError]) -> None:
    assert kind_of(error.__new__(error)).code not in {"failed", "internal-error"}, "give it a row in problems.py"


def test_the_nearest_class_counts() -> None:
    assert kind_of(FormatError("x", position=1)).code == "unusable-data"
    assert kind_of(StateError("x")).code == "state-unusable"
    assert kind_of(ResnapError("x")).code == "failed"
    assert kind_of(HttpError("conflict", "x")).code == "conflict"
    assert kind_of(KeyError("x")).code == "internal-error"
