"""Decides for one partition whether tiering can be turned on yet, from a scan and the runs since then."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from datetime import date, timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from resnap.replay.largest_timestamp import largest_timestamps
from resnap.tiering.judging.broker_blockers import broker_blockers, hanging_transaction
from resnap.tiering.judging.broker_start import broker_start
from resnap.tiering.judging.eligibility import before_replay
from resnap.tiering.judging.inventory import NEVER_TIERED, Compaction
from resnap.tiering.judging.lost_producer_state import state_of_replica
from resnap.tiering.judging.refusal import Reason, Stop, UnblockedBy, stop_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from resnap.storage.sources.files import Sources
    from resnap.tiering.cluster.facts import PartitionFacts
    from resnap.tiering.judging.broker_blockers import BrokerBlockers
    from resnap.tiering.judging.broker_start import BrokerStart
    from resnap.tiering.judging.eligibility import Candidates
    from resnap.tiering.judging.inventory import PartitionInventory
    from resnap.tiering.judging.lost_producer_state import LostState
    from resnap.tiering.judging.refusal import Refusal

_FIRST_DAY: Final = date(1970, 1, 1)


class Verdict(StrEnum):
    """Whether tiering can be turned on for a partition, or for a topic: one word everywhere."""

    READY = "ready"
    """A broker tiers every closed segment."""
    BLOCKED = "blocked"
    """A broker stops, or would tier what a replica without its producer state wrote."""
    NEVER = "never"
    """Kafka does not tier it: it is compacted, or a topic of the brokers' own."""
    UNKNOWN = "unknown"
    """What was to be judged could not be read."""

    @classmethod
    def of_all(cls, verdicts: Collection[Verdict]) -> Verdict:
        """Return the verdict on a topic, or a cluster, from those on its parts; without any it is ready."""
        return next((verdict for verdict in _WORST_FIRST if verdict in verdicts), cls.READY)

    @property
    def rank(self) -> int:
        """Its place among all of them, the worst first."""
        return _WORST_FIRST.index(self)


_WORST_FIRST: Final = (Verdict.BLOCKED, Verdict.UNKNOWN, Verdict.READY, Verdict.NEVER)


