"""Renders templates as pages, draws their pictures, and serves what they ask for: style sheet, script, icon.

All inserted values are escaped; no page uses external resources. Pictures are SVG, coloured by classes of the style
sheet, which supports light and dark. Each has a title, and what it shows is in words or in a table beside it, too.
Nothing is drawn by a script.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Final, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from resnap.scheduler.api.problems import HttpError
from resnap.scheduler.output.answer import MOST_NAMED
from resnap.scheduler.output.progress import PHASES
from resnap.scheduler.web import words
from resnap.storage.words import exact_duration, human_bytes, human_duration, instant, some

router = APIRouter(include_in_schema=False)
STATIC_PATH: Final = "/static"
_TYPES: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_DATA: Final = {name: resources.files("resnap.scheduler.web").joinpath("static", name).read_bytes() for name in _TYPES}
"""The files that pages ask for."""
_URLS: Final = {name: f"{STATIC_PATH}/{name}?v={hashlib.sha256(data).hexdigest()[:12]}" for name, data in _DATA.items()}
"""Their addresses, which have the digest of the bytes: under such a one they never change."""


@router.get(STATIC_PATH + "/{name}")
def get_static(request: Request, name: str) -> Response:
    """Return a file without a token, since the sign-in form needs it, too; with its digest it never changes."""
    if name not in _TYPES:
        raise HttpError("not-found", "there is no such file")
    kept = "public, max-age=31536000, immutable" if _URLS[name].endswith(f"?{request.url.query}") else "no-cache"
    return Response(_DATA[name], media_type=_TYPES[name], headers={"Cache-Control": kept})


def render(template: str, values: Mapping[str, object]) -> str:
    """Return a page."""
    return _pages.get_template(template).render(values)


def in_path(name: str) -> str:
    """Return ``name`` as one step of a path."""
    return quote(name, safe="")


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("resnap.scheduler.web"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.globals.update(asset=_URLS.__getitem__, words=words, most_named=MOST_NAMED, phases=PHASES)
    made.filters.update(
        bytes=human_bytes, count=lambda value: f"{value:,}", seconds=human_duration, some=some, span=exact_duration
    )
    made.filters.update(moment=words.moment, instant=instant, in_path=in_path)
    return made


_pages: Final = _environment()


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


def rect(x: float, y: float, width: float, height: float, tone: str, title: str) -> Markup:
    """Return a filled rectangle, with a title for who points at it."""
    return element("rect", element("title", title), class_=tone, x=x, y=y, width=width, height=height)


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
