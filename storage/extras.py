"""The command that installs an optional part of Resnap, for hints.

``INSTALLED_FROM`` is the argument for installers: a clone, until a release is published. Then it becomes the name of
the distribution, and README.md and CONTRIBUTING.md (*A release*) change with it.
"""

from __future__ import annotations

from typing import Final

INSTALLED_FROM: Final = "."


def install_hint(extra: str, library: str) -> str:
    """Return how to install an extra, or the one library that it brings."""
    where = " in a clone of Resnap" if INSTALLED_FROM == "." else ""
    return f"pip install '{INSTALLED_FROM}[{extra}]'{where}, or pip install {library}"
