"""Installs staged snapshots that fit beside the segments of a stopped broker, and first writes what undoes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import Disk, is_directory, make_directories, make_new_directory, refuse_unwritable
from resnap.storage.errors import LogDirError, ResnapError, StalePlanError, UsageError, VerificationError
from resnap.storage.log.log_dir import log_dir_around, open_log_dir_or_partition
from resnap.storage.log.log_dir_lock import lock_stopped_broker, refuse_running, shutdown_mark
from resnap.storage.log.names import DirKind, parse_partition_dir_name
from resnap.storage.stores.urls import is_store_url, local_path, open_store
from resnap.storage.words import some
from resnap.tiering.broker_releases import destination_releases
from resnap.tiering.installing.installation import REFUSALS, Decision, Outcome, PartitionInstallation
from resnap.tiering.installing.installer import Installer, decide, refuse_what_is_no_file
from resnap.tiering.installing.staging_area import StagingArea
from resnap.tiering.installing.undo import MANIFEST_FILE
from resnap.tiering.judging.broker_start import unknown_names
from resnap.tiering.judging.inventory import take_inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from resnap.replay.watching import Progress
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.names import FileKind, TopicPartition
    from resnap.storage.stores.s3_settings import S3Settings
    from resnap.tiering.installing.installation import Replace
    from resnap.tiering.judging.planning import SavedPlan
    from resnap.tiering.selection import Scope

UNDO_SUFFIX: Final = ".undo"
"""Ends the name of the folder, beside the staged snapshots, that holds what undoes their installations."""
_ELSEWHERE: Final = "give --undo-dir, a directory that this user may write to"


_ASIDE: Final = {
    DirKind.FUTURE: "a broker moves the partition to this disk, and writes snapshots as it copies; what is installed"
    " into the log dir that it comes from goes when the move ends: let it end, and regenerate from here what is"
    " lacking",
    DirKind.DELETE: "the partition was deleted, or moved to another disk",
    DirKind.STRAY: "a broker of KRaft has set the partition aside",
}


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
    dry_run: bool = False
    kafka_version: str | None = None
    """Release of the broker; its metadata log shows the line, where it is in the log dir."""

    @property
    def log_dir(self) -> Path:
        """The log dir that was given, or the log dir of the partition directory that was given."""
        given = Path(self.scope.sources[0])
        return Path(str(open_log_dir_or_partition(given, topics=lambda _: False).path))

    @property
    def planned(self) -> dict[TopicPartition, tuple[int, ...]]:
        """What of the plan is in scope; nothing where there is none."""
        named = {} if self.plan is None else self.plan.boundaries
        return {key: offsets for key, offsets in named.items() if self.scope.wants(key.topic)}

    def wanted(self, key: TopicPartition, staged: list[int]) -> list[int]:
        """Return the ``staged`` offsets of a partition that are in scope, and in the plan if one is given."""
        if not self.scope.wants(key.topic):
            return []
        return staged if self.plan is None else [one for one in staged if one in self.plan.boundaries.get(key, ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What was, or would be, done in all partitions of a log dir."""

    log_dir: Path
    partitions: tuple[PartitionInstallation, ...]
    problems: tuple[ResnapError, ...]
    """Partitions that could not be read, and boundaries of the plan that are not staged."""
    absent: tuple[TopicPartition, ...]
    """Partitions that are staged, and not in the log dir."""
    warnings: tuple[str, ...]
    manifest: Path | None = None
    """Undoes it; None where nothing was to be done."""
    obstacle: ResnapError | None = None
    """What prevents it now, of a dry run: the broker runs, or it was not shut down cleanly."""
    error: ResnapError | None = None
    """What ended the run before its end; what was done before stays done."""

    @property
    def faults(self) -> tuple[ResnapError, ...]:
        """All that went wrong, with that error."""
        refusals = (refusal for partition in self.partitions for refusal in _refusals(partition))
        return (*self.problems, *refusals, *(() if self.error is None else (self.error,)))

    @property
    def has_changes(self) -> bool:
        """Whether anything was to be changed."""
        return any(partition.changes for partition in self.partitions)


