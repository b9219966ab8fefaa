"""`resnap inspect`: any one file of a log dir or a store, recognised by its name, else by its content."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Annotated

import typer

from resnap.scheduler.cli.flags import CHECKING, DUMPED, STORE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.jobs.inspect.dump_log import dump_lines
from resnap.scheduler.jobs.inspect.file_kinds import Kind, kind_by_content, kind_by_name
from resnap.scheduler.jobs.inspect.files import INSPECTORS
from resnap.scheduler.jobs.inspect.opened_file import opened_file
from resnap.scheduler.output.rendering import Answer
from resnap.storage.errors import UsageError, in_file
from resnap.storage.layouts.aiven.encryption import NO_KEYS, KeyRing
from resnap.storage.sources.files import Sources
from resnap.storage.stores.s3_settings import S3Settings


@contextmanager
def inspected(
    file: str,
    *,
    s3: S3Settings,
    keys: KeyRing = NO_KEYS,
    kind: Kind | None = None,
    limit: int | None = None,
    verify_crc: bool = False,
    shows_validity: bool = False,
) -> Iterator[Answer]:
    """Open ``file``, a path or the URL of an object, and give what there is to say about it, at most ``limit`` rows.

    With ``shows_validity`` rows of a segment say ``isvalid``, and a wrong checksum is no damage.

    Raises:
        UsageError: no such file, or it is not known what it is.
        FormatError: it is damaged; raised here, or by the rows of the answer when they come to the damage.
        LogDirError: it cannot be read.
        StoreError: likewise, of a store.

    """
    with opened_file(file, Sources(s3=s3, keys=keys), verify_crc=verify_crc) as opened, in_file(file):
        chosen = kind or kind_by_name(opened.name) or kind_by_content(opened.reader)
        if chosen is None:
            known = ", ".join(Kind)
            raise UsageError(f"{file}: neither name nor content tells what this is", hint=f"say it: --kind {known}")
        answer = INSPECTORS[chosen](replace(opened, shows_validity=shows_validity))
        head = {"file": file, "kind": str(chosen), "sizeBytes": opened.reader.size_bytes, **answer.head}
        if limit is not None:
            head["limit"] = limit
        shown = replace(answer, head=head, rows=islice(answer.rows, limit))
        yield replace(shown, dump=lambda: dump_lines(shown, chosen))


@with_settings(CHECKING, STORE, DUMPED)
def inspect_file(
    context: Invocation,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, or the URL of an object.")],
    kind: Annotated[
        Kind | None,
        typer.Option("--kind", help="The kind of file; by default it follows from the name or the content."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Show at most N rows.", show_default=False)
    ] = None,
) -> None:
    """Show any file of a log dir or a store: snapshot, segment, index, checkpoint, manifest."""
    with inspected(
        file,
        s3=context.settings.s3(),
        keys=context.settings.keys(),
        kind=kind,
        limit=limit,
        verify_crc=context.settings.verify_crc,
        shows_validity=context.output.form == "dump-log",
    ) as answer:
        context.answer(answer)
