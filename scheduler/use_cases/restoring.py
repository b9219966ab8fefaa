"""The use case of getting a partition back from a store: a directory that a broker opens, of what was shipped."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from resnap.scheduler.use_cases.sources import look
from resnap.storage.disk import Disk, is_directory
from resnap.storage.errors import LogDirError, ResnapError, UsageError, VerificationError, in_file
from resnap.storage.layouts.aiven.members import member_of
from resnap.storage.layouts.flat.log import manifest_locator
from resnap.storage.layouts.local_tiered.brokers_own import BrokersFolders
from resnap.storage.layouts.manifest import ObjectKind, read_manifest
from resnap.storage.log.checkpoints import read_offset_checkpoint
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.log_dir_lock import locked
from resnap.storage.log.partition_dir import read_small, readable
from resnap.storage.log.survey import LOG_START_OFFSETS
from resnap.tiering.installing.stopped_broker import refuse_running
from resnap.tiering.keeping.aiven_restoration import of_copies
from resnap.tiering.keeping.restored_log import kept_log_start, open_at_end
from resnap.tiering.keeping.restorer import Restored, Restorer, of_manifests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from resnap.scheduler.answers.progress import Progress
    from resnap.scheduler.use_cases.restored_snapshots import SnapshotRepair
    from resnap.scheduler.use_cases.sources import Scope, Sight, Sighted
    from resnap.storage.layouts.manifest import Manifest
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.sources.files import Sources
    from resnap.tiering.keeping.aiven_restoration import Replaced
    from resnap.tiering.keeping.restorer import Restoration


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOrder:
    """What is to be restored, and where."""

    scope: Scope
    """The URL of what was shipped is its one source."""
    log_dir: Path
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By name: which of several topics of that name is meant; else its id where the manifests have another, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPartition:
    """One partition, and what became of it."""

    restoration: Restoration
    outcome: Restored


@dataclass(slots=True, kw_only=True)
class RestoreReport:
    """What became of all; mutable while it fills."""

    partitions: list[RestoredPartition] = field(default_factory=list)
    errors: list[ResnapError] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """What the use case rests on."""

    sources: Sources
    disk: Disk = field(default_factory=Disk)
    repair: SnapshotRepair | None = None
    """Judges snapshots that no digest vouches for; None to take them as they are."""

    def restore(self, order: RestoreOrder, progress: Progress, *, dry_run: bool = False) -> RestoreReport:
        """Restore every partition in scope that can be; an error with one of them is in the report.

        Raises:
            LogDirInUseError: a broker runs on the log dir.
            UsageError, LogDirError: the log dir is not as it should be; nothing was changed.
            StoreError: the store cannot be listed.

        """
        if not is_directory(order.log_dir):
            raise UsageError(f"{order.log_dir} is no directory",
                             hint="give an entry of log.dirs, or make one for this: mkdir DIR")  # fmt: skip
        sight = look(replace(order.scope, topic_ids=order.topic_ids), self.sources)
        if any(not sighted.log_dir.is_shipped for sighted in sight.partitions):
            hint = "give what `resnap tier --to` was given; the copy of a log dir comes back by what copied it"
            raise UsageError(f"{order.scope.sources[0]} holds nothing that was shipped", hint=hint)
        report = RestoreReport(errors=[problem.error for problem in sight.problems])
        _refuse_strangers(order, sight)
        log_dir = order.log_dir.absolute()
        refuse_running(log_dir)
        hold: AbstractContextManager[None] = nullcontext() if dry_run else locked(log_dir)
        with hold, self._replaced(order, progress, dry_run=dry_run) as replaced:
            report.errors += [one.why for one in replaced.values()]
            found = self._fitting(sight, log_dir, order.topic_ids, report, replaced)
            progress.expect(len(found), sum(one.size_bytes for _, one in found))
            for restorer, one in found:
                outcome = _restored(restorer, one, report, progress, dry_run=dry_run)
                if outcome is not None:
                    report.partitions.append(RestoredPartition(restoration=one, outcome=outcome))
        return report

    def _replaced(
        self, order: RestoreOrder, progress: Progress, *, dry_run: bool
    ) -> AbstractContextManager[Mapping[str, Replaced]]:
        """Give what takes the place of stored snapshots; a dry run replays nothing."""
        if self.repair is None or dry_run:
            return nullcontext({})
        return self.repair.replaced(replace(order.scope, topic_ids=order.topic_ids), progress)

    def _fitting(
        self,
        sight: Sight,
        log_dir: Path,
        topic_ids: Mapping[str, str],
        report: RestoreReport,
        replaced: Mapping[str, Replaced],
    ) -> list[tuple[Restorer, Restoration]]:
        """Return what may be put into ``log_dir``, and report what may not."""
        found = []
        there = load_log_dir(log_dir, topics=lambda _: False)
        with readable(log_dir):
            log_starts = read_small(log_dir / LOG_START_OFFSETS, read_offset_checkpoint) or {}
        for sighted in sight.partitions:
            try:
                one = self._restoration(sighted, topic_ids.get(sighted.topic_partition.topic), replaced)
                _refuse_other_cluster(sighted, there)
                _refuse_without_topic_id(one, there)
                _refuse_ended_below(one, log_starts.get(one.topic_partition), log_dir)
            except ResnapError as error:
                report.errors.append(error)
            else:
                found.append((Restorer(log_dir=log_dir, disk=self.disk), one))
                report.errors += _passed_over(one)
        return found

    def _restoration(self, sighted: Sighted, topic_id: str | None, replaced: Mapping[str, Replaced]) -> Restoration:
        partition = sighted.inventory.partition
        if member_of(partition.segments[0].path):
            one, passed_over = of_copies(partition, self.sources, topic_id, replaced), []
            checkpoints = [segment.sibling(ObjectKind.LEADER_EPOCH_CHECKPOINT) for segment in partition.segments]
        else:
            manifests = [self._manifest(manifest_locator(partition, segment)) for segment in partition.segments]
            store = self.sources.store(str(sighted.log_dir.path))
            passed_over = BrokersFolders(store).without_manifest(manifests)
            one = of_manifests(partition.topic_partition, manifests, store, topic_id)
            checkpoints = [f"{store.url}/{found.key}" for manifest in manifests
                           if (found := manifest.object(ObjectKind.LEADER_EPOCH_CHECKPOINT)) is not None]  # fmt: skip
        newest = next((found.path for found in partition.snapshots if found.offset == one.end_offset), None)
        instead = replaced.get(newest or "")
        newest = newest if instead is None else instead.path
        return replace(
            one,
            passed_over=tuple(passed_over),
            log_start=kept_log_start(partition, checkpoints, self.sources),
            open_transactions=open_at_end(newest, self.sources),
        )

    def _manifest(self, locator: str) -> Manifest:
        with in_file(locator):
            return read_manifest(self.sources.read(locator))


def _restored(
    restorer: Restorer, one: Restoration, report: RestoreReport, progress: Progress, *, dry_run: bool
) -> Restored | None:
    """Restore one partition, or tell what would become of it; None where an error, in the report, came between."""
    try:
        if dry_run:
            outcome = restorer.look(one)
        else:
            outcome = restorer.restore(one, lambda size_bytes: progress.advance(0, size_bytes))
    except ResnapError as error:
        report.errors.append(error)
        return None
    progress.advance(1, 0)
    if outcome is Restored.OCCUPIED:
        what = f"{restorer.log_dir / str(one.topic_partition)} is there already, and holds something else"
        report.errors.append(LogDirError(what, hint="move it out of the log dir, or leave the topic out (--topic)"))
    return outcome


def _passed_over(one: Restoration) -> Iterator[VerificationError]:
    if one.passed_over:
        which = f"{len(one.passed_over)}, the first at offset {one.passed_over[0]}"
        yield VerificationError(
            f"{one.topic_partition}: segments that a broker tiered itself lie beside those that Resnap has shipped:"
            f" {which}; no manifest names them, so they are not restored, and the log ends at {one.end_offset}",
            hint="`resnap remote status --store URL` shows what brokers believe of them; a broker with the cluster's"
            " metadata serves them where they lie",
        )


def _refuse_other_cluster(sighted: Sighted, there: LogDir) -> None:
    cluster = sighted.log_dir.cluster_id
    if None not in (cluster, there.cluster_id) and cluster != there.cluster_id:
        raise UsageError(
            f"{sighted.topic_partition} is of cluster {cluster}, and {there.path} of {there.cluster_id}",
            hint="give a log dir of the same cluster, or a new directory",
        )


def _refuse_strangers(order: RestoreOrder, sight: Sight) -> None:
    unknown = order.topic_ids.keys() - {sighted.topic_partition.topic for sighted in sight.partitions}
    if unknown and not sight.problems:  # of which it may be one
        raise UsageError(f"--topic-id: nothing of {min(unknown)} is to be restored",
                         hint="give TOPIC=ID with the name of a topic that was shipped")  # fmt: skip


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
