"""What Spark's Python workers do around tasks, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from resnap.replay.spark.settings import PROJECT_ROOT

TASKS = """
import gc, json
from resnap.replay.spark.worker import freeze_worker

kept, frozen = [], []
for _ in range(9):
    gc.collect()
    before = gc.get_freeze_count()
    kept.append([[] for _ in range(10_000)])
    freeze_worker()
    frozen.append(gc.get_freeze_count() - before)
print(json.dumps(frozen))
"""


def test_what_the_first_tasks_load_is_frozen_and_later_ones_freeze_less_and_less_often() -> None:
    """Each freeze takes what has been loaded since the one before."""
    script = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(PROJECT_ROOT)!r})\n{TASKS}"]
    frozen = json.loads(subprocess.run(script, check=True, capture_output=True, text=True).stdout)
    assert [number for number, more in enumerate(frozen, 1) if more > 9_000] == [1, 2, 4, 8]
    assert all(abs(more) < 1_000 for number, more in enumerate(frozen, 1) if number not in {1, 2, 4, 8})
    assert all(frozen[number - 1] > 9_000 * loaded for number, loaded in ((2, 1), (4, 2), (8, 4)))
