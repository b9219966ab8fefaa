"""The producer expiration of a cluster's brokers, and which setting it comes from.

A broker uses, in this order, its own dynamic setting, the dynamic default of all brokers, its ``server.properties``,
and Kafka's default. Only ``producer.id.expiration.ms`` is dynamic, effective at the next sweep; the interval of the
sweeps is read once, when a broker starts. Before 3.4 there was neither: producers expired by
``transactional.id.expiration.ms``, swept every ten minutes. From 3.4 on that setting applies only to transactional ids.

Source: KIP-854; ``ProducerStateManagerConfig``, ``TransactionStateManagerConfig``, ``DynamicBrokerConfig``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from resnap.tiering.controller.metadata.image import (
    ALL_BROKERS,
    METADATA_VERSIONS,
    ConfigResource,
    MetadataImage,
    ResourceType,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXPIRATION: Final = "producer.id.expiration.ms"
CHECK_INTERVAL: Final = "producer.id.expiration.check.interval.ms"
TRANSACTIONAL_EXPIRATION: Final = "transactional.id.expiration.ms"
MAX_INT32: Final = 2**31 - 1
FIRST_WITH_EXPIRATION: Final = next(level for level, name in METADATA_VERSIONS.items() if name.startswith("3.4"))
"""A broker that can run this ``metadata.version`` is of 3.4 or later."""
_JAVA_INTEGER: Final = re.compile(r"[+-]?[^\D\U00010000-\U0010ffff]{1,4000}")
"""Digits of any script that fit one ``char``, with zeros before them; not more than Python converts."""
_JAVA_BLANKS: Final = "".join(map(chr, range(ord(" ") + 1)))


class Level(StrEnum):
    """The source of a broker's setting."""

    BROKER = "dynamic-broker"
    """The broker's own, set at run time."""
    ALL_BROKERS = "dynamic-default"
    """That of all brokers, set at run time."""
    STATIC = "server-properties"
    DEFAULT = "default"
    """Kafka's own; also where the broker's ``server.properties`` are not known."""
    FIXED = "fixed"
    """The fixed value of a broker that has no such setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerSetting:
    """A setting of milliseconds, as a broker defines it."""

    name: str
    default_ms: int
    dynamic: bool


SETTINGS: Final = (
    IntegerSetting(name=EXPIRATION, default_ms=86_400_000, dynamic=True),
    IntegerSetting(name=CHECK_INTERVAL, default_ms=600_000, dynamic=False),
    IntegerSetting(name=TRANSACTIONAL_EXPIRATION, default_ms=604_800_000, dynamic=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The effective value of a setting on one broker."""

    name: str
    value_ms: int
    level: Level
    offset: int | None = None
    """Offset of the record in the metadata log that set it, if that is known."""
    overruled: tuple[str, ...] = ()
    """What lower levels say that differs, as ``level=value``."""
    problems: tuple[str, ...] = ()
    """Values that no broker would take, and what becomes of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerExpiration:
    """How one broker expires producers."""

    broker_id: int | None
    has_own_setting: bool | None
    """Whether the broker is of 3.4 or later, and so knows ``producer.id.expiration.ms``; None where unknown."""
    settings: Mapping[str, Effective]
    """All settings by name, also those that this broker does not know."""

    @property
    def expiration(self) -> Effective:
        """The expiration of producers; if the release is unknown, the longer of the two settings."""
        own, transactional = self.settings[EXPIRATION], self.settings[TRANSACTIONAL_EXPIRATION]
        if self.has_own_setting is None:
            return max(own, transactional, key=lambda one: one.value_ms)
        return own if self.has_own_setting else transactional

    @property
    def check_interval_ms(self) -> int:
        """How often a broker checks for expired producers."""
        return self.settings[CHECK_INTERVAL].value_ms


def expiration_of(image: MetadataImage, broker_id: int | None, static: Mapping[str, str]) -> BrokerExpiration:
    """Return how the broker ``broker_id`` expires producers; None is any broker without settings of its own.

    Args:
        image: of the cluster.
        broker_id: of the broker.
        static: its ``server.properties``, as far as known.

    """
    return _resolve(image, broker_id, static, dict(_dynamic_layers(image, broker_id)))


def expiration_history(
    image: MetadataImage, broker_id: int | None, static: Mapping[str, str]
) -> list[tuple[int, Effective]]:
    """Return the broker's producer expirations, as far back as the log goes, each with the time it was set, first 0."""
    resources = {ALL_BROKERS: Level.ALL_BROKERS, _own(broker_id): Level.BROKER}
    layers: dict[Level, dict[str, str]] = {Level.BROKER: {}, Level.ALL_BROKERS: {}}
    periods = [(0, _resolve(image, broker_id, static, layers).expiration)]
    for change in image.broker_config_changes:
        level = resources.get(change.resource)
        if level is None or change.name != EXPIRATION:
            continue
        layers[level].pop(change.name, None)
        if change.value is not None:
            layers[level][change.name] = change.value
        now = _resolve(image, broker_id, static, layers).expiration
        if now.value_ms != periods[-1][1].value_ms:
            periods.append((change.timestamp, now))
    return periods


