from __future__ import annotations

from pathlib import Path

import pytest

from resnap.replay.spark.settings import PROJECT_ROOT, SparkSettings, is_local_master, processors, spark_properties
from resnap.storage.errors import ConfigurationError

SCRATCH = Path("/scratch")
CLUSTER = SparkSettings(master="spark://master:7077")


@pytest.mark.parametrize(("master", "threads"), [("local", 1), ("local[3]", 3), ("local[3,2]", 3), ("local[3, 2]", 3)])
def test_a_local_master_states_its_threads(master: str, threads: int) -> None:
    assert SparkSettings(master=master).threads == threads
    assert spark_properties(SparkSettings(master=master), SCRATCH)["spark.sql.shuffle.partitions"] == str(threads)


@pytest.mark.parametrize(("master", "resolved"), [("local[*]", "local[{},4]"), ("local[*,2]", "local[{},2]")])
def test_a_star_becomes_the_processors_of_this_process(master: str, resolved: str) -> None:
    properties = spark_properties(SparkSettings(master=master), SCRATCH)
    assert properties["spark.master"] == resolved.format(processors())


@pytest.mark.parametrize(
    ("master", "resolved"), [("local", "local[1,4]"), ("local[3]", "local[3,4]"), ("local[3,1]", "local[3,1]")]
)
def test_a_local_master_repeats_failed_tasks_unless_it_says_how_often(master: str, resolved: str) -> None:
    assert spark_properties(SparkSettings(master=master), SCRATCH)["spark.master"] == resolved


@pytest.mark.parametrize(
    "master", ["spark://a:7077", "yarn", "k8s://https://a", "local-cluster[2,1,1024]", "localhost"]
)
def test_any_other_master_is_not_local(master: str) -> None:
    assert not is_local_master(master)
    assert SparkSettings(master=master).threads is None


@pytest.mark.parametrize("quota", ["100000 100000", "50000 100000", "1000 100000"])
def test_a_container_with_a_quota_of_at_most_one_processor_has_one(tmp_path: Path, quota: str) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert processors(tmp_path / "cpu.max") == 1


@pytest.mark.parametrize("quota", ["max 100000", "100000000 100000", "", "nonsense"])
def test_processors_are_those_of_the_process_without_a_quota_that_matters(tmp_path: Path, quota: str) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert processors(tmp_path / "cpu.max") == processors(tmp_path / "missing") >= 1


@pytest.mark.parametrize("memory", ["", "lots", "1.5g", "0g", "1gb", "-1g", "1g -Dx=y"])
def test_a_driver_memory_that_java_would_not_take_is_refused(memory: str) -> None:
    with pytest.raises(ConfigurationError, match="driver memory"):
        SparkSettings(driver_memory=memory)


def test_loopback_and_quick_compiler_are_for_local_masters_only() -> None:
    local, cluster = spark_properties(SparkSettings(), SCRATCH), spark_properties(CLUSTER, SCRATCH)
    assert local["spark.driver.host"] == local["spark.driver.bindAddress"] == "127.0.0.1"
    assert "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" in local["spark.driver.defaultJavaOptions"]
    assert "-XX:" not in cluster["spark.driver.defaultJavaOptions"]
    assert local["spark.python.daemon.module"] == "resnap.replay.spark.daemon"
    theirs = ("driver.host", "bindAddress", "executorEnv", "daemon", "authenticate", "crypto")
    assert not {name for name in cluster if any(part in name for part in theirs)}


@pytest.mark.parametrize(("site", "given"), [("/elsewhere", str(PROJECT_ROOT)), (str(PROJECT_ROOT), None)])
def test_a_checkout_is_on_the_python_path_of_workers_and_a_site_directory_is_not(
    monkeypatch: pytest.MonkeyPatch, site: str, given: str | None
) -> None:
    monkeypatch.setattr("site.getsitepackages", lambda: [site])
    assert spark_properties(SparkSettings(), SCRATCH).get("spark.executorEnv.PYTHONPATH") == given


def test_a_cluster_keeps_its_own_shuffle_partitions_by_default() -> None:
    assert "spark.sql.shuffle.partitions" not in spark_properties(CLUSTER, SCRATCH)


def test_the_operators_own_properties_win() -> None:
    settings = SparkSettings(conf={"spark.ui.enabled": "true", "spark.executor.memory": "2g"})
    properties = spark_properties(settings, SCRATCH)
    assert (properties["spark.ui.enabled"], properties["spark.executor.memory"]) == ("true", "2g")


def test_workers_are_reached_by_sockets_only_where_the_system_takes_their_names() -> None:
    name = "spark.python.unix.domain.socket.enabled"
    assert spark_properties(SparkSettings(), Path("/" + "x" * 63))[name] == "true"
    assert spark_properties(SparkSettings(), Path("/" + "x" * 64))[name] == "false"


def test_paths_are_quoted_for_sparks_option_parser() -> None:
    options = spark_properties(SparkSettings(), Path("""/a "b" \\c d"""))["spark.driver.defaultJavaOptions"]
    assert r'"-Djava.io.tmpdir=/a \"b\" \\c d"' in options


def test_a_user_without_a_name_gets_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    assert '"-Duser.home=/scratch"' in spark_properties(SparkSettings(), SCRATCH)["spark.driver.defaultJavaOptions"]


def test_the_logging_configuration_is_part_of_the_package() -> None:
    options = spark_properties(SparkSettings(), SCRATCH)["spark.driver.defaultJavaOptions"]
    uri = next(option for option in options.split() if "log4j2" in option).partition("=")[2]
    assert Path(uri.removeprefix("file://")).is_file()
