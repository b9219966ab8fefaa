"""`resnap gc`: lists or deletes what killed runs, or brokers, have left in a store."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Annotated, Final

import typer

from resnap.scheduler.cli.flags import CLUSTER, S3
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Result, Unread, Verb, View
from resnap.scheduler.job.wiring import cluster_of
from resnap.scheduler.output.answer import connection_of
from resnap.scheduler.output.rendering import BYTES, Column, Row
from resnap.scheduler.settings.settings import Settings
from resnap.scheduler.settings.values import parse_duration
from resnap.storage.errors import UsageError
from resnap.storage.stores.probe import Condition, condition, deletion, replacement
from resnap.storage.stores.protocol import ObjectStore
from resnap.storage.stores.urls import open_store
from resnap.storage.words import agreeing, human_bytes, human_count, instant, some
from resnap.tiering.brokers_garbage import Death, ReadMetadata, collect_brokers_garbage, find_brokers_garbage
from resnap.tiering.garbage import Collected, collect, find_garbage
from resnap.tiering.remote_log.stored import metadata_of

LEAST_AGE_MS: Final = 3_600_000
"""A younger object may be of a run in progress; no segment takes as long to ship."""


class GcRequest(Request):
    """List what runs that were killed have left in a store, or delete it: what no manifest names, and nothing else.

    With --brokers, what brokers have left there: the objects of segments whose copy or deletion never ended, or that
    were deleted, by the metadata topic of the cluster that --bootstrap-server names. What these do not name stays.
    """

    url: Annotated[
        str, typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to, or brokers tier to.")
    ]
    brokers: Annotated[
        bool, typer.Option(help="What brokers have left, and not what runs have; needs the running cluster.")
    ] = False
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="Only objects that are at least this old by the store's clock.")
    ] = "7d"
    delete: Annotated[bool, typer.Option(help="Delete the objects; without it they are only listed.")] = False
    no_other_writers: Annotated[
        bool,
        typer.Option(
            help="Promise that no run ships there now, nor was stopped in the middle of it; needed for stores without"
            " conditional writes. Tombstones of deleted segments then go, too."
        ),
    ] = False

    @property
    def older_than_ms(self) -> int:
        """The least age; raises UsageError where it is none."""
        try:
            return parse_duration(self.older_than) // timedelta(milliseconds=1)
        except ValueError as error:
            raise UsageError(f"--older-than {self.older_than}: {error}") from error


class Leftover(Result):
    """An object that no manifest names, or an upload in parts that was never completed; deleted if that was asked."""

    key: str
    size_bytes: int = 0
    written_ms: int | None = None
    """None of an upload that was deleted."""
    is_upload: bool = False
    death: Death | None = None
    """Why brokers do not read its segment again, if they have left it."""


def run(request: GcRequest, context: Context, report: Report) -> None:
    """Report how much garbage is too young, then the garbage of runs or brokers, deleted if that is asked for.

    Raises:
        UsageError: a run at work could not be distinguished from one that was killed.
        ConfigurationError: brokers' garbage is asked for, and no cluster is named.
        StoreError, ClusterError: either failed.

    """
    store = open_store(request.url, context.settings.s3())
    if request.delete and not request.no_other_writers and request.older_than_ms < LEAST_AGE_MS:
        raise UsageError("--delete of objects less than an hour old could delete those of a run in progress",
                         hint="give --older-than 1h or more, or --no-other-writers if there is none")  # fmt: skip
    if not request.brokers:
        _of_runs(request, context, store, report)
        return
    with cluster_of(context.settings) as cluster:
        _of_brokers(request, context, store, partial(metadata_of, cluster), report)


def _of_runs(request: GcRequest, context: Context, store: ObjectStore, report: Report) -> None:
    is_alone = request.no_other_writers
    garbage = find_garbage(store, older_than_ms=request.older_than_ms, is_alone=is_alone)
    if request.delete and not is_alone and (garbage.objects or garbage.unfinished):
        _check_alone(store, replaces=bool(garbage.repairs))
    if not garbage.listed:
        context.warn(f"{request.url} holds no object at all; `resnap tier --to` may have been given another URL")
    ended = "cannot be undone any more" if request.delete else "could not be undone any more if that is deleted"
    warnings = tuple(f"what `resnap repair` has replaced in the run {run} {ended}" for run in garbage.runs)
    faults = garbage.unreadable
    report(Reported(what=garbage.younger, faults=faults, warnings=warnings, partly_done=bool(faults)))
    found = [
        *(Leftover(key=one.key, size_bytes=one.size_bytes, written_ms=one.modified_ms) for one in garbage.objects),
        *(Leftover(key=one.key, written_ms=one.begun_ms, is_upload=True) for one in garbage.unfinished),
    ]
    for result in _outcomes(found, request, context, store, partial(collect, store, garbage, is_alone=is_alone)):
        report(result)


def _of_brokers(request: GcRequest, context: Context, store: ObjectStore, read: ReadMetadata, report: Report) -> None:
    garbage = find_brokers_garbage(store, read, older_than_ms=request.older_than_ms)
    if request.delete and not request.no_other_writers and garbage.segments:
        _check_alone(store, replaces=False)
    if not garbage.listed:
        context.warn(f"{request.url} holds no object that brokers read; they may tier to another URL")
    report(Reported(what=garbage.younger))
    found = [
        Leftover(key=info.key, size_bytes=info.size_bytes, written_ms=info.modified_ms, death=segment.death)
        for segment in garbage.segments
        for info in segment.objects
    ]
    for result in _outcomes(found, request, context, store, partial(collect_brokers_garbage, store, garbage, read)):
        report(result)


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


def _outcomes(
    found: Iterable[Leftover],
    request: GcRequest,
    context: Context,
    store: ObjectStore,
    collect: Callable[..., Iterable[Collected]],
) -> Iterator[Leftover | Unread]:
    """Yield ``found``; where it is to be deleted, what ``collect`` deletes of it, and what it skips, as it comes."""
    if not request.delete:
        yield from found
        return
    objects = {garbage.key: garbage for garbage in found if not garbage.is_upload}
    is_conditional = bool(objects) and deletion(store) is Condition.KEPT
    for collected in collect(now_ms=context.clock.now_ms(), is_conditional=is_conditional):
        if collected.problem is not None:
            yield Unread(faults=(collected.problem,))
            continue
        garbage = objects.get(collected.key) or Leftover(key=collected.key, is_upload=True)
        yield replace(garbage, size_bytes=collected.size_bytes, partly_done=True)


class GarbageView(View[Leftover | Reported[int] | Unread]):
    """A row per object or upload, which says why it is garbage if brokers have left it."""

    name = "garbage"
    kind = "garbage"

    def __init__(self, request: GcRequest, settings: Settings) -> None:
        self.columns = (
            Column(key="key", title="KEY"),
            BYTES,
            Column(key="written", title="WRITTEN"),
            *((Column(key="why", title="WHY"),) if request.brokers else ()),
        )
        self._request, self._settings = request, settings
        self._deaths: Counter[Death] = Counter()
        self._totals = {"objects": 0, "bytes": 0, "uploads": 0, "deleted": request.delete, "younger": 0}

    def row(self, result: Leftover | Reported[int] | Unread) -> Row | None:
        """Return the row of an object or an upload, and count it."""
        if isinstance(result, Reported):
            self._totals["younger"] = result.what
        if not isinstance(result, Leftover):
            return None
        self._totals["uploads" if result.is_upload else "objects"] += 1
        self._totals["bytes"] += result.size_bytes
        written = "-" if result.written_ms is None else instant(result.written_ms)
        key = f"{result.key} (unfinished)" if result.is_upload else result.key
        row = {"key": key, "bytes": result.size_bytes, "written": written}
        if result.death is None:
            return row
        self._deaths[result.death] += 1
        return row | {"why": result.death.value}

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and how to delete what is listed."""
        request = self._request
        objects, uploads, younger = (self._totals[key] for key in ("objects", "uploads", "younger"))
        found = f"{some(objects, 'object')} ({human_bytes(self._totals['bytes'])})"
        if request.brokers:
            deaths = ", ".join(f"{human_count(count)}: {death.value}" for death, count in self._deaths.items())
            found += f" of segments that brokers do not read again{f' ({deaths})' if deaths else ''}"
        else:
            found += f" and {some(uploads, 'unfinished upload')} that no manifest names"
        if younger:
            found += f"; {human_count(younger)} more {agreeing(younger)} younger than {request.older_than}"
        if request.delete:
            yield f"Deleted {found}."
            yield f"Next: `resnap verify {shlex.quote(request.url)}` reads back what is left."
        elif objects or uploads:
            brokers = ("--brokers", *connection_of(self._settings)) if request.brokers else ()
            alone = ("--no-other-writers",) if request.no_other_writers else ()
            is_too_young = request.older_than_ms < LEAST_AGE_MS and not alone
            age, what = ("1h", "those that are an hour old") if is_too_young else (request.older_than, "them")
            again = ("resnap", "gc", request.url, *brokers, "--older-than", age, *alone, "--delete")
            yield f"{found}. Nothing was deleted."
            yield f"Next: to delete {what}: {shlex.join(again)}"
        else:
            yield f"{found}. Nothing was deleted."
            yield f"Next: nothing is left to do{', until what is younger is old enough' if younger else ''}."


VERB = Verb(
    takes=(CLUSTER, S3),
    request=GcRequest,
    run=run,
    view=lambda request, context: GarbageView(request, context.settings),
)
