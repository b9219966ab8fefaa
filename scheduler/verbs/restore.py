"""`resnap restore`: makes partition directories, which a broker can open, from shipped segments."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.flags import CLUSTER, COPYING, ENGINE, REPLAY, STORE, TOPIC, WRITE
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Result, Verb
from resnap.scheduler.job.replaying import planner_of
from resnap.scheduler.job.reports import SummedView, identity
from resnap.scheduler.job.wiring import cluster_of, sources_of
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import BYTES, Column
from resnap.scheduler.settings.declaration import DEFAULT_ORIGIN
from resnap.scheduler.verbs.planned import AND_DO_IT
from resnap.storage.errors import UsageError
from resnap.storage.log.properties import is_topic_id
from resnap.storage.words import agreeing, first_of, human_bytes, human_count, instant, some
from resnap.tiering.cluster_state.group_offsets import SCRIPT
from resnap.tiering.restore import (
    RestoredPartition,
    RestoreNotice,
    RestoreOrder,
    RestoreWork,
    replaced_snapshots,
    restore,
    restoring_copier,
)
from resnap.tiering.restoring.new_cluster import assign_to_all, read_assignment
from resnap.tiering.restoring.new_metadata import NewCluster
from resnap.tiering.restoring.restorer import Restored
from resnap.tiering.shipping.notes import topics_in_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.restore import RestoreReport
    from resnap.tiering.restoring.new_metadata import RestoredState
    from resnap.tiering.restoring.restoration import Restoration


class RestoreRequest(Request):
    """Make partition directories of what was shipped, which a broker opens: logs, indexes, snapshots, leader epochs.

    Each is whole and compared with its manifests before it has its name; what is there already is never touched. With
    --new-cluster the topics, with ids and settings, come into the metadata of a cluster before its first start, and so
    do ACLs, quotas and users that `resnap export` has written to the store.
    """

    url: Annotated[
        str, typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to, or a part of it.")
    ]
    into: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LOG_DIR",
            help="The log dir of a stopped broker, or a new directory; again for each further log dir.",
        ),
    ] = None
    topic_id: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=ID",
            help="Id of a topic, if it was not shipped or has changed since; or which of several topics of that name.",
        ),
    ] = None
    new_cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Begin a new KRaft cluster with what is restored: the metadata.log.dir, or else the first of log.dirs,"
            " of a node that was formatted and never started. On each controller.",
        ),
    ] = None
    brokers: Annotated[
        str | None,
        typer.Option(
            metavar="ID,...",
            help="Brokers of the new cluster that each get a replica of every partition; else those of LOG_DIR.",
        ),
    ] = None
    assignment: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Which brokers, and log dirs, get which replica, as JSON of kafka-reassign-partitions.sh.",
        ),
    ] = None
    topic_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Partitions and settings of topics, where the store does not have them: {"TOPIC": {"partitions": 6,'
            ' "config": {...}}}.',
        ),
    ] = None
    cluster_state: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="For a new cluster: the object of `resnap export` to use, below URL; else the last of each node.",
        ),
    ] = None
    offsets_to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For a new cluster: write the exported offsets of consumer groups there, as files for"
            " kafka-consumer-groups.sh --from-file.",
        ),
    ] = None


def run(request: RestoreRequest, context: Context, report: Report) -> None:
    """Restore every partition in scope that can be, and report each.

    Raises:
        UsageError: the arguments do not say what is to be restored where.
        ResnapError: as ``restore`` does.

    """
    settings = context.settings
    order = _order(request, settings)
    planner = planner_of(context, replays=False)
    copying = partial(
        restoring_copier,
        planner.engine,
        parallel=settings.parallel,
        is_parallel_asked=settings.origin("parallel") != DEFAULT_ORIGIN,
        bytes_per_s=settings.bwlimit,
    )
    with context.progress("restore") as (progress,):
        work = RestoreWork(
            sources=sources_of(settings),
            progress=progress,
            # A dry run replays nothing.
            replacing=None if order.dry_run else partial(replaced_snapshots, planner, progress),
            copying=None if order.dry_run else copying,
            on_state=planner.on_state,
        )
        restore(order, work, lambda row: report(_result(row, dry_run=order.dry_run)))


def _result(row: RestoreReport, *, dry_run: bool) -> Result:
    match row:
        case RestoreNotice():
            return Result(faults=row.faults, warnings=row.warnings)
        case RestoredPartition():
            is_done = row.outcome is Restored.RESTORED
        case NewCluster():
            is_done = bool(row.topics)
    return Reported(what=row, faults=row.faults, warnings=row.warnings, partly_done=is_done and not dry_run)


def _order(asked: RestoreRequest, settings: Settings) -> RestoreOrder:
    """Return what is to be restored, and where.

    Raises:
        UsageError: the arguments do not say it.

    """
    if asked.brokers is not None and asked.assignment is not None:
        raise UsageError("--brokers and --assignment exclude each other", hint="give one of them")
    if not asked.into and (asked.new_cluster is None or (asked.brokers is None and asked.assignment is None)):
        hint = "give --into LOG_DIR; on a controller that is not a broker --new-cluster, and --brokers or --assignment"
        raise UsageError("no log dir to restore into", hint=hint)
    if asked.new_cluster is None and (asked.cluster_state or asked.offsets_to):
        raise UsageError("--cluster-state and --offsets-to are for a new cluster", hint="give --new-cluster")
    chosen = None if asked.brokers is None else assign_to_all(asked.brokers)
    chosen = chosen if asked.assignment is None else read_assignment(asked.assignment)
    return RestoreOrder(
        scope=replace(asked.scope, sources=(asked.url,), topic_ids=dict(map(_topic_id, asked.topic_id or ()))),
        log_dirs=tuple(asked.into or ()),
        assignment=chosen,
        new_cluster=None if asked.new_cluster is None else asked.new_cluster.absolute(),
        topics={} if asked.topic_config is None else topics_in_file(asked.topic_config),
        cluster_state=asked.cluster_state,
        offsets_to=None if asked.offsets_to is None else asked.offsets_to.absolute(),
        connect=None if settings.bootstrap_server is None else partial(cluster_of, settings),
        dry_run=settings.dry_run,
    )


def _topic_id(text: str) -> tuple[str, str]:
    """Return the topic and its id."""
    topic, _, topic_id = text.partition("=")
    if not topic or not is_topic_id(topic_id):
        raise UsageError(f"--topic-id {text}: expected TOPIC=ID, the id in 22 characters of base64url")
    return topic, topic_id


class OpenTransactionRow(TypedDict):
    """A transaction that is open at the end of what was shipped."""

    producerId: int
    producerEpoch: int
    coordinatorEpoch: int
    firstOffset: Annotated[int, "current_txn_first_offset"]


class RestoreRow(TypedDict):
    """One partition of `resnap restore`."""

    topic: Annotated[str, "restoration.topic_partition.topic", Column(title="TOPIC")]
    partition: Annotated[int, "restoration.topic_partition.partition", Column(title="PARTITION", right=True)]
    topicId: Annotated[str | None, "restoration.topic_id"]
    startOffset: Annotated[int, "restoration.start_offset", Column(title="START", right=True)]
    logStartOffset: Annotated[int, lambda restored: _log_start(restored.restoration)]
    endOffset: Annotated[int, "restoration.end_offset", Column(title="END", right=True)]
    segments: Annotated[int, "restoration.segments", Column(title="SEGMENTS", right=True)]
    bytes: Annotated[int, "restoration.size_bytes", BYTES]
    openTransactions: Annotated[list[OpenTransactionRow], "restoration.open_transactions"]
    outcome: Annotated[str, Column(title="OUTCOME")]
    logDir: Annotated[str, Column(title="LOG DIR")]


def _log_start(restoration: Restoration) -> int:
    return restoration.start_offset if restoration.log_start is None else restoration.log_start


class RestoreView(SummedView[Result]):
    """A row per partition."""

    kind = "partition"
    columns = columns_of(RestoreRow)
    most_first = "segments"

    def __init__(self, *, dry_run: bool) -> None:
        self._totals = {"dryRun": dry_run, "restored": 0, "alreadyThere": 0, "segments": 0, "bytes": 0}
        self._cluster: NewCluster | None = None
        self._log_dirs = dict[str, None]()
        """The log dirs that have the partitions now."""
        self._open: list[str] = []
        """Partitions that end in an open transaction."""

    def row(self, result: Result) -> Row | None:
        """Return the row of a partition, and count it."""
        match result:
            case Reported(what=RestoredPartition() as restored):
                return self._count(restored)
            case Reported(what=NewCluster() as cluster):
                self._cluster = cluster
        return None

    def _count(self, restored: RestoredPartition) -> Row:
        one, outcome = restored.restoration, restored.outcome
        self._log_dirs[str(restored.log_dir)] = None
        if outcome is Restored.RESTORED:
            self._totals["restored"] += 1
            self._totals["segments"] += one.segments
            self._totals["bytes"] += one.size_bytes
            self._open += [str(one.topic_partition)] if one.open_transactions else []
        self._totals["alreadyThere"] += outcome is Restored.ALREADY_THERE
        return row_of(RestoreRow, restored)

    def for_people(self, row: Row) -> Row:
        """Return the row of a partition; of a dry run with what the outcome would be."""
        would = self._totals["dryRun"] and row["outcome"] == Restored.RESTORED
        return {**row, "outcome": f"would be {row['outcome']}"} if would else row

    def totals(self) -> Row:
        """Return what was restored in all, and what a new cluster begins with."""
        return self._totals if self._cluster is None else {**self._totals, "newCluster": _cluster_row(self._cluster)}

    def closing(self) -> Iterator[str]:
        """Yield the totals in words."""
        yield from self.summed_note()
        there = self._totals["alreadyThere"]
        would, nothing = ("would be ", " Nothing was written.") if self._totals["dryRun"] else ("", "")
        yield (
            f"{some(self._totals['restored'], 'partition')} in {some(self._totals['segments'], 'segment')}"
            f" {would}restored ({human_bytes(self._totals['bytes'])}); {human_count(there)}"
            f" {agreeing(there, 'was', 'were')} there already.{nothing}"
        )
        if self._cluster is not None:
            yield from _cluster_lines(self._cluster, would)
        if self._totals["dryRun"]:
            if self._open:
                yield (
                    f"Open transactions at the end of {first_of(self._open)}, whose end was not shipped:"
                    " consumers with read_committed will stop there; the run says for each what to do."
                )
            yield AND_DO_IT
        elif self.has_faults or self.is_cut_short:
            yield "Next: the same command again, once the errors named here are repaired; it restores the rest."
        elif self._log_dirs and self._cluster is None:
            yield f"Next: start the broker whose log.dirs names {first_of([*self._log_dirs])}."


def _cluster_row(cluster: NewCluster) -> Row:
    """Return what a new cluster begins with, for programs."""
    return {
        "bootstrap": str(cluster.path),
        "topics": list(cluster.topics),
        "leftOut": list(cluster.left_out),
        "nextProducerId": cluster.next_producer_id,
        "clusterState": None if cluster.restored_state is None else _state_row(cluster.restored_state),
    }


def _state_row(restored: RestoredState) -> dict[str, Any]:
    state, metadata = restored.exported.state, restored.exported.state.metadata
    return {
        "objects": list(restored.exported.keys),
        "taken": instant(state.taken_ms),
        "accessControlEntries": 0 if metadata is None else len(metadata.access_control_entries),
        "quotas": 0 if metadata is None else sum(map(len, metadata.quotas.values())),
        "scramCredentials": 0 if metadata is None else len(metadata.scram_credentials),
        "offsetsTo": None if restored.offsets_to is None else str(restored.offsets_to),
        "groups": [
            {
                "group": reset.group,
                "file": reset.file_name,
                "offsets": len(reset.offsets),
                "cut": [
                    {**identity(cut.topic_partition), "committedOffset": cut.committed, "endOffset": cut.end}
                    for cut in reset.cut
                ],
            }
            for reset in restored.resets
        ],
        "offsetsLeftOut": list(restored.not_restored),
    }


def _cluster_lines(cluster: NewCluster, would: str) -> Iterator[str]:
    """Yield what a new cluster begins with, in words, and what is next."""
    out = f" Left out: {', '.join(cluster.left_out)}." if cluster.left_out else ""
    yield (
        f"{some(len(cluster.topics), 'topic')} {would}written to {cluster.path}; producer ids begin at"
        f" {cluster.next_producer_id}.{out} The cluster gets them when its controllers start for the first time: let"
        " each have the same."
    )
    restored = cluster.restored_state
    if restored is None:
        return
    row = _state_row(restored)
    yield (
        f"As of {row['taken']}: {some(row['accessControlEntries'], 'access control entry')},"
        f" {some(row['quotas'], 'quota')} and {some(row['scramCredentials'], 'credential')} {would}written there, too."
    )
    if restored.resets and restored.offsets_to is not None:
        yield (
            f"Offsets of {some(len(restored.resets), 'consumer group')} {would}written to {restored.offsets_to}: once"
            f" the cluster runs, and before consumers start: sh {restored.offsets_to / SCRIPT} HOST:PORT"
        )


VERB = Verb(
    takes=(TOPIC, CLUSTER, REPLAY, ENGINE, WRITE, COPYING, STORE),
    request=RestoreRequest,
    run=run,
    view=lambda _, context: RestoreView(dry_run=context.settings.dry_run),
)
