"""Client quotas as Kafka stores them: entities with keys and values, changed by records, described by filters.

An entity is one or more of ``user``, ``client-id`` and ``ip``, each with a name or, as the default, without. Only the
key ``producer_ids_rate`` has a meaning here; other keys of a cluster are preserved. A request is validated as the
controller does, and nothing of it is applied if any part is wrong.

``producer_ids_rate`` is for users alone (KIP-936: client ids are free for clients to choose, and would let the memory
grow), so it is refused for all other entities.

Source: ``ClientQuotaControlManager``, ``ClientQuotasImage``, ``ClientQuotaRecord``, ``QuotaConfig``; KIP-546.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from resnap.storage.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

PRODUCER_IDS_RATE: Final = "producer_ids_rate"
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)
PREFIX: Final = "User:"
"""The prefix of the principals of users, as ``KafkaPrincipal`` writes them."""

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(type, name) pairs in order of type; the name None is the default."""

_CLIENT_KEYS: Final = {
    "producer_byte_rate": True,
    "consumer_byte_rate": True,
    "request_percentage": False,
    "controller_mutation_rate": False,
}
"""Whether only whole numbers are taken."""
_IP_KEYS: Final = {"connection_creation_rate": True}
_FRACTION: Final = 1e-6
_MOST: Final = {"connection_creation_rate": (1 << 31) - 1}
_MOST_OF_A_LONG: Final = (1 << 63) - 1


