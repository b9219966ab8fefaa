"""`resnap install --undo`: undoes an installation."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from resnap.scheduler.job.contract import Context, Result, View
from resnap.scheduler.output.rendering import Column, Row, some
from resnap.storage.disk import Disk
from resnap.storage.errors import ResnapError
from resnap.tiering.installing.undo import read_undo
from resnap.tiering.installing.undo_manifest import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Which installation is to be undone."""

    manifest: Path
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone(Result):
    """What was, or would be, done to one file."""

    change: Change


def run(request: Request, _: Context) -> Iterator[Undone]:
    """Undo the installation, and yield what was done; a dry run yields what would be.

    Raises:
        LogDirInUseError: a broker runs there.
        StalePlanError: the log dir was changed since; it is left as it is.
        LogDirError: a file cannot be read or written; what was done by then is yielded before.

    """
    undo, done = read_undo(request.manifest, Disk()), list[Change]()
    error: ResnapError | None = None
    try:
        if request.dry_run:
            undo.check()
            done += undo.steps()
        else:
            undo.apply(done.append)
    except ResnapError as failed:
        error = failed
    for change in done:
        yield Undone(change=change, partly_done=not request.dry_run)
    if error is not None:
        raise error


class UndoView(View[Undone]):
    """A row per file."""

    name = "files"
    kind = "file"
    columns = (Column(key="path", title="FILE"), Column(key="action", title="ACTION"))

    def __init__(self, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._counts = {"removed": 0, "restored": 0}

    def row(self, result: Undone) -> Row:
        """Return the row of a file, and count it."""
        action = "removed" if result.change.old is None else "restored"
        self._counts[action] += 1
        return {"path": result.change.place, "action": action}

    def totals(self) -> Row:
        """Return how many files were removed, and how many restored."""
        return {"dryRun": self._dry_run, **self._counts}

    def closing(self) -> Iterator[str]:
        """Yield the same in words."""
        would = "would be " if self._dry_run else ""
        removed, restored = self._counts.values()
        counts = f"{some(removed, 'file')} {would}removed, {restored} {would}restored."
        yield counts if removed or restored else "Nothing to undo."
