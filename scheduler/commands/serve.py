"""The command ``serve``, which runs the service."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from resnap.scheduler.cli.flags import ENGINE, MEMORY, READING, REPLAY, SERVE, SOURCE, STORE, UPLOAD
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.daemon.serve import Daemon
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.service.services import Services, usable_settings
from resnap.scheduler.settings.environment import process_environment
from resnap.scheduler.settings.loading import state_directory
from resnap.scheduler.settings.settings import Settings
from resnap.scheduler.telemetry.logs import set_up
from resnap.storage.errors import UsageError
from resnap.storage.words import some

SCANNED: Final = {"name": "scan", "run": "scan", "every": "15m"}
"""The schedule of a service that is given log dirs, and has no schedule of its own: at the start, and from then on."""


@with_settings(SERVE, SOURCE, REPLAY, ENGINE, READING, MEMORY, UPLOAD, STORE)
def serve(
    run: Invocation,
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="LOG_DIR", help="Log dirs to scan every 15 minutes; the default is log.dirs."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the configuration, as a start or SIGHUP would; start nothing.")
    ] = False,
) -> None:
    """Run the service: schedules, the HTTP API, and a page that says whether tiering can be turned on yet.

    Schedules are [[schedules]] tables of the configuration file. With LOG_DIR no file is needed: it is scanned at the
    start and every 15 minutes. All other settings are those of every run, unless a schedule or a request gives its own.
    """
    set_up(sys.stderr, run.settings.log_format, is_verbose=run.settings.verbose)
    flags = {**run.flags, **(_of_log_dirs(run.settings, places) if places else {})}
    configuration = Configuration(flags=flags)
    if check:
        settings = usable_settings(configuration)
        run.note(
            f"the configuration can be used: {some(len(settings.schedules), 'schedule')}, --listen {settings.listen}"
        )
        return
    services = Services(configuration, run.clock)
    run.say_first()
    Daemon(services).run()


def _of_log_dirs(settings: Settings, log_dirs: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a service for given log dirs, unless its file says otherwise."""
    for log_dir in log_dirs:
        with suppress(PermissionError):  # the scan reports missing permissions
            if not Path(log_dir).is_dir():
                raise UsageError(f"{log_dir}: no such directory", hint="give one of this broker's log.dirs")
    made: dict[str, Any] = {"log_dirs": [str(Path(log_dir).absolute()) for log_dir in log_dirs]}
    if not settings.schedules:
        made["schedules"] = [SCANNED]
    state = state_directory(settings, process_environment())
    if not settings.allow_destinations and state is not None:
        made["allow_destinations"] = [str(state / "snapshots")]
    return made
