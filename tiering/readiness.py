"""Decides for one partition whether tiering can be turned on yet, from a scan and the runs since then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Literal

from resnap.tiering.broker_blockers import broker_blockers, hanging_transaction
from resnap.tiering.broker_start import broker_start
from resnap.tiering.eligibility import before_replay
from resnap.tiering.inventory import NEVER_TIERED, Compaction
from resnap.tiering.lost_producer_state import state_of_replica
from resnap.tiering.refusal import HINTS, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resnap.storage.sources.files import Sources
    from resnap.tiering.broker_blockers import BrokerBlockers
    from resnap.tiering.cluster.facts import PartitionFacts
    from resnap.tiering.eligibility import Candidates
    from resnap.tiering.inventory import PartitionInventory
    from resnap.tiering.lost_producer_state import LostState
    from resnap.tiering.refusal import Refusal


class Verdict(StrEnum):
    """Whether tiering can be turned on for a topic."""

    READY = "ready"
    """Nothing stops it."""
    BLOCKED = "blocked"
    """Something stops it."""
    UNKNOWN = "unknown"
    """What was to be judged could not be read."""


class Readiness(StrEnum):
    """How far a stock broker would tier a partition, and what can be done about it."""

    READY = "ready"
    """It tiers every closed segment."""
    SHIPPED = "shipped"
    """It would stop, but all that may be tiered is in a store already."""
    PREPARED = "prepared"
    """It would stop; the snapshots it lacks are made, but not installed yet."""
    BLOCKED = "blocked"
    """It stops, or would tier what a replica without its producer state wrote; a replay makes what it lacks."""
    UNFIT = "unfit"
    """It stops, and a replay is refused, too."""
    EXCLUDED = "excluded"
    """Compacted, or a topic of the brokers' own: it cannot be tiered."""

    @property
    def verdict(self) -> Verdict:
        """Whether tiering can be turned on now."""
        return Verdict.READY if self in {Readiness.READY, Readiness.SHIPPED} else Verdict.BLOCKED


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
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

    readiness: Readiness
    reason: str | None
    """Code of what a broker, or Resnap, stops at first."""
    detail: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Why tiering stops at a segment."""

    reason: str
    detail: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFacts:
    """The facts that the verdict on one partition depends on.

    Attributes:
        excluded: why it cannot be tiered at all; None if it can.
        lost: boundaries without a usable snapshot.
        broker_stop: where a broker's own tiering stops.
        blocking: where Resnap stops.
        lost_state: the evidence that the replica has lost its producer state.

    """

    excluded: Stop | None
    lost: frozenset[int]
    broker_stop: Stop | None
    blocking: Stop | None
    lost_state: Stop | None


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
        known = [one.shipped for one in (self, other) if one.shipped is not None]
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
    def facts(self) -> ScanFacts:
        """The facts that the verdict depends on."""
        inventory, blocking = self.candidates.inventory, _stop_of(self.candidates.blocking)
        topic = inventory.partition.topic_partition.topic
        return ScanFacts(
            excluded=exclusion(topic, blocking, is_compacted=inventory.compaction is Compaction.COMPACTED),
            lost=frozenset(boundary.offset for boundary in inventory.boundaries if not boundary.state.is_usable),
            broker_stop=_stop_of(self.blockers.stop),
            blocking=blocking,
            lost_state=_without_state(self.lost_state),
        )

    def sizes(self) -> TieringSizes:
        """Return the sizes of its segments."""
        inventory, stop, remote_end_offset = self.candidates.inventory, self.blockers.stop, self.remote_end_offset
        is_excluded = self.facts.excluded is not None
        tierable = blocked = shipped = never = 0
        for segment in inventory.partition.segments:
            end = segment.next_base_offset
            is_local = inventory.partition.is_local(segment.base_offset)
            if end is None or end <= inventory.partition.log_start_offset or not is_local:
                continue
            if remote_end_offset is not None and end <= remote_end_offset:
                shipped += segment.size_bytes
            elif is_excluded or (stop is not None and segment.base_offset >= stop.base_offset):
                blocked += segment.size_bytes
                is_helped_by_none = (
                    segment.base_offset < inventory.leader_epochs.unknown_below
                    or segment.base_offset in self.blockers.damaged
                )
                never += segment.size_bytes if is_excluded or is_helped_by_none else 0
            else:
                tierable += segment.size_bytes
        return TieringSizes(
            tierable=tierable,
            blocked=blocked,
            shipped=None if remote_end_offset is None else shipped,
            freeable=tierable + blocked + shipped - never,
        )


def judge_partition(
    inventory: PartitionInventory,
    sources: Sources,
    *,
    now_ms: int,
    transaction_max_timeout_ms: int,
    expiration_ms: int,
    high_watermark: int | None = None,
    facts: PartitionFacts | None = None,
    remote_end: Callable[[], int | None] = lambda: None,
    in_files: Iterable[Refusal] = (),
) -> JudgedPartition:
    """Return what blocks a broker's tiering of a partition, and what blocks Resnap's.

    Args:
        inventory: of the partition.
        sources: opens the newest snapshot, which is read for hanging transactions.
        now_ms: the current time.
        transaction_max_timeout_ms: of the brokers.
        expiration_ms: the brokers' producer expiration.
        high_watermark: in place of what the checkpoint says; None to use the checkpoint.
        facts: the running cluster's facts of the partition, if it was asked.
        remote_end: returns the first offset that is not in remote storage; called only if something stops a broker.
        in_files: findings inside the segments' files that sizes do not show (``file_damage``).

    Raises:
        StoreError: the store that the partition lies in failed.

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
        start=broker_start(inventory.partition, sources),
        in_files=tuple(in_files),
    )
    remote_end_offset = None if facts is None else facts.remote_end_offset
    blockers = blockers_above(remote_end_offset=remote_end_offset)
    if blockers.found and remote_end_offset is None:
        remote_end_offset = remote_end()
        blockers = blockers_above(remote_end_offset=remote_end_offset)
    return JudgedPartition(
        blockers=blockers,
        candidates=before_replay(inventory, high_watermark=high_watermark),
        lost_state=state_of_replica(inventory.partition, sources, expiration_ms),
        remote_end_offset=remote_end_offset,
    )


