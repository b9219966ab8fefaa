"""Folds a metadata log into its image, record by record, as every node of a cluster does.

Records of a metadata transaction wait for its end. Records of a type or version newer than this release are skipped and
counted. All others have the same meaning under any ``metadata.version``: a changed meaning gets a new version. A query
whose result a skipped record could change is refused (``MetadataImage.relying_on``).

Source: ``MetadataBatchLoader``, ``MetadataDelta`` and what it hands records to; KIP-584, KIP-778.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FileGoneError, MetadataLogError, MetadataVersionError
from resnap.tiering.controller.metadata.batches import MetadataBatch, SnapshotHeaderRecord, TornTail
from resnap.tiering.controller.metadata.fold_records import HANDLERS, FoldState, RecordPosition
from resnap.tiering.controller.metadata.image import (
    BEFORE_MIGRATION,
    METADATA_VERSION,
    METADATA_VERSIONS,
    PRE_MIGRATION,
    MetadataImage,
    MetadataTransaction,
    Note,
    SkippedRecords,
    TransactionOutcome,
)
from resnap.tiering.controller.metadata.log_files import MetadataLogFiles, list_metadata_log, read_metadata_log
from resnap.tiering.controller.metadata.records import (
    TYPES_BY_KEY,
    TYPES_BY_MESSAGE,
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnknownRecord,
    UnregisterBrokerRecord,
    ZkMigrationStateRecord,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from resnap.tiering.controller.metadata.batches import LoggedRecord, Message

READ_ATTEMPTS: Final = 5
"""A quorum deletes what a checkpoint stands for once in minutes; a file that is gone so often has another cause."""
SETTINGS_TYPES: Final = frozenset({
    BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord, FeatureLevelRecord, ConfigRecord,
    RegisterBrokerRecord, UnregisterBrokerRecord, BrokerRegistrationChangeRecord, FenceBrokerRecord,
    UnfenceBrokerRecord, TopicRecord, RemoveTopicRecord, ZkMigrationStateRecord,
})  # fmt: skip
"""Records with the settings of brokers and topics, and brokers' releases; deleting a topic deletes its settings."""
TOPIC_TYPES: Final = (TopicRecord, RemoveTopicRecord, PartitionRecord, PartitionChangeRecord)
"""Records with the ids of topics, and the places of their partitions."""
TRANSACTION_TYPES: Final = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
"""Records that decide which of the others count: none of these can be skipped."""
UNKNOWN: Final = "unknown to this release"
DEPENDENT: Final = "about what a skipped record may have made"


def load_image(directory: Path, *, only: Collection[type] | None = None, is_current: bool = False) -> MetadataImage:
    """Return the image of the metadata log in ``directory``, which may also be the log dir that holds it.

    It is listed again if its quorum has deleted a file.

    Args:
        directory: of the log.
        only: types of records; others are not read.
        is_current: whether it is to be without its history, which is read faster.

    Raises:
        UsageError: there is no metadata log.
        MetadataVersionError: it is unknown which records count, because the end of a metadata transaction has an
            unknown version.
        MetadataLogError: a part is missing, or records contradict one another.
        FormatError: damage.
        LogDirError: a file cannot be read.

    """
    for _ in range(READ_ATTEMPTS - 1):
        with suppress(FileGoneError):
            return _fold_listed(directory, only=only, is_current=is_current)
    return _fold_listed(directory, only=only, is_current=is_current)


def load_settings_image(directory: Path) -> MetadataImage:
    """Return a current image of brokers, settings, features and topics, without partitions.

    Raises as ``load_image`` does, and MetadataVersionError where a record about these was skipped.

    In a large cluster nearly all records are about partitions: skipping them reduces the time to a fifth.
    """
    return load_image(directory, only=SETTINGS_TYPES, is_current=True).relying_on(*SETTINGS_TYPES)


def _fold_listed(directory: Path, *, only: Collection[type] | None, is_current: bool) -> MetadataImage:
    files = list_metadata_log(directory)
    image = fold_files(files.from_newest_checkpoint() if is_current else files, only=only)
    if image.offset < 0:  # its silence would pass for what the cluster says
        raise MetadataLogError(
            f"{files.directory} holds no record",
            hint="take it from a node that has joined its quorum, or copy it again",
        )
    return image


def fold_files(files: MetadataLogFiles, *, only: Collection[type] | None = None) -> MetadataImage:
    """Return the image of the metadata log in ``files``, from ``only`` some record types if they are given.

    Raises as ``load_image`` does.
    """
    checkpoint = files.starting_checkpoint()
    return fold(read_metadata_log(files, only=only), covered=checkpoint.end_offset if checkpoint else 0)


def fold(parts: Iterable[MetadataBatch | TornTail], *, covered: int = 0) -> MetadataImage:
    """Return the image of consecutive batches, from the first one of a log or of a checkpoint.

    Args:
        parts: the batches.
        covered: the offset below which a checkpoint replaces the log.

    Raises:
        MetadataVersionError, MetadataLogError: see ``load_image``.

    """
    folding = _Folding(covered)
    for part in parts:
        if isinstance(part, TornTail):
            text = f"{part.file.name}: {part.size_bytes} bytes from byte {part.position} on are a torn batch"
            folding.state.notes.append(Note(offset=None, text=text))
        else:
            folding.add_batch(part)
    return folding.finished()


