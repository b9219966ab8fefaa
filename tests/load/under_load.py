"""A service as its own process over a log dir of many partitions, and what it and its clients take of the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resnap.storage.log.names import TopicPartition
from resnap.storage.log.properties import MetaProperties
from tests.benchmarks.datasets import TOPIC
from tests.load.clients import Orders, Seen
from tests.logs.log_writer import write_log_dir_files
from tests.scheduler.daemon.process import Process, configure, eventually, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.benchmarks.datasets import Log

_PROJECT: Final = Path(__file__).parents[2]
_NEVER_MS: Final = 10 * 365 * 86_400_000
_SETTINGS: Final = f"""
threads = 1
full = true
producer-id-expiration-ms = {_NEVER_MS}

[[schedules]]
name = "look"
run = "scan"
every = "1h"
"""
"""One thread, and all batches of a log that was written some days ago; the first scan is at the start."""


class Usage(NamedTuple):
    """What a process has taken so far, as the kernel has it."""

    cpu_s: float
    rss_bytes: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderLoad:
    """A service that is ready: its log dir was scanned."""

    process: Process
    port: int
    partitions: int

    def usage(self) -> Usage:
        """Return what the service has taken so far."""
        place = Path("/proc", str(self.process.popen.pid))
        fields = (place / "stat").read_text(encoding="ascii").rpartition(") ")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        rss_bytes = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        return Usage(ticks / os.sysconf("SC_CLK_TCK"), rss_bytes, len([*(place / "fd").iterdir()]))

    def replays(self, count: int) -> list[dict[str, Any]]:
        """Return what to ask for so that everything is replayed ``count`` times."""
        return [{"destination": f"file://{self.process.directory}/out/{os.urandom(8).hex()}"} for _ in range(count)]

    def orders(self, *, replays: int = 1, streams: int = 0, pollers: int = 0) -> Orders:
        """Return what clients are to do."""
        return Orders(
            host="127.0.0.1",
            port=self.port,
            replays=self.replays(replays),
            topic=TOPIC,
            partitions=self.partitions,
            streams=streams,
            pollers=pollers,
        )


@contextmanager
def under_load(directory: Path, log: Log, partitions: int) -> Iterator[UnderLoad]:
    """Serve ``partitions`` partitions that all share the segments of ``log``."""
    configure(directory, linked(log, directory / "data", partitions), _SETTINGS)
    with ExitStack() as stack:
        process = stack.enter_context(serving(directory))
        client = stack.enter_context(process.client())
        eventually(lambda: client.get("/v1/partitions").json()["partitions"], bool)
        yield UnderLoad(process=process, port=client.base_url.port or 0, partitions=partitions)


def linked(log: Log, log_dir: Path, partitions: int) -> Path:
    """Return a log dir whose partitions are those of ``log`` again and again, by hard links: a disk holds them once."""
    ends = {}
    for number in range(partitions):
        source = log.partition(number % log.options.partitions)
        to = log_dir / f"{TOPIC}-{number}"
        to.mkdir(parents=True)
        for path in source.iterdir():
            os.link(path, to / path.name)
        newest = max(source.glob("*.log"))
        ends[TopicPartition(TOPIC, number)] = int(newest.stem)
    meta = MetaProperties(version=0, cluster_id="AAAAAAAAQACAAAAAAAAAAQ", node_id=1, directory_id=None)
    write_log_dir_files(log_dir, meta=meta, high_watermarks=ends)
    return log_dir


def clients(orders: Orders) -> subprocess.Popen[str]:
    """Start the clients; ``seen`` waits for them."""
    popen = subprocess.Popen(
        [sys.executable, "-m", "tests.load.clients"], cwd=_PROJECT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert popen.stdin is not None
    popen.stdin.write(json.dumps(asdict(orders)))
    popen.stdin.close()
    popen.stdin = None
    return popen


def seen(popen: subprocess.Popen[str], meanwhile: Callable[[], object] = lambda: None) -> Seen:
    """Return what the clients saw, once they are done; ``meanwhile`` is called every second until then."""
    while True:
        try:
            said, _ = popen.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            meanwhile()
        else:
            assert popen.returncode == 0
            return Seen.of(json.loads(said))
