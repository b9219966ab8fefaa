"""The real command, as a process or in this one, with nothing in its environment that a test did not put there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from resnap.replay.spark.settings import SparkSettings
from resnap.scheduler.cli import run
from resnap.scheduler.telemetry.logs import set_up
from resnap.tiering.engine import Engine
from tests.disks import folder_in_memory
from tests.fixture_sets import copied_tree
from tests.scheduler.files import PRODUCERS_STAY, file_at, lost_boundaries
from tests.scheduler.installed import SET, copied, regenerate
from tests.scheduler.scenes import Stage
from tests.scheduler.unfit_stores import ENGINE, PLUGIN_SETS, Brokers, Manifested, Plugins, Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy_boto3_s3 import S3Client

    from tests.fixture_sets import FixtureSet


@pytest.fixture(scope="session", autouse=True)
def plain_log() -> None:
    """Log as a service does: without a set-up, tracebacks are drawn with all their values, which takes seconds."""
    set_up(sys.stderr, "json")


PROJECT = Path(__file__).parents[2]
FORGETFUL = {"RESNAP_STATE_DIR": "none"}
"""Runs of a test know nothing of each other, unless it gives them a place."""


@pytest.fixture(scope="module")
def producers_stay() -> Iterator[None]:
    """Let no producer of a fixture expire; see ``PRODUCERS_STAY``."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in PRODUCERS_STAY.items():
            patched.setitem(FORGETFUL, name, value)
            patched.setenv(name, value)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a process left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The answer as one JSON document."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The last error, in JSON; nothing but JSON may be printed there."""
        other = [line for line in self.err.splitlines() if not line.startswith("{")]
        assert not other, self.err
        told: dict[str, Any] = [line["error"] for line in map(json.loads, self.err.splitlines()) if "error" in line][-1]
        return told


class Resnap(Protocol):
    """Runs ``resnap`` with arguments, in a directory and environment of the test's own."""

    directory: Path

    def __call__(self, *arguments: object, **variables: str) -> Ran: ...

    def environment(self, variables: dict[str, str] | None = None) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class _Process:
    directory: Path

    def __call__(self, *arguments: object, **variables: str) -> Ran:
        ran = subprocess.run(
            [sys.executable, "-m", "resnap", *map(str, arguments)],
            cwd=self.directory,
            env=self.environment(variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return Ran(code=ran.returncode, out=ran.stdout, err=ran.stderr)

    def environment(self, variables: dict[str, str] | None = None) -> dict[str, str]:
        own = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "PYTHONPATH": str(PROJECT)}
        return own | {"PYTHONWARNINGS": "error"} | FORGETFUL | (variables or {})


@pytest.fixture(scope="module")
def stage(fixture_set: Callable[[str], FixtureSet]) -> Iterator[Stage]:
    """What scenes begin with, in memory."""
    with folder_in_memory() as folder:
        yield Stage(fixture_set(SET), folder)


@pytest.fixture
def resnap(tmp_path: Path) -> Resnap:
    directory = tmp_path / "cwd"
    directory.mkdir()
    return _Process(directory)


@dataclass(frozen=True, slots=True)
class _InProcess:
    directory: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: object, **variables: str) -> Ran:
        self.capsys.readouterr()
        with self.monkeypatch.context() as patched:
            patched.chdir(self.directory)
            for name in os.environ:
                if name.startswith("RESNAP_"):
                    patched.delenv(name)
            for name, value in (FORGETFUL | variables).items():
                patched.setenv(name, value)
            code = run([str(argument) for argument in arguments])
        out, err = self.capsys.readouterr()
        return Ran(code=code, out=out, err=err)

    def environment(self, variables: dict[str, str] | None = None) -> dict[str, str]:
        return variables or {}


