"""One engine for many runs, in a process of its own: pyspark knows one JVM per process."""

from __future__ import annotations

import json

import pytest

from tests.replay.test_spark_session import bare_environment, run

SCRIPT = """
import json, os, signal
from contextlib import suppress
from pathlib import Path
from tests.clocks import FixedClock
from resnap.scheduler.verbs.regenerate import RegenerateRequest, run
from resnap.scheduler.settings.settings import Settings
from resnap.tiering.selection import Scope
from resnap.scheduler.job.replaying import engine_of
from tests.scheduler.contexts import SilentContext
from tests.builders import a_partition
from tests.replay.test_spark_job import NOW_MS, transactions

directory = a_partition(Path.cwd() / "log", [transactions(hour, pids=range(1, 9)) for hour in range(0, 60, 12)])
settings = Settings(spark_master="local[1]", boundaries="all", fresh=True)

def jvms():
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # processes end while they are listed
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and (process / "exe").resolve().name == "java":
                found.append(int(process.name))
    return found

def one_run(engine, name):
    into = Path.cwd() / name
    context = SilentContext(settings, FixedClock(NOW_MS), engine)
    done = []
    run(RegenerateRequest(scope=Scope(sources=(str(directory),)), into=str(into)), context, done.append)
    return {path.name: path.read_bytes().hex() for path in sorted(into.glob("*/*.snapshot"))}

told = {"jvms": [], "snapshots": []}
with engine_of(settings) as engine:
    for name in ("first", "second"):
        told["snapshots"].append(one_run(engine, name))
        told["jvms"] += jvms()
    for pid in jvms():
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    told["snapshots"].append(one_run(engine, "third"))
    told["jvms"] += jvms()
told["left"] = jvms()
told["local"] = one_run(engine_of(Settings(engine="local")), "local")
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.spark
def test_runs_share_one_jvm_and_the_next_one_replaces_it_when_it_has_died(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("e")
    done = run(SCRIPT, place, bare_environment(place))
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    first, second, third = told["jvms"]
    assert first == second != third
    assert told["left"] == []
    assert told["local"]
    assert told["snapshots"] == [told["local"]] * 3
