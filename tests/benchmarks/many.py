"""The fixed cost of a segment: many small ones, shipped and verified, with processor time and requests of each.

Processor time is that of the command, start and imports included, and not the server's. Each command is run once, by
itself: what is compared are ratios, and counts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from tests.benchmarks.datasets import LogOptions
from tests.benchmarks.measuring import report
from tests.benchmarks.resnap_jobs import ROOT, command_environment
from tests.benchmarks.tables import Table, seconds
from tests.benchmarks.upload import TIER, Target
from tests.stores.counting_relay import CountingRelay, relaying
from tests.stores.servers import ACCESS, BINARIES, RCLONE, SECRET, VERSITYGW, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.benchmarks.datasets import Log
    from tests.benchmarks.options import Options

NAME = "many"
SEGMENT_BYTES = 16 << 10
KINDS = ("PUT", "HEAD", "LIST", "GET")
QUIET = ("--quiet", "--output", "json")
OF_A_LOG_DIR = ("check", "scan", "plan")
NOT_READY = 4
"""The exit code of ``check`` where there is something to do."""


def run(options: Options) -> Iterator[Table]:
    """Measure each command to a directory and to versitygw; skip the server, or rclone, if it was not built."""
    size_bytes = options.size(600 * SEGMENT_BYTES, 20 * SEGMENT_BYTES)
    made = LogOptions(size_bytes=size_bytes, batch_bytes=2 << 10, segment_bytes=SEGMENT_BYTES, producers=100)
    log = options.log(made)
    segments = len(log.segments)
    table = Table(
        f"The fixed cost of a segment: {segments} of {SEGMENT_BYTES >> 10} KiB in {made.partitions} partitions",
        ["to", "command", "time", "processor time", "a segment", *(f"{kind} a segment" for kind in KINDS)],
        remarks=["Processor time includes the start of the command.", "Other requests are those of a run."],
    )
    for command in OF_A_LOG_DIR:
        _add(table, "-", command, segments, _timed([command, str(log.log_dir), *QUIET]))
    directory = Path(mkdtemp(dir=log.root))
    try:
        _measure(table, log, Target(None, directory), None)
        if VERSITYGW.binary.exists():
            with running(VERSITYGW, directory / "server") as server, relaying(server.url, "127.0.0.1") as relay:
                _measure(table, log, Target(replace(server, url=relay.url), directory), relay)
        else:
            table.remarks.append(f"Left out, since not in {BINARIES.name}: versitygw (tests/stores/build).")
    finally:
        shutil.rmtree(directory)
    options.done_with(log)
    yield table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """What one command took."""

    took_s: float
    processor_s: float
    requests: Counter[str]


def _measure(table: Table, log: Log, target: Target, relay: CountingRelay | None) -> None:
    segments, to = len(log.segments), target.resnap()
    tier = [*TIER, str(log.log_dir), *to]
    keeping = [*tier, "--state-dir", str(target.directory / "state")]
    commands = {
        "tier --dry-run": [*tier, "--dry-run"],
        "tier": keeping,
        "tier, repeated": keeping,
        "tier, repeated without a state directory": tier,
        "verify": ["verify", *to[1:], "--engine", "local", *QUIET],
    }
    for name, command in commands.items():
        _add(table, target.name, name, segments, _timed(command, relay))
    if RCLONE.binary.exists():
        copy = [str(RCLONE.binary), "copy", "--config", "", str(log.log_dir), *target.rclone()]
        _add(table, target.name, "rclone copy", segments, _timed(copy, relay))


def _add(table: Table, to: str, command: str, segments: int, cost: _Cost) -> None:
    report(f"  {command} to {to}: {cost.processor_s:.2f} s of processor time")
    each = [f"{cost.requests[kind] / segments:.3g}" for kind in KINDS]
    table.add(to, command, seconds(cost.took_s), seconds(cost.processor_s), seconds(cost.processor_s / segments), *each)


def _timed(command: Sequence[str], relay: CountingRelay | None = None) -> _Cost:
    """Run a command of Resnap, or a program by its path, and return its cost."""
    whole = list(command) if Path(command[0]).is_absolute() else [sys.executable, "-m", "resnap", *command]
    environment = command_environment() | {
        "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "RESNAP_STATE_DIR": "none",
    }  # fmt: skip
    before = Counter(relay.requests) if relay is not None else Counter[str]()
    began_s = time.perf_counter()
    with subprocess.Popen(whole, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    took_s = time.perf_counter() - began_s
    requests = (Counter(relay.requests) if relay is not None else Counter[str]()) - before
    if process.returncode not in {0, NOT_READY}:
        raise AssertionError(f"{json.dumps(whole)} ended with {process.returncode}")
    return _Cost(took_s=took_s, processor_s=used.ru_utime + used.ru_stime, requests=requests)
