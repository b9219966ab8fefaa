"""The results of `resnap restore` for each partition and their view; what an engine does for them.

An engine copies files, in threads of this process or on other machines. Where manifests have no digests, it rebuilds
wrong snapshots by a replay: brokers wrote them, and one that ``verify URL`` refuses would make a broker refuse good
producers, or serve aborted records.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import TypedDict

from resnap.replay.staging import DISCARD, scratch_directory
from resnap.scheduler.job.contract import Result
from resnap.scheduler.job.open_transactions import what_is_open
from resnap.scheduler.job.reports import SummedView
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import BYTES, Column
from resnap.scheduler.settings.declaration import DEFAULT_ORIGIN
from resnap.scheduler.verbs.new_cluster import NewCluster
from resnap.scheduler.verbs.planned import AND_DO_IT, MOST_NAMED
from resnap.storage.disk import attributes_of
from resnap.storage.errors import StoreError, VerificationError
from resnap.storage.sources.log_dirs import tiered_part
from resnap.storage.throttle import Throttle
from resnap.storage.words import agreeing, first_of, human_bytes, human_count, some
from resnap.tiering.controller.transactions.open_transaction import OpenTransaction
from resnap.tiering.controller.transactions.state_log import TransactionStates, known_states
from resnap.tiering.restoring.restoration import Replaced
from resnap.tiering.restoring.restorer import FILE_MODE, Copier, FileTask, Restored
from resnap.tiering.store_check import StoreCheck
from resnap.tiering.stored_snapshots import StoredSnapshots
from resnap.tiering.verifying.verification import StoreReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.replay.spark.task_pool import TaskPool
    from resnap.replay.watching import Progress
    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.engine import Engine
    from resnap.tiering.planner import Planner
    from resnap.tiering.restoring.restoration import Restoration
    from resnap.tiering.restoring.restorer import Target
    from resnap.tiering.selection import Scope
    from resnap.tiering.stored_snapshots import SnapshotCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPartition(Result):
    """One partition, and its outcome in one log dir; of a dry run, what the outcome would be."""

    restoration: Restoration
    outcome: Restored
    log_dir: Path


def passed_over(one: Restoration) -> VerificationError:
    """Return the error of segments that are beside those of a partition, and are not restored."""
    which = f"{len(one.passed_over)}, the first at offset {one.passed_over[0]}"
    return VerificationError(
        f"{one.topic_partition}: segments that a broker tiered itself lie beside those that Resnap has shipped:"
        f" {which}; no manifest names them, so they are not restored, and the log ends at {one.end_offset}",
        hint="`resnap remote status LOG_DIR --store URL` shows what brokers know of them; a broker with the cluster's"
        " metadata serves them where they lie",
    )


def missing_id_warning(topics: Sequence[str]) -> Iterator[str]:
    """Yield what to do about ``topics``, which have no id, if there are any."""
    if topics:
        yield (
            f"no topic id was shipped of {first_of(topics, MOST_NAMED)}, so there is no partition.metadata: a broker"
            " with ZooKeeper makes it, one with KRaft sets the directories aside as stray: for that one give --topic-id"
        )


def warnings_of(restoration: Restoration, target: Target) -> Iterator[str]:
    """Yield a warning for each transaction that is open at the end of the restored log, with what to do."""
    producer_ids = [entry.producer_id for entry in restoration.open_transactions]
    states = known_states(target.path, producer_ids) if target.is_of_cluster_of(restoration) else TransactionStates()
    for entry in restoration.open_transactions:
        one = OpenTransaction.of_entry(restoration.topic_partition, entry, states)
        held = "" if one.transactional_id is None else f", held by transactional id {one.transactional_id!r}"
        yield (
            f"{what_is_open(one)}{held}, and its end was not shipped: consumers with read_committed stop there, and the"
            f" producer's next commit would commit these records, too. {one.advice()}"
        )


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
        """Those that have the partitions now."""
        self._open: list[str] = []
        """Partitions that end in an open transaction."""

    def row(self, result: Result) -> Row | None:
        """Return the row of a partition, and count it."""
        if isinstance(result, NewCluster):
            self._cluster = result
        if not isinstance(result, RestoredPartition):
            return None
        self._log_dirs[str(result.log_dir)] = None
        one, outcome = result.restoration, result.outcome
        if outcome is Restored.RESTORED:
            self._totals["restored"] += 1
            self._totals["segments"] += one.segments
            self._totals["bytes"] += one.size_bytes
            self._open += [str(one.topic_partition)] if one.open_transactions else []
        self._totals["alreadyThere"] += outcome is Restored.ALREADY_THERE
        return row_of(RestoreRow, result)

    def for_people(self, row: Row) -> Row:
        """Return the row of a partition; of a dry run with what the outcome would be."""
        would = self._totals["dryRun"] and row["outcome"] == Restored.RESTORED
        return {**row, "outcome": f"would be {row['outcome']}"} if would else row

    def totals(self) -> Row:
        """Return what was restored in all, and what a new cluster begins with."""
        return self._totals if self._cluster is None else {**self._totals, "newCluster": self._cluster.row}

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
            yield from self._cluster.text(would)
        if self._totals["dryRun"]:
            if self._open:
                yield (
                    f"Open transactions at the end of {first_of(self._open, MOST_NAMED)}, whose end was not shipped:"
                    " consumers with read_committed will stop there; the run says for each what to do."
                )
            yield AND_DO_IT
        elif self.has_faults or self.is_cut_short:
            yield "Next: the same command again, once the errors named here are repaired; it restores the rest."
        elif self._log_dirs and self._cluster is None:
            yield f"Next: start the broker whose log.dirs names {first_of([*self._log_dirs], MOST_NAMED)}."


@contextmanager
def restoring_copier(
    engine: Engine, settings: Settings, sources: Collection[str], into: Collection[Path]
) -> Iterator[Copier]:
    """Yield the copier: threads of this machine, or Spark's executors, which must reach the sources and log dirs.

    Raises:
        UsageError: they do not.

    """
    if not engine.is_remote or not sources:
        with ThreadPoolExecutor(settings.parallel, "resnap-copy") as threads:
            yield Copier(throttle=Throttle(bytes_per_s=settings.bwlimit), threads=threads, at_once=settings.parallel)
        return
    for log_dir in into:
        engine.check_reach(sources, log_dir.as_uri(), replace(attributes_of(log_dir), mode=FILE_MODE, mtime_ns=None))
    asked = settings.parallel if settings.origin("parallel") != DEFAULT_ORIGIN else None
    pool: TaskPool[Any, Any]
    with (
        engine.task_pool(FileTask, "writing files", at_once=asked, bytes_per_s=settings.bwlimit) as pool,
        ThreadPoolExecutor(pool.items_at_once, "resnap-copy") as threads,
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
    sources = planner.engine.reading.sources
    check = StoreCheck(part=tiered_part(scope.sources[0], sources), scope=scope, planner=planner, sources=sources)
    if check.part.layout.has_digests:
        return
    reader = StoreReader(store=check.part.store, listing=check.listing, sources=sources)
    # The executors of a cluster cannot write into a directory of this machine.
    check.sink = DISCARD if planner.engine.is_remote else directory.as_uri()
    for key in check.listing.manifests:
        manifest = reader.verify(key, reads_objects=False).manifest
        if manifest is not None:
            check.manifests[key] = manifest
            check.asked_for.add(key)
    for found in StoredSnapshots(check).compared(progress):
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
