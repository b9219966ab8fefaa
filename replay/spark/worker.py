"""Setup that task functions call on Spark's Python workers; imports nothing that only a driver needs."""

from __future__ import annotations

import functools
import gc
import tempfile

from pyspark import SparkFiles


@functools.cache
def freeze_worker() -> None:
    """Avoid the garbage collection that pyspark runs after every task; call it at the top of a task function.

    It freezes all live objects, mostly imports, once per process. For workers only: in a driver it would keep garbage
    alive. Works together with Unix domain sockets; each alone gains little.
    """
    gc.collect()
    gc.freeze()


def begin_task() -> None:
    """Prepare this worker; call it at the top of a task function."""
    freeze_worker()
    # The system's own directory may be small, or memory; Spark's is where a cluster has its disks.
    tempfile.tempdir = SparkFiles.getRootDirectory()
