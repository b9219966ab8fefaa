"""The origin of a snapshot that Resnap shipped in the layout ``aiven``: an object of its own, beside the leases.

    <key prefix, up to its last slash>.resnap/origin/<topic>-<topic id>/<partition>/<base offset>-<segment id>.json

The plugin's manifest has no field for it, and brokers never read this object (its form: ``origin_object``). It is
written before the manifest, so that every segment that Resnap shipped has one.
"""

from __future__ import annotations

from typing import Final

from resnap.storage.layouts.aiven.keys import MANIFEST, AivenKey, parse_key, place_of

ORIGINS: Final = ".resnap/origin/"
_EXTENSION: Final = "json"


def origin_key(key: str) -> str:
    """Return the key of the origin of the segment that has an object at ``key``."""
    place = place_of(key)
    return f"{place.prefix}{ORIGINS}{place.beside(_EXTENSION).removeprefix(place.prefix)}"


def place_of_origin(key: str) -> AivenKey | None:
    """Return the place of the segment whose origin is at ``key``; None for any other key."""
    prefix, folder, rest = key.partition(ORIGINS)
    stem, _, extension = rest.rpartition(".")
    if not folder or extension != _EXTENSION or (prefix and not prefix.endswith("/")):
        return None
    place = parse_key(f"{prefix}{stem}.{MANIFEST}")
    return place if place is not None and origin_key(place.key) == key else None
