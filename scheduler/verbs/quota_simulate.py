"""`resnap quota simulate` and `advise`: runs the producers of a log through a quota, principal by principal.

The one shows which principals a rate would have throttled, when, and for how long; the other finds the rate that would
have left most unthrottled, and its effect on others.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.flags import CLUSTER, ENGINE, METADATA, SERVER, SPARK, STATE, STORE, TOPIC
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Result, Unread, Verb, View
from resnap.scheduler.job.large_states import LargeStates
from resnap.scheduler.output.records import columns_of, instant_of, row_of
from resnap.scheduler.output.rendering import Column, Row
from resnap.scheduler.verbs.plots import check_plot, draw_simulation
from resnap.scheduler.verbs.quota import number, quota_origins
from resnap.scheduler.verbs.quota_uses import PrincipalFile, Profile, Samples, Unit, WindowSeconds, uses_of
from resnap.storage.errors import UsageError
from resnap.storage.words import exact_duration, human_bytes, human_count, human_duration, some
from resnap.tiering.judging.known_faults import MANY_ENTRIES
from resnap.tiering.quota.active_producers import LogUses, Remembering, Uses
from resnap.tiering.quota.client_quotas import PRODUCER_IDS_RATE, UserRates, check_value, user, user_name
from resnap.tiering.quota.layers import life_cycle
from resnap.tiering.quota.simulation import PrincipalOutcome, Rules, advised_rate, least_rate, simulate, without_limit
from resnap.tiering.quota.token_bucket import QuotaConfig, RateUnit
from resnap.tiering.quota.user_quotas import rates_of


class SimulateRequest(Request):
    """Replay a log's producers through a quota, and show which principals it throttles, when, and for how long."""

    rate: Annotated[
        float | None,
        typer.Option(help="One rate for all principals; the default is the rates set, and those of --metadata-log."),
    ] = None
    principal_map: PrincipalFile = None
    profile: Profile = "P-C"
    permissive: Annotated[
        bool, typer.Option(help="Let all requests pass, and report how long each would have to wait.")
    ] = False
    samples: Samples = 11
    window_seconds: WindowSeconds = 3600
    unit: Unit = "hour"
    false_positive_rate: Annotated[
        float, typer.Option(min=1e-9, max=0.5, help="Share of new ids that may pass without being counted.")
    ] = 0.01
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw ids, tokens and throttling into a .png or .svg file.")
    ] = None


class AdviseRequest(Request):
    """Find the rate that would not have throttled the quietest 99 % of principals, and what it stops."""

    share: Annotated[
        float,
        typer.Option(min=0.01, max=1, help="Share of principals, the quietest ones, that the rate must not throttle."),
    ] = 0.99
    principal_map: PrincipalFile = None
    profile: Profile = "P-C"
    samples: Samples = 11
    window_seconds: WindowSeconds = 3600
    unit: Unit = "hour"


def _rules(request: SimulateRequest | AdviseRequest, false_positive_rate: float, *, permissive: bool) -> Rules:
    """Return the rules of the quota that the flags ask for."""
    window_ms, unit = request.window_seconds * 1000, RateUnit[request.unit.upper()]
    cycle = life_cycle(request.profile, window_ms)
    return Rules(
        config=QuotaConfig(samples=request.samples, window_ms=window_ms, unit=unit),
        # The same seed each time, so that the same log gives the same answer.
        remembering=Remembering(cycle=cycle, false_positive_rate=false_positive_rate, seed=0),
        permissive=permissive,
    )


class LogRead(Result):
    """What the log holds, and the principals that no rate is for; the first result."""

    uses: LogUses
    unlimited: list[str]


def simulate_log(request: SimulateRequest, context: Context, report: Report) -> None:
    """Report what the quota would have done with the uses of producer ids in a log, principal by principal.

    Raises:
        UsageError: there is no rate, or a source cannot be listed.
        ConfigurationError: what draws is not installed.
        ResnapError: Spark failed, rates cannot be read, or the picture cannot be written.

    """
    if request.plot is not None:
        check_plot(request.plot)
    rates = _rates(request, context)
    rules = _rules(request, request.false_positive_rate, permissive=request.permissive)
    with uses_of(request.scope, request.principal_map, context) as uses:
        found = uses.map(partial(_simulate, rates=rates, rules=rules))
    unlimited = [item for item in found if isinstance(item, str)]
    several = f"{human_count(len(unlimited))} of {human_count(len(found))}"
    warnings = [f"principals without a rate are skipped: {several}, {one!r} the first of them" for one in unlimited[:1]]
    report(LogRead(uses=uses.read, unlimited=unlimited, warnings=tuple(warnings)))
    outcomes = [item for item in found if isinstance(item, PrincipalOutcome)]
    for outcome in outcomes:
        report(Reported(what=outcome))
    if request.plot is not None:
        draw_simulation(outcomes, request.plot)
        context.note(f"drawn into {request.plot}")
    for problem in uses.unread():
        report(problem)


