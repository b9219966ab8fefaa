"""Ships Resnap's own packages to executors on which Resnap is not installed."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import SparkFiles

from resnap.replay.spark.settings import PROJECT_ROOT, is_local_master

if TYPE_CHECKING:
    from pyspark import SparkContext

PACKAGES: Final = ("replay", "scheduler", "storage", "tiering")
"""What an executor must be able to import, as parts of ``resnap``."""


def ship_packages(context: SparkContext) -> None:
    """Let executors import Resnap; does nothing on a local master, whose workers share this installation.

    Executors need a Python of the same minor version with Resnap's dependencies, not Resnap itself. The archive lives
    in Spark's own directory until the session stops, because executors that join later fetch it too.
    """
    if is_local_master(context.master):
        return
    archive = Path(SparkFiles.getRootDirectory()) / "shipped" / "resnap.zip"
    archive.parent.mkdir(exist_ok=True)
    archive.write_bytes(packages_archive(PROJECT_ROOT))
    context.addPyFile(str(archive))
    # The driver has its packages already and must not take half of them from the copy.
    sys.path[:] = [entry for entry in sys.path if Path(entry).name != archive.name]


def packages_archive(root: Path) -> bytes:
    """Return a zip of Resnap's packages under ``root``, with the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        inside = [file for package in PACKAGES for file in (root / "resnap" / package).rglob("*")]
        for file in sorted([root / "resnap" / "__init__.py", *inside]):
            if file.is_file() and "__pycache__" not in file.parts:
                # A ZipInfo made from a name alone carries no time and no mode.
                archive.writestr(zipfile.ZipInfo(file.relative_to(root).as_posix()), file.read_bytes())
    return buffer.getvalue()
