"""`resnap quota set|delete|describe`: the quota of active producer ids (KIP-936) of each user."""

import math
from collections.abc import Iterable
from typing import Annotated, Final

import typer
from typing_extensions import TypedDict  # the one that pydantic takes, for the description of the API

from resnap.scheduler.cli.flags import CLUSTER, METADATA, STATE
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Result, Verb, View
from resnap.scheduler.job.wiring import cluster_of
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import Column, Row, plain_text
from resnap.scheduler.settings.environment import process_environment
from resnap.scheduler.settings.loading import state_directory
from resnap.storage.disk import Disk
from resnap.storage.errors import UsageError
from resnap.tiering.cluster.broker_settings import describe_client_quotas
from resnap.tiering.quota.client_quotas import (
    PRODUCER_IDS_RATE,
    USER,
    ClientQuotas,
    Entity,
    FilterPart,
    Match,
    shown_entity,
    user_name,
)
from resnap.tiering.quota.user_quotas import MetadataQuotas, QuotaFile, rates_of

_EXACT: Final = 2.0**53


def number(value: object) -> str:
    """Return a rate or a number of tokens as people read it; whole ones to the last digit, since they were set so."""
    if not isinstance(value, float):
        return plain_text(value)
    return f"{value:.0f}" if value.is_integer() and value < _EXACT else f"{value:.6g}"


User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user; `User:NAME` means the same.")]
UserDefault = Annotated[
    bool, typer.Option("--user-default", help="The default user: all users without a rate of their own.")
]


class SetRequest(Request):
    """Set the producer_ids_rate of a user, or of the default user."""

    rate: Annotated[float, typer.Argument(metavar="RATE", help="producer_ids_rate: new producer ids an hour.")]
    user: User = None
    user_default: UserDefault = False


class DeleteRequest(Request):
    """Delete the producer_ids_rate of a user, or of the default user."""

    user: User = None
    user_default: UserDefault = False


def run(request: SetRequest | DeleteRequest, context: Context, report: Report) -> None:
    """Set or delete the rate of one user.

    Raises:
        UsageError: there is no state directory.
        QuotaRequestError: Kafka would refuse it.
        ConfigurationError, LogDirError: the file cannot be read or written.

    """
    user, file = _one(request.user, default=request.user_default), _quota_file(context)
    if file is None:
        raise UsageError("there is no state directory to keep quotas in", hint="give --state-dir")
    if isinstance(request, DeleteRequest):
        file.delete_rate(user)
        report(Reported(what={"user": user, "deleted": PRODUCER_IDS_RATE, "file": str(file.path)}))
        return
    facts: Row = {
        "user": user,
        PRODUCER_IDS_RATE: request.rate,
        "changed": file.set_rate(user, request.rate),
        "file": str(file.path),
    }
    report(Reported(what=facts))


class ChangedView(View["Reported[Row]"]):
    """Only the facts."""

    def row(self, result: Reported[Row]) -> None:
        """Keep the facts."""
        self._totals |= result.what


class DescribeRequest(Request):
    """Show the quotas that are set, and those of a cluster, with their origin."""

    user: User = None
    user_default: UserDefault = False


class Quota(Result):
    """One quota of an entity."""

    entity: Entity
    key: str
    value: float
    origin: str


def describe(request: DescribeRequest, context: Context, report: Report) -> None:
    """Report the quotas that are set, with their origin; if there are none, what that means.

    Raises:
        ResnapError: the file, or the metadata log, cannot be read, or the cluster does not answer.

    """
    of = _user_part(request.user, default=request.user_default)
    parts = [] if of is None else [of]
    found = quota_origins(context)
    if context.settings.bootstrap_server is not None:
        with cluster_of(context.settings) as cluster:
            found["running cluster"] = ClientQuotas(describe_client_quotas(cluster))
    is_empty = True
    for origin, quotas in found.items():
        for entity, values in quotas.described(parts):
            for key, value in sorted(values.items()):
                is_empty = False
                report(Quota(entity=entity, key=key, value=value, origin=origin))
    if is_empty:
        report(Reported(what=_consequence(found.values(), of)))


