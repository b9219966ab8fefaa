"""`resnap inspect`: shows any single file of a log dir or a store, recognized by its name, else by its content."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from resnap.scheduler.cli.flags import CHECKING, DUMPED, STORE
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Result, Verb, View
from resnap.scheduler.job.wiring import sources_of
from resnap.scheduler.verbs.inspect.files import INSPECTORS
from resnap.scheduler.verbs.inspect.opened_file import Kind, kind_by_content, kind_by_name, opened_file
from resnap.storage.errors import FormatError, UsageError, in_file
from resnap.storage.words import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from resnap.scheduler.output.rendering import Answer, Row
    from resnap.scheduler.verbs.inspect.opened_file import OpenedFile


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


class InspectRequest(Request):
    """Show any file of a log dir or a store: snapshot, segment, index, checkpoint, manifest."""

    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, or the URL of an object.")]
    kind: Annotated[
        Kind | None, typer.Option(help="The kind of file; by default it follows from the name or the content.")
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Show at most N rows.", show_default=False)] = (
        None
    )


class Opened(Result):
    """What the file is: the first result. The rows of ``answer`` follow, a result each, unless they are dumped."""

    kind: Kind
    answer: Answer


def run(request: InspectRequest, context: Context, report: Report) -> None:
    """Report what the file is, then its entries; of a damaged file all those before the damage.

    Raises:
        UsageError: no such file, it is not known what it is, or Kafka's tool shows no such file.
        FormatError: it is damaged.
        LogDirError: it cannot be read.
        StoreError: likewise, of a store.

    """
    file, settings = request.file, context.settings
    # As Kafka's own tool does: with ``isvalid``, and a wrong checksum is no damage.
    as_dump = settings.output == "dump-log"
    sources = sources_of(settings)
    with (
        opened_file(file, sources, verify_crc=settings.verify_crc) as opened,
        in_file(file),
        _is_of_kind(request, opened),
    ):
        kind = request.kind or kind_by_name(opened.name) or kind_by_content(opened.reader)
        if kind is None:
            known = ", ".join(Kind)
            raise UsageError(f"{file}: neither name nor content says what this is", hint=f"say it: --kind {known}")
        answer = INSPECTORS[kind](replace(opened, shows_validity=as_dump))
        head = {"file": file, "kind": str(kind), "sizeBytes": opened.reader.size_bytes, **answer.head}
        if request.limit is not None:
            head["limit"] = request.limit
        rows = islice(answer.rows, request.limit)
        if as_dump:
            check_dump(kind, head)
        report(Opened(kind=kind, answer=replace(answer, head=head, rows=rows)))
        if not as_dump:
            for row in rows:
                report(Reported(what=row))


@contextmanager
def _is_of_kind(request: InspectRequest, opened: OpenedFile) -> Iterator[None]:
    """Raise as a UsageError that a file is damaged if it is one of another kind than was asked for."""
    try:
        yield
    except FormatError as error:
        known = kind_by_name(opened.name) or kind_by_content(opened.reader)
        asked = Kind.SEGMENT if request.kind is Kind.TRANSACTION_STATE else request.kind
        if asked is None or known in {None, asked}:
            raise
        hint = f"without --kind it is shown as what it is: {known}"
        raise UsageError(f"{request.file} is no {request.kind}: {error}", hint=hint) from error


class InspectView(View["Opened | Reported[Row]"]):
    """Facts about the file, and a row per entry, whose columns follow from what the file is."""

    _opened: Opened

    def rows(self, result: Opened | Reported[Row]) -> Iterable[Row]:
        """Return the row of an entry."""
        if isinstance(result, Reported):
            return (result.what,)
        self._opened, answer = result, result.answer
        self.name, self.kind, self.columns = answer.name, answer.kind, answer.columns
        return ()

    def head(self) -> Row:
        """Return facts about the file."""
        return self._opened.answer.head

    def table_head(self) -> Row:
        """Return the same, with the size in words."""
        size: Any = self._opened.answer.head["sizeBytes"]
        words = {"sizeBytes": ("size", human_bytes(size))}
        return dict(words.get(key, (key, value)) for key, value in self.head().items())

    def totals(self) -> Row:
        """Return what the entries came to; of a file without entries, the facts about it."""
        return self._opened.answer.tail() if self.kind else self.head()

    def dump(self, result: Opened | Reported[Row]) -> Iterator[str]:
        """Yield the lines that Kafka's own dump tool prints."""
        if isinstance(result, Opened):
            yield f"Dumping {result.answer.head['file']}"
            yield from _DUMPS[result.kind](result.answer)


VERB = Verb(takes=(CHECKING, STORE, DUMPED), request=InspectRequest, run=run, view=lambda *_: InspectView())