def _simulate(principal: str, uses: Uses, *, rates: UserRates, rules: Rules) -> PrincipalOutcome | str | None:
    """Return what the quota would have done to a principal; its name if there is no rate, None if it used no id."""
    rate = rates.of(principal)
    if rate is None:
        return principal
    return simulate(principal, uses, rate, rules).counted() if len(uses.at_ms) else None


def _rates(request: SimulateRequest, context: Context) -> UserRates:
    if request.rate is not None:
        check_value(user(None), PRODUCER_IDS_RATE, request.rate)
        return UserRates(default=request.rate)
    rates = rates_of(quota_origins(context).values(), context.warn)
    if rates == UserRates():
        raise UsageError("no rate is given", hint="give --rate, set one by `resnap quota set`, or --metadata-log DIR")
    return rates


def shown_duration(duration_ms: int) -> str:
    """Return milliseconds for people; nothing for none."""
    return human_duration(duration_ms / 1000) if duration_ms else ""


class SimulatedRow(TypedDict):
    """One principal of `resnap quota simulate`."""

    principal: Annotated[str, Column(title="PRINCIPAL")]
    rate: Annotated[float, Column(title="RATE", right=True, show=number)]
    uses: int
    newIds: Annotated[int, Column(title="NEW IDS", right=True)]
    charged: Annotated[int, Column(title="ADMITTED", right=True)]
    free: Annotated[int, Column(title="FREE", right=True)]
    refusedIds: Annotated[int, "refused", Column(title="REFUSED", right=True)]
    refusedUses: int
    throttledMs: Annotated[int, Column(title="THROTTLED", right=True, show=shown_duration)]
    longestThrottleMs: Annotated[int, Column(title="LONGEST", right=True, show=shown_duration)]
    firstThrottled: Annotated[str | None, instant_of("first_throttled_ms"), Column(title="FROM")]
    lastThrottled: Annotated[str | None, instant_of("last_throttled_ms"), Column(title="TO")]
    leastTokens: float
    peakActive: Annotated[int, Column(title="PEAK", right=True)]
    peakBytes: Annotated[int, Column(title="MEMORY", right=True, show=human_bytes)]


class SimulationView(View["LogRead | Reported[PrincipalOutcome] | Unread"]):
    """A row per principal."""

    kind = "principal"
    columns = columns_of(
        SimulatedRow,
        *("principal", "rate", "newIds", "charged", "refusedIds", "free", "throttledMs", "longestThrottleMs"),
        *("firstThrottled", "lastThrottled", "peakActive", "peakBytes"),
    )

    def __init__(self) -> None:
        summed = ("newIds", "charged", "free", "refusedIds", "peakBytes")
        read = ("withoutRate", "segments", "batches")
        self._totals = dict.fromkeys(("principals", "throttledPrincipals", *summed, *read), 0)

    def row(self, result: LogRead | Reported[PrincipalOutcome] | Unread) -> Row | None:
        """Return the row of a principal, and count it."""
        if isinstance(result, LogRead):
            read = {"segments": result.uses.segments, "batches": result.uses.batches}
            self._totals |= {"withoutRate": len(result.unlimited), **read}
        if not isinstance(result, Reported):
            return None
        row = row_of(SimulatedRow, result.what)
        self._totals["principals"] += 1
        self._totals["throttledPrincipals"] += result.what.is_throttled
        for key in ("newIds", "charged", "free", "refusedIds", "peakBytes"):
            self._totals[key] += row[key]
        return row

    def closing(self) -> Iterator[str]:
        """Yield the same in words."""
        total = self._totals
        read = f"{some(total['batches'], 'batch')} of {some(total['segments'], 'segment')}"
        throttled = f"{total['throttledPrincipals']} of {total['principals']} principals"
        yield f"{throttled} would have been throttled; from {read}."
        yield (
            f"Of {human_count(total['newIds'])} new ids {human_count(total['free'])} were not charged because of a"
            f" filter's false positives; {human_bytes(total['peakBytes'])} of memory at most."
        )


