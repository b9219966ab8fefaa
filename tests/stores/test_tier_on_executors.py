"""``resnap tier`` with executors of a real cluster that copy segments to a real S3 server."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.replay.spark.settings import PROJECT_ROOT
from resnap.storage.errors import LockedError
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.properties import MetaProperties
from tests.logs.log_writer import PartitionWriter, write_log_dir_files
from tests.replay.spark_cluster import a_cluster, bare_environment, python_without_the_project, quick_jvms
from tests.scheduler.shipped import check_content, check_store, eligible, manifests
from tests.stores.counting_relay import relaying
from tests.stores.servers import MINIO, VERSITYGW
from tests.strategies import START_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.replay.spark_cluster import Cluster
    from tests.stores.counting_relay import CountingRelay
    from tests.stores.servers import Server

pytestmark = [pytest.mark.stores, pytest.mark.slow, pytest.mark.spark]

DRIVER: Final = f"""
import ctypes, json, os, sys
sys.path.insert(0, {str(PROJECT_ROOT)!r})
from pathlib import Path
from resnap.scheduler.cli import run

def read_bytes(process):
    return int((process / "io").read_text().split()[1])

def is_child(process):
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid())
    except OSError:  # ended meanwhile
        return False

PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # spark-submit does not always wait for what it starts
code = run(sys.argv[2:])
running = [one for one in Path("/proc").glob("[0-9]*") if is_child(one)]
Path(sys.argv[1]).write_text(json.dumps([read_bytes(one) for one in (Path("/proc/self"), *running)]))
sys.exit(code)
"""
"""Runs the command, and writes how many bytes (``rchar``) its process and those below it have read.

Linux counts those of an ended child, and of its children, with the process that waited for it.
"""
PARTITIONS, SEGMENTS = 2, 4
PATIENCE_S: Final = 900
LIMIT: Final = 8 << 20
LEAST_OF_A_JVM: Final = 50 << 20
"""Bytes that Spark's JVM reads at least, its classes alone; Python reads less of its own."""


