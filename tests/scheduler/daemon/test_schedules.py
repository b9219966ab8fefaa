"""When runs are due: after a new start, a pause, a clock that was set; and reports of runs that cannot be made."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.scheduler.clock import Clock, milliseconds
from resnap.scheduler.runs.run import Run, RunRequest, RunState
from resnap.scheduler.service.schedules import Schedules, cron_trigger, trigger_of
from resnap.scheduler.settings.service import ScheduleSpec
from resnap.scheduler.state.database import StateError
from resnap.storage.errors import ConfigurationError
from tests.clocks import FixedClock
from tests.scheduler.files import BALLAST, fill
from tests.scheduler.runs.working import PATIENCE_S, Bench, bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


HOUR_MS: Final = 3_600_000
NOON: Final = milliseconds(datetime(2100, 7, 1, 12, tzinfo=UTC))
"""Of a day on which this machine will make no runs."""


@dataclass(slots=True)
class ReportedError:
    """What an observer of schedules gets."""

    events: list[tuple[str, str]] = field(default_factory=list)
    heard: threading.Event = field(default_factory=threading.Event)

    details: list[str] = field(default_factory=list)

    def scheduler_event(self, event: str, schedule: str, detail: str = "") -> None:
        self.details.append(detail)
        self.events.append((event, schedule))
        self.heard.set()

    def note(self, text: str, *, schedule: str) -> None:
        self.scheduler_event("note", schedule, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Schedules over a worker; nothing is due before ``schedules.start``."""

    schedules: Schedules
    at_work: Bench
    told: ReportedError
    clock: Clock

    def next_of(self, name: str) -> int | None:
        found = self.schedules.get(name)
        assert found is not None
        return found.next_ms

    def ran(self, name: str, at_ms: int, run_id: str = "0") -> None:
        """Add a run of a schedule to the history."""
        self.at_work.history.add(
            Run(
                id=run_id, request=RunRequest(kind="scan"), state=RunState.QUEUED, origin=f"schedule:{name}",
                principal="schedule", created_ms=at_ms,
            )
        )  # fmt: skip


@contextmanager
def timed(directory: Path, clock: Clock | None = None, queue_size: int = 10) -> Iterator[Timed]:
    clock, told = clock or Clock(), ReportedError()
    with bench(directory, queue_size=queue_size) as at_work:
        schedules = Schedules(at_work.worker, at_work.history, at_work.history.database, clock, told)
        if isinstance(clock, FixedClock):
            schedules.start([])
        try:
            yield Timed(schedules=schedules, at_work=at_work, told=told, clock=clock)
        finally:
            at_work.worker.begin_to_stop()
            schedules.stop()


@pytest.fixture
def noon(tmp_path: Path) -> Iterator[Timed]:
    """At noon of a fixed day; what is due is found out, and not made."""
    with timed(tmp_path, FixedClock(NOON)) as found:
        yield found


def hourly(name: str = "hourly", **more: Any) -> ScheduleSpec:
    return ScheduleSpec(name=name, run="scan", every=timedelta(hours=1), **more)


def daily(cron: str = "30 2 * * *", **more: Any) -> ScheduleSpec:
    return ScheduleSpec(name="daily", run="scan", cron=cron, **more)


