"""`resnap install`: installs regenerated snapshots beside the segments of a stopped broker, or undoes that."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typing_extensions import TypedDict  # the one that pydantic takes, for the description of the API

from resnap.scheduler.cli.failures import OK, PARTIAL
from resnap.scheduler.cli.flags import S3, TOPIC, WRITE
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Verb, View
from resnap.scheduler.job.reports import identity
from resnap.scheduler.output.records import row_of
from resnap.scheduler.output.rendering import PARTITION, Column, Row
from resnap.scheduler.verbs.planned import AND_DO_IT
from resnap.storage.disk import Disk
from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.log.names import FileKind
from resnap.storage.words import agreeing, human_count, some
from resnap.tiering.install import Installed, InstallOrder, install, preview
from resnap.tiering.installing.installation import REFUSALS, Decision, Outcome, Replace, replace_flags
from resnap.tiering.installing.undo import FileChange, read_undo, still_installed


class InstallRequest(Request):
    """Put regenerated snapshots beside the segments of a stopped broker, so that it tiers them by itself.

    The log dir's lock is held until the end; a valid snapshot with entries is replaced only with --replace
    false-partial, where the replay proves it wrong. Where wrong files stay since --replace did not ask for them, the
    exit code is 3, with --dry-run, too. --undo restores what was before.
    """

    staged: Annotated[
        str | None, typer.Argument(metavar="STAGED", help="The place that `resnap regenerate --into` wrote to.")
    ] = None
    log_dir: Annotated[
        Path | None,
        typer.Argument(metavar="LOG_DIR", help="The log dir, of a stopped broker, that the snapshots were made from."),
    ] = None
    replacing: Annotated[
        list[str] | None,
        typer.Option(
            "--replace",
            metavar="corrupt|false-empty|false-partial|txnindex",
            help="Also replace such files, and keep the old ones aside; can be given several times.",
        ),
    ] = None
    undo_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where to keep the manifest and the replaced files; the default is STAGED.undo."
        ),
    ] = None
    undo: Annotated[
        Path | None, typer.Option(metavar="MANIFEST", help="Undo the installation that wrote this manifest.")
    ] = None


def run(request: InstallRequest, context: Context, report: Report) -> None:
    """Install what is staged, or undo what did so.

    Raises:
        UsageError: the arguments do not say what.
        ResnapError: as ``_install`` and ``_undo``.

    """
    settings = context.settings
    if request.undo is not None:
        if request.staged is not None or any((request.replacing, request.undo_dir, request.saved)):
            hint = "the manifest names the log dir and every change to undo"
            raise UsageError("--undo takes no other argument", hint=hint)
        _undo(request.undo, report, dry_run=settings.dry_run)
        return
    if request.staged is None or request.log_dir is None:
        raise UsageError("STAGED and LOG_DIR say what to install where",
                         hint="`resnap install STAGED LOG_DIR`, or `resnap install --undo MANIFEST`")  # fmt: skip
    order = InstallOrder(
        staged=request.staged,
        scope=replace(request.scope, sources=(str(request.log_dir),)),
        plan=request.saved,
        asked=frozenset(map(_replace, request.replacing or ())),
        undo_dir=request.undo_dir,
        dry_run=settings.dry_run,
        kafka_version=settings.kafka_version,
    )
    _install(order, context, report)


def _replace(text: str) -> Replace:
    """Return the kind of snapshots that is to be replaced."""
    if text not in set(Replace):
        raise UsageError(f"--replace {text}: expected {' or '.join(Replace)}", hint="give --replace once for each")
    return Replace(text)


def _install(order: InstallOrder, context: Context, report: Report) -> None:
    """Install what is staged, and report what was done; a dry run takes no lock and reports what would be done.

    Raises:
        LogDirInUseError: a broker runs there.
        StalePlanError: what the plan depends on has changed; nothing was changed.
        UsageError, LogDirError, StoreError: something is not as it should be; nothing was changed.

    """
    s3 = context.settings.s3()
    if order.dry_run:
        installed = preview(order, s3)
    else:
        with context.progress("install") as (progress,):
            installed = install(
                order,
                now_ms=context.clock.now_ms,
                s3=s3,
                progress=progress,
                on_manifest=lambda path: context.note(f"what undoes it: {path}"),
            )
    faults, warnings = installed.faults, installed.warnings
    report(Reported(what=installed, faults=faults, warnings=warnings, partly_done=installed.has_changes))


_COUNTED_AS: Final = {
    Outcome.INSTALLED: "installed",
    Outcome.REPLACED: "replaced",
    Outcome.SET_ASIDE: "setAside",
    Outcome.ALREADY_THERE: "alreadyThere",
}
"""Any other counts as ``left`` or ``refused``."""
_WORTH_SAYING: Final = frozenset({Outcome.NOT_ASKED, Outcome.GOOD_FILE_THERE, Outcome.NOT_REACHED, *REFUSALS})
"""What a person sees beside the numbers."""


def _counts(decisions: Iterable[Decision]) -> dict[str, int]:
    counts = dict.fromkeys((*_COUNTED_AS.values(), "left", "refused"), 0)
    for decision in decisions:
        counts[_COUNTED_AS.get(decision.outcome) or ("refused" if decision.outcome in REFUSALS else "left")] += 1
    return counts


class DecisionRow(TypedDict):
    """What becomes of one staged file."""

    offset: int
    file: Annotated[str, "kind"]
    outcome: str
    entries: int | None
    leftOut: int
    detail: str | None
    hint: str | None


class InstallView(View["Reported[Installed]"]):
    """A row per partition."""

    kind = "partition"
    columns = (
        PARTITION,
        Column(key="installed", title="INSTALLED", right=True),
        Column(key="replaced", title="REPLACED", right=True),
        Column(key="alreadyThere", title="ALREADY", right=True),
        Column(key="left", title="LEFT", right=True),
        Column(key="refused", title="REFUSED", right=True),
        Column(key="why", title="WHY", show=", ".join),
    )
    _result: Installed

    def __init__(self, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._decisions: list[Decision] = []
        self._unasked: list[Decision] = []
        """Wrong files that stay because their replacement was not requested."""

    def rows(self, result: Reported[Installed]) -> Iterator[Row]:
        """Yield a row per partition."""
        self._result = result.what
        self._decisions = [decision for partition in self._result.partitions for decision in partition.decisions]
        self._unasked = [decision for decision in self._decisions if decision.outcome is Outcome.NOT_ASKED]
        for partition in self._result.partitions:
            outcomes = Counter(decision.outcome for decision in partition.decisions)
            yield {
                **identity(partition.directory.topic_partition),
                **_counts(partition.decisions),
                "why": [f"{outcome} ({number})" for outcome, number in outcomes.items() if outcome in _WORTH_SAYING],
                "snapshots": [row_of(DecisionRow, decision) for decision in partition.decisions],
            }

    def head(self) -> Row:
        """Return what undoes it, and what prevents it now; people read that in the closing lines."""
        manifest = self._result.manifest
        undo = None if manifest is None else str(manifest)
        obstacle = self._result.obstacle
        return {
            "dryRun": self._dry_run,
            "undoManifest": undo,
            "notNow": None if obstacle is None else f"{obstacle}; {obstacle.hint}",
        }

    def totals(self) -> dict[str, int]:
        """Return how many snapshots had which outcome."""
        return _counts(self._decisions)

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and what to do next."""
        number = self.totals()
        noun = "snapshot" if all(decision.kind is FileKind.SNAPSHOT for decision in self._decisions) else "file"
        counts = f"{some(number['installed'], noun)} installed, {human_count(number['replaced'])} replaced"
        if number["setAside"]:
            counts += f", {human_count(number['setAside'])} at the log end set aside"
        count = number["alreadyThere"]
        already = f"{human_count(count)} {agreeing(count, 'was', 'were')}"
        manifest = self._result.manifest
        if self._dry_run:
            yield f"would be: {counts}; {already} there already. Nothing was written."
        elif manifest is None:
            what = "Nothing was installed" if number["refused"] else "Nothing to install"
            yield f"{what}: {some(count, noun)} {agreeing(count)} there already."
        else:
            yield f"{counts}; {already} there already."
            yield f"To undo it before a broker starts: `resnap install --undo {shlex.quote(str(manifest))}`"
        if unasked := [decision for decision in self._unasked if decision.needs is not None]:
            flags = replace_flags(decision.needs for decision in unasked)
            yield f"{some(len(unasked), 'file')} not replaced: run again with {flags}."
        if later := len(self._unasked) - len(unasked):
            yield f"{some(later, 'file')} written since the replay, and not compared: run `resnap regenerate` again."
        obstacle = self._result.obstacle
        if obstacle is not None and self._result.has_changes:
            yield f"Next: {obstacle.hint}; nothing can be installed now: {obstacle}."
        elif self._dry_run and not self._unasked and number["installed"] + number["replaced"]:
            yield AND_DO_IT
        if not self._dry_run and manifest is not None and (self._result.error is not None or not self._unasked):
            yield self._what_next()

    @property
    def exit_code(self) -> int:
        """That wrong files are left, where nothing else was wrong."""
        return PARTIAL if self._unasked and not self._result.faults else OK

    def _what_next(self) -> str:
        """Return what to do before the broker starts: once it has, its other log dirs are closed to us."""
        if self._result.error is not None:
            return "Next: run the same command again, before the broker starts."
        if absent := self._result.absent:
            where = f"{some(len(absent), 'staged partition')} {agreeing(len(absent))} not here"
            return f"Next: install into the broker's other log dirs, if any are left ({where}); then start it."
        if self.totals()["refused"]:
            return "Next: rebuild what was refused, and install it; the broker would stop tiering there."
        if self._result.faults:
            return "Next: repair what the errors name, and run the same command again, before the broker starts."
        return "Next: start the broker; it tiers the segments by itself."


