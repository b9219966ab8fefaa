"""`resnap quota advise`: finds the rate that would have left most principals unthrottled, and its effect on others."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.flags import CLUSTER, ENGINE, METADATA, SERVER, SPARK, STORE, TOPIC
from resnap.scheduler.job.contract import Context, Request, Result, Unread, Verb, View
from resnap.scheduler.job.large_states import LargeStates
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import Column, Row
from resnap.scheduler.verbs.quota import number
from resnap.scheduler.verbs.quota_simulate import shown_duration
from resnap.scheduler.verbs.quota_uses import PrincipalFile, Profile, Samples, Unit, WindowSeconds, rules_of, uses_of
from resnap.storage.words import human_count, span
from resnap.tiering.judging.known_faults import MANY_ENTRIES
from resnap.tiering.quota.active_producers import Uses
from resnap.tiering.quota.client_quotas import user_name
from resnap.tiering.quota.simulation import PrincipalOutcome, Rules, advised_rate, least_rate, simulate, without_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """Find the rate that would not have throttled the quietest 99 % of principals, and what it stops."""

    share: Annotated[
        float,
        typer.Option(
            "--share", min=0.01, max=1, help="Share of principals, the quietest ones, that the rate must not throttle."
        ),
    ] = 0.99
    principal_map: PrincipalFile = None
    profile: Profile = "P-C"
    samples: Samples = 11
    window_seconds: WindowSeconds = 3600
    unit: Unit = "hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Result):
    """The rate that does not throttle the given share of principals; the first result. None if there is none."""

    rate: float | None
    most_producers: int | None
    """How many producers one principal can then have in a partition before the first of them expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised(Result):
    """What one principal needs, and what the advised rate would have done to it."""

    new_ids: int
    least_rate: float
    """The rate at which it would not have been throttled."""
    outcome: PrincipalOutcome


def run(request: Asked, context: Context) -> Iterator[Advice | Advised | Unread]:
    """Find the rate, and yield what each principal needs, the most first.

    Raises:
        UsageError: a source cannot be listed.
        ResnapError: Spark failed.

    """
    rules = rules_of(request.profile, request.samples, request.window_seconds, request.unit, 0.01, permissive=False)
    with uses_of(request.scope, request.principal_map, context) as uses:
        needs = [need for need in uses.map(partial(_need, rules=rules)) if need is not None]
        rate = advised_rate([need.least_rate for need in needs], request.share) if needs else None
        yield _advice(rate, rules, context)
        outcomes = uses.map(partial(_under, rate=rate or 0.0, rules=rules)) if needs else []
    of = {outcome.principal: outcome for outcome in outcomes if outcome is not None}
    for need in sorted(needs, reverse=True):
        yield Advised(new_ids=need.new_ids, least_rate=need.least_rate, outcome=of[user_name(need.principal)])
    yield from uses.unread()


def _advice(rate: float | None, rules: Rules, context: Context) -> Advice:
    """Return the rate, with a warning where snapshots of a partition that one principal fills get too large."""
    if rate is None:
        return Advice(rate=None, most_producers=None)
    expiration_ms, config = context.settings.expiration_ms, rules.config
    most = int(config.burst(rate) + rate * config.unit.of(expiration_ms))
    what = f"a snapshot of a partition in which one principal uses this rate for {span(expiration_ms)}"
    states = LargeStates(context.settings, context.warn)
    warnings = (states.judged(what, most),) if most >= MANY_ENTRIES else ()
    return Advice(rate=rate, most_producers=most, warnings=warnings)


class _Need(NamedTuple):
    """What one principal needs."""

    least_rate: float
    principal: str
    new_ids: int


def _need(principal: str, uses: Uses, *, rules: Rules) -> _Need | None:
    """Return the lowest rate that does not throttle a principal; None if it used no id."""
    if not len(uses.at_ms):
        return None
    free = without_limit(principal, uses, rules)
    return _Need(least_rate(free.arrivals_ms, rules.config), principal, free.new_ids)


def _under(principal: str, uses: Uses, *, rate: float, rules: Rules) -> PrincipalOutcome | None:
    return simulate(principal, uses, rate, rules).counted() if len(uses.at_ms) else None


class AdvisedRow(TypedDict):
    """One principal of `resnap quota advise`."""

    principal: Annotated[str, "outcome.principal", Column(title="PRINCIPAL")]
    newIds: Annotated[int, Column(title="NEW IDS", right=True)]
    leastRate: Annotated[float, Column(title="LEAST RATE", right=True, show=number)]
    untouched: Annotated[bool, lambda advised: not advised.outcome.is_throttled, Column(title="UNTOUCHED")]
    refusedIds: Annotated[int, "outcome.refused", Column(title="REFUSED", right=True)]
    throttledMs: Annotated[int, "outcome.throttled_ms", Column(title="THROTTLED", right=True, show=shown_duration)]


class AdviceView(View[Advice | Advised | Unread]):
    """A row per principal."""

    name = "principals"
    kind = "principal"
    columns = columns_of(AdvisedRow)
    _rate: float | None
    _most: int | None

    def __init__(self, *, unit: str, share: float, is_table: bool) -> None:
        self._unit, self._share, self._is_table = unit, share, is_table
        self._principals = self._untouched = 0

    def row(self, result: Advice | Advised | Unread) -> Row | None:
        """Return the row of a principal, and count it."""
        if isinstance(result, Advice):
            self._rate, self._most = result.rate, result.most_producers
        if not isinstance(result, Advised):
            return None
        self._principals += 1
        self._untouched += not result.outcome.is_throttled
        return row_of(AdvisedRow, result)

    def head(self) -> Row:
        """Return the rate; people read it in the closing line."""
        if self._is_table:
            return {}
        return {"rate": self._rate, "unit": self._unit, "share": self._share, "mostProducers": self._most}

    def closing(self) -> Iterator[str]:
        """Yield the advice in words."""
        if self._rate is None:
            yield "No producer id in it: nothing to advise."
        else:
            alone = f"{self._untouched} of {self._principals} principals"
            yield f"Rate {number(self._rate)} (per {self._unit}) does not throttle {alone}."
            yield (
                f"With it, one principal has up to {human_count(self._most or 0)} producers in a partition before the"
                " first of them expires."
            )


VERB = Verb(
    takes=(TOPIC, CLUSTER, SERVER, METADATA, ("producer_id_expiration_ms",), ENGINE, SPARK, STORE),
    request=Asked,
    run=run,
    view=lambda request, context: AdviceView(
        unit=request.unit, share=request.share, is_table=context.settings.output == "table"
    ),
)
