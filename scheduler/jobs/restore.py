"""`resnap restore`: make partition directories, which a broker opens, of what was shipped to a store."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from resnap.replay.scratch import scratch_directory
from resnap.scheduler.cli.flags import ENGINE, REPLAY, STORE, TOPIC, WRITE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.job.contract import Caller, Context, Result, Unread, View
from resnap.scheduler.job.open_transactions import OpenTransaction
from resnap.scheduler.job.reports import identity
from resnap.scheduler.job.sources import Scope, SelectedPartition, Selection, look
from resnap.scheduler.job.wiring import planner_of
from resnap.scheduler.jobs.replaced_snapshots import replaced_snapshots
from resnap.scheduler.output.progress import Progress
from resnap.scheduler.output.rendering import BYTES, Column, Row, human_bytes, human_count
from resnap.storage.disk import Disk, is_directory
from resnap.storage.errors import LogDirError, ResnapError, UsageError, VerificationError
from resnap.storage.layouts.protocol import Tiered
from resnap.storage.log.checkpoints import read_offset_checkpoint
from resnap.storage.log.log_dir import NoLogDirError, load_log_dir
from resnap.storage.log.log_dir_lock import locked
from resnap.storage.log.partition_dir import read_small, readable
from resnap.storage.log.properties import is_topic_id
from resnap.storage.log.survey import LOG_START_OFFSETS, LogDir
from resnap.storage.sources.files import Sources
from resnap.storage.sources.log_dirs import nothing_tiered, tiered_part
from resnap.storage.stores.urls import local_path
from resnap.tiering.controller.transactions.state_log import transactional_ids
from resnap.tiering.installing.stopped_broker import refuse_running
from resnap.tiering.keeping.restoration import Replaced, Restoration, restoration_of
from resnap.tiering.keeping.restored_log import kept_log_start, open_at_end
from resnap.tiering.keeping.restorer import Restored, Restorer

CALLERS: Final[frozenset[Caller]] = frozenset({"shell"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be restored, and where."""

    scope: Scope
    """The URL of what was shipped is its one source."""
    log_dir: Path
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By name: which of several topics of that name is meant; else its id where the manifests have another, or none."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPartition(Result):
    """One partition, and its outcome; of a dry run, what the outcome would be."""

    restoration: Restoration
    outcome: Restored


def run(request: Request, context: Context) -> Iterator[RestoredPartition | Unread]:
    """Restore every partition in scope that can be.

    Raises:
        LogDirInUseError: a broker runs on the log dir.
        UsageError, LogDirError: the log dir is not as it should be; nothing was changed.
        StoreError: the store cannot be listed.

    """
    settings = context.settings
    sources = Sources(s3=settings.s3(), keys=settings.keys())
    planner = planner_of(context, replays=False)
    with context.progress("restore") as (progress,):
        # A dry run replays nothing.
        replacing = None if request.dry_run else partial(replaced_snapshots, planner, progress)
        yield from restored(request, sources, progress, replacing=replacing)


def restored(
    request: Request,
    sources: Sources,
    progress: Progress,
    *,
    disk: Disk | None = None,
    replacing: Callable[[Scope], AbstractContextManager[Mapping[str, Replaced]]] | None = None,
) -> Iterator[RestoredPartition | Unread]:
    """Yield the results of a run.

    ``replacing`` gives what takes the place of stored snapshots that no digest vouches for; None to take them as they
    are.
    """
    is_new = _may_be_made(request)
    if not is_new and not is_directory(request.log_dir):
        raise UsageError(f"{request.log_dir} is not a directory",
                         hint="give an entry of log.dirs, or a new directory in one that is there")  # fmt: skip
    scope = replace(request.scope, topic_ids=request.topic_ids)
    try:
        selected = look(scope, sources)
    except NoLogDirError as error:
        raise nothing_tiered(scope.sources[0]) from error
    if any(not one.log_dir.is_shipped for one in selected.partitions):
        hint = "give what `resnap tier --to` was given; the copy of a log dir comes back by what copied it"
        raise UsageError(f"{scope.sources[0]} holds nothing that was shipped", hint=hint)
    unknown = request.topic_ids.keys() - {one.topic_partition.topic for one in selected.partitions}
    if unknown and not selected.problems:  # of which it may be one
        raise UsageError(f"--topic-id: nothing of {min(unknown)} is to be restored",
                         hint="give TOPIC=ID with the name of a topic that was shipped")  # fmt: skip
    with _new_directory(request) if is_new else nullcontext(request) as there:
        yield from _restored_into(there, scope, selected, sources, progress, disk=disk, replacing=replacing)


