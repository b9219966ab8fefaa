"""`resnap export` and `resnap export-cluster`: write what a cluster has besides records to a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.cli.flags import CLUSTER, METADATA, S3, SERVER, WRITE
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Verb, View
from resnap.scheduler.job.wiring import cluster_of
from resnap.scheduler.settings.values import is_secret_name
from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.stores.urls import is_store_url, open_store
from resnap.storage.words import human_bytes, instant, some
from resnap.tiering.cluster.live_state import ask_cluster_state
from resnap.tiering.cluster_state.state import delete_older, keep_state, read_cluster_state, state_key, write_state
from resnap.tiering.controller.metadata.cluster import find_metadata_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.scheduler.output.rendering import Row
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster_state.state import ClusterState


class ExportRequest(Request):
    """Write what a cluster needs besides its records to a store: groups' offsets, ACLs, quotas, configuration.

    Reads __consumer_offsets and the metadata log in the log dirs of one node, beside a running broker, and writes one
    JSON object, which is never overwritten. Run it on each broker: each has a part of __consumer_offsets. `resnap
    restore --new-cluster` takes the last of each node. `resnap export-cluster` needs no log dir.
    """

    to: Annotated[str, typer.Option(metavar="URL", help="The store that `resnap tier --to` ships to.")]
    credentials: Annotated[
        bool,
        typer.Option(
            help="Also SCRAM credentials, and passwords in the configuration of brokers: whoever reads the store has"
            " them."
        ),
    ] = False
    keep: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Delete all but the last N of this node; else all are kept.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A state of a cluster, and where it is."""

    state: ClusterState
    key: str
    size_bytes: int
    deleted: int


def run(request: ExportRequest, context: Context, report: Report) -> None:
    """Export, and report what was written; with ``dry_run`` what would be.

    Raises:
        UsageError: the sources are not the log dirs of one node, or the store has no such URL.
        MetadataLogError, MetadataVersionError, FormatError, LogDirError: the metadata log cannot be read.
        StoreError: the store failed.

    """
    store = open_store(request.to, context.settings.s3())
    urls = [source for source in request.scope.sources if is_store_url(source)]
    if urls:
        raise UsageError(f"{urls[0]} is not a log dir of this host", hint="give the log dirs of a node")
    log_dirs = [Path(source) for source in request.scope.sources]
    metadata_log = context.settings.metadata_log or find_metadata_log(log_dirs)
    state, faults = read_cluster_state(
        log_dirs,
        metadata_log,
        taken_ms=context.clock.now_ms(),
        is_secret=None if request.credentials else is_secret_name,
    )
    if not state.offsets and not faults:
        context.note(
            "no partition of __consumer_offsets is there: no groups' offsets are exported; brokers with its replicas"
            " have them"
        )
    if metadata_log is None:
        context.warn(
            "there is no metadata log: ACLs, quotas and configuration are not exported (--metadata-log); of a cluster"
            " with ZooKeeper they are there (`resnap export-cluster`)"
        )
    report(exported(state, faults, store, request.keep, context))


def exported(
    state: ClusterState, faults: Sequence[ResnapError], store: ObjectStore, keep: int | None, context: Context
) -> Reported[Exported]:
    """Write ``state`` to the store, delete older ones, and return what was written; with ``dry_run`` what would be.

    ``faults`` are why some of it is missing.

    Raises:
        StoreError: the store failed.

    """
    key, document, deleted = state_key(state), write_state(state), 0
    if not context.settings.dry_run:
        keep_state(store, key, document)
        # What could not be read now may be in an older one.
        deleted = delete_older(store, key, keep) if keep is not None and not faults else 0
    written = Exported(state=state, key=key, size_bytes=len(document), deleted=deleted)
    return Reported(what=written, faults=tuple(faults), partly_done=bool(faults) and not context.settings.dry_run)


