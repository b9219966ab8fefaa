"""`resnap inspect`: shows any single file of a log dir or a store, recognized by its name, else by its content."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated

import typer

from resnap.scheduler.cli.flags import CHECKING, DUMPED, STORE
from resnap.scheduler.job.contract import Context, Request, Result, Verb, View
from resnap.scheduler.output.rendering import Answer, Row
from resnap.scheduler.verbs.inspect.dump_log import check_dump, dump_lines
from resnap.scheduler.verbs.inspect.file_kinds import Kind, kind_by_content, kind_by_name
from resnap.scheduler.verbs.inspect.files import INSPECTORS
from resnap.scheduler.verbs.inspect.opened_file import opened_file
from resnap.storage.errors import UsageError, in_file
from resnap.storage.sources.files import Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """Show any file of a log dir or a store: snapshot, segment, index, checkpoint, manifest."""

    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, or the URL of an object.")]
    kind: Annotated[
        Kind | None,
        typer.Option("--kind", help="The kind of file; by default it follows from the name or the content."),
    ] = None
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Show at most N rows.", show_default=False)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Result):
    """What the file is: the first result. The rows of ``answer`` follow, a result each."""

    kind: Kind
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Result):
    """One entry of the file."""

    row: Row


def run(request: Asked, context: Context) -> Iterator[Opened | Entry]:
    """Yield what the file is, then its entries; of a damaged file all those before the damage.

    Raises:
        UsageError: no such file, it is not known what it is, or Kafka's tool shows no such file.
        FormatError: it is damaged.
        LogDirError: it cannot be read.
        StoreError: likewise, of a store.

    """
    file, settings = request.file, context.settings
    # As Kafka's own tool does: with ``isvalid``, and a wrong checksum is no damage.
    as_dump = settings.output == "dump-log"
    sources = Sources(s3=settings.s3(), keys=settings.keys())
    with opened_file(file, sources, verify_crc=settings.verify_crc) as opened, in_file(file):
        kind = request.kind or kind_by_name(opened.name) or kind_by_content(opened.reader)
        if kind is None:
            known = ", ".join(Kind)
            raise UsageError(f"{file}: neither name nor content says what this is", hint=f"say it: --kind {known}")
        answer = INSPECTORS[kind](replace(opened, shows_validity=as_dump))
        head = {"file": file, "kind": str(kind), "sizeBytes": opened.reader.size_bytes, **answer.head}
        if request.limit is not None:
            head["limit"] = request.limit
        if as_dump:
            check_dump(kind, head)
        yield Opened(kind=kind, answer=replace(answer, head=head))
        for row in islice(answer.rows, request.limit):
            yield Entry(row=row)


class InspectView(View[Opened | Entry]):
    """Facts about the file, and a row per entry, whose columns follow from what the file is."""

    _opened: Opened

    def rows(self, result: Opened | Entry) -> Iterable[Row]:
        """Return the row of an entry."""
        if isinstance(result, Entry):
            return (result.row,)
        self._opened, answer = result, result.answer
        self.name, self.kind, self.columns = answer.name, answer.kind, answer.columns
        return ()

    def head(self) -> Row:
        """Return facts about the file."""
        return self._opened.answer.head

    def totals(self) -> Row:
        """Return what the entries came to; of a file without entries, the facts about it."""
        return self._opened.answer.tail() if self.name else self.head()

    def dump(self, rows: Iterable[Row]) -> Iterator[str]:
        """Return the lines that Kafka's own dump tool prints."""
        return dump_lines(replace(self._opened.answer, rows=rows), self._opened.kind)


VERB = Verb(takes=(CHECKING, STORE, DUMPED), request=Asked, run=run, view=lambda *_: InspectView(), reads="other")
