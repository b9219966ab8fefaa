"""The commands that show the service's runs; they read its file, whether the service runs or not."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from resnap.scheduler.cli.flags import STATE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.output.records import plain
from resnap.scheduler.output.rendering import Answer, Column, Row
from resnap.scheduler.runs.history import History, RunFilter
from resnap.scheduler.runs.run import Run, RunKind, RunState
from resnap.scheduler.settings.loading import state_directory_of
from resnap.scheduler.state.database import DATABASE_FILE, DatabaseView
from resnap.storage.errors import UsageError
from resnap.storage.words import human_duration, instant

States = Annotated[
    list[RunState] | None, typer.Option("--state", help="Only runs in this state; can be given several times.")
]
Kinds = Annotated[
    list[RunKind] | None, typer.Option("--kind", help="Only runs of this kind; can be given several times.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100_000, help="Show the newest N.")]


def _names(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else ""


def _seconds(value: object) -> str:
    return human_duration(value) if isinstance(value, float) else ""


_COLUMNS = [
    Column(key="id", title="RUN"),
    Column(key="kind", title="KIND"),
    Column(key="state", title="STATE", is_state=True),
    Column(key="origin", title="ORIGIN", extra=True),
    Column(key="principal", title="BY", extra=True),
    Column(key="created", title="ASKED FOR"),
    Column(key="seconds", title="TOOK", right=True, show=_seconds),
    Column(key="topics", title="TOPICS", show=_names, extra=True),
    Column(key="error", title="ERROR"),
]
_PARTITION_COLUMNS = [
    Column(key="topic", title="TOPIC"),
    Column(key="partition", title="PARTITION", right=True),
    Column(key="state", title="STATE", is_state=True),
]


@with_settings(STATE)
def list_runs(run: Invocation, *, state: States = None, kind: Kinds = None, limit: Limit = 50) -> None:
    """Show runs, the newest first."""
    wanted = RunFilter(kinds=tuple(kind or ()), states=tuple(state or ()))
    with _history(run) as history:
        found = history.page(wanted, limit=limit + 1)
    more = ("There are more: --limit shows them.",) if len(found) > limit else ()
    closing = more if found else ("No run matches.",)
    rows = [_row(one) for one in found[:limit]]
    run.answer(Answer(name="runs", kind="run", rows=rows, columns=_COLUMNS, closing=lambda: closing))


@with_settings(STATE)
def show_run(run: Invocation, id: Annotated[str, typer.Argument(metavar="ID", help="Id of the run.")]) -> None:  # noqa: A002
    """Show one run: its request, progress, errors and partitions."""
    with _history(run) as history:
        found = history.get(id)
        if found is None:
            raise UsageError(f"there is no run {id}", hint="`resnap runs list` shows the existing runs")
        head = {**_row(found), **_details(found)}
        rows = (
            {"topic": outcome.topic, "partition": outcome.partition, "state": outcome.state.value, "row": outcome.row}
            for outcome in history.every_partition(id)
        )
        run.answer(Answer(head=head, name="partitions", kind="partition", rows=rows, columns=_PARTITION_COLUMNS))


def _row(run: Run) -> Row:
    ends = {"created": run.created_ms, "started": run.started_ms, "finished": run.finished_ms}
    return {
        "id": run.id,
        "kind": run.kind,
        "state": run.state.value,
        "origin": run.origin,
        "principal": run.principal,
        **{name: None if at_ms is None else instant(at_ms) for name, at_ms in ends.items()},
        "seconds": _took_s(run),
        "topics": run.request.chosen,
        "error": run.errors[0].message if run.errors else None,
    }


def _took_s(run: Run) -> float | None:
    return None if run.started_ms is None or run.finished_ms is None else (run.finished_ms - run.started_ms) / 1000


def _details(run: Run) -> Row:
    return {
        "retryOf": run.retry_of,
        "request": plain(run.request),
        "progress": plain(run.progress),
        "totals": plain(run.totals),
        "errors": plain(run.errors),
    }


@contextmanager
def _history(run: Invocation) -> Iterator[History]:
    """Yield the history in the state directory, read-only."""
    path = state_directory_of(run.settings) / DATABASE_FILE
    if not path.is_file():
        raise UsageError(f"{path} does not exist: no service has run with this state directory",
                         hint="give the --state-dir of `resnap serve`")  # fmt: skip
    with closing(DatabaseView(path)) as database:
        yield History(database, run.clock.now_ms, warn=run.warn)
