"""Folds a metadata log into its image, record by record, as each node of a cluster does.

Records of a metadata transaction wait for its end. What is younger than this text is passed over with a note; where the
cluster's ``metadata.version`` is, nothing is, since then also known records may mean something else.

Source: ``MetadataBatchLoader``, ``MetadataDelta`` and what it hands records to.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from storage.errors import FileGoneError, MetadataLogError, MetadataVersionError
from tiering.controller.metadata import fold_cluster, fold_producer_ids, fold_settings, fold_topics
from tiering.controller.metadata.batches import MetadataBatch, TornTail
from tiering.controller.metadata.control_messages import SnapshotHeaderRecord
from tiering.controller.metadata.fold_state import FoldState, Place
from tiering.controller.metadata.image import (
    METADATA_VERSION,
    METADATA_VERSIONS,
    MetadataImage,
    MetadataTransaction,
    Note,
    TransactionOutcome,
)
from tiering.controller.metadata.log_files import MetadataLogFiles, list_metadata_log, read_metadata_log
from tiering.controller.metadata.records import (
    TYPES_BY_MESSAGE,
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnknownRecord,
    UnregisterBrokerRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from tiering.controller.metadata.batches import LoggedRecord, Message

HANDLERS: Final[dict[type, Callable[[FoldState, Any, Place], None]]] = {
    **fold_cluster.HANDLERS,
    **fold_topics.HANDLERS,
    **fold_settings.HANDLERS,
    **fold_producer_ids.HANDLERS,
}


LOOKS: Final = 5
"""A quorum deletes what a checkpoint stands for once in minutes; who finds a file gone so often has another trouble."""
SETTINGS_TYPES: Final = frozenset({
    BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord, FeatureLevelRecord, ConfigRecord,
    RegisterBrokerRecord, UnregisterBrokerRecord, BrokerRegistrationChangeRecord, FenceBrokerRecord,
    UnfenceBrokerRecord, TopicRecord, RemoveTopicRecord,
})  # fmt: skip
"""What tells the settings of brokers and topics, and of what release brokers are; a topic's go with it."""


def load_image(directory: Path) -> MetadataImage:
    """Return the image of the metadata log in ``directory``, which may also be the log dir that holds it.

    Raises:
        UsageError: there is no metadata log.
        MetadataVersionError: it is of a version that is not known here.
        MetadataLogError: a part is missing, or records contradict one another.
        FormatError: damage.
        LogDirError: a file cannot be read.

    """
    return _fold_directory(directory)


def load_settings_image(directory: Path) -> MetadataImage:
    """Return an image of brokers, settings, features and topics without partitions, as they are now.

    Raises as ``load_image`` does.

    In a large cluster nearly all records are about partitions: left unread, a fifth of the time remains.
    """
    return _fold_directory(directory, only=SETTINGS_TYPES, only_now=True)


def load_current_image(directory: Path) -> MetadataImage:
    """Return an image without its history, as things are now; raises as ``load_image`` does."""
    return _fold_directory(directory, only_now=True)


def _fold_directory(directory: Path, *, only: Collection[type] | None = None, only_now: bool = False) -> MetadataImage:
    """Return the image of what lies in ``directory``, looking again where its quorum has deleted a file meanwhile."""
    for _ in range(LOOKS - 1):
        with suppress(FileGoneError):
            return _look(directory, only=only, only_now=only_now)
    return _look(directory, only=only, only_now=only_now)


def _look(directory: Path, *, only: Collection[type] | None, only_now: bool) -> MetadataImage:
    files = list_metadata_log(directory)
    image = fold_files(files.from_newest_checkpoint() if only_now else files, only=only)
    if image.offset < 0:  # its silence would pass for what the cluster says
        raise MetadataLogError(
            f"{files.directory} holds no record",
            hint="take it from a node that has joined its quorum, or copy it again",
        )
    return image


def fold_files(files: MetadataLogFiles, *, only: Collection[type] | None = None) -> MetadataImage:
    """Return the image of the metadata log that ``files`` make, of records of ``only`` some types if they are given.

    Raises as ``load_image`` does.
    """
    checkpoint = files.starting_checkpoint()
    return fold(read_metadata_log(files, only=only), covered=checkpoint.end_offset if checkpoint else 0)


