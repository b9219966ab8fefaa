"""Prints an inspected file line by line as Kafka's own dump tool does, for people and scripts that know that tool.

The tool's messages on standard error about entries that contradict the log are not repeated here.

Source: ``kafka.tools.DumpLogSegments`` of Kafka 3.9 and 4.1, without its ``--print-data-log``.
"""

from __future__ import annotations

from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from resnap.scheduler.verbs.inspect.file_kinds import Kind
from resnap.storage.errors import FormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resnap.scheduler.output.rendering import Answer, Row

_BATCH_KEYS: Final = ("baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId",
                      "producerEpoch", "partitionLeaderEpoch", "isTransactional", "isControl")  # fmt: skip
_BATCH_ENDS: Final = ("size", "magic", "compresscodec", "crc", "isvalid")
_PRODUCER_KEYS: Final = ("producerId", "producerEpoch", "coordinatorEpoch")
_LAST_BATCH_KEYS: Final = ("firstSequence", "lastSequence", "lastOffset", "offsetDelta")
_ABORTED_KEYS: Final = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
_NO_TIMESTAMP: Final = "NoTimestampType"
"""Timestamp of messages from before there were timestamps."""


def check_dump(kind: Kind, head: Row) -> None:
    """Raise UsageError if Kafka's tool prints nothing of a file of this kind, or cannot say the base offset."""
    dump = _DUMPS.get(kind)
    if dump is None:
        known = ", ".join(_DUMPS)
        raise UsageError(f"{head['file']}: Kafka's dump tool knows no {kind}", hint=f"it dumps {known}")
    if dump in (_offset_index, _time_index) and "baseOffset" not in head:
        raise UsageError(f"{head['file']}: its name does not say the base offset", hint="give it its own name")


def dump_lines(answer: Answer, kind: Kind) -> Iterator[str]:
    """Yield the lines of an inspected file; an error that its rows end in comes after the lines before it."""
    return chain([f"Dumping {answer.head['file']}"], _DUMPS[kind](answer))


def _segment(answer: Answer) -> Iterator[str]:
    name = PurePath(str(answer.head["file"])).name
    if name.endswith(".checkpoint"):
        offset, _, epoch = name.removesuffix(".checkpoint").partition("-")
        yield f"Snapshot end offset: {int(offset)}, epoch: {int(epoch)}"
    else:
        yield f"Log starting offset: {answer.head.get('baseOffset', 0)}"
    damage = None
    try:
        yield from map(_batch, answer.rows)
    except FormatError as error:
        damage = error
    trailing = answer.tail().get("bytesAfter", 0)
    if trailing and "limit" not in answer.head:
        yield f"Found {trailing} invalid bytes at the end of {name}"
    if damage is not None:
        raise damage


def _batch(row: Row) -> str:
    if "count" in row:
        horizon = _optional(row["deleteHorizonMs"])
        start = f"{_fields(row, _BATCH_KEYS)} deleteHorizonMs: {horizon}"
        type_of_time = row["timestampType"]
    else:
        start = f"offset: {row['lastOffset']}"
        type_of_time = row["timestampType"] if row["magic"] else _NO_TIMESTAMP
    return f"{start} position: {row['position']} {type_of_time}: {row['maxTimestamp']} {_fields(row, _BATCH_ENDS)}"


def _snapshot(answer: Answer) -> Iterator[str]:
    for row in answer.rows:
        producer = (
            f"{_fields(row, _PRODUCER_KEYS)} currentTxnFirstOffset: {_optional(row['currentTxnFirstOffset'])} "
            f"lastTimestamp: {row['lastTimestamp']} "
        )
        if row["lastOffset"] is not None:
            producer += f"{_fields(row, _LAST_BATCH_KEYS)} timestamp: {row['lastTimestamp']}"
        yield producer


def _offset_index(answer: Answer) -> Iterator[str]:
    if not answer.head["sizeBytes"]:
        yield f"{answer.head['file']} is empty."
    yield from _index(answer, ("offset", "position"))


def _time_index(answer: Answer) -> Iterator[str]:
    yield from _index(answer, ("timestamp", "offset"))


def _index(answer: Answer, keys: tuple[str, ...]) -> Iterator[str]:
    """Yield the entries; of an index that is all padding the tool takes the first zeros for one."""
    base = answer.head.get("baseOffset", 0)
    padding: dict[str, object] = {"timestamp": 0, "offset": base, "position": 0}
    rows = iter(answer.rows)
    first = next(rows, padding if answer.head["paddingBytes"] else None)
    if first is not None:
        yield _fields(first, keys)
    for row in rows:
        yield _fields(row, keys)


def _transaction_index(answer: Answer) -> Iterator[str]:
    for row in answer.rows:
        yield _fields(row, _ABORTED_KEYS)


_DUMPS: Final[Mapping[Kind, Callable[[Answer], Iterator[str]]]] = {
    Kind.SEGMENT: _segment,
    Kind.OFFSET_INDEX: _offset_index,
    Kind.TIME_INDEX: _time_index,
    Kind.TRANSACTION_INDEX: _transaction_index,
    Kind.SNAPSHOT: _snapshot,
}


def _fields(row: Row, keys: tuple[str, ...]) -> str:
    return " ".join(f"{key}: {_value(row[key])}" for key in keys)


def _value(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _optional(value: object) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
