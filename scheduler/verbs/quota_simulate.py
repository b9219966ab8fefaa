"""`resnap quota simulate`: shows which principals a quota would have throttled, when, and for how long."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.flags import ENGINE, METADATA, SPARK, STATE, STORE, TOPIC
from resnap.scheduler.job.contract import Context, Reported, Request, Result, Unread, Verb, View
from resnap.scheduler.output.records import columns_of, instant_of, row_of
from resnap.scheduler.output.rendering import Column, Row
from resnap.scheduler.verbs.plots import check_plot, draw_simulation
from resnap.scheduler.verbs.quota import number, quota_origins
from resnap.scheduler.verbs.quota_uses import PrincipalFile, Profile, Samples, Unit, WindowSeconds, rules_of, uses_of
from resnap.storage.errors import UsageError
from resnap.storage.words import bytes_text, human_bytes, human_count, human_duration, some
from resnap.tiering.quota.active_producers import LogUses, Uses
from resnap.tiering.quota.client_quotas import PRODUCER_IDS_RATE, UserRates, check_value, user
from resnap.tiering.quota.simulation import PrincipalOutcome, Rules, simulate
from resnap.tiering.quota.user_quotas import rates_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """Replay a log's producers through a quota, and show which principals it throttles, when, and for how long."""

    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", help="One rate for all principals; the default is the rates set, and those of --metadata-log."
        ),
    ] = None
    principal_map: PrincipalFile = None
    profile: Profile = "P-C"
    permissive: Annotated[
        bool, typer.Option("--permissive", help="Let all requests pass, and report how long each would have to wait.")
    ] = False
    samples: Samples = 11
    window_seconds: WindowSeconds = 3600
    unit: Unit = "hour"
    false_positive_rate: Annotated[
        float,
        typer.Option(
            "--false-positive-rate", min=1e-9, max=0.5, help="Share of new ids that may pass without being counted."
        ),
    ] = 0.01
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw ids, tokens and throttling into a .png or .svg file."),
    ] = None

    @property
    def rules(self) -> Rules:
        """The rules of the quota."""
        return rules_of(
            self.profile, self.samples, self.window_seconds, self.unit, self.false_positive_rate,
            permissive=self.permissive,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead(Result):
    """What the log holds, and the principals that no rate is for; the first result."""

    uses: LogUses
    unlimited: list[str]


def run(request: Asked, context: Context) -> Iterator[LogRead | Reported[PrincipalOutcome] | Unread]:
    """Yield what the quota would have done with the uses of producer ids in a log, principal by principal.

    Raises:
        UsageError: there is no rate, or a source cannot be listed.
        ConfigurationError: what draws is not installed.
        ResnapError: Spark failed, rates cannot be read, or the picture cannot be written.

    """
    if request.plot is not None:
        check_plot(request.plot)
    rates = _rates(request, context)
    with uses_of(request.scope, request.principal_map, context) as uses:
        found = uses.map(partial(_simulate, rates=rates, rules=request.rules))
    unlimited = [one for one in found if isinstance(one, str)]
    several = f"{human_count(len(unlimited))} of {human_count(len(found))}"
    warnings = [f"principals without a rate are skipped: {several}, {one!r} the first of them" for one in unlimited[:1]]
    yield LogRead(uses=uses.read, unlimited=unlimited, warnings=tuple(warnings))
    outcomes = [one for one in found if isinstance(one, PrincipalOutcome)]
    for outcome in outcomes:
        yield Reported(what=outcome)
    if request.plot is not None:
        draw_simulation(outcomes, request.plot)
        context.note(f"drawn into {request.plot}")
    yield from uses.unread()


def _simulate(principal: str, uses: Uses, *, rates: UserRates, rules: Rules) -> PrincipalOutcome | str | None:
    """Return what the quota would have done to a principal; its name if there is no rate, None if it used no id."""
    rate = rates.of(principal)
    if rate is None:
        return principal
    return simulate(principal, uses, rate, rules).counted() if len(uses.at_ms) else None


def _rates(request: Asked, context: Context) -> UserRates:
    if request.rate is not None:
        check_value(user(None), PRODUCER_IDS_RATE, request.rate)
        return UserRates(default=request.rate)
    rates = rates_of(quota_origins(context), context.warn)
    if rates == UserRates():
        raise UsageError("no rate is given", hint="give --rate, set one by `resnap quota set`, or --metadata-log DIR")
    return rates


def shown_duration(value: object) -> str:
    """Return milliseconds for people; nothing for none."""
    return human_duration(value / 1000) if isinstance(value, int) and value else ""


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
    peakBytes: Annotated[int, Column(title="MEMORY", right=True, show=bytes_text)]


class SimulationView(View["LogRead | Reported[PrincipalOutcome] | Unread"]):
    """A row per principal."""

    name = "principals"
    kind = "principal"
    columns = columns_of(
        SimulatedRow,
        *("principal", "rate", "newIds", "charged", "refusedIds", "free", "throttledMs", "longestThrottleMs"),
        *("firstThrottled", "lastThrottled", "peakActive", "peakBytes"),
    )
    _read: LogRead

    def __init__(self) -> None:
        self._outcomes: list[PrincipalOutcome] = []

    def row(self, result: LogRead | Reported[PrincipalOutcome] | Unread) -> Row | None:
        """Return the row of a principal."""
        if isinstance(result, LogRead):
            self._read = result
        if not isinstance(result, Reported):
            return None
        self._outcomes.append(result.what)
        return row_of(SimulatedRow, result.what)

    def totals(self) -> dict[str, int]:
        """Return the totals over all principals, and how much was read."""
        return {
            "principals": len(self._outcomes),
            "throttledPrincipals": sum(outcome.is_throttled for outcome in self._outcomes),
            "newIds": sum(outcome.new_ids for outcome in self._outcomes),
            "charged": sum(outcome.charged for outcome in self._outcomes),
            "free": sum(outcome.free for outcome in self._outcomes),
            "refusedIds": sum(outcome.refused for outcome in self._outcomes),
            "peakBytes": sum(outcome.peak_bytes for outcome in self._outcomes),
            "withoutRate": len(self._read.unlimited),
            "segments": self._read.uses.segments,
            "batches": self._read.uses.batches,
        }

    def closing(self) -> Iterator[str]:
        """Yield the same in words."""
        total = self.totals()
        read = f"{some(total['batches'], 'batch')} of {some(total['segments'], 'segment')}"
        throttled = f"{total['throttledPrincipals']} of {total['principals']} principals"
        yield f"{throttled} would have been throttled; from {read}."
        yield (
            f"Of {human_count(total['newIds'])} new ids {human_count(total['free'])} were not charged because of a"
            f" filter's false positives; {human_bytes(total['peakBytes'])} of memory at most."
        )


VERB = Verb(
    takes=(TOPIC, METADATA, ENGINE, SPARK, STATE, STORE),
    request=Asked,
    run=run,
    view=lambda *_: SimulationView(),
)
