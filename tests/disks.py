"""Fixtures of disks that are small or read-only, and of users who may not do everything.

``tests/conftest.py`` gives them to every test that asks.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system with room for one megabyte."""
    with _mounted(tmp_path / "tiny", "size=1m") as path:
        yield path


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system that no user may write to, not even root."""
    with _mounted(tmp_path / "read-only", "size=1m,ro,mode=755") as path:
        yield path


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Give a folder in memory where there is such a file system: a sync on a busy disk takes long."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - the one place that is memory
    with tempfile.TemporaryDirectory(dir=where) as name:
        yield Path(name)


@pytest.fixture
def quick() -> Iterator[Path]:
    """A folder in memory, for tests that are not about how long a sync takes."""
    with folder_in_memory() as folder:
        yield folder


@contextmanager
def _mounted(path: Path, options: str) -> Iterator[Path]:
    path.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"NOT TESTED: mounting a tmpfs needs root and CAP_SYS_ADMIN: {mount.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o777)


@pytest.fixture
def as_unprivileged_user() -> Iterator[None]:
    """Run the test without the powers of root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)
