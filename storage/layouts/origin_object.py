"""The object that records the origin of a snapshot where a layout's manifest has no field for it: JSON with a CRC."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError
from resnap.storage.layouts.manifest import SnapshotOrigin, origin_from, origin_record
from resnap.storage.layouts.strict_json import parsed

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ORIGIN_BYTES: Final = 64 << 20
"""Millions of excluded producers."""
_VERSION: Final = 1
_HINT: Final = "only Resnap reads it: delete it, and give the rules that the segment was shipped under"


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
