"""Renders an answer in several forms: a table for people, a JSON document, JSON lines, or Kafka's dump format.

An answer is a head (facts about the whole), rows that may be very many and come one at a time, and a tail that is known
only after the rows. Rows are plain mappings under Kafka's own camelCase names; a ``Column`` defines how a table shows
one value. If the rows end with an error, everything before it is printed completely, in every form.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias

from resnap.storage.errors import ResnapError
from resnap.storage.words import human_bytes, plural

if TYPE_CHECKING:
    from resnap.scheduler.settings.values import Form

Row: TypeAlias = Mapping[str, object]
Rows: TypeAlias = Generator[None, "Row | None", None]
"""Prints the rows that are sent to it, until None is sent."""
SUMMARY: Final = "summary"
TABLE_BLOCK: Final = 1_000
"""Number of rows from which a table's column widths are chosen; a longer table keeps these widths."""


def plain_text(value: object) -> str:
    """Return a value as a table cell: empty for None, JSON's words for booleans, always one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, default=str)
    return " ".join(str(value).splitlines())


def or_dash(value: object) -> str:
    """Return a value as a table cell, which has a dash for nothing."""
    return plain_text(value) or "-"


def _fact_text(value: object) -> str:
    """Return a fact for people: what has parts in words, without the parts that say nothing."""
    if isinstance(value, Mapping):
        parts = {key: _fact_text(part) for key, part in value.items()}
        return ", ".join(f"{key}: {text}" for key, text in parts.items() if text)
    if isinstance(value, list | tuple):
        return "; ".join(filter(None, map(_fact_text, value)))
    return plain_text(value)


def harmless(text: str) -> str:
    """Return ``text`` with control and unprintable characters escaped, because names come from files."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


_LEAST_FOLDED: Final = 12
"""Narrower than that, a column is not folded."""
_COLOURS: Final = {
    **dict.fromkeys(("ready", "succeeded", "done", "ok"), "green"),
    **dict.fromkeys(("unknown", "partially_failed", "warning"), "yellow"),
    **dict.fromkeys(("blocked", "failed"), "red"),
    **dict.fromkeys(("running", "cancelling"), "blue"),
}
"""The colours of states on a terminal; rich shows none with NO_COLOR, and the words say it all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """How a table shows one value of each row."""

    key: str = ""
    """Where a key of a row is annotated with it, that one."""
    title: str | None = None
    """The key itself, unless given."""
    right: bool = False
    """Aligned right, as numbers are."""
    show: Callable[[Any], str] = plain_text
    """Takes the values of the key."""
    of: Callable[[Mapping[str, Any]], object] | None = None
    """Makes the value of the whole row, where no single key has it."""
    extra: bool = False
    """Left out on a terminal that is too narrow for the whole table."""
    is_state: bool = False
    """Its values are states, which have colours on a terminal."""

    @property
    def heading(self) -> str:
        """The heading of the column."""
        return self.key if self.title is None else self.title

    def cell(self, row: Row) -> str:
        """Return the text of this column in ``row``."""
        return harmless(self.show(row.get(self.key) if self.of is None else self.of(row)))


def partition_name(row: Row) -> str:
    """Return the partition of a row that has ``topic`` and ``partition``, named like its directory."""
    return str(row["topic"]) if row["partition"] is None else f"{row['topic']}-{row['partition']}"


def offset_span(row: Row) -> str:
    """Return the offsets of a row that has ``startOffset`` and ``endOffset``."""
    return "-" if row["endOffset"] is None else f"[{row['startOffset']}, {row['endOffset']})"


PARTITION: Final = Column(key="partition", title="PARTITION", of=partition_name)
BYTES: Final = Column(key="bytes", title="BYTES", right=True, show=human_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The output of a command, independent of its form."""

    head: Row = field(default_factory=dict)
    kind: str | None = None
    """What one row is called: its ``type`` in lines of JSON. None if there are no rows."""
    name: str | None = None
    """The key of the array in JSON, where that is not the plural of ``kind``."""
    rows: Iterable[Row] = ()
    columns: Sequence[Column] = ()
    tail: Callable[[], Row] = dict
    """Called when the rows have come to their end, or to an error: the ``summary`` of the rows."""
    closing: Callable[[], Iterable[str]] = tuple
    """Lines of prose that end a table instead of the tail: totals, and what to do next."""


class OutputClosedError(Exception):
    """The reader has closed our output; not an ``OSError``, which would look like one of the file being read."""


class OutputError(ResnapError):
    """The answer cannot be printed, as where standard output is a file on a full disk."""


