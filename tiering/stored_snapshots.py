"""Compares the snapshots of a store with a replay of the stored segments.

The replay uses the rules in the manifest of a snapshot, if it has any: other rules would drop, or keep, other
producers. So a partition that was shipped by several runs is replayed once for each moment T.

The segments above a segment must not matter. They decide how far back a replay reads, so this replay may find more at a
boundary beyond the window than the run that shipped it had to. The snapshot must have the transactions that span it and
were aborted later; those that were committed may be missing.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.replay.comparison import NO_PRODUCERS, Producers
from resnap.replay.results import BoundaryOutcome
from resnap.replay.staging import DISCARD, snapshot_key
from resnap.storage.errors import (
    FormatError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreUnavailableError,
    VerificationError,
)
from resnap.storage.layouts.manifest import SnapshotHow
from resnap.storage.stores.protocol import length_of
from resnap.storage.words import instant
from resnap.tiering.judging.planning import load_facts, plan_replay
from resnap.tiering.selection import Scope, select
from resnap.tiering.shipping.stored_rules import is_cut_short, is_of_shorter_log, judged_under, made_under
from resnap.tiering.store_check import read_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from resnap.replay.comparison import Comparison
    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.replay.watching import Progress
    from resnap.replay.window import ReplayRules
    from resnap.storage.errors import ResnapError
    from resnap.storage.layouts.manifest import ManifestFacts, SnapshotOrigin
    from resnap.storage.layouts.segments import Listing
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.selection import SelectedPartition
    from resnap.tiering.store_check import StoreCheck

REPLAYED_HERE_BYTES: Final = 1 << 30
"""Segments of fewer bytes are replayed sooner than a JVM has started."""
_UNREADABLE: Final = "its batches cannot be read"
_THE_REST_FIRST: Final = "repair what else is reported of this partition, and verify again"


class SnapshotCheck(NamedTuple):
    """The result of comparing a shipped snapshot with a replay."""

    key: str
    problem: ResnapError | None
    """None if it is what the replay gives; a ``StoreError`` where the store did not let it be compared."""
    rebuilt: str | None = None
    """Key of what the replay gives, in the sink; None where it came to nothing."""
    lacks: Producers = NO_PRODUCERS
    differs: Producers = NO_PRODUCERS
    replayed: ReplayedBoundary | None = None
    """None where nothing was replayed for it."""


class ReplayedBoundary(NamedTuple):
    """The replay's result at the end of a stored segment."""

    plan: PartitionPlan
    result: BoundaryResult
    lacks_records: bool
    """As in ``PartitionResult``."""


def compared_snapshots(check: StoreCheck, progress: Progress) -> Iterator[SnapshotCheck]:
    """Replay the segments, and yield the result of each selected snapshot.

    Raises:
        ResnapError: the replay failed.

    """
    asked = {key: check.manifests[key] for key in check.asked_for if key in check.manifests}
    there = {key: one for key, one in check.manifests.items() if not check.unreadable or _is_whole(check, key)}
    for logs in _logs(check, there):
        yield from _compare(check, logs, asked, progress)


def _compare(
    check: StoreCheck, logs: StoredLogs, asked: Mapping[str, ManifestFacts], progress: Progress
) -> Iterator[SnapshotCheck]:
    """Compare the snapshots of ``logs``; around a broken segment, those below and above it."""
    held = {f"{check.part.store.url}/{manifest.snapshot_key}": manifest for manifest in asked.values()}
    selection = select(logs.scope(check.part.store.url, check.listing.manifests), check.sources)
    for partition in selection.partitions:
        _count_unusable(check, partition, asked)
    known = frozenset(check.unreadable)
    plans = {partition.topic_partition: list(_plans(check, partition, held)) for partition in selection.partitions}
    torn = {path: at for path, at in check.unreadable.items() if path not in known}
    yield from (_not_compared(path, _UNREADABLE) for path in torn)
    whole = [found for at, found in plans.items() if at not in torn.values()]
    compared: set[str] = set()
    for depth in range(max(map(len, whole), default=0)):
        layer = [found[depth] for found in whole if depth < len(found)]
        for found in _replay(check, layer, held, progress):
            compared.add(found.key)
            yield found
    broken = {at for path, at in check.unreadable.items() if path not in known}
    unread = {problem.topic_partition for problem in selection.problems} | broken
    left = {key: one for key, one in asked.items() if f"{check.part.store.url}/{one.snapshot_key}" not in compared}
    around = _around_broken(check, logs, unread)
    gone_around = check.with_problems & {one.topic_partition for one in around.values()}
    for problem in (problem for problem in selection.problems if problem.topic_partition not in gone_around):
        yield _not_compared(str(problem.path), str(problem.error))
    for below_or_above in _logs(check, around):
        yield from _compare(check, below_or_above, left, progress)


