"""May tiering be turned on? ``check`` judges topic by topic what a broker's tiering would meet.

It judges each partition (``readiness.judge_partition``, as ``scan`` and the page do), and the settings of broker and
topics where they can be asked for. It reads what ``scan`` reads, and the newest snapshot of each partition. What it was
not given to judge by is named and changes no verdict; what it could not read makes a topic unknown, unless the topic is
blocked all the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.log.log_dir import most_of_a_broker
from resnap.tiering.broker_releases import facts_of
from resnap.tiering.judging.file_damage import damage_in_files
from resnap.tiering.judging.inventory import NEVER_TIERED
from resnap.tiering.judging.known_faults import (
    FIRST_WITH_TIERING,
    PAGE,
    SNAPSHOT_TOO_LARGE,
    Severity,
    known_fault,
    met_faults,
    unreadable_snapshot,
)
from resnap.tiering.judging.readiness import TieringSizes, Verdict, judge, judge_partition, topic_verdict
from resnap.tiering.judging.refusal import (
    LOG_DIRS,
    Reason,
    SettingReason,
    Stop,
    broker_setting_blockers,
    stop_for,
    topic_setting_blockers,
)
from resnap.tiering.selection import segments_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from resnap.replay.watching import Progress
    from resnap.storage.errors import ResnapError
    from resnap.storage.log.log_dir import PartitionProblem
    from resnap.storage.log.partition_dir import Place
    from resnap.storage.sources.files import Sources
    from resnap.tiering.broker_releases import BrokerReleases
    from resnap.tiering.judging.broker_start import BrokerStart
    from resnap.tiering.judging.readiness import JudgedPartition, Judgement
    from resnap.tiering.selection import Scope, SelectedPartition, Selection


BATCHES: Final = "record-batches"
"""What is not checked of any topic: of a segment the first and the last batch alone are read."""


class Blocker(NamedTuple):
    """What stops the tiering of a topic, or is to be known of it."""

    partition: int | None
    """None where it is the whole topic."""
    stop: Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTopic:
    """One topic."""

    topic: str
    verdict: Verdict
    partitions: int
    verdicts: Mapping[Verdict, int]
    """The verdicts on its partitions that could be read."""
    is_tiered: bool | None
    """Whether tiering is on; None where the cluster was not asked."""
    sizes: TieringSizes
    blockers: Sequence[Blocker]
    warnings: Sequence[Blocker]
    unknown: Sequence[str]
    """What could not be read."""
    not_checked: Sequence[str]
    """What there was nothing to judge by."""
    faults: tuple[ResnapError, ...]
    """Why some of its partitions could not be read."""
    is_stored: bool
    """Whether remote storage that was named holds segments of it."""
    faults_not_checked: str | None
    """Why Kafka's known faults of some brokers are not checked, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class CheckWork:
    """The facts that a check depends on: settings of the run, and of the cluster and its brokers."""

    scope: Scope
    selection: Selection
    sources: Sources
    now_ms: int
    transaction_max_timeout_ms: int
    expiration_ms: int
    high_watermark: int | None
    broker_settings: Sequence[Mapping[str, str]]
    """The settings of the brokers of the log dirs, as far as they are known."""
    releases: BrokerReleases
    unanswered: Sequence[str]
    """Why the cluster, a broker of it, or a file of a log dir did not answer."""

    @cached_property
    def starts(self) -> Mapping[Place, BrokerStart]:
        """What a broker finds wrong with each partition when it starts, by their paths."""
        return self.selection.starts(self.sources)

    @cached_property
    def setting_blockers(self) -> Sequence[Stop]:
        """The brokers' settings and releases with which nothing is tiered."""
        by_settings = dict.fromkeys(chain.from_iterable(map(broker_setting_blockers, self.broker_settings)))
        old = [release for release in self.releases.known if release.line < FIRST_WITH_TIERING]
        why = SettingReason.RELEASE_WITHOUT_TIERING
        return [*by_settings, *(stop_for(why, f"a broker of {release} has no tiered storage") for release in old)]

    @cached_property
    def log_dirs(self) -> int:
        """The most log dirs that a broker has, as far as is known."""
        settings = (values.get(LOG_DIRS, "").split(",") for values in self.broker_settings)
        by_settings = (sum(bool(path.strip()) for path in paths) for paths in settings)
        return max([most_of_a_broker(self.selection.log_dirs), *by_settings])

    @cached_property
    def stored_topics(self) -> Collection[str]:
        """Topics of which remote storage that was named holds segments."""
        joining = self.scope.joining
        return {at.topic_partition.topic for at in joining.stored.partitions} if joining else set()


def check(work: CheckWork, progress: Progress, report: Callable[[CheckedTopic], None]) -> None:
    """Report each topic in scope as soon as it is judged; those that brokers never tier only if they are named.

    Raises:
        StoreError: the store that a log dir is in failed.

    """
    topics: dict[str, list[SelectedPartition]] = {}
    for selected in work.selection.partitions:
        topics.setdefault(selected.topic_partition.topic, []).append(selected)
    unread: dict[str, list[PartitionProblem]] = {}
    for problem in work.selection.problems:
        if problem.topic_partition is not None:
            unread.setdefault(problem.topic_partition.topic, []).append(problem)
    left_out = set() if work.scope.topics or work.scope.partitions else NEVER_TIERED
    progress.expect(segments_in(work.selection.partitions), 0)
    for topic in sorted((topics.keys() | unread.keys()) - left_out):
        partitions = topics.get(topic, [])
        report(_checked_topic(topic, partitions, unread.get(topic, []), work))
        progress.advance(segments_in(partitions), 0)