class _Folding:
    """A fold in progress: the state, and the records waiting for the end of a metadata transaction."""

    def __init__(self, covered: int) -> None:
        self.state = FoldState(offset=covered - 1)
        self._covered = covered
        self._open: MetadataTransaction | None = None
        self._waiting: list[tuple[Message, RecordPosition]] = []
        self._skipped_tags: Counter[tuple[str, int]] = Counter()

    def add_batch(self, batch: MetadataBatch) -> None:
        """Apply the records of the next batch."""
        state = self.state
        state.leader_epoch = batch.leader_epoch
        if batch.file.suffix == ".checkpoint":
            for record in batch.records:
                if isinstance(record.message, SnapshotHeaderRecord):
                    state.timestamp = record.message.last_contained_log_timestamp
                self._add(record, RecordPosition(batch, None, state.timestamp))
            return
        state.offset, state.timestamp = batch.header.last_offset, batch.timestamp
        for record in batch.records:
            if record.offset >= self._covered:
                self._add(record, RecordPosition(batch, record.offset, batch.timestamp))

    def finished(self) -> MetadataImage:
        """Return the image, without a transaction that is still open."""
        if self._open is not None:
            self._close(self._open)
        for (name, tag), records in self._skipped_tags.items():
            text = f"tagged field {tag} of {name}, {UNKNOWN}: {records} skipped"
            self.state.notes.append(Note(offset=None, text=text))
        if self.state.zk_migration_state == PRE_MIGRATION:
            self.state.notes.append(Note(offset=None, text=BEFORE_MIGRATION))
        return self.state.image()

    def _add(self, record: LoggedRecord, place: RecordPosition) -> None:
        message = record.message
        self._skipped_tags.update((type(message).__name__, tag) for tag in record.unknown_tags)
        if isinstance(message, UnknownRecord):
            self._skip_unknown(message, place)
        elif isinstance(message, BeginTransactionRecord):
            self._begin(message, place)
        elif isinstance(message, EndTransactionRecord):
            self._end(place)
        elif isinstance(message, AbortTransactionRecord):
            aborted = replace(self._open_at(place), outcome=TransactionOutcome.ABORTED, reason=message.reason)
            self._close(aborted, place)
        elif self._open is None:
            self._apply(message, place)
        elif not place.batch.header.is_control:
            self._waiting.append((message, place))

    def _apply(self, message: Message, place: RecordPosition) -> None:
        if isinstance(message, FeatureLevelRecord) and message.name == METADATA_VERSION:
            level, newest = message.feature_level, max(METADATA_VERSIONS)
            if level > newest:
                text = f"metadata.version {level} is newer than {METADATA_VERSIONS[newest]}, the newest known"
                self.state.notes.append(Note(offset=place.offset, text=text))
        handler = HANDLERS.get(type(message))
        if handler is not None:
            try:
                handler(self.state, message, place)
            except MetadataLogError:
                if not any(skipped.api_key in TYPES_BY_KEY for skipped in self.state.skipped.values()):
                    raise
                known = TYPES_BY_MESSAGE[type(message)]
                self._skip(known.api_key, f"of {known.name}, {DEPENDENT}", place)
        elif type(message) in TYPES_BY_MESSAGE and not isinstance(message, NoOpRecord):
            self.state.left_aside[TYPES_BY_MESSAGE[type(message)].name] += 1

    def _skip_unknown(self, message: UnknownRecord, place: RecordPosition) -> None:
        if place.batch.header.is_control:
            text = f"a control record of type {message.api_key}, version {message.version}, is {UNKNOWN}"
            self.state.notes.append(Note(offset=place.offset, text=text))
            return
        known = TYPES_BY_KEY.get(message.api_key)
        if known is not None and known.message in TRANSACTION_TYPES:
            raise MetadataVersionError(
                f"{place}: {known.name}, version {message.version}, is {UNKNOWN}: which records count cannot be known",
                hint="a newer release of Resnap may know it; until then give settings and topic ids by other means",
            )
        kind = f"type {message.api_key}" if known is None else f"{known.name}, version {message.version}"
        self._skip(message.api_key, f"of {kind}, {UNKNOWN}", place)

    def _skip(self, api_key: int, kind: str, place: RecordPosition) -> None:
        skipped = self.state.skipped
        first = skipped.get(kind) or SkippedRecords(api_key=api_key, kind=kind, records=0, first=str(place))
        skipped[kind] = replace(first, records=first.records + 1)

    def _begin(self, message: BeginTransactionRecord, place: RecordPosition) -> None:
        if self._open is not None:
            raise place.wrong("a metadata transaction begins while another one is open")
        self._waiting = []
        self._open = MetadataTransaction(
            name=message.name,
            begin_offset=place.offset or 0,
            end_offset=None,
            records=0,
            outcome=TransactionOutcome.OPEN,
            reason=None,
        )

    def _end(self, place: RecordPosition) -> None:
        self._close(replace(self._open_at(place), outcome=TransactionOutcome.ENDED), place)
        for message, there in self._waiting:
            self._apply(message, there)

    def _open_at(self, place: RecordPosition) -> MetadataTransaction:
        if self._open is None:
            raise place.wrong("a metadata transaction ends that never began")
        return self._open

    def _close(self, transaction: MetadataTransaction, end: RecordPosition | None = None) -> None:
        """Keep a transaction, which ``end`` has ended, unless it is still open."""
        self._open = None
        end_offset = None if end is None else end.offset
        self.state.transactions.append(replace(transaction, end_offset=end_offset, records=len(self._waiting)))
