"""Commands that look and change nothing: inspect, doctor, config show, version."""

from collections import deque
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from resnap.scheduler.answers.rendering import Answer, Column, Row
from resnap.scheduler.cli.failures import FAILED, OK
from resnap.scheduler.cli.flags import ALL, CHECKING, DUMPED, ENGINE, EXPIRATION, STORE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings

KIND_NAMES = Literal[
    "log", "index", "timeindex", "txnindex", "snapshot", "offset-checkpoint", "leader-epoch-checkpoint",
    "partition.metadata", "meta.properties", "manifest", "rsm-manifest", "indexes",
]  # fmt: skip


@with_settings(CHECKING, STORE, DUMPED)
def inspect_file(
    run: Invocation,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, or the URL of an object.")],
    kind: Annotated[
        KIND_NAMES | None,
        typer.Option("--kind", help="The kind of file; by default it follows from the name or the content."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Show at most N rows.", show_default=False)
    ] = None,
) -> None:
    """Show any file of a log dir or a store: snapshot, segment, index, checkpoint, manifest."""
    from resnap.scheduler.inspecting.file_kinds import Kind
    from resnap.scheduler.inspecting.inspection import inspected

    with inspected(
        file,
        s3=run.settings.s3(),
        keys=run.settings.keys(),
        kind=Kind(kind) if kind else None,
        limit=limit,
        verify_crc=run.settings.verify_crc,
        tells_validity=run.output.form == "dump-log",
    ) as answer:
        run.answer(answer)


@with_settings(EXPIRATION, ENGINE, STORE)
def doctor(
    run: Invocation,
    log_dirs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LOG_DIR]...", help="Log dirs to check; the default is log.dirs."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="A store to test: a small object is written, read and deleted."),
    ] = None,
) -> int:
    """Check what a run needs: Python, Java, Spark, the log dirs, the store, the clock."""
    from resnap.scheduler.answers.records import record
    from resnap.scheduler.doctor.examination import examine
    from resnap.scheduler.doctor.findings import Health
    from resnap.scheduler.settings.loading import process_environment

    places = log_dirs or [str(path) for path in run.settings.log_dirs]
    counts = dict.fromkeys(map(str, Health), 0)

    def rows() -> Iterator[Row]:
        for finding in examine(run.settings, process_environment(), run.clock, log_dirs=places, store_url=store):
            counts[finding.health] += 1
            run.output.line(f"{finding.health:<4}  {finding.check:<15}  {finding.detail}")
            if finding.remedy:
                run.output.line(f"{'':<23}-> {finding.remedy}")
            yield record(finding)

    if run.output.form == "table":
        deque(rows(), maxlen=0)
    else:
        run.answer(Answer(name="findings", kind="finding", rows=rows(), tail=lambda: dict(counts)))
    return FAILED if counts[Health.FAIL] else OK


@with_settings()
def show_version(run: Invocation) -> None:
    """Print the versions of Resnap and of what it runs on."""
    from resnap.scheduler.settings.loading import process_environment
    from resnap.scheduler.version import versions

    run.answer(Answer(head=versions(process_environment())))


@with_settings(ALL)
def show_config(run: Invocation) -> None:
    """Print every setting, its value, and where that comes from; credentials are masked."""
    from resnap.scheduler.settings.settings import SETTING_NAMES, display_name
    from resnap.scheduler.settings.values import shown

    rows = [
        {"name": display_name(name), "value": shown(getattr(run.settings, name)), "origin": run.settings.origin(name)}
        for name in SETTING_NAMES
    ]
    columns = (Column(key="name"), Column(key="value"), Column(key="origin"))
    run.answer(Answer(name="settings", kind="setting", rows=rows, columns=columns))
