"""A broker of 4.4.0 deletes the snapshot of a partition with more producers than it reads, as is said of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, load_snapshot, snapshot_array_parts
from resnap.tiering.judging.known_faults import MOST_READABLE_ENTRIES
from tests.kafka.brokers import Broker
from tests.scheduler.files import bases, file_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = [pytest.mark.kafka, pytest.mark.heavy]


def snapshot_of(producers: int) -> bytes:
    entries = np.zeros(producers, ENTRY_DTYPE)
    entries["producer_id"] = 1_000 + np.arange(producers)
    entries["timestamp"] = int(time.time() * 1000)
    entries["coordinator_epoch"] = entries["current_txn_first_offset"] = -1
    return b"".join(snapshot_array_parts(entries))


@pytest.mark.parametrize("more", [0, 1])
def test_the_broker_reads_as_many_producers_as_is_said_and_deletes_the_snapshot_of_more(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, more: int
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    broker = Broker(release("4.4.0"), [data])
    with broker.running():
        broker.drive("create", "big", 1)
        broker.drive("append", "big", 0, 2)
    snapshot = file_at(data / "big-0", max(bases(data / "big-0", "snapshot")), "snapshot")
    snapshot.write_bytes(snapshot_of(MOST_READABLE_ENTRIES + more))
    checked = command("check", data, "--output", "json")
    (topic,) = checked.document["topics"]
    assert [blocker["reason"] for blocker in topic["blockers"]] == ["snapshot-too-large"] * more, checked.err
    with broker.running():
        said = broker.printed()[broker.started_at :]
        assert (f"Failed to load producer snapshot from '{snapshot}'" in said) == bool(more)
    left = len(load_snapshot(snapshot))
    assert left == (MOST_READABLE_ENTRIES if not more else 1), "of the other one, what the log shows"
