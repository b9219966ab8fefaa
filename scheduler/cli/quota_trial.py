"""Commands that try the quota of active producer ids on a log: simulate, advise."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from resnap.scheduler.answers.rendering import Answer, Row, human_bytes, human_count
from resnap.scheduler.cli.flags import ENGINE, STATE, STORE, TOPIC, Sources
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.cli.quota import MetadataLog, quota_origins

if TYPE_CHECKING:
    from resnap.scheduler.quotas.trial import LogUses
    from resnap.tiering.quota.client_quotas import UserRates
    from resnap.tiering.quota.principals import PrincipalMap
    from resnap.tiering.quota.simulation import Outcome, Rules


PrincipalFile = Annotated[
    Path | None,
    typer.Option(
        "--principal-map", metavar="FILE",
        help="CSV file, `producerId,topic,principal`: the owner of each id; the default is one principal per topic.",
    ),
]  # fmt: skip
Profile = Annotated[
    Literal["P-A", "P-B", "P-C", "P-L"],
    typer.Option("--profile", help="How long ids are remembered; see docs/quota.md."),
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="producer.id.quota.window.num")]
WindowSeconds = Annotated[int, typer.Option("--window-seconds", min=1, help="producer.id.quota.window.size.seconds")]
Unit = Annotated[Literal["hour", "second"], typer.Option("--unit", help="The unit of time of rates.")]
FalsePositives = Annotated[
    float,
    typer.Option(
        "--false-positive-rate", min=1e-9, max=0.5, help="Share of new ids that may pass without being counted."
    ),
]


@with_settings(TOPIC, ENGINE, STATE, STORE)
def simulate_quota(
    run: Invocation,
    sources: Sources = None,
    *,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", help="One rate for everybody; the default is the rates that are set, and those of --metadata-log."
        ),
    ] = None,
    principal_map: PrincipalFile = None,
    profile: Profile = "P-C",
    permissive: Annotated[
        bool, typer.Option("--permissive", help="Let all requests pass, and report how long each would have to wait.")
    ] = False,
    samples: Samples = 11,
    window_seconds: WindowSeconds = 3600,
    unit: Unit = "hour",
    false_positive_rate: FalsePositives = 0.01,
    metadata_log: MetadataLog = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw ids, tokens and throttling into a .png or .svg file."),
    ] = None,
) -> None:
    """Replay a log's producers through a quota, and show whom it would have throttled, when, and for how long."""
    from resnap.scheduler.quotas.plot import check_plot, draw
    from resnap.scheduler.quotas.rows import OUTCOME_COLUMNS, outcome_row, outcome_tail
    from resnap.scheduler.quotas.trial import simulated, without_rate

    if plot is not None:
        check_plot(plot)
    rules = _rules(profile, samples, window_seconds, unit, false_positive_rate, permissive=permissive)
    rates = _rates(run, rate, metadata_log)
    uses = _uses(run, sources, _principals(run, principal_map))
    if unlimited := without_rate(uses, rates):
        several = f"{human_count(len(unlimited))} of {human_count(len(uses.by_principal))}"
        run.warn(f"principals without a rate are left out: {several}, {unlimited[0]!r} the first of them")
    outcomes: list[Outcome] = []

    def rows() -> Iterator[Row]:
        for outcome in simulated(uses, rates, rules):
            outcomes.append(outcome)
            yield outcome_row(outcome)

    run.answer(
        Answer(
            name="principals",
            kind="principal",
            rows=rows(),
            columns=OUTCOME_COLUMNS,
            tail=lambda: {
                **outcome_tail(outcomes),
                "withoutRate": len(unlimited),
                "segments": uses.segments,
                "batches": uses.batches,
            },
            closing=lambda: _story(uses, outcomes),
        )
    )
    if plot is not None:
        draw(outcomes, plot)
        run.note(f"drawn into {plot}")
    _report(run, uses)


