"""``StorePath``: a URL in a store, with the few methods of a path that log dir values need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class StorePath:
    """A URL without a trailing slash; ``pathlib`` would collapse its two slashes."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> StorePath:
        return StorePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> StorePath:
        """The URL of the folder above."""
        return StorePath(self.url.rpartition("/")[0])
