"""Runs schedules: APScheduler keeps the time; the configuration defines the schedules.

A late run is executed late, never skipped, also if the queue was full; several missed ones become one; while a run is
active its schedule waits. A schedule counts from the last run in the history, so a restarted service continues where it
was. Only pauses are stored, in the service's file.

``cron`` has the fields of crontab, in the time of a zone. APScheduler finds the times; two of its rules are not cron's.
It counts weekdays from Monday on, so numbers are turned into names. And it skips a day on which the clocks jump over
its time of day (in some zones at midnight), and has two runs on a day that has the time twice: ``_TimesOfDay`` has one
on each. What is due at any hour follows elapsed time.
"""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from resnap.scheduler.clock import milliseconds
from resnap.scheduler.runs.run import RunRequest
from resnap.scheduler.runs.worker import QueueFullError, StoppingError
from resnap.scheduler.state.database import StateError
from resnap.storage.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.runs.history import History
    from resnap.scheduler.runs.observation import Observation
    from resnap.scheduler.runs.run import Run
    from resnap.scheduler.runs.worker import Worker
    from resnap.scheduler.settings.service import ScheduleSpec
    from resnap.scheduler.state.database import Database

BY_SCHEDULE: Final = "schedule"
"""The principal of scheduled runs."""
_MOST_AT_ONCE: Final = 64
_EVENTS: Final = {
    EVENT_JOB_MISSED: ("missed", "its time has passed"),
    EVENT_JOB_MAX_INSTANCES: ("max_instances", "its last run is still at work"),
    EVENT_JOB_ERROR: ("error", "a bug in resnap"),
}
"""What each is counted as, and what is logged where there is no exception."""
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NUMBERS: Final = {name: number for number, name in enumerate(_WEEKDAYS)} | {str(number): number for number in range(8)}
_WEEKDAY_PART: Final = re.compile(r"(\*|(?P<first>\w+)(-(?P<last>\w+))?)(/(?P<step>[1-7]))?", re.ASCII)
_FIELDS: Final = 5
_HOUR, _WEEKDAY = 1, 4
_ANY: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule and its current state."""

    spec: ScheduleSpec
    next_ms: int | None
    """None while it is paused."""
    paused_ms: int | None
    paused_by: str | None
    last: Run | None

    @property
    def request(self) -> RunRequest:
        """The request of its runs."""
        return request_of(self.spec)


def origin_of(name: str) -> str:
    """Return the origin of the runs of a schedule."""
    return f"schedule:{name}"


def request_of(spec: ScheduleSpec) -> RunRequest:
    """Return the request of a schedule's runs."""
    topics = {"topics": list(spec.topics)} if spec.topics else {}
    return RunRequest(kind=spec.run, sources=spec.sources, destination=spec.to, settings={**topics, **spec.settings})


