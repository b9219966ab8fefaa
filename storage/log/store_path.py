"""A place in a store, with the few manners of a path that values of a log dir need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class StorePath:
    """A URL without a slash at its end; ``pathlib`` would take its two slashes for one."""

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
        """What lies above it."""
        return StorePath(self.url.rpartition("/")[0])
