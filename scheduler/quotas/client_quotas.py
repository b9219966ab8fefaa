"""The use cases of `resnap quota set`, `describe` and `delete`: quotas of users, and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from resnap.storage.errors import UsageError
from resnap.tiering.quota.client_quotas import (
    PRODUCER_IDS_RATE,
    ClientQuotas,
    FilterPart,
    Match,
    QuotaChange,
    QuotaRequestError,
    UserRates,
    user,
    user_name,
)
from resnap.tiering.quota.metadata_quotas import MetadataQuotas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from resnap.tiering.quota.client_quotas import Entity
    from resnap.tiering.quota.quota_file import QuotaFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The user that a command is about; None is the default user."""

    name: str | None

    @property
    def entity(self) -> Entity:
        """The user as an entity."""
        return user(self.name)


def named(name: str | None, *, default: bool) -> Named | None:
    """Return whom ``--user`` or ``--user-default`` names, also where that is as a principal; None for neither.

    Raises:
        UsageError: both are given, or the name is empty.

    """
    if name is not None and default:
        raise UsageError("--user and --user-default name two", hint="give one of them")
    name = None if name is None else user_name(name)
    if name == "":
        raise UsageError("--user without a name", hint="the default user is --user-default")
    return Named(name=name) if name is not None or default else None


def set_rate(file: QuotaFile, whom: Named, rate: float) -> bool:
    """Set ``producer_ids_rate``, and return whether that changed anything.

    Raises:
        QuotaRequestError: Kafka would refuse it.
        ConfigurationError, LogDirError: the file cannot be read or written.

    """
    return bool(file.alter({whom.entity: [QuotaChange(PRODUCER_IDS_RATE, rate)]}))


def delete_rate(file: QuotaFile, whom: Named) -> None:
    """Delete ``producer_ids_rate``.

    Raises:
        QuotaRequestError: it is not set, which ``kafka-configs`` refuses, too.
        ConfigurationError, LogDirError: the file cannot be read or written.

    """
    if not file.alter({whom.entity: [QuotaChange(PRODUCER_IDS_RATE, None)]}):
        raise QuotaRequestError(f"{PRODUCER_IDS_RATE} is not set for that user", hint="`resnap quota describe`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Quotas and where they come from."""

    text: str
    quotas: ClientQuotas


def origins(file: QuotaFile | None, metadata_log: Path | None, complain: Callable[[str], None]) -> list[Origin]:
    """Return the quotas of the file and of a cluster; where both know a user, the file has the word.

    Raises:
        ResnapError: either cannot be read.

    """
    found = [] if file is None else [Origin(text=f"file {file.path}", quotas=file.load())]
    if metadata_log is not None:
        cluster = MetadataQuotas(metadata_log, complain)
        found.append(Origin(text=f"metadata log {metadata_log} at offset {cluster.offset}", quotas=cluster.quotas))
    return found


def described(found: list[Origin], whom: Named | None) -> Iterator[tuple[Entity, Mapping[str, float], str]]:
    """Yield the entities with their quotas and their origin: all, or those of one user."""
    parts = []
    if whom is not None:
        match = Match.DEFAULT if whom.name is None else Match.EXACT
        parts = [FilterPart("user", match, whom.name)]
    for origin in found:
        for entity, values in origin.quotas.described(parts):
            yield entity, values, origin.text


def consequence(found: list[Origin], whom: Named | None) -> str:
    """Return what it means that nothing is set for ``whom``, None for anybody."""
    default = rates_of(found, lambda _: None).default
    if whom is None:
        return "No quota is set: nobody is limited."
    if whom.name is None:
        return "The default user has no quota: who has none of their own is not limited."
    if default is None:
        return f"User {whom.name!r} has no quota, nor has the default user: no limit."
    return f"User {whom.name!r} has no quota: the default user's counts, {PRODUCER_IDS_RATE}={default:.15g}."


def rates_of(found: list[Origin], complain: Callable[[str], None]) -> UserRates:
    """Return the rates of users from all origins; the first that knows a user has the word, and so for the default."""
    users: dict[str, float] = {}
    default: float | None = None
    for origin in found:
        rates = origin.quotas.rates(complain)
        users = {**rates.users, **users}
        default = rates.default if default is None else default
    return UserRates(users, default)