def _restored_into(
    request: Request,
    scope: Scope,
    selected: Selection,
    sources: Sources,
    progress: Progress,
    *,
    disk: Disk | None,
    replacing: Callable[[Scope], AbstractContextManager[Mapping[str, Replaced]]] | None,
) -> Iterator[RestoredPartition | Unread]:
    log_dir = request.log_dir.absolute()
    refuse_running(log_dir)
    hold: AbstractContextManager[None] = nullcontext() if request.dry_run else locked(log_dir)
    with hold, nullcontext({}) if replacing is None else replacing(scope) as instead:
        faults: list[ResnapError] = [problem.error for problem in selected.problems]
        faults += [one.why for one in instead.values()]
        found = _restorable(request, selected.partitions, sources, instead, faults)
        yield Unread(faults=tuple(faults))
        progress.expect(len(found), sum(one.size_bytes for one in found))
        restorer = Restorer(log_dir=log_dir, disk=disk or Disk())
        for one in found:
            yield _restored(one, restorer, progress, dry_run=request.dry_run)


def _may_be_made(request: Request) -> bool:
    """Whether the directory is not there, and has a place that is: outside of what is restored."""
    parent, store = request.log_dir.absolute().parent, local_path(request.scope.sources[0])
    if request.log_dir.exists() or not is_directory(parent):
        return False
    return store is None or not parent.resolve().is_relative_to(store.resolve())


@contextmanager
def _new_directory(request: Request) -> Iterator[Request]:
    """Make the directory that is to be restored into; for a dry run an empty one elsewhere."""
    if request.dry_run:
        with scratch_directory("restore") as scratch:
            yield replace(request, log_dir=scratch)
    else:
        request.log_dir.mkdir()
        yield request


def _restorable(
    request: Request,
    partitions: Iterable[SelectedPartition],
    sources: Sources,
    instead: Mapping[str, Replaced],
    faults: list[ResnapError],
) -> list[Restoration]:
    """Return what may be put into the log dir, and add to ``faults`` why the rest may not."""
    found = []
    log_dir = request.log_dir.absolute()
    there = load_log_dir(log_dir, topics=lambda _: False)
    layout = tiered_part(request.scope.sources[0], sources).layout
    with readable(log_dir):
        log_starts = read_small(log_dir / LOG_START_OFFSETS, read_offset_checkpoint) or {}
    for shipped in partitions:
        try:
            topic_id = request.topic_ids.get(shipped.topic_partition.topic)
            one = _restoration(shipped, layout, topic_id, sources, instead)
            _refuse_other_cluster(shipped, there)
            _refuse_without_topic_id(one, there)
            _refuse_ended_below(one, log_starts.get(one.topic_partition), log_dir)
        except ResnapError as error:
            faults.append(error)
        else:
            found.append(one)
            if one.passed_over:
                faults.append(_passed_over(one))
    return found


def _restored(one: Restoration, restorer: Restorer, progress: Progress, *, dry_run: bool) -> RestoredPartition | Unread:
    try:
        outcome = restorer.look(one) if dry_run else restorer.restore(one, partial(progress.advance, 0))
    except ResnapError as error:
        return Unread(faults=(error,))
    progress.advance(1, 0)
    result = RestoredPartition(restoration=one, outcome=outcome)
    if outcome is Restored.OCCUPIED:
        what = f"{restorer.log_dir / str(one.topic_partition)} is there already, and holds something else"
        hint = "move it out of the log dir, or leave the topic out (--topic)"
        return replace(result, faults=(LogDirError(what, hint=hint),))
    if outcome is Restored.RESTORED:
        return replace(result, warnings=tuple(_warnings(one, restorer.log_dir)), partly_done=not dry_run)
    return result


