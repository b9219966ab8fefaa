"""What task functions call on Spark's Python workers; imports nothing that only a driver needs."""

from __future__ import annotations

import functools
import gc


@functools.cache
def freeze_worker() -> None:
    """Spare this worker the collection that pyspark runs after every task; call it at the top of a task function.

    Freezes what is alive by now, imports above all, and does so once per process. For workers only: in a driver it
    would keep garbage alive. Works together with Unix domain sockets; each alone gains little.
    """
    gc.collect()
    gc.freeze()
