"""Quotas, outcomes and advice as rows and columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from resnap.scheduler.answers.rendering import Column, human_bytes, human_duration, plain_text
from resnap.scheduler.clock import instant
from resnap.tiering.quota.client_quotas import shown_entity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resnap.scheduler.answers.rendering import Row
    from resnap.scheduler.quotas.trial import Advice
    from resnap.tiering.quota.client_quotas import Entity
    from resnap.tiering.quota.simulation import Outcome


_EXACT: Final = 2.0**53


def _duration(value: object) -> str:
    return human_duration(value / 1000) if isinstance(value, int) and value else ""


def _size(value: object) -> str:
    return human_bytes(value) if isinstance(value, int) else ""


def number(value: object) -> str:
    """Return a rate or a number of tokens as people read it; whole ones to the last digit, since they were set so."""
    if not isinstance(value, float):
        return plain_text(value)
    return f"{value:.0f}" if value.is_integer() and value < _EXACT else f"{value:.6g}"


QUOTA_COLUMNS = (
    Column(key="entityText", title="ENTITY"),
    Column(key="key", title="QUOTA"),
    Column(key="value", title="VALUE", right=True, show=number),
    Column(key="origin", title="ORIGIN"),
)
OUTCOME_COLUMNS = (
    Column(key="principal", title="PRINCIPAL"),
    Column(key="rate", title="RATE", right=True, show=number),
    Column(key="newIds", title="NEW IDS", right=True),
    Column(key="charged", title="ADMITTED", right=True),
    Column(key="refusedIds", title="REFUSED", right=True),
    Column(key="free", title="FREE", right=True),
    Column(key="throttledMs", title="THROTTLED", right=True, show=_duration),
    Column(key="longestThrottleMs", title="LONGEST", right=True, show=_duration),
    Column(key="firstThrottled", title="FROM"),
    Column(key="lastThrottled", title="TO"),
    Column(key="peakActive", title="PEAK", right=True),
    Column(key="peakBytes", title="MEMORY", right=True, show=_size),
)
ADVICE_COLUMNS = (
    Column(key="principal", title="PRINCIPAL"),
    Column(key="newIds", title="NEW IDS", right=True),
    Column(key="leastRate", title="LEAST RATE", right=True, show=number),
    Column(key="untouched", title="UNTOUCHED"),
    Column(key="refusedIds", title="REFUSED", right=True),
    Column(key="throttledMs", title="THROTTLED", right=True, show=_duration),
)


def quota_rows(entity: Entity, values: Mapping[str, float], origin: str) -> Iterator[Row]:
    """Yield a row for each quota of an entity."""
    for key, value in sorted(values.items()):
        yield {
            "entity": dict(entity),
            "entityText": shown_entity(entity),
            "key": key,
            # A cluster may hold what JSON cannot.
            "value": value if math.isfinite(value) else str(value),
            "origin": origin,
        }


def outcome_row(outcome: Outcome) -> Row:
    """Return what became of a principal."""
    first, last = outcome.first_throttled_ms, outcome.last_throttled_ms
    return {
        "principal": outcome.principal,
        "rate": outcome.rate,
        "uses": outcome.uses,
        "newIds": outcome.new_ids,
        "charged": outcome.charged,
        "free": outcome.free,
        "refusedIds": len(outcome.refused_ids),
        "refusedUses": outcome.refused_uses,
        "throttledMs": outcome.throttled_ms,
        "longestThrottleMs": outcome.longest_throttle_ms,
        "firstThrottled": None if first is None else instant(first),
        "lastThrottled": None if last is None else instant(last),
        "leastTokens": outcome.least_tokens,
        "peakActive": outcome.peak_active,
        "peakBytes": outcome.peak_bytes,
    }


def outcome_tail(outcomes: Sequence[Outcome]) -> Row:
    """Return the totals over all principals."""
    return {
        "principals": len(outcomes),
        "throttledPrincipals": sum(one.is_throttled for one in outcomes),
        "newIds": sum(one.new_ids for one in outcomes),
        "charged": sum(one.charged for one in outcomes),
        "free": sum(one.free for one in outcomes),
        "refusedIds": sum(len(one.refused_ids) for one in outcomes),
        "peakBytes": sum(one.peak_bytes for one in outcomes),
    }


def advice_row(advice: Advice, outcome: Outcome) -> Row:
    """Return what a principal needs, and what the advised rate would have done to it."""
    return {
        "principal": advice.principal,
        "newIds": advice.new_ids,
        "leastRate": advice.least_rate,
        "untouched": not outcome.is_throttled,
        "refusedIds": len(outcome.refused_ids),
        "throttledMs": outcome.throttled_ms,
    }
