from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from resnap.replay.spark.settings import PROJECT_ROOT, WITHOUT_THREADS

PACKAGE = Path(pyspark.__file__).parent
PRELOADED = """
import gc, json, os, sys
from resnap.replay.spark.daemon import preload
preload()
import pyspark.worker, py4j
wanted = ("numpy", "numba", "resnap.replay.spark.job", "resnap.replay.run_combine")
loaded = [name for name in wanted if name in sys.modules]
print(json.dumps({"threads": len(os.listdir("/proc/self/task")), "pyspark": pyspark.worker.__file__,
                  "py4j": py4j.__file__, "loaded": loaded, "frozen": gc.get_freeze_count()}))
"""


@pytest.fixture(scope="module")
def preloaded() -> dict[str, Any]:
    """Give what is so in a daemon before it forks for the first time; Spark puts its zips in front of everything."""
    zips = [*(PACKAGE / "python" / "lib").glob("*.zip")]
    assert len(zips) == 2
    environment = {"PYTHONPATH": ":".join(map(str, [*zips, PROJECT_ROOT])), **WITHOUT_THREADS}
    ran = subprocess.run([sys.executable, "-c", PRELOADED], env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def test_the_daemon_has_one_thread_so_that_it_may_fork(preloaded: dict[str, Any]) -> None:
    assert preloaded["threads"] == 1


def test_the_installed_pyspark_is_taken_and_not_the_one_in_a_zip(preloaded: dict[str, Any]) -> None:
    assert Path(preloaded["pyspark"]).parent == PACKAGE
    assert ".zip" not in preloaded["py4j"]


def test_what_tasks_use_is_loaded_and_frozen_before_workers_are_forked(preloaded: dict[str, Any]) -> None:
    assert preloaded["loaded"] == ["numpy", "numba", "resnap.replay.spark.job", "resnap.replay.run_combine"]
    assert preloaded["frozen"] > 50_000
