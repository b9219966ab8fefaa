"""``resnap tier`` beside ``rclone copy``: one log dir to the same real stores and to the local disk, in one run.

Resnap replays, ships and verifies; rclone copies the files. Each run goes to a new place, and the servers, which sync
as they do by themselves, keep their data on the disk of the log.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from uuid import uuid4

from tests.benchmarks.datasets import LogOptions
from tests.benchmarks.machine import cores
from tests.benchmarks.measuring import Contender, Outcome, contest, warm
from tests.benchmarks.resnap_jobs import ROOT, command_environment
from tests.benchmarks.tables import Table, amount, rate, seconds
from tests.stores.servers import ACCESS, BINARIES, RCLONE, SECRET, STRICT, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.datasets import Log
    from tests.benchmarks.options import Options
    from tests.stores.servers import Kind, Server

NAME = "upload"
PROVEN = "what is proven of the store's checks, else read back"
UNSIGNED = "[default]\ns3 =\n  payload_signing_enabled = false\n"
"""An AWS configuration file."""
TIER = ("tier", "--engine", "local", "--io-priority", "normal", "--state-dir", "none", "--quiet", "--output", "json")


@dataclass(frozen=True, slots=True)
class Target:
    """Where to: a server, or a directory of the disk."""

    server: Server | None
    directory: Path

    @property
    def name(self) -> str:
        """For the table."""
        return "local disk" if self.server is None else self.server.kind.name

    def resnap(self) -> list[str]:
        """Return arguments that send a run of ``resnap tier`` to a new place."""
        if self.server is None:
            return ["--to", (self.directory / str(uuid4())).as_uri()]
        return [
            "--to", f"s3://{self.server.new_bucket()}", "--s3-endpoint-url", self.server.url,
            "--s3-region", "us-east-1", "--s3-addressing-style", "path",
        ]  # fmt: skip

    def rclone(self) -> list[str]:
        """Return the same for ``rclone copy``."""
        if self.server is None:
            return [str(self.directory / str(uuid4()))]
        return [
            f":s3:{self.server.new_bucket()}", "--s3-provider", "Other", "--s3-endpoint", self.server.url,
            "--s3-access-key-id", ACCESS, "--s3-secret-access-key", SECRET,
        ]  # fmt: skip

    def clear(self) -> None:
        """Delete what a run has made: the disk need not hold all of them."""
        if self.server is None:
            for path in self.directory.iterdir():
                shutil.rmtree(path)
            return
        client = self.server.client()
        for bucket in client.list_buckets()["Buckets"]:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket["Name"]):
                for entry in page.get("Contents", []):
                    client.delete_object(Bucket=bucket["Name"], Key=entry["Key"])
            client.delete_bucket(Bucket=bucket["Name"])


def run(options: Options) -> Iterator[Table]:
    """Measure each target that there is; skip a server, or rclone, that was not built, with a message."""
    log = options.log(LogOptions(size_bytes=options.size(1 << 30, 4 << 20), segment_bytes=64 << 20))
    there = [kind for kind in STRICT if kind.binary.exists()]
    absent = [kind.name for kind in (*STRICT, RCLONE) if not kind.binary.exists()]
    table = Table(
        f"Shipping {amount(log.size_bytes)} in {len(log.segments)} segments, {len(cores())} cores",
        ["to", "who", "verification", "sent", "time", "a second"],
        remarks=[
            "Resnap's time is that of the command, imports, replay, indexes and digests included.",
            "Resnap leaves active segments, and what lies above an open transaction; rclone copies every file.",
            "rclone copies four files at once; without checksums it compares nothing afterwards but sizes.",
            "rclone does not sign bodies; Resnap does, over plain HTTP, unless the AWS configuration says not to.",
            "A store holds each body against a checksum all the same: rclone's MD5, or our CRC-32C.",
            *([f"Left out, since not in {BINARIES.name}: {', '.join(absent)} (tests/stores/build)."] if absent else []),
        ],
    )
    warm(log.segments)
    for kind in (None, *(there[:1] if options.quick else there)):
        with _target(kind, log) as target:
            _measure(table, options, log, target)
    options.done_with(log)
    yield table


@contextmanager
def _target(kind: Kind | None, log: Log) -> Iterator[Target]:
    directory = Path(mkdtemp(dir=log.root))
    try:
        if kind is None:
            yield Target(None, directory)
        else:
            with running(kind, directory) as server:
                yield Target(server, directory)
    finally:
        shutil.rmtree(directory)


def _measure(table: Table, options: Options, log: Log, target: Target) -> None:
    read_back = ("--verify-upload", "read-back")
    jobs = {
        ("Resnap", PROVEN): partial(_tier, log, target),
        ("Resnap, bodies not signed", PROVEN): partial(_tier, log, target, unsigned=True),
        ("Resnap", "every object read back whole"): partial(_tier, log, target, *read_back),
    }
    if target.server is None:
        del jobs["Resnap, bodies not signed", PROVEN]
    if RCLONE.binary.exists():
        jobs["rclone copy", "MD5"] = partial(_rclone, log, target)
        jobs["rclone copy", "none"] = partial(_rclone, log, target, "--ignore-checksum", "--s3-disable-checksum")
    names = {f"{target.name}: {who}, {how}": (who, how) for who, how in jobs}
    contenders = [Contender(name=name, run=jobs[key], cores=len(cores())) for name, key in names.items()]
    for name, result in contest(contenders, rounds=options.rounds, on_disk=log.root).items():
        moved = result.outcome.asked_bytes or 0
        table.add(target.name, *names[name], amount(moved), seconds(result.seconds), rate(moved, result.seconds))


def _tier(log: Log, target: Target, *flags: str, unsigned: bool = False) -> Outcome:
    command = [sys.executable, "-m", "resnap", *TIER, str(log.log_dir), *target.resnap(), *flags]
    configuration = log.root / "aws-config"
    configuration.write_text(UNSIGNED if unsigned else "", encoding="utf-8")
    environment = {
        "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_CONFIG_FILE": str(configuration),
    }  # fmt: skip
    outcome, said = _timed(target, command, environment)
    outcome.asked_bytes = json.loads(said)["summary"]["bytes"]
    return outcome


def _rclone(log: Log, target: Target, *flags: str) -> Outcome:
    command = [str(RCLONE.binary), "copy", "--config", "", str(log.log_dir), *target.rclone(), *flags]
    outcome, _ = _timed(target, command, {})
    outcome.asked_bytes = sum(path.stat().st_size for path in log.log_dir.rglob("*") if path.is_file())
    return outcome


def _timed(target: Target, command: list[str], environment: dict[str, str]) -> tuple[Outcome, bytes]:
    """Run ``command``; return how long it took, and what it said. What it made is deleted afterwards."""
    complete = command_environment() | environment
    started = time.perf_counter()
    said = subprocess.run(command, cwd=ROOT, env=complete, check=True, stdout=subprocess.PIPE).stdout
    took = time.perf_counter() - started
    target.clear()
    return Outcome(seconds=took), said