class QuotaRequestError(UsageError):
    """A request that Kafka's controller would refuse, with the name of its error."""

    def __init__(self, message: str, *, code: str = "INVALID_REQUEST", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class QuotaRecord(NamedTuple):
    """A ``ClientQuotaRecord``: one key of one entity is set, or removed."""

    entity: Entity
    key: str
    value: float
    remove: bool = False


class QuotaChange(NamedTuple):
    """One operation of an ``AlterClientQuotas`` request; the value None removes the key."""

    key: str
    value: float | None


class Match(StrEnum):
    """How a part of a filter matches entities."""

    EXACT = "exact"
    DEFAULT = "default"
    ANY = "any"


class FilterPart(NamedTuple):
    """One entity type of a filter, and the name it must match."""

    entity_type: str
    match: Match
    name: str | None = None


def user(name: str | None) -> Entity:
    """Return the entity of a user; None is the default user."""
    return ((USER, name),)


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return an entity, validated as Kafka's controller does.

    Raises:
        QuotaRequestError: it is empty, of an unknown type, has a type twice or an empty name, or joins ip with others.

    """
    found = sorted(parts, key=lambda part: part[0])
    types = [kind for kind, _ in found]
    if not found:
        raise QuotaRequestError("an entity without any type", hint=f"give one of {', '.join(ENTITY_TYPES)}")
    for kind, name in found:
        if kind not in ENTITY_TYPES:
            raise QuotaRequestError(f"unknown entity type {kind!r}", hint=f"the types are {', '.join(ENTITY_TYPES)}")
        if name is not None and not name.isascii() and name.encode(errors="replace").decode() != name:
            raise QuotaRequestError(
                f"{name!r} is not a name of a {kind}: it is not UTF-8", hint="Kafka's names are UTF-8"
            )
        if name == "":
            raise QuotaRequestError(f"an empty name of a {kind}", hint="the default has no name at all")
    if len(set(types)) < len(types):
        raise QuotaRequestError(f"an entity with the type {max(types, key=types.count)} twice")
    if IP in types and len(types) > 1:
        raise QuotaRequestError(
            "an ip cannot be combined with other types in an entity", hint="set its quota by itself"
        )
    return tuple(found)


def check_value(entity: Entity, key: str, value: float | None) -> None:
    """Check a key and its value for an entity.

    Raises:
        QuotaRequestError: the entity does not take the key, or the key not the value. Of keys that take fractions Kafka
            bounds none; here the largest long, which is its bound where there is no quota, bounds all: what is more
            overflows in the arithmetic, and JSON has no infinity.

    """
    whole = _whole_only(entity, key)
    if value is None:
        return
    if math.isnan(value) or value <= 0:
        raise QuotaRequestError(f"{key}={value}: it must be greater than 0", hint="to lift a quota, delete it")
    if whole and abs(value - round(value)) > _FRACTION:
        raise QuotaRequestError(f"{key}={value}: it must be a whole number")
    if value > _MOST.get(key, _MOST_OF_A_LONG):
        raise QuotaRequestError(f"{key}={value}: it is too large", hint="to lift a quota, delete it")


def _whole_only(entity: Entity, key: str) -> bool:
    types = {kind for kind, _ in entity}
    if key == PRODUCER_IDS_RATE:
        if types == {USER}:
            return False
        raise QuotaRequestError(
            f"{key} is for users alone, not for {' with '.join(sorted(types))}",
            hint="clients choose their ids and addresses freely; set it for the user",
        )
    known = _IP_KEYS if types == {IP} else _CLIENT_KEYS
    if key not in known:
        raise QuotaRequestError(f"unknown quota {key!r} of {' with '.join(sorted(types))}")
    return known[key]


@dataclass(frozen=True, slots=True)
class ClientQuotas:
    """All quotas at one moment; applying records returns a new value."""

    entities: Mapping[Entity, Mapping[str, float]] = field(default_factory=dict)

    def altered(self, changes: Mapping[Entity, Sequence[QuotaChange]]) -> list[QuotaRecord]:
        """Return the records of a request, all or none; unchanged values give none.

        Raises:
            QuotaRequestError: anything of it is wrong.

        """
        records = []
        for entity, wanted in changes.items():
            checked = entity_of(entity)
            keys = [change.key for change in wanted]
            if len(set(keys)) < len(keys):
                raise QuotaRequestError(f"{max(keys, key=keys.count)} twice for one entity")
            there = self.entities.get(checked, {})
            for key, value in wanted:
                check_value(checked, key, value)
                if value is None and key in there:
                    records.append(QuotaRecord(checked, key, 0.0, remove=True))
                elif value is not None and there.get(key) != value:
                    records.append(QuotaRecord(checked, key, value))
        return records

    def applied(self, records: Iterable[QuotaRecord]) -> ClientQuotas:
        """Return the quotas after these records; an entity without keys is removed."""
        entities = {entity: dict(values) for entity, values in self.entities.items()}
        for record in records:
            values = entities.setdefault(record.entity, {})
            if record.remove:
                values.pop(record.key, None)
            else:
                values[record.key] = record.value
            if not values:
                del entities[record.entity]
        return ClientQuotas(entities)

    def described(
        self, parts: Sequence[FilterPart] = (), *, strict: bool = False
    ) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        """Return the entities that match all types of a filter; with ``strict``, without other types.

        Raises:
            QuotaRequestError: a type is there twice, beside ip, or is not known; a match lacks its name.

        """
        _check_filter(parts)
        return (
            (entity, values)
            for entity, values in sorted(self.entities.items(), key=_order)
            if all(_matches(part, entity) for part in parts) and not (strict and len(entity) > len(parts))
        )

    def rates(self, warn: Callable[[str], None] = lambda _: None) -> UserRates:
        """Return ``producer_ids_rate`` of users; invalid values are skipped, and reported to ``warn``.

        A broker, too, warns of unknown metadata and continues. A rate of zero, which no controller writes, is applied
        literally: a bucket without burst, one id, and then none. One beyond the largest long is limited to that, which
        limits nothing either.
        """
        rates: dict[str | None, float] = {}
        for entity, values in self.entities.items():
            rate = values.get(PRODUCER_IDS_RATE)
            if rate is None:
                continue
            if tuple(kind for kind, _ in entity) != (USER,):
                warn(f"{PRODUCER_IDS_RATE} of {shown_entity(entity)} is ignored: it is for users alone")
            elif (entity[0][1] or "").startswith(PREFIX):
                name = user_name(entity[0][1] or "")
                warn(f"{PRODUCER_IDS_RATE} of {shown_entity(entity)} is ignored: the user's name is {name!r}")
            elif math.isnan(rate) or rate < 0:
                warn(f"{PRODUCER_IDS_RATE} of {shown_entity(entity)} is ignored: {rate} is not a rate")
            else:
                rates[entity[0][1]] = min(rate, float(_MOST_OF_A_LONG))
        return UserRates({name: rate for name, rate in rates.items() if name is not None}, rates.get(None))


def user_name(principal: str) -> str:
    """Return the user name of a principal in quotas: ``User:alice`` is the user ``alice``.

    Brokers ask for quotas by ``KafkaPrincipal.getName``, and operators set them by the same name. ``User:alice`` is
    what a principal looks like in ACLs and logs, so both forms mean one user here, with one bucket.
    """
    return principal.removeprefix(PREFIX)


@dataclass(frozen=True, slots=True)
class UserRates:
    """``producer_ids_rate`` of users, as the quota uses it; names may have the prefix of principals.

    Raises:
        ValueError: a rate is below 0, above the largest long, or not a number, or a user has two rates.

    """

    users: Mapping[str, float] = field(default_factory=dict)
    default: float | None = None

    def __post_init__(self) -> None:
        for rate in (*self.users.values(), 0.0 if self.default is None else self.default):
            if not 0 <= rate <= float(_MOST_OF_A_LONG):
                raise ValueError(f"a rate of {rate}: it must be from 0 to {_MOST_OF_A_LONG}")
        users: dict[str, float] = {}
        for name, rate in self.users.items():
            if users.setdefault(user_name(name), rate) != rate:
                raise ValueError(f"rates of {users[user_name(name)]} and {rate} for {user_name(name)!r}: one is needed")
        object.__setattr__(self, "users", users)

    def of(self, name: str) -> float | None:
        """Return the rate of a user: its own, else the default user's, else None, which is no limit.

        The default gives each user a bucket of its own. Levels with client ids, which Kafka's order has in between, are
        skipped.
        """
        return self.users.get(user_name(name), self.default)


def shown_entity(entity: Entity) -> str:
    """Return an entity in the form of ``kafka-configs``."""
    return ", ".join(f"default {kind}" if name is None else f"{kind} {name!r}" for kind, name in entity)


def _order(item: tuple[Entity, Mapping[str, float]]) -> list[tuple[str, bool, str]]:
    return [(kind, name is not None, name or "") for kind, name in item[0]]


def _check_filter(parts: Sequence[FilterPart]) -> None:
    types = [part.entity_type for part in parts]
    if len(set(types)) < len(types):
        raise QuotaRequestError(f"a filter with the type {max(types, key=types.count)} twice")
    if IP in types and len(types) > 1:
        raise QuotaRequestError("an ip cannot be combined with other types in a filter")
    for part in parts:
        if part.entity_type not in ENTITY_TYPES:
            raise QuotaRequestError(f"unknown entity type {part.entity_type!r}", code="UNSUPPORTED_VERSION")
        if (part.match is Match.EXACT) != (part.name is not None):
            raise QuotaRequestError(f"a match {part.match} of {part.entity_type} with the name {part.name!r}")


def _matches(part: FilterPart, entity: Entity) -> bool:
    names = dict(entity)
    if part.entity_type not in names:
        return False
    name = names[part.entity_type]
    return part.match is Match.ANY or name == part.name
