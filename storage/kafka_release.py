"""A release of Kafka: as a version says, or as far as a broker's ``metadata.version`` shows it.

Vendors number their own builds. The base is taken where the version itself has it, or where the vendor publishes it;
any other version is not known. Brokers of Amazon MSK and Confluent Server have tiered storage of their own, so nothing
is concluded about them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

EXPECTED_RELEASE: Final = "expected a release such as 3.9.1"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+|x))?(?:\.(\d+))?((?:[-+]|\.(?=[A-Za-z]))[\w.+-]+)?", re.ASCII)
_LAST_MINORS: Final = {0: 11, 1: 1, 2: 8, 3: 9}
"""The last line of each major release that is complete."""
_NEWEST_MAJOR: Final = 4
_OWN_TIERING: Final = re.compile(r"[-.](ce|tiered|kraft|amzn.*|msk.*)", re.ASCII | re.IGNORECASE)
_NOT_RELEASED: Final = re.compile(r"-(SNAPSHOT|rc\d*)", re.ASCII | re.IGNORECASE)
_CONFLUENT: Final = {7: (3, range(10)), 8: (4, range(2))}
"""Confluent Platform 7.n is built from 3.n, and 8.n from 4.n, with repairs of its own."""


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """A release, or a line of releases such as 4.2 where the patch release is not known."""

    major: int
    minor: int
    patch: int | None = None
    vendor: str = ""
    """What a vendor's version adds to that of its base."""

    @property
    def line(self) -> tuple[int, int]:
        """The line of releases that it is of."""
        return self.major, self.minor

    @property
    def number(self) -> tuple[int, ...]:
        """Line and patch release, to compare; the first one where it is not known."""
        return self.major, self.minor, self.patch or 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{'x' if self.patch is None else self.patch}{self.vendor}"


def checked_version(text: str) -> str:
    """Return ``text`` if it is a version, whoever numbers so.

    Raises:
        ValueError: it is none.

    """
    if _VERSION.fullmatch(text.strip().removeprefix("v")) is None:
        raise ValueError(EXPECTED_RELEASE)
    return text


def parse_release(text: str) -> Release | None:
    """Return the release that ``text`` names, or that a vendor's build is made from; None where that is not certain."""
    found = _VERSION.fullmatch(text.strip().removeprefix("v"))
    if found is None:
        return None
    major, minor, patch, fourth, suffix = found.groups(default="")
    numbers = int(major), int(minor)
    if fourth or _OWN_TIERING.fullmatch(suffix) or _NOT_RELEASED.match(suffix):
        return None
    if suffix == "-ccs" and numbers[0] in _CONFLUENT:
        base, minors = _CONFLUENT[numbers[0]]
        return Release(base, numbers[1], None, f" (Confluent {text.strip()})") if numbers[1] in minors else None
    if numbers[0] > _NEWEST_MAJOR or numbers[1] > _LAST_MINORS.get(numbers[0], numbers[1]):
        return None
    return Release(*numbers, int(patch) if patch.isdecimal() else None, suffix)


def refined(known: Iterable[Release | None], given: Release | None) -> tuple[Release, ...]:
    """Return the ``known`` releases of brokers, with ``given`` in place of those of its line and of unknown ones.

    It counts where no broker shows it, too: whoever names a release asks about it.
    """
    lines = tuple(known)
    if given is None:
        return tuple(dict.fromkeys(filter(None, lines)))
    return tuple(dict.fromkeys((*(given if one is None or one.line == given.line else one for one in lines), given)))
