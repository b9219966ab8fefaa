"""`resnap gc`: lists or deletes what killed runs have left in a store."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

import typer

from resnap.scheduler.cli.flags import S3
from resnap.scheduler.job.contract import Context, Request, Result, Unread, Verb, View
from resnap.scheduler.output.rendering import BYTES, Column, Row
from resnap.scheduler.settings.values import parse_duration
from resnap.storage.errors import UsageError
from resnap.storage.stores.probe import Condition, condition, replacement
from resnap.storage.stores.protocol import ObjectStore
from resnap.storage.stores.urls import open_store
from resnap.storage.words import agreeing, human_bytes, human_count, instant, some
from resnap.tiering.deleting import Garbage, collect, find_garbage
from resnap.tiering.shipping.lease import this_run

LEAST_AGE_MS: Final = 3_600_000
"""A younger object may be of a run in progress; no segment takes as long to ship."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """List what runs that were killed have left in a store, or delete it: what no manifest names, and nothing else."""

    url: Annotated[str, typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to.")]
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="DURATION", help="Only objects that are at least this old by the store's clock."
        ),
    ] = "7d"
    delete: Annotated[bool, typer.Option("--delete", help="Delete the objects; without it they are only listed.")] = (
        False
    )
    no_other_writers: Annotated[
        bool,
        typer.Option(
            "--no-other-writers",
            help="Promise that no run ships there now, nor was stopped in the middle of it; needed for stores without"
            " conditional writes. Tombstones of deleted segments then go, too.",
        ),
    ] = False

    @property
    def older_than_ms(self) -> int:
        """The least age; raises UsageError where it is none."""
        try:
            return parse_duration(self.older_than) // timedelta(milliseconds=1)
        except ValueError as error:
            raise UsageError(f"--older-than {self.older_than}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Result):
    """An object that no manifest names, or an upload in parts that was never completed; deleted if that was asked."""

    key: str
    size_bytes: int = 0
    written_ms: int | None = None
    """None of an upload that was deleted."""
    is_upload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Younger(Result):
    """How many more there are that are not old enough; the first result."""

    count: int


def run(request: Asked, context: Context) -> Iterator[Found | Younger | Unread]:
    """Yield what no manifest names and is old enough, deleting it if that is asked for.

    Raises:
        UsageError: a run at work could not be distinguished from one that was killed.
        StoreError: the store failed.

    """
    older_than_ms = request.older_than_ms
    store = open_store(request.url, context.settings.s3())
    is_guarded = request.delete and not request.no_other_writers
    if is_guarded and older_than_ms < LEAST_AGE_MS:
        raise UsageError("--delete of objects less than an hour old could delete those of a run in progress",
                         hint="give --older-than 1h or more, or --no-other-writers if there is none")  # fmt: skip
    garbage = find_garbage(store, older_than_ms=older_than_ms, is_alone=request.no_other_writers)
    if is_guarded and (garbage.objects or garbage.unfinished):
        _check_alone(store, replaces=bool(garbage.repairs))
    if not garbage.listed:
        context.warn(f"{request.url} holds no object at all; `resnap tier --to` may have been given another URL")
    ended = "cannot be undone any more" if request.delete else "could not be undone any more if that is deleted"
    yield Younger(
        count=garbage.younger,
        faults=garbage.unreadable,
        warnings=tuple(f"what `resnap repair` has replaced in the run {run} {ended}" for run in garbage.runs),
        partly_done=bool(garbage.unreadable),
    )
    if request.delete:
        yield from _deleted(request, context, store, garbage)
        return
    for info in garbage.objects:
        yield Found(key=info.key, size_bytes=info.size_bytes, written_ms=info.modified_ms)
    for upload in garbage.unfinished:
        yield Found(key=f"{upload.key} (unfinished)", written_ms=upload.begun_ms, is_upload=True)


def _check_alone(store: ObjectStore, *, replaces: bool) -> None:
    """Refuse to delete where a run in progress could not be distinguished from a killed one."""
    found, what = condition(store), "conditional writes"
    if replaces and found is Condition.KEPT:
        found, what = replacement(store), "conditions on the version that is replaced (If-Match)"
    if found is not Condition.KEPT:
        raise UsageError(
            f"{store.url}: {what} are {found}, so no lease protects against other runs",
            hint="make sure that no run ships there, give --no-other-writers, and an age above that of the longest run",
        )


def _deleted(request: Asked, context: Context, store: ObjectStore, garbage: Garbage) -> Iterator[Found | Unread]:
    written = {info.key: info.modified_ms for info in garbage.objects}
    now_ms, is_alone = context.clock.now_ms(), request.no_other_writers
    for one in collect(store, garbage, who=f"{this_run()} (gc)", now_ms=now_ms, is_alone=is_alone):
        if one.problem is not None:
            yield Unread(faults=(one.problem,))
        else:
            is_upload = one.key not in written
            yield Found(
                key=f"{one.key} (unfinished)" if is_upload else one.key,
                size_bytes=one.size_bytes,
                written_ms=written.get(one.key),
                is_upload=is_upload,
                partly_done=True,
            )


class GarbageView(View[Found | Younger | Unread]):
    """A row per object or upload."""

    name = "garbage"
    kind = "garbage"
    columns = (
        Column(key="key", title="KEY"),
        BYTES,
        Column(key="written", title="WRITTEN"),
    )

    def __init__(self, request: Asked) -> None:
        self._url, self._older_than = request.url, request.older_than
        self._totals = {"objects": 0, "bytes": 0, "uploads": 0, "deleted": request.delete, "younger": 0}

    def row(self, result: Found | Younger | Unread) -> Row | None:
        """Return the row of an object or an upload, and count it."""
        if isinstance(result, Younger):
            self._totals["younger"] = result.count
        if not isinstance(result, Found):
            return None
        self._totals["uploads" if result.is_upload else "objects"] += 1
        self._totals["bytes"] += result.size_bytes
        written = "-" if result.written_ms is None else instant(result.written_ms)
        return {"key": result.key, "bytes": result.size_bytes, "written": written}

    def totals(self) -> Row:
        """Return how much there is in all."""
        return self._totals

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and how to delete what is listed."""
        objects, uploads, younger = (self._totals[key] for key in ("objects", "uploads", "younger"))
        found = (
            f"{some(objects, 'object')} ({human_bytes(self._totals['bytes'])}) and"
            f" {some(uploads, 'unfinished upload')} that no manifest names"
        )
        if younger:
            found += f"; {human_count(younger)} more {agreeing(younger)} younger than {self._older_than}"
        if self._totals["deleted"]:
            yield f"Deleted {found}."
        else:
            again = f" To delete them: resnap gc {shlex.quote(self._url)} --older-than {self._older_than} --delete"
            yield f"{found}. Nothing was deleted.{again if objects or uploads else ''}"


VERB = Verb(takes=(S3,), request=Asked, run=run, view=lambda request, _: GarbageView(request), reads="other")
