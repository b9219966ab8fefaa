"""Restores tiered segments as partition directories, which a broker can open: ``restore`` has the steps.

An engine may copy the files, in threads of this process or on other machines. Where manifests have no digests, it
rebuilds wrong snapshots by a replay: brokers wrote them, and one that ``verify`` refuses would make a broker refuse
good producers, or serve aborted records.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from resnap.replay.staging import DISCARD, scratch_directory
from resnap.storage.disk import Disk, attributes_of, is_directory, is_there, make_directories
from resnap.storage.errors import LogDirError, ResnapError, StoreError, UsageError, VerificationError
from resnap.storage.log.log_dir import NoLogDirError, log_dir_around
from resnap.storage.log.log_dir_lock import hold_lock, refuse_running
from resnap.storage.log.producer_snapshot import entries_in
from resnap.storage.sources.log_dirs import incomplete_warning, nothing_tiered, tiered_part
from resnap.storage.stores.urls import local_path
from resnap.storage.threads import Threads, side_by_side
from resnap.storage.throttle import Throttle
from resnap.storage.words import first_of
from resnap.tiering.controller.metadata.writer import read_bootstrap
from resnap.tiering.controller.transactions.open_transaction import OpenTransaction
from resnap.tiering.controller.transactions.state_log import TransactionStates, known_states
from resnap.tiering.judging.broker_start import unknown_names
from resnap.tiering.restoring.new_cluster import Assignment, place_partitions
from resnap.tiering.restoring.new_metadata import (
    Beginning,
    NewCluster,
    begin_cluster,
    exported_state,
    low_producer_ids,
    new_topics,
)
from resnap.tiering.restoring.restoration import (
    Replaced,
    highest_producer_id,
    passed_over,
    restoration_of,
)
from resnap.tiering.restoring.restorer import FILE_MODE, Copier, Restored, Restorer, Target, without_topic_id, work_at
from resnap.tiering.selection import select
from resnap.tiering.store_check import StoreCheck
from resnap.tiering.stored_snapshots import compared_snapshots
from resnap.tiering.verifying.verification import StoreReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from resnap.replay.spark.task_pool import TaskPool
    from resnap.replay.watching import Progress
    from resnap.storage.layouts.protocol import Tiered
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.sources.files import Sources
    from resnap.tiering.cluster.client import Connect
    from resnap.tiering.controller.metadata.writer import Bootstrap
    from resnap.tiering.engine import Engine
    from resnap.tiering.planner import Planner
    from resnap.tiering.restoring.restoration import Restoration
    from resnap.tiering.selection import Scope, SelectedPartition, Selection
    from resnap.tiering.shipping.notes import TopicSettings
    from resnap.tiering.stored_snapshots import SnapshotCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOrder:
    """What is to be restored, and where."""

    scope: Scope
    """Its one source is the URL of what was shipped. The topic ids say which of several topics of a name is meant, or
    replace the id in the manifests."""
    log_dirs: tuple[Path, ...] = ()
    assignment: Assignment | None = None
    """Which brokers get a replica in a new cluster; None for each log dir's broker, of any cluster."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreWork:
    """What one run works with."""

    sources: Sources
    progress: Progress
    disk: Disk = field(default_factory=Disk)
    replacing: Callable[[Scope], AbstractContextManager[Mapping[str, Replaced]]] | None = None
    """Gives what takes the place of stored snapshots that no digest vouches for; None to take them as they are."""
    copying: Callable[[Collection[str], Collection[Path]], AbstractContextManager[Copier]] | None = None
    """Gives what copies, by locators and log dirs; None for this thread."""
    on_state: Callable[[TopicPartition, int, int, str], None] = lambda *_: None
    """Is called with partition, offset, number of producers and locator of each stored snapshot."""


class RestoreNotice(NamedTuple):
    """What could not be restored, and what is to be known besides; of no partition that was."""

    faults: tuple[ResnapError, ...] = ()
    warnings: tuple[str, ...] = ()


class RestoredPartition(NamedTuple):
    """One partition, and its outcome in one log dir; of a dry run, what the outcome would be."""

    restoration: Restoration
    outcome: Restored
    log_dir: Path
    faults: tuple[ResnapError, ...] = ()
    warnings: tuple[str, ...] = ()


