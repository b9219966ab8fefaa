"""Draws SVG pictures, coloured by classes of the style sheet, which supports light and dark.

Every picture has a title, and what it shows stands in words or in a table beside it. Nothing is drawn by a script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LINE_PX: Final = 16
SIZES: Final = {"wide": (640, 240), "slim": (360, 240)}
"""Width and height of a picture beside another, and on a telephone: text keeps its size in both."""


class Part(NamedTuple):
    """A part of a bar; ``tone`` is a class of the style sheet."""

    tone: str
    value: float
    title: str


def element(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element; what is not markup already is escaped, and an underscore ends a reserved name."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup().join(escape(part) for part in content)
    return Markup(f"<{name}{given}>{inside}</{name}>")  # noqa: S704 - all parts are escaped


def picture(width: float, height: float, title: str, shapes: Iterable[Markup], *, class_: str) -> Markup:
    """Return a whole picture, which is as wide as its place."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", element("title", title), *shapes, class_=f"picture {class_}", viewBox=box, role="img")


def rect(x: float, y: float, width: float, height: float, tone: str, title: str = "") -> Markup:
    """Return a filled rectangle, with a title for who points at it."""
    inside = [element("title", title)] if title else []
    return element("rect", *inside, class_=tone, x=x, y=y, width=width, height=height)


def bar(parts: Sequence[Part], whole: float) -> Markup:
    """Return a bar of parts side by side, which fills its place where they come to ``whole``; for a cell of a table."""
    shapes, x = [], 0.0
    for part in parts:
        if part.value > 0 and whole > 0:
            width = 100 * part.value / whole
            shapes.append(rect(x, 0, width, 1, part.tone, part.title))
            x += width
    title = ", ".join(part.title for part in parts if part.value > 0) or "nothing"
    inside, box = (element("title", title), *shapes), "0 0 100 1"
    return element("svg", *inside, class_="bar", viewBox=box, preserveAspectRatio="none", role="img")


def _number(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