def a_log(log_dir: Path, segment_bytes: int) -> Path:
    """Write partitions of a few producers, with segments of about ``segment_bytes``."""
    batch_bytes = min(segment_bytes, 1 << 20)
    ends = {}
    for number in range(PARTITIONS):
        with PartitionWriter(log_dir / f"payments-{number}", seed=number) as writer:
            for segment in range(SEGMENTS + 1):
                if segment:
                    writer.roll()
                for turn in range(segment_bytes // batch_bytes):
                    writer.append_data(timestamps=START_MS + segment * 1000 + turn, payload_bytes=batch_bytes)
            ends[TopicPartition("payments", number)] = writer.next_offset
    meta = MetaProperties(version=0, cluster_id="AAAAAAAAQACAAAAAAAAAAQ", node_id=1, directory_id=None)
    write_log_dir_files(log_dir, meta=meta, high_watermarks=ends)
    return log_dir


@dataclass(frozen=True, kw_only=True)
class Place:
    """A cluster, and a bucket that the driver and the executors reach at different addresses."""

    directory: Path
    server: Server
    bucket: str
    cluster: Cluster
    drivers: CountingRelay
    executors: CountingRelay

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/log"

    def listed(self) -> list[str]:
        listed = self.server.client().list_objects_v2(Bucket=self.bucket, Prefix="log/").get("Contents", [])
        return [entry["Key"] for entry in listed]

    def objects(self) -> dict[str, bytes]:
        client, keys = self.server.client(), self.listed()
        return {key.removeprefix("log/"): client.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in keys}

    def conf(self, **more: str) -> list[str]:
        python = self.directory / "python"
        wanted = {
            "spark.executor.memory": "512m",
            **quick_jvms(),
            "spark.pyspark.python": str(python if python.exists() else python_without_the_project(self.directory)),
            **more,
        }
        return ["--spark-master", self.cluster.url, *(f"--spark-conf={name}={one}" for name, one in wanted.items())]

    def resnap(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with self.started(*arguments) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @contextmanager
    def started(self, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        """Run a command in the background."""
        home = self.directory / f"driver-{random.getrandbits(32)}"
        environment = {
            **bare_environment(home), "PATH": os.environ["PATH"], "SPARK_LOCAL_IP": "127.0.0.1",
            **variables(self.server, self.drivers),
        }  # fmt: skip
        (home / "driver.py").write_text(DRIVER)
        flags = ["--s3-region", "us-east-1", "--s3-addressing-style", "path"]
        command = [sys.executable, "driver.py", self.directory / "read.json", *arguments, *flags]
        with subprocess.Popen(
            [str(one) for one in command], cwd=home, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def limited(self, *arguments: object) -> float:
        """Run a command that may send ``LIMIT`` bytes a second, and give for how many seconds executors sent some."""
        times_s: list[float] = []
        self.executors.heard = lambda _: times_s.append(os.times().elapsed)
        ran = self.resnap(*arguments, "--bwlimit", str(LIMIT), "--parallel", "2", *self.conf())
        assert ran.returncode == 0, ran.stderr
        return times_s[-1] - times_s[0]

    def rchar(self) -> int:
        """Give how many bytes the driver and its JVM have read from files."""
        read: list[int] = json.loads((self.directory / "read.json").read_text())
        assert sum(read) > LEAST_OF_A_JVM, "the JVM is among them"
        return sum(read)


def variables(server: Server, relay: CountingRelay) -> dict[str, str]:
    """Give what a machine knows of the store: where it is, and credentials."""
    return {
        "AWS_ACCESS_KEY_ID": server.kind.access, "AWS_SECRET_ACCESS_KEY": server.kind.secret,
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": relay.url,
    }  # fmt: skip


@contextmanager
def a_place(server: Server, directory: Path, *, workers: int, **of_workers: str) -> Iterator[Place]:
    with ExitStack() as stack:
        drivers = stack.enter_context(relaying(server.url, "127.0.0.1"))
        executors = stack.enter_context(relaying(server.url, "127.0.0.2"))
        environment = variables(server, executors) | of_workers
        cluster = stack.enter_context(a_cluster(directory / "cluster", workers=workers, environment=environment))
        yield Place(
            directory=directory, server=server, bucket=server.new_bucket(), cluster=cluster,
            drivers=drivers, executors=executors,
        )  # fmt: skip


@pytest.fixture
def server(server_of: Callable[..., Server], request: pytest.FixtureRequest) -> Server:
    return server_of(getattr(request, "param", VERSITYGW))


@pytest.mark.heavy
@pytest.mark.parametrize("server", [MINIO], indirect=True)
def test_minio_is_given_what_executors_ship_and_they_read_it_back(server: Server, tmp_path: Path) -> None:
    log = a_log(tmp_path / "log", 1 << 20)
    with a_place(server, tmp_path, workers=2) as place:
        ran = place.resnap("tier", log, "--to", place.url, "--as-of", "roll", *place.conf())
        assert ran.returncode == 0, ran.stderr
        verified = place.resnap("verify", "--store", place.url, *place.conf())
        assert verified.returncode == 0, verified.stderr
        assert check_store(place.objects()) == eligible(log)
        check_content(place.objects(), log)


def test_less_than_a_hundredth_of_the_bytes_pass_through_the_driver(server: Server, tmp_path: Path) -> None:
    small, large = a_log(tmp_path / "small", 1 << 16), a_log(tmp_path / "large", 12 << 20)
    size_bytes = sum(path.stat().st_size for path in large.rglob("*.log"))
    with a_place(server, tmp_path, workers=2) as place:
        flags = ("--as-of", "roll", "--output", "json", *place.conf())
        assert place.resnap("tier", small, "--to", f"{place.url}-small", *flags).returncode == 0
        read = place.rchar()
        place.drivers.size_bytes = place.executors.size_bytes = 0
        ran = place.resnap("tier", large, "--to", place.url, *flags)
        assert ran.returncode == 0, ran.stderr
        read = place.rchar() - read
        by_driver, by_executors = place.drivers.size_bytes, place.executors.size_bytes
        place.drivers.size_bytes = place.executors.size_bytes = 0
        verified = place.resnap("verify", "--store", place.url, "--output", "json", *place.conf())
        assert verified.returncode == 0, verified.stderr
    objects = place.objects()
    assert check_store(objects) == eligible(large)
    check_content(objects, large)
    summary = json.loads(ran.stdout)["summary"]
    assert (summary["shipped"], summary["refused"]) == (PARTITIONS * SEGMENTS, PARTITIONS)  # the active ones
    shipped_bytes = size_bytes * SEGMENTS // (SEGMENTS + 1)
    assert by_executors > shipped_bytes * 0.99
    assert by_driver < shipped_bytes / 100
    assert read < shipped_bytes / 100
    assert json.loads(verified.stdout)["summary"]["segments"] == PARTITIONS * SEGMENTS
    assert place.executors.size_bytes > shipped_bytes * 0.99
    assert place.drivers.size_bytes < shipped_bytes / 100


@pytest.mark.parametrize("victim", [pytest.param("worker", marks=pytest.mark.heavy), "driver", "executor"])
def test_what_is_killed_in_the_middle_leaves_no_manifest_without_its_objects(
    server: Server, tmp_path: Path, victim: str
) -> None:
    log = a_log(tmp_path / "log", 8 << 20)
    with a_place(server, tmp_path, workers=3) as place:
        turn, killed = threading.Lock(), threading.Event()
        kill: list[Callable[[], None]] = []

        def act(size_bytes: int) -> None:
            if size_bytes > 12 << 20 and kill and turn.acquire(blocking=False):
                kill[0]()
                killed.set()

        place.executors.heard = act
        command = ("tier", log, "--to", place.url, "--as-of", "roll", "--output", "json", *place.conf(**SPECULATIVE))
        with place.started(*command) as process:
            kill.append(lambda: kill_one(victim, place, process))
            out, err = process.communicate(timeout=PATIENCE_S)
        assert killed.is_set()
        check_store(place.objects(), strict=False)
        if victim == "driver":
            assert process.returncode == -signal.SIGKILL
            ran = place.resnap(*command)
            assert ran.returncode == 0, ran.stderr
            out = ran.stdout
        else:
            assert process.returncode == 0, err
        summary: dict[str, Any] = json.loads(out)["summary"]
        assert summary["shipped"] + summary["already"] == PARTITIONS * SEGMENTS
        assert check_store(place.objects(), strict=False) == eligible(log)
        collected = place.resnap("gc", place.url, "--older-than", "0s", "--delete", "--no-other-writers")
        assert collected.returncode == 0, collected.stderr
    objects = place.objects()
    assert check_store(objects) == eligible(log)
    check_content(objects, log)
    uploads = server.client().list_multipart_uploads(Bucket=place.bucket).get("Uploads", [])
    assert [upload for upload in uploads if upload["Key"].startswith("log/")] == []


SPECULATIVE: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "10ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "1ms",
}


def kill_one(victim: str, place: Place, process: subprocess.Popen[str]) -> None:
    """Kill the driver, an executor that is there, or its worker too."""
    if victim == "driver":
        process.kill()
        return
    worker = next(one for one in place.cluster.workers if one.executors())
    if victim == "worker":
        os.kill(worker.pid, signal.SIGKILL)
    for pid in worker.executors():
        os.kill(pid, signal.SIGKILL)


def test_a_driver_killed_while_it_publishes_leaves_whole_segments_and_the_next_run_completes(
    server: Server, tmp_path: Path
) -> None:
    log = a_log(tmp_path / "log", 1 << 20)
    with a_place(server, tmp_path, workers=2) as place:
        command = ("tier", log, "--to", place.url, "--as-of", "roll", "--output", "json", *place.conf())
        with place.started(*command) as process:
            while process.poll() is None and not any(key.endswith(".manifest") for key in place.listed()):
                time.sleep(0.02)
            process.kill()
            process.communicate(timeout=PATIENCE_S)
        there = check_store(place.objects(), strict=False)
        assert there
        ran = place.resnap(*command)
        assert ran.returncode == 0, ran.stderr
        summary = json.loads(ran.stdout)["summary"]
        assert summary["shipped"] + summary["already"] == PARTITIONS * SEGMENTS
        assert summary["already"] >= len(there)
    assert check_store(place.objects(), strict=False) == eligible(log)
    check_content(place.objects(), log)


def test_two_runs_at_once_ship_each_segment_once(server: Server, tmp_path: Path) -> None:
    log = a_log(tmp_path / "log", 4 << 20)
    replica = shutil.copytree(log, tmp_path / "replica")  # as another host has it
    with a_place(server, tmp_path, workers=2) as place:
        conf = place.conf(**{"spark.cores.max": "1"})  # else one waits for the other
        command = ("tier", log, "--to", place.url, "--as-of", "roll", "--output", "json", *conf)
        beside = (command[0], replica, *command[2:])
        with place.started(*command) as one, place.started(*beside) as other:
            ended = [process.communicate(timeout=PATIENCE_S) for process in (one, other)]
        for process, (_, err) in zip((one, other), ended, strict=True):
            assert process.returncode in {0, LockedError.exit_code}, err
        check_store(place.objects(), strict=False)
        ran = place.resnap(*command)
        assert ran.returncode == 0, ran.stderr
    shipped = [json.loads(out)["summary"]["shipped"] for out, _ in (*ended, (ran.stdout, ""))]
    assert sum(shipped) == PARTITIONS * SEGMENTS
    assert check_store(place.objects(), strict=False) == eligible(log)
    assert len(manifests(place.objects())) == PARTITIONS * SEGMENTS


def test_what_executors_do_not_reach_is_said_before_anything_is_written(server: Server, tmp_path: Path) -> None:
    log = a_log(tmp_path / "log", 1 << 16)
    with a_place(server, tmp_path, workers=2, AWS_SECRET_ACCESS_KEY="of somebody else") as place:
        for to, named in ((place.url, place.url), ("file:///proc/self/cwd/store", "/proc/self/cwd/store")):
            ran = place.resnap("tier", log, "--to", to, "--as-of", "roll", *place.conf())
            assert ran.returncode == 2, ran.stderr
            assert f"cannot reach the destination {named}" in ran.stderr
    assert place.objects() == {}
    assert [path for path in tmp_path.glob("driver-*/store/**/*") if path.is_file()] == []


@pytest.mark.heavy
def test_a_limit_on_bytes_per_second_holds_for_all_executors_together(server: Server, tmp_path: Path) -> None:
    log = a_log(tmp_path / "log", 4 << 20)
    size_bytes = PARTITIONS * SEGMENTS * (4 << 20)
    with a_place(server, tmp_path, workers=2) as place:
        took_s = place.limited("tier", log, "--to", place.url, "--as-of", "roll")
    assert took_s > 0.8 * size_bytes / LIMIT
    assert len(manifests(place.objects())) == PARTITIONS * SEGMENTS