RestoreReport: TypeAlias = RestoreNotice | RestoredPartition | NewCluster


def restore(order: RestoreOrder, work: RestoreWork, report: Callable[[RestoreReport], None]) -> None:
    """Restore every partition in scope that can be; ``report`` is called with each as soon as it is done.

    What begins a new cluster comes last. It does not get topics of which anything is missing: its brokers would begin
    with empty logs, and other replicas would follow them.

    Raises:
        LogDirInUseError: a broker runs on the log dir.
        UsageError, LogDirError: the log dir is not as it should be; nothing was changed.
        StoreError: the store cannot be listed.

    """
    # Select what was shipped, into log dirs where a broker would find it.
    made = {log_dir for log_dir in order.log_dirs if _may_be_made(log_dir, order)}
    for log_dir in order.log_dirs:
        _check_place(log_dir, is_made=log_dir in made)
    selected = _shipped(order, work)
    with ExitStack() as stack:
        # Hold the log dirs: neither a broker nor another run is at work on them.
        there = [
            stack.enter_context(_new_directory(log_dir, order, work)) if log_dir in made else log_dir
            for log_dir in order.log_dirs
        ]
        named = (log_dir.absolute() for log_dir in order.log_dirs)
        run = _Restoring(order, work, dict(zip((log_dir.absolute() for log_dir in there), named, strict=True)))
        run.hold(stack)
        targets = [Target.at(path, new_cluster=order.is_of_new_cluster) for path in run.log_dirs]
        bootstrap = None if order.new_cluster is None else read_bootstrap(order.new_cluster)
        # Rebuild stored snapshots that are wrong, and judge what can be restored, and which log dir gets it.
        instead = {} if work.replacing is None else stack.enter_context(work.replacing(order.scope))
        found = run.judge(selected, instead)
        to_do = run.place(found, targets)
        beginning = None if bootstrap is None else run.beginning(bootstrap, targets, found)
        report(RestoreNotice(tuple(run.faults), tuple(run.warnings(selected, found, to_do, targets))))
        # Copy each partition under another name, compare it with its manifests, and give it its own.
        highest = run.copy(to_do, stack, report)
        # Begin the new cluster, with the topics that are whole.
        if beginning is not None:
            report(begin_cluster(beginning, found, run.lost, highest))
            return
        above = low_producer_ids(max(highest.values(), default=-1), [*run.log_dirs], order.connect)
        report(RestoreNotice(warnings=tuple(above)))


def _check_place(log_dir: Path, *, is_made: bool) -> None:
    around = log_dir_around(Path(realpath(log_dir)).parent)
    if around is not None:
        hint = "a broker does not start with an unknown directory in its log dir: give the log dir, or a place outside"
        raise UsageError(f"{log_dir} is inside the log dir {around}", hint=hint)
    if not is_made and not is_directory(log_dir):
        hint = "give an entry of log.dirs, or a new directory in one that is there"
        raise UsageError(f"{log_dir} is not a directory", hint=hint)


def _may_be_made(log_dir: Path, order: RestoreOrder) -> bool:
    """Whether the log dir can be created: its parent exists, and is not inside the store that is restored."""
    parent, store = log_dir.absolute().parent, local_path(order.scope.sources[0])
    if is_there(log_dir) or order.is_of_new_cluster or not is_directory(parent):
        return False
    return store is None or not parent.resolve().is_relative_to(store.resolve())


@contextmanager
def _new_directory(log_dir: Path, order: RestoreOrder, work: RestoreWork) -> Iterator[Path]:
    """Make a directory that is to be restored into; for a dry run an empty one elsewhere."""
    if order.dry_run:
        with scratch_directory("restore") as scratch:
            yield scratch
    else:
        make_directories(work.disk, log_dir)
        yield log_dir