def _consequence(found: Iterable[ClientQuotas], of: FilterPart | None) -> str:
    """Return what it means that nothing is set for a user, None for anybody."""
    default = rates_of(found, lambda _: None).default
    if of is None:
        return "No quota is set: no principal is limited."
    if of.name is None:
        return "The default user has no quota: users without a quota of their own are not limited."
    if default is None:
        return f"User {of.name!r} has no quota, nor has the default user: no limit."
    return f"User {of.name!r} has no quota: the default user's counts, {PRODUCER_IDS_RATE}={default:.15g}."


def _finite(quota: Quota) -> float | str:
    """Return the value of a quota: a cluster may hold what JSON cannot."""
    return quota.value if math.isfinite(quota.value) else str(quota.value)


class QuotaRow(TypedDict):
    """One quota of `resnap quota describe`."""

    entity: Annotated[dict[str, str | None], lambda quota: dict(quota.entity)]
    entityText: Annotated[str, lambda quota: shown_entity(quota.entity), Column(title="ENTITY")]
    key: Annotated[str, Column(title="QUOTA")]
    value: Annotated[float | str, _finite, Column(title="VALUE", right=True, show=number)]
    origin: Annotated[str, Column(title="ORIGIN")]


class QuotaView(View[Quota | Reported[str]]):
    """A row per quota."""

    kind = "quota"
    columns = columns_of(QuotaRow)

    def __init__(self) -> None:
        self._closing: list[str] = []

    def row(self, result: Quota | Reported[str]) -> Row | None:
        """Return the row of a quota."""
        if isinstance(result, Reported):
            self._closing.append(result.what)
            return None
        return row_of(QuotaRow, result)

    def closing(self) -> list[str]:
        """Return what the absence of quotas means."""
        return self._closing


def quota_origins(context: Context) -> dict[str, ClientQuotas]:
    """Return the quotas of the state directory, and of a cluster's metadata log, by their origin.

    The first that has a user counts.

    Raises:
        ResnapError: either cannot be read.

    """
    file, metadata_log = _quota_file(context), context.settings.metadata_log
    found = {} if file is None else {f"file {file.path}": file.load()}
    if metadata_log is not None:
        cluster = MetadataQuotas(metadata_log, context.warn)
        found[f"metadata log {metadata_log} at offset {cluster.offset}"] = cluster.quotas
    return found


def _quota_file(context: Context) -> QuotaFile | None:
    directory = state_directory(context.settings, process_environment())
    return None if directory is None else QuotaFile(directory, Disk(), context.note)


def _user_part(name: str | None, *, default: bool) -> FilterPart | None:
    """Return whom ``--user`` or ``--user-default`` names, also where that is as a principal; None for neither."""
    if name is not None and default:
        raise UsageError("--user and --user-default exclude each other", hint="give one of them")
    if default:
        return FilterPart(USER, Match.DEFAULT)
    if name is not None and not user_name(name):
        raise UsageError("--user without a name", hint="the default user is --user-default")
    return None if name is None else FilterPart(USER, Match.EXACT, user_name(name))


def _one(name: str | None, *, default: bool) -> str | None:
    """Return the name of the one user that must be named; None for the default user."""
    chosen = _user_part(name, default=default)
    if chosen is None:
        raise UsageError("no user is named", hint="give --user NAME or --user-default")
    return chosen.name


SET = Verb(takes=(STATE,), request=SetRequest, run=run, view=lambda *_: ChangedView())
DELETE = Verb(takes=(STATE,), request=DeleteRequest, run=run, view=lambda *_: ChangedView())
DESCRIBE = Verb(takes=(STATE, METADATA, CLUSTER), request=DescribeRequest, run=describe, view=lambda *_: QuotaView())