class Output:
    """Prints answers to one stream in one form."""

    def __init__(self, form: Form, stream: TextIO | None = None, *, is_terminal: bool | None = None) -> None:
        self.form = form
        self._stream = stream or sys.stdout
        self._is_terminal = self._stream.isatty() if is_terminal is None else is_terminal

    def write(self, answer: Answer) -> None:
        """Print ``answer``; an error at the end of its rows is raised after everything before it was printed.

        Raises:
            OutputClosedError: the reader has closed it.
            OutputError: it cannot be written.

        """
        put = self.begin(answer)
        try:
            for row in answer.rows:
                put(row)
        finally:
            put(None)

    def begin(self, answer: Answer) -> Callable[[Row | None], None]:
        """Print the heading; return a function that prints each row, and the end when it is called with None.

        Raises:
            OutputClosedError, OutputError: as ``write`` does.

        """
        rows = {"table": self._table, "json": self._json, "ndjson": self._lines}[self.form](answer)

        def put(row: Row | None) -> None:
            with suppress(StopIteration):  # where the form has no place for rows
                rows.send(row)
            if row is None:
                self._flush()

        next(rows, None)
        return put

    def dump(self, lines: Iterable[str]) -> None:
        """Print the lines of Kafka's own dump tool."""
        try:
            for text in lines:
                self._print(text)
        finally:
            self._flush()

    def line(self, text: str = "") -> None:
        """Print a line for people; nothing in the other forms."""
        if self.form == "table":
            self._print(text)
            self._flush()

    def _print(self, text: str, end: str = "\n") -> None:
        with _own_errors():
            self._stream.write(text + end)

    def _flush(self) -> None:
        with _own_errors():
            self._stream.flush()

    def _table(self, answer: Answer) -> Rows:
        self._write_facts(answer.head)
        try:
            yield from self._table_rows(answer.columns)
        finally:
            closing = list(answer.closing())
            if not closing:
                self._write_facts(answer.tail())
            for text in closing:
                self.line(text)

    def _write_facts(self, facts: Row) -> None:
        width = max(map(len, facts), default=0)
        for key, value in facts.items():
            self.line(f"{key:<{width}}  {harmless(_fact_text(value))}".rstrip())

    def _table_rows(self, columns: Sequence[Column]) -> Rows:
        first: list[Row] = []
        while len(first) < TABLE_BLOCK and (row := (yield)) is not None:
            first.append(row)
        is_whole = len(first) < TABLE_BLOCK
        if not columns or not first or (self._is_terminal and is_whole and self._write_rich(columns, first)):
            return
        for text in align_rows(columns, first):
            self._print(text)
        widths = _widths(columns, first)
        while not is_whole and (row := (yield)) is not None:
            self._print(_line(columns, widths, [column.cell(row) for column in columns]))

    def _write_rich(self, columns: Sequence[Column], rows: Sequence[Row]) -> bool:
        """Print a table, without its extra columns if need be, unless it is wider than the terminal even so.

        Columns of text may be folded but for the first, which names the row, unless it is the only one.
        """
        # Most commands print no table to a terminal, and need not wait for rich.
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        console = Console(file=self._stream)
        cells = {column.heading: [column.cell(row) for row in rows] for column in columns}

        def table_of(shown: Sequence[Column]) -> Table:
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            for column in shown:
                table.add_column(
                    Text(column.heading),
                    justify="right" if column.right else "left",
                    overflow="fold",
                    no_wrap=column not in foldable,
                )
            for texts in zip(*(cells[column.heading] for column in shown), strict=True):
                colours = (
                    _COLOURS.get(text, "") if column.is_state else "" for column, text in zip(shown, texts, strict=True)
                )
                table.add_row(*map(Text, texts, colours))
            return table

        def width_of(table: Table) -> int:
            return console.measure(table, options=console.options.update(max_width=sys.maxsize)).maximum

        foldable = [column for column in columns[1:] or columns if not column.right]
        shown, left_out = list(columns), [column for column in columns if column.extra]
        table = table_of(shown)
        while (too_wide := width_of(table) - console.width) > 0 and left_out:
            shown.remove(left_out.pop())
            table = table_of(shown)
        spare = (max(map(len, (one.heading, *cells[one.heading]))) - _LEAST_FOLDED for one in shown if one in foldable)
        if too_wide > sum(max(0, width) for width in spare):
            return False
        with _own_errors():
            console.print(table)
        if len(shown) < len(columns):
            lacking = ", ".join(column.heading for column in columns if column not in shown)
            self.line(f"Left out, as the terminal is narrow: {lacking}.")
        return True

    def _json(self, answer: Answer) -> Rows:
        """Print one document without holding all rows in memory."""
        if answer.kind is None:
            self._print(_json(answer.head))
            return
        head = "".join(f"{_member(key, value)}, " for key, value in answer.head.items())
        self._print(f"{{{head}{json.dumps(answer.name or plural(answer.kind))}: [", end="")
        comma = ""
        try:
            while (row := (yield)) is not None:
                self._print(f"{comma}\n  {_json(row)}", end="")
                comma = ","
        finally:  # also where an interrupt comes while a row is printed, as to a reader that pauses
            tail = answer.tail()
            self._print(f"], {_member(SUMMARY, tail)}}}" if tail else "]}")

    def _lines(self, answer: Answer) -> Rows:
        try:
            while (row := (yield)) is not None:
                self._print(_json({"type": answer.kind, **row}))
        finally:
            self._print(_json({"type": SUMMARY, **answer.head, **answer.tail()}))


def align_rows(columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[str]:
    """Yield a heading and a line per row."""
    widths = _widths(columns, rows)
    yield _line(columns, widths, [column.heading for column in columns])
    for row in rows:
        yield _line(columns, widths, [column.cell(row) for column in columns])


def _widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [max(map(len, [column.heading, *map(column.cell, rows)])) for column in columns]


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]) -> str:
    parts = (
        text.rjust(width) if column.right else text.ljust(width)
        for text, width, column in zip(cells, widths, columns, strict=True)
    )
    return "  ".join(parts).rstrip()


@contextmanager
def _own_errors() -> Iterator[None]:
    """Distinguish errors of our output from those of the files that the rows are read from."""
    try:
        yield
    except BrokenPipeError as error:
        raise OutputClosedError from error
    except OSError as error:
        what = f"the answer cannot be printed: {error.strerror}"
        raise OutputError(what, hint="look at where standard output goes: a disk that is full, perhaps") from error


def _member(key: str, value: object) -> str:
    return f"{json.dumps(key)}: {_json(value)}"


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as in the name of a file that is not UTF-8
        return json.dumps(value, default=str)
    return text
