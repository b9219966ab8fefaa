"""The whole way on a real cluster: executors without the project read a log out of a store and write into it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from resnap.replay.spark.settings import PROJECT_ROOT
from tests.builders import a_partition
from tests.replay.replaying import HOUR_MS
from tests.replay.spark_cluster import a_cluster, bare_environment, python_without_the_project, quick_jvms
from tests.replay.test_spark_job import transactions
from tests.strategies import START_MS, DataEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mypy_boto3_s3 import S3Client

    from tests.replay.spark_cluster import Cluster
    from tests.strategies import Event

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.s3]

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testaccess", "AWS_SECRET_ACCESS_KEY": "testsecret123", "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip
DRIVER = f"""
import json, sys
sys.path.insert(0, {str(PROJECT_ROOT)!r})
from pathlib import Path

opened = []

def note(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".log"):
        opened.append(str(arguments[0]))

sys.addaudithook(note)
from resnap.storage.stores.s3 import S3ObjectStore

def noting(method):
    def noted(self, key, *arguments, **named):
        note("open", (key,))
        return method(self, key, *arguments, **named)
    return noted

for name in ("get", "get_range", "open"):
    setattr(S3ObjectStore, name, noting(getattr(S3ObjectStore, name)))

from resnap.scheduler.cli import run

code = run(sys.argv[2:])
Path(sys.argv[1]).write_text(json.dumps(opened))
sys.exit(code)
"""
SEGMENTS = 12


def busy(hour: int) -> list[Event]:
    """Give thirty batches of each of thirty producers in an hour."""
    at = START_MS + hour * HOUR_MS
    return [
        DataEvent(producer_id=pid, base_sequence=30 * hour + turn, timestamp=at + turn)
        for turn in range(30)
        for pid in range(100, 130)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPosition:
    """Where a test works: its directory, and the store."""

    directory: Path
    client: S3Client
    bucket: str
    endpoint: str

    def upload(self, root: Path) -> None:
        """Copy a log dir to ``logs/`` of the bucket."""
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self.client.upload_file(str(path), self.bucket, f"logs/{path.relative_to(root)}")

    def objects(self, prefix: str) -> dict[str, bytes]:
        """Give the objects below ``prefix``, by what follows it."""
        listed = self.client.list_objects_v2(Bucket=self.bucket, Prefix=prefix).get("Contents", [])
        return {
            entry["Key"].removeprefix(prefix): self.client.get_object(Bucket=self.bucket, Key=entry["Key"])[
                "Body"
            ].read()
            for entry in listed
        }

    def differing(self, one: str, other: str) -> dict[str, tuple[bytes | None, bytes | None]]:
        """Give the objects that are not the same below two prefixes, by what follows it."""
        left, right = self.objects(one), self.objects(other)
        return {
            name: (left.get(name), right.get(name))
            for name in left.keys() | right.keys()
            if left.get(name) != right.get(name)
        }

    def regenerate(self, into: str, *flags: str) -> tuple[dict[str, Any], list[str]]:
        """Run the command in a process of its own; give its answer and the segments that this process opened."""
        home = self.directory / into
        told = home.with_suffix(".json")
        # Spark's record of a run is written by way of more programs than Spark itself needs.
        environment = {**bare_environment(home), **CREDENTIALS, "SPARK_LOCAL_IP": "127.0.0.1",
                       "PATH": os.environ["PATH"]}  # fmt: skip
        command = ["regenerate", f"s3://{self.bucket}/logs", "--into", f"s3://{self.bucket}/{into}", "--full",
                   "--as-of", "2023-11-17T00:00:00Z", "--output", "json", "--s3-endpoint-url", self.endpoint,
                   "--s3-region", "us-east-1", "--s3-addressing-style", "path", *flags]  # fmt: skip
        script = home / "driver.py"
        script.write_text(DRIVER)
        done = subprocess.run([sys.executable, script, told, *command], cwd=home, env=environment, text=True,
                              capture_output=True, check=False, timeout=600)  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout), json.loads(told.read_text())


@pytest.fixture
def place(tmp_path: Path, s3_client: S3Client, s3_bucket: str, s3_endpoint: str) -> BlockPosition:
    made = BlockPosition(directory=tmp_path, client=s3_client, bucket=s3_bucket, endpoint=s3_endpoint)
    segments = [[*transactions(hour, pids=range(40)), *busy(hour)] for hour in range(SEGMENTS)]
    for name in ("one-0", "two-0"):
        a_partition(tmp_path / "logs", segments, name=name)
    made.upload(tmp_path / "logs")
    return made


def on(cluster: Cluster, place: BlockPosition) -> list[str]:
    """Give the flags that replay on ``cluster`` and leave Spark's own record of it."""
    events = place.directory / "events"
    events.mkdir()
    conf = {
        **quick_jvms(),
        "spark.executor.memory": "512m",
        "spark.pyspark.python": str(python_without_the_project(place.directory)),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        # Both executors shall be there before the first task is given to either.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
        "spark.cores.max": "2",
    }
    return ["--spark-master", cluster.url, *(f"--spark-conf={key}={value}" for key, value in conf.items())]


