"""Setup that task functions call on Spark's Python workers; imports nothing that only a driver needs."""

from __future__ import annotations

import ctypes
import functools
import gc
import tempfile
from itertools import count
from typing import Final

from pyspark import SparkFiles

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Parameters of ``mallopt``, which glibc has."""
_TASKS: Final = count(1)
"""Counts the tasks of this process."""


def freeze_worker() -> None:
    """Avoid the garbage collection that pyspark runs after every task; call it at the top of a task function.

    It freezes all live objects, mostly imports and compiled code, in the first, second, fourth, eighth task and so on
    of a process: tasks load code when they first need it, and what else they leave may be garbage later. For workers
    only: in a driver it would keep garbage alive. Works together with Unix domain sockets; each alone gains little.
    """
    number = next(_TASKS)
    if number == 1:
        gc.collect()
    if number & (number - 1) == 0:
        gc.freeze()


@functools.cache
def keep_memory() -> None:
    """Let the C library use freed memory again, up to 32 MiB, and not return it to the system at once.

    Arrays of some megabytes, made and freed again and again, would else cost more for their page faults than for
    their content.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    mallopt(_M_MMAP_THRESHOLD, 16 << 20)
    mallopt(_M_TRIM_THRESHOLD, 32 << 20)


def begin_task() -> None:
    """Prepare this worker; call it at the top of a task function."""
    freeze_worker()
    # The system's own directory may be small, or memory; Spark's is where a cluster has its disks.
    tempfile.tempdir = SparkFiles.getRootDirectory()
