"""An application that its cluster has ended: one error, and a service that goes on with another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from resnap.replay.spark.settings import PROJECT_ROOT
from tests.builders import a_partition
from tests.replay.spark_cluster import a_cluster, bare_environment
from tests.replay.test_spark_job import transactions
from tests.replay.test_spark_session import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.spark]

NEXT = """
import json, os, threading, time
from contextlib import suppress
from pathlib import Path
from resnap.replay.spark.settings import SparkSettings
from resnap.replay.spark.warm import WarmSpark, on_executors
from resnap.storage.errors import ResnapError

def dies_once(name):
    if not os.path.exists(name):
        Path(name).touch()
        os.kill(os.getpid(), 9)
    return name

def sleeps(name):
    Path(name).touch()
    time.sleep(60)

def sleep_on_executors(context):
    with suppress(ResnapError):
        on_executors(context, sleeps, ["sleeps"])

told = []
with WarmSpark(SparkSettings(master="local[1]"), os.environ) as warm:
    for turn in range(2):
        try:
            with warm.context() as context:
                if turn == 0:
                    context._jsc.sc().stop()
                told.append(on_executors(context, abs, [-1]))
        except ResnapError as error:
            told.append(str(error))
    with warm.context() as context:
        context._jsc.sc().stop()
    with warm.context() as context:
        told.append(on_executors(context, abs, [-2]))
    with warm.context() as context:
        told.append(on_executors(context, dies_once, ["died"]))
        sleeping = threading.Thread(target=sleep_on_executors, args=[context])
        sleeping.start()
        while not os.path.exists("sleeps"):
            time.sleep(0.01)
        context._jsc.sc().stop()
        sleeping.join()
print(json.dumps(told))
"""


def test_executors_that_cannot_start_end_with_one_error(tmp_path: Path) -> None:
    a_partition(tmp_path / "logs", [transactions(hour, pids=range(4)) for hour in range(2)], name="one-0")
    environment = {**bare_environment(tmp_path / "d"), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(PROJECT_ROOT),
                   "PATH": os.environ["PATH"]}  # fmt: skip
    # Without Spark's script a worker does not know which Scala its executors need.
    with a_cluster(tmp_path / "c", properties={"spark.deploy.maxExecutorRetries": "2"}, by_script=False) as cluster:
        command = ["regenerate", tmp_path / "logs", "--into", tmp_path / "out", "--full", "--as-of", "now", "--quiet",
                   "--spark-master", cluster.url, "--spark-conf", "spark.executor.memory=512m"]  # fmt: skip
        done = subprocess.run([sys.executable, "-m", "resnap", *command], cwd=tmp_path, env=environment, text=True,
                              capture_output=True, check=False, timeout=600)  # fmt: skip
    error, hint = done.stderr.splitlines()
    assert (done.returncode, hint[:14]) == (1, "hint: see the ")
    assert error == "error: the Spark cluster ended the application: Master removed our application: FAILED"


def test_the_next_replay_has_another_application_and_cut_off_tasks_are_not_reported(tmp_path: Path) -> None:
    done = run(NEXT, tmp_path, bare_environment(tmp_path / "d"))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == ["the Spark cluster ended the application: it gave no reason", [1], [2], ["died"]]
