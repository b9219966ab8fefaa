"""Locators of a log up to a given size, as when another log continues in the middle of a segment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from resnap.storage.readers import RangeReader

_CUT: Final = re.compile(r"cut=([0-9]+):(.+)", re.DOTALL)


def cut_locator(locator: str, size_bytes: int) -> str:
    """Return the locator of the first ``size_bytes`` of the log at ``locator``; its other files stay whole."""
    return f"cut={size_bytes}:{locator}"


def uncut(locator: str) -> tuple[str, int | None]:
    """Return the locator of the whole file, and how many bytes of it count; None for all of it."""
    found = _CUT.fullmatch(locator) if locator.startswith("cut=") else None
    if found is None:
        return locator, None
    return found[2], int(found[1]) if found[2].endswith("log") else None


class CutReader:
    """Reads the first bytes of another reader."""

    def __init__(self, reader: RangeReader, size_bytes: int) -> None:
        self._reader = reader
        self.locator = reader.locator
        self.size_bytes = min(size_bytes, reader.size_bytes)

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        return self._reader.read(position, min(length, max(self.size_bytes - position, 0)))
