"""The use cases of `resnap quota simulate` and `advise`: a log's uses of producer ids, by principal, through the quota.

Headers are read where replays read them: by Spark's executors, or by this process. What comes back is a time and an id
for each use, thinned to one a second, and the quota itself runs here, principal by principal.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from resnap.replay.scan.header_scan import SegmentRange
from resnap.scheduler.use_cases.sources import look
from resnap.tiering.quota.advice import advised_rate, least_rate
from resnap.tiering.quota.producer_activity import SegmentToRead, Uses, in_time, joined, read_uses
from resnap.tiering.quota.simulation import simulate, without_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resnap.scheduler.use_cases.engines import Engine
    from resnap.scheduler.use_cases.sources import Scope
    from resnap.storage.errors import ResnapError
    from resnap.tiering.quota.client_quotas import UserRates
    from resnap.tiering.quota.principals import PrincipalMap
    from resnap.tiering.quota.simulation import Outcome, Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class LogUses:
    """What a log holds, for a quota."""

    by_principal: Mapping[str, Uses]
    segments: int
    batches: int
    """Batches of producers."""
    undated: int = 0
    """Batches that no time is known of, and that are left out."""
    errors: tuple[ResnapError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What one principal needs."""

    principal: str
    new_ids: int
    least_rate: float
    """At which it would have been left alone."""


def gather(scope: Scope, engine: Engine, principals: PrincipalMap) -> LogUses:
    """Read the uses of producer ids of everything in scope.

    Raises:
        UsageError, LogDirError, StoreError: a source cannot be listed.
        ResnapError: Spark failed.

    """
    sight = look(scope, engine.reading.sources)
    segments = [
        SegmentToRead(
            topic=sighted.topic_partition.topic,
            range=SegmentRange(
                locator=str(segment.path), base_offset=segment.base_offset, next_base_offset=segment.next_base_offset
            ),
        )
        for sighted in sight.partitions
        for segment in sighted.inventory.partition.segments
    ]
    found = engine.spread(partial(read_uses, sources=engine.reading.sources), segments)
    parts: dict[str, list[Uses]] = defaultdict(list)
    for one in found:
        for principal, theirs in principals.split(one.topic, one.uses.producer_id):
            parts[principal].append(Uses(one.uses.at_ms[theirs], one.uses.producer_id[theirs]))
    return LogUses(
        by_principal={principal: in_time(joined(uses)) for principal, uses in sorted(parts.items())},
        segments=len(segments),
        batches=sum(one.batches for one in found),
        undated=sum(one.undated for one in found),
        errors=(*(problem.error for problem in sight.problems), *(one.error for one in found if one.error)),
    )


def without_rate(uses: LogUses, rates: UserRates) -> list[str]:
    """Return the principals that no rate is for."""
    return [principal for principal in uses.by_principal if rates.of(principal) is None]


def simulated(uses: LogUses, rates: UserRates, rules: Rules) -> Iterator[Outcome]:
    """Yield what the rates would have done to each principal that has one."""
    for principal, theirs in uses.by_principal.items():
        rate = rates.of(principal)
        if rate is not None and len(theirs.at_ms):
            yield simulate(principal, theirs, rate, rules)


def advised(uses: LogUses, rules: Rules, share: float) -> tuple[list[Advice], float | None]:
    """Return what each principal needs, the least first, and the rate that leaves so large a share of them alone."""
    found = []
    for principal, theirs in uses.by_principal.items():
        if len(theirs.at_ms):
            outcome = without_limit(principal, theirs, rules)
            rate = least_rate(outcome.arrivals_ms, rules.config)
            found.append(Advice(principal=principal, new_ids=outcome.new_ids, least_rate=rate))
    found.sort(key=lambda one: (one.least_rate, one.principal))
    return found, advised_rate([one.least_rate for one in found], share) if found else None