def preview(order: InstallOrder, s3: S3Settings) -> Installed:
    """Return what would be done, and warn of what prevents it now; nothing is written, and no lock taken.

    What would be done in part counts as that, so that the exit code is that of the run.
    """
    result = _decide(order, _area(order, s3))
    refuse_what_is_no_file(result.partitions)
    try:
        if result.has_changes:
            refuse_unwritable(_undo_root(order), _ELSEWHERE)
        refuse_running(result.log_dir)
        shutdown_mark(result.log_dir)
    except ResnapError as obstacle:
        warning = f"nothing could be installed now: {obstacle}; {obstacle.hint}"
        return replace(result, warnings=(warning, *result.warnings), obstacle=obstacle)
    return result


def install(
    order: InstallOrder,
    *,
    now_ms: Callable[[], int],
    s3: S3Settings,
    progress: Progress,
    on_manifest: Callable[[Path], None] = lambda _: None,
    disk: Disk | None = None,
) -> Installed:
    """Install what is staged; ``on_manifest`` gets the path of the manifest before the first change."""
    disk = disk or Disk()
    area, undo_root = _area(order, s3), _undo_root(order)
    with lock_stopped_broker(order.log_dir) as mark:
        decided = _decide(order, area)
        if not decided.has_changes:
            return decided
        refuse_unwritable(undo_root, _ELSEWHERE)
        installer = Installer(log_dir=decided.log_dir, area=area, disk=disk)
        began_ms = now_ms()
        undo_dir = _new_folder(disk, undo_root, began_ms)
        installer.write_down(decided.partitions, mark, undo_dir, now_ms=began_ms)
        on_manifest(undo_dir / MANIFEST_FILE)
        return _apply(installer, replace(decided, manifest=undo_dir / MANIFEST_FILE), progress)


def _area(order: InstallOrder, s3: S3Settings) -> StagingArea:
    if is_store_url(order.staged):
        return StagingArea(open_store(order.staged, s3))
    path = Path(order.staged).absolute()
    if not is_directory(path):
        raise UsageError(f"{path} is not a directory", hint="give what `resnap regenerate --into` was given")
    return StagingArea(open_store(path.as_uri(), s3))


def _decide(order: InstallOrder, area: StagingArea) -> Installed:
    """Return what of the staged snapshots is to be installed; nothing is written."""
    staged = {key: offsets for key, found in area.offsets().items() if (offsets := order.wanted(key, found))}
    if not staged:
        raise UsageError(f"{order.staged} has no snapshot of any selected topic",
                         hint="give what `resnap regenerate --into` was given")  # fmt: skip
    given = Path(order.scope.sources[0])
    planned = order.planned
    log_dir = open_log_dir_or_partition(given, topics=lambda key: key in staged or key in planned)
    inventory = take_inventory(log_dir)
    if order.plan is not None:
        for found in inventory.partitions:
            order.plan.check_fresh(found)
    there = {found.partition.topic_partition for found in inventory.partitions}
    unread = {problem.topic_partition for problem in inventory.problems}
    aside = _aside(log_dir)
    if not there and not inventory.problems:
        found_aside = next((aside[key] for key in staged if key in aside), "")
        raise UsageError(f"{given} has none of the partitions in {order.staged}{found_aside}",
                         hint="give the log dir that the snapshots were made from")  # fmt: skip
    partitions: list[PartitionInstallation] = []
    problems = [problem.error for problem in inventory.problems]
    for found in inventory.partitions:
        key = found.partition.topic_partition
        offsets = staged.get(key, [])
        if absent := sorted(set(planned.get(key, ())).difference(offsets)):
            problems.append(_not_staged(order.staged, key, absent))
        releases = partial(destination_releases, order.kafka_version, str(log_dir.path), log_dir.broker_id)
        try:
            partitions.append(decide(found, offsets, area, order.asked, releases))
        except LogDirError as error:
            problems.append(error)
    absent_keys = tuple(key for key in staged if key not in there and key not in unread)
    return Installed(
        log_dir=Path(str(log_dir.path)),
        partitions=tuple(partitions),
        problems=tuple(problems),
        absent=absent_keys,
        warnings=(
            *(f"{key} is staged, but not in the log dir{aside.get(key, '')}" for key in absent_keys),
            *(unknown_names([path]).text for path in log_dir.unknown),
        ),
    )


