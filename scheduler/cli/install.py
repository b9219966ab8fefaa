"""The command that puts snapshots back beside the segments of a stopped broker, and takes that back: install."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.answers.rendering import PARTITION, Answer, Column, Row, human_count
from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import STORE, TOPIC, WRITE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.cli.plan_file import PlanFile, saved_plan

if TYPE_CHECKING:
    from resnap.scheduler.use_cases.installing import Installing, InstallOrder, InstallReport
    from resnap.storage.errors import ResnapError


Staged = Annotated[
    str | None, typer.Argument(metavar="[STAGED]", help="The place that `resnap regenerate --into` wrote to.")
]
LogDirectory = Annotated[
    Path | None,
    typer.Argument(metavar="[LOG_DIR]", help="The log dir, of a stopped broker, that the snapshots were made from."),
]
Replacing = Annotated[
    list[str] | None,
    typer.Option("--replace", metavar="corrupt|false-empty",
                 help="Also replace such snapshots, and keep the old files aside; can be given twice."),
]  # fmt: skip
UndoDirectory = Annotated[
    Path | None,
    typer.Option(
        "--undo-dir",
        metavar="DIR",
        help="Where to keep the manifest and the replaced files; the default is STAGED.undo.",
    ),
]
Manifest = Annotated[
    Path | None, typer.Option("--undo", metavar="MANIFEST", help="Undo the installation that wrote this manifest.")
]


@with_settings(TOPIC, WRITE, STORE)
def install(
    run: Invocation,
    staged: Staged = None,
    log_dir: LogDirectory = None,
    *,
    replacing: Replacing = None,
    undo_dir: UndoDirectory = None,
    undo: Manifest = None,
    plan_file: PlanFile = None,
) -> int:
    """Put regenerated snapshots beside the segments of a stopped broker, so that it tiers them by itself.

    The log dir's lock is held until the end; a valid snapshot is never replaced; --undo restores what was before.
    """
    from resnap.scheduler.use_cases.installing import Installing

    if undo is not None:
        _refuse_beside_undo(staged, replacing, undo_dir, plan_file)
        return _take_back(run, undo)
    asked = _order(run, staged, log_dir, replacing or [], undo_dir)
    order = replace(asked, plan=saved_plan(plan_file, None))
    installing = Installing(clock=run.clock, s3=run.settings.s3())
    return _preview(run, installing, order) if run.settings.dry_run else _install(run, installing, order)


def _refuse_beside_undo(staged: str | None, *others: object) -> None:
    from resnap.storage.errors import UsageError

    if staged is not None or any(others):
        raise UsageError("--undo stands alone", hint="the manifest names the log dir and all that is to be done there")


def _order(
    run: Invocation, staged: str | None, log_dir: Path | None, replacing: list[str], undo_dir: Path | None
) -> "InstallOrder":
    from resnap.scheduler.use_cases.installing import InstallOrder
    from resnap.scheduler.use_cases.sources import Scope
    from resnap.storage.errors import UsageError
    from resnap.tiering.installing.installation import Replace

    if staged is None or log_dir is None:
        raise UsageError("STAGED and LOG_DIR say what to install where",
                         hint="`resnap install STAGED LOG_DIR`, or `resnap install --undo MANIFEST`")  # fmt: skip
    unknown = [kind for kind in replacing if kind not in set(Replace)]
    if unknown:
        raise UsageError(
            f"--replace {unknown[0]}: expected {' or '.join(Replace)}", hint="give --replace once for each"
        )
    return InstallOrder(
        staged=staged,
        scope=Scope(sources=(str(log_dir),), topics=run.settings.topics),
        asked=frozenset(map(Replace, replacing)),
        undo_dir=undo_dir,
    )


def _preview(run: Invocation, installing: "Installing", order: "InstallOrder") -> int:
    report, obstacle = installing.preview(order)
    _answer(run, report)
    if obstacle is not None:
        run.warn(f"nothing could be installed now: {obstacle}; {obstacle.hint}")
    _report(run, report)
    return OK


def _install(run: Invocation, installing: "Installing", order: "InstallOrder") -> int:
    with run.progress("install") as (progress,):
        report = installing.install(order, progress, lambda path: run.note(f"what undoes it: {path}"))
    _answer(run, report)
    _report(run, report)
    return OK


def _answer(run: Invocation, report: "InstallReport") -> None:
    from resnap.scheduler.use_cases.install_rows import install_tail, installation_row

    is_table, dry_run = run.output.form == "table", run.settings.dry_run
    run.answer(
        Answer(
            head={} if is_table else {"dryRun": dry_run, "undoManifest": _text(report.manifest)},
            name="partitions",
            kind="partition",
            rows=[installation_row(one) for one in report.partitions],
            columns=(
                PARTITION,
                Column(key="installed", title="INSTALLED", right=True),
                Column(key="replaced", title="REPLACED", right=True),
                Column(key="alreadyThere", title="ALREADY", right=True),
                Column(key="left", title="LEFT", right=True),
                Column(key="refused", title="REFUSED", right=True),
                Column(key="why", title="WHY", show=_why),
            ),
            tail=lambda: install_tail(report),
            closing=lambda: _closing(report, dry_run=dry_run),
        )
    )


def _closing(report: "InstallReport", *, dry_run: bool) -> list[str]:
    from resnap.scheduler.use_cases.install_rows import install_tail

    number = {key: int(str(value)) for key, value in install_tail(report).items()}
    counts = f"{human_count(number['installed'])} snapshots installed, {human_count(number['replaced'])} replaced"
    aside = f", {human_count(number['setAside'])} at the log end set aside" if number["setAside"] else ""
    rest = f"; {human_count(number['alreadyThere'])} were there already."
    if dry_run:
        return [f"would be: {counts}{aside}{rest} Nothing was written."]
    if report.manifest is None:
        what = "Nothing was installed" if number["refused"] else "Nothing to install"
        return [f"{what}: {human_count(number['alreadyThere'])} snapshots are there already."]
    return [
        f"{counts}{aside}{rest}",
        f"To take it back, before a broker starts: `resnap install --undo {shlex.quote(str(report.manifest))}`",
        _what_next(report),
    ]


def _what_next(report: "InstallReport") -> str:
    """Return what to do before the broker starts: once it has, its other log dirs are closed to us."""
    if report.error is not None:
        return "Next: run the same command again, before the broker starts."
    if report.absent:
        where = f"{human_count(len(report.absent))} staged partitions are not here"
        return f"Next: install into the broker's other log dirs, if any are left ({where}); then start it."
    return "Next: start the broker; it tiers the segments by itself."


def _why(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else ""


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _report(run: Invocation, report: "InstallReport") -> None:
    from resnap.scheduler.use_cases.install_rows import refusals_of

    run.partly_done = not run.settings.dry_run and any(one.changes for one in report.partitions)
    for key in report.absent:
        run.warn(f"{key} is staged, but not in the log dir")
    errors: list[ResnapError] = [*report.problems, *(error for one in report.partitions for error in refusals_of(one))]
    if report.error is not None:
        errors.append(report.error)
    for error in errors:
        run.error(error)


def _take_back(run: Invocation, manifest: Path) -> int:
    from resnap.scheduler.use_cases.install_rows import undo_row
    from resnap.storage.disk import Disk
    from resnap.tiering.installing.undo import UndoStep, read_undo

    undo, done = read_undo(manifest, Disk()), list[UndoStep]()
    try:
        if run.settings.dry_run:
            undo.check()
            done += undo.steps()
        else:
            undo.apply(done.append)
    finally:
        if done:
            run.partly_done = not run.settings.dry_run
            run.answer(_undone(run, [undo_row(step) for step in done]))
    if not done:
        run.answer(_undone(run, []))
    return OK


def _undone(run: Invocation, rows: list[Row]) -> Answer:
    would = "would be " if run.settings.dry_run else ""
    removed = sum(row["action"] == "removed" for row in rows)
    total = {"dryRun": run.settings.dry_run, "removed": removed, "restored": len(rows) - removed}
    text = f"{removed} snapshots {would}removed, {len(rows) - removed} {would}restored." if rows else "Nothing to undo."
    return Answer(
        name="files",
        kind="file",
        rows=rows,
        columns=(Column(key="path", title="FILE"), Column(key="action", title="ACTION")),
        tail=lambda: total,
        closing=lambda: [text],
    )
