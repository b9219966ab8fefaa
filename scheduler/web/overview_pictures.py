"""The pictures of the first page: disk space by topic, and missing snapshots over days."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.scheduler.clock import instant
from resnap.scheduler.output.rendering import human_bytes, human_count
from resnap.scheduler.web.pages import glob_of, link
from resnap.scheduler.web.svg import LINE_PX, SIZES, Box, Part, bar, element, picture, rect, treemap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from resnap.scheduler.runs.scan_history import ScannedDay
    from resnap.scheduler.runs.scans import ScannedTopic

MOST_BOXES: Final = 60
"""Topics in the treemap; what is smaller could not be seen."""
MOST_DAYS: Final = 90
_GAP: Final = 0.2
"""Of a day's width, between two bars."""


def blocked_map(topics: Sequence[ScannedTopic]) -> Sequence[Markup]:
    """Return the treemap of what is blocked for each size; none where fewer than two topics are blocked."""
    boxes = [
        Box(one.topic, one.blocked, human_bytes(one.blocked), "todo", partitions_of(one.topic))
        for one in topics
        if one.blocked
    ]
    title = "Bytes that are blocked, by topic"
    return [treemap(boxes, *size, title, class_=name) for name, size in SIZES.items()] if len(boxes) > 1 else []


def disk_bars(topics: Sequence[ScannedTopic]) -> list[Markup]:
    """Return a bar for each topic, all to one scale, with what is to do first."""
    most = max((one.closed for one in topics), default=0)
    return [bar(_parts(one), most) for one in topics]


def partitions_of(topic: str) -> str:
    """Return the address of the partitions of one topic."""
    return f"{link('/', topic=glob_of(topic))}#partitions"


def _parts(topic: ScannedTopic) -> list[Part]:
    parts = {
        "blocked": ("todo", topic.blocked),
        "tierable": ("good", topic.tierable),
        "shipped": ("busy", topic.shipped),
    }
    return [Part(tone, size, f"{human_bytes(size)} {what}") for what, (tone, size) in parts.items()]


class DaysPicture(NamedTuple):
    """What has become of missing snapshots: in words, for each size as a picture, and the latest day first as rows."""

    text: str
    pictures: Sequence[Markup]
    rows: Sequence[tuple[str, ScannedDay]]


def days_picture(days: Sequence[ScannedDay]) -> DaysPicture | None:
    """Return the picture of days, oldest first; None for fewer than two, which show no course."""
    if len(days) < 2:  # noqa: PLR2004 - a course has a beginning and an end
        return None
    first, last = days[0], days[-1]
    text = f"{human_count(last.missing)} now, {human_count(first.missing)} on {_date(first)}"
    title = f"Missing snapshots by day: {text}"
    pictures = [picture(*size, title, _shapes(days, *size), class_=f"days {name}") for name, size in SIZES.items()]
    return DaysPicture(text, pictures, [(_date(one), one) for one in reversed(days)])


def _shapes(days: Sequence[ScannedDay], width: float, height: float) -> Iterator[Markup]:
    """Yield a bar for each day below the largest count, a ground line, and the dates of both ends."""
    most = max((one.missing for one in days), default=0)
    top, ground, step = LINE_PX + 6.0, height - LINE_PX - 6.0, width / len(days)
    for number, day in enumerate(days):
        tall = (ground - top) * day.missing / most if most else 0.0
        tone = "none" if not day.is_scanned else "todo" if day.missing else "good"
        title = f"{_date(day)}: {day.missing:,} missing{'' if day.is_scanned else ', as scanned before'}"
        yield rect(number * step, ground - max(tall, 2), step * (1 - _GAP), max(tall, 2), tone, title)
    yield element("line", x1=0, x2=width, y1=ground, y2=ground, class_="ground")
    yield element("text", f"{most:,}" if most else "none missing", x=0, y=LINE_PX - 2)
    yield element("text", _date(days[0]), x=0, y=height - 4)
    yield element("text", _date(days[-1]), x=width, y=height - 4, text_anchor="end")


def _date(day: ScannedDay) -> str:
    return instant(day.start_ms)[:10]
