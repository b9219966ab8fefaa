"""Commands about producers: what a broker would say to them."""

from pathlib import Path
from typing import Annotated

import typer

from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings


@with_settings()
def simulate(
    run: Invocation,
    script: Annotated[Path, typer.Argument(metavar="FILE", help="The script: JSON lines, one step each.")],
) -> None:
    """Tell what a broker of a release would answer to each step of a script: appends, bumps, expiries, restarts."""
    from resnap.scheduler.use_cases.simulating import simulation

    run.answer(simulation(script))