def _around_broken(
    check: StoreCheck, logs: StoredLogs, unread: Collection[TopicPartition | None]
) -> dict[str, ManifestFacts]:
    """Return the intact parts of those ``logs`` that are ``unread`` because of some broken segments."""
    found: dict[str, ManifestFacts] = {}
    for at, keys in logs.keys.items():
        whole = [key for key in keys if _is_whole(check, key)] if at in unread else keys
        found |= {key: check.manifests[key] for key in whole} if len(whole) < len(keys) else {}
    return found


def _is_whole(check: StoreCheck, key: str) -> bool:
    """Whether all objects of the segment with the manifest at ``key`` exist, and its log can be read."""
    try:
        found = check.listing.read(key)
    except (FormatError, ObjectNotFoundError):
        return False
    store = check.part.store
    if found.missing or not check.unreadable.keys().isdisjoint(read_of(found, store.url)):
        return False
    return all(length_of(store, part.key) == part.size_bytes for part in found.objects)


def _count_unusable(check: StoreCheck, selected: SelectedPartition, asked: Mapping[str, ManifestFacts]) -> None:
    """Count the snapshots at ends of segments that are missing, or that no broker could load."""
    at = selected.topic_partition
    ends = {facts.next_base_offset: facts for facts in asked.values() if (facts.topic, facts.partition) == at}
    unusable = [ends[boundary.offset] for boundary in selected.inventory.unusable if boundary.offset in ends]
    if unusable:
        url = check.part.store.url
        check.unfit.setdefault(at, set()).update(f"{url}/{facts.snapshot_key}" for facts in unusable)


def _logs(check: StoreCheck, found: Mapping[str, ManifestFacts]) -> Iterator[StoredLogs]:
    wanted = {key: manifest for key, manifest in found.items() if check.scope.wants(manifest.topic)}
    return stored_logs(wanted, check.listing, check.asked_for)


def _plans(
    check: StoreCheck, selected: SelectedPartition, held: Mapping[str, ManifestFacts]
) -> Iterator[PartitionPlan]:
    inventory = selected.inventory
    offsets: dict[ReplayRules, list[int]] = {}
    for boundary in inventory.boundaries:
        one = held.get(boundary.path or "")
        if one is not None and (boundary.state.is_usable or check.sink != DISCARD):
            offsets.setdefault(_rules(check, one), []).append(boundary.offset)
    aborted_in = check.aborted_in(selected)
    if offsets:
        facts = load_facts(
            inventory.partition,
            check.sources,
            expiration_ms=check.planner.rules.written_under.expiration_ms,
            is_judged=True,
            aborted_in=aborted_in,
        )
        there = {boundary.offset: boundary.path for boundary in inventory.boundaries if boundary.path is not None}
        for rules, wanted in offsets.items():
            plan = plan_replay(inventory, facts, wanted, rules, compare=there)
            if plan.bytes_in_segments >= REPLAYED_HERE_BYTES:
                check.planner.engine.needed_for(plan)
            yield plan


def _rules(check: StoreCheck, held: ManifestFacts) -> ReplayRules:
    """Return the rules with which to compare a snapshot."""
    origin, planner = held.snapshot_origin, check.planner
    return planner.rules if origin is None else judged_under(origin, planner.rules, planner.asked)


def _replay(
    check: StoreCheck, plans: list[PartitionPlan], held: Mapping[str, ManifestFacts], progress: Progress
) -> Iterator[SnapshotCheck]:
    results = check.planner.engine.replay(
        plans,
        check.sink,
        progress,
        here_below_bytes=REPLAYED_HERE_BYTES,
        sources=check.sources,
    )
    by_partition = {plan.topic_partition: plan for plan in plans}
    for result in results:
        check.planner.report_states(result, by_partition[result.topic_partition], check.sink)
        torn = _torn(check, by_partition[result.topic_partition], result)
        if torn is not None:
            check.unreadable[torn] = result.topic_partition
            yield _not_compared(torn, str(result.error), hint=check.part.layout.remedy_when_verified)
        for found in result.boundaries:
            if torn is not None and found.outcome is not BoundaryOutcome.REBUILT:
                continue  # it is compared once more, without the segment that is broken
            done = _snapshot_check(check, by_partition[result.topic_partition], found, held, result.error)
            is_made = found.outcome is BoundaryOutcome.REBUILT
            rebuilt = snapshot_key(result.topic_partition, found.offset) if is_made else None
            replayed = ReplayedBoundary(by_partition[result.topic_partition], found, result.lacks_records)
            yield done._replace(rebuilt=rebuilt, replayed=replayed)


