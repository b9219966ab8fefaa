"""The commands that show the service's history, beside a service that writes it."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.runs.history import History
from resnap.scheduler.runs.run import PartitionOutcome, ReportedError, Run, RunEnd, RunRequest, RunState
from resnap.scheduler.state.database import DATABASE_FILE, Database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.scheduler.conftest import Resnap

JSON = ("--output", "json")
START_MS = 1_700_000_000_000
FAILURE = ReportedError(code="StoreFullError", message="the bucket is full", hint="make room", exit_code=12)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """The history of a service at work, which has the file open: a run that failed, one at work, one that waits."""
    times = count(START_MS, 1_500)
    database = Database(tmp_path / "a state#1?" / DATABASE_FILE)
    found = History(database, lambda: next(times))
    for number, kind in enumerate(("tier", "scan", "tier")):
        request = RunRequest(kind=kind, destination=None if kind == "scan" else "file:///store")
        found.add(Run(id=f"run{number}", request=request, state=RunState.QUEUED, origin="api", principal="ci",
                      created_ms=START_MS + number))  # fmt: skip
    assert found.began("run0")
    with database.write():
        for partition in range(700):
            state = PartitionState.FAILED if partition == 5 else PartitionState.DONE
            row = {"n": partition}
            found.partition_done("run0", PartitionOutcome(topic="t", partition=partition, state=state, row=row))
    found.ended("run0", RunEnd(state=RunState.PARTIALLY_FAILED, totals={"shipped": 3}, errors=(FAILURE,)))
    assert found.began("run1")
    yield found
    database.close()


@pytest.fixture
def state(history: History) -> tuple[str, ...]:
    return ("--state-dir", str(history.database.path.parent))


def test_runs_are_listed_newest_first_beside_a_service_at_work(
    command: Resnap, history: History, state: tuple[str, ...]
) -> None:
    rows = command("runs", "list", *state, *JSON).document["runs"]
    assert [(row["id"], row["kind"], row["state"]) for row in rows] == [
        ("run2", "tier", "queued"), ("run1", "scan", "running"), ("run0", "tier", "partially_failed"),
    ]  # fmt: skip
    assert rows[2]["error"] == "the bucket is full"
    assert rows[2]["created"] == "2023-11-14T22:13:20.000Z"
    assert rows[2]["seconds"] > 0
    assert rows[1]["seconds"] is None
    history.ended("run1", RunEnd(state=RunState.SUCCEEDED, totals={}, errors=()))
    assert command("runs", "list", *state, *JSON).document["runs"][1]["state"] == "succeeded"
    table = command("runs", "list", *state).out
    assert table.splitlines()[0].split()[:3] == ["RUN", "KIND", "STATE"]
    assert "the bucket is full" in table


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (("--kind", "scan"), ["run1"]),
        (("--state", "queued", "--state", "running"), ["run2", "run1"]),
        (("--state", "queued", "--kind", "scan"), []),
        (("--limit", "1"), ["run2"]),
    ],
)
def test_a_list_is_filtered(command: Resnap, state: tuple[str, ...], flags: tuple[str, ...], found: list[str]) -> None:
    lines = command("runs", "list", *state, *flags, "--output", "ndjson").out.splitlines()
    assert [json.loads(line)["id"] for line in lines if json.loads(line)["type"] == "run"] == found


def test_one_run_is_shown_with_all_its_partitions_and_errors(command: Resnap, state: tuple[str, ...]) -> None:
    shown = command("runs", "show", "run0", *state, *JSON).document
    assert (shown["totals"], shown["request"]["destination"]) == ({"shipped": 3}, "file:///store")
    assert [error["hint"] for error in shown["errors"]] == ["make room"]
    assert [row["partition"] for row in shown["partitions"]] == list(range(700))
    assert shown["partitions"][5] == {"topic": "t", "partition": 5, "state": "failed", "row": {"n": 5}}
    for_people = command("runs", "show", "run0", *state).out
    assert "partially_failed" in for_people
    assert "make room" in for_people
    assert not set("{}[]") & set(for_people)


def test_listing_runs_makes_and_changes_nothing(command: Resnap, tmp_path: Path, state: tuple[str, ...]) -> None:
    nowhere = tmp_path / "nowhere"
    refused = command("runs", "list", "--state-dir", nowhere)
    assert (refused.code, "no service has run with this state directory" in refused.err) == (2, True)
    assert not nowhere.exists()
    assert command("runs", "list", *state, "--kind", "verify").out.strip() == "No run matches."
    unknown = command("runs", "show", "run9", *state)
    assert (unknown.code, "there is no run run9" in unknown.err, "runs list" in unknown.err) == (2, True, True)


@pytest.mark.parametrize(("version", "word"), [(0, "an older Resnap"), (99, "a newer Resnap")])
def test_a_file_of_another_version_is_left_as_it_is(command: Resnap, tmp_path: Path, version: int, word: str) -> None:
    database = Database(tmp_path / "state" / DATABASE_FILE)
    with database.write() as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    database.close()
    before = database.path.read_bytes()
    refused = command("runs", "list", "--state-dir", tmp_path / "state")
    assert refused.code == 1
    assert word in refused.err
    assert database.path.read_bytes() == before
