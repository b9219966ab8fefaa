"""The command that cleans up in a store: gc."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.answers.rendering import Answer, Column, Row, human_bytes, human_count
from resnap.scheduler.cli.flags import STORE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.clock import instant

if TYPE_CHECKING:
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.keeping.garbage import Garbage


DEFAULT_AGE = "7d"
LEAST_AGE_MS = 3_600_000
"""Less might be a run that is at work; nobody's segment takes as long to ship."""


@with_settings(STORE)
def gc(
    run: Invocation,
    url: Annotated[str, typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to.")],
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="DURATION", help="Only objects that are at least this old by the store's clock."
        ),
    ] = DEFAULT_AGE,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the objects; without it they are only listed.")
    ] = False,
    no_other_writers: Annotated[
        bool,
        typer.Option(
            "--no-other-writers",
            help="Promise that nobody ships there now, nor was stopped in the middle of it; needed for stores without"
            " conditional writes. Tombstones of deleted segments then go, too.",
        ),
    ] = False,
) -> None:
    """List what runs that were killed have left in a store, or delete it: what no manifest names, and nothing else."""
    from resnap.storage.stores.urls import open_store
    from resnap.tiering.keeping.garbage import find_garbage

    age_ms = _age_ms(older_than)
    store = open_store(url, run.settings.s3())
    if delete and not no_other_writers:
        _check_alone(store, age_ms)
    garbage = find_garbage(store, older_than_ms=age_ms, is_alone=no_other_writers)
    if not garbage.listed:
        run.warn(f"{url} holds no object at all; `resnap tier --to` may have been given another URL")
    for error in garbage.unreadable:
        run.error(error)
        run.partly_done = True
    totals = {"objects": 0, "bytes": 0, "uploads": 0, "deleted": delete, "younger": garbage.younger}
    rows = _deleted(run, store, garbage, totals, is_alone=no_other_writers) if delete else _listed(garbage, totals)
    run.answer(
        Answer(
            name="garbage",
            kind="garbage",
            rows=rows,
            columns=[
                Column(key="key", title="KEY"),
                Column(key="bytes", title="BYTES", right=True, show=lambda value: human_bytes(int(str(value)))),
                Column(key="written", title="WRITTEN"),
            ],
            tail=lambda: totals,
            closing=lambda: [_sum(totals, older_than, url)],
        )
    )


def _age_ms(text: str) -> int:
    from datetime import timedelta

    from resnap.scheduler.settings.values import parse_duration
    from resnap.storage.errors import UsageError

    try:
        return parse_duration(text) // timedelta(milliseconds=1)
    except ValueError as error:
        raise UsageError(f"--older-than {text}: {error}") from error


def _check_alone(store: "ObjectStore", age_ms: int) -> None:
    """Refuse to delete where a run at work could not be told from one that was killed."""
    from resnap.storage.errors import UsageError
    from resnap.storage.stores.probe import Condition, condition

    if age_ms < LEAST_AGE_MS:
        raise UsageError("--delete of what is less than an hour old might take it from a run that is at work",
                         hint="give --older-than 1h or more, or --no-other-writers if there is none")  # fmt: skip
    found = condition(store)
    if found is not Condition.KEPT:
        raise UsageError(
            f"{store.url}: conditional writes are {found}, so no lease keeps other runs away",
            hint="make sure that nobody ships there, give --no-other-writers, and an age above that of the longest run",
        )


def _listed(garbage: "Garbage", totals: dict[str, int]) -> Iterator[Row]:
    for info in garbage.objects:
        totals["objects"] += 1
        totals["bytes"] += info.size_bytes
        yield {"key": info.key, "bytes": info.size_bytes, "written": instant(info.modified_ms)}
    for upload in garbage.unfinished:
        totals["uploads"] += 1
        yield {"key": f"{upload.key} (unfinished)", "bytes": 0, "written": instant(upload.begun_ms)}


def _deleted(
    run: Invocation, store: "ObjectStore", garbage: "Garbage", totals: dict[str, int], *, is_alone: bool
) -> Iterator[Row]:
    from resnap.scheduler.use_cases.tier_run import this_run
    from resnap.tiering.keeping.garbage import collect

    written = {info.key: info.modified_ms for info in garbage.objects}
    for one in collect(store, garbage, who=f"{this_run()} (gc)", now_ms=run.clock.now_ms(), is_alone=is_alone):
        if one.problem is not None:
            run.error(one.problem)
            continue
        run.partly_done = True
        is_object = one.key in written
        totals["objects" if is_object else "uploads"] += 1
        totals["bytes"] += one.size_bytes
        yield {"key": one.key, "bytes": one.size_bytes, "written": instant(written[one.key]) if is_object else "-"}


def _sum(totals: dict[str, int], older_than: str, url: str) -> str:
    found = (
        f"{human_count(totals['objects'])} objects ({human_bytes(totals['bytes'])}) and"
        f" {human_count(totals['uploads'])} unfinished uploads that nobody names"
    )
    younger = f"; {human_count(totals['younger'])} more are younger than {older_than}" if totals["younger"] else ""
    if totals["deleted"]:
        return f"Deleted {found}{younger}."
    again = f" To delete them: resnap gc {shlex.quote(url)} --older-than {older_than} --delete"
    return f"{found}{younger}. Nothing was deleted.{again if totals['objects'] or totals['uploads'] else ''}"
