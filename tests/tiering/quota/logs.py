"""Logs for quotas: batches of given producer ids at given times, one topic after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.builders import a_batch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def a_topic(log_dir: Path, topic: str, uses: Iterable[tuple[int, int]]) -> Path:
    """Write a partition whose one segment has a batch for each (time, producer id); return its directory."""
    directory = log_dir / f"{topic}-0"
    directory.mkdir(parents=True)
    batches = (
        a_batch(offset=offset, timestamps=at_ms, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1,
                base_sequence=0 if producer_id >= 0 else -1)
        for offset, (at_ms, producer_id) in enumerate(uses)
    )  # fmt: skip
    (directory / f"{0:020}.log").write_bytes(b"".join(batches))
    return directory