@pytest.fixture
def command(resnap: Resnap, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Resnap:
    """The command in this process: quicker, and what it does to files, sockets and user ids can be watched."""
    return _InProcess(resnap.directory, monkeypatch, capsys)


@pytest.fixture(scope="module")
def one_spark() -> Iterator[None]:
    """Let all commands of a file use one Spark, as all runs of a service do."""
    from resnap.replay.spark.warm import WarmSpark  # noqa: PLC0415 - imports pyspark

    warm = WarmSpark(SparkSettings(master="local[2]"), dict(os.environ))
    with warm, pytest.MonkeyPatch.context() as patched:
        patched.setattr(Engine, "_warm_spark", lambda _: warm)
        yield


@pytest.fixture
def broker_log(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    """A log dir that 2.7.2 and then 3.9.1 have written, to be damaged at will."""
    return copied_tree(fixture_set(SET).data, tmp_path / "data")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of the test's own, and what the command needs to reach it."""

    name: str
    url: str
    flags: tuple[str, ...]
    variables: dict[str, str]
    client: S3Client

    def objects(self) -> dict[str, bytes]:
        """Return every object, by key, as boto3 itself sees it."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return {key: self.client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in keys}

    def versions(self) -> dict[str, str]:
        """Return when each object was last written, by key: a rewrite with the same bytes shows, too."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return {entry["Key"]: entry["LastModified"].isoformat() for page in pages for entry in page.get("Contents", [])}


@pytest.fixture
def bucket(s3_endpoint: str, s3_client: S3Client, s3_bucket: str, no_aws_of_this_machine: None) -> Bucket:  # noqa: ARG001
    return Bucket(
        name=s3_bucket,
        url=f"s3://{s3_bucket}",
        flags=("--s3-endpoint-url", s3_endpoint, "--s3-region", "us-east-1", "--s3-addressing-style", "path"),
        variables={
            "AWS_ACCESS_KEY_ID": "testaccess",
            "AWS_SECRET_ACCESS_KEY": "testsecret123",
            "AWS_EC2_METADATA_DISABLED": "true",
        },
        client=s3_client,
    )


_watchers: list[list[str]] = []
"""Lists that take the paths of files being opened; an audit hook can be added, and never taken away again."""


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        for heard in _watchers:
            heard.append(str(arguments[0]))


@pytest.fixture(scope="session")
def _ear() -> None:
    sys.addaudithook(_hear)


@pytest.fixture
def opened(_ear: None) -> Iterator[Callable[[], list[str]]]:
    """Give the paths of all files that this process has opened since the test began."""
    heard: list[str] = []
    _watchers.append(heard)
    yield lambda: list(heard)
    _watchers.remove(heard)


@pytest.fixture
def again(command: Resnap, tmp_path: Path) -> Callable[..., Ran]:
    """Run a command with the run cache of this test."""
    return lambda *arguments, **variables: command(
        *arguments, "--engine", "local", **{"RESNAP_STATE_DIR": str(tmp_path / "state")} | variables
    )


@pytest.fixture(scope="module")
def regenerated(fixture_set: Callable[[str], FixtureSet], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give snapshots that were made for the log dir of ``broker_log``; no test may change them."""
    into = tmp_path_factory.mktemp("regenerated") / "staged"
    regenerate(fixture_set(SET).data, into)
    return into


@pytest.fixture
def staged(regenerated: Path, tmp_path: Path) -> Path:
    """Give the same, to be changed."""
    return copied(regenerated, tmp_path / "staged")


@pytest.fixture
def ready_log(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    """A log dir with one topic of 3.9.1, which lacks nothing."""
    fixture, data = fixture_set("kafka-3.9.1-kraft"), tmp_path / "ready"
    data.mkdir()
    for path in fixture.data.iterdir():
        if path.is_file():
            shutil.copy2(path, data)
    copied_tree(fixture.data / "payments-0", data / "payments-0")
    for offset in lost_boundaries(data / "payments-0"):
        shutil.copy2(file_at(fixture.expected / "payments-0", offset, "snapshot"), data / "payments-0")
    return data


@pytest.fixture(scope="module")
def shipped(fixture_set: Callable[[str], FixtureSet], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two partitions, of which the broker's own snapshots and rebuilt ones were shipped."""
    root = tmp_path_factory.mktemp("shipped") / "store"
    os.environ["RESNAP_STATE_DIR"] = "none"
    data = str(fixture_set(SET).data)
    assert run(("tier", data, "--topic", "payments", "--to", root.as_uri(), "--as-of", "roll", *ENGINE)) == 0
    return root


@pytest.fixture(scope="module")
def shipped_in(
    fixture_set: Callable[[str], FixtureSet], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Stores of each layout that ``tier`` has written."""
    made: dict[str, Path] = {}

    def ship(layout: str) -> Path:
        if layout not in made:
            made[layout] = tmp_path_factory.mktemp("shipped") / layout
            os.environ["RESNAP_STATE_DIR"] = "none"
            data = fixture_set("kafka-3.9.1-aiven-plain").data
            assert run(("tier", str(data), "--to", made[layout].as_uri(), "--layout", layout, *ENGINE)) in {0, 3}
        return made[layout]

    return ship


@pytest.fixture
def scene_of(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], shipped_in: Callable[[str], Path], tmp_path: Path
) -> Callable[[str], Scene]:
    """Give stores of each layout, right as yet, and what repairs and verifies them."""

    def make(layout: str) -> Scene:
        store = tmp_path / "store"
        if layout in PLUGIN_SETS:
            fixture = fixture_set(PLUGIN_SETS[layout])
            private = fixture.root / "keys" / "private.pem"
            copied_tree(fixture.remote, store)
            key = ("--encryption-private-key", f"key1={private}") if private.exists() else ()
            return Scene(Plugins(store, private if private.exists() else None), command, key)
        if layout == "brokers":
            copied_tree(fixture_set("kafka-3.9.1-tiered").remote, store)
            return Scene(Brokers(store), command)
        copied_tree(shipped_in(layout), store)
        return Scene(Plugins(store, None) if layout == "aiven" else Manifested(store), command)

    return make