def _torn(check: StoreCheck, plan: PartitionPlan, result: PartitionResult) -> str | None:
    """Return the log at which a replay of some of the snapshots ended; None if no log caused it."""
    error = result.error
    if error is None or all(boundary.outcome is BoundaryOutcome.REBUILT for boundary in result.boundaries):
        return None
    at = error.file if isinstance(error, FormatError) else None
    return next((span.locator for span in plan.segments if span.locator == at and at not in check.unreadable), None)


def _snapshot_check(
    check: StoreCheck,
    plan: PartitionPlan,
    found: BoundaryResult,
    held: Mapping[str, ManifestFacts],
    error: ResnapError | None,
) -> SnapshotCheck:
    snapshot = found.boundary.existing or ""
    if found.outcome is not BoundaryOutcome.REBUILT:
        why = f"{plan.topic_partition} is not rebuilt up to {found.offset}: {found.reason or error}"
        return _not_compared(snapshot, why, error if found.outcome is BoundaryOutcome.UNREADABLE else None)
    if found.comparison is None:  # it passed the look at its object, and did not come a second time
        return _not_compared(snapshot, "it could not be read again, or was deleted meanwhile")
    origin = held[snapshot].snapshot_origin
    lacks = lacking(found, found.comparison, plan, origin)
    differs = differing(found, found.comparison, origin)
    what = "; ".join(
        f"{word} {producers_text(producers)}"
        for word, producers in (("lacks", lacks), ("differs in", differs))
        if producers.total
    )
    if not what:
        return SnapshotCheck(snapshot, None)
    check.unfit.setdefault(plan.topic_partition, set()).add(snapshot)
    problem = f"{snapshot}: not what a replay of the stored segments gives: {what}"
    rules = check.planner.rules
    is_by_others = origin is not None and _rules(check, held[snapshot]) != made_under(origin, rules)
    flags = _flags_of(check) if is_by_others else ""
    hint = f"`resnap repair {shlex.quote(check.part.store.url)}{flags}` replaces it"
    if origin is not None and is_of_shorter_log(origin, found.known_from_offset):
        problem += f"; it was made {read_for(origin)}, and the stored one begins at {found.known_from_offset}"
        hint += "; `resnap tier` from a log dir that has the beginning names all such segments"
    if origin is not None and is_by_others:
        problem += f"; it was made under {rules_made_under(origin)}, and is compared under other rules"
    return SnapshotCheck(snapshot, VerificationError(problem, hint=hint), lacks=lacks, differs=differs)


def _flags_of(check: StoreCheck) -> str:
    """Return the flags with which a repair judges snapshots by the rules that ``check`` was asked for."""
    rules, asked = check.planner.rules, check.planner.asked
    flags = []
    if asked.expiry or not asked.is_expiry_assumed:
        flags.append(f" --producer-id-expiration-ms {rules.expiry.expiration_ms}")
    if asked.as_of:
        flags.append(f" --as-of {'roll' if rules.as_of.roll else instant(rules.as_of.now_ms)}")
    return "".join(flags)


def _not_compared(
    where: str, why: str, error: ResnapError | None = None, *, hint: str = _THE_REST_FIRST
) -> SnapshotCheck:
    what = f"{where}: cannot be compared: {why.removeprefix(f'{where}: ')}"
    if isinstance(error, StoreAccessError | StoreUnavailableError):  # which says nothing of what is stored
        return SnapshotCheck(where, type(error)(what, key=error.key, hint=error.hint))
    return SnapshotCheck(where, VerificationError(what, hint=hint))


MOST_SHOWN: Final = 5


_BEYOND_WINDOW: Final = {SnapshotHow.BEYOND_WINDOW, SnapshotHow.KEPT}


def lacking(
    found: BoundaryResult, comparison: Comparison, plan: PartitionPlan, origin: SnapshotOrigin | None
) -> Producers:
    """Return the producers that a stored snapshot lacks, except those whose absence its origin explains.

    If it was made from a shorter log, or less of it was read, doubts of that time are settled now. No broker has
    expired producers of a snapshot that Resnap made. Beyond the window it was made from evidence alone, so producers
    may be missing whose transaction was committed later.
    """
    lacks = comparison.missing if _is_brokers(origin) else Producers.join((comparison.missing, comparison.swept))
    excused = set()
    if origin is not None and not (
        is_of_shorter_log(origin, found.known_from_offset)
        or is_cut_short(origin, plan.rules, found.boundary.offset, lambda: plan.segments)
    ):
        excused = set(lacks.named).intersection(producer.producer_id for producer in origin.left_out)
    if plan.is_beyond_window(found.boundary) and (origin is None or origin.how in _BEYOND_WINDOW):
        aborted = {txn.producer_id for txn in plan.evidence.aborted_across(found.offset)}
        excused |= set(lacks.named) - aborted
    # A producer that is not named cannot be excused.
    return Producers(lacks.total - len(excused), tuple(pid for pid in lacks.named if pid not in excused))