def _shipped(order: RestoreOrder, work: RestoreWork) -> Selection:
    """Return what was shipped; raises UsageError where nothing was, or none of a topic whose id is given."""
    url = order.scope.sources[0]
    try:
        selected = select(order.scope, work.sources)
    except NoLogDirError as error:
        raise nothing_tiered(url) from error
    if any(not partition.log_dir.is_shipped for partition in selected.partitions):
        hint = "give what `resnap tier --to` was given; restore a copy of a log dir with the tool that copied it"
        raise UsageError(f"{url} holds nothing that was shipped", hint=hint)
    for partition in selected.partitions:
        for snapshot in partition.inventory.partition.snapshots:
            work.on_state(partition.topic_partition, snapshot.offset, entries_in(snapshot.size_bytes), snapshot.path)
    unknown = order.scope.topic_ids.keys() - {partition.topic_partition.topic for partition in selected.partitions}
    if unknown and not selected.problems:  # of which it may be one
        hint = "give TOPIC=ID with the name of a topic that was shipped"
        raise UsageError(f"--topic-id: nothing of {min(unknown)} is to be restored", hint=hint)
    return selected


@dataclass(slots=True)
class _Restoring:
    """One run into log dirs that are there."""

    order: RestoreOrder
    work: RestoreWork
    log_dirs: Mapping[Path, Path]
    """The log dirs of the order, by path: a dry run has empty ones elsewhere for those that it would make."""
    faults: list[ResnapError] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    """Topics of which something cannot be restored, or was not."""

    def hold(self, stack: ExitStack) -> None:
        """Hold each log dir while ``stack`` lasts; raises LogDirInUseError where a broker or another run does."""
        for log_dir in dict.fromkeys([*self.log_dirs, *filter(None, [self.order.new_cluster])]):
            refuse_running(log_dir)
            if not self.order.dry_run:
                stack.enter_context(hold_lock(log_dir))

    def judge(self, selected: Selection, instead: Mapping[str, Replaced]) -> list[Restoration]:
        """Return what can be restored of the selected partitions, and keep why the rest cannot be."""
        self.faults += [problem.error for problem in selected.problems]
        self.faults += [replaced.why for replaced in instead.values()]
        self.lost.update(one.topic_partition.topic for one in selected.problems if one.topic_partition is not None)
        layout, found = tiered_part(self.order.scope.sources[0], self.work.sources).layout, []
        for shipped in selected.partitions:
            topic = shipped.topic_partition.topic
            try:
                one = self._restoration(shipped, layout, instead)
                if one.topic_id is None and self.order.is_of_new_cluster:
                    raise without_topic_id(one)
            except ResnapError as error:
                self.faults.append(error)
                self.lost.add(topic)
            else:
                found.append(one)
        return found

    def _restoration(self, shipped: SelectedPartition, layout: Tiered, instead: Mapping[str, Replaced]) -> Restoration:
        partition, sources = shipped.inventory.partition, self.work.sources
        records = layout.manifest_records(sources.store(str(shipped.log_dir.path)), partition)
        topic_id = self.order.scope.topic_ids.get(partition.topic_partition.topic)
        cluster_id = shipped.log_dir.cluster_id
        return restoration_of(partition, records, sources, topic_id, instead, cluster_id=cluster_id)

    def place(self, found: Sequence[Restoration], targets: Sequence[Target]) -> list[tuple[Restoration, Target]]:
        """Return what comes into which log dir, by partition, and keep why others do not."""
        placed = []
        sizes = [(restoration.topic_partition, restoration.size_bytes) for restoration in found]
        dirs = [(target.path, target.there.broker_id) for target in targets]
        into = place_partitions(sizes, dirs, self.order.assignment)
        for restoration in found:
            for target in (target for target in targets if restoration.topic_partition in into[target.path]):
                try:
                    target.check(restoration)
                except ResnapError as error:
                    self.faults.append(error)
                    self.lost.add(restoration.topic_partition.topic)
                else:
                    placed.append((restoration, target))
            if restoration.passed_over:
                self.faults.append(passed_over(restoration))
        return placed

    def beginning(self, bootstrap: Bootstrap, targets: Sequence[Target], found: Sequence[Restoration]) -> Beginning:
        """Return what a new cluster is made of; raises UsageError where a partition of it would have no replica."""
        order, brokers = self.order, {target.there.broker_id for target in targets}
        store = tiered_part(order.scope.sources[0], self.work.sources).store
        exported = exported_state(store, order.cluster_state, found)
        whole = (one for one in found if one.topic_partition.topic not in self.lost)
        to = order.assignment or Assignment(brokers=tuple(sorted(broker for broker in brokers if broker is not None)))
        return Beginning(
            bootstrap=bootstrap,
            topics=list(new_topics(whole, store, to, order.topics, exported)),
            exported=exported,
            offsets_to=order.offsets_to,
            disk=None if order.dry_run else self.work.disk,
        )

    def warnings(
        self,
        selected: Selection,
        found: Sequence[Restoration],
        to_do: Sequence[tuple[Restoration, Target]],
        targets: Sequence[Target],
    ) -> Iterator[str]:
        """Yield what is to be known before anything is copied."""
        yield from incomplete_warning(selected.incomplete, self.order.scope.sources[0])
        yield from _missing_id_warning(sorted({one.topic_partition.topic for one, _ in to_do if one.topic_id is None}))
        restored = {restoration.topic_partition.topic for restoration in found} | self.lost
        for topic in sorted(self.order.topics.keys() - restored):
            if self.order.scope.wants(topic):  # a name that is mistyped sets nothing
                yield f"--topic-config names {topic}, of which nothing is restored: what it says of that has no effect"
        yield from (unknown_names([path]).text for target in targets for path in target.there.unknown)

    def copy(
        self,
        to_do: Sequence[tuple[Restoration, Target]],
        stack: ExitStack,
        report: Callable[[RestoreReport], None],
    ) -> dict[TopicPartition, int]:
        """Restore partitions, several at once where executors copy; return the highest producer id of each."""
        if not self.order.dry_run:
            self.work.progress.expect(sum(one.segments for one, _ in to_do), sum(one.size_bytes for one, _ in to_do))
        copier = Copier()
        if self.work.copying is not None:
            locators = [restoration.files[0].source for restoration, _ in to_do]
            copier = stack.enter_context(self.work.copying(locators, {target.path for _, target in to_do}))
        highest: dict[TopicPartition, int] = {}
        for (one, target), result in self._copied(to_do, copier):
            if result.faults:
                self.lost.add(one.topic_partition.topic)
            elif not self.order.dry_run:
                highest[one.topic_partition] = highest_producer_id(target.path / str(one.topic_partition))
            report(result)
        return highest

    def _copied(
        self, to_do: Sequence[tuple[Restoration, Target]], copier: Copier
    ) -> Iterator[tuple[tuple[Restoration, Target], RestoredPartition | RestoreNotice]]:
        """Yield the outcomes in turn."""
        restorers = {path: Restorer(log_dir=path, disk=self.work.disk, copier=copier) for path in self.log_dirs}

        def restore(one: tuple[Restoration, Target]) -> RestoredPartition | RestoreNotice:
            return self._restore(*one, restorers[one[1].path])

        if copier.elsewhere is None:
            yield from ((item, restore(item)) for item in to_do)
            return
        with (
            Threads(copier.at_once, "resnap-partition") as threads,
            closing(side_by_side(restore, to_do, copier.at_once, copier.stop, threads)) as begun,
        ):
            for partition, result in begun:
                yield partition, result()

    def _restore(self, one: Restoration, target: Target, restorer: Restorer) -> RestoredPartition | RestoreNotice:
        dry_run, advance = self.order.dry_run, self.work.progress.advance
        try:
            outcome = restorer.look(one) if dry_run else restorer.restore(one, advance)
        except ResnapError as error:
            return RestoreNotice(faults=(error,))
        if not dry_run and outcome is not Restored.RESTORED:
            advance(one.segments, one.size_bytes)
        log_dir = self.log_dirs[restorer.log_dir]
        if outcome is Restored.OCCUPIED:
            what = f"{restorer.log_dir / str(one.topic_partition)} is there already, and holds another log or topic id"
            hint = "move it out of the log dir, or exclude the topic (--exclude-topic)"
            return RestoredPartition(one, outcome, log_dir, faults=(LogDirError(what, hint=hint),))
        # A repeated run says again what is left to do.
        return RestoredPartition(
            one, outcome, log_dir, warnings=() if dry_run else tuple(_open_at_end_warnings(one, target))
        )


