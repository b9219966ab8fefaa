"""Asks for the verb ``batches`` by all its doors, and prints what came of it; run by ``test_new_verb``."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from resnap.scheduler.cli import run
from tests.reference import reference
from tests.scheduler.api.whole import whole


def shell(*words: object) -> str:
    """Return what a command prints."""
    with redirect_stdout(StringIO()) as said:
        assert run([*map(str, words)]) == 0
    return said.getvalue()


def main(directory: Path, log_dir: Path) -> None:
    """Print what the command and the service say of the verb, as JSON."""
    schedule = '\n[[schedules]]\nname = "count"\nrun = "batches"\nevery = "1h"\nsettings = { least = 2 }\n'
    found: dict[str, Any] = {
        "shell": json.loads(shell("batches", log_dir, "--least", 2, "--output", "json")),
        "help": shell("batches", "--help"),
        "commands": shell("--help"),
    }
    with whole(directory, log_dir, more=schedule) as service, service.client() as client:
        for name, path, body in (
            ("api", "/v1/batch-counts", {"sources": [str(log_dir)], "least": 3}),
            ("schedule", "/v1/schedules/count/run", None),
        ):
            location = client.post(path, json=body).headers["Location"]
            found[name] = service.over(client, location)
            found[name]["rows"] = [one["row"] for one in client.get(f"{location}/partitions").json()["partitions"]]
            found[name]["page"] = client.get(location.removeprefix("/v1")).text
        found["refused"] = client.post("/v1/batch-counts", json={"least": 0}).json()
        found["runs"] = client.get("/v1/runs", params={"kind": "batches"}).json()["runs"]
        found["openapi"] = client.get("/openapi.json").json()
        found["metrics"] = client.get("/metrics").text
    found["reference"] = reference()
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