def _checked_topic(
    topic: str, partitions: Sequence[SelectedPartition], unread: Sequence[PartitionProblem], work: CheckWork
) -> CheckedTopic:
    live = next((selected.live for selected in partitions), None)
    # Settings of the brokers and of the topic, with which nothing is tiered, whatever the logs are like.
    settings = [*work.setting_blockers, *(() if live is None else topic_setting_blockers(live))]
    blockers = [Blocker(None, stop) for stop in settings]
    # What a broker finds in each partition.
    warnings: list[Blocker] = []
    unknown = [str(problem.error) for problem in unread]
    verdicts: Counter[Verdict] = Counter()
    sizes = TieringSizes()
    for selected in partitions:
        number = selected.topic_partition.partition
        judged = judge_partition(
            selected.inventory,
            work.sources,
            now_ms=work.now_ms,
            transaction_max_timeout_ms=work.transaction_max_timeout_ms,
            expiration_ms=work.expiration_ms,
            high_watermark=work.high_watermark,
            retention_ms=selected.retention_ms,
            facts=selected.live_facts,
            remote_end=selected.remote_end,
            in_files=damage_in_files(selected.inventory.partition, work.sources),
            start=work.starts[selected.inventory.partition.path],
        )
        judgement = judge(judged.facts, ())
        verdicts[judgement.verdict] += 1
        sizes += judged.sizes()
        more = f"; segments in {work.scope.remote} that brokers know stop nothing; --bootstrap-server shows which"
        is_told = judged.remote_end_offset is None and topic in work.stored_topics
        for stop in _stops(judged, judgement):
            hint = f"{stop.hint}{more}" if is_told and stop.reason == Reason.MISSING_SNAPSHOT else stop.hint
            blockers.append(Blocker(number, replace(stop, hint=hint)))
        warnings += [Blocker(number, refusal) for refusal in judged.blockers.shipped_as_is]
        unknown += [refusal.detail for refusal in judged.blockers.found if refusal.reason is Reason.UNREADABLE]
    # Kafka's own faults that this topic meets in the brokers' releases.
    facts = facts_of(partitions, work.log_dirs, work.sources, work.expiration_ms)
    for met in met_faults(work.releases.known, facts):
        if met.met:
            found = Blocker(None, Stop(reason=met.fault.name, detail=met.detail, hint=met.hint))
            (blockers if met.fault.severity is Severity.BLOCKS else warnings).append(found)
    unreadable = unreadable_snapshot(facts.entries or 0, work.releases.of_all, facts.expired_ms)
    if unreadable is not None and not any(blocker.stop.reason == SNAPSHOT_TOO_LARGE for blocker in blockers):
        hint = f"give --kafka-version; {known_fault(SNAPSHOT_TOO_LARGE).remedy} (see {PAGE})"
        warnings.append(Blocker(None, Stop(reason=SNAPSHOT_TOO_LARGE, detail=unreadable, hint=hint)))
    unknown += work.unanswered
    is_blocked = any(blocker.stop.unblocked_by is not None for blocker in blockers)
    by_all = [*verdicts, *([Verdict.BLOCKED] if is_blocked else ()), *([Verdict.UNKNOWN] if unknown else ())]
    return CheckedTopic(
        topic=topic,
        verdict=topic_verdict(by_all),
        partitions=len({at.topic_partition for at in partitions} | {at.topic_partition for at in unread}),
        verdicts=dict(sorted(verdicts.items())),
        is_tiered=None if live is None else live.is_tiered,
        sizes=sizes.all_blocked() if settings else sizes,
        blockers=blockers,
        warnings=warnings,
        unknown=unknown,
        not_checked=list(_not_checked(partitions, work)),
        faults=tuple(problem.error for problem in unread),
        is_stored=topic in work.stored_topics,
        faults_not_checked=work.releases.not_checked,
    )


def _stops(judged: JudgedPartition, judgement: Judgement) -> Iterator[Stop]:
    """Yield what stops tiering of a partition, and what prevents a replay that would unblock it."""
    if judgement.verdict in {Verdict.READY, Verdict.UNKNOWN}:
        return
    found = [refusal for refusal in judged.blockers.found if refusal.reason is not Reason.UNREADABLE]
    if judgement.verdict is Verdict.NEVER or judged.lost_state is not None or not found:
        yield Stop(
            reason=str(judgement.reason),
            detail=judgement.detail,
            hint=judgement.next_step,
            unblocked_by=judgement.unblocked_by,
            until_ms=judgement.until_ms,
        )
    if judgement.verdict is Verdict.NEVER or not found:
        return
    blocking = judged.candidates.blocking
    named = {Reason.HW_UNKNOWN, judgement.reason, *(refusal.reason for refusal in found)}
    if blocking is not None and blocking.reason not in named:
        found.append(blocking)
    yield from found


def _not_checked(partitions: Sequence[SelectedPartition], work: CheckWork) -> Iterator[str]:
    """Yield what there was nothing to judge by."""
    if not work.broker_settings:
        yield "broker-settings"
    if work.scope.connect is None:
        yield "topic-settings"
    if any(selected.live_facts is None or selected.live_facts.last_stable_offset is None for selected in partitions):
        yield "last-stable-offset"
    if any(selected.inventory.partition.topic_id is None for selected in partitions):
        yield "topic-id"
    if any(selected.inventory.partition.high_watermark is None for selected in partitions):
        yield "high-watermark"
    if any(selected.live_facts is None or selected.live_facts.remote_end_offset is None for selected in partitions):
        yield "shipped"
    if work.releases.not_known is not None:
        yield "known-faults"
    yield BATCHES
