"""The command that runs the service."""

import sys

from resnap.scheduler.cli.flags import ENGINE, MEMORY, READING, REPLAY, SERVE, SOURCE, STORE, UPLOAD
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.daemon.serve import Daemon
from resnap.scheduler.observing.logs import set_up
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.service.services import services_of


@with_settings(SERVE, SOURCE, REPLAY, ENGINE, READING, MEMORY, UPLOAD, STORE)
def serve(run: Invocation) -> None:
    """Run the service: schedules, the HTTP API, and a page that says whether tiering can be turned on yet.

    Schedules are [[schedules]] tables of the configuration file. All other settings are those of every run, unless a
    schedule or a request gives its own.
    """
    set_up(sys.stderr, run.settings.log_format, is_verbose=run.settings.verbose)
    services = services_of(Configuration(flags=run.flags), run.clock)
    Daemon(services).run()
