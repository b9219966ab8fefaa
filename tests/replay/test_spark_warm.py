"""One context for many replays, in a process of its own: pyspark knows one JVM per process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.replay.test_spark_session import bare_environment, run

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import json, os, threading, time, warnings
from concurrent.futures import ThreadPoolExecutor
from resnap.replay.spark.failures import jvm_of
from resnap.replay.spark.settings import SparkSettings
from resnap.replay.spark.warm import WarmSpark
from resnap.storage.errors import ResnapError, UsageError

SETTINGS = SparkSettings(master="local[1]")
inside, most_inside = [], []

def use(warm):
    with warm.context() as context:
        inside.append(1)
        assert context.parallelize(range(3)).count() == 3
        most_inside.append(len(inside))
        inside.pop()
        return jvm_of(context)

def refused(action):
    try:
        action()
    except ResnapError as error:
        return [type(error).__name__, str(error)]

def die_at_work(warm):
    with warm.context() as context:
        jvm_of(context).kill()
        context.parallelize(range(3)).count()

results = {}
with WarmSpark(SETTINGS, os.environ) as warm:
    warm.begin()
    warm.begin()
    first, second = use(warm), use(warm)
    results["died"] = refused(lambda: die_at_work(warm))
    third = use(warm)
    third.kill()
    third.wait()
    fourth = use(warm)
    with ThreadPoolExecutor(3) as pool:
        results["by threads"] = [jvm.pid == fourth.pid for jvm in pool.map(use, [warm] * 6)]
results["same"] = first.pid == second.pid
results["different"] = len({first.pid, third.pid, fourth.pid})
results["ended"] = [jvm.poll() is not None for jvm in (first, third, fourth)]
results["most inside"] = max(most_inside)
results["closed"] = refused(lambda: use(warm))

for wait_s in (0, 1, 3):
    hasty = WarmSpark(SETTINGS, os.environ)
    hasty.begin()
    time.sleep(wait_s)
    hasty.close()
WarmSpark(SETTINGS, os.environ).close()
warnings.simplefilter("ignore", ResourceWarning)  # pyspark leaves the pipe of a JVM open that did not start
broken = WarmSpark(SparkSettings(master="spork://x"), os.environ)
results["broken"] = [refused(lambda: use(broken)), refused(lambda: use(broken))]
results["threads"] = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("resnap-spark"))
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give where the script runs."""
    return tmp_path_factory.mktemp("w")


@pytest.fixture(scope="module")
def results(place: Path) -> dict[str, Any]:
    """Give what the script found."""
    done = run(SCRIPT, place, bare_environment(place))
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
@pytest.mark.spark
def test_the_session_stays_for_the_next_one_who_wants_it(results: dict[str, Any]) -> None:
    assert results["same"]


@pytest.mark.slow
@pytest.mark.spark
def test_a_jvm_that_died_at_work_is_reported_and_replaced_by_the_next_call(results: dict[str, Any]) -> None:
    assert results["died"] == ["ResnapError", "Spark's JVM ended while it was at work, with status -9"]
    assert results["different"] == 3


@pytest.mark.slow
@pytest.mark.spark
def test_several_threads_have_it_one_after_the_other(results: dict[str, Any]) -> None:
    assert results["by threads"] == [True] * 6
    assert results["most inside"] == 1


@pytest.mark.slow
@pytest.mark.spark
def test_no_jvm_outlives_its_owner_nor_a_start_that_was_not_needed(results: dict[str, Any], place: Path) -> None:
    assert results["ended"] == [True] * 3
    assert results["threads"] == []
    assert list((place / "tmp").iterdir()) == []


@pytest.mark.slow
@pytest.mark.spark
def test_who_comes_after_the_end_is_refused(results: dict[str, Any]) -> None:
    assert results["closed"] == ["UsageError", "Spark was asked for after it had been closed"]


@pytest.mark.slow
@pytest.mark.spark
def test_a_start_that_fails_reports_the_reason_to_each_caller(results: dict[str, Any]) -> None:
    assert results["broken"][0] == results["broken"][1]
    assert results["broken"][0][1].startswith("Spark did not start on Java 21.")


BEGINNING = """
import os, threading, time
from concurrent.futures import ThreadPoolExecutor
from resnap.replay.spark import warm
from resnap.replay.spark.settings import SparkSettings
begun, ended = [], []

class Start:
    def __init__(self, *_):
        time.sleep(0.05)
        begun.append(self)
    def end(self, *, in_order):
        ended.append(self)

warm._Start = Start
one = warm.WarmSpark(SparkSettings(), {})
with ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda _: one.begin(), range(8)))
    list(pool.map(lambda _: one.close(), range(8)))
print(len(begun), begun == ended)
"""


@pytest.mark.slow
def test_threads_that_begin_at_once_begin_one_and_those_that_close_it_end_it_once(tmp_path: Path) -> None:
    done = run(BEGINNING, tmp_path, bare_environment(tmp_path))
    assert (done.stdout, done.stderr) == ("1 True\n", "")


MANY = """
import gc, json, os, threading, time
from pathlib import Path
from resnap.replay.spark.failures import jvm_of
from resnap.replay.spark.job import SparkRebuild
from resnap.replay.spark.settings import SparkSettings
from resnap.replay.spark.warm import WarmSpark
from tests.builders import a_partition
from tests.replay.replaying import planned
from tests.replay.test_spark_job import NOW_MS, transactions

directory = a_partition(Path.cwd() / "log", [transactions(hour, pids=range(1, 40)) for hour in range(0, 60, 6)])
plan = planned(directory, now_ms=NOW_MS, full=True)

def resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def files():
    return sum(len(files) for _, _, files in os.walk(os.environ["TMPDIR"]))

def collected(context):
    # Spark deletes the files of a shuffle some time after its objects were collected.
    counts = []
    while len(counts) < 4 or len(set(counts[-4:])) > 1:
        gc.collect()
        context._jvm.java.lang.System.gc()
        time.sleep(1)
        counts.append(files())
    return counts[-1]

def measured(context):
    left = collected(context)
    runtime = context._jvm.java.lang.Runtime.getRuntime()
    return {
        "files": left,
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "jvm descriptors": len(os.listdir(f"/proc/{jvm_of(context).pid}/fd")),
        "blocks": context._jsc.getPersistentRDDs().size(),
        "heap": runtime.totalMemory() - runtime.freeMemory(),
        "resident": resident("self"),
    }

seen = []
with WarmSpark(SparkSettings(master="local[2]"), os.environ) as warm:
    for number in range(50):
        with warm.context() as context:
            list(SparkRebuild(context=context, sink_url=(Path.cwd() / "out").as_uri()).run([plan]))
            if number in (9, 49):
                seen.append(measured(context))
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.heavy
def test_fifty_replays_in_one_context_leave_no_more_behind_than_ten(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("m")
    done = run(MANY, place, bare_environment(place))
    assert (done.returncode, done.stderr) == (0, "")
    ten, fifty = json.loads(done.stdout)
    for name in ("files", "threads", "descriptors", "jvm descriptors", "blocks"):
        assert fifty[name] <= ten[name] + 4, (name, ten, fifty)
    assert fifty["heap"] < ten["heap"] + (32 << 20), (ten, fifty)
    assert fifty["resident"] < ten["resident"] + (16 << 20), (ten, fifty)