def _restoration(
    shipped: SelectedPartition, layout: Tiered, topic_id: str | None, sources: Sources, instead: Mapping[str, Replaced]
) -> Restoration:
    partition = shipped.inventory.partition
    store = sources.store(str(shipped.log_dir.path))
    vouched = layout.vouched(store, partition)
    one = restoration_of(partition, vouched, sources, topic_id, instead)
    newest = next((found.path for found in partition.snapshots if found.offset == one.end_offset), None)
    replacement = instead.get(newest or "")
    newest = newest if replacement is None else replacement.path
    return replace(
        one,
        log_start=kept_log_start(partition, vouched.leader_epochs, sources),
        open_transactions=open_at_end(newest, sources),
    )


def _passed_over(one: Restoration) -> VerificationError:
    which = f"{len(one.passed_over)}, the first at offset {one.passed_over[0]}"
    return VerificationError(
        f"{one.topic_partition}: segments that a broker tiered itself lie beside those that Resnap has shipped:"
        f" {which}; no manifest names them, so they are not restored, and the log ends at {one.end_offset}",
        hint="`resnap remote status --store URL` shows what brokers believe of them; a broker with the cluster's"
        " metadata serves them where they lie",
    )


def _refuse_other_cluster(shipped: SelectedPartition, there: LogDir) -> None:
    cluster = shipped.log_dir.cluster_id
    if None not in (cluster, there.cluster_id) and cluster != there.cluster_id:
        raise UsageError(
            f"{shipped.topic_partition} is of cluster {cluster}, and {there.path} of {there.cluster_id}",
            hint="give a log dir of the same cluster, or a new directory",
        )


def _refuse_without_topic_id(one: Restoration, there: LogDir) -> None:
    """Refuse what a KRaft broker would set aside, beginning an empty log in its place; with ZooKeeper it gives the id.

    Source: ``LogManager.isStrayKraftReplica``; seen with 3.9.1 and 4.1.1.
    """
    if one.topic_id is None and there.is_kraft:
        topic = one.topic_partition.topic
        raise UsageError(
            f"{one.topic_partition}: the id of its topic is not known, since it was not when the partition was shipped:"
            " without ZooKeeper a broker sets such a directory aside as stray, and begins an empty log",
            hint=f"give --topic-id {topic}=ID; `kafka-topics.sh --describe` and `resnap controller image` show it",
        )


def _refuse_ended_below(one: Restoration, log_start: int | None, log_dir: Path) -> None:
    """Refuse a log that ends below the start that the log dir remembers: a broker would empty it when it loads it."""
    if log_start is not None and log_start > one.end_offset:
        raise UsageError(
            f"{one.topic_partition} ends at {one.end_offset}, below its log start {log_start} in"
            f" {log_dir / LOG_START_OFFSETS}: a broker would delete all of it",
            hint="take the line of the partition out of that file, or restore into a new directory",
        )


def _warnings(restoration: Restoration, log_dir: Path) -> Iterator[str]:
    """Yield what to do about a topic without an id, and about each transaction that is open at the end."""
    topic, partition = restoration.topic_partition
    if restoration.topic_id is None:
        yield (
            f"{topic}-{partition}: shipped before the id of its topic was known, so without partition.metadata: a"
            " broker with ZooKeeper makes that, one without sets the directory aside as stray; for that one give"
            " --topic-id"
        )
    names = transactional_ids(log_dir) if restoration.open_transactions else {}
    for entry in restoration.open_transactions:
        one = OpenTransaction.of_entry(restoration.topic_partition, entry)
        held = f", held by transactional id {names[entry.producer_id]!r}" if entry.producer_id in names else ""
        yield (
            f"{one.what}{held}, and its end was not shipped: consumers with read_committed stop there, and the"
            " producer's next commit would commit these records, too. End it before the producer comes back:"
            f" {one.abort_command(None)} ({one.instead_of_offset})"
        )


