# ruff: noqa: PLC0415 - what a command calls is imported when it runs, so that `resnap --help` need not wait for it
"""Commands about the quota of active producer ids (KIP-936): set, describe, delete; simulate, advise."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scheduler.cli.invocation import Invocation
from scheduler.cli.options import ENGINE, MEMORY, STORE, TOPIC, Sources, with_settings
from scheduler.rendering import Answer, Row, human_bytes, human_count

if TYPE_CHECKING:
    from scheduler.quota_replay import LogUses
    from scheduler.quotas import Named, Origin
    from tiering.quota.client_quotas import UserRates
    from tiering.quota.principals import PrincipalMap
    from tiering.quota.quota_file import QuotaFile
    from tiering.quota.simulation import Outcome, Rules

app = typer.Typer()
quota_app = typer.Typer(help="Limits on how many producer ids a user brings to life (KIP-936): set, or tried on a log.")
app.add_typer(quota_app, name="quota")

STATE = {"state_dir": MEMORY["state_dir"]}

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user, without `User:`.")]
UserDefault = Annotated[
    bool, typer.Option("--user-default", help="The default user: all that have no rate of their own.")
]
MetadataLog = Annotated[
    Path | None,
    typer.Option("--metadata-log", metavar="DIR", help="A cluster's metadata log, or the log dir that holds it."),
]
PrincipalFile = Annotated[
    Path | None,
    typer.Option(
        "--principal-map", metavar="FILE",
        help="CSV, `producerId,topic,principal`: whose ids are whose; else each topic stands in for a principal.",
    ),
]  # fmt: skip
Profile = Annotated[
    Literal["P-A", "P-B", "P-C", "P-L"], typer.Option("--profile", help="How long ids are remembered: docs/quota.md.")
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="producer.id.quota.window.num")]
WindowSeconds = Annotated[int, typer.Option("--window-seconds", min=1, help="producer.id.quota.window.size.seconds")]
Unit = Annotated[Literal["hour", "second"], typer.Option("--unit", help="Of what a rate is so many.")]
FalsePositives = Annotated[
    float, typer.Option("--false-positive-rate", min=1e-9, max=0.5, help="Of new ids, those that may pass for free.")
]


@quota_app.command("set")
@with_settings(STATE)
def set_quota(
    run: Invocation,
    rate: Annotated[float, typer.Argument(metavar="RATE", help="producer_ids_rate: new producer ids an hour.")],
    *,
    user: User = None,
    user_default: UserDefault = False,
) -> None:
    """Set the producer_ids_rate of a user, or of the default user."""
    from scheduler.quotas import set_rate

    whom = _whom(user, default=user_default)
    file = _file(run)
    changed = set_rate(file, whom, rate)
    run.answer(Answer(head={"user": whom.name, "producer_ids_rate": rate, "changed": changed, "file": str(file.path)}))


@quota_app.command("delete")
@with_settings(STATE)
def delete_quota(run: Invocation, *, user: User = None, user_default: UserDefault = False) -> None:
    """Delete the producer_ids_rate of a user, or of the default user."""
    from scheduler.quotas import delete_rate

    whom = _whom(user, default=user_default)
    file = _file(run)
    delete_rate(file, whom)
    run.answer(Answer(head={"user": whom.name, "deleted": "producer_ids_rate", "file": str(file.path)}))


@quota_app.command("describe")
@with_settings(STATE)
def describe_quotas(
    run: Invocation, *, user: User = None, user_default: UserDefault = False, metadata_log: MetadataLog = None
) -> None:
    """Show the quotas that are set, and those of a cluster, with their origin."""
    from scheduler.quota_rows import QUOTA_COLUMNS, quota_rows
    from scheduler.quotas import described, named

    found = _origins(run, metadata_log)
    whom = named(user, default=user_default)
    rows = [row for entity, values, origin in described(found, whom) for row in quota_rows(entity, values, origin)]
    closing = () if rows else ("No quota is set: nobody is limited.",)
    run.answer(Answer(name="quotas", kind="quota", rows=rows, columns=QUOTA_COLUMNS, closing=lambda: closing))


@quota_app.command("simulate")
@with_settings(TOPIC, ENGINE, STATE, STORE)
def simulate_quota(
    run: Invocation,
    sources: Sources = None,
    *,
    rate: Annotated[
        float | None, typer.Option("--rate", help="For everybody; else the rates that are set, and of --metadata-log.")
    ] = None,
    principal_map: PrincipalFile = None,
    profile: Profile = "P-C",
    permissive: Annotated[bool, typer.Option("--permissive", help="Let all pass, and tell how long to wait.")] = False,
    samples: Samples = 11,
    window_seconds: WindowSeconds = 3600,
    unit: Unit = "hour",
    false_positive_rate: FalsePositives = 0.01,
    metadata_log: MetadataLog = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw ids, tokens and throttling: .png or .svg.")
    ] = None,
) -> None:
    """Replay a log's producers through a quota, and show whom it would have throttled, when, and for how long."""
    from scheduler.quota_plot import check_plot, draw
    from scheduler.quota_replay import simulated
    from scheduler.quota_rows import OUTCOME_COLUMNS, outcome_row, outcome_tail

    if plot is not None:
        check_plot(plot)
    rules = _rules(profile, samples, window_seconds, unit, false_positive_rate, permissive=permissive)
    rates = _rates(run, rate, metadata_log)
    uses = _uses(run, sources, _principals(run, principal_map))
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
            tail=lambda: {**outcome_tail(outcomes), "segments": uses.segments, "batches": uses.batches},
            closing=lambda: _story(uses, outcomes),
        )
    )
    if plot is not None:
        draw(outcomes, plot)
        run.note(f"drawn into {plot}")
    _report(run, uses)