def topic_verdict(verdicts: Collection[Verdict]) -> Verdict:
    """Return the verdict on a topic from those on its partitions: compaction of one shows a setting of all."""
    return Verdict.NEVER if Verdict.NEVER in verdicts else Verdict.of_all(verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRepair:
    """What a run has done for a partition."""

    how: Literal["regenerated", "shipped"]
    destination: str
    offsets: frozenset[int]
    """Boundaries for which there is a snapshot, or a shipped segment, now."""
    run_id: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict, the reason, and the next step."""

    verdict: Verdict
    unblocked_by: UnblockedBy | None = None
    """None unless it is blocked."""
    until_ms: int | None = None
    """When retention will have unblocked it; None where something else does, or that is not known."""
    reason: str | None
    """Code of what a broker, or Resnap, stops at first."""
    detail: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictFacts:
    """The facts that the verdict on one partition depends on.

    Attributes:
        never: why Kafka does not tier it at all; None if it does.
        lost: boundaries without a usable snapshot.
        broker_stop: where a broker's own tiering stops.
        blocking: where Resnap stops.
        lost_state: the evidence that the replica has lost its producer state.
        log_dir: where snapshots are installed, as it is typed in a shell.

    """

    never: Stop | None
    lost: frozenset[int]
    broker_stop: Stop | None
    blocking: Stop | None
    lost_state: Stop | None
    log_dir: str = "LOG_DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringSizes:
    """Bytes of closed local segments, by their outcome with tiering on; without those below the log start."""

    tierable: int = 0
    """A broker tiers them."""
    blocked: int = 0
    """It does not get to them."""
    shipped: int | None = None
    """They are in remote storage already; None where it is not known."""
    freeable: int = 0
    """What a broker could delete from its disk once nothing is blocked that can be helped, if local retention keeps
    nothing: without damaged segments and those whose leader epochs are not known, which retention alone takes."""

    def __add__(self, other: TieringSizes) -> TieringSizes:
        known = [sizes.shipped for sizes in (self, other) if sizes.shipped is not None]
        return TieringSizes(
            tierable=self.tierable + other.tierable,
            blocked=self.blocked + other.blocked,
            shipped=sum(known) if known else None,
            freeable=self.freeable + other.freeable,
        )

    def all_blocked(self) -> TieringSizes:
        """Return the sizes for a partition in which nothing more is tiered."""
        return replace(self, tierable=0, blocked=self.tierable + self.blocked)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPartition:
    """The tiering facts of a partition, from its directory and the running cluster, if that was asked."""

    blockers: BrokerBlockers
    candidates: Candidates
    lost_state: LostState | None
    """What shows that the replica has lost its producer state; remote snapshots prove it, where they are."""
    remote_end_offset: int | None
    """First offset that is not in remote storage; None where it is not known."""

    @property
    def facts(self) -> VerdictFacts:
        """The facts that the verdict depends on."""
        inventory, blocking, lost = self.candidates.inventory, self.candidates.blocking, self.lost_state
        topic = inventory.partition.topic_partition.topic
        return VerdictFacts(
            never=never_tiered(topic, blocking, is_compacted=inventory.compaction is Compaction.COMPACTED),
            lost=frozenset(boundary.offset for boundary in inventory.unusable),
            broker_stop=self.blockers.decisive,
            blocking=blocking,
            lost_state=None if lost is None else stop_for(Reason.LOST_PRODUCER_STATE, lost.detail),
        )

    def sizes(self) -> TieringSizes:
        """Return the sizes of its segments; those of a partition that Kafka never tiers count nowhere."""
        inventory, stop, remote_end_offset = self.candidates.inventory, self.blockers.stop, self.remote_end_offset
        if self.facts.never is not None:
            return TieringSizes()
        tierable = blocked = shipped = kept = 0
        for segment in inventory.partition.segments:
            end = segment.next_base_offset
            is_local = inventory.partition.is_local(segment.base_offset)
            if end is None or end <= inventory.partition.log_start_offset or not is_local:
                continue
            if remote_end_offset is not None and end <= remote_end_offset:
                shipped += segment.size_bytes
            elif stop is not None and segment.base_offset >= stop.base_offset:
                blocked += segment.size_bytes
                is_helped_by_none = (
                    segment.base_offset < inventory.leader_epochs.unknown_below
                    or segment.base_offset in self.blockers.damaged
                )
                kept += segment.size_bytes if is_helped_by_none else 0
            else:
                tierable += segment.size_bytes
        sizes = TieringSizes(
            tierable=tierable,
            blocked=blocked,
            shipped=None if remote_end_offset is None else shipped,
            freeable=tierable + blocked + shipped - kept,
        )
        return sizes if self.lost_state is None else sizes.all_blocked()  # a broker would tier wrong snapshots


def judge_partition(
    inventory: PartitionInventory,
    sources: Sources,
    *,
    now_ms: int,
    transaction_max_timeout_ms: int,
    expiration_ms: int,
    high_watermark: int | None = None,
    retention_ms: int | None = None,
    facts: PartitionFacts | None = None,
    remote_end: Callable[[], int | None] = lambda: None,
    in_files: Iterable[Refusal] = (),
    start: BrokerStart | None = None,
) -> JudgedPartition:
    """Return what blocks a broker's tiering of a partition, and what blocks Resnap's.

    Args:
        inventory: of the partition.
        sources: opens the newest snapshot, which is read for hanging transactions.
        now_ms: the current time.
        transaction_max_timeout_ms: of the brokers.
        expiration_ms: the brokers' producer expiration.
        high_watermark: in place of what the checkpoint says; None to use the checkpoint.
        retention_ms: ``retention.ms`` of the topic, -1 for no limit; None if it is not known.
        facts: the running cluster's facts of the partition, if it was asked.
        remote_end: returns the first offset that is not in remote storage; called only if something stops a broker.
        in_files: findings inside the segments' files that sizes do not show (``file_damage``).
        start: what a broker finds wrong when it starts; None to read it for this partition alone.

    Raises:
        StoreError: the store that the partition is in failed.

    """
    hanging = hanging_transaction(
        inventory,
        sources,
        transaction_max_timeout_ms=transaction_max_timeout_ms,
        last_stable_offset=None if facts is None else facts.last_stable_offset,
        now_ms=now_ms,
    )
    blockers_above = partial(
        broker_blockers,
        inventory,
        high_watermark=high_watermark,
        hanging=hanging,
        start=start or broker_start(inventory.partition, sources),
        in_files=tuple(in_files),
    )
    remote_end_offset = None if facts is None else facts.remote_end_offset
    blockers = blockers_above(remote_end_offset=remote_end_offset)
    if blockers.found and remote_end_offset is None and (remote_end_offset := remote_end()) is not None:
        blockers = blockers_above(remote_end_offset=remote_end_offset)
    candidates = before_replay(inventory, high_watermark=high_watermark).unless_state_is_lost()
    after_retention = _after_retention(inventory, sources, retention_ms)
    if after_retention is not None:
        blockers = replace(blockers, found=tuple(map(after_retention, blockers.found)))
        candidates = replace(candidates, refusals=tuple(map(after_retention, candidates.refusals)))
    return JudgedPartition(
        blockers=blockers,
        candidates=candidates,
        lost_state=state_of_replica(inventory.partition, sources, expiration_ms),
        remote_end_offset=remote_end_offset,
    )


def _after_retention(
    inventory: PartitionInventory, sources: Sources, retention_ms: int | None
) -> Callable[[Refusal], Refusal] | None:
    """Return what makes a refusal wait for retention, if it is of a segment that no broker can tier; None without any.

    Source: ``UnifiedLog.deleteRetentionMsBreachedSegments``.
    """
    epochs = inventory.leader_epochs
    if not epochs.unknown_below or epochs.damage:
        return None
    until_ms = None
    hint = "no broker can tier what was written before 0.11, or with an older message format"
    if retention_ms is None:
        hint += ": retention will delete it; --bootstrap-server or --metadata-log shows when"
    elif retention_ms < 0:
        hint += ", and retention.ms is -1: nothing deletes it unless that is lowered"
    else:
        old = [segment for segment in inventory.partition.segments if segment.base_offset < epochs.unknown_below]
        largest = zip(old, largest_timestamps(old, sources, remote=inventory.partition.is_remote), strict=True)
        until_ms = max(one.mtime_ns // 1_000_000 if at_ms is None else at_ms for one, at_ms in largest) + retention_ms
        hint += f": retention deletes it on {day_of(until_ms)}; until then there is nothing to do"

    def waiting(refusal: Refusal) -> Refusal:
        if refusal.reason is not Reason.LEADER_EPOCHS_UNKNOWN or refusal.base_offset >= epochs.unknown_below:
            return refusal
        return replace(refusal, unblocked_by=UnblockedBy.RETENTION, until_ms=until_ms, hint=hint)

    return waiting


def day_of(at_ms: int) -> str:
    """Return the day of a time in milliseconds, in UTC; clients may write any, also outside the calendar."""
    try:
        return (_FIRST_DAY + timedelta(milliseconds=at_ms)).isoformat()
    except OverflowError:
        return "a day beyond the calendar"


def never_tiered(topic: str, blocking: Stop | None, *, is_compacted: bool) -> Stop | None:
    """Return why no broker tiers a partition of ``topic``, given Resnap's ``blocking``; None if one may."""
    if is_compacted:
        if blocking is not None:
            return replace(blocking, reason=Reason.COMPACTED)
        return stop_for(Reason.COMPACTED, "Kafka does not tier compacted topics")
    if topic in NEVER_TIERED:
        hint = "nothing to do; --exclude-topic excludes it"
        return Stop(reason="internal-topic", detail=f"Kafka does not tier {topic}", hint=hint)
    return None


def judge(facts: VerdictFacts, repairs: Sequence[RunRepair]) -> Judgement:
    """Return the verdict for a partition, from a scan and the runs since then."""
    stop, blocking = facts.broker_stop, facts.blocking
    if facts.never is not None:
        return _answer(Verdict.NEVER, facts.never)
    if facts.lost_state is not None:  # nothing stops a broker, which would tier snapshots that lack producers
        return _answer(Verdict.BLOCKED, facts.lost_state)
    if stop is None:
        detail, next_step = "a broker can tier every closed segment", "turn tiering on"
        return Judgement(verdict=Verdict.READY, reason=None, detail=detail, next_step=next_step)
    if stop.reason == Reason.UNREADABLE:
        return _answer(Verdict.UNKNOWN, stop)
    repaired = _after_repairs(stop, facts, repairs)
    if repaired is None and blocking is not None and blocking.reason != Reason.HW_UNKNOWN:  # a replay does without
        return _answer(Verdict.BLOCKED, blocking)
    return _answer(Verdict.BLOCKED, repaired or stop)


def _after_repairs(stop: Stop, facts: VerdictFacts, repairs: Sequence[RunRepair]) -> Stop | None:
    """Return ``stop`` with what is left to do after the runs; None if none has made all that is lost."""
    for repair in repairs:
        if not facts.lost or not facts.lost <= repair.offsets:
            continue
        if repair.how == "shipped":
            step = (
                f"all that may be tiered is in {repair.destination}: `resnap announce` makes it known to brokers that"
                " tier there; for others rebuild and install the snapshots"
            )
            return replace(stop, hint=step, unblocked_by=UnblockedBy.ANNOUNCE, until_ms=None)
        if stop.unblocked_by is UnblockedBy.REBUILD:
            step = f"stop the broker, then `resnap install {shlex.quote(repair.destination)} {facts.log_dir}`"
            return replace(stop, hint=step, unblocked_by=UnblockedBy.INSTALL)
    return None


def _answer(verdict: Verdict, stop: Stop) -> Judgement:
    is_blocked = verdict is Verdict.BLOCKED
    return Judgement(
        verdict=verdict,
        unblocked_by=stop.unblocked_by if is_blocked else None,
        until_ms=stop.until_ms if is_blocked else None,
        reason=stop.reason,
        detail=stop.detail,
        next_step=stop.hint,
    )