def test_an_interval_counts_from_the_last_run_after_a_new_start(noon: Timed) -> None:
    noon.schedules.load([hourly("new"), hourly("recent"), hourly("late"), hourly("future")])
    for name, at_ms in (("recent", NOON - HOUR_MS // 4), ("late", NOON - 9 * HOUR_MS), ("future", NOON + 9 * HOUR_MS)):
        noon.ran(name, at_ms, name)
    noon.schedules.clock_was_set()
    due = {name: noon.next_of(name) for name in ("new", "recent", "late", "future")}
    assert due == {"new": NOON, "recent": NOON + HOUR_MS * 3 // 4, "late": NOON, "future": NOON + HOUR_MS}, (
        "what was made in the future was made before the clock was set back"
    )


@pytest.mark.parametrize(("last_h", "due_h"), [(None, 14.5), (-9.4, 14.5), (-9.6, 0), (-100, 0), (100, 14.5)], ids=str)
def test_a_time_of_day_that_passed_while_the_service_was_down_is_made_up_for_once(
    noon: Timed, last_h: float | None, due_h: float
) -> None:
    if last_h is not None:
        noon.ran("daily", NOON + int(last_h * HOUR_MS))
    noon.schedules.load([daily()])
    assert noon.next_of("daily") == NOON + int(due_h * HOUR_MS)


def test_a_time_of_day_that_is_new_was_not_missed(noon: Timed) -> None:
    noon.ran("daily", NOON - 9 * HOUR_MS)
    noon.schedules.load([daily()])
    noon.schedules.load([daily("0 4 * * *")])
    assert noon.next_of("daily") == NOON + 16 * HOUR_MS


def test_a_time_of_day_is_of_its_zone(noon: Timed) -> None:
    noon.schedules.load([daily("30 15 * * *", timezone="Europe/Berlin")])
    assert noon.next_of("daily") == NOON + HOUR_MS * 3 // 2, "two hours ahead in July"


@pytest.mark.parametrize(
    ("days", "expected"),
    [("0", "Sun"), ("7", "Sun"), ("1", "Mon"), ("1-5", "Mon Tue Wed Thu Fri"), ("sun", "Sun"), ("5-7", "Fri Sat Sun"),
     ("fri-mon", "Mon Fri Sat Sun"),
     ("*/3", "Wed Sat Sun"), ("MON,3", "Mon Wed"), ("*", "Mon Tue Wed Thu Fri Sat Sun")],
)  # fmt: skip
def test_days_of_the_week_are_those_of_crontab(days: str, expected: str) -> None:
    trigger, monday = cron_trigger(f"0 0 * * {days}", UTC), datetime(2026, 7, 20, tzinfo=UTC)
    week = [monday + timedelta(days=day) for day in range(7)]
    assert [f"{day:%a}" for day in week if trigger.get_next_fire_time(None, day) == day] == expected.split()


@pytest.mark.parametrize(
    "cron", ["0 0 * * 8", "0 0 * * noday", "0 0 * * 1-", "0 0 * * */0", "0 0 * *", "0 0 * * * *", "0 0 31 2 *"]
)
def test_what_is_no_crontab_is_refused(cron: str) -> None:
    with pytest.raises(ConfigurationError, match="schedule daily: cron"):
        trigger_of(daily(cron))


@pytest.mark.parametrize(
    ("cron", "zone", "since", "expected"),
    [
        ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00Z", ["23T22:00", "24T21:00", "25T21:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00Z", ["28T01:30", "29T01:30", "30T00:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-23T12:00Z", ["24T00:30", "25T00:30", "26T01:30"]),
        ("0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00Z", ["29T01:00", "30T00:00", "30T01:00"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:10Z", ["25T00:30", "25T01:00", "25T01:30", "25T02:00"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:10Z", ["29T00:30", "29T01:00", "29T01:30"]),
    ],
    ids=[
        "jumped over at midnight",
        "jumped over",
        "twice",
        "two of one time",
        "all of the long hour",
        "a missing hour",
    ],
)
def test_when_the_clocks_change_no_run_is_skipped_and_none_is_made_twice(
    cron: str, zone: str, since: str, expected: list[str]
) -> None:
    trigger, now, found = trigger_of(daily(cron, timezone=zone)), datetime.fromisoformat(since), list[datetime]()
    for _ in expected:
        found.append(trigger.get_next_fire_time(found[-1] if found else None, now))
        now = found[-1].astimezone(UTC) + timedelta(seconds=1)
    assert [f"{at.astimezone(UTC):%dT%H:%M}" for at in found] == expected


def test_an_invalid_time_of_day_is_refused_and_changes_nothing(noon: Timed) -> None:
    noon.schedules.load([hourly()])
    with pytest.raises(ConfigurationError, match="61"):
        noon.schedules.load([daily("61 * * * *")])
    assert [view.spec.name for view in noon.schedules.all()] == ["hourly"]


def test_what_has_not_changed_keeps_its_time(noon: Timed) -> None:
    assert isinstance(noon.clock, FixedClock)
    noon.schedules.load([hourly("same"), hourly("other"), hourly("gone")])
    noon.clock.advance(60_000)
    noon.schedules.load([hourly("same"), hourly("other", topics=("a*",))])
    assert (noon.next_of("same"), noon.next_of("other")) == (NOON, NOON + 60_000)
    assert noon.schedules.get("gone") is None


def test_a_pause_outlasts_a_new_start_and_ends_with_what_was_missed(tmp_path: Path) -> None:
    with timed(tmp_path, FixedClock(NOON)) as first:
        first.ran("daily", NOON - 10 * HOUR_MS)
        first.schedules.load([daily(), hourly()])
        first.schedules.pause("daily", "somebody")
        assert first.next_of("daily") is None
    with timed(tmp_path, FixedClock(NOON + HOUR_MS)) as second:
        second.schedules.load([daily(), hourly()])
        second.schedules.clock_was_set()
        view = second.schedules.get("daily")
        assert view is not None
        assert (view.next_ms, view.paused_ms, view.paused_by) == (None, NOON, "somebody")
        second.schedules.pause("daily", "another")
        assert [one.paused_ms for one in second.schedules.all()] == [NOON, None]
        second.schedules.resume("daily")
        assert second.next_of("daily") == NOON + HOUR_MS


def test_after_a_clock_was_set_every_schedule_is_counted_again(noon: Timed) -> None:
    assert isinstance(noon.clock, FixedClock)
    noon.schedules.load([hourly(), daily()])
    noon.ran("hourly", NOON)
    for hours, due in ((-48, -47), (72, 24)):
        noon.clock.advance(hours * HOUR_MS)
        noon.schedules.clock_was_set()
        assert noon.next_of("hourly") == NOON + due * HOUR_MS


def test_late_runs_are_made_and_one_at_a_time_and_the_rest_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with timed(tmp_path) as now:
        gate = now.at_work.hold("")
        often = ScheduleSpec(name="often", run="scan", every=timedelta(seconds=1))
        now.ran("often", now.clock.now_ms() - 9 * HOUR_MS)
        now.schedules.start([often])
        assert gate.begun.wait(PATIENCE_S), "it was due nine hours ago"
        assert now.told.heard.wait(PATIENCE_S)
        assert now.told.events[0] == ("max_instances", "often")
        assert (now.told.details[0], caplog.records) == ("its last run is still at work", []), "it is logged once"
        assert now.at_work.worker.waiting == 0
        by_hand = now.schedules.run_now("often", "somebody")
        assert (by_hand.origin, by_hand.principal) == ("schedule:often", "somebody")
        assert now.at_work.worker.waiting == 1
        assert "missed" not in {event for event, _ in now.told.events}


def test_what_was_due_while_the_disk_was_full_is_made_up_for(tiny_disk: Path) -> None:
    with timed(tiny_disk) as now:
        gate = now.at_work.hold("")
        fill(tiny_disk)
        now.schedules.start([hourly()])
        assert now.told.heard.wait(PATIENCE_S)
        assert now.told.events == [("error", "hourly")]
        with pytest.raises(StateError):
            now.schedules.make_up()
        (tiny_disk / BALLAST).unlink()
        now.schedules.make_up()
        assert gate.begun.wait(PATIENCE_S), "and not at its next time, in an hour"
        assert now.told.events == [("error", "hourly")]


def test_a_full_queue_is_counted_and_the_schedule_goes_on(tmp_path: Path) -> None:
    with timed(tmp_path, queue_size=1) as now:
        gate = now.at_work.hold("x")
        now.at_work.ask("x")
        assert gate.begun.wait(PATIENCE_S)
        waiting = now.at_work.ask("x")
        ship = ScheduleSpec(name="ship", run="tier", to="/out", every=timedelta(seconds=1))
        now.schedules.start([ship])
        assert now.told.heard.wait(PATIENCE_S)
        assert now.told.events[0] == ("queue_full", "ship")
        begun = now.at_work.hold("")
        now.at_work.worker.cancel(waiting.id)
        gate.go_on.set()
        assert begun.begun.wait(PATIENCE_S), "it tries again at its next time"


def test_what_is_due_while_the_service_stops_is_no_full_queue_and_is_due_after_the_next_start(tmp_path: Path) -> None:
    with timed(tmp_path) as now:
        now.at_work.worker.begin_to_stop()
        now.schedules.start([hourly()])
        assert now.told.heard.wait(PATIENCE_S)
        assert now.told.events == [("note", "hourly")]
        assert now.told.details == ["a schedule is due while the service stops"]
    with timed(tmp_path) as now:
        gate = now.at_work.hold("")
        now.schedules.start([hourly()])
        assert gate.begun.wait(PATIENCE_S)


@pytest.mark.parametrize("has_run", [True, False], ids=["has run before", "is new"])
def test_what_was_due_while_the_queue_was_full_is_made_up_for(tmp_path: Path, *, has_run: bool) -> None:
    with timed(tmp_path, queue_size=1) as now:
        gate = now.at_work.hold("x")
        now.at_work.ask("x")
        assert gate.begun.wait(PATIENCE_S)
        waiting = now.at_work.ask("x")
        if has_run:
            now.ran("daily", now.clock.now_ms() - 48 * HOUR_MS)
        now.schedules.start([daily() if has_run else hourly("daily")])
        assert now.told.heard.wait(PATIENCE_S)
        now.schedules.make_up()
        assert now.told.events == [("queue_full", "daily")], "as long as it is full nothing is tried"
        begun = now.at_work.hold("")
        now.at_work.worker.cancel(waiting.id)
        gate.go_on.set()
        now.schedules.make_up()
        assert begun.begun.wait(PATIENCE_S), "and not at its next time, tomorrow"
        assert now.told.events == [("queue_full", "daily")]
