"""Spark's JVM killed under a run of the service: the run says so, the next one has another, the service lives."""

from __future__ import annotations

import os
import signal
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


def named(process: int, name: str) -> list[int]:
    """Return those of a process's children whose command line has ``name`` in it."""
    found = []
    for child in children(process):
        try:
            line = Path(f"/proc/{child}/cmdline").read_bytes().decode()
        except OSError:
            continue
        if name in line:
            found.append(child)
    return found


def jvms(process: int) -> list[int]:
    """Return those of a process's children that are Java."""
    return [child for child in children(process) if Path(f"/proc/{child}/exe").resolve().name == "java"]


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
        eventually(
            lambda: named(service, "spark_daemon") or named(service, "spark/daemon") or named(service, "daemon"), bool
        )
        (jvm,) = jvms(service)
        os.kill(jvm, signal.SIGKILL)
        run = over(client, at)
        assert run["state"] == "failed", run
        assert "JVM ended while it was at work, with status -9" in run["errors"][0]["message"]
        assert run["errors"][0]["hint"]
        assert client.get("/readyz").status_code == 200

        again = over(client, str(client.post(f"{at}/retry").headers["location"]))
        assert again["state"] == "succeeded", again
        (another,) = jvms(service)
        assert another != jvm
        assert [*tmp_path.joinpath("out/first").rglob("*.snapshot")]
        process.tell(signal.SIGTERM)
        code, log = process.end()
    assert (code, "a bug in resnap" in log) == (0, False), log
