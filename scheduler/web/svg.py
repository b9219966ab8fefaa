"""Draws SVG pictures, coloured by classes of the style sheet, which supports light and dark.

Every picture has a title, and what it shows stands in words or in a table beside it. Nothing is drawn by a script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LETTER_PX: Final = 8.4
"""Width of a bold letter or digit in wide fonts such as DejaVu Sans, for what fits into a box."""
LINE_PX: Final = 16
SIZES: Final = {"wide": (640, 240), "slim": (360, 240)}
"""Width and height of a picture beside another, and on a telephone: text keeps its size in both."""


class Part(NamedTuple):
    """A part of a bar; ``tone`` is a class of the style sheet."""

    tone: str
    value: float
    title: str


class Box(NamedTuple):
    """One box of a treemap."""

    name: str
    value: float
    text: str
    """What the value is called."""
    tone: str
    href: str


def element(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element; what is not markup already is escaped, and an underscore ends a reserved name."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup().join(escape(one) for one in content)
    return Markup(f"<{name}{given}>{inside}</{name}>")  # noqa: S704 - all parts are escaped


def picture(
    width: float, height: float, title: str, shapes: Iterable[Markup], *, class_: str, role: str = "img"
) -> Markup:
    """Return a whole picture, which is as wide as its place; of one with links the role is ``group``."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", element("title", title), *shapes, class_=f"picture {class_}", viewBox=box, role=role)


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


def treemap(boxes: Sequence[Box], width: float, height: float, title: str, *, class_: str = "") -> Markup:
    """Return boxes that fill the picture, each as large as its value, the largest first; squarified (Bruls et al.)."""
    known = sorted((one for one in boxes if one.value > 0), key=lambda one: -one.value)
    total = sum(one.value for one in known)
    scaled = [one.value * width * height / total for one in known]
    shapes = [_box(box, *place) for box, place in zip(known, _squarified(scaled, width, height), strict=True)]
    return picture(width, height, title, shapes, class_=f"treemap {class_}".strip(), role="group")


def _box(box: Box, x: float, y: float, width: float, height: float) -> Markup:
    gap = min(1.0, width / 4, height / 4)
    shapes = [rect(x + gap, y + gap, width - 2 * gap, height - 2 * gap, box.tone, f"{box.name}: {box.text}")]
    letters = int((width - 14) / LETTER_PX)
    if letters >= len(box.text) and height >= 2 * LINE_PX + 10:
        name = box.name if len(box.name) <= letters else f"{box.name[: letters - 1]}…"
        shapes.append(element("text", name, x=x + 8, y=y + LINE_PX + 4, class_="title"))
        shapes.append(element("text", box.text, x=x + 8, y=y + 2 * LINE_PX + 4))
    return element("a", *shapes, href=box.href)


def _squarified(areas: Sequence[float], width: float, height: float) -> Iterable[tuple[float, float, float, float]]:
    """Yield x, y, width and height for each of falling ``areas``, row by row along the shorter side that is left."""
    x = y = 0.0
    left = list(areas)
    while left:
        side, row = min(width, height), left[:1]
        for area in left[1:]:
            if _worst([*row, area], side) > _worst(row, side):
                break
            row.append(area)
        left = left[len(row) :]
        thick, at = sum(row) / side if side else 0.0, 0.0
        for area in row:
            long = area / thick if thick else 0.0
            yield (x, y + at, thick, long) if height <= width else (x + at, y, long, thick)
            at += long
        if height <= width:
            x, width = x + thick, width - thick
        else:
            y, height = y + thick, height - thick


def _worst(row: Sequence[float], side: float) -> float:
    """Return how far the longest box of a row is from a square."""
    total = sum(row)
    return max(side * side * max(row) / total**2, total**2 / (side * side * min(row)))


def _number(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
