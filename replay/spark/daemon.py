"""The daemon that forks Spark's Python workers on a local master, with everything they need already imported.

Spark's own daemon imports pyspark from a zip, whose modules every process compiles again, and loads nothing else, so
that each worker spends its first second or two on the same imports. This one imports the installed pyspark and
everything that tasks use once, and forks workers that are ready at once and share that memory.

A process with several threads must not fork. What is imported here starts none under the variables of
``spark.settings.WITHOUT_THREADS``. On a cluster Spark's own daemon runs: executors have Resnap only once theirs did.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

from resnap.replay.scan.split_scan import why_no_kernel

_NEEDED: Final = ("pyspark.worker", "resnap.replay.spark.job")
_ZIPS: Final = ("pyspark.zip", "py4j-")


def preload() -> None:
    """Import what tasks need, and freeze it: the garbage collector of forked workers then skips it."""
    sys.path[:] = [entry for entry in sys.path if not Path(entry).name.startswith(_ZIPS)]
    for name in _NEEDED:
        import_module(name)
    if why_no_kernel() is None:
        import_module("resnap.replay.scan.producer_table")
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    preload()
    # Only now is it the installed one.
    from pyspark.daemon import manager

    manager()