def fold(parts: Iterable[MetadataBatch | TornTail], *, covered: int = 0) -> MetadataImage:
    """Return the image of batches that follow one another, from the first of a log, or of a checkpoint, on.

    Args:
        parts: the batches.
        covered: the offset below which a checkpoint stands for the log.

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


@dataclass(slots=True)
class _OpenTransaction:
    """A metadata transaction whose end has not come yet, and its records."""

    name: str | None
    begin_offset: int
    waiting: list[tuple[Message, Place]]


class _Folding:
    """The fold while it goes on: what is in force, and what waits for the end of a metadata transaction."""

    def __init__(self, covered: int) -> None:
        self.state = FoldState()
        self._covered = covered
        self._open: _OpenTransaction | None = None
        self._transactions: list[MetadataTransaction] = []
        self._left_aside: Counter[str] = Counter()
        self._offset, self._epoch, self._timestamp = covered - 1, 0, 0

    def add_batch(self, batch: MetadataBatch) -> None:
        """Take the records of the next batch."""
        self._epoch = batch.leader_epoch
        if batch.file.suffix == ".checkpoint":
            for record in batch.records:
                self._add_of_checkpoint(record, batch)
            return
        self._offset, self._timestamp = batch.header.last_offset, batch.timestamp
        for record in batch.records:
            if record.offset >= self._covered:
                self._add(record, Place(batch, record.offset, batch.timestamp))

    def _add_of_checkpoint(self, record: LoggedRecord, batch: MetadataBatch) -> None:
        if isinstance(record.message, SnapshotHeaderRecord):
            self._timestamp = record.message.last_contained_log_timestamp
        self._add(record, Place(batch, None, self._timestamp))

    def finished(self) -> MetadataImage:
        """Return the image; a transaction that is still open stays out of it."""
        if self._open is not None:
            self._close(self._open, TransactionOutcome.OPEN)
        return self.state.image(
            offset=self._offset,
            leader_epoch=self._epoch,
            timestamp=self._timestamp,
            transactions=tuple(self._transactions),
            left_aside=dict(sorted(self._left_aside.items())),
        )

    def _add(self, record: LoggedRecord, place: Place) -> None:
        message = record.message
        if record.unknown_tags:
            tags = ", ".join(map(str, record.unknown_tags))
            self._note(place, f"{type(message).__name__} has tagged fields that are not known here: {tags}")
        if isinstance(message, UnknownRecord):
            kind = "control record" if place.batch.header.is_control else "record"
            self._note(place, f"a {kind} of type {message.api_key}, version {message.version}, is not known here")
        elif isinstance(message, BeginTransactionRecord):
            self._begin(message, place)
        elif isinstance(message, EndTransactionRecord):
            self._end(place)
        elif isinstance(message, AbortTransactionRecord):
            self._close(self._open_at(place), TransactionOutcome.ABORTED, place, message.reason)
        elif self._open is None:
            self._apply(message, place)
        elif not place.batch.header.is_control:
            self._open.waiting.append((message, place))

    def _apply(self, message: Message, place: Place) -> None:
        if isinstance(message, FeatureLevelRecord) and message.name == METADATA_VERSION:
            _check_version(message.feature_level, place)
        handler = HANDLERS.get(type(message))
        if handler is not None:
            handler(self.state, message, place)
        elif type(message) in TYPES_BY_MESSAGE and not isinstance(message, NoOpRecord):
            self._left_aside[TYPES_BY_MESSAGE[type(message)].name] += 1

    def _begin(self, message: BeginTransactionRecord, place: Place) -> None:
        if self._open is not None:
            raise place.wrong("a metadata transaction begins while another one is open")
        self._open = _OpenTransaction(message.name, place.offset or 0, [])

    def _end(self, place: Place) -> None:
        ending = self._open_at(place)
        self._close(ending, TransactionOutcome.ENDED, place)
        for message, there in ending.waiting:
            self._apply(message, there)

    def _open_at(self, place: Place) -> _OpenTransaction:
        if self._open is None:
            raise place.wrong("a metadata transaction ends that never began")
        return self._open

    def _close(
        self,
        ending: _OpenTransaction,
        outcome: TransactionOutcome,
        place: Place | None = None,
        reason: str | None = None,
    ) -> None:
        self._open = None
        self._transactions.append(
            MetadataTransaction(
                name=ending.name,
                begin_offset=ending.begin_offset,
                end_offset=place.offset if place else None,
                records=len(ending.waiting),
                outcome=outcome,
                reason=reason,
            )
        )

    def _note(self, place: Place, text: str) -> None:
        self.state.notes.append(Note(offset=place.offset, text=text))


def _check_version(level: int, place: Place) -> None:
    if level not in METADATA_VERSIONS:
        newest = max(METADATA_VERSIONS)
        raise MetadataVersionError(
            f"{place}: metadata.version {level} is not known here; the newest that is known is {newest},"
            f" {METADATA_VERSIONS[newest]}",
            hint="a newer release of resnap may know it; until then give settings and topic ids by other means",
        )
