"""Repairs a store: ``repair`` has the steps, one after the other, from reading it back to naming what stays wrong.

A snapshot is replaced if no broker could load it, if it has no entries although the replay found producers, or if a
replay without omitted producers contradicts it. A transaction index is replaced if the batches contradict it, and all
transactions that were open before them are known. Any other problem is reported, and stays.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from resnap.replay.boundary_state import harmful
from resnap.replay.comparison import SOUND, SnapshotVerdict
from resnap.replay.plan import Coverage
from resnap.replay.results import BoundaryOutcome
from resnap.storage.errors import (
    ConfigurationError,
    FormatError,
    LockedError,
    ResnapError,
    StoreError,
    StoreFullError,
    UsageError,
    VerificationError,
)
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.producer_snapshot import read_snapshot_array
from resnap.storage.sources.files import GONE
from resnap.storage.stores.urls import open_store
from resnap.storage.words import some
from resnap.tiering.repairing.originals import Replacements, folders_in, read_record
from resnap.tiering.repairing.replacing import NotUndoneError, Replacer, SegmentGoneError, Versions
from resnap.tiering.shipping.aborted_transactions import open_in
from resnap.tiering.shipping.lease import lease_name, lease_on
from resnap.tiering.shipping.segment_copy import rebuilt_snapshot
from resnap.tiering.shipping.segment_indexes import JudgedIndex, judge_indexes, read_segment
from resnap.tiering.store_check import fault_of
from resnap.tiering.stored_snapshots import compared_snapshots
from resnap.tiering.tier import staging

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.watching import Progress
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.selection import SelectedPartition
    from resnap.tiering.shipping.lease import HeldLease
    from resnap.tiering.shipping.segment_bundle import ChosenSnapshot
    from resnap.tiering.shipping.segment_indexes import ReadSegment
    from resnap.tiering.store_check import Log, StoreCheck
    from resnap.tiering.stored_snapshots import ReplayedBoundary, SnapshotCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRepair:
    """What is wrong with one stored segment, and was or would be replaced."""

    manifest_key: str
    base_offset: int
    next_base_offset: int
    check: SnapshotCheck | None
    """The check of its snapshot; None where that stays."""
    index: JudgedIndex | None
    """Its transaction index; None likewise."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The file name suffixes of the replaced objects."""
        parts = {".snapshot": self.check, ".txnindex": self.index}
        return tuple(suffix for suffix, part in parts.items() if part is not None)

    @property
    def verdict(self) -> str | None:
        """The verdict on the snapshot; None if it stays."""
        if self.check is None or self.check.replayed is None:
            return None
        comparison = self.check.replayed.result.comparison
        if comparison is None:
            return "unusable"
        # What lacks producers that its broker may rightly have dropped is proven in all else.
        return SnapshotVerdict.FALSE_PARTIAL.value if comparison.verdict in SOUND else comparison.verdict.value


