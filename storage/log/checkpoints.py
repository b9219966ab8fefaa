"""Small files beside the logs: checkpoints of offsets and leader epochs, and ``quorum-state``.

Checkpoint files: Kafka's small text tables of offsets, per partition or per leader epoch.

A version line (``0``), a line with the number of entries, then one entry a line. Kafka replaces such a file as a whole,
so a wrong count or a line of another form means that Kafka did not write it, and none of it can be trusted. An empty
file, or one that ends after its version, holds no entries: brokers leave such files behind.

Source: ``CheckpointFile``, ``OffsetCheckpointFile``, ``LeaderEpochCheckpointFile`` and ``LeaderEpochFileCache``.

``quorum-state``: what a node of KRaft keeps of its quorum, as JSON beside the metadata log.

Version 1, of quorums whose voters can change (KIP-853), names no voters: these are in the metadata log.

Source: ``FileQuorumStateStore``, ``QuorumStateData.json``.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.json_values import typed
from resnap.storage.log.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

VERSION: Final = 0

_INT_BITS: Final = 32
_LONG_BITS: Final = 64
_SHOWN_BYTES: Final = 80
_JAVA_INTEGER = re.compile(rb"[+-]?[0-9]+")


class LeaderEpoch(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


class _Line(NamedTuple):
    """An entry's line: its byte position in the file, and its bytes without the line end."""

    position: int
    text: bytes


def read_offset_checkpoint(text: bytes) -> dict[TopicPartition, int]:
    """Return the offset of each partition in a ``*-offset-checkpoint`` file, in file order; the last duplicate wins.

    Raises:
        FormatError: what Kafka's reader refuses; ``position`` is the first byte of the offending line.

    """
    return dict(_offset_entry(line) for line in _entry_lines(text))


def write_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the file that holds ``offsets``, in their order."""
    return _write(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def read_leader_epochs(text: bytes) -> tuple[LeaderEpoch, ...]:
    """Return the entries of a ``leader-epoch-checkpoint`` as a broker holds them after loading, ascending in both.

    Old brokers could write entries out of order; a later entry then replaces those before it that contradict it.

    Raises:
        FormatError: what Kafka's reader refuses; ``position`` is the first byte of the offending line.

    """
    epochs: list[LeaderEpoch] = []
    for line in _entry_lines(text):
        _assign(epochs, _epoch_entry(line))
    return tuple(epochs)


def write_leader_epochs(epochs: Sequence[LeaderEpoch]) -> bytes:
    """Return the file that holds ``epochs``, in their order."""
    return _write(f"{epoch} {start_offset}" for epoch, start_offset in epochs)


def leader_epochs_up_to(epochs: Iterable[LeaderEpoch], end_offset: int) -> tuple[LeaderEpoch, ...]:
    """Return the entries that start before ``end_offset``, with all history: what is shipped beside a segment.

    Source: ``LogSegmentData.leaderEpochIndex`` as ``RemoteLogManager`` makes it.
    """
    return tuple(entry for entry in epochs if entry.start_offset < end_offset)


def epochs_in(epochs: Sequence[LeaderEpoch], start: int, end: int) -> tuple[LeaderEpoch, ...]:
    """Return the leader epochs of the offsets [``start``, ``end``), as of a segment, the first clamped to ``start``.

    Unclamped starts made a broker fetch the wrong segment. The result is empty where no epoch is known.

    Source: ``RemoteLogSegmentMetadata.segmentLeaderEpochs`` as ``RemoteLogManager`` makes it.
    """
    first = max(bisect_right(epochs, start, key=attrgetter("start_offset")) - 1, 0)
    inside = (entry for entry in epochs[first:] if entry.start_offset < end)
    return tuple(entry._replace(start_offset=max(entry.start_offset, start)) for entry in inside)


def _assign(epochs: list[LeaderEpoch], entry: LeaderEpoch) -> None:
    """Append ``entry``, and drop the entries it contradicts. Source: ``LeaderEpochFileCache.assign``."""
    if epochs and entry.epoch == epochs[-1].epoch and entry.start_offset >= epochs[-1].start_offset:
        return
    while epochs and (epochs[-1].epoch >= entry.epoch or epochs[-1].start_offset >= entry.start_offset):
        epochs.pop()
    epochs.append(entry)


def _offset_entry(line: _Line) -> tuple[TopicPartition, int]:
    topic, partition, offset = _fields(line, ("topic", "partition", "offset"))
    try:
        name = topic.decode()
    except UnicodeDecodeError as error:
        raise FormatError("checkpoint entry", position=line.position, expected="a topic in UTF-8",
                          found=_printable(topic)) from error  # fmt: skip
    return TopicPartition(name, _integer(line, partition, _INT_BITS)), _integer(line, offset, _LONG_BITS)


def _epoch_entry(line: _Line) -> LeaderEpoch:
    epoch, start_offset = _fields(line, ("epoch", "start offset"))
    entry = LeaderEpoch(_integer(line, epoch, _INT_BITS), _integer(line, start_offset, _LONG_BITS))
    if entry.epoch < 0 or entry.start_offset < 0:
        raise FormatError("checkpoint entry", position=line.position, expected="an epoch and a start offset >= 0",
                          found=_printable(line.text))  # fmt: skip
    return entry


def _fields(line: _Line, names: tuple[str, ...]) -> list[bytes]:
    """Split an entry at white space; unlike trailing white space, Java's ``split`` does not forgive leading one."""
    fields = line.text.split()
    if len(fields) != len(names) or line.text[:1].isspace():
        raise FormatError("checkpoint entry", position=line.position, expected=", ".join(names),
                          found=_printable(line.text))  # fmt: skip
    return fields


