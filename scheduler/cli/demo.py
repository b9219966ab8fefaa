"""The command that shows it all on a log of its own: demo."""

from pathlib import Path
from typing import Annotated

import typer

from resnap.scheduler.cli.flags import ENGINE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="Work in this new directory, and keep it; the default is a temporary one."
    ),
]


@with_settings(ENGINE)
def demo(
    run: Invocation,
    directory: Directory = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Another seed makes another log.", min=0)] = 1,
) -> None:
    """See it work: a log loses its snapshots, the whole job is done, and the result compared; in a minute, here."""
    from resnap.scheduler.cli.demo_story import Story
    from resnap.scheduler.demo.story import Demo, rules_at, workplace
    from resnap.scheduler.use_cases.planner import Planner
    from resnap.scheduler.wiring import engine_of, uploading_of

    # Whatever cluster is configured, its executors would not see a directory of this machine.
    settings = run.settings.model_copy(update={"spark_master": "local[*]"})
    with workplace(directory, keep=keep) as root:
        planner = Planner(rules_at(run.clock.now_ms()), run.at_end.enter_context(engine_of(settings, ahead=True)))
        demo = Demo(root=root, planner=planner, clock=run.clock, uploading=uploading_of(settings))
        Story(run, demo, seed, stays=keep or directory is not None).tell()
