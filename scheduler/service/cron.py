"""When a schedule's ``cron`` is due: the fields of crontab, in the time of a zone.

APScheduler finds the times; two of its rules are not cron's. It counts weekdays from Monday on, so numbers are turned
into names. And it skips a day on which the clocks jump over its time of day (in some zones at midnight), and has two
runs on a day that has the time twice: ``_TimesOfDay`` has one on each. What is due at any hour follows elapsed time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from apscheduler.triggers.cron import CronTrigger

_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NUMBERS: Final = {name: number for number, name in enumerate(_WEEKDAYS)} | {str(number): number for number in range(8)}
_WEEKDAY_PART: Final = re.compile(r"(\*|(?P<first>\w+)(-(?P<last>\w+))?)(/(?P<step>[1-7]))?", re.ASCII)
_FIELDS: Final = 5
_HOUR, _WEEKDAY = 1, 4
_ANY: Final = "*"


def cron_trigger(cron: str, zone: tzinfo) -> CronTrigger:
    """Return the trigger of ``cron``: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday).

    A day of the month and a day of the week must both match.

    Raises:
        ValueError: it is invalid.

    """
    fields = cron.split()
    if len(fields) != _FIELDS:
        raise ValueError(f"{len(fields)} fields, expected {_FIELDS}")
    fields[_WEEKDAY] = _weekdays(fields[_WEEKDAY])
    text = " ".join(fields)
    return CronTrigger.from_crontab(text, zone) if fields[_HOUR].startswith(_ANY) else _TimesOfDay.of(text, zone)


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
