"""Makes the command of a verb from its declaration."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any

import typer

from resnap.scheduler.cli.flags import LogDirs, with_settings
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.job.contract import Verb
from resnap.scheduler.job.wiring import scope_of
from resnap.storage.errors import UsageError, in_file
from resnap.tiering.judging.planning import SavedPlan, read_saved_plan

PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Carry out a plan that `resnap plan --save` wrote; a plan that is out of date is refused.",
    ),
]
"""The argument of commands that execute a plan saved by `resnap plan --save`."""


def command_of(verb: Verb) -> Callable[..., None]:
    """Return the command that asks for a verb: its arguments are the fields of its request, its help the docstring."""

    def ask(context: Invocation, /, **given: Any) -> int:  # noqa: ANN401 - as Typer parsed them
        sources = given.pop("sources", None)
        saved = saved_plan(given.pop("plan_file", None), sources)
        scope = scope_of(context.settings, sources, saved, reads=verb.reads)
        return context.show(*verb.begin(context, scope=scope, saved=saved, **given))

    named = [(name, argument.kind, argument.default) for name, argument in verb.arguments.items()]
    named += [("sources", LogDirs, None)] if verb.reads == "log dirs" else []
    named += [("plan_file", PlanFile, None)] if verb.carries_out_plans else []
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name, kind, default in named:
        missing = inspect.Parameter.empty if default is MISSING else default
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=missing))
    ask.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ask.__doc__ = verb.request.__doc__
    return with_settings(*verb.takes)(ask)


def saved_plan(plan_file: Path | None, sources: list[str] | None) -> SavedPlan | None:
    """Return the plan in a file, None if no file is given; then ``sources`` must not be given.

    Raises:
        UsageError: both are given, or the file cannot be read.
        FormatError: it is not a plan.

    """
    if plan_file is None:
        return None
    if sources:
        raise UsageError("give either LOG_DIR or --plan FILE", hint="a plan names its sources itself")
    try:
        text = plan_file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{plan_file}: cannot be read: {error.strerror}") from error
    with in_file(plan_file):
        return read_saved_plan(text)