def recorded(place: BlockPosition, event: str) -> list[dict[str, Any]]:
    """Give the events of a kind from Spark's own record."""
    files = [
        path for path in (place.directory / "events").rglob("*") if path.is_file() and "appstatus" not in path.name
    ]
    lines = [json.loads(line) for path in files if path.name[0] != "." for line in path.read_text().splitlines()]
    return [line for line in lines if line["Event"] == f"SparkListener{event}"]


def scanning_stages(place: BlockPosition) -> set[int]:
    """Give the stages whose blocks are kept: those that scan."""
    return {
        told["Stage Info"]["Stage ID"]
        for told in recorded(place, "StageSubmitted")
        if told["Stage Info"]["Stage Name"].startswith("count")
    }


def test_executors_read_and_write_a_store_and_the_driver_touches_no_segment(
    place: BlockPosition, tmp_path: Path
) -> None:
    with a_cluster(tmp_path / "cluster", workers=2, environment=CREDENTIALS) as cluster:
        answer, opened = place.regenerate("spark", *on(cluster, place))
    expected, _ = place.regenerate("local", "--engine", "local")
    assert opened == []
    assert place.differing("spark/", "local/") == {}
    assert sum(name.endswith(".snapshot") for name in place.objects("spark/")) == 2 * (SEGMENTS - 1)
    assert answer["boundaries"] == expected["boundaries"]
    ended = [one for one in recorded(place, "TaskEnd") if one["Stage ID"] in scanning_stages(place)]
    assert len({one["Task Info"]["Executor ID"] for one in ended}) == 2
    shuffled = sum(
        one["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"] for one in recorded(place, "TaskEnd")
    )
    assert 0 < shuffled < answer["summary"]["bytesRead"] / 10


@contextmanager
def at_first_read_of_a_segment(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` once in the middle of the first answer in which the store gives bytes of a segment."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler  # noqa: PLC0415 - as slow as the server

    turn = threading.Lock()

    def hear(handler: MotoRequestHandler, *_: object) -> None:
        if handler.command == "GET" and urlsplit(handler.path).path.endswith(".log") and turn.acquire(blocking=False):
            act()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MotoRequestHandler, "log_request", hear)
        yield


def test_an_executor_killed_in_the_middle_costs_time_and_nothing_else(place: BlockPosition, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill() -> None:
        # The executor that reads is there; the other worker's may not have started yet.
        killed.append(next(pid for worker in cluster.workers for pid in worker.executors()))
        os.kill(killed[0], signal.SIGKILL)

    with (
        a_cluster(tmp_path / "cluster", workers=2, environment=CREDENTIALS) as cluster,
        at_first_read_of_a_segment(kill),
    ):
        answer, _ = place.regenerate("spark", *on(cluster, place))
    expected, _ = place.regenerate("local", "--engine", "local")
    assert killed
    assert place.differing("spark/", "local/") == {}
    assert answer["boundaries"] == expected["boundaries"]
    assert recorded(place, "ExecutorRemoved")