@with_settings(TOPIC, ENGINE, STORE)
def advise_quota(
    run: Invocation,
    sources: Sources = None,
    *,
    share: Annotated[
        float,
        typer.Option(
            "--share", min=0.01, max=1, help="Share of principals, the quietest ones, that the rate must not throttle."
        ),
    ] = 0.99,
    principal_map: PrincipalFile = None,
    profile: Profile = "P-C",
    samples: Samples = 11,
    window_seconds: WindowSeconds = 3600,
    unit: Unit = "hour",
) -> None:
    """Find the rate that would have left the quietest 99 % of principals alone, and what it would have stopped."""
    from resnap.scheduler.quotas.rows import ADVICE_COLUMNS, advice_row, number
    from resnap.scheduler.quotas.trial import advised
    from resnap.tiering.quota.simulation import simulate

    rules = _rules(profile, samples, window_seconds, unit, 0.01, permissive=False)
    uses = _uses(run, sources, _principals(run, principal_map))
    found, rate = advised(uses, rules, share)
    rows = [
        advice_row(one, simulate(one.principal, uses.by_principal[one.principal], rate or 0.0, rules))
        for one in reversed(found)
    ]
    alone = sum(bool(row["untouched"]) for row in rows)
    closing = (
        f"Rate {number(rate)} (per {unit}) leaves {alone} of {len(rows)} principals alone."
        if rate is not None
        else "No producer id in it: nothing to advise."
    )
    run.answer(
        Answer(
            head={} if run.output.form == "table" else {"rate": rate, "unit": unit, "share": share},
            name="principals",
            kind="principal",
            rows=rows,
            columns=ADVICE_COLUMNS,
            closing=lambda: (closing,),
        )
    )
    _report(run, uses)


def _rates(run: Invocation, rate: float | None, metadata_log: Path | None) -> "UserRates":
    from resnap.scheduler.quotas.client_quotas import rates_of
    from resnap.storage.errors import UsageError
    from resnap.tiering.quota.client_quotas import PRODUCER_IDS_RATE, UserRates, check_value, user

    if rate is not None:
        check_value(user(None), PRODUCER_IDS_RATE, rate)
        return UserRates(default=rate)
    rates = rates_of(quota_origins(run, metadata_log), run.warn)
    if rates == UserRates():
        raise UsageError("no rate to try out", hint="give --rate, set one by `resnap quota set`, or --metadata-log DIR")
    return rates


def _rules(
    profile: str, samples: int, window_seconds: int, unit: str, false_positive_rate: float, *, permissive: bool
) -> "Rules":
    from resnap.tiering.quota.active_producers import Remembering
    from resnap.tiering.quota.profiles import life_cycle
    from resnap.tiering.quota.simulation import Rules
    from resnap.tiering.quota.token_bucket import QuotaConfig, RateUnit

    window_ms = window_seconds * 1000
    return Rules(
        config=QuotaConfig(samples=samples, window_ms=window_ms, unit=RateUnit[unit.upper()]),
        remembering=Remembering(cycle=life_cycle(profile, window_ms), false_positive_rate=false_positive_rate),
        permissive=permissive,
    )


def _principals(run: Invocation, path: Path | None) -> "PrincipalMap":
    from resnap.storage.errors import UsageError
    from resnap.tiering.quota.principals import PrincipalMap, read_principal_map

    if path is None:
        run.note(
            "a log does not tell whose producers are whose: each topic stands in for a principal (--principal-map)"
        )
        return PrincipalMap()
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--principal-map {path}: {error}", hint="a CSV file, in UTF-8") from error
    return read_principal_map(lines, str(path))


def _uses(run: Invocation, sources: list[str] | None, principals: "PrincipalMap") -> "LogUses":
    from resnap.scheduler.quotas.trial import gather
    from resnap.scheduler.wiring import scope_of

    return gather(scope_of(run.settings, sources), run.service(replays=False).engine, principals)


def _story(uses: "LogUses", outcomes: "list[Outcome]") -> Iterator[str]:
    read = f"{human_count(uses.batches)} batches of {human_count(uses.segments)} segments"
    throttled = [one for one in outcomes if one.is_throttled]
    yield f"{len(throttled)} of {len(outcomes)} principals would have been throttled; from {read}."
    new, free = sum(one.new_ids for one in outcomes), sum(one.free for one in outcomes)
    memory = sum(one.peak_bytes for one in outcomes)
    yield (
        f"Of {human_count(new)} new ids {human_count(free)} passed for free by a filter's error;"
        f" {human_bytes(memory)} of memory at most."
    )


def _report(run: Invocation, uses: "LogUses") -> None:
    if uses.undated:
        run.warn(f"batches without a timestamp, and without one before them, are left out: {human_count(uses.undated)}")
    run.partly_done = bool(uses.batches)
    for error in uses.errors:
        run.error(error)