class ExportView(View["Reported[Exported]"]):
    """A summary: what is in the object."""

    def __init__(self, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._exported: Exported | None = None

    def row(self, result: Reported[Exported]) -> Row | None:
        """Keep what was written."""
        self._exported = result.what
        return None

    def totals(self) -> Row:
        """Return what is in the object, and its key."""
        if self._exported is None:
            return {}
        exported, state = self._exported, self._exported.state
        metadata = state.metadata
        return {
            "dryRun": self._dry_run,
            "key": exported.key,
            "bytes": exported.size_bytes,
            "deleted": exported.deleted,
            "clusterId": state.cluster_id,
            "nodeId": state.node_id,
            "taken": instant(state.taken_ms),
            "offsetsPartitions": len(state.offsets),
            "groups": len(state.groups),
            "offsets": sum(map(len, state.groups.values())),
            "shareGroups": list(state.share_groups),
            "metadataOffset": None if metadata is None else metadata.offset,
            "topics": 0 if metadata is None else len(metadata.topics),
            "configs": 0 if metadata is None else sum(map(len, metadata.configs.values())),
            "quotas": 0 if metadata is None else sum(map(len, metadata.quotas.values())),
            "accessControlEntries": 0 if metadata is None else len(metadata.access_control_entries),
            "scramCredentials": 0 if metadata is None else len(metadata.scram_credentials),
            "secretsLeftOut": 0 if metadata is None else metadata.secrets_left_out,
        }

    def table_head(self) -> Row:
        """Return no facts: people read them in words."""
        return {}

    def closing(self) -> Iterator[str]:
        """Yield the same in words, and what to do next."""
        if self._exported is None:
            return
        exported, state = self._exported, self._exported.state
        would = "would be " if self._dry_run else ""
        size = human_bytes(exported.size_bytes)
        yield f"{contents(state)} {would}written to {exported.key} ({size})."
        is_asked = state.node_id is None
        if state.metadata is not None and state.metadata.secrets_left_out:
            how = "`resnap export --credentials` reads them in log dirs" if is_asked else "--credentials"
            yield f"Left out: {some(state.metadata.secrets_left_out, 'secret')} ({how})."
        if state.share_groups:
            yield f"Left out: {state.share_group_text}."
        if self._dry_run:
            yield "Next: the same command without --dry-run."
        else:
            where, which = ("", "the last") if is_asked else ("on each broker, ", "the last of each")
            yield f"Next: {where}every few minutes; `resnap restore --new-cluster` takes {which}."


def contents(state: ClusterState) -> str:
    """Return what is in a state, in words."""
    groups = state.groups
    found = f"{some(sum(map(len, groups.values())), 'committed offset')} of {some(len(groups), 'group')}"
    if state.metadata is None:
        return found
    metadata = state.metadata
    entries = some(len(metadata.access_control_entries), "access control entry")
    quotas = some(sum(map(len, metadata.quotas.values())), "quota")
    settings = some(sum(map(len, metadata.configs.values())), "setting")
    return f"{found}, {entries}, {quotas}, {settings} and {some(len(metadata.scram_credentials), 'credential')}"


VERB = Verb(
    takes=(METADATA, SERVER, WRITE, S3),
    request=ExportRequest,
    run=run,
    view=lambda _, context: ExportView(dry_run=context.settings.dry_run),
    reads="log dirs",
    to="to",
    is_short=True,
)


class ClusterRequest(Request):
    """Write what a running cluster tells of itself to a store: groups' offsets, ACLs, quotas, configuration.

    Like `resnap export`, with one command for all brokers, from anywhere, and for clusters with ZooKeeper, too. Brokers
    tell no passwords, nor SCRAM credentials. The user of --command-config needs DESCRIBE of cluster, topics and groups,
    and DESCRIBE_CONFIGS. `resnap restore --new-cluster` takes the last object.
    """

    to: Annotated[str, typer.Option(metavar="URL", help="The store that `resnap tier --to` ships to.")]
    keep: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Delete all but the last N that were asked for; else all are kept."),
    ] = None


def ask_cluster(request: ClusterRequest, context: Context, report: Report) -> None:
    """Export, and report what was written; with ``dry_run`` what would be.

    Raises:
        UsageError: the store has no such URL.
        ConfigurationError: no cluster is named.
        ClusterError: it does not answer, or refuses a request.
        StoreError: the store failed.

    """
    store = open_store(request.to, context.settings.s3())
    with cluster_of(context.settings) as cluster:
        state, faults = ask_cluster_state(cluster, taken_ms=context.clock.now_ms())
    report(exported(state, faults, store, request.keep, context))


CLUSTER_VERB = Verb(
    takes=(CLUSTER, WRITE, S3),
    request=ClusterRequest,
    run=ask_cluster,
    view=lambda _, context: ExportView(dry_run=context.settings.dry_run),
    reads="cluster",
    to="to",
    is_short=True,
)