def exclusion(topic: str, blocking: Stop | None, *, is_compacted: bool) -> Stop | None:
    """Return why no broker tiers a partition of ``topic``, given Resnap's ``blocking``; None if one may."""
    leave_out = "exclude the topic"
    if is_compacted:
        detail = "compacted topics cannot be tiered"
        return Stop("compacted", detail, leave_out) if blocking is None else replace(blocking, reason="compacted")
    if topic in NEVER_TIERED:
        return Stop("internal-topic", f"brokers never tier {topic}", leave_out)
    return None


def _stop_of(refusal: Refusal | None) -> Stop | None:
    if refusal is None:
        return None
    return Stop(reason=refusal.reason.value, detail=refusal.detail, hint=refusal.hint)


def _without_state(lost: LostState | None) -> Stop | None:
    reason = Reason.LOST_PRODUCER_STATE
    return None if lost is None else Stop(reason=reason.value, detail=lost.detail, hint=HINTS[reason])


def judge(facts: ScanFacts, repairs: Sequence[Repair]) -> Judgement:
    """Return the verdict for a partition, from a scan and the runs since then."""
    stop, blocking = facts.broker_stop, facts.blocking
    if facts.excluded is not None:
        why = facts.excluded
        return _answer(Readiness.EXCLUDED, why.reason, why.detail, why.hint)
    if facts.lost_state is not None:  # nothing stops a broker, which would tier snapshots that lack producers
        lost = facts.lost_state
        return _answer(Readiness.BLOCKED, lost.reason, lost.detail, lost.hint)
    if stop is None:
        return _answer(Readiness.READY, None, "a broker can tier every closed segment", "turn tiering on")
    lacks_snapshots = stop.reason == Reason.MISSING_SNAPSHOT
    for repair in repairs if facts.lost else ():
        if not facts.lost <= repair.offsets:
            continue
        if repair.how == "shipped":
            step = f"all that may be tiered is in {repair.destination}"
            return _answer(Readiness.SHIPPED, stop.reason, stop.detail, step)
        if lacks_snapshots:
            step = f"stop the broker, then `resnap install {repair.destination} LOG_DIR`"
            return _answer(Readiness.PREPARED, stop.reason, stop.detail, step)
    readiness = Readiness.BLOCKED
    step = "start a replay: `resnap regenerate`, or `resnap tier`" if lacks_snapshots else stop.hint
    if blocking is not None and blocking.reason != Reason.HW_UNKNOWN:  # a replay does without
        readiness, stop, step = Readiness.UNFIT, blocking, blocking.hint
    return _answer(readiness, stop.reason, stop.detail, step)


def _answer(readiness: Readiness, reason: str | None, detail: str, next_step: str) -> Judgement:
    return Judgement(readiness=readiness, reason=reason, detail=detail, next_step=next_step)