@quota_app.command("advise")
@with_settings(TOPIC, ENGINE, STORE)
def advise_quota(
    run: Invocation,
    sources: Sources = None,
    *,
    share: Annotated[
        float, typer.Option("--share", min=0.01, max=1, help="Of principals, the quietest that are to be left alone.")
    ] = 0.99,
    principal_map: PrincipalFile = None,
    profile: Profile = "P-C",
    samples: Samples = 11,
    window_seconds: WindowSeconds = 3600,
    unit: Unit = "hour",
) -> None:
    """Find the rate that would have left the quietest 99 % of principals alone, and what it would have stopped."""
    from scheduler.quota_replay import advised
    from scheduler.quota_rows import ADVICE_COLUMNS, advice_row
    from tiering.quota.simulation import simulate

    rules = _rules(profile, samples, window_seconds, unit, 0.01, permissive=False)
    uses = _uses(run, sources, _principals(run, principal_map))
    found, rate = advised(uses, rules, share)
    rows = [
        advice_row(one, simulate(one.principal, uses.by_principal[one.principal], rate or 0.0, rules))
        for one in reversed(found)
    ]
    alone = sum(bool(row["untouched"]) for row in rows)
    closing = (
        f"Rate {rate:g} (per {unit}) leaves {alone} of {len(rows)} principals alone."
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


def _whom(user: str | None, *, default: bool) -> "Named":
    from scheduler.quotas import named
    from storage.errors import UsageError

    whom = named(user, default=default)
    if whom is None:
        raise UsageError("whose quota?", hint="give --user NAME or --user-default")
    return whom


def _file(run: Invocation) -> "QuotaFile":
    from storage.errors import UsageError

    file = _file_if_any(run)
    if file is None:
        raise UsageError("there is no state directory to keep quotas in", hint="give --state-dir")
    return file


def _file_if_any(run: Invocation) -> "QuotaFile | None":
    from scheduler.settings import process_environment, state_directory
    from storage.disk import Disk
    from tiering.quota.quota_file import QuotaFile

    directory = state_directory(run.settings, process_environment())
    return None if directory is None else QuotaFile(directory, Disk())


def _origins(run: Invocation, metadata_log: Path | None) -> "list[Origin]":
    from scheduler.quotas import origins

    return origins(_file_if_any(run), metadata_log, run.warn)


def _rates(run: Invocation, rate: float | None, metadata_log: Path | None) -> "UserRates":
    from scheduler.quotas import rates_of
    from storage.errors import UsageError
    from tiering.quota.client_quotas import PRODUCER_IDS_RATE, UserRates, check_value, user

    if rate is not None:
        check_value(user(None), PRODUCER_IDS_RATE, rate)
        return UserRates(default=rate)
    rates = rates_of(_origins(run, metadata_log), run.warn)
    if rates == UserRates():
        raise UsageError("no rate to try out", hint="give --rate, set one by `resnap quota set`, or --metadata-log DIR")
    return rates


def _rules(
    profile: str, samples: int, window_seconds: int, unit: str, false_positive_rate: float, *, permissive: bool
) -> "Rules":
    from tiering.quota.active_producers import Remembering
    from tiering.quota.profiles import life_cycle
    from tiering.quota.simulation import Rules
    from tiering.quota.token_bucket import QuotaConfig, RateUnit

    window_ms = window_seconds * 1000
    return Rules(
        config=QuotaConfig(samples=samples, window_ms=window_ms, unit=RateUnit[unit.upper()]),
        remembering=Remembering(cycle=life_cycle(profile, window_ms), false_positive_rate=false_positive_rate),
        permissive=permissive,
    )


def _principals(run: Invocation, path: Path | None) -> "PrincipalMap":
    from storage.errors import UsageError
    from tiering.quota.principals import PrincipalMap, read_principal_map

    if path is None:
        run.note(
            "a log does not tell whose producers are whose: each topic stands in for a principal (--principal-map)"
        )
        return PrincipalMap()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--principal-map {path}: {error}", hint="a CSV file, in UTF-8") from error
    return read_principal_map(lines, str(path))


def _uses(run: Invocation, sources: list[str] | None, principals: "PrincipalMap") -> "LogUses":
    from scheduler.quota_replay import gather
    from scheduler.wiring import scope_of

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
    run.partly_done = bool(uses.batches)
    for error in uses.errors:
        run.error(error)
