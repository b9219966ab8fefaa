"""The commands that show the service's runs; they read its file, whether the service runs or not."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer
from typing_extensions import TypedDict  # the one that pydantic takes, for the description of the API

from resnap.scheduler.cli.flags import STATE, with_settings
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.output.records import columns_of, instant_of, plain, row_of
from resnap.scheduler.output.rendering import Answer, Column, Row
from resnap.scheduler.runs.history import History
from resnap.scheduler.runs.run import Run, RunKind, RunState
from resnap.scheduler.settings.loading import state_directory_of
from resnap.scheduler.state.database import DATABASE_FILE, DatabaseView
from resnap.storage.disk import is_there
from resnap.storage.errors import UsageError
from resnap.storage.words import camel_case, human_duration

States = Annotated[
    list[RunState] | None, typer.Option("--state", help="Only runs in this state; can be given several times.")
]
Kinds = Annotated[
    list[RunKind] | None, typer.Option("--kind", help="Only runs of this kind; can be given several times.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100_000, help="Show the newest N.")]


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else human_duration(seconds)


def _duration_s(run: Run) -> float | None:
    return None if run.started_ms is None or run.finished_ms is None else (run.finished_ms - run.started_ms) / 1000


class ListedRunRow(TypedDict):
    """One run of `resnap runs list`."""

    id: Annotated[str, Column(title="RUN")]
    kind: Annotated[str, Column(title="KIND")]
    state: Annotated[str, Column(title="STATE", is_state=True)]
    origin: Annotated[str, Column(title="ORIGIN", extra=True)]
    principal: Annotated[str, Column(title="BY", extra=True)]
    created: Annotated[str, instant_of("created_ms"), Column(title="ASKED FOR")]
    started: Annotated[str | None, instant_of("started_ms")]
    finished: Annotated[str | None, instant_of("finished_ms")]
    seconds: Annotated[float | None, _duration_s, Column(title="TOOK", right=True, show=_seconds)]
    topics: Annotated[list[str], "request.chosen", Column(title="TOPICS", show=", ".join, extra=True)]
    error: Annotated[str | None, lambda run: run.errors[0].message if run.errors else None, Column(title="ERROR")]


class DoneRow(TypedDict):
    """One partition of `resnap runs show`."""

    topic: Annotated[str, Column(title="TOPIC")]
    partition: Annotated[int, Column(title="PARTITION", right=True)]
    state: Annotated[str, Column(title="STATE", is_state=True)]
    row: dict[str, Any]


@with_settings(STATE)
def list_runs(run: Invocation, *, state: States = None, kind: Kinds = None, limit: Limit = 50) -> None:
    """Show runs, the newest first."""
    with _history(run) as history:
        found = history.page(kinds=kind or (), states=state or (), limit=limit + 1)
    more = ("There are more: --limit shows them.",) if len(found) > limit else ()
    closing = more if found else ("No run matches.",)
    rows: list[Row] = [{**row_of(ListedRunRow, run)} for run in found[:limit]]
    run.answer(Answer(kind="run", rows=rows, columns=columns_of(ListedRunRow), closing=lambda: closing))


@with_settings(STATE)
def show_run(run: Invocation, id: Annotated[str, typer.Argument(metavar="ID", help="Id of the run.")]) -> None:  # noqa: A002
    """Show one run: its request, progress, errors and partitions."""
    with _history(run) as history:
        found = history.get(id)
        if found is None:
            raise UsageError(f"there is no run {id}", hint="`resnap runs list` shows the existing runs")
        details = ("retry_of", "request", "progress", "totals", "errors")
        head = {**row_of(ListedRunRow, found), **{camel_case(name): plain(getattr(found, name)) for name in details}}
        rows = ({**row_of(DoneRow, outcome)} for outcome in history.every_partition(id))
        run.answer(Answer(head=head, kind="partition", rows=rows, columns=columns_of(DoneRow)))


@contextmanager
def _history(run: Invocation) -> Iterator[History]:
    """Yield the history in the state directory, read-only."""
    path = state_directory_of(run.settings) / DATABASE_FILE
    if not is_there(path):
        raise UsageError(f"{path} does not exist: no service has run with this state directory",
                         hint="give the --state-dir of `resnap serve`")  # fmt: skip
    with closing(DatabaseView(path)) as database:
        yield History(database, run.clock.now_ms, warn=run.warn)
