"""Lists and reads the files of ``__cluster_metadata-0``: segments and checkpoints, in order.

A checkpoint ``<end offset>-<epoch>.checkpoint`` is everything below its end offset, folded. A quorum deletes segments
once a checkpoint covers them. A checkpoint records only where the next block of producer ids begins; the owners of
blocks are only in the log. So the log is read from its beginning, after the oldest checkpoint that reaches that
beginning; if the log is complete, no checkpoint is read.

Source: ``KafkaMetadataLog``, ``Snapshots``; KIP-630.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.disk import reading
from resnap.storage.errors import MetadataLogError, UsageError
from resnap.storage.log.log_dir import META_PROPERTIES
from resnap.storage.log.names import (
    CLUSTER_METADATA_TOPIC,
    FileKind,
    FileState,
    TopicPartition,
    parse_file_name,
    parse_partition_dir_name,
)
from resnap.storage.log.partition_dir import Checkpoints, Segment, read_partition_dir
from resnap.tiering.controller.metadata.batches import (
    MetadataBatch,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    TornTail,
    read_batches,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
_CHECKPOINT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class Checkpoint(NamedTuple):
    """A complete snapshot of the metadata."""

    end_offset: int
    """It covers all records below this offset."""
    epoch: int
    """Epoch of the leader that appended the last of them."""
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogFiles:
    """The files of a metadata log's directory."""

    directory: Path
    segments: Sequence[Segment]
    """The segments by base offset."""
    checkpoints: tuple[Checkpoint, ...]
    """The checkpoints by end offset."""
    only_now: bool = False
    """Whether to begin with the newest checkpoint, and not as far back as the log goes."""

    @property
    def start_offset(self) -> int | None:
        """Offset of the first record in the log; None if there is no segment."""
        return self.segments[0].base_offset if self.segments else None

    def from_newest_checkpoint(self) -> MetadataLogFiles:
        """Return the files for the current state: the newest checkpoint, and the segments above it."""
        if not self.checkpoints:
            return self
        newest = self.checkpoints[-1]
        below = [segment for segment in self.segments[1:] if segment.base_offset <= newest.end_offset]
        first = self.segments.index(below[-1]) if below else 0
        return replace(self, segments=self.segments[first:], checkpoints=(newest,), only_now=True)

    def starting_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint that replaces deleted segments; None if the log is complete.

        Raises:
            MetadataLogError: records are missing below the first segment.

        """
        start = self.start_offset
        if start == 0 and not self.only_now:
            return None
        if start is None:
            if self.checkpoints:
                return self.checkpoints[-1]
            raise MetadataLogError(f"{self.directory} has neither a segment nor a checkpoint", hint=_WHOLE_DIRECTORY)
        reaching = next((checkpoint for checkpoint in self.checkpoints if checkpoint.end_offset >= start), None)
        if reaching is None:
            newest = self.checkpoints[-1].end_offset if self.checkpoints else 0
            raise MetadataLogError(
                f"{self.directory}: the records from offset {newest} to {start} are missing: the log begins at {start},"
                f" and {'the newest checkpoint ends at ' + str(newest) if newest else 'there is no checkpoint'}",
                hint=_WHOLE_DIRECTORY,
            )
        return reaching


_WHOLE_DIRECTORY: Final = "give a whole copy of the directory __cluster_metadata-0 of a controller, or of a broker"


def list_metadata_log(directory: Path) -> MetadataLogFiles:
    """Return the files in ``directory``: ``__cluster_metadata-0`` itself, or the log dir that holds it.

    Raises:
        UsageError: there is no metadata log.
        LogDirError: the operating system does not let us list it.

    """
    inner = directory / str(METADATA_PARTITION)
    with reading(directory):
        found = inner if inner.is_dir() else directory
        if not found.is_dir():
            what = "not a directory" if directory.exists() else "no such directory"
            raise UsageError(f"{directory}: {what}", hint=_WHERE)
        is_of = parse_partition_dir_name(found.name)
        if is_of and is_of.topic_partition != METADATA_PARTITION and (found.parent / META_PROPERTIES).exists():
            raise UsageError(f"{directory} is a partition of {is_of.topic}, and no metadata log", hint=_WHERE)
        segments = read_partition_dir(found, METADATA_PARTITION, Checkpoints()).segments
        names = os.listdir(found)  # noqa: PTH208
        named = filter(None, map(_CHECKPOINT.fullmatch, names))
        checkpoints = tuple(sorted(Checkpoint(int(match[1]), int(match[2]), found / match[0]) for match in named))
    if not segments and not checkpoints:
        raise UsageError(f"{directory} holds no metadata log", hint=_WHERE)
    _check_logs(found, names, segments[-1].base_offset if segments else -1)
    return MetadataLogFiles(directory=found, segments=segments, checkpoints=checkpoints)


def _check_logs(directory: Path, names: Sequence[str], last: int) -> None:
    """Refuse a directory with an index above the ``last`` segment: its records are missing, which no checkpoint has."""
    for name in names:
        file = parse_file_name(name)
        if file is None or (file.kind, file.state) != (FileKind.INDEX, FileState.LIVE) or file.offset <= last:
            continue
        if not (directory / name).with_suffix(".log").exists():  # else it was created since it was listed
            what = f"{directory} has {name} without the .log of this segment: its records are missing"
            raise MetadataLogError(what, hint=_WHOLE_DIRECTORY)


_WHERE: Final = "give a directory named __cluster_metadata-0, or the entry of log.dirs (metadata.log.dir) that holds it"


def read_metadata_log(
    files: MetadataLogFiles, *, only: Collection[type] | None = None
) -> Iterator[MetadataBatch | TornTail]:
    """Yield the batches of the whole log, after those of a checkpoint if one is needed.

    Batches that the checkpoint already covers are skipped; ``only`` is as for ``read_batches``.

    Raises:
        MetadataLogError: records are missing, or a checkpoint is incomplete.
        FormatError: damage.
        LogDirError: a file cannot be read.

    """
    checkpoint = files.starting_checkpoint()
    covered = checkpoint.end_offset if checkpoint else 0
    parts = chain.from_iterable(
        read_batches(Path(segment.path), segment.base_offset, active=segment.is_active, only=only)
        for segment in files.segments
    )
    log = (part for part in _unbroken(parts) if isinstance(part, TornTail) or part.header.last_offset >= covered)
    return chain(read_checkpoint(checkpoint.path, only=only) if checkpoint else (), log)


def read_checkpoint(path: Path, *, only: Collection[type] | None = None) -> Iterator[MetadataBatch]:
    """Yield the batches of a checkpoint, between its header and its footer; ``only`` is as for ``read_batches``.

    Raises:
        MetadataLogError: it has no header at its beginning, or no footer at its end: it was never completed.
        FormatError: damage.
        LogDirError: the file cannot be read.

    """
    last = None
    for batch in read_batches(path, 0, only=only):
        if isinstance(batch, TornTail):
            continue
        if last is None and not (batch.records and isinstance(batch.records[0].message, SnapshotHeaderRecord)):
            raise MetadataLogError(f"{path}: does not begin with the header of a checkpoint", hint=_UNFINISHED)
        last = batch
        yield batch
    if last is None or not (last.records and isinstance(last.records[-1].message, SnapshotFooterRecord)):
        raise MetadataLogError(f"{path}: does not end with the footer of a checkpoint", hint=_UNFINISHED)


_UNFINISHED: Final = "it was never finished, or cut off; remove this copy of it, and an older one is used"


def _unbroken(parts: Iterator[MetadataBatch | TornTail]) -> Iterator[MetadataBatch | TornTail]:
    """Yield all batches, and check that each segment begins where the previous one ended, at no older epoch."""
    before = None
    for after in parts:
        if isinstance(before, MetadataBatch) and isinstance(after, MetadataBatch):
            _check_follows(before, after)
        yield after
        before = after


def _check_follows(before: MetadataBatch, after: MetadataBatch) -> None:
    expected = before.header.last_offset + 1
    if after.header.base_offset != expected:
        raise MetadataLogError(
            f"{after.file}: begins at offset {after.header.base_offset}, but the segment before it ends at {expected}:"
            " a segment is missing, or lacks its end",
            hint=_WHOLE_DIRECTORY,
        )
    if after.leader_epoch < before.leader_epoch:
        raise MetadataLogError(
            f"{after.file}: the batch at byte {after.position} is of leader epoch {after.leader_epoch}, the one before"
            f" it of {before.leader_epoch}",
            hint=_WHOLE_DIRECTORY,
        )
