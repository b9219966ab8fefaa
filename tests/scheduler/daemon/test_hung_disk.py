"""A disk that has gone, as a mount whose server is down: the service reports it, and all else goes on."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.scheduler.daemon.process import configure, eventually, serving
from tests.scheduler.scenes import SET, one_partition

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

pytestmark = pytest.mark.slow

SCAN: Final = """
[[schedules]]
name = "look"
run = "scan"
every = "1s"
"""
BOUNDARIES: Final = "/v1/partitions/payments/1/boundaries"
MANY: Final = 45
"""More than the threads that answer requests."""
SOON_S: Final = 15
"""Far less than any read may take."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the library that lets a disk hang."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("NOT TESTED: no disk hung, since there is no C compiler (apt-get install gcc libc6-dev)")
    made = tmp_path_factory.mktemp("library") / "hung_disk.so"
    source = Path(__file__).with_name("hung_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


def test_a_hung_disk_keeps_no_probe_waiting_and_no_request_for_ever_and_the_service_ends_in_time(
    library: Path, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    log_dir, hung = one_partition(fixture_set(SET).data, tmp_path / "data"), tmp_path / "hung"
    configure(tmp_path, log_dir, SCAN.replace("1s", "1h"))
    variables = {"LD_PRELOAD": str(library), "HUNG_BELOW": str(log_dir), "HUNG_WHILE": str(hung)}
    with serving(tmp_path, variables=variables) as service, service.client() as client:
        client.post("/v1/schedules/look/run").raise_for_status()
        eventually(lambda: client.get(BOUNDARIES).status_code, lambda status: status == 200)
        assert client.get("/readyz").status_code == 200
        hung.touch()
        with ThreadPoolExecutor(MANY) as callers:
            asked = [callers.submit(client.get, BOUNDARIES) for _ in range(MANY)]
            time.sleep(1)
            began_s = time.monotonic()
            for probe, status in (("/livez", 200), ("/readyz", 503), ("/metrics", 200), ("/readyz", 503)):
                assert client.get(probe).status_code == status
            assert client.get("/readyz").json()["checks"]["logDirs"] == "do not answer"
            assert client.get("/v1/partitions").json()["partitions"]
            assert time.monotonic() - began_s < SOON_S
            time.sleep(6)  # longer than any caller waits for a turn
            took_s = []
            for _ in range(5):  # each of them waits, or none
                began_s = time.monotonic()
                refused = client.get(BOUNDARIES)
                assert (refused.status_code, refused.json()["code"]) == (503, "log-dir-unusable")
                took_s.append(time.monotonic() - began_s)
            assert min(took_s) < SOON_S / 5
            service.send_signal(signal.SIGTERM)
            began_s = time.monotonic()
            code, _ = service.end()
            assert code == 0
            assert time.monotonic() - began_s < SOON_S
            assert {one.result().status_code for one in asked if one.exception() is None} <= {503}


def test_a_disk_that_comes_back_is_read_again(
    library: Path, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    log_dir, hung = one_partition(fixture_set(SET).data, tmp_path / "data"), tmp_path / "hung"
    configure(tmp_path, log_dir, SCAN.replace("1s", "1h"))
    variables = {"LD_PRELOAD": str(library), "HUNG_BELOW": str(log_dir), "HUNG_WHILE": str(hung)}
    with serving(tmp_path, variables=variables) as service, service.client() as client:
        client.post("/v1/schedules/look/run").raise_for_status()
        eventually(lambda: client.get(BOUNDARIES).status_code, lambda status: status == 200)
        hung.touch()
        assert client.get("/readyz").status_code == 503
        hung.unlink()
        eventually(lambda: client.get("/readyz").status_code, lambda status: status == 200)
        assert client.get(BOUNDARIES).status_code == 200
