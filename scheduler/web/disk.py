"""The disk by topic as pictures: what could be tiered, what is blocked, what is shipped, and what that would free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.scheduler.output.rendering import human_bytes
from resnap.scheduler.web.pages import glob_of, link
from resnap.scheduler.web.svg import Box, Part, bar, treemap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from resnap.scheduler.runs.sightings import TopicDisk

MOST_BOXES: Final = 60
"""Topics in the treemap; what is smaller could not be told apart."""
_MOST_BARS: Final = 8
_SIZES: Final = {"wide": (640, 300), "slim": (360, 300)}
"""Width and height of the treemap beside the table, and on a telephone: text keeps its size in both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPicture:
    """Rows of a table with a bar each, and the treemap, in two forms, of what is blocked.

    Attributes:
        blocked: bytes in the treemaps.
        treemaps: none where fewer than two topics are blocked.

    """

    rows: Sequence[tuple[TopicDisk, Markup]]
    blocked: int
    treemaps: Sequence[Markup]


def disk_picture(topics: Sequence[TopicDisk]) -> DiskPicture:
    """Return the picture of topics, of which the most blocked come first."""
    most = max((one.whole for one in topics[:_MOST_BARS]), default=0)
    blocked = [one for one in topics if one.blocked]
    boxes = [
        Box(
            one.topic,
            one.blocked,
            human_bytes(one.blocked),
            "todo",
            f"{link('/', topic=glob_of(one.topic))}#partitions",
        )
        for one in blocked
    ]
    title = "Bytes that are blocked, by topic"
    return DiskPicture(
        rows=[(one, bar(_parts(one), most)) for one in topics[:_MOST_BARS]],
        blocked=sum(one.blocked for one in topics),
        treemaps=[treemap(boxes, *size, title, class_=name) for name, size in _SIZES.items()] if len(boxes) > 1 else [],
    )


def _parts(disk: TopicDisk) -> list[Part]:
    """Return the parts of a topic's bar, what is to do first."""
    parts = {"blocked": ("todo", disk.blocked), "tierable": ("good", disk.tierable), "shipped": ("busy", disk.shipped)}
    return [Part(tone, size, f"{human_bytes(size)} {what}") for what, (tone, size) in parts.items()]