def _aside(log_dir: LogDir) -> dict[TopicPartition, str]:
    """Return for each partition that is deleted, set aside or still being copied a text that says so."""
    kinds = log_dir.set_aside
    parsed = {text: parse_partition_dir_name(text) for text in kinds}
    return {
        name.topic_partition: f": only {text} is there: {_ASIDE[kinds[text]]}"
        for text, name in parsed.items()
        if name is not None and kinds[text] in _ASIDE
    }


def _apply(installer: Installer, decided: Installed, progress: Progress) -> Installed:
    """Make the changes; mark those that an error prevented, and note that error."""
    changes = [change for partition in decided.partitions for change in partition.changes]
    progress.expect(len(changes), sum(change.size_bytes for change in changes))
    error: ResnapError | None = None
    partitions = []
    for partition in decided.partitions:
        made: set[tuple[FileKind, int]] = set()

        def done(decision: Decision, made: set[tuple[FileKind, int]] = made) -> None:
            made.add((decision.kind, decision.offset))
            progress.advance(1, decision.size_bytes)

        if error is None:
            try:
                installer.apply(partition, done)
            except ResnapError as failed:
                error = failed
        decisions = tuple(
            replace(decision, outcome=Outcome.NOT_REACHED)
            if decision.is_change and (decision.kind, decision.offset) not in made
            else decision
            for decision in partition.decisions
        )
        partitions.append(replace(partition, decisions=decisions))
    return replace(decided, partitions=tuple(partitions), error=error)


def _undo_root(order: InstallOrder) -> Path:
    """Return the folder in which manifests are kept.

    Raises:
        UsageError: it would be inside a log dir, or there is no place beside the staged snapshots.

    """
    staged = local_path(order.staged) if is_store_url(order.staged) else Path(order.staged).absolute()
    if order.undo_dir is not None:
        root = order.undo_dir.absolute()
    elif staged is not None:
        root = staged.with_name(staged.name + UNDO_SUFFIX)
    else:
        raise UsageError(f"nothing can be written beside {order.staged}", hint="give --undo-dir, a directory here")
    target = Path(realpath(order.log_dir))
    log_dir = log_dir_around(root) or (target if Path(realpath(root)).is_relative_to(target) else None)
    if log_dir is not None:
        hint = "a broker does not start with an unknown directory in its log dir: give --undo-dir, a place outside"
        raise UsageError(f"{root} is inside the log dir {log_dir}", hint=hint)
    return root


def _new_folder(disk: Disk, root: Path, now_ms: int) -> Path:
    """Make a folder below ``root``, named by the time, that no other run has: one at another log dir may share it."""
    name = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    make_directories(disk, root)
    return next(root / name for name in names if make_new_directory(disk, root / name))


def _not_staged(staged: str, key: TopicPartition, offsets: Sequence[int]) -> LogDirError:
    first = ", ".join(map(str, offsets[:3])) + (", ..." if offsets[3:] else "")
    return LogDirError(
        f"{key}: {some(len(offsets), 'boundary')} of the plan not installed, since nothing is staged in {staged}:"
        f" {first}",
        hint="`resnap regenerate --plan FILE --into STAGED` makes them, or reports why it cannot; then install again",
    )


def _refusals(installation: PartitionInstallation) -> Iterator[ResnapError]:
    """Yield an error for each reason for which snapshots of a partition are refused."""
    refused: dict[Outcome, list[Decision]] = {}
    for decision in installation.decisions:
        if decision.outcome in REFUSALS:
            refused.setdefault(decision.outcome, []).append(decision)
    for outcome, decisions in refused.items():
        offsets = ", ".join(str(decision.offset) for decision in decisions[:3]) + (", ..." if decisions[3:] else "")
        what = f"{installation.directory.topic_partition}: {outcome}: not installed at {offsets}: {decisions[0].detail}"
        kind = _REFUSED_AS.get(outcome, LogDirError)
        yield kind(what, hint=decisions[0].hint)


_REFUSED_AS: Final[dict[Outcome, type[ResnapError]]] = {
    Outcome.STALE: StalePlanError,
    Outcome.NO_FINGERPRINT: StalePlanError,
    Outcome.STAGED_DAMAGED: VerificationError,
}
