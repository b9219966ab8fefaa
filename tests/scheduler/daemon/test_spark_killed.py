"""Spark's JVM killed under a run of the service: the run says so, the next one has another, the service lives."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.scheduler.api.whole import FINAL
from tests.scheduler.daemon.process import configure, eventually, serving
from tests.scheduler.scenes import SET, one_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from tests.fixture_sets import FixtureSet

pytestmark = [pytest.mark.spark, pytest.mark.heavy]
VARIABLES: Final = {"RESNAP_ENGINE": "spark", "RESNAP_SPARK_MASTER": "local[1]"}


def children(process: int) -> Iterator[int]:
    """Yield the processes that ``process`` has started, and those that these have, as far as they are there."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found = [int(pid) for pid in task.read_text().split()]
        except OSError:
            continue
        for child in found:
            yield child
            yield from children(child)


def running(process: int, program: str) -> list[int]:
    """Return those of a process's children that run ``program``, whatever version its name ends with."""
    found = []
    for child in children(process):
        with suppress(OSError):
            if Path(f"/proc/{child}/exe").readlink().name.startswith(program):
                found.append(child)
    return found


def workers(process: int) -> list[int]:
    """Return the processes in which Spark runs Python."""
    return [worker for jvm in running(process, "java") for worker in running(jvm, "python")]


def test_a_jvm_that_is_killed_under_a_run_fails_it_and_the_next_run_has_another(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    def ask(client: httpx.Client, place: str) -> str:
        return str(client.post("/v1/replays", json={"destination": f"{tmp_path}/out/{place}"}).headers["location"])

    def over(client: httpx.Client, at: str) -> dict[str, Any]:
        return dict(eventually(lambda: client.get(at).json(), lambda run: run["state"] in FINAL))

    one_partition(fixture_set(SET).data, tmp_path / "data")
    configure(tmp_path, tmp_path / "data")
    with serving(tmp_path, variables=VARIABLES) as process, process.client() as client:
        service = process.popen.pid
        at = ask(client, "first")
        # A worker of Python is there once a job has begun; it needs seconds to import what it works with.
        eventually(lambda: workers(service), bool)
        (jvm,) = running(service, "java")
        os.kill(jvm, signal.SIGKILL)
        run = over(client, at)
        assert run["state"] == "failed", run
        assert "JVM ended while it was at work, with status -9" in run["errors"][0]["message"]
        assert run["errors"][0]["hint"]
        assert client.get("/readyz").status_code == 200

        again = over(client, str(client.post(f"{at}/retry").headers["location"]))
        assert again["state"] == "succeeded", again
        (another,) = running(service, "java")
        assert another != jvm
        assert [*tmp_path.joinpath("out/first").rglob("*.snapshot")]
        process.send_signal(signal.SIGTERM)
        code, log = process.end()
    assert (code, "a bug in resnap" in log) == (0, False), log
