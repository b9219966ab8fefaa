from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyspark
import pytest

from resnap.replay.spark.jvm import CLASS_PATH_VARIABLES, ClassArchive, JavaRuntime, find_archive, find_java
from tests.replay.test_spark_session import bare_environment, run

pytestmark = pytest.mark.slow

STARTS = """
import json, os
from pathlib import Path
from resnap.replay.spark.context import spark_context
from resnap.replay.spark.failures import jvm_of
from resnap.replay.spark.settings import SparkSettings

told = []
for _ in range(3):
    with spark_context(SparkSettings(master="local[1]"), os.environ) as context:
        counted = context.parallelize(range(3)).count()
        maps = Path(f"/proc/{jvm_of(context).pid}/maps").read_text()
    kept = sorted(path.name for path in Path(os.environ["HOME"]).rglob("*.jsa"))
    told.append([counted, "/spark.jsa" in maps, kept])
print(json.dumps(told))
"""


@pytest.fixture
def java(tmp_path: Path) -> JavaRuntime:
    return find_java({"XDG_CACHE_HOME": str(tmp_path / "cache")}, scratch=tmp_path)


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    directory = tmp_path / "jars"
    directory.mkdir()
    for name in ("b.jar", "a.jar"):
        (directory / name).touch()
    return directory


def found(java: JavaRuntime, jars: Path, tmp_path: Path, **variables: str) -> ClassArchive | None:
    scratch = tmp_path / f"scratch-{time.monotonic_ns()}"
    scratch.mkdir()
    return find_archive(java, jars, {"XDG_CACHE_HOME": str(tmp_path / "cache")} | variables, scratch=scratch)


def test_the_first_start_leaves_a_mark_and_the_second_makes_an_archive(
    java: JavaRuntime, jars: Path, tmp_path: Path
) -> None:
    assert found(java, jars, tmp_path) is None
    second = found(java, jars, tmp_path)
    assert second is not None
    assert second.is_new
    arguments = Path(second.options[0].removeprefix("@"))
    assert arguments.read_text() == f"-cp {jars}/a.jar:{jars}/b.jar\n"
    assert second.options[1] == f"-XX:SharedArchiveFile={second.directory}/base.jsa"
    assert f"-XX:ArchiveClassesAtExit={second.directory}/.spark.jsa" in second.options
    assert (second.directory / "base.jsa").is_file()


def test_an_archive_is_used_once_its_jvm_has_ended_in_order(java: JavaRuntime, jars: Path, tmp_path: Path) -> None:
    assert found(java, jars, tmp_path) is None
    killed, ended = (found(java, jars, tmp_path) for _ in range(2))
    assert killed is not None
    assert ended is not None
    for archive in (killed, ended):
        (archive.directory / ".spark.jsa").touch()
    killed.keep(ended_in_order=False)
    assert list(killed.directory.iterdir()) == []
    ended.keep(ended_in_order=True)
    used = found(java, jars, tmp_path)
    assert used is not None
    assert not used.is_new
    assert used.options[1] == f"-XX:SharedArchiveFile={ended.directory}/base.jsa:{ended.directory}/spark.jsa"


def test_after_some_tries_that_came_to_nothing_it_is_let_be_for_a_day(
    java: JavaRuntime, jars: Path, tmp_path: Path
) -> None:
    tries = [found(java, jars, tmp_path) for _ in range(6)]
    assert [archive is not None for archive in tries] == [False, True, True, True, False, False]
    killed = [archive.directory for archive in tries if archive is not None]
    for directory in killed:
        before_s = directory.stat().st_mtime - 86_500
        os.utime(directory, (before_s, before_s))
    further = found(java, jars, tmp_path)
    assert further is not None
    assert further.is_new
    assert further.directory not in killed
    assert list(further.directory.parent.iterdir()) == [further.directory]
    (further.directory / ".spark.jsa").touch()
    further.keep(ended_in_order=True)
    used = found(java, jars, tmp_path)
    assert used is not None
    assert not used.is_new


def test_other_jars_are_another_archive(java: JavaRuntime, jars: Path, tmp_path: Path) -> None:
    assert found(java, jars, tmp_path) is None
    os.utime(jars / "a.jar", (1, 1))
    assert found(java, jars, tmp_path) is None


@pytest.mark.parametrize("variable", sorted(CLASS_PATH_VARIABLES))
def test_a_class_path_that_an_operator_adds_to_is_left_alone(
    java: JavaRuntime, jars: Path, tmp_path: Path, variable: str
) -> None:
    assert [found(java, jars, tmp_path, **{variable: "/etc"}) for _ in range(2)] == [None, None]


def test_without_a_place_to_keep_it_there_is_none(java: JavaRuntime, jars: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [found(java, jars, tmp_path, XDG_CACHE_HOME=str(tmp_path / "file")) for _ in range(2)] == [None, None]


@pytest.mark.slow
@pytest.mark.spark
def test_the_third_start_maps_what_the_second_has_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("a")
    done = run(STARTS, place, {**bare_environment(place), "XDG_CACHE_HOME": ""})
    assert (done.returncode, done.stderr) == (0, "")
    both = ["base.jsa", "spark.jsa"]
    assert json.loads(done.stdout) == [[3, False, []], [3, False, both], [3, True, both]]


def test_spark_brings_its_jars_where_they_are_looked_for() -> None:
    assert len(list((Path(pyspark.__file__).parent / "jars").glob("*.jar"))) > 200
