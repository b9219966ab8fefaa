"""What a run was made on: the facts printed above its figures."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.benchmarks.tables import amount

LIBRARIES = ("numpy", "numba", "pyspark", "pyarrow", "awscrt")


def cores() -> list[int]:
    """Return the processors this process may use."""
    return sorted(os.sched_getaffinity(0))


def block_device(path: Path) -> Path | None:
    """Return where the kernel describes the disk that ``path`` lies on; None if it is not a disk, such as tmpfs."""
    device = path.stat().st_dev
    told = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if not told.exists():
        return None
    return told if (told / "queue").exists() else told.parent


def machine_facts(data: Path, *, rounds: int) -> str:
    """Return when and how often was measured, the machine, the disk under ``data``, and the versions."""
    return "; ".join((
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, best of {rounds}, load {os.getloadavg()[0]:.1f} when it began",
        f"{_processor()}, {len(cores())} cores in use, {_memory()}",
        f"Linux {platform.release()}, disk {_disk(data)}",
        f"Python {platform.python_version()}, {', '.join(f'{name} {_version(name)}' for name in LIBRARIES)}",
        f"Resnap {_revision()}",
    ))  # fmt: skip


def _memory() -> str:
    return f"{amount(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))} of memory"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _disk(data: Path) -> str:
    device = block_device(data)
    if device is None:
        return "none, in memory"
    readahead = (device / "queue" / "read_ahead_kb").read_text(encoding="utf-8").strip()
    return f"{device.name}, read ahead {readahead} KiB"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _revision() -> str:
    root = Path(__file__).parents[2]
    asked = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(asked, capture_output=True, check=False, text=True)
    return f"{_version('resnap')} at {found.stdout.strip() or 'no known revision'}"
