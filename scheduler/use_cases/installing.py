"""The use cases of putting snapshots back: install, its preview, and its undoing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import Disk, is_directory, make_directories, make_new_directory
from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.log.log_dir import log_dir_around, open_log_dir_or_partition
from resnap.storage.stores.urls import is_store_url, local_path, open_store
from resnap.tiering.installing.install_survey import Surveyed, survey
from resnap.tiering.installing.installation import Decision, Fate, PartitionInstallation
from resnap.tiering.installing.installer import Installer
from resnap.tiering.installing.staging_area import StagingArea
from resnap.tiering.installing.stopped_broker import refuse_running, shutdown_mark, stopped
from resnap.tiering.installing.undo_manifest import MANIFEST_FILE
from resnap.tiering.inventory import take_inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from resnap.scheduler.answers.progress import Progress
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.use_cases.sources import Scope
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.stores.s3_settings import S3Settings
    from resnap.tiering.installing.installation import Replace
    from resnap.tiering.installing.undo_manifest import ShutdownMark
    from resnap.tiering.planning import SavedPlan

UNDO_SUFFIX: Final = ".undo"
"""Ends the name of the folder, beside the staged snapshots, that holds what undoes their installations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOrder:
    """What is to be installed, and where."""

    staged: str
    """What `resnap regenerate --into` was given: a directory or a URL."""
    scope: Scope
    """The log dir is its one source."""
    plan: SavedPlan | None = None
    """What it names is installed, and nothing else; None for all that is staged."""
    asked: Collection[Replace] = ()
    undo_dir: Path | None = None
    """Beside the staged snapshots, unless given."""

    @property
    def log_dir(self) -> Path:
        """What was given as the log dir."""
        return Path(self.scope.sources[0])

    def wanted(self, key: TopicPartition, staged: list[int]) -> list[int]:
        """Return those of the offsets ``staged`` of a partition that are in scope and, if there is one, in the plan."""
        if not self.scope.wants(key.topic):
            return []
        if self.plan is None:
            return staged
        named = set(self.plan.boundaries.get(key, ()))
        return [offset for offset in staged if offset in named]


