"""Reads committed offsets of consumer groups from ``__consumer_offsets``, and writes files that reset them.

A group is in one partition of the topic, by its hash; a broker has the partitions that it is a replica of. The last
record of a group and partition counts. A record without a value removes the offset.

An offset that a transaction commits counts from the transaction's marker on, unless the group has committed a later
one meanwhile: the order of the records decides, not that of the markers. Those of aborted and open transactions do not
count. Other records of the topic have keys of versions from 2 on. Of these only the names of share groups are read;
what they have acknowledged is in ``__share_group_state``.

``kafka-consumer-groups.sh --reset-offsets --from-file`` takes the files that are written for a restored cluster. An
offset above the end of what was restored is cut to that end: the records from there on are lost, and new ones will have
these offsets. Offsets of topics that were not restored, or that are not the same by their ids, are left out.

Source: ``OffsetMetadataManager.replay`` and ``replayEndTransactionMarker``, before 4.0
``GroupMetadataManager.loadGroupsAndOffsets``; ``OffsetCommitKey.json`` (0 to 1), ``OffsetCommitValue.json`` (0 to 4),
``ShareGroupMetadataKey.json``; ``ConsumerGroupCommand``, ``CsvUtils.CsvRecordNoGroup``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple, TypeAlias

from resnap.storage.disk import writable, write_file
from resnap.storage.errors import FormatError, in_file
from resnap.storage.log.compression import decompress
from resnap.storage.log.internal_topic import read_partition_batches
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.record import COMMIT, read_client_records, read_control_record
from resnap.storage.log.record_batch import HEADER
from resnap.storage.messages.schema import Int32, Int64, Since, String, read_whole
from resnap.storage.messages.wire import Cursor
from resnap.storage.stores.protocol import key_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.storage.crc32c import Buffer
    from resnap.storage.disk import Disk
    from resnap.storage.log.internal_topic import PlacedBatch
    from resnap.storage.log.partition_dir import PartitionDir


OFFSETS_TOPIC: Final = "__consumer_offsets"
NEWEST_KEY_VERSION: Final = 1
"""The newest version of the keys of committed offsets; 0 was written before 0.9, in the same form."""
NEWEST_VALUE_VERSION: Final = 4
SHARE_GROUP_KEY_VERSION: Final = 11
"""The version of the key of a record that is there for as long as a share group is (KIP-932)."""
NO_LEADER_EPOCH: Final = -1
NO_EXPIRY: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey:
    """The group and the partition of a committed offset."""

    flexible_since: ClassVar[int] = 2
    group: String
    topic: String
    partition: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupMetadataKey:
    """The name of a share group."""

    flexible_since: ClassVar[int] = 1
    group: String


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    """A committed offset; from 4.1 on with the id of the topic in a tagged field, which is not read."""

    flexible_since: ClassVar[int] = 4
    offset: Int64
    leader_epoch: Annotated[Int32, Since(3)] = NO_LEADER_EPOCH
    metadata: String
    commit_timestamp: Int64
    expire_timestamp: Annotated[Int64, Since(1, last=1)] = NO_EXPIRY


class CommittedOffset(NamedTuple):
    """The offset from which a group goes on."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    """What the consumer has added."""


GroupOffsets: TypeAlias = "Mapping[str, Mapping[TopicPartition, CommittedOffset]]"
"""Committed offsets by group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsPartition:
    """What a partition of ``__consumer_offsets`` amounts to."""

    partition: int
    end_offset: int
    """Above the last record that was read; of two replicas the higher one knows more."""
    groups: GroupOffsets
    share_groups: tuple[str, ...] = ()
    """Share groups, of which nothing else is read."""


def decode_key(key: Buffer | None, *, at: int = 0) -> tuple[str, TopicPartition] | None:
    """Return the group and the partition of a committed offset; None for the key of any other record.

    Raises:
        FormatError: it does not fit its schema to the last byte.

    """
    cursor = Cursor(b"" if key is None else key, at=at)
    version = cursor.version("version of a key")
    if not 0 <= version <= NEWEST_KEY_VERSION:
        return None
    found = read_whole(OffsetCommitKey, cursor, version)
    return found.group, TopicPartition(found.topic, found.partition)


def decode_share_group(key: Buffer, *, at: int = 0) -> str | None:
    """Return the share group whose metadata a record has; None for the key of any other record.

    Raises:
        FormatError: it does not fit its schema to the last byte.

    """
    cursor = Cursor(key, at=at)
    version = cursor.version("version of a key")
    return read_whole(ShareGroupMetadataKey, cursor, 0).group if version == SHARE_GROUP_KEY_VERSION else None


def decode_value(value: Buffer, *, at: int = 0) -> CommittedOffset:
    """Return a committed offset.

    Raises:
        FormatError: the version is newer than this release, or the value does not fit its schema to the last byte.

    """
    cursor = Cursor(value, at=at)
    version = cursor.version("version of a committed offset")
    if not 0 <= version <= NEWEST_VALUE_VERSION:
        raise FormatError("version of a committed offset", position=at, expected=f"0 to {NEWEST_VALUE_VERSION}",
                          found=version)  # fmt: skip
    found = read_whole(OffsetCommitValue, cursor, version)
    return CommittedOffset(found.offset, found.leader_epoch, found.metadata)


class _Written(NamedTuple):
    """The value of a record, not decoded: most are replaced by later ones."""

    offset: int
    """The offset of the record."""
    value: bytes
    place: PlacedBatch


