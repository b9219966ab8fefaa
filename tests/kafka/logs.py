"""What brokers leave on disk, read without any code of ours: snapshots that they wrote, and what they tiered."""

from __future__ import annotations

import os
import re
import threading
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.scheduler.files import bases
from tests.scheduler.shipped import entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Entries = dict[int, tuple[int, ...]]
"""What a snapshot holds: the fields of each entry, by producer id."""
Snapshots = dict[str, dict[int, Entries]]
"""By partition and offset."""


def partitions(log_dirs: Iterable[Path], topic: str) -> dict[str, Path]:
    """Return the directories of a topic's partitions, by name."""
    return {path.name: path for log_dir in log_dirs for path in sorted(log_dir.glob(f"{topic}-*")) if path.is_dir()}


def keep_snapshots(log_dirs: Iterable[Path], topic: str, into: Path) -> None:
    """Keep what a broker has written so far; a snapshot is never written twice."""
    for name, partition in partitions(log_dirs, topic).items():
        (into / name).mkdir(parents=True, exist_ok=True)
        kept = {path.name for path in (into / name).iterdir()}
        for path in partition.glob("*.snapshot"):
            if path.name not in kept:
                with suppress(FileNotFoundError):  # deleted since it was listed, and older than what is asked for
                    os.link(path, into / name / path.name)


@contextmanager
def all_snapshots_kept(log_dirs: Iterable[Path], topic: str, into: Path) -> Iterator[None]:
    """Keep each snapshot that a broker before 2.8 writes: it deletes old ones 30 s after its start, and at its stop."""
    done = threading.Event()

    def keep() -> None:
        while not done.wait(0.02):
            keep_snapshots(log_dirs, topic, into)

    keeping = threading.Thread(target=keep)
    keeping.start()
    try:
        yield
    finally:
        done.set()
        keeping.join()
        keep_snapshots(log_dirs, topic, into)


def snapshots_in(root: Path) -> Snapshots:
    """Return the snapshots below ``root``."""
    found: Snapshots = {}
    for path in root.rglob("*.snapshot"):
        found.setdefault(path.parent.name, {})[int(path.stem)] = entries(path.read_bytes())
    return found


def tiered_snapshots(remote: Path, topic: str) -> Snapshots:
    """Return the snapshots that ``LocalTieredStorage`` holds, each with the base of its segment for offset."""
    found: Snapshots = {}
    for folder in (remote / "kafka-tiered-storage").glob(f"{topic}-*"):
        name = re.match(rf"({topic}-\d+)-", folder.name)
        assert name, folder
        of_partition = found.setdefault(name[1], {})
        for path in folder.glob("*.snapshot"):
            base = int(path.name[:20])
            assert base not in of_partition, f"tiered twice: {path}"
            of_partition[base] = entries(path.read_bytes())
    return found


def to_be_tiered(log_dirs: Iterable[Path], topic: str, ends: dict[str, int], truth: Snapshots) -> Snapshots:
    """Return what a stopped broker is to tier: closed segments that end at or below ``ends``, each by its base.

    With each goes the snapshot that ``truth`` has at the segment's end.
    """
    found: Snapshots = {}
    for name, partition in partitions(log_dirs, topic).items():
        there = bases(partition)
        closed = pairwise(there)
        found[name] = {base: truth[name][after] for base, after in closed if after <= ends[name]}
    return found