class Schedules:
    """The active schedules of the configuration; ``start`` it, and ``stop`` it at the end."""

    def __init__(
        self, worker: Worker, history: History, database: Database, clock: Clock, observer: Observation
    ) -> None:
        self._worker, self._history, self._database = worker, history, database
        self._clock, self._observer = clock, observer
        self._lock = threading.RLock()
        self._specs: dict[str, ScheduleSpec] = {}
        self._owed: set[str] = set()
        """Schedules that were due while the service's file took nothing, or the queue was full."""
        log = logging.getLogger(f"{__name__}.apscheduler")
        log.setLevel(logging.ERROR)  # what it warns of is an event, too, and logged as such
        self._scheduler = BackgroundScheduler(
            logger=log,
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(_MOST_AT_ONCE)},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(self._on_event, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES | EVENT_JOB_ERROR)

    def start(self, specs: Iterable[ScheduleSpec]) -> None:
        """Start the clock."""
        self.load(specs)
        self._scheduler.start()

    def stop(self) -> None:
        """Start no more runs; running ones are not waited for."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def load(self, specs: Iterable[ScheduleSpec]) -> None:
        """Replace the schedules by these; an unchanged one keeps its next time.

        Raises:
            ConfigurationError: a ``cron`` is invalid.

        """
        wanted = {spec.name: (spec, trigger_of(spec)) for spec in specs}
        with self._lock:
            for name in self._specs.keys() - wanted.keys():
                self._scheduler.remove_job(name)
            before, self._specs = self._specs, {name: spec for name, (spec, _) in wanted.items()}
            for name, (spec, trigger) in wanted.items():
                if before.get(name) != spec:
                    # A time that has only just become one of its times was not missed.
                    self._arm(name, trigger, makes_up=name not in before)

    def clock_was_set(self) -> None:
        """Recompute every schedule after the machine's clock was set: a near time may be far away now."""
        with self._lock:
            for name, spec in self._specs.items():
                self._arm(name, trigger_of(spec), makes_up=True)

    def make_up(self) -> None:
        """Execute what was due while the service's file could not be written, or the queue was full.

        Raises:
            StateError: the file takes nothing yet.

        """
        with self._lock:
            if not self._owed or self._worker.is_full:
                return
            self._database.probe()
            owed, self._owed = self._owed & self._specs.keys(), set()
            for name in owed:
                self._arm(name, trigger_of(self._specs[name]), makes_up=True, is_owed=True)

    def all(self) -> list[ScheduleView]:
        """Return every schedule, by name."""
        with self._lock:
            return [self._view(self._specs[name]) for name in sorted(self._specs)]

    def get(self, name: str) -> ScheduleView | None:
        """Return one schedule, or None if there is none of this name."""
        with self._lock:
            spec = self._specs.get(name)
            return None if spec is None else self._view(spec)

    def pause(self, name: str, by: str) -> None:
        """Start no more runs of a schedule until it is resumed, also after a restart."""
        with self._lock, self._database.write() as connection:
            connection.execute(
                """INSERT INTO schedules (name, paused_ms, paused_by) VALUES (?, ?, ?) ON CONFLICT (name)
                   DO UPDATE SET paused_ms = IFNULL(paused_ms, excluded.paused_ms), paused_by = excluded.paused_by""",
                (name, self._clock.now_ms(), by),
            )
            self._scheduler.pause_job(name)

    def resume(self, name: str) -> None:
        """Undo ``pause``."""
        with self._lock:
            with self._database.write() as connection:
                connection.execute("DELETE FROM schedules WHERE name = ?", (name,))
            self._arm(name, trigger_of(self._specs[name]), makes_up=True)

    def run_now(self, name: str, principal: str) -> Run:
        """Start a run of a schedule now, whatever its time.

        Raises:
            QueueFullError: no more runs are taken for now.

        """
        request = request_of(self._specs[name])
        return self._worker.submit(request, origin=origin_of(name), principal=principal)

    def _due(self, name: str) -> None:
        """Execute a run, and wait for its end, so that the schedule knows that it is active."""
        try:
            run = self.run_now(name, BY_SCHEDULE)
        except StoppingError:
            self._observer.note("a schedule is due while the service stops", schedule=name)
            return
        except (QueueFullError, StateError) as error:
            with self._lock:
                self._owed.add(name)
            event = "queue_full" if isinstance(error, QueueFullError) else "error"
            self._observer.scheduler_event(event, name, str(error))
            return
        with self._lock:
            self._owed.discard(name)
        self._worker.wait(run.id)

    def _arm(self, name: str, trigger: CronTrigger | IntervalTrigger, *, makes_up: bool, is_owed: bool = False) -> None:
        spec, paused = self._specs[name], self._pause_of(name)
        first = _at(self._clock.now_ms()) if is_owed else self._first_time(spec, trigger, makes_up=makes_up)
        first = None if paused is not None else first
        self._scheduler.add_job(
            partial(self._due, name), trigger, id=name, name=name, replace_existing=True, next_run_time=first
        )

    def _first_time(
        self, spec: ScheduleSpec, trigger: CronTrigger | IntervalTrigger, *, makes_up: bool
    ) -> datetime | None:
        """Return when a schedule is due next; now, if that time passed while there was no service."""
        now = _at(self._clock.now_ms())
        last = self._last(spec.name)
        # A last run in the future was made before the clock was set back.
        since = None if last is None else min(now, _at(last.created_ms))
        if spec.every is not None:
            return now if since is None else max(now, since + spec.every)
        after = now if since is None or not makes_up else since + timedelta(milliseconds=1)
        due: datetime | None = trigger.get_next_fire_time(None, after)
        return due and max(now, due)

    def _last(self, name: str) -> Run | None:
        found = self._history.page(origin=origin_of(name), limit=1)
        return found[0] if found else None

    def _pause_of(self, name: str) -> tuple[int, str] | None:
        row = self._database.row("SELECT * FROM schedules WHERE name = ?", (name,))
        return None if row is None or row["paused_ms"] is None else (row["paused_ms"], row["paused_by"])

    def _view(self, spec: ScheduleSpec) -> ScheduleView:
        paused = self._pause_of(spec.name)
        job = self._scheduler.get_job(spec.name)
        next_run = getattr(job, "next_run_time", None)
        return ScheduleView(
            spec=spec,
            next_ms=None if next_run is None else milliseconds(next_run),
            paused_ms=paused[0] if paused else None,
            paused_by=paused[1] if paused else None,
            last=self._last(spec.name),
        )

    def _on_event(self, event: JobEvent) -> None:
        counted_as, why = _EVENTS[event.code]
        self._observer.scheduler_event(counted_as, event.job_id, str(getattr(event, "exception", "") or why))