def has_own_setting(image: MetadataImage, broker_id: int | None) -> bool | None:
    """Return whether the broker is 3.4 or later; None if neither its registration nor the cluster shows it."""
    if (image.metadata_version or 0) >= FIRST_WITH_EXPIRATION:
        return True
    broker = image.brokers.get(-1 if broker_id is None else broker_id)
    level = None if broker is None else broker.newest_metadata_version
    return None if level is None else level >= FIRST_WITH_EXPIRATION


def parse_milliseconds(text: str) -> int | None:
    """Return the value a broker reads from ``text``, if it accepts it: a positive integer of 32 bits.

    Source: ``ConfigDef.parseType``, ``String.trim``, ``Integer.parseInt``.
    """
    compact = text.strip(_JAVA_BLANKS)
    value = int(compact) if _JAVA_INTEGER.fullmatch(compact) else 0
    return value if 1 <= value <= MAX_INT32 else None


def _resolve(
    image: MetadataImage, broker_id: int | None, static: Mapping[str, str], dynamic: Mapping[Level, Mapping[str, str]]
) -> BrokerExpiration:
    own = has_own_setting(image, broker_id)
    resolved = {}
    for setting in SETTINGS:
        if own is False and setting.name != TRANSACTIONAL_EXPIRATION:
            resolved[setting.name] = Effective(name=setting.name, value_ms=setting.default_ms, level=Level.FIXED)
        else:
            resolved[setting.name] = _effective(image, broker_id, setting, {**dynamic, Level.STATIC: static})
    return BrokerExpiration(broker_id=broker_id, has_own_setting=own, settings=resolved)


def _effective(
    image: MetadataImage, broker_id: int | None, setting: IntegerSetting, layers: Mapping[Level, Mapping[str, str]]
) -> Effective:
    taken: list[tuple[Level, int]] = []
    problems = []
    for level in (Level.BROKER, Level.ALL_BROKERS, Level.STATIC):
        text = layers[level].get(setting.name)
        if text is None:
            continue
        value = parse_milliseconds(text)
        if level is not Level.STATIC and not setting.dynamic:
            problems.append(f"{level}={text} is ignored: the setting is not dynamic")
        elif value is None:
            problems.append(f"{level}={text} is refused: a broker takes 1 to {MAX_INT32}")
        else:
            taken.append((level, value))
    level, value = taken[0] if taken else (Level.DEFAULT, setting.default_ms)
    return Effective(
        name=setting.name,
        value_ms=value,
        level=level,
        offset=_offset_of(image, broker_id, setting.name, level),
        overruled=tuple(f"{lower}={other}" for lower, other in taken[1:] if other != value),
        problems=tuple(problems),
    )


def _dynamic_layers(image: MetadataImage, broker_id: int | None) -> Iterator[tuple[Level, Mapping[str, str]]]:
    yield Level.BROKER, {} if broker_id is None else image.configs.get(_own(broker_id), {})
    yield Level.ALL_BROKERS, image.configs.get(ALL_BROKERS, {})


def _own(broker_id: int | None) -> ConfigResource:
    return ConfigResource(ResourceType.BROKER, "none" if broker_id is None else str(broker_id))


def _offset_of(image: MetadataImage, broker_id: int | None, name: str, level: Level) -> int | None:
    resource = {Level.BROKER: _own(broker_id), Level.ALL_BROKERS: ALL_BROKERS}.get(level)
    changes = [one.offset for one in image.broker_config_changes if (one.resource, one.name) == (resource, name)]
    return changes[-1] if changes else None
