"""Checkpoints of a metadata log, as a controller leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.storage.log.record import SNAPSHOT_FOOTER, SNAPSHOT_HEADER, write_data_batch
from resnap.tiering.controller.metadata.batches import SnapshotFooterRecord, SnapshotHeaderRecord, encode_record
from resnap.tiering.controller.metadata.writer import control_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.tiering.controller.metadata.records import MetadataRecord


def checkpoint_bytes(records: Sequence[MetadataRecord], *, epoch: int, timestamp: int) -> bytes:
    """Return a whole checkpoint file of ``records``.

    Args:
        records: which make the image, in an order in which they can be replayed.
        epoch: of the leader that appended the last record below the checkpoint.
        timestamp: of that record, milliseconds.

    """
    header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=timestamp)
    parts = [control_batch(SNAPSHOT_HEADER, header, 0, timestamp, leader_epoch=epoch)]
    values = [encode_record(record) for record in records]
    if values:
        parts.append(write_data_batch(offset=1, values=values, timestamps=timestamp, leader_epoch=epoch))
    footer = SnapshotFooterRecord(version=0)
    parts.append(control_batch(SNAPSHOT_FOOTER, footer, len(values) + 1, timestamp, leader_epoch=epoch))
    return b"".join(parts)