@dataclass(slots=True, kw_only=True)
class RepairedPartition:
    """One partition of the store, and what was or would be replaced in it so far."""

    topic_partition: TopicPartition
    topic_id: str | None
    lease: str
    segments: int = 0
    repaired: list[SegmentRepair] = field(default_factory=list)
    failures: list[ResnapError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    plans: list[PartitionPlan] = field(default_factory=list)
    """What was replayed."""
    read: list[ReadSegment] = field(default_factory=list)
    """Where indexes are judged once more, when more is known of what was open."""
    indexes: dict[str, JudgedIndex] = field(default_factory=dict)
    """The wrong indexes, by the locator of the snapshot at the end of their segments."""
    open_at: dict[int, Mapping[int, int]] = field(default_factory=dict)
    """Transactions that are open, by offset, where the replay knows all of them."""


def repair(
    checks: Sequence[StoreCheck],
    replacer: Replacer | None,
    now_ms: Callable[[], int],
    progress: Callable[..., AbstractContextManager[Sequence[Progress]]],
    report: Callable[[Sequence[PartRepair]], None],
) -> None:
    """Replace what is wrong in the parts of a store, one for each layout; without a replacer nothing is written.

    ``report`` is called with them at the end, also if the repair is cut short.

    Raises:
        ConfigurationError: a segment is encrypted, and its key is not at hand.
        VerificationError: the store holds other bytes than it was sent.
        StoreError: the store failed.
        ResnapError: the replay failed.

    """
    engine = checks[0].planner.engine
    with (
        staging(checks[0].part.store, is_remote=engine.is_remote) as staged,
        progress("read", "replay") as (reading, replaying),
    ):
        rebuilt = open_store(staged, engine.s3)
        parts = [PartRepair(check, rebuilt, replacer, now_ms) for check in checks]
        try:
            for part in parts:
                # Put back what a killed run has replaced in a segment: this run then does all of it.
                part.put_back_unfinished()
                # Read each segment back, and keep what is wrong with its objects.
                part.read_back(reading)
            for part in parts:
                # Replay, staging the snapshots, after the transaction indexes of a partition are compared with its
                # batches; replace each snapshot that is proven wrong, and the index of its segment with it.
                part.replace_snapshots(staged, reading, replaying)
                # Replace the other wrong indexes: by now more is known of what was open below them.
                for partition in part.partitions:
                    part.replace_indexes(partition)
                # Name what stays wrong, and offsets that no part has.
                part.name_problems()
                part.name_gaps({log for other in checks if other is not part.check for log in other.joined()})
                part.release()
        finally:
            for part in parts:
                part.release()
            report(parts)


@dataclass(slots=True)
class PartRepair:
    """The repair of what a store holds in one layout."""

    check: StoreCheck
    _staged: ObjectStore
    """Where snapshots are rebuilt."""
    _replacer: Replacer | None
    _now_ms: Callable[[], int]
    partitions: list[RepairedPartition] = field(default_factory=list)
    failures: list[ResnapError] = field(default_factory=list)
    """Errors that are of no partition that could be read."""
    _at: dict[str, RepairedPartition] = field(default_factory=dict)
    """Repairs by the locators of snapshots."""
    _manifests: dict[str, str] = field(default_factory=dict)
    """Keys of manifests by the same."""
    _problems: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What reading the segments back showed, by the keys of their manifests."""
    _proven: list[SegmentRepair] = field(default_factory=list)
    """What was to be replaced; where it was not, a failure says why, or another run has done so meanwhile."""
    _lease: ExitStack = field(default_factory=ExitStack)
    _held: tuple[str, HeldLease] | None = None

    def put_back_unfinished(self) -> None:
        """Undo what killed runs have begun."""
        for folder in folders_in(self.check.part.store) if self._replacer is not None else ():
            if not folder.is_unfinished:
                continue
            try:
                record = read_record(self.check.part.store, folder.path)
                self._hold(record.lease).put_back(folder.path, record)
            except SegmentGoneError:
                self._hold(record.lease).forget(folder.path)
            except (FormatError, NotUndoneError, LockedError) as error:
                self.failures.append(error)
            self.check.list_again()
        self.release()

    def read_back(self, progress: Progress) -> None:
        """Read all segments back."""
        for verified in self.check.segments(progress):
            key = verified.manifest_key
            if verified.manifest is not None and key in self.check.asked_for:
                self._manifests[f"{self.check.part.store.url}/{verified.manifest.snapshot_key}"] = key
            self._problems[key] = verified.problems
        # The repair itself reports what it cannot read, by partition.
        self.check.unreadable.clear()
        self.check.with_problems.clear()

    def replace_snapshots(self, staged: str, reading: Progress, replaying: Progress) -> None:
        """Replay each partition into ``staged``, and replace its snapshots that are proven wrong."""
        self.check.sink, self.check.aborted_in = staged, partial(self._judge_indexes, reading)
        for found in compared_snapshots(self.check, replaying):
            self._take(found)

    def _judge_indexes(self, progress: Progress, selected: SelectedPartition) -> Mapping[str, tuple[AbortedTxn, ...]]:
        """Check the transaction indexes of a partition, and return the transactions aborted in its segments."""
        inventory = selected.inventory.partition
        topic_partition = inventory.topic_partition
        progress.expect(len(inventory.segments), sum(segment.size_bytes for segment in inventory.segments))
        look = partial(read_segment, sources=self.check.planner.sources)
        read = self.check.planner.engine.each(look, inventory.segments)
        progress.advance(len(inventory.segments), sum(segment.size_bytes for segment in inventory.segments))
        broken = {segment.segment.path: topic_partition for segment in read if segment.found is None}
        if broken:
            self.check.unreadable |= broken
            return {}
        lease = lease_name(selected.log_dir.cluster_id, topic_partition)
        partition = self._find(topic_partition, inventory.topic_id, lease)
        if partition is None:
            partition = RepairedPartition(topic_partition=topic_partition, topic_id=inventory.topic_id, lease=lease)
            self.partitions.append(partition)
        else:  # what is above a gap
            self.replace_indexes(partition)
            partition.open_at = {}
        beside = {f"{self.check.part.store.url}/{key}" for key in self.check.judged_beside}
        partition.segments += sum(segment.path not in beside for segment in inventory.segments)
        partition.read = read
        self._at |= {snapshot.path: partition for snapshot in inventory.snapshots}
        judged = list(judge_indexes(partition.read, {}))
        ends = {snapshot.offset: snapshot.path for snapshot in inventory.snapshots if snapshot.path in self._manifests}
        partition.indexes = {
            ends[index.segment.next_base_offset]: index
            for index in judged
            if index.problems and index.segment.next_base_offset in ends
        }
        if all(index.is_all_known for index in partition.indexes.values()):
            partition.read = []
        return {index.segment.path: index.known for index in judged if index.known is not None}

    def name_problems(self) -> None:
        """Report problems of segments that are neither repaired nor reported yet."""
        of = {self._manifests[path]: partition for path, partition in self._at.items() if path in self._manifests}
        for key, problems in self._problems.items():
            partition = of.get(key)
            failures = self.failures if partition is None else partition.failures
            right = tuple(suffix for proven in self._proven if proven.manifest_key == key for suffix in proven.suffixes)
            said = [str(failure) for failure in failures]
            for problem in problems:
                subject = problem.partition(": ")[0]
                if not subject.endswith(right) and not any(subject in text for text in said):
                    failures.append(fault_of(problem, self.check.part.layout.remedy_when_verified))

    def _find(self, topic_partition: TopicPartition, topic_id: str | None, lease: str) -> RepairedPartition | None:
        of_name = (partition for partition in self.partitions if partition.topic_partition == topic_partition)
        return next((one for one in of_name if (one.topic_id, one.lease) == (topic_id, lease)), None)

    def name_gaps(self, joined: Collection[Log]) -> None:
        """Report offsets that no log has: above them, open transactions and live producers are unknown.

        The gaps of ``joined``, of which the rest is in another part, are named there.
        """
        for chain in self.check.chains():
            at = chain.topic_partition
            if (at, chain.topic_id) in joined:
                continue
            partition = self._find(at, chain.topic_id, lease_name(chain.cluster_id, at))
            failures = self.failures if partition is None else partition.failures
            for gap in chain.gaps:
                what = f"{at}: nothing is stored of the offsets {gap}, whose snapshots are not repaired"
                failures.append(VerificationError(what, hint=_GAP))

    def _take(self, found: SnapshotCheck) -> None:
        """Replace one snapshot if it is proven wrong, and the index of its segment with it."""
        partition = self._at.get(found.key)
        if partition is None:
            self.failures += [] if found.problem is None else [found.problem]
            return
        replayed = found.replayed
        if replayed is not None:
            self._note_replay(partition, replayed)
        if found.problem is None:
            return
        refused = self._refusal(found)
        if refused is not None:
            partition.failures.append(refused)
        elif replayed is not None:
            rules, result = replayed.plan.rules, replayed.result
            made = rebuilt_snapshot(partition.topic_partition, result, rules, self._staged)
            index = partition.indexes.get(found.key)
            index = partition.indexes.pop(found.key) if index is not None and index.is_all_known else None
            self._replace(partition, found.key, index, found, made)

    def _note_replay(self, partition: RepairedPartition, replayed: ReplayedBoundary) -> None:
        if not any(replayed.plan is plan for plan in partition.plans):
            partition.plans.append(replayed.plan)
        result = replayed.result
        is_whole = result.outcome is BoundaryOutcome.REBUILT and not harmful(result.left_out)
        if partition.read and is_whole and result.coverage is Coverage.WINDOW:
            made = rebuilt_snapshot(partition.topic_partition, result, replayed.plan.rules, self._staged)
            partition.open_at[result.offset] = open_in(made.body)

    def replace_indexes(self, partition: RepairedPartition) -> None:
        """Replace the wrong indexes of segments whose snapshots stay."""
        right = {index.segment.path: index for index in judge_indexes(partition.read, partition.open_at)}
        for key, index in partition.indexes.items():
            judged = right.get(index.segment.path, index)
            if judged.body is not None:
                self._replace(partition, key, judged)
                if not judged.is_all_known:
                    partition.warnings.append(f"{index.segment.sibling('txnindex')}: {_AS_FAR_AS_KNOWN}")

    def _refusal(self, found: SnapshotCheck) -> ResnapError | None:
        """Return why a seemingly wrong snapshot is not replaced; None if it is."""
        replayed = found.replayed
        if replayed is None or replayed.result.outcome is not BoundaryOutcome.REBUILT:
            return found.problem
        if replayed.lacks_records:
            return VerificationError(
                f"{found.problem}; it is not repaired, since records are missing: they were compacted away or lost"
            )
        comparison, left_out = replayed.result.comparison, harmful(replayed.result.left_out)
        if comparison is None:
            return None if self._is_corrupt(found.key, replayed.result.offset) else found.problem
        if left_out and comparison.verdict is not SnapshotVerdict.FALSE_EMPTY:
            what = f"{found.problem}; it is not repaired, since the replay excluded {some(len(left_out), 'producer')}"
            return VerificationError(f"{what}: nothing proves which of the two is right", hint=_LEFT_OUT)
        return None

    def _is_corrupt(self, locator: str, offset: int) -> bool:
        """Whether no broker could load a snapshot, because it is damaged or was never shipped."""
        try:
            read_snapshot_array(self.check.planner.sources.read(locator), offset)
        except (FormatError, *GONE):
            return True
        return False

    def _replace(
        self,
        partition: RepairedPartition,
        key: str,
        index: JudgedIndex | None,
        found: SnapshotCheck | None = None,
        made: ChosenSnapshot | None = None,
    ) -> None:
        """Replace the wrong parts of the segment whose snapshot has the locator ``key``.

        A failure is reported, and the next segment follows.
        """
        manifest_key = self._manifests[key]
        facts = self.check.manifests[manifest_key]
        bodies = {
            ObjectKind.SNAPSHOT: None if made is None else made.body,
            ObjectKind.TXN_INDEX: None if index is None else index.body,
        }
        parts = {kind: body for kind, body in bodies.items() if body is not None}
        repair = SegmentRepair(
            manifest_key=manifest_key,
            base_offset=facts.base_offset,
            next_base_offset=facts.next_base_offset,
            check=found,
            index=index,
        )
        self._proven.append(repair)
        try:
            is_written = self._write(partition, repair, parts, None if made is None else made.origin)
        except LockedError as error:
            if not any(
                isinstance(failure, LockedError) for failure in partition.failures
            ):  # it is of the whole partition
                partition.failures.append(error)
        except (UsageError, FormatError, ConfigurationError) as error:
            partition.failures.append(error)
        except StoreError as error:
            if error.transient or isinstance(error, StoreFullError):
                raise
            what = f"{manifest_key}: is not repaired, and is unchanged: {error}"
            partition.failures.append(StoreError(what, key=manifest_key, hint=error.hint or _LOCKED))
        else:
            if not is_written:
                return
            partition.repaired.append(repair)
            if index is not None and index.there == () and index.right:
                partition.warnings.append(
                    f"{manifest_key}: the segment had no transaction index, and has one now. Brokers from 4.0 on that "
                    "announced it do not look for one (txnIdxEmpty), and no later record can change that: their "
                    "consumers still get its aborted records; consumers of a restored log do not"
                )

    def _write(
        self,
        partition: RepairedPartition,
        repair: SegmentRepair,
        parts: Mapping[ObjectKind, bytes],
        origin: SnapshotOrigin | None,
    ) -> bool:
        """Replace the parts; return False if they were replaced already; a dry run returns True."""
        store, keys = self.check.part.store, self.check.planner.sources.keys
        versions = Versions(store=store)
        rewritten = self.check.part.layout.replacements(versions.body, repair.manifest_key, parts, origin, keys)
        if self._replacer is None:
            return True
        topic_partition = partition.topic_partition
        record = Replacements(
            manifest_key=repair.manifest_key,
            lease=partition.lease,
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            base_offset=repair.base_offset,
            changes=(),
        )
        return self._hold(partition.lease).replace(record, rewritten, versions) is not None

    def _hold(self, place: str) -> Replacer:
        """Return a replacer that holds the lease of ``place``; any other lease is released."""
        if self._replacer is None:
            raise AssertionError("a dry run replaces nothing")
        if self._held is None or self._held[0] != place:
            self.release()
            taken = lease_on(self.check.part.store, place, verb="repair", now_ms=self._now_ms())
            self._held = place, self._lease.enter_context(taken)
        self._replacer.hold_lease = self._held[1].hold
        return self._replacer

    def release(self) -> None:
        """Let other runs work on the partition that was repaired last."""
        self._held = None
        self._lease.close()


_AS_FAR_AS_KNOWN = (
    "correct as far as the stored log shows, but its beginning is not stored: transactions that began below it begin "
    "with their first stored batch"
)
_GAP = "what lies above the gap is repaired as a log that begins there; ship the gap from a replica that still has it"
_LEFT_OUT = "`resnap repair --full` reads the whole log; `resnap verify URL` names the producers"
_LOCKED = "objects that a retention of the store locks can be replaced once that has ended; run again then"