def _undo(manifest: Path, report: Report, *, dry_run: bool) -> None:
    """Undo the installation that wrote ``manifest``, and report what was done; a dry run reports what would be.

    Raises:
        LogDirInUseError: a broker runs there.
        StalePlanError: the log dir was changed since; it is left as it is.
        LogDirError: a file cannot be read or written; what was done by then is reported before.

    """
    undo, done = read_undo(manifest, Disk()), list[FileChange]()
    error: ResnapError | None = None
    try:
        if dry_run:
            undo.check()
            done += undo.steps()
        else:
            undo.apply(done.append)
    except ResnapError as failed:
        error = failed
    for change in done:
        report(Reported(what=change, partly_done=not dry_run))
    if error is not None:
        raise error
    if not dry_run:
        report(Reported(what=still_installed(undo)))


class InstallUndoView(View["Reported[FileChange | list[Path]]"]):
    """A row per file."""

    kind = "file"
    columns = (Column(key="path", title="FILE"), Column(key="action", title="ACTION"))

    def __init__(self, *, dry_run: bool) -> None:
        self._totals = {"dryRun": dry_run, "removed": 0, "restored": 0}
        self._others: list[Path] = []
        """Manifests of what is still installed."""

    def row(self, result: Reported[FileChange | list[Path]]) -> Row | None:
        """Return the row of a file, and count it."""
        if isinstance(result.what, list):
            self._others = result.what
            return None
        action = "removed" if result.what.old is None else "restored"
        self._totals[action] += 1
        return {"path": result.what.place, "action": action}

    def closing(self) -> Iterator[str]:
        """Yield the same in words."""
        dry_run, removed, restored = self._totals.values()
        would = "would be " if dry_run else ""
        counts = f"{some(removed, 'file')} {would}removed, {restored} {would}restored."
        yield counts if removed or restored else "Nothing to undo."
        if self._others:
            first, more = shlex.quote(str(self._others[0])), len(self._others) - 1
            then = f", then {human_count(more)} older" if more else ""
            yield f"Next: `resnap install --undo {first}`{then}: {some(more + 1, 'installation')} more can be undone."


def view_of(request: InstallRequest, context: Context) -> View[Any]:
    """Return how the results of ``run`` are shown."""
    view = InstallView if request.undo is None else InstallUndoView
    return view(dry_run=context.settings.dry_run)


VERB = Verb(
    takes=(TOPIC, WRITE, S3, ("kafka_version",)),
    request=InstallRequest,
    run=run,
    view=view_of,
    carries_out_plans=True,
)
