"""What the parts of the service share, put together once. API, pages, schedule and command line all go through this."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.daemon.schedules import Schedules
from scheduler.runs.database import DATABASE_FILE, Database
from scheduler.runs.execution import Execution
from scheduler.runs.history import History
from scheduler.runs.hub import Hub
from scheduler.runs.ids import Ids
from scheduler.runs.plans import Plans
from scheduler.runs.sightings import Sightings
from scheduler.runs.worker import Worker
from scheduler.settings import process_environment, state_directory
from scheduler.wiring import engine_of
from storage.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.clock import Clock
    from scheduler.daemon.observation import Observation
    from scheduler.engines import Engine
    from scheduler.runs.configuration import Configuration
    from scheduler.settings import Settings


@dataclass(slots=True, kw_only=True)
class Services:
    """Everything that a request, a page or a schedule may need; ``stop`` it at the end.

    Attributes:
        settings: those in force; replaced as one when the configuration is read anew.
        is_ending: whether the service was told to end; open event streams end then.

    """

    configuration: Configuration
    settings: Settings
    clock: Clock
    database: Database
    hub: Hub
    history: History
    sightings: Sightings
    plans: Plans
    engine: Engine
    worker: Worker
    schedules: Schedules
    observation: Observation
    is_ending: bool = False

    def start(self) -> None:
        """Say what the last service left unfinished, forget what is old, and begin to work."""
        orphans = self.history.fail_orphans()
        self.observation.orphaned(orphans)
        self.forget_old()
        self.worker.start()
        self.schedules.start(self.settings.schedules)

    def reload(self) -> None:
        """Read the configuration anew; where it cannot be used, the old one stays in force.

        Raises:
            ResnapError: it cannot be used.

        """
        settings = self.configuration.load()
        self.schedules.load(settings.schedules)
        self.settings = settings

    def forget_old(self) -> None:
        """Forget what ended longer ago than ``history_retention``."""
        older_than_ms = self.clock.now_ms() - int(self.settings.history_retention.total_seconds() * 1000)
        self.history.prune(older_than_ms)
        self.plans.prune(older_than_ms)

    def stop(self) -> bool:
        """Take no more work and let what is at work end; False if that took longer than ``stop_grace``."""
        self.schedules.stop()
        in_time = self.worker.stop(self.settings.stop_grace.total_seconds())
        self.engine.close(in_order=in_time)
        if in_time:
            self.database.close()
        return in_time


def services_of(configuration: Configuration, clock: Clock, observation: Observation) -> Services:
    """Put the service together; nothing is at work yet.

    Raises:
        ResnapError: the configuration cannot be used, or the service's file not be opened.

    """
    settings = configuration.load()
    database = Database(state_directory_of(settings) / DATABASE_FILE)
    hub, ids = Hub(), Ids(clock.now_ms, secrets.randbits)
    history, sightings = History(database, clock.now_ms, hub.publish), Sightings(database, clock.now_ms)
    engine = engine_of(settings)
    plans = Plans(database=database, configuration=configuration, engine=engine, ids=ids, clock=clock)
    execution = Execution(
        configuration=configuration,
        engine=engine,
        clock=clock,
        sightings=sightings,
        saved_plan=plans.text,
        warn=observation.warn,
    )
    worker = Worker(history, execution, ids, clock, observation, queue_size=settings.queue_size)
    return Services(
        configuration=configuration,
        settings=settings,
        clock=clock,
        database=database,
        hub=hub,
        history=history,
        sightings=sightings,
        plans=plans,
        engine=engine,
        worker=worker,
        schedules=Schedules(worker, history, database, clock, observation),
        observation=observation,
    )


def state_directory_of(settings: Settings) -> Path:
    """Return where the service keeps its file.

    Raises:
        ConfigurationError: nowhere.

    """
    directory = state_directory(settings, process_environment())
    if directory is None:
        raise ConfigurationError(
            "the service has no place for its file", hint="give --state-dir DIR, a directory of this machine"
        )
    return directory
