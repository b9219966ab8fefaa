"""The origin of a snapshot that Resnap shipped in the layout ``aiven``: an object of its own, beside the leases.

    <key prefix, up to its last slash>.resnap/origin/<topic>-<topic id>/<partition>/<base offset>-<segment id>.json

The plugin's manifest has no field for it, and brokers never read this object. It is JSON with a CRC-32C, written before
the manifest, so that every segment that Resnap shipped has one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError
from resnap.storage.layouts.aiven.keys import MANIFEST, AivenKey, parse_key, place_of
from resnap.storage.layouts.aiven.strict_json import parsed
from resnap.storage.layouts.manifest import SnapshotOrigin, origin_from, origin_record

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ORIGIN_BYTES: Final = 64 << 20
"""Millions of excluded producers."""
ORIGINS: Final = ".resnap/origin/"
_EXTENSION: Final = "json"
_VERSION: Final = 1
_HINT: Final = "only Resnap reads it: delete it, and give the rules that the segment was shipped under"


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


def write_origin(origin: SnapshotOrigin) -> bytes:
    """Return the object that records ``origin``."""
    record = origin_record(origin)
    return json.dumps({"version": _VERSION, "snapshotOrigin": record, "crc32c": _checksum(record)}).encode()


def read_origin(data: bytes) -> SnapshotOrigin:
    """Return the origin that ``data`` records.

    Raises:
        FormatError: it is damaged, or has a later version.

    """
    try:
        values = parsed(data, limit=MAX_ORIGIN_BYTES)
    except FormatError as error:
        raise FormatError("origin of a snapshot", position=error.position, expected=error.expected,
                          found=error.found, hint=_HINT) from error  # fmt: skip
    try:
        match values:
            case {"version": 1, "snapshotOrigin": dict(record), "crc32c": str(carried)} if carried == _checksum(record):
                return origin_from(record)
    except ValueError as error:
        raise FormatError(f"origin of a snapshot: {error}", position=0, hint=_HINT) from error
    raise FormatError("origin of a snapshot", position=0, expected=f"version {_VERSION}, and what its checksum covers",
                      found="something else", hint=_HINT)  # fmt: skip


def _checksum(record: Mapping[str, Any]) -> str:
    return f"{crc32c(json.dumps(record, sort_keys=True).encode()):08x}"
