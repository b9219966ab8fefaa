"""The commands ``version`` and ``config show``."""

from resnap.scheduler.cli.flags import ALL, with_settings
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.output.rendering import Answer, Column
from resnap.scheduler.settings.environment import process_environment
from resnap.scheduler.settings.settings import DECLARED
from resnap.scheduler.settings.values import json_form
from resnap.storage.version import versions


@with_settings()
def show_version(run: Invocation) -> None:
    """Print the versions of Resnap and of what it runs on."""
    run.answer(Answer(head=versions(process_environment())))


@with_settings(ALL)
def show_config(run: Invocation) -> None:
    """Print every setting, its value, and where that comes from; credentials are masked."""
    shown = {name: json_form(getattr(run.settings, name)) for name in DECLARED}
    rows = [
        {"name": DECLARED[name].key, "value": value, "origin": run.settings.origin(name)}
        for name, value in shown.items()
    ]
    columns = (Column(key="name"), Column(key="value"), Column(key="origin"))
    run.answer(Answer(kind="setting", rows=rows, columns=columns))
