"""Runs Resnap out of one file: unpacks it once into the user's cache, for libraries cannot be loaded out of an archive.

``build.py`` puts this into the file, with ``BUILD`` and ``PYTHON`` beside it in ``one_file.py``.
"""

import os
import shutil
import stat
import sys
import tempfile
import zipfile
from pathlib import Path

from one_file import BUILD, PYTHON


def main() -> None:
    """Run the command line of what is in this file."""
    found = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if found != PYTHON:
        sys.exit(
            f"error: this file is for Python {PYTHON}, and {sys.executable} is {found}: run it with python{PYTHON}\n"
            f"hint: on RHEL and its kin `dnf install python{PYTHON}`; or build it with `--python {found}`, from 3.11 on"
        )
    sys.path[0] = str(unpacked(Path(sys.argv[0]).absolute()))
    os.environ.setdefault("RESNAP_ENGINE", "local")  # there is no Spark in it
    from resnap.__main__ import main as run  # noqa: PLC0415 - is there from here on

    run()


def unpacked(archive: Path) -> Path:
    """Return the directory with what is in ``archive``, whole; it is made by the first run."""
    try:
        above = own_directory()
        target = above / BUILD
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=above) as partial:
                whole = Path(partial) / "whole"
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(whole)
                try:
                    whole.rename(target)
                except OSError:
                    if not target.is_dir():  # else another process was quicker
                        raise
            drop_older(above)
    except OSError as error:
        hint = "set XDG_CACHE_HOME to a directory with 500 MB of room"
        sys.exit(f"error: {archive} cannot be unpacked: {error}\nhint: {hint}")
    return target


def own_directory() -> Path:
    """Return a directory that no other user can write to: of the cache, or of /var/tmp for users without a home."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    for above in (Path(cache) / "resnap" / "one-file", Path(f"/var/tmp/resnap-{os.getuid()}")):  # noqa: S108 - checked
        try:
            above.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        status = above.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
        if is_own and os.access(above, os.W_OK | os.X_OK):
            return above
    raise PermissionError(f"neither {cache} nor /var/tmp can be written to by this user alone")


def drop_older(above: Path) -> None:
    """Delete what files of other builds have left, unless a process may still run out of it."""
    for path in above.iterdir():
        if path.name != BUILD and path.stat().st_mtime < Path(above / BUILD).stat().st_mtime - 7 * 86_400:
            shutil.rmtree(path, ignore_errors=True)


main()