class _OffsetsFold:
    """The records that count so far, by their keys' bytes."""

    def __init__(self) -> None:
        self.current: dict[bytes, _Written] = {}
        self._pending: dict[int, dict[bytes, _Written]] = {}
        """The offsets of open transactions, by producer id."""

    def apply(self, key: bytes, record: _Written | None, producer_id: int | None) -> None:
        """Apply a record; None removes the offset, ``producer_id`` is that of a transaction."""
        if record is None:
            for records in (self.current, *self._pending.values()):
                records.pop(key, None)
        elif producer_id is None:
            self.current[key] = record
        else:
            self._pending.setdefault(producer_id, {})[key] = record

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply what a transaction has committed, unless there is a later record."""
        for key, record in self._pending.pop(producer_id, {}).items():
            known = self.current.get(key)
            if committed and (known is None or known.offset < record.offset):
                self.current[key] = record


def read_group_offsets(partition: PartitionDir) -> OffsetsPartition:
    """Return the committed offsets in a partition of ``__consumer_offsets``.

    Raises:
        FormatError: damage, or a version newer than this release.
        LogDirError: a file cannot be read; FileGoneError where compaction has deleted it meanwhile.

    """
    fold, end_offset = _OffsetsFold(), 0
    for placed in read_partition_batches(partition):
        header = placed.header
        end_offset = header.last_offset + 1
        with in_file(placed.path):
            if header.is_control:
                marker = read_control_record(placed.batch, header, at=placed.position)
                if marker is not None and marker.is_marker:
                    fold.end_transaction(header.producer_id, committed=marker.type == COMMIT)
                continue
            producer_id = header.producer_id if header.is_transactional else None
            for key, record in _records(placed):
                fold.apply(key, record, producer_id)
    return OffsetsPartition(
        partition=partition.topic_partition.partition,
        end_offset=end_offset,
        groups=_decode(fold.current),
        share_groups=tuple(_share_groups(fold.current)),
    )


def _records(placed: PlacedBatch) -> Iterator[tuple[bytes, _Written | None]]:
    """Yield the keys of a batch, and their values."""
    header = placed.header
    data = decompress(memoryview(placed.batch)[HEADER.size :], header.compression, at=placed.position)
    for record, _ in read_client_records(data, header.records_count, at=placed.position):
        offset = header.base_offset + record.offset_delta
        written = None if record.value is None else _Written(offset, bytes(record.value), placed)
        yield bytes(record.key or b""), written


def _decode(records: Mapping[bytes, _Written]) -> GroupOffsets:
    groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    for key, (_, value, place) in records.items():
        with in_file(place.path):
            decoded = decode_key(key, at=place.position)
            if decoded is not None:
                group, topic_partition = decoded
                groups.setdefault(group, {})[topic_partition] = decode_value(value, at=place.position)
    return {group: dict(sorted(offsets.items())) for group, offsets in sorted(groups.items())}


def _share_groups(records: Mapping[bytes, _Written]) -> Iterator[str]:
    for key, (_, _, place) in sorted(records.items()):
        with in_file(place.path):
            group = decode_share_group(key, at=place.position)
        if group is not None:
            yield group


SCRIPT: Final = "reset-offsets.sh"
_HEAD: Final = """#!/bin/sh
# Sets the offsets of all groups: sh {script} HOST:PORT [further options of kafka-consumer-groups.sh]
set -e
cd "$(dirname "$0")"
"""


class Cut(NamedTuple):
    """A committed offset above the end of what was restored."""

    group: str
    topic_partition: TopicPartition
    committed: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReset:
    """The offsets that a group gets."""

    group: str
    offsets: Mapping[TopicPartition, int]
    cut: tuple[Cut, ...]

    @property
    def file_name(self) -> str:
        """The name of its file; groups have names that a file cannot have."""
        return f"{key_part(self.group or None)}.csv"

    def lines(self) -> Iterator[bytes]:
        """Yield the content of its file."""
        for partition, offset in self.offsets.items():
            yield f"{partition.topic},{partition.partition},{offset}\n".encode()


def group_resets(groups: GroupOffsets, ends: Mapping[TopicPartition, int]) -> list[GroupReset]:
    """Return what each group gets in the partitions of ``ends``, with their log ends; others are left out."""
    resets = []
    for group, committed in groups.items():
        there = {partition: found.offset for partition, found in committed.items() if partition in ends}
        if there:
            cut = [
                Cut(group, partition, offset, ends[partition])
                for partition, offset in there.items()
                if offset > ends[partition]
            ]
            offsets = {partition: min(offset, ends[partition]) for partition, offset in there.items()}
            resets.append(GroupReset(group=group, offsets=offsets, cut=tuple(cut)))
    return resets


def write_resets(resets: Sequence[GroupReset], directory: Path, disk: Disk) -> None:
    """Write a file for each group into ``directory``, and a script that gives each to Kafka's tool.

    Raises:
        LogDirError: they cannot be written.

    """
    with writable(directory):
        directory.mkdir(parents=True, exist_ok=True)
    for reset in resets:
        write_file(disk, directory / reset.file_name, reset.lines())
    write_file(disk, directory / SCRIPT, _script(resets))


def _script(resets: Sequence[GroupReset]) -> Iterator[bytes]:
    yield _HEAD.format(script=SCRIPT).encode()
    for reset in resets:
        named = shlex.join(["--group", reset.group, "--reset-offsets", "--from-file", reset.file_name, "--execute"])
        yield f'kafka-consumer-groups.sh --bootstrap-server "$@" {named}\n'.encode()