def _entry_lines(text: bytes) -> list[_Line]:
    """Check version and count; return the lines that hold entries."""
    lines = list(_lines(text))
    if not lines:
        return []
    version = _integer(lines[0], lines[0].text, _INT_BITS)
    if version != VERSION:
        raise FormatError("checkpoint version", position=0, expected=VERSION, found=version)
    if len(lines) == 1:
        return []
    count, entries = _integer(lines[1], lines[1].text, _INT_BITS), lines[2:]
    if count < 0 and not entries:
        raise FormatError("checkpoint entry count", position=lines[1].position, expected="0 or more", found=count)
    if count > len(entries):
        raise FormatError("checkpoint entry count", position=lines[1].position, expected=f"{count} entries",
                          found=len(entries))  # fmt: skip
    if count < len(entries):
        surplus = entries[max(count, 0)]
        raise FormatError("checkpoint line after the last entry", position=surplus.position,
                          expected=f"{count} entries", found=_printable(surplus.text))  # fmt: skip
    return entries


def _lines(text: bytes) -> Iterator[_Line]:
    position = 0
    # Bytes, unlike str, are cut where Java's readLine cuts: at \n, \r and \r\n only.
    for line in text.splitlines(keepends=True):
        yield _Line(position, line.rstrip(b"\r\n"))
        position += len(line)


def _integer(line: _Line, digits: bytes, bits: int) -> int:
    """Read a signed number of ``bits`` bits as Java's ``parseInt`` and ``parseLong`` do."""
    # The length bound keeps int() off digit strings of a megabyte, which it refuses in its own way.
    value = int(digits) if len(digits) <= _LONG_BITS and _JAVA_INTEGER.fullmatch(digits) else None
    if value is None or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise FormatError("checkpoint number", position=line.position, expected=f"an integer of {bits} bits",
                          found=_printable(digits))  # fmt: skip
    return value


def _printable(text: bytes) -> str:
    """Make bytes of a text file fit for a message: whatever they are, on one short line."""
    return ascii(text[:_SHOWN_BYTES].decode(errors="backslashreplace"))


def _write(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(lines)), *lines)).encode()


def read_quorum_state(data: bytes) -> tuple[dict[str, object], tuple[int, ...]]:
    """Return the content of a ``quorum-state``: all fields but the voters, under Kafka's names, and the voters.

    Raises:
        FormatError: it is not of that form.

    """
    try:
        fields = typed(dict, json.loads(data))
        typed(int, fields["leaderEpoch"])
        voters = tuple(typed(int, voter["voterId"]) for voter in fields.pop("currentVoters", None) or ())
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        expected = "JSON with leaderEpoch and currentVoters"
        raise FormatError("quorum state", position=0, expected=expected, found=f"{data[:80]!r} ({error})") from error
    return fields, voters
