"""Makes replay plans from an inventory, and saved plans, which are refused if their log has changed.

A saved plan fixes the request: the moment T, the rules, and the boundaries of each partition. It is JSON, readable for
people; the segments to read are planned again from the log directory, which must still hold the same closed segments.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from resnap.replay import DEFAULT_EXPIRATION_MS
from resnap.replay.boundary_state import harmful
from resnap.replay.evidence import Evidence, load_evidence, segment_spans
from resnap.replay.plan import Coverage, PartitionPlan, plan_partition, proven
from resnap.replay.producer_state import Expiry
from resnap.replay.window import AsOf, ReplayRules, SegmentSpan, Unexplained
from resnap.storage.errors import FormatError, StalePlanError
from resnap.storage.json_values import parsing, typed
from resnap.storage.log.names import TopicPartition
from resnap.storage.sources.files import PLAIN
from resnap.storage.words import some
from resnap.tiering.judging.inventory import Compaction, PartitionInventory
from resnap.tiering.judging.lost_producer_state import NOTHING_LOST, judge_snapshots

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.partition_dir import PartitionDir, SnapshotFile
    from resnap.storage.log.producer_snapshot import LeftOut
    from resnap.storage.sources.files import Sources

SAVED_PLAN_VERSION: Final = 1
_MOST_NAMED: Final = 5


def lost_boundaries(inventory: PartitionInventory) -> tuple[int, ...]:
    """Return the offsets at which the directory has no snapshot that a broker would load."""
    return tuple(filter(inventory.partition.is_local, (boundary.offset for boundary in inventory.unusable)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFacts:
    """The facts of a partition that planning needs beyond its inventory."""

    segments: Sequence[SegmentSpan]
    evidence: Evidence
    sources: Sources | None = None
    """How segments are opened whose largest timestamps decide what is read; None where no plan is carried out."""


def load_facts(
    partition: PartitionDir,
    sources: Sources = PLAIN,
    *,
    others: Sequence[SnapshotFile] = (),
    expiration_ms: int = DEFAULT_EXPIRATION_MS,
    is_judged: bool | None = None,
    aborted_in: Mapping[str, Sequence[AbortedTxn]] = MappingProxyType({}),
) -> ReplayFacts:
    """Read the time and transaction indexes and the snapshots of ``partition``.

    It reads no segments, unless their time indexes contradict themselves or each other.

    It also reads ``others``, snapshots of the same log in other places. If a part of the log is remote, or
    ``is_judged``, snapshots that lack producers are skipped; ``expiration_ms`` is the brokers' producer expiration.
    ``aborted_in`` gives the aborted transactions of some logs.

    Raises:
        StoreError: the store they are in failed.

    """
    is_judged = partition.local_from is not None if is_judged is None else is_judged
    judged = judge_snapshots(partition, sources, expiration_ms) if is_judged else NOTHING_LOST
    spans = segment_spans(partition, sources)
    evidence = load_evidence(partition, sources, others=others, distrusted=judged.distrusted, aborted_in=aborted_in)
    return ReplayFacts(segments=spans, evidence=evidence, sources=sources)


def plan_replay(
    inventory: PartitionInventory,
    facts: ReplayFacts,
    wanted: Iterable[int],
    rules: ReplayRules,
    *,
    high_watermark: int | None = None,
    compare: Mapping[int, str] | None = None,
    to_end: bool = False,
) -> PartitionPlan:
    """Plan the replay of one partition.

    The segments below a window may hold the beginning of a transaction that still hangs. Some snapshot above must prove
    that there is none, or show it; without such a snapshot the whole log is read (unless ``rules`` limit how far back).

    Args:
        inventory: the partition.
        facts: as ``load_facts`` read them.
        wanted: boundaries to write.
        rules: the times that decide.
        high_watermark: overrides the checkpoint.
        compare: snapshots to compare with, path by offset; those of the directory by default.
        to_end: read to the log end, for the last stable offset.

    """
    partition = inventory.partition
    existing = compare if compare is not None else usable_snapshots(inventory)
    plan = partial(
        plan_partition,
        partition.topic_partition,
        wanted=tuple(wanted),
        evidence=facts.evidence,
        high_watermark=partition.high_watermark if high_watermark is None else high_watermark,
        existing=existing,
        to_end=to_end,
    )
    windowed = plan(facts.segments, rules=rules)
    if facts.sources is not None:
        windowed = proven(windowed, partial(plan, rules=rules), partition.segments, facts.sources)
    unread = unread_below(windowed)
    if unread is None or rules.max_reach_back_ms is not None or facts.evidence.shows_hanging_below(unread):
        return windowed
    return plan(windowed.segments, rules=replace(rules, full=True))


def unread_below(plan: PartitionPlan) -> int | None:
    """Return the offset below which segments stay unread, None if all segments that matter are read."""
    beyond = [boundary.offset for boundary in plan.boundaries if boundary.coverage is Coverage.BEYOND_WINDOW]
    begun = [plan.segments[run.start].base_offset for run in plan.runs[-1:] if run.start]
    return max([*beyond, *begun], default=None)


def usable_snapshots(inventory: PartitionInventory) -> dict[int, str]:
    """Return the paths of the snapshots that a broker would load, by offset."""
    return {b.offset: b.path for b in inventory.boundaries if b.state.is_usable and b.path is not None}


def can_be_tiered(inventory: PartitionInventory) -> bool:
    """Whether the topic is not compacted, as far as known before a replay."""
    return inventory.compaction is not Compaction.COMPACTED


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A request that can be executed later, unchanged or not at all."""

    sources: tuple[str, ...]
    rules: ReplayRules
    boundaries: Mapping[TopicPartition, tuple[int, ...]]
    fingerprints: Mapping[TopicPartition, str]
    remote: str | None = None
    """URL of the remote storage that was read with the sources."""

    def check_fresh(self, inventory: PartitionInventory) -> None:
        """Compare the closed segments with those of the plan.

        Raises:
            StalePlanError: they differ.

        """
        topic_partition = inventory.partition.topic_partition
        if self.fingerprints[topic_partition] != fingerprint(inventory.partition):
            raise StalePlanError(
                f"{topic_partition}: the closed segments are not those the plan was made for",
                hint="segments were rolled or deleted meanwhile: make a new plan",
            )


