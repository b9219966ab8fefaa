"""``resnap tier`` on standalone clusters of one, two and four executors with a core each, to a real S3 server.

All of them share this machine, so that bytes a second grow no further than its cores; what a cluster would do is shown
by the processor time of a GiB on the executors, and by the driver's of 1,000 segments. Waves are made small, so that a
run has several.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.benchmarks.datasets import LogOptions
from tests.benchmarks.machine import cores
from tests.benchmarks.measuring import report, warm
from tests.benchmarks.resnap_jobs import ROOT, command_environment
from tests.benchmarks.tables import Table, amount, rate, seconds
from tests.benchmarks.upload import TIER, Target
from tests.replay.spark_cluster import a_cluster
from tests.stores.servers import ACCESS, BINARIES, SECRET, VERSITYGW, running

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.benchmarks.datasets import Log
    from tests.benchmarks.options import Options

NAME = "cluster"
EXECUTORS: Final = (1, 2, 4)
WAVE_SPLITS: Final = 4
"""Segments of each of the tasks that fill a wave, instead of 512."""
DRIVER: Final = f"""
import sys
from resnap.replay.spark import job
from resnap.scheduler.cli import run
job.TASK_SPLITS = {WAVE_SPLITS}
sys.exit(run(sys.argv[1:]))
"""
REMARKS: Final = [
    "Time is that of the command: its start, the replay and the end included. The log is read from a shared disk.",
    "The driver's processor time is that of its Python and its JVM; executors' includes the start of each, some 17 s.",
    f"A wave has {WAVE_SPLITS} segments for each task that fills it.",
    "Overlap is the share of the time of replays in which something was shipped.",
]


class Measured(NamedTuple):
    """One run."""

    took_s: float
    driver_s: float
    """Of the processor, as the other one."""
    executors_s: float
    segments: int
    size_bytes: int
    overlap: float


def run(options: Options) -> Iterator[Table]:
    """Measure each number of executors; skip a server that was not built, or Spark, with a message."""
    table = Table(
        f"tier on executors, {len(cores())} cores for all of them",
        ["executors", "sent", "segments", "time", "a second", "driver's processor time, 1,000 segments",
         "executors' processor time, a GiB", "overlap"],
        remarks=[*REMARKS],
    )  # fmt: skip
    if not options.spark or not VERSITYGW.binary.exists():
        missing = f"versitygw is not in {BINARIES.name} (tests/stores/build)" if options.spark else "Spark is left out"
        table.remarks.append(f"Nothing was measured: {missing}.")
        yield table
        return
    size_bytes = options.size(1 << 30, 16 << 20)
    log = options.log(LogOptions(size_bytes=size_bytes, segment_bytes=max(size_bytes // 256, 1 << 18), partitions=16))
    warm(log.segments)
    for executors in EXECUTORS[:1] if options.quick else EXECUTORS:
        found = min((_measure(log, executors) for _ in range(options.rounds)), key=lambda one: one.took_s)
        thousands = found.segments / 1000
        table.add(
            str(executors), amount(found.size_bytes), str(found.segments), seconds(found.took_s),
            rate(found.size_bytes, found.took_s), seconds(found.driver_s / thousands),
            seconds(found.executors_s / (found.size_bytes / (1 << 30))), f"{found.overlap:.0%}",
        )  # fmt: skip
    options.done_with(log)
    yield table


def _measure(log: Log, executors: int) -> Measured:
    directory = Path(mkdtemp(dir=log.root))
    try:
        with running(VERSITYGW, directory / "server") as server:
            before_s = _children_s()
            environment = _environment(directory)
            with a_cluster(directory / "cluster", workers=executors, environment=environment) as cluster:
                run = _driver(log, Target(server, directory), cluster.url, directory, environment)
            summary = run.said["summary"]
            measured = Measured(
                took_s=run.took_s,
                driver_s=run.processor_s,
                executors_s=_children_s() - before_s - run.processor_s,
                segments=summary["shipped"],
                size_bytes=summary["bytes"],
                overlap=overlap(_events(directory / "events")),
            )
        report(f"  {executors} executors: {measured.took_s:.1f} s")
        return measured
    finally:
        shutil.rmtree(directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """A driver that has ended."""

    said: dict[str, Any]
    took_s: float
    processor_s: float


def _environment(directory: Path) -> dict[str, str]:
    (directory / "aws-config").write_text("", encoding="utf-8")
    return command_environment() | {
        "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_CONFIG_FILE": str(directory / "aws-config"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip


def _driver(log: Log, target: Target, master: str, directory: Path, environment: dict[str, str]) -> _Ran:
    (directory / "events").mkdir()
    conf = {
        "spark.executor.memory": "512m", "spark.pyspark.python": sys.executable, "spark.driver.host": "127.0.0.1",
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": (directory / "events").as_uri(),
        "spark.eventLog.rolling.enabled": "false", "spark.eventLog.compress": "false",
    }  # fmt: skip
    flags = [word for word in TIER if word not in {"--engine", "local"}]
    command = [
        sys.executable, "-c", DRIVER, *flags, str(log.log_dir), *target.resnap(), "--spark-master", master,
        *(f"--spark-conf={name}={value}" for name, value in conf.items()),
    ]  # fmt: skip
    began_s = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        said = process.stdout.read() if process.stdout is not None else b""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise AssertionError(f"tier ended with {process.returncode}")
    return _Ran(said=json.loads(said), took_s=time.perf_counter() - began_s, processor_s=used.ru_utime + used.ru_stime)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Stretch(NamedTuple):
    """When a Spark job was at work, in milliseconds, and whether it shipped."""

    start: int
    end: int
    ships: bool


def _events(directory: Path) -> list[Stretch]:
    """Read Spark's event log."""
    begun: dict[int, tuple[int, bool]] = {}
    found = []
    for line in next(directory.iterdir()).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            ships = event["Properties"].get("spark.scheduler.pool") is not None
            begun[event["Job ID"]] = (event["Submission Time"], ships)
        elif event["Event"] == "SparkListenerJobEnd":
            start, ships = begun.pop(event["Job ID"])
            found.append(Stretch(start, event["Completion Time"], ships))
    return found


def overlap(stretches: Iterable[Stretch]) -> float:
    """Return the share of the time of replays in which something was shipped."""
    edges = sorted((at, one.ships, step) for one in stretches for at, step in ((one.start, 1), (one.end, -1)))
    running, replaying_ms, both_ms, last = {True: 0, False: 0}, 0, 0, 0
    for at, ships, step in edges:
        if running[False]:
            replaying_ms += at - last
            both_ms += (at - last) * bool(running[True])
        running[ships] += step
        last = at
    return both_ms / replaying_ms if replaying_ms else 0.0