def _missing_id_warning(topics: Sequence[str]) -> Iterator[str]:
    """Yield what to do about ``topics``, which have no id, if there are any."""
    if topics:
        yield (
            f"no topic id was shipped of {first_of(topics)}, so there is no partition.metadata: a broker"
            " with ZooKeeper makes it, one with KRaft sets the directories aside as stray: for that one give --topic-id"
        )


def _open_at_end_warnings(restoration: Restoration, target: Target) -> Iterator[str]:
    """Yield a warning for each transaction that is open at the end of the restored log, with what to do."""
    producer_ids = [entry.producer_id for entry in restoration.open_transactions]
    states = known_states(target.path, producer_ids) if target.is_of_cluster_of(restoration) else TransactionStates()
    for entry in restoration.open_transactions:
        one = OpenTransaction.of_entry(restoration.topic_partition, entry, states)
        held = "" if one.transactional_id is None else f", held by transactional id {one.transactional_id!r}"
        yield (
            f"{one.what}{held}, and its end was not shipped: consumers with read_committed stop there, and the"
            f" producer's next commit would commit these records, too. {one.advice()}"
        )


@contextmanager
def restoring_copier(
    engine: Engine,
    sources: Collection[str],
    into: Collection[Path],
    *,
    parallel: int,
    is_parallel_asked: bool,
    bytes_per_s: int | None,
) -> Iterator[Copier]:
    """Yield the copier: threads of this machine, or Spark's executors, which must reach the sources and log dirs.

    Raises:
        UsageError: they do not.

    """
    if not engine.is_remote or not sources:
        with Threads(parallel, "resnap-copy") as threads:
            yield Copier(throttle=Throttle(bytes_per_s=bytes_per_s), threads=threads, at_once=parallel)
        return
    for log_dir in into:
        engine.check_reach(sources, log_dir.as_uri(), replace(attributes_of(log_dir), mode=FILE_MODE, mtime_ns=None))
    at_once = parallel if is_parallel_asked else None
    pool: TaskPool[Any, Any]
    with (
        engine.task_pool(
            lambda rate: partial(work_at, rate), "writing files", at_once=at_once, bytes_per_s=bytes_per_s
        ) as pool,
        Threads(pool.items_at_once, "resnap-copy") as threads,
    ):
        yield Copier(threads=threads, at_once=pool.items_at_once, elsewhere=pool.result, stop=pool.close)