def trigger_of(spec: ScheduleSpec) -> CronTrigger | IntervalTrigger:
    """Return the trigger of a schedule.

    Raises:
        ConfigurationError: ``cron`` is invalid.

    """
    if spec.every is not None:
        return IntervalTrigger(seconds=spec.every / timedelta(seconds=1), timezone=UTC)
    try:
        return cron_trigger(spec.cron or "", ZoneInfo(spec.timezone))
    except ValueError as error:
        raise ConfigurationError(
            f"schedule {spec.name}: cron {spec.cron!r}: {error}",
            hint="minute, hour, day of the month, month, day of the week, such as `30 2 * * *`",
        ) from error


_LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)


def _at(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def cron_trigger(cron: str, zone: tzinfo) -> CronTrigger:
    """Return the trigger of ``cron``: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday).

    A day of the month and a day of the week must both match.

    Raises:
        ValueError: it is invalid, or never due.

    """
    fields = cron.split()
    if len(fields) != _FIELDS:
        raise ValueError(f"{len(fields)} fields, expected {_FIELDS}")
    fields[_WEEKDAY] = _weekdays(fields[_WEEKDAY])
    text = " ".join(fields)
    trigger = CronTrigger.from_crontab(text, zone) if fields[_HOUR].startswith(_ANY) else _TimesOfDay.of(text, zone)
    if trigger.get_next_fire_time(None, _LONG_AGO) is None:
        raise ValueError("no year has such a day")
    return trigger


class _TimesOfDay(CronTrigger):  # type: ignore[misc]
    """Due at hours of the day. A time that the clocks jump over is due as if they had not; of two, the first is."""

    @classmethod
    def of(cls, text: str, zone: tzinfo) -> CronTrigger:
        """Return the trigger of ``text``, whose times are those of the wall clock in ``zone``."""
        trigger = cls.from_crontab(text, UTC)
        trigger.zone = zone
        return trigger

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """Return the first time at or after ``now``, or after the previous one if that was earlier."""
        since = now.astimezone(UTC)
        if previous_fire_time is not None:
            since = min(since, previous_fire_time.astimezone(UTC) + timedelta(microseconds=1))
        wall = since.astimezone(self.zone).replace(tzinfo=UTC, fold=0) - timedelta(days=1)  # clocks jump by less
        while (wall := super().get_next_fire_time(None, wall)) is not None:
            due = wall.replace(tzinfo=self.zone).astimezone(UTC)
            if due >= since:
                local: datetime = due.astimezone(self.zone)
                return local
            wall += timedelta(minutes=1)
        return None


def _weekdays(field: str) -> str:
    """Return cron's weekdays by name."""
    if field == _ANY:
        return field
    found: list[str] = []
    for part in field.lower().split(","):
        match = _WEEKDAY_PART.fullmatch(part)
        names = (match["first"] or "0", match["last"] or match["first"] or "6") if match else ("", "")
        if match is None or not _NUMBERS.keys() >= {*names}:
            raise ValueError(f"{part!r} is no day of the week: 0 to 7, of which 0 and 7 are Sunday, or sun to sat")
        first, last = (_NUMBERS[name] for name in names)
        last += 7 if last < first else 0
        found += [_WEEKDAYS[day % 7] for day in range(first, last + 1, int(match["step"] or 1))]
    return ",".join(dict.fromkeys(found))
