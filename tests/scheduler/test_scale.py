"""``resnap scan`` of very many segments: the work grows with their number, and not faster."""

from __future__ import annotations

import os
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cases import mostly_slow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.scheduler.conftest import Resnap

NOW_MS = 1_700_000_000_000
MONTH_MS = 30 * 86_400_000
ENTRY = struct.Struct(">qhiqiqiq")
GENEROUS_S = 60


def many_segments(root: Path, *, partitions: int, segments: int, snapshots: bool = False) -> Path:
    """Make a log dir with partitions of so many segments, which stretch over a month and hold nothing but zeros.

    Each has an aborted transaction; each snapshot, where there are ``snapshots``, one that is open since long ago.
    """
    root.mkdir()
    (root / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=cluster\n")
    rows = [f"orders {number} {segments * 1000 - 5}\n" for number in range(partitions)]
    (root / "replication-offset-checkpoint").write_text(f"0\n{partitions}\n{''.join(rows)}")
    for number in range(partitions):
        directory = root / f"orders-{number}"
        directory.mkdir()
        folder = os.open(directory, os.O_RDONLY)
        for segment in range(segments):
            _write_segment(folder, segment, segments, snapshots=snapshots)
        os.close(folder)
    return root


def _write_segment(folder: int, number: int, of: int, *, snapshots: bool) -> None:
    base = number * 1000
    _write(folder, f"{base:020d}.log", size_bytes=1 << 20)
    _write(folder, f"{base:020d}.index", size_bytes=256)
    _write(folder, f"{base:020d}.timeindex", struct.pack(">qi", NOW_MS - MONTH_MS + number * (MONTH_MS // of), 999))
    _write(folder, f"{base:020d}.txnindex", struct.pack(">hqqqq", 0, number % 50, base + 10, base + 500, base + 5))
    if snapshots and number:
        _write(folder, f"{base:020d}.snapshot", _snapshot(base))


def _write(folder: int, name: str, content: bytes = b"", *, size_bytes: int | None = None) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=folder)
    os.write(file, content)
    if size_bytes is not None:
        os.ftruncate(file, size_bytes)
    os.close(file)


def _snapshot(offset: int) -> bytes:
    from resnap.storage.log.producer_snapshot import ProducerEntry, snapshot_bytes  # noqa: PLC0415

    idle = [ProducerEntry(pid, 0, 4, offset - 9 - pid, 4, NOW_MS - MONTH_MS, -1, -1) for pid in range(8)]
    return snapshot_bytes([*idle, ProducerEntry(99, 0, 0, 5, 0, NOW_MS - MONTH_MS, -1, 5)])


def _shapes(directory: Path, segments: int) -> dict[str, Path]:
    in_many = segments // 50
    return {
        "one": many_segments(directory / f"one-{segments}", partitions=1, segments=segments),
        "many": many_segments(directory / f"many-{segments}", partitions=in_many, segments=50),
        "kept": many_segments(directory / f"kept-{segments}", partitions=1, segments=segments, snapshots=True),
    }


@pytest.mark.parametrize("form", mostly_slow(["table", "json"], "json"))
def test_twice_the_segments_are_twice_the_work(
    command: Resnap, tmp_path: Path, opened: Callable[[], list[str]], form: str
) -> None:
    few, more, most = (_shapes(tmp_path, segments) for segments in (200, 400, 800))
    command("scan", few["one"])
    for shape, log_dir in few.items():
        work = [_work(command, opened, path, form) for path in (log_dir, more[shape], most[shape])]
        for first, second, third in zip(*work, strict=True):
            assert third - second <= 2.2 * (second - first), shape


def _work(command: Resnap, opened: Callable[[], list[str]], log_dir: Path, form: str) -> tuple[int, int]:
    """Return how many functions a scan calls, Python's own among them, and how many files it opens."""
    calls, before = 0, len(opened())

    def count(_: object, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        ran = command("scan", log_dir, "--as-of", "2023-11-14T00:00:00Z", "--output", form)
    finally:
        sys.setprofile(None)
    assert ran.code == 0
    return calls, len(opened()) - before


@pytest.mark.parametrize("epochs_are_known", [True, False])
def test_each_small_file_is_opened_once_and_next_to_no_segment(
    command: Resnap, tmp_path: Path, opened: Callable[[], list[str]], *, epochs_are_known: bool
) -> None:
    log_dir = many_segments(tmp_path / "data", partitions=2, segments=100)
    for number in range(2 * epochs_are_known):
        (log_dir / f"orders-{number}" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    command("scan", log_dir)
    before = len(opened())
    command("scan", log_dir)
    paths = [path for path in opened()[before:] if path.startswith(str(log_dir))]
    assert [path for path in paths if path.endswith(".index")] == []
    # Where leader epochs begin, if the checkpoint does not say so, is found by halving the segments.
    assert sum(path.endswith(".log") for path in paths) <= (0 if epochs_are_known else 2 * 8)
    small = [path for path in paths if path.endswith((".timeindex", ".txnindex", ".snapshot"))]
    assert len(small) == len(set(small)) <= 3 * 200


@pytest.mark.heavy
@pytest.mark.parametrize(("partitions", "segments"), [(1, 100_000), (2_000, 50)])
@pytest.mark.parametrize("snapshots", [False, True])
def test_a_hundred_thousand_segments_take_seconds(
    resnap: Resnap, tmp_path: Path, partitions: int, segments: int, *, snapshots: bool
) -> None:
    log_dir = many_segments(tmp_path / "data", partitions=partitions, segments=segments, snapshots=snapshots)
    began = time.monotonic()
    ran = resnap("scan", log_dir, "--output", "json")
    assert time.monotonic() - began < GENEROUS_S
    assert ran.code == 0
    assert ran.document["summary"]["segments"] == 100_000
