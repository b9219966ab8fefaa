"""Small things to test with: whatever a test does not name has a value that is plain and valid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resnap.storage.log.record import write_marker_batch
from tests.logs.batch_builder import write_data_batch
from tests.logs.log_writer import PartitionWriter
from tests.strategies import START_MS, VALUE, Event, write_events

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def a_batch(*, records: int = 1, **overrides: Any) -> bytes:
    """Build a data batch of producer 7; ``overrides`` are arguments of ``write_data_batch``."""
    usual: dict[str, Any] = {
        "offset": 0, "values": [VALUE] * records, "timestamps": START_MS, "producer_id": 7, "producer_epoch": 0,
        "base_sequence": 0,
    }  # fmt: skip
    return write_data_batch(**usual | overrides)


def a_marker(**overrides: Any) -> bytes:
    """Build a commit of producer 7; ``overrides`` are arguments of ``write_marker_batch``."""
    usual: dict[str, Any] = {
        "offset": 0, "producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0, "timestamp": START_MS,
        "commit": True,
    }  # fmt: skip
    return write_marker_batch(**usual | overrides)


def a_partition(
    log_dir: Path, segments: Iterable[Iterable[Event]], *, name: str = "payments-0", **options: Any
) -> Path:
    """Write the directory ``name`` with a segment for each list of events, the last of them active; return its path.

    Lists without an event make no segment of their own. ``options`` are arguments of ``PartitionWriter``.
    """
    with PartitionWriter(log_dir / name, **options) as writer:
        for number, events in enumerate(segments):
            if number:
                writer.roll()
            write_events(writer, events)
    return log_dir / name
