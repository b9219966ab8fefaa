"""Commands that set, describe and delete the quota of active producer ids (KIP-936)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.answers.rendering import Answer
from resnap.scheduler.cli.flags import STATE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings

if TYPE_CHECKING:
    from resnap.scheduler.quotas.client_quotas import Named, Origin
    from resnap.tiering.quota.quota_file import QuotaFile


User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user; `User:NAME` means the same.")]
UserDefault = Annotated[
    bool, typer.Option("--user-default", help="The default user: all users without a rate of their own.")
]
MetadataLog = Annotated[
    Path | None,
    typer.Option("--metadata-log", metavar="DIR", help="A cluster's metadata log, or the log dir that contains it."),
]


@with_settings(STATE)
def set_quota(
    run: Invocation,
    rate: Annotated[float, typer.Argument(metavar="RATE", help="producer_ids_rate: new producer ids an hour.")],
    *,
    user: User = None,
    user_default: UserDefault = False,
) -> None:
    """Set the producer_ids_rate of a user, or of the default user."""
    from resnap.scheduler.quotas.client_quotas import set_rate

    whom = _whom(user, default=user_default)
    file = _file(run)
    changed = set_rate(file, whom, rate)
    run.answer(Answer(head={"user": whom.name, "producer_ids_rate": rate, "changed": changed, "file": str(file.path)}))


@with_settings(STATE)
def delete_quota(run: Invocation, *, user: User = None, user_default: UserDefault = False) -> None:
    """Delete the producer_ids_rate of a user, or of the default user."""
    from resnap.scheduler.quotas.client_quotas import delete_rate

    whom = _whom(user, default=user_default)
    file = _file(run)
    delete_rate(file, whom)
    run.answer(Answer(head={"user": whom.name, "deleted": "producer_ids_rate", "file": str(file.path)}))


@with_settings(STATE)
def describe_quotas(
    run: Invocation, *, user: User = None, user_default: UserDefault = False, metadata_log: MetadataLog = None
) -> None:
    """Show the quotas that are set, and those of a cluster, with their origin."""
    from resnap.scheduler.quotas.client_quotas import consequence, described, named
    from resnap.scheduler.quotas.rows import QUOTA_COLUMNS, quota_rows

    found = quota_origins(run, metadata_log)
    whom = named(user, default=user_default)
    rows = [row for entity, values, origin in described(found, whom) for row in quota_rows(entity, values, origin)]
    closing = () if rows else (consequence(found, whom),)
    run.answer(Answer(name="quotas", kind="quota", rows=rows, columns=QUOTA_COLUMNS, closing=lambda: closing))


def _whom(user: str | None, *, default: bool) -> "Named":
    from resnap.scheduler.quotas.client_quotas import named
    from resnap.storage.errors import UsageError

    whom = named(user, default=default)
    if whom is None:
        raise UsageError("whose quota?", hint="give --user NAME or --user-default")
    return whom


def _file(run: Invocation) -> "QuotaFile":
    from resnap.storage.errors import UsageError

    file = _file_if_any(run)
    if file is None:
        raise UsageError("there is no state directory to keep quotas in", hint="give --state-dir")
    return file


def _file_if_any(run: Invocation) -> "QuotaFile | None":
    from resnap.scheduler.settings.loading import process_environment, state_directory
    from resnap.storage.disk import Disk
    from resnap.tiering.quota.quota_file import QuotaFile

    directory = state_directory(run.settings, process_environment())
    return None if directory is None else QuotaFile(directory, Disk(), run.note)


def quota_origins(run: Invocation, metadata_log: Path | None) -> "list[Origin]":
    """Return the quotas of the state directory, and of a cluster's metadata log where one is given."""
    from resnap.scheduler.quotas.client_quotas import origins

    return origins(_file_if_any(run), metadata_log, run.warn)