@contextmanager
def replaced_snapshots(planner: Planner, progress: Progress, scope: Scope) -> Iterator[Mapping[str, Replaced]]:
    """Give what takes the place of snapshots that are wrong, by their locators; nothing where manifests have digests.

    Raises:
        ResnapError: the replay failed.

    """
    with scratch_directory("restored") as directory:
        yield {check.key: _replace(check, directory) for check in _wrong_snapshots(planner, progress, scope, directory)}


def _wrong_snapshots(planner: Planner, progress: Progress, scope: Scope, directory: Path) -> Iterator[SnapshotCheck]:
    part = tiered_part(scope.sources[0], planner.sources)
    check = StoreCheck(part=part, scope=scope, planner=planner, sources=planner.sources)
    if part.layout.has_digests:
        return
    reader = StoreReader(store=part.store, listing=check.listing, sources=planner.sources)
    # The executors of a cluster cannot write into a directory of this machine.
    check.sink = DISCARD if planner.engine.is_remote else directory.as_uri()
    for key in check.listing.manifests:
        manifest = reader.verify(key, reads_objects=False).manifest
        if manifest is not None:
            check.manifests[key] = manifest
            check.asked_for.add(key)
    for found in compared_snapshots(check, progress):
        if isinstance(found.problem, StoreError):
            raise found.problem
        if found.problem is not None:
            yield found


def _replace(check: SnapshotCheck, directory: Path) -> Replaced:
    made = None if check.rebuilt is None else directory / check.rebuilt
    hint = "see `resnap verify URL`"
    if made is None or not made.exists():
        why = f"{check.problem}; it was not restored: the broker makes it again when it loads the log"
        return Replaced(None, VerificationError(why, hint=hint))
    why = f"{check.problem}; it was not restored, and rebuilt from the stored segments"
    return Replaced(str(made), VerificationError(why, hint=hint))
