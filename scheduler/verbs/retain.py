"""`resnap retain`: applies retention to shipped segments."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Final

import typer

from resnap.replay.watching import Progress
from resnap.scheduler.cli.flags import S3, TOPIC
from resnap.scheduler.job.contract import Context, Reported, Request, Unread, Verb
from resnap.scheduler.job.reports import Identity, SummedView
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import BYTES, Column, Row, or_dash
from resnap.scheduler.settings.values import parse_duration, parse_size
from resnap.storage.errors import (
    FormatError,
    LockedError,
    ObjectNotFoundError,
    ResnapError,
    StoreError,
    UsageError,
    VerificationError,
    in_file,
)
from resnap.storage.layouts.protocol import Listing
from resnap.storage.layouts.segments import StoredManifest
from resnap.storage.sources.files import Sources
from resnap.storage.sources.log_dirs import TieredPart, tiered_part
from resnap.storage.sources.registry import SHIPPED, brokers_layout
from resnap.storage.stores.protocol import ObjectStore
from resnap.storage.words import human_bytes, human_count, some
from resnap.tiering.deleting import Limits, PartitionRetention, delete_beyond, retention_of
from resnap.tiering.selection import Scope, nothing_in
from resnap.tiering.shipping.lease import lease_name, lease_on
from resnap.tiering.shipping.notes import RetentionNote, retained_key, retained_topics, write_retained

_HIDDEN: Final = (
    "run again; if the object was not shipped just now, the store's listings are incomplete, and a deletion based on "
    "them would leave a gap: `resnap doctor URL` tests the store"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainRequest(Request):
    """Apply a retention to what was shipped, oldest segments first, as Kafka does; a dry run unless --delete is given.

    Give no less than the topic's own retention: a segment that a broker still has would be shipped again.
    """

    url: Annotated[
        str, typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to, or a part of it.")
    ]
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention", metavar="DURATION", help="Keep segments that have a record younger than this, such as 90d."
        ),
    ] = None
    retention_bytes: Annotated[
        str | None,
        typer.Option("--retention-bytes", metavar="SIZE", help="Keep at least this much of each partition's log."),
    ] = None
    delete: Annotated[bool, typer.Option("--delete", help="Delete; without it nothing is changed.")] = False


def run(request: RetainRequest, context: Context) -> Iterator[Reported[PartitionRetention] | Unread]:
    """Apply the limits to each partition.

    Nothing is deleted of a partition with a manifest that cannot be read, or at which another run is at work; nor of
    any from where the store fails on: an uploader that finds no manifest writes the very objects that are being
    deleted.

    Raises:
        UsageError: nothing was shipped there, or it is for brokers to delete.
        StoreError: the store failed before anything was deleted.

    """
    limits = _limits(request.retention, request.retention_bytes)
    part = tiered_part(request.url, Sources(s3=context.settings.s3()))
    store = part.store
    faults: list[ResnapError] = []
    now_ms = context.clock.now_ms()
    found = retention_of(_sound_manifests(part, request.scope, faults), limits, now_ms)
    if not request.delete:
        yield from (Reported(what=partition) for partition in found)
    else:
        with context.progress("retain") as (progress,):
            yield from _delete_all(store, found, now_ms, faults, progress)
    yield Unread(faults=tuple(faults))


def _delete_all(
    store: ObjectStore,
    found: Sequence[PartitionRetention],
    now_ms: int,
    faults: list[ResnapError],
    progress: Progress,
) -> Iterator[Reported[PartitionRetention]]:
    progress.expect(sum(len(partition.beyond) for partition in found), sum(partition.size_bytes for partition in found))
    has_failed = False
    for partition in found:
        gone: list[StoredManifest] = []
        if partition.beyond and not has_failed:
            try:
                _delete(store, partition, now_ms, gone, progress)
            except (LockedError, StoreError) as error:
                faults.append(error)
                has_failed = isinstance(error, StoreError)
        left = replace(partition, beyond=tuple(gone), kept=partition.kept + len(partition.beyond) - len(gone))
        yield Reported(what=left, partly_done=bool(gone))


def _delete(
    store: ObjectStore, one: PartitionRetention, now_ms: int, gone: list[StoredManifest], progress: Progress
) -> None:
    """Delete what is beyond retention of one partition under its lease, and add to ``gone`` what is deleted."""

    def done(deleted: StoredManifest) -> None:
        gone.append(deleted)
        progress.advance(1, deleted.facts.log_bytes)

    name = lease_name(one.cluster_id, one.topic_partition)
    with lease_on(store, name, verb="retain", now_ms=now_ms) as lease:
        lease.hold()
        _note(store, one)
        delete_beyond(store, one, done, lease.hold)


def _note(store: ObjectStore, one: PartitionRetention) -> None:
    """Note first where the log starts then: nothing of it is shipped again, wherever the deletion is ended."""
    last = one.beyond[-1]
    left = RetentionNote(
        log_start_offset=last.facts.next_base_offset,
        last_base_offset=last.facts.base_offset,
        last_log_bytes=last.facts.log_bytes,
    )
    key = retained_key(one.cluster_id, one.topic_partition, one.topic_id)
    write_retained(store, key, left)


def _sound_manifests(part: TieredPart, scope: Scope, faults: list[ResnapError]) -> list[StoredManifest]:
    """Return the manifests in scope, but for those of partitions where one is broken or was not listed."""
    if not part.layout.has_digests:
        raise _for_brokers(part.store, part.layout.name)
    listing = part.layout.listing(part.store, scope.wants, part.within)
    manifests: list[StoredManifest] = []
    broken: set[str] = set()
    for key in listing.manifests:
        try:
            with in_file(key):
                found = listing.read(key)
        except (FormatError, ObjectNotFoundError) as error:
            hint = "see `resnap verify URL`; nothing of this partition is deleted until it is repaired"
            faults.append(VerificationError(str(error), hint=hint))
            broken.add(listing.folder(key))
        else:
            if scope.wants(found.facts.topic):
                manifests.append(found)
    for key in _hidden(part.store, listing):
        faults.append(VerificationError(f"{key}: exists, but was not listed", hint=_HIDDEN))
        broken.add(listing.folder(key))
    if not manifests and not broken and not any(map(scope.wants, retained_topics(part.store))):
        if scope.topics:
            raise nothing_in(scope)
        raise UsageError(f"{part.store.url} holds no shipped segment", hint="give what `resnap tier --to` was given")
    of_brokers = (brokers_layout(entry.key) for manifest in manifests for entry in manifest.objects)
    read = next(filter(None, of_brokers), None)
    if read is not None:
        raise _for_brokers(part.store, read.name)
    return [manifest for manifest in manifests if listing.folder(manifest.key) not in broken]


def _hidden(store: ObjectStore, listing: Listing) -> Iterator[str]:
    """Yield the keys of manifests that exist, although the store did not list them beside their objects."""
    for key in sorted(listing.sizes.keys() - listing.manifests.keys()):
        with suppress(ObjectNotFoundError):
            found = store.head(key)
            if not any(layout.is_tombstone(found) for layout in SHIPPED):
                yield key


def _for_brokers(store: ObjectStore, layout: str) -> UsageError:
    return UsageError(
        f"{store.url} is in the layout {layout}: brokers delete what they know of by the topic's own"
        " retention, and would still request what is deleted",
        hint="set retention.ms or retention.bytes of the topic; `resnap remote status LOG_DIR --store` shows what"
        " brokers do not know of (unreferenced-objects)",
    )


class RetainedRow(Identity):
    """One partition of `resnap retain`."""

    clusterId: str | None
    topicId: Annotated[str | None, Column(title="TOPIC ID", extra=True, show=or_dash)]
    deleted: Annotated[int, lambda retention: len(retention.beyond), Column(title="BEYOND", right=True)]
    kept: Annotated[int, Column(title="KEPT", right=True)]
    bytes: Annotated[int, "size_bytes", BYTES]
    newStartOffset: Annotated[int | None, Column(title="NEW START", right=True)]
    manifests: Annotated[list[str], lambda retention: [shipped.key for shipped in retention.beyond]]


class RetainView(SummedView["Reported[PartitionRetention] | Unread"]):
    """A row per partition."""

    kind = "partition"
    columns = columns_of(RetainedRow, "partition", "deleted", "kept", "bytes", "newStartOffset", "topicId")
    most_first = "deleted"

    def __init__(self, url: str, *, dry_run: bool) -> None:
        self._url = shlex.quote(url)
        self._totals = {"dryRun": dry_run, "deleted": 0, "kept": 0, "bytes": 0}

    def row(self, result: Reported[PartitionRetention] | Unread) -> Row | None:
        """Return the row of a partition, and count it."""
        if isinstance(result, Unread):
            return None
        row = row_of(RetainedRow, result.what)
        for key in ("deleted", "kept", "bytes"):
            self._totals[key] += row[key]
        return row

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and what to do next."""
        yield from self.summed_note()
        deleted = f"{some(self._totals['deleted'], 'segment')} ({human_bytes(self._totals['bytes'])})"
        kept = human_count(self._totals["kept"])
        if self._totals["dryRun"]:
            yield f"beyond retention: {deleted}; not beyond it: {kept}. Nothing was deleted."
        else:
            yield f"{deleted} deleted, {kept} kept."
        if self.has_faults or self.is_cut_short:
            yield "Next: the same command again, once the errors named here are repaired."
        elif self._totals["dryRun"] and self._totals["deleted"]:
            yield "Next: the same command with --delete."
        elif self._totals["deleted"]:
            yield f"Next: `resnap verify {self._url}` reads back what is left."
        else:
            yield "Next: nothing is left to do, until more is beyond the retention."


def _limits(retention: str | None, retention_bytes: str | None) -> Limits:
    if retention is None and retention_bytes is None:
        raise UsageError("no retention is given", hint="give --retention DURATION, --retention-bytes SIZE, or both")
    try:
        return Limits(
            age_ms=None if retention is None else parse_duration(retention) // timedelta(milliseconds=1),
            log_bytes=None if retention_bytes is None else parse_size(retention_bytes),
        )
    except ValueError as error:
        given = " ".join(filter(None, (retention, retention_bytes)))
        hint = "--retention takes a duration such as 7d, --retention-bytes a size such as 100GiB"
        raise UsageError(f"retention {given}: {error}", hint=hint) from error


VERB = Verb(
    takes=(TOPIC, S3),
    request=RetainRequest,
    run=run,
    view=lambda request, _: RetainView(request.url, dry_run=not request.delete),
    reads="other",
)
