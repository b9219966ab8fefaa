"""Quotas of users: those that are set in the state directory, those of a cluster, and what both come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from resnap.tiering.quota.client_quotas import (
    PRODUCER_IDS_RATE,
    ClientQuotas,
    QuotaChange,
    QuotaRequestError,
    UserRates,
    user,
)
from resnap.tiering.quota.metadata_quotas import MetadataQuotas

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.tiering.quota.client_quotas import Entity
    from resnap.tiering.quota.quota_file import QuotaFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A user; None is the default user."""

    name: str | None

    @property
    def entity(self) -> Entity:
        """The user as an entity."""
        return user(self.name)


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


def origins(file: QuotaFile | None, metadata_log: Path | None, warn: Callable[[str], None]) -> list[Origin]:
    """Return the quotas of the file and of a cluster; where both have a user, that of the file counts.

    Raises:
        ResnapError: either cannot be read.

    """
    found = [] if file is None else [Origin(text=f"file {file.path}", quotas=file.load())]
    if metadata_log is not None:
        cluster = MetadataQuotas(metadata_log, warn)
        found.append(Origin(text=f"metadata log {metadata_log} at offset {cluster.offset}", quotas=cluster.quotas))
    return found


def rates_of(found: list[Origin], warn: Callable[[str], None]) -> UserRates:
    """Return the rates of users from all origins; the first that has a user counts, and so for the default."""
    users: dict[str, float] = {}
    default: float | None = None
    for origin in found:
        rates = origin.quotas.rates(warn)
        users = {**rates.users, **users}
        default = rates.default if default is None else default
    return UserRates(users, default)