class Advice(Result):
    """The rate that does not throttle the given share of principals; the first result. None if there is none."""

    rate: float | None
    most_producers: int | None
    """How many producers one principal can then have in a partition before the first of them expires."""


class Advised(Result):
    """The least rate that one principal needs, and its outcome at the advised rate."""

    new_ids: int
    least_rate: float
    """The rate at which it would not have been throttled."""
    outcome: PrincipalOutcome


def advise_rate(request: AdviseRequest, context: Context, report: Report) -> None:
    """Find the rate, and report what each principal needs, the most first.

    Raises:
        UsageError: a source cannot be listed.
        ResnapError: Spark failed.

    """
    rules = _rules(request, 0.01, permissive=False)
    with uses_of(request.scope, request.principal_map, context) as uses:
        needs = [need for need in uses.map(partial(_need, rules=rules)) if need is not None]
        rate = advised_rate([rate for rate, _, _ in needs], request.share) if needs else None
        report(_advice(rate, rules, context))
        rates = UserRates(default=rate or 0.0)
        outcomes = uses.map(partial(_simulate, rates=rates, rules=rules)) if needs else []
    of = {outcome.principal: outcome for outcome in outcomes if isinstance(outcome, PrincipalOutcome)}
    for least, principal, new_ids in sorted(needs, reverse=True):
        report(Advised(new_ids=new_ids, least_rate=least, outcome=of[user_name(principal)]))
    for problem in uses.unread():
        report(problem)


def _advice(rate: float | None, rules: Rules, context: Context) -> Advice:
    """Return the rate, with a warning where snapshots of a partition that one principal fills get too large."""
    if rate is None:
        return Advice(rate=None, most_producers=None)
    expiration_ms, config = context.settings.expiration_ms, rules.config
    most = int(config.burst(rate) + rate * config.unit.of(expiration_ms))
    what = f"a snapshot of a partition in which one principal uses this rate for {exact_duration(expiration_ms)}"
    states = LargeStates(context.settings, context.warn)
    warnings = (states.judged(what, most),) if most >= MANY_ENTRIES else ()
    return Advice(rate=rate, most_producers=most, warnings=warnings)


def _need(principal: str, uses: Uses, *, rules: Rules) -> tuple[float, str, int] | None:
    """Return the lowest rate that does not throttle a principal, and how many ids it used; None if it used none."""
    if not len(uses.at_ms):
        return None
    free = without_limit(principal, uses, rules)
    return least_rate(free.arrivals_ms, rules.config), principal, free.new_ids


class AdvisedRow(TypedDict):
    """One principal of `resnap quota advise`."""

    principal: Annotated[str, "outcome.principal", Column(title="PRINCIPAL")]
    newIds: Annotated[int, Column(title="NEW IDS", right=True)]
    leastRate: Annotated[float, Column(title="LEAST RATE", right=True, show=number)]
    untouched: Annotated[bool, lambda advise_rate: not advise_rate.outcome.is_throttled, Column(title="UNTOUCHED")]
    refusedIds: Annotated[int, "outcome.refused", Column(title="REFUSED", right=True)]
    throttledMs: Annotated[int, "outcome.throttled_ms", Column(title="THROTTLED", right=True, show=shown_duration)]


class AdviceView(View[Advice | Advised | Unread]):
    """A row per principal."""

    kind = "principal"
    columns = columns_of(AdvisedRow)
    _rate: float | None
    _most: int | None

    def __init__(self, request: AdviseRequest) -> None:
        self._unit, self._share = request.unit, request.share
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


SIMULATE = Verb(
    takes=(TOPIC, METADATA, ENGINE, SPARK, STATE, STORE),
    request=SimulateRequest,
    run=simulate_log,
    view=lambda *_: SimulationView(),
    reads="log dirs",
)
ADVISE = Verb(
    takes=(TOPIC, CLUSTER, SERVER, METADATA, ("producer_id_expiration_ms",), ENGINE, SPARK, STORE),
    request=AdviseRequest,
    run=advise_rate,
    view=lambda request, _: AdviceView(request),
    reads="log dirs",
)
