"""Destinations that are full, wrong or do not answer: a clear message, the right exit code, nothing half-made."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.scheduler.files import BALLAST, fill
from tests.scheduler.shipped import check_store, eligible, files_of, manifests

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scheduler.conftest import Bucket, Resnap

LOCAL = ("--engine", "local")
ROLL = ("--as-of", "roll", *LOCAL)


def test_a_full_disk_ends_a_regeneration_with_whole_snapshots_only(
    command: Resnap, broker_log: Path, tiny_disk: Path, tmp_path: Path
) -> None:
    assert command("regenerate", broker_log, *ROLL, "--into", tmp_path / "whole").code == 0
    fill(tiny_disk, leaving=40_000)
    ran = command("regenerate", broker_log, *ROLL, "--into", tiny_disk / "out", "--output", "json")
    assert ran.code == 3
    assert "No space left" in ran.error["message"]
    assert "free some space" in ran.error["hint"]
    partial = files_of(tiny_disk / "out")
    assert partial.items() <= files_of(tmp_path / "whole").items()
    (tiny_disk / BALLAST).unlink()
    assert command("regenerate", broker_log, *ROLL, "--into", tiny_disk / "out").code == 0
    assert files_of(tiny_disk / "out") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("room", [0, 4_096, 40_000, 100_000, 200_000])
def test_a_full_disk_ends_a_shipment_with_whole_segments_only(
    command: Resnap, broker_log: Path, tiny_disk: Path, room: int
) -> None:
    fill(tiny_disk, leaving=room)
    few = ("--topic", "orders", "--topic", "dash*")
    must = {one for one in eligible(broker_log) if one.topic in {"orders", "dash-ed.topic_1"}}
    to = (*few, "--to", (tiny_disk / "store").as_uri())
    ran = command("tier", broker_log, *ROLL, *to, "--output", "json")
    assert ran.code == (3 if manifests(files_of(tiny_disk / "store")) else 12)
    assert ran.error["type"] == "StoreFullError"
    assert "make room" in ran.error["hint"]
    assert check_store(files_of(tiny_disk / "store"), strict=False) < must
    assert [name for name in files_of(tiny_disk) if name.endswith("~")] == []
    assert ran.document["summary"]["shipped"] == len(manifests(files_of(tiny_disk / "store")))
    (tiny_disk / BALLAST).unlink()
    assert command("tier", broker_log, *ROLL, *to).code == 0
    assert check_store(files_of(tiny_disk / "store"), strict=False) == must


def test_a_full_disk_where_snapshots_wait_is_reported_as_such(
    command: Resnap, broker_log: Path, tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tiny_disk, leaving=8_192)
    monkeypatch.setattr("tempfile.tempdir", str(tiny_disk))
    store = tmp_path / "store"
    ran = command("tier", broker_log, *ROLL, "--to", store.as_uri(), "--output", "json")
    assert ran.code in {1, 3}
    assert str(tiny_disk) in ran.error["message"]
    assert ran.error["hint"]
    assert {path.name for path in tiny_disk.iterdir()} == {BALLAST}
    assert check_store(files_of(store), strict=False) < eligible(broker_log)


@pytest.mark.parametrize("command_line", ["regenerate --into", "tier --to"])
def test_a_read_only_disk_is_reported(
    command: Resnap, broker_log: Path, read_only_disk: Path, command_line: str
) -> None:
    name, flag = command_line.split()
    ran = command(name, broker_log, *ROLL, flag, f"file://{read_only_disk}/x")
    assert ran.code == (12 if name == "tier" else 1)
    assert "ead-only file system" in ran.err
    assert "hint: " in ran.err


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "s3://", "s3://b", "s3://bucket/../x", "file://host/x", "bucket/prefix", "s3:/bucket", ""]
)
@pytest.mark.parametrize("command_line", ["tier --to", "verify --store"])
def test_a_wrong_url_is_a_usage_error(command: Resnap, broker_log: Path, url: str, command_line: str) -> None:
    name, flag = command_line.split()
    sources = [broker_log] if name == "tier" else []
    ran = command(name, *sources, flag, url, *LOCAL)
    assert (ran.code, ran.out) == (2, "")
    assert "hint: " in ran.err


@pytest.mark.parametrize(
    "command_line",
    ["regenerate {log} --into", "restore file:///nowhere --into", "check", "doctor", "inspect", "tier {log}", "plan"],
)
def test_an_empty_argument_is_not_the_current_directory(
    command: Resnap, broker_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: str
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    ran = command(*command_line.format(log=broker_log).split(), "")
    assert (ran.code, ran.out) == (2, "")
    assert "it is empty: a shell variable may not be set" in ran.err
    assert not list(here.iterdir())


@pytest.mark.parametrize("flag", ["--topic", "--exclude-topic", "--partition"])
def test_an_empty_name_is_not_a_name_that_nothing_has(command: Resnap, broker_log: Path, flag: str) -> None:
    ran = command("scan", broker_log, "--topic", "payments", flag, "")
    assert (ran.code, ran.out) == (2, "")
    assert f"(flag {flag}): an entry is empty: a shell variable may not be set" in ran.err


@pytest.mark.parametrize("below", ["", "strange", "payments-0"])
@pytest.mark.parametrize("command_line", ["regenerate --into", "tier --to"])
def test_no_log_dir_of_a_broker_is_a_destination_though_it_is_not_a_source(
    command: Resnap, broker_log: Path, tmp_path: Path, command_line: str, below: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(broker_log, other)
    before = sorted(other.rglob("*"))
    name, flag = command_line.split()
    ran = command(name, broker_log, *LOCAL, flag, (other / below).as_uri() if name == "tier" else other / below)
    assert (ran.code, ran.out) == (2, "")
    assert f"is inside the log dir {other}" in ran.err
    assert sorted(other.rglob("*")) == before


def test_a_destination_that_is_a_loop_of_links_is_reported(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    ran = command("tier", broker_log, *LOCAL, "--to", f"file://{tmp_path}/loop")
    assert (ran.code, "this is a bug" in ran.err) == (12, False), ran.err
    assert "loop" in ran.err
    assert "hint: " in ran.err


def test_a_directory_above_the_store_that_is_not_there_is_a_mistyped_one(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    ran = command("tier", broker_log, *ROLL, "--to", f"file://{tmp_path}/mnt/tiered/store")
    assert (ran.code, ran.out) == (12, "")
    assert "hint: check the path and whether its disk is mounted" in ran.err
    assert not (tmp_path / "mnt").exists()


@pytest.mark.s3
@pytest.mark.parametrize("command_line", ["tier --to", "verify --store", "regenerate --into"])
def test_a_bucket_that_does_not_exist_is_reported_before_anything_is_replayed(
    command: Resnap, broker_log: Path, bucket: Bucket, command_line: str, opened: Callable[[], list[str]]
) -> None:
    name, flag = command_line.split()
    sources = [] if name == "verify" else [broker_log]
    ran = command(name, *sources, flag, "s3://no-such-bucket/x", *LOCAL, *bucket.flags, **bucket.variables)
    assert (ran.code, ran.out.strip()) == (12, "") or name == "verify"
    assert ran.code == 12
    assert "no such bucket" in ran.err
    assert "hint: check the bucket's name" in ran.err
    # Of `legacy` alone first bytes are read, to find where leader epochs begin: its checkpoint does not say it.
    assert {Path(path).parent.name for path in opened() if path.endswith(".log")} <= {"legacy-0"}


@pytest.mark.s3
@pytest.mark.parametrize("command_line", ["tier --to", "regenerate --into"])
def test_missing_credentials_are_reported_with_where_they_may_come_from(
    command: Resnap, broker_log: Path, bucket: Bucket, command_line: str
) -> None:
    name, flag = command_line.split()
    ran = command(name, broker_log, flag, bucket.url, *LOCAL, *bucket.flags, AWS_EC2_METADATA_DISABLED="true")
    assert (ran.code, ran.out) == (12, "")
    assert "credentials" in ran.err
    assert "hint: " in ran.err
    assert bucket.objects() == {}


@pytest.mark.s3
def test_a_store_that_does_not_answer_is_reported_in_bounded_time(
    command: Resnap, broker_log: Path, bucket: Bucket
) -> None:
    flags = ("--s3-endpoint-url", "http://127.0.0.1:9", "--s3-region", "us-east-1")
    ran = command("tier", broker_log, "--to", bucket.url, *LOCAL, *flags, "--output", "json", **bucket.variables)
    assert (ran.code, ran.out) == (12, "")
    assert ran.error["type"] == "StoreUnavailableError"
    assert "127.0.0.1:9" in ran.error["message"]
    assert ran.error["hint"]
