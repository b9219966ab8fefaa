"""What ``resnap producer census`` says of a real broker's log dir, and what an entry takes of that broker's heap."""

from __future__ import annotations

import re
import subprocess
import time
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest

from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, store_snapshot_arrays
from resnap.tiering.quota.producer_census import HEAP_BYTES
from tests.kafka.brokers import SMALL, Broker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

COUNT: Final = 100_000
LOCAL: Final = ("--engine", "local", "--output", "json")
_HEAP: Final = re.compile(
    r"^ *\d+: +\d+ +(\d+)  (?:org\.apache\.kafka\.storage\.internals\.log\.(?:ProducerStateEntry|BatchMetadata)"
    r"|(?:\[L)?java\.util\.HashMap\$Node;?|java\.lang\.Long|java\.util\.ArrayDeque|\[Ljava\.lang\.Object;)(?: \(|$)",
    flags=re.MULTILINE,
)
"""What producer state is made of; all else that a broker holds varies from start to start."""


def live_heap_bytes(broker: Broker) -> int:
    """Return what the broker's heap holds of the classes of producer state, after a collection of garbage."""
    assert broker.process is not None
    shown = subprocess.run(
        ["jcmd", str(broker.process.pid), "GC.class_histogram"], capture_output=True, text=True, check=True
    )
    found = _HEAP.findall(shown.stdout)
    assert found, shown.stdout[:1000]
    return sum(map(int, found))


@pytest.mark.parametrize("version", [pytest.param("3.9.1", marks=pytest.mark.heavy), "4.4.0"])
def test_an_entry_takes_of_a_brokers_heap_what_the_census_says(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    broker = Broker(release(version), [data])
    with broker.running():
        broker.drive("create", "crowd", 1, *SMALL[version])
        broker.drive("append", "crowd", 0, 50)
    with broker.running():
        before = live_heap_bytes(broker)
    snapshot = max((data / "crowd-0").glob("*.snapshot"))
    entries = np.zeros(COUNT, ENTRY_DTYPE)
    entries["producer_id"] = np.arange(1_000_000, 1_000_000 + COUNT)
    entries["timestamp"] = int(time.time() * 1000)
    entries["coordinator_epoch"] = entries["current_txn_first_offset"] = -1
    store_snapshot_arrays(snapshot, [entries], COUNT)
    found = command("producer", "census", data, "--topic", "crowd", *LOCAL).document["topics"]
    with broker.running():
        per_entry = (live_heap_bytes(broker) - before) / COUNT
    assert [(topic["topic"], topic["producers"], topic["heapBytes"]) for topic in found] == [
        ("crowd", COUNT, COUNT * HEAP_BYTES)
    ]
    assert abs(per_entry - HEAP_BYTES) < 0.1 * HEAP_BYTES, per_entry
