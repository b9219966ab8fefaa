"""The flag ``--plan`` of commands that execute a plan saved by `resnap plan --save`."""

from pathlib import Path
from typing import Annotated

import typer

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