@dataclass(slots=True, kw_only=True)
class InstallReport:
    """What became of all; mutable while it fills."""

    partitions: list[PartitionInstallation] = field(default_factory=list)
    problems: list[ResnapError] = field(default_factory=list)
    """Partitions that could not be read."""
    absent: list[TopicPartition] = field(default_factory=list)
    """Partitions that are staged, and not in the log dir."""
    manifest: Path | None = None
    """Undoes it; None where nothing was to be done."""
    error: ResnapError | None = None
    """What ended the run before its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installing:
    """What the use cases share."""

    clock: Clock
    s3: S3Settings
    disk: Disk = field(default_factory=Disk)

    def preview(self, order: InstallOrder) -> tuple[InstallReport, ResnapError | None]:
        """Tell what would be done, and what stands against doing it now; nothing is written, and no lock taken.

        Raises:
            StalePlanError: what the plan rests on has changed.
            UsageError, LogDirError, StoreError: something is not what it should be, or cannot be read.

        """
        area, report = self._area(order), InstallReport()
        log_dir = self._survey(order, area, report)[0]
        try:
            refuse_running(log_dir)
            shutdown_mark(log_dir)
        except ResnapError as obstacle:
            return report, obstacle
        return report, None

    def install(self, order: InstallOrder, progress: Progress, tell: Callable[[Path], None]) -> InstallReport:
        """Install what is staged; ``tell`` is told of the manifest before the first change.

        An error in the middle is in the report: what was done before it stays done.

        Raises:
            LogDirInUseError: a broker runs there.
            StalePlanError: what the plan rests on has changed; nothing was changed.
            UsageError, LogDirError, StoreError: something is not as it should be; nothing was changed.

        """
        area = self._area(order)
        undo_root = undo_root_of(order)
        with stopped(_log_dir(order)) as mark:
            report = InstallReport()
            log_dir, surveyed = self._survey(order, area, report)
            installer = Installer(log_dir=log_dir, area=area, disk=self.disk)
            if any(one.installation.changes for one in surveyed):
                report.manifest = self._write_down(installer, surveyed, mark, undo_root)
                tell(report.manifest)
                self._apply(installer, surveyed, report, progress)
        return report

    def _area(self, order: InstallOrder) -> StagingArea:
        if is_store_url(order.staged):
            return StagingArea(open_store(order.staged, self.s3))
        path = Path(order.staged).absolute()
        if not is_directory(path):
            raise UsageError(f"{path} is no directory", hint="give what `resnap regenerate --into` was given")
        return StagingArea(open_store(path.as_uri(), self.s3))

    def _survey(self, order: InstallOrder, area: StagingArea, report: InstallReport) -> tuple[Path, list[Surveyed]]:
        staged = {key: offsets for key, found in area.offsets().items() if (offsets := order.wanted(key, found))}
        if not staged:
            raise UsageError(f"{order.staged} has no snapshot of any topic in question",
                             hint="give what `resnap regenerate --into` was given")  # fmt: skip
        log_dir = open_log_dir_or_partition(order.log_dir, topics=lambda key: key in staged)
        inventory = take_inventory(log_dir)
        if order.plan is not None:
            for found in inventory.partitions:
                order.plan.check_fresh(found)
        report.problems += [problem.error for problem in inventory.problems]
        there = {found.partition.topic_partition for found in inventory.partitions}
        unread = {problem.path.name for problem in inventory.problems}
        report.absent += [key for key in staged if key not in there and str(key) not in unread]
        if not there and not report.problems:
            raise UsageError(f"{order.log_dir} has none of the partitions in {order.staged}",
                             hint="give the log dir that the snapshots were made from")  # fmt: skip
        surveyed = []
        for found in inventory.partitions:
            decided = survey(found, staged[found.partition.topic_partition], area, order.asked)
            surveyed.append(Surveyed(inventory=found, installation=decided))
        report.partitions = [one.installation for one in surveyed]
        return Path(str(log_dir.path)), surveyed

    def _write_down(self, installer: Installer, surveyed: list[Surveyed], mark: ShutdownMark, undo_root: Path) -> Path:
        now_ms = self.clock.now_ms()
        undo_dir = _new_folder(self.disk, undo_root, now_ms)
        installer.write_down(surveyed, mark, undo_dir, now_ms=now_ms)
        return undo_dir / MANIFEST_FILE

    def _apply(self, installer: Installer, surveyed: list[Surveyed], report: InstallReport, progress: Progress) -> None:
        changes = [change for one in surveyed for change in one.installation.changes]
        progress.expect(len(changes), sum(change.size_bytes for change in changes))
        for index, one in enumerate(surveyed):
            made: set[int] = set()

            def done(decision: Decision, made: set[int] = made) -> None:
                made.add(decision.offset)
                progress.advance(1, decision.size_bytes)

            if report.error is None:
                try:
                    installer.apply(one, done)
                except ResnapError as error:
                    report.error = error
            report.partitions[index] = _as_far_as(one.installation, made)


def _as_far_as(installation: PartitionInstallation, made: Collection[int]) -> PartitionInstallation:
    """Return ``installation`` with what was not done shown as such."""
    decisions = tuple(
        replace(one, fate=Fate.NOT_REACHED) if one.is_change and one.offset not in made else one
        for one in installation.decisions
    )
    return replace(installation, decisions=decisions)


def undo_root_of(order: InstallOrder) -> Path:
    """Return the folder in which manifests are kept.

    Raises:
        UsageError: it would be inside a log dir, or there is no place beside the staged snapshots.

    """
    staged = Path(order.staged).absolute() if not is_store_url(order.staged) else local_path(order.staged)
    if order.undo_dir is not None:
        root = order.undo_dir.absolute()
    elif staged is not None:
        root = staged.with_name(staged.name + UNDO_SUFFIX)
    else:
        raise UsageError(f"beside {order.staged} nothing can be kept", hint="give --undo-dir, a directory here")
    target = Path(realpath(_log_dir(order)))
    log_dir = log_dir_around(root) or (target if Path(realpath(root)).is_relative_to(target) else None)
    if log_dir is not None:
        hint = "a broker does not start with a strange directory in its log dir: give --undo-dir, a place outside"
        raise UsageError(f"{root} is inside the log dir {log_dir}", hint=hint)
    return root


def _log_dir(order: InstallOrder) -> Path:
    """Return the log dir, where one partition's directory was given the one that it lies in."""
    return Path(str(open_log_dir_or_partition(order.log_dir, topics=lambda _: False).path))


def _new_folder(disk: Disk, root: Path, now_ms: int) -> Path:
    """Make a folder below ``root``, named by the time, that no other run has: one at another log dir may share it."""
    name = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    make_directories(disk, root)
    return next(root / one for one in names if make_new_directory(disk, root / one))
