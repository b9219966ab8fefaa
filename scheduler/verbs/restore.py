"""`resnap restore`: makes partition directories, which a broker can open, from shipped segments."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os.path import realpath
from pathlib import Path
from typing import Annotated

import typer

from resnap.replay.staging import scratch_directory
from resnap.replay.watching import Progress
from resnap.scheduler.cli.flags import CLUSTER, COPYING, ENGINE, REPLAY, STORE, TOPIC, WRITE
from resnap.scheduler.job.contract import Context, Request, Result, Unread, Verb
from resnap.scheduler.job.replaying import planner_of
from resnap.scheduler.job.reports import incomplete_warning
from resnap.scheduler.job.wiring import cluster_of, sources_of
from resnap.scheduler.settings.settings import Settings
from resnap.scheduler.verbs.new_cluster import (
    Beginning,
    begin_cluster,
    check_beginning,
    exported_state,
    low_producer_ids,
)
from resnap.scheduler.verbs.restored_partition import (
    RestoredPartition,
    RestoreView,
    missing_id_warning,
    passed_over,
    replaced_snapshots,
    restoring_copier,
    warnings_of,
)
from resnap.storage.disk import Disk, is_directory
from resnap.storage.errors import LogDirError, ResnapError, UsageError
from resnap.storage.layouts.protocol import Tiered
from resnap.storage.log.log_dir import NoLogDirError, log_dir_around
from resnap.storage.log.log_dir_lock import hold_lock, refuse_running
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import entries_in
from resnap.storage.log.properties import is_topic_id
from resnap.storage.sources.files import Sources
from resnap.storage.sources.log_dirs import nothing_tiered, tiered_part
from resnap.storage.stores.urls import local_path
from resnap.storage.threads import side_by_side
from resnap.tiering.cluster.client import Connect
from resnap.tiering.controller.metadata.writer import Bootstrap, read_bootstrap
from resnap.tiering.judging.broker_start import unknown_name
from resnap.tiering.restoring.new_cluster import Assignment, assign_to_all, place_partitions, read_assignment
from resnap.tiering.restoring.restoration import (
    Replaced,
    Restoration,
    highest_producer_id,
    kept_log_start,
    open_at_end,
    restoration_of,
)
from resnap.tiering.restoring.restorer import Copier, Restored, Restorer, Target, without_topic_id
from resnap.tiering.selection import Scope, SelectedPartition, Selection, select
from resnap.tiering.shipping.notes import TopicSettings, topics_in_file


@dataclass(frozen=True, slots=True, kw_only=True)
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
            "--into",
            metavar="LOG_DIR",
            help="The log dir of a stopped broker, or a new directory; again for each further log dir.",
        ),
    ] = None
    topic_id: Annotated[
        list[str] | None,
        typer.Option(
            "--topic-id",
            metavar="TOPIC=ID",
            help="Id of a topic, if it was not shipped or has changed since; or which of several topics of that name.",
        ),
    ] = None
    new_cluster: Annotated[
        Path | None,
        typer.Option(
            "--new-cluster",
            metavar="DIR",
            help="Begin a new KRaft cluster with what is restored: the metadata.log.dir, or else the first of log.dirs,"
            " of a node that was formatted and never started. On each controller.",
        ),
    ] = None
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers",
            metavar="ID,...",
            help="Brokers of the new cluster that each get a replica of every partition; else those of LOG_DIR.",
        ),
    ] = None
    assignment: Annotated[
        Path | None,
        typer.Option(
            "--assignment",
            metavar="FILE",
            help="Which brokers, and log dirs, get which replica, as JSON of kafka-reassign-partitions.sh.",
        ),
    ] = None
    topic_config: Annotated[
        Path | None,
        typer.Option(
            "--topic-config",
            metavar="FILE",
            help='Partitions and settings of topics, where the store does not have them: {"TOPIC": {"partitions": 6,'
            ' "config": {...}}}.',
        ),
    ] = None
    cluster_state: Annotated[
        str | None,
        typer.Option(
            "--cluster-state",
            metavar="KEY",
            help="For a new cluster: the object of `resnap export` to use, below URL; else the last of each node.",
        ),
    ] = None
    offsets_to: Annotated[
        Path | None,
        typer.Option(
            "--offsets-to",
            metavar="DIR",
            help="For a new cluster: write the exported offsets of consumer groups there, as files for"
            " kafka-consumer-groups.sh --from-file.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be restored, and where."""

    scope: Scope
    """The URL of what was shipped is its one source."""
    log_dirs: tuple[Path, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By name: which of several topics of that name is meant; else its id where the manifests have another, or none."""
    assignment: Assignment | None = None
    """Of a new cluster: which brokers get a replica; None for each log dir's broker, of any cluster."""
    new_cluster: Path | None = None
    """Where the bootstrap metadata of a new cluster is, which gets what is restored."""
    topics: Mapping[str, TopicSettings] = field(default_factory=dict)
    """How topics are configured, by name, instead of what the store says."""
    cluster_state: str | None = None
    """The key of the state that a new cluster gets; None for the last of each node."""
    offsets_to: Path | None = None
    """Where files with the offsets of groups are written to."""
    connect: Connect | None = None
    """Connects to the running cluster; None where none is named."""
    dry_run: bool = False

    @property
    def is_of_new_cluster(self) -> bool:
        """Whether the log dirs are those of a cluster that was never started."""
        return self.assignment is not None or self.new_cluster is not None


def run(asked: RestoreRequest, context: Context) -> Iterator[Result]:
    """Restore every partition in scope that can be.

    Raises:
        LogDirInUseError: a broker runs on the log dir.
        UsageError, LogDirError: the log dir is not as it should be; nothing was changed.
        StoreError: the store cannot be listed.

    """
    settings = context.settings
    request = _order(asked, settings)
    sources = sources_of(settings)
    planner = planner_of(context, replays=False)
    with context.progress("restore") as (progress,):
        # A dry run replays nothing.
        replacing = None if request.dry_run else partial(replaced_snapshots, planner, progress)
        copying = None if request.dry_run else partial(restoring_copier, planner.engine, settings)
        yield from restored(request, sources, progress, replacing=replacing, copying=copying, on_state=planner.on_state)


def restored(
    request: Order,
    sources: Sources,
    progress: Progress,
    *,
    disk: Disk | None = None,
    replacing: Callable[[Scope], AbstractContextManager[Mapping[str, Replaced]]] | None = None,
    copying: Callable[[Collection[str], Collection[Path]], AbstractContextManager[Copier]] | None = None,
    on_state: Callable[[TopicPartition, int, int, str], None] = lambda *_: None,
) -> Iterator[Result]:
    """Yield the results of a run.

    ``replacing`` gives what takes the place of stored snapshots that no digest vouches for; None to take them as they
    are. ``copying`` gives what copies, by locators and log dirs; None for this thread. ``on_state`` is called with
    partition, offset and number of producers of each stored snapshot.
    """
    made = {log_dir for log_dir in request.log_dirs if _may_be_made(log_dir, request)}
    for log_dir in request.log_dirs:
        around = log_dir_around(Path(realpath(log_dir)).parent)
        if around is not None:
            hint = (
                "a broker does not start with an unknown directory in its log dir: give the log dir, or a place outside"
            )
            raise UsageError(f"{log_dir} is inside the log dir {around}", hint=hint)
        if log_dir not in made and not is_directory(log_dir):
            raise UsageError(f"{log_dir} is not a directory",
                             hint="give an entry of log.dirs, or a new directory in one that is there")  # fmt: skip
    scope = replace(request.scope, topic_ids=request.topic_ids)
    try:
        selected = select(scope, sources)
    except NoLogDirError as error:
        raise nothing_tiered(scope.sources[0]) from error
    if any(not partition.log_dir.is_shipped for partition in selected.partitions):
        hint = "give what `resnap tier --to` was given; restore a copy of a log dir with the tool that copied it"
        raise UsageError(f"{scope.sources[0]} holds nothing that was shipped", hint=hint)
    for partition in selected.partitions:
        for snapshot in partition.inventory.partition.snapshots:
            on_state(partition.topic_partition, snapshot.offset, entries_in(snapshot.size_bytes), snapshot.path)
    unknown = request.topic_ids.keys() - {partition.topic_partition.topic for partition in selected.partitions}
    if unknown and not selected.problems:  # of which it may be one
        raise UsageError(f"--topic-id: nothing of {min(unknown)} is to be restored",
                         hint="give TOPIC=ID with the name of a topic that was shipped")  # fmt: skip
    with ExitStack() as stack:
        log_dirs = [
            stack.enter_context(_new_directory(log_dir, dry_run=request.dry_run)) if log_dir in made else log_dir
            for log_dir in request.log_dirs
        ]
        there = replace(request, scope=scope, log_dirs=tuple(log_dir.absolute() for log_dir in log_dirs))
        named = dict(zip(there.log_dirs, (log_dir.absolute() for log_dir in request.log_dirs), strict=True))
        results = _Run(there, sources, progress, disk or Disk()).restored(selected, replacing, copying)
        # With the log dir that was asked for: a dry run has an empty one elsewhere.
        for result in results:
            yield replace(result, log_dir=named[result.log_dir]) if isinstance(result, RestoredPartition) else result


def _may_be_made(log_dir: Path, request: Order) -> bool:
    """Whether the log dir can be created: its parent exists, and is not inside the store that is restored."""
    parent, store = log_dir.absolute().parent, local_path(request.scope.sources[0])
    if log_dir.exists() or request.is_of_new_cluster or not is_directory(parent):
        return False
    return store is None or not parent.resolve().is_relative_to(store.resolve())


@contextmanager
def _new_directory(log_dir: Path, *, dry_run: bool) -> Iterator[Path]:
    """Make a directory that is to be restored into; for a dry run an empty one elsewhere."""
    if dry_run:
        with scratch_directory("restore") as scratch:
            yield scratch
    else:
        log_dir.mkdir(exist_ok=True)
        yield log_dir


@dataclass(frozen=True, slots=True)
class _Run:
    """One run into log dirs that are there."""

    request: Order
    sources: Sources
    progress: Progress
    disk: Disk

    def restored(
        self,
        selected: Selection,
        replacing: Callable[[Scope], AbstractContextManager[Mapping[str, Replaced]]] | None,
        copying: Callable[[Collection[str], Collection[Path]], AbstractContextManager[Copier]] | None,
    ) -> Iterator[Result]:
        """Yield the outcome of each partition in each log dir that is to have it; what begins the cluster comes last.

        Topics of which anything is missing are not given to a new cluster: its brokers would begin with empty logs, and
        other replicas would follow them.
        """
        request = self.request
        with ExitStack() as stack:
            for log_dir in dict.fromkeys([*request.log_dirs, *filter(None, [request.new_cluster])]):
                refuse_running(log_dir)
                if not request.dry_run:
                    stack.enter_context(hold_lock(log_dir))
            targets = [Target.at(path, new_cluster=request.is_of_new_cluster) for path in request.log_dirs]
            bootstrap = None if request.new_cluster is None else read_bootstrap(request.new_cluster)
            instead = {} if replacing is None else stack.enter_context(replacing(request.scope))
            faults: list[ResnapError] = [problem.error for problem in selected.problems]
            faults += [replaced.why for replaced in instead.values()]
            lost = {one.topic_partition.topic for one in selected.problems if one.topic_partition is not None}
            found = list(self._restorable(selected.partitions, instead, faults, lost))
            work = list(self._targets_of(found, targets, faults, lost))
            beginning = None if bootstrap is None else self._beginning(bootstrap, targets, found)
            if beginning is not None:
                check_beginning(beginning, found, lost, self.sources)
            warnings = (
                *incomplete_warning(selected.incomplete, request.scope.sources[0]),
                *missing_id_warning(sorted({one.topic_partition.topic for one, _ in work if one.topic_id is None})),
                *_unmatched_settings(request, {restoration.topic_partition.topic for restoration in found} | lost),
            )
            unknown = (unknown_name(path).text for target in targets for path in target.there.unknown)
            yield Unread(faults=tuple(faults), warnings=(*warnings, *unknown))
            if not request.dry_run:
                self.progress.expect(sum(one.segments for one, _ in work), sum(one.size_bytes for one, _ in work))
            highest: dict[TopicPartition, int] = {}
            copier = Copier()
            if copying is not None:
                sources = [restoration.files[0].source for restoration, _ in work]
                copier = stack.enter_context(copying(sources, {target.path for _, target in work}))
            for (one, target), result in self._results(work, copier):
                if result.faults:
                    lost.add(one.topic_partition.topic)
                elif not request.dry_run:
                    highest[one.topic_partition] = highest_producer_id(target.path / str(one.topic_partition))
                yield result
            if beginning is None:
                yield from low_producer_ids(max(highest.values(), default=-1), request.log_dirs, request.connect)
            else:
                yield begin_cluster(beginning, found, lost, highest, self.sources)

    def _beginning(self, bootstrap: Bootstrap, targets: Sequence[Target], found: Sequence[Restoration]) -> Beginning:
        request, brokers = self.request, {target.there.broker_id for target in targets}
        store = tiered_part(request.scope.sources[0], self.sources).store
        return Beginning(
            bootstrap=bootstrap,
            assignment=request.assignment
            or Assignment(brokers=tuple(sorted(broker for broker in brokers if broker is not None))),
            url=request.scope.sources[0],
            topics=request.topics,
            exported=exported_state(store, request.cluster_state, found),
            offsets_to=request.offsets_to,
            disk=None if request.dry_run else self.disk,
        )

    def _results(
        self, work: Sequence[tuple[Restoration, Target]], copier: Copier
    ) -> Iterator[tuple[tuple[Restoration, Target], RestoredPartition | Unread]]:
        """Yield the outcomes in turn; several partitions are on their way at once where executors copy."""
        restorers = {path: Restorer(log_dir=path, disk=self.disk, copier=copier) for path in self.request.log_dirs}

        def restore(one: tuple[Restoration, Target]) -> RestoredPartition | Unread:
            return self._restore(*one, restorers[one[1].path])

        if copier.elsewhere is None:
            yield from ((item, restore(item)) for item in work)
            return
        with (
            ThreadPoolExecutor(copier.at_once, "resnap-partition") as threads,
            closing(side_by_side(restore, work, copier.at_once, copier.stop, threads)) as begun,
        ):
            for partition, result in begun:
                yield partition, result()

    def _restorable(
        self,
        partitions: Iterable[SelectedPartition],
        instead: Mapping[str, Replaced],
        faults: list[ResnapError],
        lost: set[str],
    ) -> Iterator[Restoration]:
        """Yield what can be restored; ``faults`` gets why the rest cannot be, and ``lost`` its topics."""
        layout = tiered_part(self.request.scope.sources[0], self.sources).layout
        for shipped in partitions:
            topic = shipped.topic_partition.topic
            try:
                one = _restoration(shipped, layout, self.request.topic_ids.get(topic), self.sources, instead)
                if one.topic_id is None and self.request.is_of_new_cluster:
                    raise without_topic_id(one)
            except ResnapError as error:
                faults.append(error)
                lost.add(topic)
            else:
                yield one

    def _targets_of(
        self,
        found: Sequence[Restoration],
        targets: Sequence[Target],
        faults: list[ResnapError],
        lost: set[str],
    ) -> Iterator[tuple[Restoration, Target]]:
        """Yield what comes into which log dir, by partition."""
        sizes = [(restoration.topic_partition, restoration.size_bytes) for restoration in found]
        dirs = [(target.path, target.there.broker_id) for target in targets]
        into = place_partitions(sizes, dirs, self.request.assignment)
        for restoration in found:
            for target in (target for target in targets if restoration.topic_partition in into[target.path]):
                try:
                    target.check(restoration)
                except ResnapError as error:
                    faults.append(error)
                    lost.add(restoration.topic_partition.topic)
                else:
                    yield restoration, target
            if restoration.passed_over:
                faults.append(passed_over(restoration))

    def _restore(self, one: Restoration, target: Target, restorer: Restorer) -> RestoredPartition | Unread:
        dry_run = self.request.dry_run
        try:
            outcome = restorer.look(one) if dry_run else restorer.restore(one, self.progress.advance)
        except ResnapError as error:
            return Unread(faults=(error,))
        if not dry_run and outcome is not Restored.RESTORED:
            self.progress.advance(one.segments, one.size_bytes)
        result = RestoredPartition(restoration=one, outcome=outcome, log_dir=restorer.log_dir)
        if outcome is Restored.OCCUPIED:
            what = f"{restorer.log_dir / str(one.topic_partition)} is there already, and holds another log or topic id"
            hint = "move it out of the log dir, or exclude the topic (--exclude-topic)"
            return replace(result, faults=(LogDirError(what, hint=hint),))
        # A repeated run says again what is left to do.
        warnings = () if dry_run else tuple(warnings_of(one, target))
        return replace(result, warnings=warnings, partly_done=not dry_run and outcome is Restored.RESTORED)


def _restoration(
    shipped: SelectedPartition, layout: Tiered, topic_id: str | None, sources: Sources, instead: Mapping[str, Replaced]
) -> Restoration:
    partition = shipped.inventory.partition
    store = sources.store(str(shipped.log_dir.path))
    records = layout.manifest_records(store, partition)
    one = restoration_of(partition, records, sources, topic_id, instead)
    newest = next((found.path for found in partition.snapshots if found.offset == one.end_offset), None)
    replacement = instead.get(newest or "")
    newest = newest if replacement is None else replacement.path
    return replace(
        one,
        cluster_id=shipped.log_dir.cluster_id,
        log_start=kept_log_start(partition, records.leader_epochs, sources),
        open_transactions=open_at_end(newest, sources),
    )


def _order(asked: RestoreRequest, settings: Settings) -> Order:
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
    return Order(
        scope=replace(asked.scope, sources=(asked.url,)),
        log_dirs=tuple(asked.into or ()),
        topic_ids=dict(map(_topic_id, asked.topic_id or ())),
        assignment=chosen,
        new_cluster=None if asked.new_cluster is None else asked.new_cluster.absolute(),
        topics={} if asked.topic_config is None else topics_in_file(asked.topic_config),
        cluster_state=asked.cluster_state,
        offsets_to=None if asked.offsets_to is None else asked.offsets_to.absolute(),
        connect=None if settings.bootstrap_server is None else partial(cluster_of, settings),
        dry_run=settings.dry_run,
    )


def _unmatched_settings(request: Order, topics: Collection[str]) -> Iterator[str]:
    """Yield a warning where --topic-config names what is not restored: a name that is mistyped sets nothing."""
    for topic in sorted(request.topics.keys() - set(topics)):
        if request.scope.wants(topic):
            yield f"--topic-config names {topic}, of which nothing is restored: what it says of that has no effect"


def _topic_id(text: str) -> tuple[str, str]:
    """Return the topic and its id."""
    topic, _, topic_id = text.partition("=")
    if not topic or not is_topic_id(topic_id):
        raise UsageError(f"--topic-id {text}: expected TOPIC=ID, the id in 22 characters of base64url")
    return topic, topic_id


VERB = Verb(
    takes=(TOPIC, CLUSTER, REPLAY, ENGINE, WRITE, COPYING, STORE),
    request=RestoreRequest,
    run=run,
    view=lambda _, context: RestoreView(dry_run=context.settings.dry_run),
    reads="other",
)
