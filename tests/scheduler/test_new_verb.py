"""A verb is one file and one row of the table: a made-up one, added to a copy of the package, is behind every door."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.builders import a_batch

PROJECT: Final = Path(__file__).parents[2]
ROW: Final = '''
    "batches": CommandRow("Count batches.", "resnap batches /var/lib/kafka", "batches"),
    "demo"'''


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three partitions, of 1, 2 and 3 batches."""
    directory = tmp_path_factory.mktemp("logs")
    for count in (1, 2, 3):
        partition = directory / f"payments-{count}"
        partition.mkdir()
        batches = b"".join(a_batch(offset=offset) for offset in range(count))
        (partition / f"{0:020}.log").write_bytes(batches)
    return directory


@pytest.fixture(scope="module")
def told(log_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give what a command and a service say, where the verb is part of Resnap: all of one process."""
    directory = tmp_path_factory.mktemp("with_a_verb")
    shutil.copytree(PROJECT / "resnap", directory / "resnap")
    scheduler = directory / "resnap" / "scheduler"
    shutil.copy(Path(__file__).with_name("batches_verb.py"), scheduler / "verbs" / "batches.py")
    table = scheduler / "registry.py"
    table.write_text(table.read_text().replace('\n    "demo"', ROW, 1))
    environment = {**os.environ, "PYTHONPATH": f"{directory}:{PROJECT}", "RESNAP_STATE_DIR": "none"}
    command = [sys.executable, "-m", "tests.scheduler.new_verb_served", tmp_path_factory.mktemp("service"), log_dir]
    ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_the_shell_runs_it_and_has_its_flag(told: dict[str, Any]) -> None:
    document = told["shell"]
    assert [partition["batches"] for partition in document["partitions"]] == [2, 3]
    assert document["summary"] == {"batches": 5}
    assert "Count the record batches of each partition." in told["help"]
    assert "--least N" in told["help"]
    assert "batches         Count batches." in told["commands"]


def test_the_api_makes_runs_of_it(told: dict[str, Any]) -> None:
    run = told["api"]
    assert (run["kind"], run["state"], run["totals"]) == ("batches", "succeeded", {"batches": 3})
    assert run["rows"] == [{"topic": "payments", "partition": 3, "batches": 3}]
    assert told["refused"]["code"] == "invalid-request"
    assert {told[name]["id"] for name in ("api", "schedule")} <= {one["id"] for one in told["runs"]}


def test_a_schedule_makes_runs_of_it(told: dict[str, Any]) -> None:
    run = told["schedule"]
    assert (run["origin"], run["state"], run["totals"]) == ("schedule:count", "succeeded", {"batches": 5})


def test_its_rows_are_in_openapi(told: dict[str, Any]) -> None:
    schemas = told["openapi"]["components"]["schemas"]
    assert {"$ref": "#/components/schemas/BatchesRow"} in schemas["RunPartition"]["properties"]["row"]["anyOf"]
    assert schemas["BatchesBody"]["properties"]["least"]["minimum"] == 1
    assert told["openapi"]["paths"]["/v1/batch-counts"]["post"]["operationId"] == "createBatchCount"


def test_its_runs_are_on_the_page_in_the_metrics_and_in_the_reference(told: dict[str, Any]) -> None:
    assert "payments-3" in told["api"]["page"]
    assert "--least 3" in told["api"]["page"]
    assert 'resnap_runs_total{kind="batches",state="succeeded"}' in told["metrics"]
    assert "| `--least N` | Only partitions of so many batches." in told["reference"]
    assert "| `batches` | Count batches. |" in told["reference"]
