"""Parses and formats the names of files and directories in a broker's log dir.

A partition directory is ``<topic>-<partition>``; topics may contain dashes themselves, so the last dash counts. Three
suffixes mark special directories: ``-delete``, ``-future`` and ``-stray``, each after 32 hex digits that make it
unique. Inside, a segment's files share one number, the base offset in 20 digits. A log dir in a store has a
``StorePath`` in place of a path: a URL with the few methods of a path that log dir values need.

Kafka wrote names in the digits of the JVM's locale for years, so any Unicode digits are read; ASCII is written.

Source: ``LogFileUtils``, ``UnifiedLog.parseTopicPartitionName``, ``Topic.validate``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
"""KRaft's own log: its directory looks like a partition, but cannot be tiered."""
MAX_TOPIC_NAME_LENGTH: Final = 249
MAX_OFFSET: Final = 2**63 - 1
MAX_PARTITION: Final = 2**31 - 1
OFFSET_DIGITS: Final = 20
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PARTITION_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_SET_ASIDE = re.compile(r"(?P<name>.+)\.(?P<unique>[0-9a-f]{32})-(?P<kind>delete|future|stray)", re.DOTALL)
_ASIDE_TO_A_BROKER = re.compile(r"(?P<name>\S+-\S+)\.[^.\s]+-(delete|future|stray)")
_JAVA_NUMBER = re.compile(r"[+-]?\d+")
_REMOTE_INDEX_CACHE: Final = "remote-log-index-cache"
_NAMED_BY_OFFSET: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".swap", ".cleaned")


class OffsetRange(NamedTuple):
    """The offsets [start, end), of a segment or between segments."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


class TopicPartition(NamedTuple):
    """A partition of a topic; sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class FileKind(StrEnum):
    """The kind of a segment's file; the value is its suffix without the dot."""

    LOG = "log"
    INDEX = "index"
    TIMEINDEX = "timeindex"
    TXNINDEX = "txnindex"
    SNAPSHOT = "snapshot"


class FileState(StrEnum):
    """The state of a file; the value is the suffix that follows the kind, empty for a live file."""

    LIVE = ""
    DELETED = "deleted"
    """Waits for ``file.delete.delay.ms`` to pass."""
    SWAP = "swap"
    """A cleaner's or splitter's result, about to replace what it was made from."""
    CLEANED = "cleaned"
    """A cleaner's or splitter's result in the making."""
    TMP = "tmp"
    """Half-written."""


class LogFile(NamedTuple):
    """A file name of a partition directory, taken apart. A ``NamedTuple`` because one is made per file."""

    kind: FileKind
    offset: int
    """Base offset of the segment; for a snapshot, the offset before which it holds the producers' state."""
    state: FileState


class DirKind(StrEnum):
    """What the broker uses a directory of a log dir for."""

    LIVE = "live"
    DELETE = "delete"
    """The partition of a deleted topic, which is removed in the background."""
    FUTURE = "future"
    """The copy that a move between log dirs is filling."""
    STRAY = "stray"
    """A partition that the controller no longer assigns to this broker."""
    METADATA = "metadata"
    """KRaft's metadata log."""
    NOT_A_LOG = "not-a-log"
    """No partition at all, such as ``remote-log-index-cache``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDirName:
    """The name of a partition directory, taken apart."""

    topic: str
    """The topic; of ``DELETE`` and ``STRAY`` possibly only its front: Kafka keeps such names within 255 bytes."""
    partition: int
    kind: DirKind
    unique: str | None
    """32 hex digits; None for a live directory."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and number as one value."""
        return TopicPartition(self.topic, self.partition)


_SUFFIXES: Final = {
    ".".join(filter(None, (kind, state))): (kind, state) for kind in FileKind for state in FileState
}  # fmt: skip


def segment_name(base_offset: int, suffix: str) -> str:
    """Return the file name for ``base_offset`` and ``suffix``, given with or without its leading dot.

    Raises:
        ValueError: no Kafka offset.

    """
    if not 0 <= base_offset <= MAX_OFFSET:
        raise ValueError(f"offset {base_offset} is not within 0 and {MAX_OFFSET}")
    return f"{base_offset:0{OFFSET_DIGITS}d}.{suffix.removeprefix('.')}"


def is_segment_name(name: str) -> bool:
    """Whether ``name`` is the name of a segment's log."""
    file = parse_file_name(name)
    return file is not None and file.kind is FileKind.LOG


def parse_file_name(name: str) -> LogFile | None:
    """Return the parts of the name of a segment's file; None for any other name."""
    known = _SUFFIXES.get(name[OFFSET_DIGITS + 1 :])
    digits = name[:OFFSET_DIGITS]
    if known is None or name[OFFSET_DIGITS] != "." or not digits.isdecimal():
        return None
    offset = int(digits)
    return LogFile(known[0], offset, known[1]) if offset <= MAX_OFFSET else None


def parse_partition_dir_name(name: str) -> PartitionDirName | None:
    """Return topic, partition and kind of a partition directory; None if ``name`` does not have that form.

    It accepts only names that Kafka writes: a legal topic, a partition number without sign or leading zero.
    """
    aside = _SET_ASIDE.fullmatch(name)
    topic, dash, number = (aside["name"] if aside else name).rpartition("-")
    if not dash or topic_name_problem(topic) is not None or not _PARTITION_NUMBER.fullmatch(number):
        return None
    if int(number) > MAX_PARTITION:
        return None
    return PartitionDirName(
        topic=topic,
        partition=int(number),
        kind=DirKind(aside["kind"]) if aside else DirKind.LIVE,
        unique=aside["unique"] if aside else None,
    )


def is_unknown_directory(name: str) -> bool:
    """Return whether a broker does not start with a directory of this name in its log dir, such as ``lost+found``.

    Source: ``UnifiedLog.parseTopicPartitionName``.
    """
    if name.endswith(("-delete", "-future", "-stray")):
        aside = _ASIDE_TO_A_BROKER.fullmatch(name)
        name = aside["name"] if aside else ""
    topic, _, number = name.rpartition("-")
    return name != _REMOTE_INDEX_CACHE and not (topic and _is_java_number(number, MAX_PARTITION))


def is_unknown_file(name: str) -> bool:
    """Return whether a broker does not start with a file of this name in a partition directory, such as ``copy.log``.

    Source: ``LogFileUtils.offsetFromFile``.
    """
    return name.endswith(_NAMED_BY_OFFSET) and not _is_java_number(name.partition(".")[0], MAX_OFFSET)


def _is_java_number(text: str, largest: int) -> bool:
    return _JAVA_NUMBER.fullmatch(text) is not None and -largest - 1 <= int(text) <= largest


def topic_name_problem(topic: str) -> str | None:
    """Return why Kafka would refuse ``topic`` as a name, or None where it would not.

    Source: ``Topic.validate``.
    """
    if not topic:
        return "a topic name is not empty"
    if topic in {".", ".."}:
        return "a topic name is neither '.' nor '..'"
    if len(topic) > MAX_TOPIC_NAME_LENGTH:
        return f"a topic name has at most {MAX_TOPIC_NAME_LENGTH} characters"
    if not _LEGAL_TOPIC.fullmatch(topic):
        return "a topic name consists of ASCII letters and digits, '.', '_' and '-'"
    return None


@dataclass(frozen=True, slots=True, order=True)
class StorePath:
    """A URL without a trailing slash; ``pathlib`` would collapse its two slashes."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> StorePath:
        return StorePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> StorePath:
        """The URL of the folder above."""
        return StorePath(self.url.rpartition("/")[0])