def differing(found: BoundaryResult, comparison: Comparison, origin: SnapshotOrigin | None) -> Producers:
    """Return the producers whose entries in a stored snapshot differ.

    A log without its beginning may not show that a broker had forgotten a producer in between: then the coordinator
    epoch is kept, which is harmless. So are the differences in snapshots that older brokers wrote. No broker has
    expired the entries of a snapshot that Resnap made.
    """
    harmless = NO_PRODUCERS
    if origin is None:
        harmless = comparison.older_rules
    elif is_of_shorter_log(origin, found.known_from_offset):
        harmless = comparison.coordinator_kept
    left = tuple(pid for pid in comparison.different.named if pid not in set(harmless.named))
    differs = Producers(comparison.different.total - harmless.total, left)
    return differs if _is_brokers(origin) else Producers.join((differs, comparison.batch_lost))


def _is_brokers(origin: SnapshotOrigin | None) -> bool:
    """Whether a broker has written a stored snapshot."""
    return origin is None or origin.how in {SnapshotHow.PROVEN, SnapshotHow.KEPT}


def rules_made_under(origin: SnapshotOrigin) -> str:
    """Return the rules of a stored snapshot as text."""
    at = "at its roll" if origin.as_of == "roll" or origin.as_of_ms is None else f"as of {instant(origin.as_of_ms)}"
    return f"producer.id.expiration.ms {origin.producer_id_expiration_ms}, {at}"


def read_for(origin: SnapshotOrigin) -> str:
    """Return which part of the log a stored snapshot was made from as text."""
    begins = origin.known_from_offset or origin.window_start_offset
    return f"from a log that began at offset {begins} or was read from there (--max-reach-back)"


def producers_text(producers: Producers) -> str:
    """Return the first of these producers by their ids, as text."""
    ids = producers.named[:MOST_SHOWN]
    more = producers.total - len(ids)
    return f"producers {', '.join(map(str, ids))}" + (f" and {more} more" if more else "")


class StoredLogs(NamedTuple):
    """Logs that are replayed together, each without a gap; one of a partition."""

    folder: str
    """In the store."""
    topic_ids: dict[str, str]
    """As in keys, by topic."""
    keys: dict[TopicPartition, Sequence[str]]
    """The keys of the manifests of each log."""

    def scope(self, store_url: str, manifests: Collection[str]) -> Scope:
        """Return the scope with only these logs; ``manifests`` are the keys of all in the store."""
        others = set(manifests).difference(*self.keys.values())
        others |= {key.removeprefix(f"{self.folder}/") for key in others}
        return Scope(
            sources=(f"{store_url}/{self.folder}".rstrip("/"),),
            topics=tuple(sorted(self.topic_ids)),
            topic_ids=self.topic_ids,
            counts=lambda key: key not in others,
        )


def stored_logs(
    found: Mapping[str, ManifestFacts], listing: Listing, asked_for: Collection[str]
) -> Iterator[StoredLogs]:
    """Yield the logs to replay for the selected segments of ``found``, by keys of manifests."""
    keys: dict[tuple[str, TopicPartition, str], list[str]] = {}
    ids: dict[tuple[str, str], set[str]] = {}
    for key, manifest in found.items():
        folder, topic_id = listing.source(key)
        keys.setdefault((folder, manifest.topic_partition, topic_id), []).append(key)
        ids.setdefault((folder, manifest.topic), set()).add(topic_id)
    together: dict[tuple[str, int, int], StoredLogs] = {}
    for (folder, at, topic_id), of_partition in keys.items():
        number = sorted(ids[folder, at.topic]).index(topic_id)
        for depth, log in enumerate(_without_gaps(of_partition, found)):
            if any(key in asked_for for key in log):
                logs = together.setdefault((folder, number, depth), StoredLogs(folder, {}, {}))
                logs.topic_ids[at.topic], logs.keys[at] = topic_id, log
    yield from (logs for _, logs in sorted(together.items()))


def _without_gaps(keys: Sequence[str], found: Mapping[str, ManifestFacts]) -> list[list[str]]:
    """Return ``keys``, of segments of one partition, split at each gap."""
    logs: list[list[str]] = []
    reached = -1
    for key in sorted(keys, key=lambda key: found[key].base_offset):
        if found[key].base_offset > reached:
            logs.append([])
        logs[-1].append(key)
        reached = max(reached, found[key].next_base_offset)
    return logs