def fingerprint(partition: PartitionDir) -> str:
    """Return a digest that identifies the closed segments: offsets, sizes, times and inodes."""
    facts = [
        (segment.base_offset, segment.next_base_offset, segment.size_bytes, segment.mtime_ns, segment.inode)
        for segment in partition.segments
        if not segment.is_active
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def write_saved_plan(plan: SavedPlan) -> str:
    """Return ``plan`` as JSON."""
    partitions = [
        {
            "topic": topic_partition.topic,
            "partition": topic_partition.partition,
            "boundaries": list(offsets),
            "segmentsSha256": plan.fingerprints[topic_partition],
        }
        for topic_partition, offsets in plan.boundaries.items()
    ]
    content = {
        "version": SAVED_PLAN_VERSION,
        "sources": list(plan.sources),
        **({} if plan.remote is None else {"remote": plan.remote}),
        "rules": asdict(plan.rules) | {"expiry": plan.rules.expiry, "history": plan.rules.history},
        "partitions": partitions,
    }
    return json.dumps(content, indent=2) + "\n"


def read_saved_plan(text: str) -> SavedPlan:
    """Return the plan that ``write_saved_plan`` wrote.

    Raises:
        FormatError: it is not a plan, or has another version.

    """
    hint = "plans are made by `resnap plan --save FILE`"
    with parsing("saved plan", expected="the JSON of a plan", hint=hint):
        content = json.loads(text)
        if typed(int, content["version"]) != SAVED_PLAN_VERSION:
            raise FormatError("version of the saved plan", position=0, expected=SAVED_PLAN_VERSION,
                              found=content["version"])  # fmt: skip
        partitions = _partitions(content["partitions"])
        return SavedPlan(
            sources=tuple(typed(str, source) for source in typed(list, content["sources"])),
            rules=_rules(content["rules"]),
            boundaries={key: offsets for key, offsets, _ in partitions},
            fingerprints={key: digest for key, _, digest in partitions},
            remote=None if content.get("remote") is None else typed(str, content["remote"]),
        )


def _partitions(items: object) -> list[tuple[TopicPartition, tuple[int, ...], str]]:
    found = [_partition(item) for item in typed(list, items)]
    if len({key for key, _, _ in found}) != len(found):
        raise ValueError("a partition is listed twice")
    return found


def _partition(item: dict[str, Any]) -> tuple[TopicPartition, tuple[int, ...], str]:
    topic, number = typed(str, item["topic"]), typed(int, item["partition"])
    offsets = tuple(typed(int, offset) for offset in typed(list, item["boundaries"]))
    return TopicPartition(topic, number), offsets, typed(str, item["segmentsSha256"])


def _rules(values: dict[str, Any]) -> ReplayRules:
    as_of = values["as_of"]
    history, max_reach_back_ms = values["history"], values["max_reach_back_ms"]
    return ReplayRules(
        as_of=AsOf(now_ms=typed(int, as_of["now_ms"]), roll=typed(bool, as_of["roll"])),
        expiry=_expiry(values["expiry"]),
        history=None if history is None else _expiry(history),
        transaction_max_timeout_ms=typed(int, values["transaction_max_timeout_ms"]),
        max_reach_back_ms=None if max_reach_back_ms is None else typed(int, max_reach_back_ms),
        full=typed(bool, values["full"]),
        verify_crc=typed(bool, values["verify_crc"]),
    )


def _expiry(values: object) -> Expiry:
    expiration_ms, check_interval_ms = typed(list, values)
    return Expiry(typed(int, expiration_ms), typed(int, check_interval_ms))


def left_out_warning(topic_partition: TopicPartition, offset: int, left_out: Sequence[LeftOut]) -> Iterator[str]:
    """Yield a warning if a snapshot lacks producers, or the last batches of some."""
    left_out = harmful(left_out)
    partial = [pid for pid, reason in left_out if reason == Unexplained.BATCHES]
    for pids, what in (
        ([pid for pid, _ in left_out if pid not in partial], "excluded from the snapshot at {}, since their history"),
        (partial, "without a batch in the snapshot at {}, where only their open transaction is known, since the rest"),
    ):
        if pids:
            ids = ", ".join(map(str, pids[:_MOST_NAMED]))
            excluded = f"{some(len(pids), 'producer')} {what.format(offset)} could not be read"
            yield f"{topic_partition}: {excluded}: {ids}"


def unread_warning(plan: PartitionPlan) -> Iterator[str]:
    """Yield a warning if a limit kept batches from being read that may have begun a transaction which is still open."""
    unread = unread_below(plan)
    if (
        plan.rules.max_reach_back_ms is not None
        and unread is not None
        and not plan.evidence.shows_hanging_below(unread)
    ):
        yield (
            f"{plan.topic_partition}: batches below {unread} were not read, since --max-reach-back limits it, and no"
            " snapshot shows the transactions that were open there: one that hangs since then is lacking"
        )
