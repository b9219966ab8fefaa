"""How an optional part of Resnap is installed, for hints.

``INSTALLED_FROM`` is what installers are given: a clone, until a release is published. Then it becomes the name of the
distribution, and README.md, CONTRIBUTING.md (*A release*) and this are what changes.
"""

from __future__ import annotations

from typing import Final

INSTALLED_FROM: Final = "."


def install_hint(extra: str, library: str) -> str:
    """Return how to install an extra, or the one library that it brings."""
    where = " in a clone of Resnap" if INSTALLED_FROM == "." else ""
    return f"pip install '{INSTALLED_FROM}[{extra}]'{where}, or pip install {library}"
