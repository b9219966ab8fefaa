"""The demonstration: that it does what it prints, and that it would report anything wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler import cli
from resnap.scheduler.verbs import demo
from resnap.scheduler.verbs.demo import unpack, workplace
from resnap.storage.errors import LogDirError, UsageError
from resnap.storage.log.producer_snapshot import load_snapshot, snapshot_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_its_log_is_a_part_of_what_a_real_broker_left(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> None:
    unpack(tmp_path)
    whole = fixture_set("kafka-2.7.2")
    for part, of in (("log", whole.data), ("expected", whole.expected)):
        assert files(tmp_path / part).items() <= files(of).items()
        assert {path.name for path in (tmp_path / part).iterdir() if path.is_dir()} == {
            "orders-0", "payments-0", "payments-1",
        }  # fmt: skip


@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_its_log_is_unpacked_by_a_python_whose_archives_know_no_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = tarfile.TarFile.extractall

    def before_3_11_4(archive: tarfile.TarFile, path: str = ".") -> None:
        unpacked(archive, path)

    monkeypatch.setattr(tarfile.TarFile, "extractall", before_3_11_4)
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    unpack(tmp_path)
    assert files(tmp_path / "log")


def test_a_temporary_workplace_is_removed_unless_it_is_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with workplace(None, keep=False) as root:
        (root / "file").touch()
        assert root.parent == tmp_path
    assert list(tmp_path.iterdir()) == []
    with workplace(None, keep=True) as root:
        (root / "file").touch()
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, LogDirError("full")])
def test_an_error_or_interrupt_leaves_no_temporary_workplace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keep: bool, error: BaseException
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail() -> None:
        with workplace(None, keep=keep) as root:
            (root / "file").touch()
            raise error

    with pytest.raises((KeyboardInterrupt, LogDirError)):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_given_workplace_is_made_and_stays_but_must_be_empty(tmp_path: Path) -> None:
    wanted = tmp_path / "not" / "there"
    with workplace(wanted, keep=False) as root:
        (root / "file").touch()
    assert (wanted / "file").exists()
    for taken in (wanted, wanted / "file", wanted / "file" / "below"):
        with pytest.raises(UsageError) as refused, workplace(taken, keep=False):
            pytest.fail("a directory with something in it was taken")
        assert str(taken) in str(refused.value)
        assert refused.value.hint


def test_the_command_explains_each_step_and_ends_with_what_to_do_next(resnap: Resnap, command: Resnap) -> None:
    ran = resnap("demo", "--engine", "local", "--dir", "here")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert [line[0] for line in lines if line[:1].isdigit() and line[1:2] == "."] == [*"12345"]
    assert any("NullPointerException" in line for line in lines)
    assert any(line.split() == ["payments-0", "......##", "########"] for line in lines)
    assert "11 of 11 regenerated snapshots equal the lost ones" in ran.out
    assert lines[-1].startswith("Next: `resnap scan ")
    assert sorted(path.name for path in (resnap.directory / "here").iterdir()) == ["expected", "log", "store"]
    assert "replay: 20/20 segments" in ran.err
    scan = command("scan", "here/log", "--exit-code")
    assert scan.code == 4
    again = command("demo", "--engine", "local", "--dir", "here")
    assert (again.code, again.out) == (2, "")
    assert again.err.splitlines()[1].startswith("hint: ")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_the_command_gives_steps_and_figures_to_programs(resnap: Resnap, tmp_path: Path, form: str) -> None:
    (tmp_path / "tmp").mkdir()
    ran = resnap("demo", "--engine", "local", "--quiet", "--output", form, TMPDIR=str(tmp_path / "tmp"))
    assert (ran.code, ran.err) == (0, "")
    if form == "json":
        steps, summary = ran.document["steps"], ran.document["summary"]
    else:
        *steps, summary = map(json.loads, ran.out.splitlines())
    assert [step["step"] for step in steps] == ["log", "scan", "tier", "verify", "again"]
    assert summary["regenerated"] == summary["equal"] == steps[0]["lost"] == steps[1]["lost"] > 0
    assert steps[2]["shipped"] == steps[3]["segments"] == steps[4]["already"]
    assert steps[4]["shipped"] == 0
    assert summary["directory"] is None
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("field", ["last_sequence", "coordinator_epoch", "current_txn_first_offset", "timestamp", None])
def test_a_snapshot_that_differs_ends_the_command_with_1_and_says_which(
    field: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one field of one entry, or in the entry itself."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RESNAP_")]:
        monkeypatch.delenv(name)

    def unpack_and_spoil(root: Path) -> None:
        unpack(root)
        path = root / "expected" / "payments-0" / f"{406:020}.snapshot"
        entries = load_snapshot(path)
        first = entries.pop(min(entries))
        changed = [] if field is None else [first._replace(**{field: getattr(first, field) + 1})]
        path.write_bytes(snapshot_bytes([*changed, *entries.values()]))
        shutil.rmtree(root / "log" / "payments-1")

    monkeypatch.setattr(demo, "unpack", unpack_and_spoil)
    assert cli.run(["demo", "--engine", "local", "--quiet"]) == 1
    told = capsys.readouterr()
    assert "5 of 6 regenerated snapshots equal the lost ones" in told.out
    assert any(line.split() == ["payments-0", "......##", "##!#####"] for line in told.out.splitlines())
    assert told.err.startswith("error: payments-0: the snapshot at 406 differs from the broker's own, for 1 producer: ")
    assert "resnap demo --dir DIR" in told.err


def test_a_snapshot_that_the_store_lacks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def unpack_one_more(root: Path) -> None:
        unpack(root)
        own = root / "expected" / "orders-0" / f"{146:020}.snapshot"
        shutil.copy(own, own.with_name(f"{147:020}.snapshot"))

    monkeypatch.setattr(demo, "unpack", unpack_one_more)
    assert cli.run(["demo", "--engine", "local", "--quiet"]) == 1
    assert capsys.readouterr().err.startswith("error: orders-0: the snapshot at 147 is not in the store")


def test_an_interrupt_ends_the_command_with_130_and_leaves_nothing_behind(resnap: Resnap, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "resnap", "demo", "--engine", "local", "--keep"]
    environment = resnap.environment({"TMPDIR": str(tmp_path / "tmp")})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"1."):
            assert process.poll() is None
        assert list((tmp_path / "tmp").iterdir()) != []
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert process.returncode == 130
    # A busy machine may let it come to its end before the signal.
    assert any((tmp_path / "tmp").iterdir()) == (b"Look around" in out)


@pytest.mark.slow
@pytest.mark.spark
def test_on_spark_it_comes_out_the_same_whatever_cluster_is_configured(resnap: Resnap, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    ran = resnap(
        "demo", "--output", "json", "--quiet", TMPDIR=str(tmp_path / "tmp"), RESNAP_SPARK_MASTER="spark://nowhere:7077",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.document["steps"][2]["engine"] == "spark"
    assert ran.document["summary"]["equal"] == ran.document["summary"]["regenerated"] > 0
    assert list((tmp_path / "tmp").iterdir()) == []