class RestoreView(View[RestoredPartition | Unread]):
    """A row per partition."""

    name = "partitions"
    kind = "partition"
    columns = (
        Column(key="topic", title="TOPIC"),
        Column(key="partition", title="PARTITION", right=True),
        Column(key="startOffset", title="START", right=True),
        Column(key="endOffset", title="END", right=True),
        Column(key="segments", title="SEGMENTS", right=True),
        BYTES,
        Column(key="outcome", title="OUTCOME"),
    )

    def __init__(self, *, dry_run: bool) -> None:
        self._totals = {"dryRun": dry_run, "restored": 0, "alreadyThere": 0, "segments": 0, "bytes": 0}

    def row(self, result: RestoredPartition | Unread) -> Row | None:
        """Return the row of a partition, and count it."""
        if isinstance(result, Unread):
            return None
        one, outcome = result.restoration, result.outcome
        if outcome is Restored.RESTORED:
            self._totals["restored"] += 1
            self._totals["segments"] += one.segments
            self._totals["bytes"] += one.size_bytes
        self._totals["alreadyThere"] += outcome is Restored.ALREADY_THERE
        return {
            **identity(one.topic_partition),
            "topicId": one.topic_id,
            "startOffset": one.start_offset,
            "logStartOffset": one.start_offset if one.log_start is None else one.log_start,
            "endOffset": one.end_offset,
            "segments": one.segments,
            "bytes": one.size_bytes,
            "openTransactions": [
                {
                    "producerId": entry.producer_id,
                    "producerEpoch": entry.producer_epoch,
                    "coordinatorEpoch": entry.coordinator_epoch,
                    "firstOffset": entry.current_txn_first_offset,
                }
                for entry in one.open_transactions
            ],
            "outcome": outcome.value,
        }

    def totals(self) -> Row:
        """Return what was restored in all."""
        return self._totals

    def closing(self) -> Iterator[str]:
        """Yield the totals in words."""
        would, nothing = ("would be ", " Nothing was written.") if self._totals["dryRun"] else ("", "")
        yield (
            f"{human_count(self._totals['restored'])} partitions in {human_count(self._totals['segments'])} segments"
            f" {would}restored ({human_bytes(self._totals['bytes'])}); {human_count(self._totals['alreadyThere'])} were"
            f" there already.{nothing}"
        )


@with_settings(TOPIC, REPLAY, ENGINE, WRITE, STORE)
def restore(
    context: Invocation,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to, or a part of it.")
    ],
    into: Annotated[
        Path, typer.Option("--into", metavar="LOG_DIR", help="The log dir of a stopped broker, or a new directory.")
    ],
    topic_id: Annotated[
        list[str] | None,
        typer.Option(
            "--topic-id",
            metavar="TOPIC=ID",
            help="Id of a topic, if it was not shipped or has changed since; or which of several topics of that name.",
        ),
    ] = None,
) -> None:
    """Make partition directories of what was shipped, which a broker opens: logs, indexes, snapshots, leader epochs.

    Each is whole and compared with its manifests before it has its name; what is there already is never touched.
    """
    request = Request(
        scope=Scope(sources=(url,), topics=context.settings.topics),
        log_dir=into,
        topic_ids=dict(map(_topic_id, topic_id or ())),
        dry_run=context.settings.dry_run,
    )
    context.show(run(request, context), RestoreView(dry_run=request.dry_run))


def _topic_id(text: str) -> tuple[str, str]:
    """Return the topic and its id."""
    topic, _, topic_id = text.partition("=")
    if not topic or not is_topic_id(topic_id):
        raise UsageError(f"--topic-id {text}: expected TOPIC=ID, the id in 22 characters of base64url")
    return topic, topic_id
