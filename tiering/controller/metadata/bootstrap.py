"""Reads and writes the bootstrap metadata of a formatted node that was never started.

``kafka-storage.sh format`` leaves them in ``bootstrap.checkpoint``, from 4.4 on in the checkpoint of offset 0 of the
metadata log. The first active controller appends them to the empty log. Our records are in batches of their own after
the original ones, which stay unchanged, byte by byte.

Source: ``BootstrapDirectory``, ``ActivationRecordsGenerator.recordsForEmptyLog``; KIP-1170 for 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import dress_of, is_there, legible, write_file
from resnap.storage.errors import UsageError
from resnap.storage.log.names import segment_name
from resnap.storage.log.record import SNAPSHOT_FOOTER, write_data_batch
from resnap.tiering.controller.metadata.batches import SnapshotFooterRecord, encode_record
from resnap.tiering.controller.metadata.image import METADATA_VERSION
from resnap.tiering.controller.metadata.log_files import METADATA_PARTITION, read_checkpoint
from resnap.tiering.controller.metadata.records import FeatureLevelRecord, ProducerIdsRecord
from resnap.tiering.controller.metadata.writer import control_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.storage.disk import Disk
    from resnap.tiering.controller.metadata.batches import MetadataBatch
    from resnap.tiering.controller.metadata.records import MetadataRecord

BOOTSTRAP: Final = "bootstrap.checkpoint"
FIRST_CHECKPOINT: Final = f"{0:020d}-{0:010d}.checkpoint"
_RECORDS_IN_BATCH: Final = 1_000
"""Some 100 KB: far below what a quorum appends at once."""
_FORMAT: Final = "format it: kafka-storage.sh format --cluster-id ... --config server.properties"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """The content of a file of bootstrap metadata."""

    path: Path
    kept: bytes
    """All before the records of producer ids and what follows, the header included."""
    offset: int
    """Of the first record behind that."""
    timestamp: int
    """Of the last record of the format, milliseconds."""
    features: Mapping[str, int]
    """Levels that the cluster begins with, ``metadata.version`` among them."""
    records: tuple[MetadataRecord, ...]
    """Those of producer ids, the cluster and topics, in this order, that an earlier run has written."""

    def write(self, records: Sequence[MetadataRecord], disk: Disk) -> None:
        """Replace the records of an earlier run by ``records``, durably; the file is always the old or the new one.

        Raises:
            LogDirError: it cannot be written.

        """
        write_file(disk, self.path, [self.kept, *self._batches(records)], dress_of(self.path))

    def _batches(self, records: Sequence[MetadataRecord]) -> Iterator[bytes]:
        offset, values = self.offset, iter([encode_record(record) for record in records])
        while some := list(islice(values, _RECORDS_IN_BATCH)):
            yield write_data_batch(offset=offset, values=some, timestamps=self.timestamp, leader_epoch=0)
            offset += len(some)
        footer = SnapshotFooterRecord(version=0)
        yield control_batch(SNAPSHOT_FOOTER, footer, offset, self.timestamp, leader_epoch=0)


def read_bootstrap(log_dir: Path) -> Bootstrap:
    """Return the bootstrap metadata in ``log_dir``: a node's ``metadata.log.dir``, or the first of its log dirs.

    Raises:
        UsageError: it was never formatted, or its node was started already.
        MetadataLogError, FormatError: the file is damaged.
        LogDirError: it cannot be read.

    """
    log = log_dir / str(METADATA_PARTITION)
    if is_there(log / segment_name(0, "log")) or is_there(log / "quorum-state"):
        raise UsageError(
            f"{log_dir}: its node was started already, so its cluster has a metadata log of its own",
            hint="a new cluster gets its topics before its first start: format an empty directory",
        )
    path = next((one for one in (log_dir / BOOTSTRAP, log / FIRST_CHECKPOINT) if is_there(one)), None)
    if path is None:
        raise UsageError(f"{log_dir} holds no bootstrap metadata of a new cluster", hint=_FORMAT)
    return _bootstrap(path, list(read_checkpoint(path)))


def _bootstrap(path: Path, batches: list[MetadataBatch]) -> Bootstrap:
    footer = batches[-1]
    first = next((batch for batch in batches if _is_ours(batch)), footer)
    at = batches.index(first)
    levels = [record.message for batch in batches[:at] for record in batch.records]
    features = {level.name: level.feature_level for level in levels if isinstance(level, FeatureLevelRecord)}
    if METADATA_VERSION not in features:
        raise UsageError(f"{path} does not say which metadata.version the cluster begins with", hint=_FORMAT)
    with legible(path):
        kept = path.read_bytes()[: first.position]
    return Bootstrap(
        path=path,
        kept=kept,
        offset=first.header.base_offset,
        timestamp=batches[at - 1].timestamp,
        features=features,
        records=tuple(record.message for batch in batches[at:-1] for record in batch.records),  # type: ignore[misc]
    )


def _is_ours(batch: MetadataBatch) -> bool:
    """Whether an earlier run has written the batch, and all that follow: a format gives no producer ids."""
    return isinstance(batch.records[0].message, ProducerIdsRecord)
