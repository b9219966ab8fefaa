"""Renders templates as pages, and serves what they ask for: style sheet, script, icon.

All inserted values are escaped; no page uses external resources.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from resnap.scheduler.api.problem_kinds import NotFoundError
from resnap.scheduler.output.answer import MOST_NAMED
from resnap.scheduler.web import words
from resnap.storage.words import human_bytes, human_duration, instant, some, span

router = APIRouter(include_in_schema=False)
STATIC_PATH: Final = "/static"
_TYPES: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages ask for: bytes that never change under the address that has their digest."""

    data: bytes
    media_type: str
    url: str


def _assets() -> Mapping[str, Asset]:
    found = {}
    for name, media_type in _TYPES.items():
        data = resources.files("resnap.scheduler.web").joinpath("static", name).read_bytes()
        url = f"{STATIC_PATH}/{name}?v={hashlib.sha256(data).hexdigest()[:12]}"
        found[name] = Asset(data, media_type, url)
    return found


ASSETS: Final = _assets()


@router.get(STATIC_PATH + "/{name}")
def get_static(request: Request, name: str) -> Response:
    """Return a file without a token, since the sign-in form needs it, too; at its own ``url`` it never changes."""
    asset = ASSETS.get(name)
    if asset is None:
        raise NotFoundError("there is no such file")
    kept = "public, max-age=31536000, immutable" if asset.url.endswith(f"?{request.url.query}") else "no-cache"
    return Response(asset.data, media_type=asset.media_type, headers={"Cache-Control": kept})


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
    made.globals.update(asset=lambda name: ASSETS[name].url, words=words, most_named=MOST_NAMED)
    made.filters.update(
        bytes=human_bytes, count=lambda value: f"{value:,}", seconds=human_duration, some=some, span=span
    )
    made.filters.update(moment=words.moment, instant=instant, in_path=in_path)
    return made


_pages: Final = _environment()
